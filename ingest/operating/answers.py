"""What producers last answered about halves in doubt: UNKNOWN, with which remark, and when. For operators.

The op log tells it. `follow` reads what is new, a piece at a time, and at the start the last SCAN_OPS ops. Only UNKNOWN
needs to be kept: every other answer ends the half. Remarks are folded: digits become #, so that "row 17 is missing" and
"row 18 is missing" are one cause. Everything is bounded and volatile.

Not thread-safe: the thread of the listings calls everything, but for `recent`, which copies.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from store.directory import StoreDirectory
from store.errors import StoreError
from store.read.readers import LogReader
from store.records import OpKind, Via
from store.tables.frames import MAGIC, Frame, FrameKind

#: Ops before the start of the edge that are looked at, and ops in one piece.
SCAN_OPS: Final = 1 << 22
PIECE_OPS: Final = 1 << 13
#: Halves whose last answer is kept, the newest; different remarks; answers of one group that its page shows.
ANSWERS_MAX: Final = 1 << 18
REMARKS_MAX: Final = 4096
RECENT_MAX: Final = 20
GROUPS_MAX: Final = 4096
OTHER: Final = "(other remarks)"
_DIGITS: Final = re.compile(r"\d+")

Ints = npt.NDArray[np.int64]


def folded(remark: str) -> str:
    """Remarks that differ in numbers alone have one cause."""
    return _DIGITS.sub("#", remark)[:200]


@dataclass(frozen=True, slots=True)
class LastAnswer:
    """`by`: check (an answer to a check request) or producer."""

    at_ms: int
    half_offset: int
    remark: str
    by: str


class Answers:
    """Reads with files of its own."""

    def __init__(self, directory: StoreDirectory) -> None:
        self._log = LogReader(directory)
        self._at = max(self._log.op_queue.begin, self._log.ends()[1] - SCAN_OPS)
        self._last: dict[int, tuple[int, LastAnswer]] = {}
        self._numbers: dict[str, int] = {}
        self._remarks: list[str] = [""]
        self._recent: dict[int, deque[LastAnswer]] = {}
        self._columns: tuple[Ints, Ints] | None = None

    @property
    def behind(self) -> int:
        return max(0, self._log.ends()[1] - self._at)

    def follow(self, enough: Callable[[], bool]) -> None:
        """Read what is new, until it is enough."""
        while (stop := self._log.ends()[1]) > self._at:
            first = max(self._at, self._log.op_queue.begin)
            stop = min(stop, first + PIECE_OPS)
            self._read(first, stop)
            self._at = stop
            if enough():
                return

    def refresh(self) -> None:
        """Files were deleted: let go of them."""
        for part in (self._log.log.file, self._log.op_queue.file):
            part.refresh()

    def _read(self, first: int, stop: int) -> None:
        entries, heads = self._log.op_heads(first, stop)
        told = (heads["magic"] == MAGIC) & (heads["kind"] == FrameKind.OP) & (heads["op_kind"] == OpKind.UNKNOWN)
        for entry in entries[told]:
            try:
                self._note(self._log.frame(entry))
            except StoreError:
                continue  # the job quarantines it

    def _note(self, frame: Frame) -> None:
        half_offset, remark = frame.fields["half_offset"], frame.detail.get("remark", "")
        by = "check" if frame.fields["via"] == Via.CHECK else "producer"
        answer = LastAnswer(frame.stored_at_ms, half_offset, remark, by)
        self._last.pop(half_offset, None)
        self._last[half_offset] = self._number(folded(remark)), answer
        if len(self._last) > ANSWERS_MAX:
            del self._last[next(iter(self._last))]
        group_no = frame.fields["group_no"]
        if group_no in self._recent or len(self._recent) < GROUPS_MAX:
            self._recent.setdefault(group_no, deque(maxlen=RECENT_MAX)).append(answer)
        self._columns = None

    def _number(self, cause: str) -> int:
        if cause not in self._numbers and len(self._remarks) > REMARKS_MAX:
            cause = OTHER
        if cause not in self._numbers:
            self._numbers[cause] = len(self._remarks)
            self._remarks.append(cause)
        return self._numbers[cause]

    # --- questions ------------------------------------------------------------------------------------------------------------
    def causes(self, half_offsets: Ints) -> Ints:
        """The number of each half's cause; 0 where nothing was answered."""
        found = np.zeros(len(half_offsets), np.int64)
        if not self._last:
            return found
        if self._columns is None:
            known = np.fromiter(self._last, np.int64, len(self._last))
            numbers = np.fromiter((number for number, _ in self._last.values()), np.int64, len(self._last))
            order = np.argsort(known)
            self._columns = known[order], numbers[order]
        known, numbers = self._columns
        at = np.minimum(np.searchsorted(known, half_offsets), len(known) - 1)
        hits = known[at] == half_offsets
        found[hits] = numbers[at[hits]]
        return found

    def remark(self, number: int) -> str:
        """The folded remark with this number."""
        return self._remarks[number]

    def number(self, cause: str) -> int:
        """The number of a folded remark; -1 where nobody answered like this."""
        return self._numbers.get(cause, -1)

    def last(self, half_offset: int) -> LastAnswer | None:
        found = self._last.get(half_offset)
        return None if found is None else found[1]

    def recent(self, group_no: int) -> list[LastAnswer]:
        """What a group answered lately, the newest first."""
        return list(self._recent.get(group_no, ()))[::-1]

    def close(self) -> None:
        self._log.close()
