"""A small file of settings that is read again when it changes: tokens, groups.

Each use checks for a change, at most once a second, by one stat(2); nothing runs in between. A new content
that cannot be used leaves the old one in force: an operator's slip must not lock all clients out, or let all in. `problem`
says what is wrong until it is repaired, and the log has it once.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from ingest.errors import EdgeError

LOOK_S: Final = 1.0
SIZE_MAX_BYTES: Final = 4 << 20
LOG: Final = logging.getLogger("escrow.edge")

T = TypeVar("T")
_Stamp = tuple[int, int, int] | None


class Watched(Generic[T]):
    """`parse` makes the value of the file's text, None where there is no file; whatever it raises as EdgeError is a problem."""

    def __init__(self, path: Path, parse: Callable[[str | None], T], clock_s: Callable[[], float] = time.monotonic) -> None:
        self.path, self._parse, self._clock_s = path, parse, clock_s
        self.problem = ""
        self.version = 0
        self._looked_at_s = clock_s()
        self._stamp = self._stat()
        self._value = parse(self._read())

    def get(self) -> T:
        """The value in force."""
        now_s = self._clock_s()
        if now_s - self._looked_at_s >= LOOK_S:
            self._looked_at_s = now_s
            self._look()
        return self._value

    def _look(self) -> None:
        stamp = self._stat()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._value = self._parse(self._read())
        except EdgeError as error:
            self.problem = str(error)
            LOG.warning("%s; what was in force before stays so", self.problem)
            return
        self.problem = ""
        self.version += 1
        LOG.info("%s: read again", self.path)

    def _stat(self) -> _Stamp:
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        # The inode too: a file that was replaced within one tick of the clock has another one.
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> str | None:
        try:
            with self.path.open("rb") as file:
                content = file.read(SIZE_MAX_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise EdgeError(f"{self.path}: {error.strerror}: give this user access to it") from error
        if len(content) > SIZE_MAX_BYTES:
            raise EdgeError(f"{self.path}: has more than {SIZE_MAX_BYTES} bytes: make it smaller")
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise EdgeError(f"{self.path}: is not UTF-8: write it again") from None
