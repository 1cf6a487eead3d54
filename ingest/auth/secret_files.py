"""Small files that only their owner may read: written as a whole, durable, 0600 from their first byte on. Some are TOML
with an entry `[[…]]` for each token or key, which people may edit."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingest.errors import TokensUnusable
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


def replace(file: Path, content: str) -> None:
    """`write`; TokensUnusable says why not."""
    try:
        write(file, content)
    except OSError as error:
        raise TokensUnusable(f"{file}: {error.strerror}: give this user write access to its directory") from error


def read(file: Path) -> str:
    """The text; empty if there is no file. TokensUnusable if it cannot be read."""
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise TokensUnusable(f"{file}: {reason}: give this user access to it, or restore it") from error


def entries(text: str, table: str) -> list[str]:
    """What stands before the first `[[table]]`, then the text of each entry: joined they are the text again."""
    return re.split(rf"(?m)^(?=[ \t]*\[\[[ \t]*{table}[ \t]*\]\])", text)


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
