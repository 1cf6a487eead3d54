"""A small file system in memory, where this machine lets us mount one."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class Mount:
    def __init__(self, path: Path) -> None:
        self.path = path

    def remount(self, options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(self.path)], check=True, capture_output=True)


@contextmanager
def mounted(path: Path, size: str) -> Iterator[Mount]:
    """Mounted at `path`, which is made; the test is skipped where that is not allowed."""
    path.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("there is no mount command here")
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], check=False, capture_output=True)
    if made.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {made.stderr.decode().strip()}")
    try:
        yield Mount(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
