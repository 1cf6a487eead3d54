"""Plug-ins: found through Python entry points, loaded once, checked, and refused with a sentence that names what is broken.

    group                          what it names                                    used by
    escrow.sinks                   a callable (root: Path) → interfaces.Sink        the streaming job; all of them
    escrow.check_transports        a callable (root: Path) → CheckTransport         the edge; all of them
    escrow.check_listeners         a callable () → CheckListener                    the edge; all of them
    escrow.transaction_service     a callable (root: Path, inner) → TransactionService   the edge; at most one

What is installed is not loaded by that alone: the setting `plugins` names the distributions (`NAME`, or `NAME:ENTRY-POINT`).
A name for which nothing is installed is refused at the start (`check_named`); what is installed and not named is told
(`left_out`). Distributions are named, not entry points alone: any distribution can call its entry point what it likes.

`docs/plugins.md` has a worked example.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from itertools import pairwise
from typing import Any, Final

from sinks.errors import BrokenPlugin
from sinks.interfaces import CheckListener, CheckTransport, Sink, TransactionService

GROUPS: Final[dict[str, type]] = {
    "escrow.sinks": Sink,
    "escrow.check_transports": CheckTransport,
    "escrow.check_listeners": CheckListener,
    "escrow.transaction_service": TransactionService,
}


def load_all(group: str, named: Sequence[str], *arguments: Any) -> list[tuple[str, Any]]:
    """(name, plug-in) of every plug-in of a group that is named, made with these arguments, in order of name."""
    found = find(group, named)
    for earlier, later in pairwise(found):
        if earlier.name == later.name and earlier.value != later.value:
            raise BrokenPlugin(f"{_where(later)}: {_where(earlier)} has the same name: take one of them out of plugins")
    return [(point.name, _load(point, arguments)) for point in found]


def load_one(group: str, named: Sequence[str], *arguments: Any) -> Any | None:
    """The only plug-in of a group; None where none is named."""
    found = load_all(group, named, *arguments)
    if len(found) > 1:
        names = ", ".join(name for name, _ in found)
        raise BrokenPlugin(f"{group}: there can be one, but plugins names {names}: take all but one out of it")
    return found[0][1] if found else None


def find(group: str, named: Sequence[str]) -> list[EntryPoint]:
    """Entry points of a group that are installed and named, in order of name."""
    found = sorted(entry_points(group=group), key=lambda point: (point.name, point.value))
    wanted = {_parts(name) for name in named}
    return [point for point in found if _names_of(point) & wanted]


def check_named(named: Sequence[str]) -> None:
    """Refuses a name for which nothing is installed: the deployment relies on a plug-in that is missing."""
    there = set().union(*(_names_of(point) for group in GROUPS for point in entry_points(group=group)))
    for name in named:
        if _parts(name) not in there:
            have = ", ".join(sorted({distribution for distribution, _ in there})) or "none"
            raise BrokenPlugin(
                f"plugins: {name}: no such plug-in is installed (installed: {have}): install it into {sys.prefix}, or take the "
                "name out of plugins"
            )


def left_out(named: Sequence[str]) -> list[str]:
    """A sentence for every distribution whose plug-ins are installed and not loaded."""
    points: dict[str, list[EntryPoint]] = {}
    for group in GROUPS:
        used = find(group, named)
        for point in entry_points(group=group):
            if point not in used:
                points.setdefault(_distribution(point), []).append(point)
    return [
        f"plug-in {name} ({', '.join(f'{point.group}: {point.name}' for point in found)}) is installed and not used: "
        f'add "{name}" to plugins, or uninstall it'
        for name, found in sorted(points.items())
    ]


def _distribution(point: EntryPoint) -> str:
    return _plain(point.dist.name) if point.dist is not None else ""


def _names_of(point: EntryPoint) -> set[tuple[str, str]]:
    """What names it: its distribution, and both."""
    return {(_distribution(point), ""), (_distribution(point), point.name)}


def _parts(name: str) -> tuple[str, str]:
    distribution, _, point = name.partition(":")
    return _plain(distribution), point.strip()


def _plain(distribution: str) -> str:
    """As package indexes compare names: escrow_audit is escrow-audit."""
    return re.sub(r"[-_.]+", "-", distribution.strip()).lower()


def _load(point: EntryPoint, arguments: tuple[Any, ...]) -> Any:
    try:
        factory = point.load()
    except Exception as error:  # whatever its module does when imported
        raise BrokenPlugin(f"{_where(point)}: cannot be imported: {_cause(error)}") from error
    if not callable(factory):
        raise BrokenPlugin(f"{_where(point)}: names a {type(factory).__name__}, not something that can be called")
    try:
        made = factory(*arguments)
    except Exception as error:  # whatever its constructor does
        raise BrokenPlugin(f"{_where(point)}: could not be made: {_cause(error)}") from error
    _check(point, made)
    return made


def _check(point: EntryPoint, made: Any) -> None:
    wanted = GROUPS[point.group]
    missing = [name for name in _methods(wanted) if not callable(getattr(made, name, None))]
    if missing:
        raise BrokenPlugin(
            f"{_where(point)}: is no {wanted.__name__}: it has no {' and no '.join(f'{name}()' for name in missing)}"
        )


def _methods(protocol: type) -> list[str]:
    return sorted(name for name, value in vars(protocol).items() if callable(value) and not name.startswith("_"))


def _where(point: EntryPoint) -> str:
    by = f" of {point.dist.name} {point.dist.version}" if point.dist is not None else ""
    return f"plug-in {point.name} = {point.value} ({point.group}){by}"


def _cause(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
