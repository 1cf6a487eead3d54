"""Batches of the shards, side by side: each shard settles its share of the batches one after another.

A shard that waits does not make others wait, until it is far behind: then Spark waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from runtime.metrics import JobMetrics
from store.guarded_clock import GuardedClock
from streaming.kafka.part import Ends, Part
from streaming.kafka.reading.feeds import DEFERRED_BATCHES, Feeds
from streaming.kafka.reading.records import Piece
from streaming.lifecycle import Lifecycle
from streaming.metrics_feed import count_settled

#: Batches that a shard may be behind before Spark waits for it. Their records are bounded too, see `records_max`.
BATCHES_AHEAD: Final = 64


class Settling:
    """Settles what batches bring, in a pool of threads."""

    def __init__(
        self, feeds: Feeds, metrics: JobMetrics, clock: GuardedClock, lifecycle: Lifecycle, batch_records_max: int
    ) -> None:  # fmt: skip
        self._feeds, self._metrics, self._clock, self._lifecycle = feeds, metrics, clock, lifecycle
        self._records_max = DEFERRED_BATCHES * batch_records_max
        self._pool = ThreadPoolExecutor(max_workers=64, thread_name_prefix="shard")

    def wait_for_room(self, parts: Iterable[Part]) -> None:
        """Wait for shards that are far behind: memory is bounded."""
        for part in parts:
            while (waiting := part.unfinished()) and (
                len(waiting) >= BATCHES_AHEAD or sum(records for _, records in waiting) >= self._records_max
            ):
                waiting[0][0].result()

    def hand_over(self, part: Part, halves: list[Piece], ops: list[Piece], ends: Ends) -> None:
        """Settle a shard's share of a batch, after those that it was given before."""
        before = part.at_work[-1][0] if part.at_work else None
        records = sum(len(piece.records) for piece in (*halves, *ops))
        part.at_work.append((self._pool.submit(self._settle, part, before, halves, ops, ends), records))

    def _settle(self, part: Part, before: Future[None] | None, halves: list[Piece], ops: list[Piece], ends: Ends) -> None:
        """`before`: the shard's batch before this one. The pool starts them in their order."""
        with self._lifecycle.guarded():  # at once: there may be no further batch to report the error to
            if before is not None:
                before.result()
            with part.shard.lock:
                if not self._lifecycle.stopping.is_set():
                    self.settle_shard(part, halves, ops, ends)

    def settle_shard(self, part: Part, halves: list[Piece], ops: list[Piece], ends: Ends) -> None:
        """Under the shard's lock."""
        shard, now_ms, started_s = part.shard, self._clock.now_ms(), time.perf_counter()
        for piece in self._feeds.pieces(shard, halves, ops, ends):
            shard.note_answers(piece.ops)
            settled = part.settler.settle(piece, now_ms)
            count_settled(self._metrics, piece, settled, now_ms)
        part.ends = ends
        self._metrics.phase_s.labels("settle").observe(time.perf_counter() - started_s)
