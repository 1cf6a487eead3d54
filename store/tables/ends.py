"""The ends table: how each transaction ended, one byte a half offset. The basis of every answer that the edge gives.

byte n of the address space = 0 while half n is open, otherwise its State (COMMITTED 2 … DISCARDED_EXPIRED 5); 7 of a MEMBER, which
ends with its head.

Writer: the edge, right after the op is in the log; the mark of a member, right after its frame is. Rebuilt from: the op log, in
order (a RESUME sets 0 again), and the frames of members; the edge's checkpoint says from which on.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from store.io.segments import SegmentedFile
from store.records import STATE_OF_OP, OpKind, State
from store.transitions import DISCARD_OF_STATE, EFFECTS, HALF_OPS, Effect

SEGMENT_BYTES: Final = 1 << 20
OPEN: Final = 0


class Verdict(StrEnum):
    """What an end is answered."""

    ACCEPTED = "accepted"
    ALREADY = "already"
    CONFLICT = "conflict"
    REFUSED = "refused"


class Answer(NamedTuple):
    """Final: an accepted end is never overruled later. `reason` says why an end was refused; `position` is a commit's place.
    `other` is another half that the answer is about: the head of a member, the one of several that is in the way, the one
    that committed under a name before."""

    verdict: Verdict
    reason: str = ""
    state: State = State.PREPARED
    position: int = -1
    other: int = -1


#: What an ended half's op is told when its end cannot be read.
_DAMAGED: Final = Answer(Verdict.REFUSED, "its end is damaged: run escrow store verify", State.QUARANTINED)


def _answer(kind: OpKind, state: State) -> Answer:
    """First terminal op wins · the same again is "already" · the opposite is a conflict · a discarded half must be
    resumed first."""
    if state is State.MEMBER:
        return Answer(Verdict.REFUSED, "member", state)
    effect, discarded = EFFECTS[kind, state], state in DISCARD_OF_STATE
    if effect <= Effect.ANSWERED:  # the op changes the row
        return Answer(Verdict.ACCEPTED, state=STATE_OF_OP.get(kind, state))
    if effect is Effect.ALREADY or kind is OpKind.UNKNOWN or (discarded and effect is Effect.LATE_DISCARD):
        return Answer(Verdict.ALREADY, state=state)
    if discarded:
        return Answer(Verdict.REFUSED, "discarded", state)
    ended = "ended" if kind is OpKind.RESUME else state.name.lower()
    return Answer(Verdict.CONFLICT, f"already {ended}", state)


#: By op, and by the byte of its half.
_ANSWERS: Final = {
    kind: {
        OPEN: _answer(kind, State.PREPARED),
        **{int(state): _answer(kind, state) for state in (*STATE_OF_OP.values(), State.MEMBER)},
    }
    for kind in HALF_OPS
}


def judge(kind: OpKind, ended: int) -> Answer:
    """What an op of this kind is answered when its half's byte is `ended`, by the table of `store.transitions`."""
    return _ANSWERS[kind].get(ended, _DAMAGED)


def byte_after(kind: OpKind, before: int) -> int:
    """A half's byte after an op that is in the log. No op changes that of a member."""
    if before == State.MEMBER:
        return before
    if kind == OpKind.RESUME:
        return OPEN
    return int(STATE_OF_OP.get(kind, before))


class EndsTable:
    """One byte a half offset, mapped."""

    def __init__(self, directory: Path, *, writable: bool = False) -> None:
        self.file = SegmentedFile(directory, SEGMENT_BYTES, "ends", writable=writable, mapped_writes=True)

    def __getitem__(self, half_offset: int) -> int:
        at = half_offset % SEGMENT_BYTES
        try:
            return self.file.segment(half_offset - at).buffer[at]
        except IndexError:
            return OPEN

    def __setitem__(self, half_offset: int, value: int) -> None:
        at = half_offset % SEGMENT_BYTES
        self.file.segment(half_offset - at).buffer[at] = value
        self.file.mark_dirty(half_offset - at)

    def put(self, first: int, marks: npt.NDArray[np.uint8]) -> None:
        """Recovery: the marks of halves from `first` on, for which there is room."""
        for start in self.file.starts():
            low, high = max(first, start), min(first + len(marks), start + SEGMENT_BYTES)
            if low < high:
                self.file.segment(start).buffer[low - start : high - start] = marks[low - first : high - first].tobytes()
                self.file.mark_dirty(start)

    def any(self, half_offsets: npt.NDArray[np.int64]) -> bool:
        """Whether one of these has ended."""
        first = int(half_offsets.min())
        start = first - first % SEGMENT_BYTES
        if int(half_offsets.max()) >= start + SEGMENT_BYTES:  # rarely: they lie in several segments
            return any(self[half_offset] != OPEN for half_offset in half_offsets.tolist())
        try:
            content = np.frombuffer(self.file.segment(start).buffer, np.uint8)
        except IndexError:
            return False
        return bool(content[half_offsets - start].any())

    def ensure(self, first: int, stop: int) -> None:
        """Make room for halves first … stop - 1, so that marking an end can not meet a full disk."""
        if not self.file.starts():
            self.file.segment(first - first % SEGMENT_BYTES, create=True)
        self.file.ensure(stop)

    def counts(self, first: int, stop: int) -> Counter[int]:
        """How many halves of a range are in which state."""
        content = np.frombuffer(self.file.view(first, stop - first), np.uint8) if stop > first else np.empty(0, np.uint8)
        return Counter({int(value): int(count) for value, count in zip(*np.unique(content, return_counts=True), strict=True)})
