"""What a tick does for one shard: its check round, messages that were set aside, markers and retention."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, Final

from runtime.metrics import JobMetrics
from store.guarded_clock import GuardedClock
from streaming.kafka.group_figures import COUNT_EVERY_S, Pending
from streaming.kafka.part import Part
from streaming.kafka.reading.feeds import RELEASE_BYTES_MAX, Feeds
from streaming.kafka.settling import Settling
from streaming.kafka.shard import Shard
from streaming.metrics_feed import count_decisions

LOG: Final = logging.getLogger("escrow.kafka")
#: A release that takes longer than this is reported.
SLOW_TASK_S: Final = 4.0
#: An idle shard writes its marker this often (share of fileReservedTime), even if it never had a batch: a redo partition
#: whose beginning is gone and that has no marker counts as lost.
MARKER_SHARE: Final = 0.25
#: The first marker of a term, which tells all groups' names, waits this long: where there is a backlog, its batches do it.
FIRST_MARKER_MS: Final = 10_000


class Upkeep:
    """Work that is due by time, not by records."""

    def __init__(
        self,
        clock: GuardedClock,
        metrics: JobMetrics,
        feeds: Feeds,
        settling: Settling,
        *,
        retention_ms: int,
        stopping: threading.Event,
    ) -> None:
        self._clock, self._metrics, self._feeds, self._settling = clock, metrics, feeds, settling
        self._retention_ms, self._stopping = retention_ms, stopping

    def work(self, part: Part) -> None:
        """All that is due for a shard."""
        rounds = part.rounds
        if rounds is None:
            return
        with part.shard.lock:
            if self._stopping.is_set():
                return
            now_ms = self._clock.now_ms()  # here: the lock may have been waited for
            part.shard.count_taken(now_ms)
            if rounds.wanted(now_ms):
                done = rounds.rounds_done
                count_decisions(self._metrics, rounds.work(now_ms, lambda: False))
                self._metrics.rounds.inc(rounds.rounds_done - done)
            topic = part.shard.retries.due(part.shard.store.undeliverable, now_ms)
            if topic is not None:
                part.shard.try_again(topic, now_ms, RELEASE_BYTES_MAX)
            if part.shard.held_back and part.ends is not None and not self._feeds.is_full(part.shard):
                self._settling.settle_shard(part, [], [], part.ends)
            self.tell_again(part, now_ms)
            if now_ms > self._marker_due_ms(part):
                part.shard.commit(same_place(part.shard, now_ms))
            self.retain(part, now_ms)
            self._count_groups(part)

    @staticmethod
    def _count_groups(part: Part) -> None:
        """For the metrics, now and then."""
        if time.monotonic() - part.counted_s >= COUNT_EVERY_S:
            found = part.shard.store.pending_by_group()
            part.counted = {group: Pending(*each) for group, each in found.items()}
            part.counted_s = time.monotonic()

    def retain(self, part: Part, now_ms: int) -> None:
        """Delete state files that are no longer needed, of a busy shard too."""
        every_ms, retention_ms = MARKER_SHARE * self._retention_ms, self._retention_ms
        if not part.retained_ms <= now_ms < part.retained_ms + every_ms and self._clock.deletes_allowed():
            part.retained_ms = now_ms
            part.shard.store.retain(now_ms, retention_ms, self._clock.leapt_ms(retention_ms))

    def tell_again(self, part: Part, now_ms: int) -> None:
        """Write the rows of halves that stay pending beyond fileReservedTime (discards may be stopped) again.

        The redo topic is kept for twice as long: the batch that wrote their rows must not be the only one.
        """
        if now_ms >= part.tell_again_ms:
            part.tell_again_ms = now_ms + int(MARKER_SHARE * self._retention_ms)
            part.telling = part.shard.store.pending_since_before((now_ms - self._retention_ms) // 1000)
        half_offsets = next(part.telling, None)
        if half_offsets is not None:
            batch = same_place(part.shard, now_ms)
            batch.tell_again(half_offsets, part.shard.table.get(half_offsets))
            part.shard.commit(batch)

    def _marker_due_ms(self, part: Part) -> float:
        marker = part.shard.marker
        if not marker.sequence or not part.shard.names_told:
            return part.claimed_ms + FIRST_MARKER_MS
        return marker.now_ms + MARKER_SHARE * self._retention_ms

    def tell_slow(self, part: Part) -> None:
        """Report a slow task while it is at work, not afterwards."""
        since_s = part.shard.task_since_s
        if since_s is not None and since_s != part.slow_told_s and time.monotonic() - since_s > SLOW_TASK_S:
            part.slow_told_s = since_s
            LOG.warning(
                "shard %d: a release takes more than %.0f s: Kafka is slow, or a topic does not answer",
                part.shard.partition, SLOW_TASK_S,
            )  # fmt: skip


def same_place(shard: Shard, now_ms: int) -> Any:
    """A batch that moves no cursor."""
    marker = shard.marker
    return shard.batch(half_cursor=marker.half_cursor, op_cursor=marker.op_cursor, now_ms=now_ms)
