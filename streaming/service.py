"""The job as an object: store, query, rounds, sinks and metrics, from start to stop. `job.py` is the process around it.

One micro-batch, in this order:
    1  collect     the packed rows that the source offered
    2  settle      cursor → match → redo log → apply (settle.py)
    3  round       go on with the check round, at most a second (rounds.py)
    4  notify      sinks learn of what was applied; a sink that fails is counted and delays nothing
    5  retention   now and then, between two rounds

Three threads: Spark's callback runs the batches; the ticker asks for a batch when a round is due; the caller starts and
stops (lifecycle.py). Only batches touch the store, under a lock that `stop` takes before it closes the store.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry
from pyspark.sql import DataFrame, SparkSession

from checker.decisions import Decision
from checker.policy import Policy
from runtime.clock import Clock, SystemClock, this_boot
from runtime.metrics import JobMetrics
from runtime.settings import Settings
from runtime.tracing import Tracer
from sinks.embedded import EdgeWake
from sinks.interfaces import Applied, Sink
from sinks.plugins import load_all
from store.arrays import Bools
from store.clock import Rules
from store.errors import NoRoom
from store.guarded_clock import GuardedClock
from store.io.pages import JobSlot
from store.io.wakeup import JOB_WAKE, Waker
from store.job.store import JobStore
from store.tables.journals.names import Dictionary
from store.tables.presence import Presence
from streaming.errors import JobStopped
from streaming.lifecycle import Lifecycle
from streaming.metrics_feed import TimedRedo, count_decisions, count_settled, watch_store
from streaming.settlement.disk_room import Room
from streaming.settlement.rounds import Rounds
from streaming.settlement.settle import Settler
from streaming.settlement.spans import SettledSpans
from streaming.spark.packed_rows import Delivery, Row, unpack
from streaming.spark.session import one_line
from streaming.spark.source import FORMAT, EscrowSource

LOG: Final = logging.getLogger("escrow.job")
HEARTBEAT_S: Final = 1.0
#: How often a caller that waits for a batch looks whether the query still runs.
LOOK_S: Final = 1.0
#: Batches until Java has compiled what a batch needs.
WARM_UP_BATCHES: Final = 50


class JobService:
    """One job over one store. `start`, then `wait` or `failure`, then `stop`."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock | None = None,
        registry: CollectorRegistry | None = None,
        tell: Callable[[str, bool], None] = lambda text, _: LOG.warning(text),
    ) -> None:
        """`tell` gets what an operator should read about room on the disk, see disk_room.py."""
        self.settings, root = settings, settings.store_dir
        self.store = JobStore(root)
        self.clock = GuardedClock(
            clock or SystemClock(), settings.data_dir, Rules(**settings.clock_values()),
            boot=0 if clock else this_boot() or None, last_ms=self.store.marker.now_ms,
        )  # fmt: skip
        now_ms = self.clock.now_ms()
        self.metrics = JobMetrics(registry or CollectorRegistry())
        self.store.redo = TimedRedo(self.store.redo, self.metrics.redo_flush_s.observe)  # type: ignore[assignment]
        self.settler = Settler(self.store, Policy.from_ms(**settings.policy_values()))
        self.rounds = Rounds(
            self.settler, self._live_groups, self.clock.deletes_allowed, now_ms,
            root=root, op_end=lambda: self.store.log.ends()[1], leapt_ms=self.clock.leapt_ms,
        )  # fmt: skip
        self._dictionary = Dictionary(root / "dictionary")
        self._presence = Presence(root / "presence")
        self._sinks: list[tuple[str, Sink]] = [("edge", EdgeWake(root)), *load_all("escrow.sinks", settings.plugins, root)]
        self._spans = SettledSpans(Tracer(settings, "escrow-job"), self.store.log) if settings.otlp_endpoint else None
        self._waker = Waker(root / JOB_WAKE)
        self._lock = threading.Lock()
        self._batch_done = threading.Condition()
        self.lifecycle = Lifecycle(self.metrics, self._on_tick, self._wake_waiters)
        self.room = Room(root, self.lifecycle.stopping, tell, self.clock.elapsed_ms)
        self.store.no_room = self.room.wait
        # Ticks grow over all starts, even if the page was lost: no checkpoint may contain a later one.
        self.store.page[JobSlot.TICK] = max(self.store.page[JobSlot.TICK] + 1, time.time_ns() // 1_000_000)
        self._tick_seen = 0
        self._retain_at_ms = self.clock.elapsed_ms() + settings.retention_interval_ms
        self._beat_s = 0.0
        self._closed = False
        self._warming: threading.Thread | None = None
        self.batches = 0
        watch_store(self.metrics, self.store, self.clock)

    # --- start and stop -------------------------------------------------------------------------------------------------
    def start(self, spark: SparkSession, checkpoint: Path) -> None:
        """Start the query at the store's cursor."""
        spark.dataSource.register(EscrowSource)
        self.lifecycle.listen(spark)
        marker = self.store.marker
        stream = spark.readStream.format(FORMAT).options(
            root=str(self.settings.store_dir),
            half=marker.half_cursor,
            op=marker.op_cursor,
            records_max=self.settings.max_records_per_batch,
            settle_interval_s=self.settings.settle_interval_ms / 1000,
        )
        writer = stream.load().writeStream.foreachBatch(self._on_batch).queryName(FORMAT)
        writer = writer.option("checkpointLocation", str(checkpoint))
        # Takes both checkpoint writes out of the batch. Safe because the store's cursor decides, not Spark's.
        writer = writer.option("asyncProgressTrackingEnabled", "true").option("asyncProgressTrackingCheckpointIntervalMs", "60000")
        self.lifecycle.started(writer.option("_asyncProgressTrackingOverrideSinkSupportCheck", "true").start())

    def first_batch(self) -> None:
        """Return when the query has settled its first batch."""
        self.run_batch(self.settings.start_timeout_ms / 1000)

    def warm_up(self) -> None:
        """Run batches until Java has compiled what a batch needs. What is in the log is settled meanwhile."""
        for _ in range(WARM_UP_BATCHES):
            self.first_batch()

    def warm_up_beside(self) -> None:
        """`warm_up` beside the work of the job; `stop` ends it."""
        self._warming = threading.Thread(target=self._warm_up_quietly, name="warm-up", daemon=True)
        self._warming.start()

    def _warm_up_quietly(self) -> None:
        with contextlib.suppress(JobStopped):  # the job's own watch tells why
            self.warm_up()

    def run_batch(self, timeout_s: float = 60.0) -> None:
        """Ask for a batch and wait until one that began after this call is done. JobStopped where none will be."""
        give_up_s, life = time.monotonic() + timeout_s, self.lifecycle
        if life.stopping.is_set():
            raise JobStopped("the job stops")
        tick = self.tick()
        done: Any = False
        while not done and time.monotonic() < give_up_s:
            with self._batch_done:
                done = self._batch_done.wait_for(
                    lambda: self._tick_seen >= tick or life.error or life.stopping.is_set(), LOOK_S
                )  # fmt: skip
            if not done and (failure := self.failure()) is not None:
                raise JobStopped(failure)
        if life.error is not None:
            raise JobStopped(one_line(life.error)) from life.error
        if not done:
            raise JobStopped(f"no batch within {timeout_s:.0f} s")

    def tick(self) -> int:
        """Have the source offer a batch, even if there is nothing to read."""
        page = self.store.page
        page[JobSlot.TICK] += 1
        self._waker.wake()
        return page[JobSlot.TICK]

    def failure(self) -> str | None:
        """Why the query has ended by itself; None while it runs."""
        return self.lifecycle.failure()

    def stop(self) -> None:
        """1 no new batches · 2 the one at work ends · 3 the store is flushed and closed."""
        self.lifecycle.stop(nudge=self.tick)  # the source may be asleep, and nothing else ends its call
        if self._warming is not None:  # it ticks: before the page is closed
            self._wake_waiters()
            self._warming.join()
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for name, sink in self._sinks:
            with self._sink_errors(name):
                sink.close()
        if self._spans is not None:
            self._spans.close()
        self._presence.close()
        self._dictionary.close()
        self.store.close()
        self._waker.close()

    # --- a batch --------------------------------------------------------------------------------------------------------
    def _on_batch(self, rows: DataFrame, batch_id: int) -> None:
        try:
            with self.lifecycle.guarded(), self._lock:
                if not self._closed:
                    self._batch(rows)
        finally:
            self._wake_waiters()

    def _wake_waiters(self) -> None:
        with self._batch_done:
            self._batch_done.notify_all()

    def _batch(self, rows: DataFrame) -> None:
        phase = _Phases(self.metrics)
        delivery = collect(rows)  # 1
        phase("collect")
        now_ms = self.clock.now_ms()
        before = self.store.marker.sequence
        settled = self.settler.settle(delivery.feed, now_ms)  # 2
        count_settled(self.metrics, delivery.feed, settled, now_ms)
        phase("settle")
        if self._spans is not None and settled.ended is not None:
            self._spans.note(settled.ended, now_ms)
            phase("trace")
        with self._room_tried():
            self._work_on_round(now_ms)  # 3
        phase("round")
        if self.store.marker.sequence != before:
            self._notify(settled.effects)  # 4
        phase("notify")
        if self.clock.elapsed_ms() >= self._retain_at_ms and not self.rounds.at_work:
            with self._room_tried():
                self._retain()  # 5
            phase("retention")
        self.store.heartbeat(self.clock.elapsed_ms())
        self.batches += 1
        self._tick_seen = max(self._tick_seen, delivery.tick)
        if self.rounds.at_work:
            self.tick()

    @contextlib.contextmanager
    def _room_tried(self) -> Iterator[None]:
        """Work that is retried in the next batch if there is no room now."""
        try:
            yield
        except NoRoom as error:
            if not self.room.wait(error):
                raise
        else:
            self.room.found()

    def _work_on_round(self, now_ms: int) -> None:
        rounds_done = self.rounds.rounds_done
        decided: Counter[Decision] = self.rounds.work(now_ms, self._has_news)
        count_decisions(self.metrics, decided)
        if self.rounds.rounds_done != rounds_done:
            self.metrics.rounds.inc()
            self.metrics.held.set(self.rounds.finished[Decision.HOLD])

    def _has_news(self) -> bool:
        half_end, op_end = self.store.log.ends()
        return half_end > self.store.marker.half_cursor or op_end > self.store.marker.op_cursor

    def _live_groups(self, _now_ms: int) -> Bools:
        self._dictionary.refresh()
        return self._presence.live(self.clock.elapsed_ms(), self.settings.presence_ttl_ms, len(self._dictionary.groups))

    def _notify(self, effects: Any) -> None:
        marker = self.store.marker
        names = [field.name for field in fields(Applied) if hasattr(marker, field.name)]
        counts = {effect.name: count for effect, count in effects.items()}
        applied = Applied(
            **{name: getattr(marker, name) for name in names},
            released=counts.get("RELEASE", 0) + counts.get("MESSAGE", 0),
            rolled_back=counts.get("ROLLBACK", 0),
        )
        for name, sink in self._sinks:
            with self._sink_errors(name):
                sink.applied(applied)

    @contextlib.contextmanager
    def _sink_errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a plug-in's code: it must not stop the stream
            self.metrics.sink_errors.inc()
            LOG.warning("sink %s failed: %s", name, one_line(error))

    def _retain(self) -> None:
        self._retain_at_ms = self.clock.elapsed_ms() + self.settings.retention_interval_ms
        if self.clock.deletes_allowed():
            retention_ms = self.settings.retention_ms
            removed = self.store.retain(self.clock.now_ms(), retention_ms, self.clock.leapt_ms(retention_ms))
            self.metrics.count_all(self.metrics.files_removed, "part", removed)

    # --- the ticker -----------------------------------------------------------------------------------------------------
    def _on_tick(self) -> None:
        now_ms = self.clock.now_ms()
        if time.monotonic() - self._beat_s >= HEARTBEAT_S and self.lifecycle.error is None:
            self._beat_s = time.monotonic()
            self.store.heartbeat(self.clock.elapsed_ms())
            self.clock.look()
        if self.wants_batch(now_ms) and self.store.page[JobSlot.TICK] <= self._tick_seen:
            self.tick()

    def wants_batch(self, now_ms: int) -> bool:
        # Answers to a storm of checks make room for the next requests: they are settled as they come.
        answered = self.settler.waits_for_answers and self._has_news()
        return answered or self.rounds.wanted(now_ms) or self.clock.elapsed_ms() >= self._retain_at_ms


class _Phases:
    """Times the phases of a batch, one after another."""

    def __init__(self, metrics: JobMetrics) -> None:
        self._observe: Callable[[str], Any] = metrics.phase_s.labels
        self._from_s = time.perf_counter()

    def __call__(self, name: str) -> None:
        now_s = time.perf_counter()
        self._observe(name).observe(now_s - self._from_s)
        self._from_s = now_s


def collect(rows: DataFrame) -> Delivery:
    """The packed rows of a batch, without a copy of their payloads."""
    table = rows.toArrow()
    kinds, firsts, counts = (table.column(name).to_pylist() for name in ("kind", "first", "count"))
    payloads = [payload.as_buffer() for payload in table.column("payload")]
    packed: list[Row] = list(zip(kinds, firsts, counts, payloads, strict=True))
    return unpack(packed)
