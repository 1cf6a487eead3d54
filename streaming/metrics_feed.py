"""From what a batch did to the metrics, on columns; and the gauges that are read at every scrape."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from checker.decisions import Decision
from runtime.metrics import BulkHistogram, JobMetrics, KafkaMetrics
from store.arrays import Array
from store.guarded_clock import GuardedClock
from store.job.shard import ShardStore
from store.job.store import JobStore
from store.records import STATE_MASK, State
from store.tables.redo_log import TOTALS, Marker, RedoLog
from store.transitions import EFFECTS, REASON_OF_DISCARD, Effect
from streaming.settlement.settle import Feed, Settled

if TYPE_CHECKING:  # needs confluent-kafka
    from streaming.kafka.shard import Shard

_OUTCOMES: Final = {
    Effect.RELEASE: "commit",
    Effect.ROLLBACK: "rollback",
    Effect.DISCARD_MAX: "discard_max",
    Effect.DISCARD_EXPIRED: "discard_expired",
}
_DISCARDS: Final = {EFFECTS[kind, State.PREPARED]: reason for kind, reason in REASON_OF_DISCARD.items()}
_PROPOSALS: Final = {Decision[kind.name]: reason for kind, reason in REASON_OF_DISCARD.items()}
_WITHOUT_EFFECT: Final = tuple(effect for effect in Effect if Effect.ALREADY <= effect <= Effect.ILLEGAL)
#: What `JobStore.retain` removes files of.
_RETAINED: Final = ("state", "redo", "topics")
_SIZES_EVERY_S: Final = 30.0


class TimedRedo:
    """The redo log, its appends timed. (The store reads no clock.)"""

    def __init__(self, redo: RedoLog, observe: Callable[[float], None]) -> None:
        self._redo, self._observe = redo, observe

    def append(self, entries: Array, marker: Marker) -> None:
        start_s = time.perf_counter()
        self._redo.append(entries, marker)
        self._observe(time.perf_counter() - start_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._redo, name)


def count_settled(metrics: JobMetrics, feed: Feed, settled: Settled, now_ms: int) -> None:
    """Counters and histograms of one batch."""
    ended = settled.ended
    if ended is None:
        return
    metrics.records.labels("half").inc(settled.prepared)
    metrics.records.labels("op").inc(len(feed.ops))
    metrics.messages.inc(settled.effects[Effect.MESSAGE])
    metrics.count_all(metrics.quarantined, "queue", {"half": settled.quarantined, "op": settled.effects[Effect.CORRUPT]})
    metrics.count_all(metrics.discards, "reason", {reason: settled.effects[effect] for effect, reason in _DISCARDS.items()})
    metrics.count_all(
        metrics.ops_without_effect, "why", {effect.name.lower(): settled.effects[effect] for effect in _WITHOUT_EFFECT}
    )
    if not len(ended.effect):
        return
    by_both = np.bincount(ended.effect.astype(np.int64) * 4 + np.minimum(ended.via, 3), minlength=4 * len(Effect))
    for effect, outcome in _OUTCOMES.items():
        for number, via in enumerate(metrics.VIAS):
            if by_both[effect * 4 + number]:
                metrics.settled.labels(outcome, via).inc(int(by_both[effect * 4 + number]))
    _observe_many(metrics.decision_s, ended.said_at_ms / 1000 - ended.half_stored_at_s)
    released = ended.effect == int(Effect.RELEASE)
    _observe_many(metrics.release_s, (now_ms - ended.said_at_ms[released]) / 1000)


def _observe_many(histogram: BulkHistogram, values: Array) -> None:
    values = np.maximum(values, 0)
    counts = np.bincount(np.searchsorted(histogram.bounds, values), minlength=len(histogram.bounds))
    histogram.add(counts.tolist(), float(values.sum()))


def count_decisions(metrics: JobMetrics, decided: Mapping[Decision, int]) -> None:
    """Counters of what a slice of a round decided."""
    metrics.checks.inc(decided.get(Decision.CHECK, 0))
    metrics.count_all(metrics.proposals, "reason", {reason: decided.get(decision, 0) for decision, reason in _PROPOSALS.items()})


def watch_store(metrics: JobMetrics, store: JobStore, clock: GuardedClock) -> None:
    """Tie the gauges to the store. They are read by the metrics server's thread: values that are replaced whole, never parts."""
    metrics.watch(metrics.pending, lambda: store.marker.pending)
    metrics.watch(metrics.oldest_pending, lambda: oldest_pending_s(store, clock.now_ms()))
    metrics.watch(metrics.clock_alert, lambda: float(clock.alert))
    metrics.watch(metrics.clock_held, lambda: clock.held_s)
    metrics.watch(metrics.clock_drift, lambda: clock.drift_s)
    metrics.watch(metrics.behind, lambda: store.log.ends()[0] - store.marker.half_cursor, queue="half")
    metrics.watch(metrics.behind, lambda: store.log.ends()[1] - store.marker.op_cursor, queue="op")
    for name in TOTALS:
        metrics.totals.watch(name, partial(_total, store, name))
    for effect in _WITHOUT_EFFECT:
        metrics.ops_without_effect.labels(effect.name.lower())
    for part in _RETAINED:
        metrics.files_removed.labels(part)
    sizes = _Sizes(store.directory.root)
    for part in _Sizes.PARTS:
        metrics.watch(metrics.store_bytes, partial(sizes.of, part), part=part)


def watch_shards(
    metrics: JobMetrics, shards: Callable[[], list[Shard]], clock: GuardedClock, held: Callable[[], int]
) -> None:  # fmt: skip
    """The same for the shards of Kafka mode, together. `held`: due halves of the last rounds whose group has no live member."""
    metrics.watch(metrics.held, held)
    metrics.watch(metrics.pending, lambda: sum(shard.marker.pending for shard in shards()))
    metrics.watch(
        metrics.oldest_pending, lambda: max((oldest_pending_s(shard.store, clock.now_ms()) for shard in shards()), default=0.0)
    )
    metrics.watch(metrics.clock_alert, lambda: float(clock.alert))
    metrics.watch(metrics.clock_held, lambda: clock.held_s)
    metrics.watch(metrics.clock_drift, lambda: clock.drift_s)
    for name in TOTALS:
        metrics.totals.watch(name, partial(_total_of_all, shards, name))


def watch_shard(
    metrics: KafkaMetrics, shard: Shard, ends: Callable[[], tuple[float, float]], kept_for: Callable[[int], float]
) -> None:
    """One shard by itself. `ends`: where its half and op partitions were last seen to end; NaN: not known. `kept_for`: which
    share of its time in the half topic a half has behind it, by the time it was stored at."""
    label, store, traffic = str(shard.partition), shard.store, shard.traffic
    metrics.pending.labels(label).set_function(lambda: store.marker.pending)
    metrics.behind.labels(label, "half").set_function(lambda: _behind(ends()[0], store.marker.half_cursor))
    metrics.behind.labels(label, "op").set_function(lambda: _behind(ends()[1], store.marker.op_cursor))
    metrics.undeliverable.labels(label).set_function(lambda: len(store.undeliverable))
    metrics.undeliverable_age.labels(label).set_function(lambda: kept_for(store.undeliverable.oldest_stored_ms() or 0))
    metrics.held_back.labels(label).set_function(lambda: float(shard.held_back))
    metrics.task_s.labels(label).set_function(lambda: _seconds_since(shard.task_since_s))
    metrics.released.watch(label, lambda: traffic.messages)
    metrics.released_bytes.watch(label, lambda: traffic.bytes)
    metrics.failures.watch(label, lambda: traffic.failures)


def _behind(end: float, cursor: int) -> float:
    """A cursor may be ahead of an end that was seen a moment ago. NaN stays what it is."""
    return 0.0 if end < cursor else end - cursor


def _seconds_since(begun_s: float | None) -> float:
    return 0.0 if begun_s is None else time.monotonic() - begun_s


def _total_of_all(shards: Callable[[], list[Shard]], name: str) -> int:
    return sum(shard.marker.totals[name] for shard in shards())


def _total(store: JobStore, name: str) -> int:
    return store.marker.totals[name]


def oldest_pending_s(store: JobStore | ShardStore, now_ms: int) -> float:
    """Age of the first pending row. Halves are numbered in the order of stored times; a resumed one may be younger."""
    if not store.marker.pending:
        return 0.0
    try:
        for file_no in store.table.scannable():
            rows = store.table.rows_of(file_no)
            at = int(np.argmax((rows["word"] & np.uint32(STATE_MASK)) == np.uint32(State.PREPARED)))
            if int(rows["word"][at]) & STATE_MASK == State.PREPARED:
                return max(0.0, now_ms / 1000 - int(rows["stored_at_s"][at]))
    except (RuntimeError, IndexError, ValueError, OSError):  # the batch thread changed the set of files under us: next time
        pass
    return 0.0


class _Sizes:
    """Bytes of the store's parts, looked up now and then."""

    PARTS: Final = ("commitlog", "half", "op", "ends", "transaction")

    def __init__(self, root: Path) -> None:
        self._root = root
        self._at_s = -_SIZES_EVERY_S
        self._sizes: dict[str, int] = {}

    def of(self, part: str) -> int:
        if time.monotonic() - self._at_s >= _SIZES_EVERY_S:
            self._at_s = time.monotonic()
            self._sizes = {name: _bytes_under(self._root / name) for name in self.PARTS}
        return self._sizes.get(part, 0)


def _bytes_under(path: Path) -> int:
    total = 0
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                total += os.stat(os.path.join(directory, name)).st_size
            except FileNotFoundError:
                continue
    return total
