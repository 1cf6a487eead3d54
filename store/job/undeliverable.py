"""Ended halves whose message cannot be released now, in the order of their ends. Part of `shard.checkpoint`; the redo partition is
its truth.

A **lane** is a number for messages that must keep their order (sinks/kafka/refusals.py). A message that joins the list stands
behind all others of its lane, and leaves it when it was released, or when its half was resumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from sys import intern
from typing import Any, Final, NamedTuple

import numpy as np

from store.arrays import Array

#: Of a message whose order does not matter.
NO_LANE: Final = 0


class Refusal(NamedTuple):
    """Why a message was set aside, and what must be known of it."""

    reason: str
    lane: int = NO_LANE
    topic: str = ""
    stored_at_ms: int = 0  # of the half: its body is there for as long as the half topic keeps it


class Undeliverable(NamedTuple):
    """A message on the list."""

    refusal: Refusal
    since_ms: int
    attempts: int = 1

    def again(self, refusal: Refusal) -> Undeliverable:
        """It was tried, and refused for this reason."""
        known = refusal if refusal.topic else self.refusal._replace(reason=refusal.reason)
        return Undeliverable(known, self.since_ms, self.attempts + 1)


class Undeliverables:
    """By half offset, in the order of their ends."""

    def __init__(self, rows: Iterable[tuple[int, Undeliverable]] = ()) -> None:
        self._rows: dict[int, Undeliverable] = dict(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, half_offset: object) -> bool:
        return half_offset in self._rows

    def __getitem__(self, half_offset: int) -> Undeliverable:
        return self._rows[half_offset]

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def items(self) -> Iterable[tuple[int, Undeliverable]]:
        return self._rows.items()

    def note(self, done: Iterable[int], refused: Mapping[int, Refusal], now_ms: int) -> None:
        """`done`: released, discarded or resumed by a batch, but for what it `refused`."""
        for half_offset in done if self._rows else ():
            if half_offset not in refused:
                self._rows.pop(half_offset, None)
        for half_offset, refusal in refused.items():
            shared = refusal._replace(reason=intern(refusal.reason), topic=intern(refusal.topic))
            known = self._rows.get(half_offset)
            self._rows[half_offset] = known.again(shared) if known is not None else Undeliverable(shared, now_ms)

    # --- what others ask --------------------------------------------------------------------------------------------------------
    def lanes(self) -> Array:
        """Lanes that later messages must not overtake, as uint64."""
        found = {each.refusal.lane for each in self._rows.values()} - {NO_LANE}
        return np.fromiter(sorted(found), "<u8", len(found))

    def topics(self) -> set[str]:
        return {each.refusal.topic for each in self._rows.values()}

    def oldest_stored_ms(self) -> int | None:
        """When the oldest of their halves was stored; None where none is known."""
        rows = list(self._rows.values())  # asked from other threads
        return min((each.refusal.stored_at_ms for each in rows if each.refusal.stored_at_ms), default=None)

    # --- checkpoint ---------------------------------------------------------------------------------------------------------------
    def to_rows(self) -> list[list[Any]]:
        """[half_offset, reason, since_ms, attempts, lane, topic, stored_at_ms]."""
        return [[at, each.refusal.reason, each.since_ms, each.attempts, *each.refusal[1:]] for at, each in self._rows.items()]

    @classmethod
    def from_rows(cls, rows: Iterable[list[Any]]) -> Undeliverables:
        """Rows of earlier versions end after `attempts`."""
        made = cls()
        for at, reason, since_ms, attempts, *rest in rows:
            made._rows[int(at)] = Undeliverable(Refusal(str(reason), *rest), int(since_ms), int(attempts))
        return made
