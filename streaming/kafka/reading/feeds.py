"""Which of the records that were read are settled now, and in which portions. An op never overtakes its half.

An op about a half that Kafka has and that cannot be read yet (its transaction is open) waits, and all ops behind it. As
many are kept in memory as DEFERRED_BATCHES batches hold; the others are read again later.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from sinks.kafka.contract import Topics
from store.records import HALF, OP, OpKind
from store.tables.state_table import StateTable
from streaming.kafka.part import Ends
from streaming.kafka.reading.records import Piece, joined
from streaming.kafka.shard import Shard
from streaming.settlement.settle import Feed

LOG: Final = logging.getLogger("escrow.kafka")
#: Ops that wait for their halves are kept up to what so many batches hold (44 bytes each).
DEFERRED_BATCHES: Final = 4
#: About how many bytes of bodies go with one Kafka transaction.
RELEASE_BYTES_MAX: Final = 128 << 20
_WITH_BODIES: Final = np.array([OpKind.COMMIT, OpKind.DISCARD_MAX, OpKind.DISCARD_EXPIRED], np.uint8)


class Feeds:
    """Cuts what a batch brings for a shard into feeds for the settlement."""

    def __init__(
        self,
        topics: Topics,
        *,
        half_end: Callable[[int], int],
        read_ops: Callable[[int, int, int], list[Piece]],
        shard_count: Callable[[], int],
        batch_records_max: int,
        undeliverable_max: int,
        stopping: threading.Event,
    ) -> None:
        """`half_end`: where a half partition ends, open transactions included. `read_ops`: ops of a partition, from and
        up to an offset."""
        self._topics, self._half_end, self._read_ops, self._shard_count = topics, half_end, read_ops, shard_count
        self._batch_records_max, self._undeliverable_max = batch_records_max, undeliverable_max
        self._stopping = stopping

    def pieces(self, shard: Shard, halves: list[Piece], ops: list[Piece], ends: Ends) -> Iterator[Feed]:
        """What the batch brings; then ops that were too many to keep, once they wait for nothing."""
        yield from pieces_of(self.feed(shard, halves, ops, ends), shard.table)
        while shard.unkept is not None and not shard.waits and not self._stopping.is_set():
            again = self._read_again(shard, ends[self._topics.op][shard.partition])
            yield from pieces_of(self.feed(shard, [], again, ends), shard.table)

    def _read_again(self, shard: Shard, end: int) -> list[Piece]:
        assert shard.unkept is not None
        start, stop = shard.unkept, min(shard.unkept + self._deferred_max(), end)
        shard.unkept = stop if stop < end else None
        return self._read_ops(shard.partition, start, stop)

    def _deferred_max(self) -> int:
        """Ops that one shard may keep while they wait."""
        return max(1, DEFERRED_BATCHES * self._batch_records_max // self._shard_count())

    def _keep(self, shard: Shard, deferred: list[Piece]) -> list[Piece]:
        """As many as may be kept. The others are in Kafka, behind the marker's cursor: they are read again."""
        most = self._deferred_max()
        if sum(len(piece.records) for piece in deferred) <= most:
            return deferred
        offsets = np.sort(np.concatenate([piece.records["op_offset"] for piece in deferred]))
        if shard.unkept is None:
            text = "shard %d: more than %d ops wait for an open transaction: the rest is read again later"
            LOG.warning(text, shard.partition, most)
        shard.unkept = int(offsets[most])  # an ASKED record is several ops with one offset: all of them or none
        return [rest for piece in deferred if len((rest := piece.before("op_offset", shard.unkept)).records)]

    def feed(self, shard: Shard, halves: list[Piece], ops: list[Piece], ends: Ends) -> Feed:
        """What of it is settled now. Changes what the shard keeps for later.

        An op about a half that Kafka has and this batch has not waits, and all ops behind it. An op about an offset
        beyond the half partition's end is about nothing: the end is asked for after the op was read.
        """
        marker, partition = shard.marker, shard.partition
        half_stop = max(ends[self._topics.half].get(partition, 0), marker.half_cursor)
        op_stop = max(ends[self._topics.op].get(partition, 0), marker.op_cursor)
        new_halves = joined(halves, shard.store.group_no, HALF, "half_offset")
        pieces = [*shard.deferred, *ops]
        if shard.unkept is not None:
            op_stop = min(op_stop, shard.unkept)
            pieces = [piece.before("op_offset", op_stop) for piece in pieces]
        new_ops = joined(pieces, shard.store.known_group, OP, "op_offset")
        ahead = new_ops[(new_ops["half_offset"] >= half_stop) & (new_ops["corrupt"] == 0)]
        if len(ahead):
            ahead = ahead[ahead["half_offset"] < self._half_end(partition)]
        shard.held_back = self.is_full(shard) and bool(len(new_ops))
        if shard.held_back:
            ahead = new_ops
        shard.waits = bool(len(ahead))
        if shard.waits:
            op_stop = int(ahead["op_offset"][0])
        # By name: an op may come before the first half of its group, which gives the group its number.
        later = [rest for piece in pieces if len((rest := piece.since("op_offset", op_stop)).records)]
        shard.deferred = self._keep(shard, later)
        now = new_ops[new_ops["op_offset"] < op_stop]
        return Feed(marker.half_cursor, half_stop, marker.op_cursor, op_stop, new_halves, now)

    def is_full(self, shard: Shard) -> bool:
        """Whether no more messages may be set aside: then nothing is released until some of them are."""
        return len(shard.store.undeliverable) >= self._undeliverable_max


def pieces_of(feed: Feed, table: StateTable) -> Iterator[Feed]:
    """A feed in pieces, none of which releases and discards much more than RELEASE_BYTES_MAX.

    A Kafka transaction must end before its timeout. The first piece has all the halves.
    """
    sizes = table.get(feed.ops["half_offset"])["size_bytes"].astype(np.int64)
    if len(feed.halves):
        at = np.minimum(np.searchsorted(feed.halves["half_offset"], feed.ops["half_offset"]), len(feed.halves) - 1)
        new = feed.halves["half_offset"][at] == feed.ops["half_offset"]
        sizes[new] = feed.halves["size_bytes"][at[new]]
    sizes[~np.isin(feed.ops["kind"], _WITH_BODIES)] = 0
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    # Of equal size, so that no transaction is for a handful of messages; a tenth too much needs no further piece.
    count = max(1, math.ceil(total / RELEASE_BYTES_MAX - 0.1))
    piece = (ends - sizes) * count // max(1, total)
    # An ASKED record is several ops with one offset: never cut within.
    stops = [int(feed.ops["op_offset"][at + 1]) for at in np.flatnonzero(np.diff(piece)).tolist()]
    stops = sorted({stop for stop in stops if stop > feed.op_start})
    halves, half_start, start = feed.halves, feed.half_start, feed.op_start
    for stop in [*stops, feed.op_stop]:
        chosen = (feed.ops["op_offset"] >= start) & (feed.ops["op_offset"] < stop)
        yield Feed(half_start, feed.half_stop, start, stop, halves, feed.ops[chosen])
        halves, half_start, start = feed.halves[:0], feed.half_stop, stop
