"""Programs that some tests need besides Python: where they are, and what it means when they are not there.

A developer without PostgreSQL should not be stopped: the test is skipped, and says why. Continuous integration (CI=true) has
everything, by `scripts/test_tools.sh`: there a missing program is a failure, since a skipped test proves nothing.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

#: Where Debian keeps programs that are not on the PATH; the newest version counts.
ELSEWHERE = ("/usr/lib/postgresql/*/bin",)


def require_tool(name: str) -> str:
    """The path of this program; skips the test, or fails it in CI, where there is none."""
    return find_tool(name) or missing(f"{name} is not installed: run scripts/test_tools.sh as root, or install its package")


def find_tool(name: str) -> str | None:
    """On the PATH, or where Debian hides it. The hidden one first: it lies beside the rest of its package."""
    for pattern in ELSEWHERE:
        for directory in sorted(Path("/").glob(pattern.lstrip("/")), key=_version, reverse=True):
            if os.access(directory / name, os.X_OK):
                return str(directory / name)
    return shutil.which(name)


def missing(reason: str) -> NoReturn:
    """Skip; or fail, where CI promises that everything is there."""
    if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
        pytest.fail(f"{reason} (CI is set, and there a test may not be skipped)")
    pytest.skip(reason)


def _version(directory: Path) -> float:
    try:
        return float(directory.parent.name)
    except ValueError:
        return 0.0
