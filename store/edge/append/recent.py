"""Where the latest halves lie and where they go: most ends are about these, and need not look in the files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from store.tables import frames
from store.tables.commit_log import Placed

#: Slots of the cache.
RECENT_MAX: Final = 1 << 16
_RECENT: Final = np.dtype(
    [
        ("half_offset", "i8"),
        ("offset", "i8"),
        ("size", "i8"),
        ("group_no", "i8"),
        ("topic_no", "i8"),
        ("queue_id", "i8"),
        ("sys_flag", "i8"),
    ]
)
assert frames.BATCH_MAX <= RECENT_MAX


class RecentHalves:
    """Each half is at its half_offset modulo RECENT_MAX. A slot may hold another half: compare `half_offset`."""

    def __init__(self) -> None:
        self._slots = np.full(RECENT_MAX, -1, _RECENT)

    def add(self, first: int, placed: Placed, heads: np.ndarray[Any, Any]) -> None:
        """Halves first … first + len(heads) - 1 were appended."""
        recent = np.empty(len(heads), _RECENT)
        recent["half_offset"], recent["offset"], recent["size"] = heads["queue_offset"], placed.offsets, placed.sizes
        for name in ("group_no", "topic_no", "queue_id", "sys_flag"):
            recent[name] = heads[name]
        at = first % RECENT_MAX
        room = RECENT_MAX - at
        self._slots[at : at + len(recent)] = recent[:room]
        self._slots[: max(len(recent) - room, 0)] = recent[room:]

    def rows(self, half_offsets: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The slots of these halves, as columns."""
        found: np.ndarray[Any, Any] = self._slots[half_offsets % RECENT_MAX]
        return found

    def tuples(self, half_offsets: Sequence[int]) -> list[tuple[int, ...]]:
        """The slots of these halves, as tuples (half_offset, offset, size, group_no, topic_no, queue_id,
        sys_flag)."""
        places = [half_offset % RECENT_MAX for half_offset in half_offsets]
        if len(places) < 4:
            return [self._slots[place].item() for place in places]
        found: list[tuple[int, ...]] = self._slots[places].tolist()
        return found
