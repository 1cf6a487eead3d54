"""No room on the disk: the job waits, reports it, and continues once there is room.

A caller that finds none (the store, Spark's scratch directory) calls `wait` and retries. The wait is reported once: on the
terminal, and by `no_room_since_ms` on the job's page, from which the edge answers `/readyz` and its metrics. `found` ends the
report. What cannot be retried in this process (Spark gave up) ends it with an exit status of its own: the supervisor always
restarts it, and the new process waits here.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from store.errors import NoRoom
from store.io import disk
from store.io.pages import JOB_MAGIC, JOB_PUBLISHED, JobSlot, PublishedPage

#: Between two attempts.
LOOK_S: Final = 1.0
#: Spark unpacks libraries and writes a few small files when it starts.
SPARK_BYTES: Final = 16 << 20
#: With less free space than this, every failure counts as lack of room.
NOTHING_BYTES: Final = 1 << 20
_TEXTS: Final = tuple(os.strerror(number) for number in disk.NO_ROOM)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Room:
    """Waits for room and reports it. `stopping` is set when the job should end instead; `tell` gets a sentence for the operator,
    and whether the job waits now."""

    def __init__(
        self, root: Path, stopping: threading.Event, tell: Callable[[str, bool], None], now_ms: Callable[[], int] = wall_ms
    ) -> None:
        self._path, self._stopping, self._tell, self._now_ms = root / JOB_PUBLISHED, stopping, tell, now_ms
        self._page: PublishedPage | None = None
        self.reason = ""

    def wait(self, reason: object) -> bool:
        """Wait a moment, then try again; False if the job should stop."""
        now_ms = self._now_ms()
        if not self.reason:
            self.reason = str(reason)
            self._tell(f"no room: {self.reason}; nothing is settled until there is; then the job continues without help", True)
        if self._page is None and self._path.exists():
            self._page = PublishedPage(self._path, JOB_MAGIC, writable=True)
        if self._page is not None:
            self._page[JobSlot.NO_ROOM_SINCE_MS] = self._page[JobSlot.NO_ROOM_SINCE_MS] or now_ms
            self._page[JobSlot.HEARTBEAT_MS] = now_ms
        return not self._stopping.wait(LOOK_S)

    def found(self) -> None:
        """What was tried has succeeded."""
        if self._page is not None:
            self._page[JobSlot.NO_ROOM_SINCE_MS] = 0
        if self.reason:
            self.reason = ""
            self._tell("there is room again: settling goes on", False)

    def for_spark(self, directory: Path) -> bool:
        """Wait until Spark has room to start in this directory; False if the job should stop."""
        while (free := free_bytes(directory)) < SPARK_BYTES:
            reason = f"{directory}: {free >> 10:,} KiB are free, Spark needs {SPARK_BYTES >> 10:,} KiB to start"
            if not self.wait(reason):
                return False
        return True


def free_bytes(directory: Path) -> int:
    """What is free there, or where its nearest parent is."""
    while not directory.exists():
        directory = directory.parent
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def for_lack_of_room(failure: object, directories: Iterable[Path]) -> bool:
    """Whether something failed because there was no room: its error says so, or there is hardly any left. (Spark wraps errors, and
    some of its threads only report that they have ended.)"""
    error_no = getattr(failure, "errno", None)
    if isinstance(failure, NoRoom) or error_no in disk.NO_ROOM or any(text in str(failure) for text in _TEXTS):
        return True
    return any(free_bytes(directory) < NOTHING_BYTES for directory in directories)
