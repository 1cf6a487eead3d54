"""What ``escrow doctor`` tells of plug-ins: which are loaded, which are installed and not named, which are named and missing."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from runtime.commands.checkup.finding import Finding, Level
from runtime.settings import Settings


def plugins(settings: Settings) -> Iterator[Finding]:
    """Nothing is imported here: entry points are read from what is installed."""
    if importlib.util.find_spec("numpy") is None:
        return  # the packages are missing: told already
    from sinks.errors import BrokenPlugin
    from sinks.plugins import GROUPS, check_named, find, left_out

    try:
        check_named(settings.plugins)
    except BrokenPlugin as error:
        says, _, remedy = str(error).rpartition(": ")
        yield Finding(Level.FAIL, "plug-ins", says, remedy)
        return
    used = [f"{point.name} ({group})" for group in GROUPS for point in find(group, settings.plugins)]
    yield Finding(Level.OK, "plug-ins", ", ".join(used) or "none")
    for told in left_out(settings.plugins):
        says, _, remedy = told.rpartition(": ")
        yield Finding(Level.WARN, "plug-ins", says, remedy)
