"""Appending to the log: room in the queue, then frames into the log, then entries into the queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from store.edge.append.group_commit import FailsCommit, GroupCommit
from store.edge.files import EdgeFiles, EdgeState
from store.errors import NoRoom, StoreUnusable
from store.records import ENTRY, QUEUE_ID_BITS, QUEUE_OFFSET_BITS, OpKind
from store.tables import frames
from store.tables.commit_log import Placed
from store.tables.consume_queue import ASKED_TAG, make_entries
from store.tables.frames import Op

#: In a head's queue_id until the frame has its number: QUEUE_OPEN + number of queues, where `_spread` chooses.
QUEUE_OPEN: Final = 0x8000
NO_HALF: Final = -1
#: What follows the heads of a batch, in columns.
Tails = Sequence[Sequence[bytes]]


class Appended(NamedTuple):
    """Records in the log, not yet durable: pass `ticket` to `wait`. Their half_offsets (op_offsets), in the
    order given; of ordinary messages also their topic positions."""

    offsets: Sequence[int]
    ticket: int
    positions: Sequence[int] = ()


class LogWriter:
    """Appends batches. Call it under the append lock, after `GroupCommit.check`."""

    def __init__(self, files: EdgeFiles, state: EdgeState, commit: GroupCommit) -> None:
        self._log, self._state, self._commit = files.log, state, commit
        self._half_queue, self._op_queue, self._ends_table = files.half_queue, files.op_queue, files.ends_table

    def halves(self, heads: np.ndarray[Any, Any], tails: Tails) -> Placed:
        state, first, count = self._state, self._state.half_end, len(heads)
        self._half_queue.file.ensure((first + count) * ENTRY.itemsize)
        self._ends_table.ensure(first, first + count)
        heads["queue_offset"] = np.arange(first, first + count)
        _spread(heads)
        placed = self._append(heads, tails)
        with FailsCommit(self._commit):
            self._half_queue.put(first, make_entries(placed.offsets, placed.sizes, heads["tags_code"]))
        state.half_end = first + count
        return placed

    def messages(self, heads: np.ndarray[Any, Any], tails: Tails) -> Appended:
        """Ordinary messages: they have their numbers among the ops."""
        first = self._state.op_end
        self._op_queue.file.ensure((first + len(heads)) * ENTRY.itemsize)
        heads["queue_offset"] = np.arange(first, first + len(heads))
        _spread(heads)
        taken: dict[int, int] = {}
        keys = zip(heads["topic_no"].tolist(), heads["queue_id"].tolist(), strict=True)
        heads["position"] = [self.take_position(topic << QUEUE_ID_BITS | queue, taken) for topic, queue in keys]
        positions = heads["position"].tolist()
        placed = self._append(heads, tails)
        appended = self._after_ops(first, placed, [NO_HALF] * len(heads), taken)
        return Appended(appended.offsets, appended.ticket, positions)

    def ops(self, ops: Sequence[Op], now_ms: int, taken: dict[int, int]) -> Appended:
        heads, tails = frames.op_heads(ops, self._state.op_end, now_ms), frames.op_tails(ops)
        if any(op.items for op in ops):
            tags = [tag for op in ops for tag in ([item.half_offset for item in op.items] or [_tag(op)])]
            return self.op_frames(heads, tails, tags, taken, numbers=[op.numbers for op in ops])
        return self.op_frames(heads, tails, list(map(_tag, ops)), taken)

    def op_frames(
        self,
        heads: np.ndarray[Any, Any],
        tails: Tails,
        tags: Sequence[int],
        taken: dict[int, int],
        *,
        numbers: Sequence[int] = (),
    ) -> Appended:
        """`numbers`: how many op numbers each frame takes; nothing where each takes one. There is a tag for each number."""
        first = self._state.op_end
        self._op_queue.file.ensure((first + len(tags)) * ENTRY.itemsize)
        placed = self._append(heads, tails)
        if numbers:
            placed = Placed(np.repeat(placed.offsets, numbers), np.repeat(placed.sizes, numbers), placed.end)
        return self._after_ops(first, placed, tags, taken)

    def _after_ops(self, first: int, placed: Placed, tags: Sequence[int], taken: dict[int, int]) -> Appended:
        with FailsCommit(self._commit):
            self._op_queue.put(first, make_entries(placed.offsets, placed.sizes, tags))
        self._state.next_offset.update(taken)
        self._state.op_end = first + len(tags)
        return Appended(range(first, self._state.op_end), placed.end)

    def take_position(self, queue_key: int, taken: dict[int, int]) -> int:
        """The next place in a topic's queue; `taken` holds it until the op is in the log."""
        queue_offset = taken.get(queue_key)
        if queue_offset is None:
            queue_offset = self._state.next_offset.get(queue_key, 0)
        taken[queue_key] = queue_offset + 1
        return queue_key << QUEUE_OFFSET_BITS | queue_offset

    def _append(self, heads: np.ndarray[Any, Any], tails: Tails) -> Placed:
        end = self._log.end
        try:
            return self._log.append(heads, tails)
        except StoreUnusable as error:
            # Without room for a segment nothing was written, and there may be room later.
            if self._log.end != end or not isinstance(error, NoRoom):
                self._commit.fail(error)
            raise


def _tag(op: Op) -> int:
    return ASKED_TAG if op.kind == OpKind.ASKED else op.half_offset


def _spread(heads: np.ndarray[Any, Any]) -> None:
    """Messages without key and queue go round the queues of their topic, by their number."""
    asked = heads["queue_id"]
    first = int(asked[0])
    if first >= QUEUE_OPEN and (asked == first).all():  # mostly
        heads["queue_id"] = heads["queue_offset"] % (first - QUEUE_OPEN)
        return
    is_open = asked >= QUEUE_OPEN
    if is_open.any():
        queues = asked[is_open].astype(np.int64) - QUEUE_OPEN
        asked[is_open] = heads["queue_offset"][is_open] % queues
