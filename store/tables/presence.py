"""Presence: when a member of each producer group was last seen. A mapped file that the edge writes and the job reads.

i64 last_seen_ms, on the elapsed line (`clock.py`), at byte 8·group_no of the directory's segments (65,536 bytes each); 0 = never.
Volatile: missing or stale means that no member is live, and then halves are held, not counted and not discarded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from store.io.segments import SegmentedFile

SEGMENT_BYTES: Final = 65_536
_GROUPS: Final = SEGMENT_BYTES // 8


class Presence:
    """Last sign of life of each group. One writer, many readers."""

    def __init__(self, directory: Path, *, writable: bool = False) -> None:
        self.file = SegmentedFile(directory, SEGMENT_BYTES, "presence", writable=writable, mapped_writes=True)

    def seen(self, group_no: int, now_ms: int) -> None:
        """A member of the group was here just now."""
        if not self.file.starts():
            self.file.segment(0, create=True)
        self.file.ensure((group_no + 1) * 8)
        self._slots(group_no // _GROUPS)[group_no % _GROUPS] = now_ms

    def last_seen(self, group_count: int) -> npt.NDArray[np.int64]:
        """last_seen_ms by group_no; 0 where nothing is known."""
        if self.file.end < group_count * 8:
            self.file.refresh()
        found = np.zeros(group_count, np.int64)
        for number in range(min(len(self.file.starts()), -(-group_count // _GROUPS))):
            slots = self._slots(number)[: group_count - number * _GROUPS]
            found[number * _GROUPS : number * _GROUPS + len(slots)] = slots
        return found

    def live(self, now_ms: int, ttl_ms: int, group_count: int) -> npt.NDArray[np.bool_]:
        """Which groups had a sign of life within the last ttl_ms. Reader and writer do not look at the clock at the same moment: a
        time that is ahead by less than ttl_ms counts; one further ahead was written by a clock that was wrong."""
        seen = self.last_seen(group_count)
        return np.asarray((seen > 0) & (np.abs(now_ms - seen) <= ttl_ms))

    def _slots(self, number: int) -> npt.NDArray[np.int64]:
        return np.frombuffer(self.file.segment(number * SEGMENT_BYTES).buffer, "<i8")

    def close(self) -> None:
        self.file.close()
