"""When messages were released: the stored time of each message's COMMIT op.

A queue entry does not hold this time, and no index leads from a half to its op. But the places of a queue
are given in the order of the op log. So reading a queue forwards passes over the op log once: `ReleaseTimes`
keeps, for each queue, the last op that it found. Otherwise the scan begins at the time when the oldest half
of the page was stored: its op cannot be older.

    times   1  where to begin: behind what was found before in this queue, or at the stored time of the page's oldest half
            2  entries of the op queue whose tag is one of the halves; the tag is enough to pass over all others
            3  of those, the valid COMMIT ops

The work of one call is bounded. What it has passed over counts at the next call, so a caller who tries again gets there.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from store.arrays import Ints
from store.read.readers import LogReader
from store.records import OpKind

#: Entries of the op queue read at once, and in one call: about half a second.
_AT_ONCE: Final = 1 << 18
OPS_MAX: Final = 1 << 24


class Range(NamedTuple):
    """Places `first` … `stop` - 1 of a queue."""

    queue_key: int
    first: int
    stop: int


class NotFoundYet(Exception):
    """The bounded search has not come to the op; the next call goes on where this one stopped."""


class ReleaseTimes:
    """For one thread at a time."""

    def __init__(self, ops_max: int = OPS_MAX) -> None:
        self._ops_max = ops_max
        #: By queue key: no op of a message at this queue offset or behind it lies before this op.
        self._passed: dict[int, tuple[int, int]] = {}
        #: By queue key: the page whose search was given up, what it had found, and the op where it goes on.
        self._begun: dict[int, tuple[Range, dict[int, int], int]] = {}

    def times(self, log: LogReader, places: Range, half_offsets: Ints, stored_at_ms: int) -> dict[int, int]:
        """half_offset → released_at_ms of halves that lie at these places. Without those whose op retention has
        taken. `stored_at_ms`: of the oldest of them."""
        if not len(half_offsets):
            return {}
        found, low = self._begin(log, places, stored_at_ms)  # 1
        end, wanted, last = log.ends()[1], np.sort(half_offsets), low
        give_up = low + self._ops_max
        while low < end and len(found) < len(wanted):
            if low >= give_up:
                self._begun[places.queue_key] = places, found, low
                raise NotFoundYet
            high = min(end, low + _AT_ONCE)
            for op in _commits(log, low, high, wanted):  # 2, 3
                found[int(op["half_offset"])], last = int(op["stored_at_ms"]), int(op["op_offset"])
            low = high
        self._passed[places.queue_key] = places.stop if found else places.first, last
        return found

    def _begin(self, log: LogReader, places: Range, stored_at_ms: int) -> tuple[dict[int, int], int]:
        """(what an earlier call has found, the op to go on from)."""
        begun, begin = self._begun.pop(places.queue_key, None), log.op_queue.begin
        if begun is not None and begun[0] == places:
            return begun[1], max(begun[2], begin)
        queue_offset, op_offset = self._passed.get(places.queue_key, (places.first + 1, 0))
        if queue_offset > places.first:
            op_offset = log.ops_since(stored_at_ms)[0]
        return {}, max(op_offset, begin)


def _commits(log: LogReader, low: int, high: int, wanted: Ints) -> Any:
    """The valid COMMIT ops of these halves among some ops."""
    tags = log.op_queue.read(low, high)["tags_code"]
    near = np.flatnonzero((tags >= wanted[0]) & (tags <= wanted[-1]))
    chosen = near[wanted[np.minimum(np.searchsorted(wanted, tags[near]), len(wanted) - 1)] == tags[near]]
    ops = log.chosen_ops(low + chosen)
    return ops[(ops["corrupt"] == 0) & (ops["kind"] == int(OpKind.COMMIT))]
