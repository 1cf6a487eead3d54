"""Small files that nobody else may read: written as a whole, durable, 0600 from their first byte on."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from store.io import disk


def write(file: Path, content: str) -> None:
    """Replace the file: a reader sees the old content or the new one, never a part. OSError says why not."""
    disk.make_directory(file.parent)
    temporary = file.with_name(file.name + disk.TEMPORARY_SUFFIX)
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, content.encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    temporary.rename(file)
    disk.flush_directory(file.parent, "keys")


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """One process at a time reads the file, changes it and writes it back. The lock is on its directory, which stays."""
    disk.make_directory(file.parent)
    fd = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
