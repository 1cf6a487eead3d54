"""Every text of the checkout: code, tests, pages, settings. What must not stand anywhere is looked for in these."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tests.support.pages import ROOT

#: What tools and runs leave in a checkout; hidden directories are left out, too.
MADE = {"__pycache__", "build", "dist", "data", "node_modules", "target"}
SUFFIXES = {
    ".py",
    ".md",
    ".toml",
    ".yml",
    ".yaml",
    ".json",
    ".js",
    ".html",
    ".css",
    ".txt",
    ".sh",
    ".cfg",
    ".proto",
    ".java",
    ".xml",
}
NAMED = {"Makefile", "Dockerfile"}


def texts(*besides: str) -> Iterator[tuple[str, str]]:
    """(path from the root, text) of each, without the paths `besides`."""
    for place, directories, files in os.walk(ROOT):
        directories[:] = [name for name in directories if name not in MADE and not name.startswith(".") and "egg-info" not in name]
        for name in files:
            path = Path(place) / name
            where = path.relative_to(ROOT).as_posix()
            if where not in besides and (path.suffix in SUFFIXES or name in NAMED):
                yield where, path.read_text(errors="replace")
