"""The job in Kafka mode: shards, lease, Spark's Kafka source, rounds and metrics, from start to stop. `job.py` is the process.

    open      topics are there · shards are opened and follow the redo topic (a standby stays here, warm)
    take over the lease is held · every shard is claimed: no earlier driver can write · the rows fit
    run       micro-batches and rounds, until the lease is lost, somebody else claims a shard, or `stop`

One micro-batch:
    1  collect     columns of metadata from the executors; where Spark's range ends, from its offset log
    2  cut         no op overtakes its half: ops that were read before their halves wait for the next batch
    3  settle      for each shard, side by side: match → task on an executor → read back → apply (settle.py, shard.py)
While a batch is settled, Spark goes on and the next ones are collected; a shard settles its share of them one after another, and
none waits for another shard. So Spark's checkpoint may be ahead of the shards, which no one relies on: every start begins at their
cursors. A batch that fails ends the job, and with it those that wait.
Rounds and attempts at undeliverable messages are batches of their own, from the tickers' threads, under the shard's lock.
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from confluent_kafka import KafkaException
from prometheus_client import CollectorRegistry
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from checker.policy import Policy
from runtime.clock import Clock, SystemClock, this_boot
from runtime.metrics import JobMetrics, KafkaMetrics
from runtime.settings import Settings
from sinks.kafka import clients, contract, redo, release
from sinks.kafka.stuck import is_stuck
from sinks.kafka.task import SUPERSEDED, Done, Superseded, Target, Task
from store.clock import Rules
from store.errors import CursorBeyondLog
from store.guarded_clock import GuardedClock
from store.job.shard import ShardStore
from store.records import HALF, OP, OpKind
from store.tables.state_table import StateTable
from streaming.errors import JobError, JobStopped
from streaming.kafka.broker_time import BrokerTime
from streaming.kafka.lease import Lease
from streaming.kafka.presence import GroupsAlive
from streaming.kafka.records import Piece, collect, joined, read_ops, read_stream
from streaming.kafka.shard import Shard
from streaming.metrics_feed import count_decisions, count_settled, watch_shard, watch_shards
from streaming.settlement.rounds import Rounds
from streaming.settlement.settle import Feed, Settler
from streaming.spark.listener import ProgressListener
from streaming.spark.session import one_line, why_ended

LOG: Final = logging.getLogger("escrow.kafka")
TICK_S: Final = 0.25
FOLLOW_S: Final = 0.2
STOP_S: Final = 3.0
WATERMARK_S: Final = 30.0
PARTITIONS_EVERY_S: Final = 2.0
#: A release that takes longer than this is told.
SLOW_TASK_S: Final = 4.0
#: Batches that a shard may be behind before Spark waits for it; their records are bounded as those of DEFERRED_BATCHES.
BATCHES_AHEAD: Final = 64
LEASE_LOST: Final = "the lease was lost: "
#: Ops that wait for their halves are kept, up to what so many batches hold (44 bytes each).
DEFERRED_BATCHES: Final = 4
#: The bodies that go with one Kafka transaction, about.
RELEASE_BYTES_MAX: Final = 128 << 20
#: An idle shard says where it stands this often (of fileReservedTime), one that never had a batch too: a redo partition whose
#: beginning is gone and that has no marker is taken for one that was lost.
MARKER_SHARE: Final = 0.25
#: The first one of a term, which tells all groups' names, waits for this long: where there is a backlog, its batches say it.
FIRST_MARKER_MS: Final = 10_000
_WITH_BODIES: Final = np.array([int(kind) for kind in (OpKind.COMMIT, OpKind.DISCARD_MAX, OpKind.DISCARD_EXPIRED)], np.uint8)

Array = np.ndarray[Any, Any]
Bools = npt.NDArray[np.bool_]


class _Part:
    """A shard with what settles it and its rounds."""

    def __init__(self, shard: Shard, policy: Policy) -> None:
        self.shard = shard
        self.settler = Settler(shard, policy, RELEASE_BYTES_MAX)
        self.rounds: Rounds | None = None
        self.claimed_ms = 0
        self.tell_again_ms = 0
        self.retained_ms = 0
        self.telling: Iterator[npt.NDArray[np.int64]] = iter(())
        self.at_work: list[tuple[Future[None], int]] = []  # batches in their order, with their records
        self.ends: dict[str, dict[int, int]] | None = None  # of the batch that was settled last
        self.tick: Future[None] | None = None
        self.slow_told_s: float | None = None  # of which task that it is slow

    def unfinished(self) -> list[tuple[Future[None], int]]:
        """Batches that are settled or wait; raises what one has failed with."""
        for done, _ in self.at_work:
            if done.done():
                done.result()
        self.at_work = [(each, records) for each, records in self.at_work if not each.done()]
        return self.at_work


class KafkaJobService:
    """One driver. `take_over` waits for the lease, `start` the query; then `failure`, then `stop`."""

    def __init__(self, settings: Settings, clock: Clock | None = None, registry: CollectorRegistry | None = None) -> None:
        self.settings = settings
        self.connection = clients.Connection(**settings.kafka_values())
        self.topics = contract.Topics(**settings.kafka_topics())
        self.metrics = JobMetrics(registry or CollectorRegistry())
        self.kafka_metrics = KafkaMetrics(self.metrics.registry)
        self._log_ends: dict[int, tuple[int, int]] = {}
        self.policy = Policy.from_ms(**settings.policy_values())
        self._machine = clock or SystemClock()
        self._boot = 0 if clock else this_boot() or None
        self.parts: dict[int, _Part] = {}
        self.batches = 0
        self.executors: Counter[str] = Counter()  # bytes that each has released
        self._stopping, self._wake = threading.Event(), threading.Event()
        self._opening = threading.Lock()
        self._lease: Lease | None = None
        self._spark: SparkSession | None = None
        self._query: StreamingQuery | None = None
        self._listener: ProgressListener | None = None
        self._error: BaseException | None = None
        self._ends: dict[str, dict[int, int]] = {}
        self._early: dict[int, list[Piece]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._tick_pool = ThreadPoolExecutor(max_workers=64, thread_name_prefix="tick")
        self._ticker = threading.Thread(target=self._run_ticker, name="ticker", daemon=True)
        self._closed = False
        self.owner = f"{socket.gethostname()}:{os.getpid()}"
        with self._told():
            self._open()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What Kafka's client raises, as a sentence."""
        try:
            yield
        except KafkaException as error:
            raise JobError(f"Kafka at {self.settings.kafka_bootstrap_servers}: {error.args[0].str()}") from error

    # --- open, take over, start, stop ----------------------------------------------------------------------------------------
    def _open(self) -> None:
        """Topics and shards; watchers on the Kafka side."""
        settings = self.settings
        count = clients.ensure_topics(
            self.connection,
            self.topics,
            partitions=settings.kafka_partitions,
            replication=settings.kafka_replication,
            min_insync=settings.kafka_min_insync,
            retention_ms=settings.retention_ms,
            repair=settings.kafka_repair_topics,
        )
        self._brokers = BrokerTime(self.connection.librdkafka(), self.topics.lease, self._machine)
        self.clock = GuardedClock(self._brokers, settings.data_dir, Rules(**settings.clock_values()), boot=self._boot)
        own = [self.topics.half, self.topics.op, self.topics.redo]
        self._topic_ids = clients.topic_ids(self.connection.admin(), own)
        self._watcher = redo.redo_consumer(self.connection.librdkafka())
        # A half behind an open transaction of somebody else is there, though nobody may read it yet.
        self._half_watcher = clients.end_watcher(self.connection)
        self._alive = GroupsAlive(self.connection, settings.kafka_check_group_prefix)
        for partition in range(count):
            self.parts[partition] = self._open_part(partition)
        watch_shards(self.metrics, self._shards, self.clock)
        self.kafka_metrics.master.set_function(lambda: self._lease is not None and self._lease.held.is_set())

    def _open_part(self, partition: int) -> _Part:
        store = ShardStore(self.settings.store_dir / "shards" / str(partition), self.settings.state_table_file_bytes // 24)
        target = Target(
            topics=self.topics,
            partition=partition,
            transactional_id=f"{self.settings.kafka_transactional_id_prefix}{self.topics.half}-{partition}",
            client=self.connection.librdkafka(),
            transaction_timeout_ms=self.settings.kafka_transaction_timeout_ms,
        )
        shard = Shard(
            store,
            target,
            self._run_task,
            self._stopping,
            pause_max_ms=self.settings.kafka_retry_interval_ms,
            is_stuck=partial(is_stuck, self.connection),
            topic_ids=self._topic_ids,
        )
        watch_shard(self.kafka_metrics, shard, lambda: self._log_ends.get(partition, (0, 0)), self._kept_for)
        return _Part(shard, self.policy)

    def _kept_for(self, stored_at_ms: int) -> float:
        """Which share of its time in the half topic has passed for a half; 0 where there is none."""
        kept_ms = clients.HALVES_KEPT * self.settings.retention_ms
        return max(0.0, (self.clock.now_ms() - stored_at_ms) / kept_ms) if stored_at_ms else 0.0

    def _shards(self) -> list[Shard]:
        return [part.shard for part in list(self.parts.values())]

    def ask_for_lease(self) -> None:
        """Whether it is ours, Kafka may take its time to say: `take_over` waits for that."""
        settings, options = self.settings, self.connection.librdkafka()
        self._lease = Lease(options, self.topics.lease, settings.kafka_lease_group, settings.kafka_lease_timeout_ms)

    def why_waiting(self) -> str:
        """Why this driver has not the lease, as far as Kafka has said."""
        if self._lease is None or not self._lease.elsewhere.is_set():
            return "Kafka has not said yet who has the lease"
        timeout_s = self.settings.kafka_lease_timeout_ms / 1000
        return f"another driver has the lease, or one had it that ended less than {timeout_s:g} s (kafkaLeaseTimeout) ago"

    def take_over(self, wanted: Callable[[], bool] = lambda: True, timeout_s: float | None = None) -> bool:
        """Wait for the lease, claim every shard; False where `wanted` says no, or with a timeout when it is over or Kafka says that
        another has the lease. A standby follows the redo topic."""
        with self._told():
            return self._take_over(wanted, timeout_s)

    def _take_over(self, wanted: Callable[[], bool], timeout_s: float | None) -> bool:
        give_up_s = time.monotonic() + (timeout_s if timeout_s is not None else 1e9)
        if self._lease is None:
            self.ask_for_lease()
        assert self._lease is not None
        for shard in self._shards():
            shard.catch_up()
        while not self._lease.held.wait(FOLLOW_S):
            if self._lease.lost.is_set():  # it was held for a moment, and never will be again
                raise JobError(LEASE_LOST + self._lease.why_lost)
            if not wanted() or time.monotonic() > give_up_s or (timeout_s is not None and self._lease.elsewhere.is_set()):
                return False
            self._brokers.look()
            self.clock.look()
            for shard in self._shards():
                shard.follow(0)
        for part in list(self.parts.values()):
            self._claim(part)
        # Partitions that were added while this driver stood by: the stream must begin somewhere in each.
        self._open_new({self.topics.half: dict.fromkeys(range(self._half_partitions()), 0)})
        return True

    def _claim(self, part: _Part) -> None:
        """From here on the shard is ours."""
        shard, part.claimed_ms = part.shard, self.clock.now_ms()
        shard.claim(self.owner, part.claimed_ms)
        root, op_end = shard.store.root, partial(self._end_of, self.topics.op, shard.partition)
        live = partial(self._live_groups, shard)
        part.rounds = Rounds(
            part.settler, live, self.clock.deletes_allowed, self.clock.now_ms(),
            root=root, op_end=op_end, leapt_ms=self.clock.leapt_ms,
        )  # fmt: skip

    def start(self, spark: SparkSession, checkpoint: Path) -> None:
        """Start the query at the shards' cursors."""
        self._spark, self._checkpoint, self._listener = spark, checkpoint, ProgressListener(self.metrics)
        self._pool = ThreadPoolExecutor(max_workers=64, thread_name_prefix="shard")
        spark.streams.addListener(self._listener)
        start = self._cursors()
        self._ends = {topic: dict(offsets) for topic, offsets in start.items()}
        rows = read_stream(spark, self.connection.java(), self.topics, start, self.settings.max_records_per_batch)
        writer = rows.writeStream.foreachBatch(self._on_batch).queryName("escrow")
        self._query = writer.option("checkpointLocation", str(checkpoint)).start()
        self._ticker.start()

    def _cursors(self) -> dict[str, dict[int, int]]:
        """Where the stream begins: behind what is settled, of all partitions that Spark will find."""
        start: dict[str, dict[int, int]] = {self.topics.half: {}, self.topics.op: {}}
        for partition, part in self.parts.items():
            marker = part.shard.marker
            for topic, cursor in ((self.topics.half, marker.half_cursor), (self.topics.op, marker.op_cursor)):
                begin, end = clients.bounds_of(self._watcher, topic, partition)
                if cursor > end:
                    raise CursorBeyondLog(
                        f"partition {partition} of {topic} ends at {end} and is settled up to {cursor}: the topic was made anew, "
                        "or has lost records; Escrow cannot go on with it"
                    )
                if begin > cursor > 0:
                    LOG.error(
                        "records %d … %d of %s, partition %d, were deleted before they were settled",
                        cursor,
                        begin,
                        topic,
                        partition,
                    )
                start[topic][partition] = max(begin, cursor)
        found = self.connection.admin().list_topics(self.topics.op, timeout=WATERMARK_S).topics[self.topics.op].partitions
        for partition in set(found) - set(self.parts):  # the op topic may have more partitions than there are shards
            start[self.topics.op][partition] = 0
        return start

    def warm_up(self) -> None:
        """Nothing: a backlog warms Java better than empty batches would."""

    def failure(self) -> str | None:
        """Why the job has ended by itself; None while it runs."""
        if self._error is not None:
            return one_line(self._error)
        if self._lease is not None and self._lease.lost.is_set():
            return LEASE_LOST + self._lease.why_lost
        query = self._query
        return None if query is None or self._stopping.is_set() else why_ended(query)

    def stop(self) -> None:
        """1 no new batches · 2 the one at work ends · 3 shards are flushed and closed · 4 the lease is given back."""
        self._stopping.set()
        give_up_s = time.monotonic() + STOP_S
        if self._query is not None:
            stopper = threading.Thread(target=self._stop_query, args=(self._query,), name="stopper", daemon=True)
            stopper.start()
            stopper.join(STOP_S)
        if self._ticker.is_alive():
            self._ticker.join(STOP_S)
        at_work = [done for part in list(self.parts.values()) for done, _ in part.at_work]
        ticks = [part.tick for part in list(self.parts.values()) if part.tick is not None]
        wait([*at_work, *ticks], max(0.0, give_up_s - time.monotonic()))
        if self._closed:
            return
        self._closed = True
        for shard in self._shards():
            # One that does not let go in time is left as it is: its files are derived.
            if shard.lock.acquire(timeout=1.0):
                shard.close(clean=True)
                shard.lock.release()
        if self._lease is not None:
            self._lease.close()
        self._watcher.close()
        self._half_watcher.close()

    def _stop_query(self, query: StreamingQuery) -> None:
        try:
            query.stop()
            if self._spark is not None and self._listener is not None:
                self._spark.streams.removeListener(self._listener)
        except Exception as error:  # the JVM may be gone, or too slow: the shards are closed all the same
            LOG.warning("stop: %s", one_line(error))
        self.metrics.query_up.set(0)  # Spark tells the listener later, or not any more

    # --- a batch -----------------------------------------------------------------------------------------------------------------
    def _on_batch(self, rows: DataFrame, batch_id: int) -> None:
        try:
            if not self._stopping.is_set():
                self._batch(rows, batch_id)
        except BaseException as error:
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        if self._error is None and not self._stopping.is_set():
            self._error = error
            LOG.error("the job ends: %s", error)  # whole: Java's causes stand at its end

    def _batch(self, rows: DataFrame, batch_id: int) -> None:
        started_s = time.perf_counter()
        halves, ops = collect(rows)  # 1
        ends = self._ends_of(batch_id)
        self.metrics.phase_s.labels("collect").observe(time.perf_counter() - started_s)
        self._wait_for_room()
        self._open_new(ends)
        for partition, pieces in self._early.items():  # ops of a half partition that Spark had not found yet
            if partition in self.parts:
                ops[partition] = [*pieces, *ops.get(partition, [])]
        self._early = {partition: ops[partition] for partition in ops if partition not in self.parts}
        changed = [
            partition
            for partition in self.parts
            if any(ends[topic].get(partition, 0) > self._ends[topic].get(partition, 0) for topic in ends)
        ]
        for partition in changed:
            self._hand_over(self.parts[partition], halves.get(partition, []), ops.get(partition, []), ends)
        self._ends = ends
        self.batches += 1

    def _wait_for_room(self) -> None:
        """A shard that waits for something does not make others wait, unless it is far behind: memory is bounded."""
        records_max = DEFERRED_BATCHES * self.settings.max_records_per_batch
        for part in list(self.parts.values()):
            while (waiting := part.unfinished()) and (
                len(waiting) >= BATCHES_AHEAD or sum(records for _, records in waiting) >= records_max
            ):
                waiting[0][0].result()

    def _hand_over(self, part: _Part, halves: list[Piece], ops: list[Piece], ends: dict[str, dict[int, int]]) -> None:
        assert self._pool is not None
        before = part.at_work[-1][0] if part.at_work else None
        records = sum(len(piece.records) for piece in (*halves, *ops))
        part.at_work.append((self._pool.submit(self._settle, part, before, halves, ops, ends), records))

    def _ends_of(self, batch_id: int) -> dict[str, dict[int, int]]:
        """Where the ranges of a batch end: Spark writes that down before it runs it. (Rows cannot tell: offsets have holes.)"""
        text = (self._checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[-1]
        return {topic: {int(partition): int(at) for partition, at in found.items()} for topic, found in json.loads(text).items()}

    def _settle(
        self, part: _Part, before: Future[None] | None, halves: list[Piece], ops: list[Piece], ends: dict[str, dict[int, int]]
    ) -> None:
        """`before`: the batch before, which begins first: the pool starts them in their order."""
        try:
            if before is not None:
                before.result()
            with part.shard.lock:
                if not self._stopping.is_set():
                    self._settle_shard(part, halves, ops, ends)
        except BaseException as error:  # at once: there may be no further batch to tell it to
            self._fail(error)
            raise

    def _settle_shard(self, part: _Part, halves: list[Piece], ops: list[Piece], ends: dict[str, dict[int, int]]) -> None:
        shard, now_ms, started_s = part.shard, self.clock.now_ms(), time.perf_counter()
        for piece in self._pieces(shard, halves, ops, ends):
            settled = part.settler.settle(piece, now_ms)
            count_settled(self.metrics, piece, settled, now_ms)
        part.ends = ends
        self.metrics.phase_s.labels("settle").observe(time.perf_counter() - started_s)

    def _pieces(self, shard: Shard, halves: list[Piece], ops: list[Piece], ends: dict[str, dict[int, int]]) -> Iterator[Feed]:
        """What the batch brings; then, when they wait for nothing any more, ops that were too many to be kept."""
        yield from pieces_of(self._feed(shard, halves, ops, ends), shard.table)
        while shard.unkept is not None and not shard.waits and not self._stopping.is_set():
            yield from pieces_of(
                self._feed(shard, [], self._read_again(shard, ends[self.topics.op][shard.partition]), ends), shard.table
            )

    def _read_again(self, shard: Shard, end: int) -> list[Piece]:
        assert shard.unkept is not None
        start, stop = shard.unkept, min(shard.unkept + self._deferred_max(), end)
        shard.unkept = stop if stop < end else None
        return self._read_range(shard.partition, start, stop)

    def _read_range(self, partition: int, start: int, stop: int) -> list[Piece]:
        assert self._spark is not None
        _, ops = collect(read_ops(self._spark, self.connection.java(), self.topics, partition, (start, stop)))
        return ops.get(partition, [])

    def _deferred_max(self) -> int:
        """Ops that one shard may keep while they wait: all of them together, about what DEFERRED_BATCHES batches hold."""
        return max(1, DEFERRED_BATCHES * self.settings.max_records_per_batch // len(self.parts))

    def _keep(self, shard: Shard, deferred: list[Piece]) -> list[Piece]:
        """As many as may be kept. The others are in Kafka, behind the marker's cursor: they are read once more."""
        most = self._deferred_max()
        if sum(len(piece.records) for piece in deferred) <= most:
            return deferred
        offsets = np.sort(np.concatenate([piece.records["op_offset"] for piece in deferred]))
        if shard.unkept is None:
            LOG.warning(
                "shard %d: more than %d ops wait for an open transaction: the rest is read again later", shard.partition, most
            )
        shard.unkept = int(offsets[most])  # an ASKED record is several ops with one offset: all of them or none
        return [rest for piece in deferred if len((rest := piece.before("op_offset", shard.unkept)).records)]

    def _feed(self, shard: Shard, halves: list[Piece], ops: list[Piece], ends: dict[str, dict[int, int]]) -> Feed:
        """Step 2. An op about a half that Kafka has and this batch has not waits, and all behind it; one about an offset beyond the
        half partition's end, asked for after the op was read, is about nothing."""
        marker, partition = shard.marker, shard.partition
        half_stop = max(ends[self.topics.half].get(partition, 0), marker.half_cursor)
        op_stop = max(ends[self.topics.op].get(partition, 0), marker.op_cursor)
        new_halves = joined(halves, shard.store.group_no, HALF, "half_offset")
        pieces = [*shard.deferred, *ops]
        if shard.unkept is not None:
            op_stop = min(op_stop, shard.unkept)
            pieces = [piece.before("op_offset", op_stop) for piece in pieces]
        new_ops = joined(pieces, shard.store.known_group, OP, "op_offset")
        ahead = new_ops[(new_ops["half_offset"] >= half_stop) & (new_ops["corrupt"] == 0)]
        if len(ahead):
            ahead = ahead[ahead["half_offset"] < clients.bounds_of(self._half_watcher, self.topics.half, partition)[1]]
        shard.held_back = self._is_full(shard) and bool(len(new_ops))
        if shard.held_back:
            ahead = new_ops
        shard.waits = bool(len(ahead))
        if shard.waits:
            op_stop = int(ahead["op_offset"][0])
        # By name: an op may come before the first half of its group, which gives the group its number.
        shard.deferred = self._keep(shard, [rest for piece in pieces if len((rest := piece.since("op_offset", op_stop)).records)])
        return Feed(marker.half_cursor, half_stop, marker.op_cursor, op_stop, new_halves, new_ops[new_ops["op_offset"] < op_stop])

    def _is_full(self, shard: Shard) -> bool:
        """Whether no more messages may be set aside: nothing is released then, until some of them go out."""
        return len(shard.store.undeliverable) >= self.settings.kafka_undeliverable_max

    def _end_of(self, topic: str, partition: int) -> int:
        return clients.bounds_of(self._watcher, topic, partition)[1]

    def _live_groups(self, shard: Shard, _now_ms: int) -> Bools:
        return self._alive.of(shard.store.groups)  # a number whose name is not known ("") has nobody live

    def _run_task(self, task: Task) -> Done | str:
        """On an executor. What Spark throws is told as a sentence: the task is started again."""
        assert self._spark is not None
        try:
            found = self._spark.sparkContext.parallelize([task], 1).map(release.attempt).collect()
        except Exception as error:  # an executor died, Java did, a network did not answer
            return f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
        done = found[0]
        if isinstance(done, Done):
            self.executors[done.executor] += done.bytes
        if isinstance(done, str) and done.startswith(SUPERSEDED):
            raise Superseded(done.removeprefix(SUPERSEDED))
        return done

    # --- partitions --------------------------------------------------------------------------------------------------------------
    def _open_new(self, ends: dict[str, dict[int, int]]) -> None:
        """Shards for half partitions that Spark has found and we have not yet."""
        with self._opening:
            for partition in sorted(set(ends[self.topics.half]) - set(self.parts)):
                clients.add_partitions(self.connection, self.topics, partition + 1)
                part = self._open_part(partition)
                part.shard.catch_up()
                self._claim(part)
                self.parts[partition] = part
                for topic in self._ends:
                    self._ends[topic].setdefault(partition, 0)
                LOG.warning("half partition %d is new: its shard is open", partition)

    # --- the ticker --------------------------------------------------------------------------------------------------------------
    def _run_ticker(self) -> None:
        look_s = 0.0
        while not self._stopping.wait(TICK_S):
            try:
                self._brokers.look()
                self.clock.look()
                for part in list(self.parts.values()):
                    self._tell_slow(part)
                    if part.tick is None or part.tick.done():
                        part.tick = self._tick_pool.submit(self._tick_once, part)
                if time.monotonic() >= look_s:
                    look_s = time.monotonic() + PARTITIONS_EVERY_S
                    clients.add_partitions(self.connection, self.topics, self._half_partitions())
                    self._look_at_ends()
            except KafkaException as error:  # Kafka is away: the next tick finds it back
                LOG.warning("tick: %s", error.args[0].str())
            except BaseException as error:
                self._fail(error)
                return

    def _tell_slow(self, part: _Part) -> None:
        """A task that makes no headway says so while it is at work, not afterwards."""
        since_s = part.shard.task_since_s
        if since_s is not None and since_s != part.slow_told_s and time.monotonic() - since_s > SLOW_TASK_S:
            part.slow_told_s = since_s
            LOG.warning(
                "shard %d: a release is at work for more than %.0f s: Kafka is slow, or a topic does not answer",
                part.shard.partition, SLOW_TASK_S,
            )  # fmt: skip

    def _tick_once(self, part: _Part) -> None:
        try:
            self._tick(part)
        except KafkaException as error:  # Kafka is away: the next tick finds it back
            LOG.warning("shard %d: %s", part.shard.partition, error.args[0].str())
        except JobStopped:
            pass
        except BaseException as error:
            self._fail(error)

    def _look_at_ends(self) -> None:
        """For the metrics: a look at them must not wait for Kafka."""
        for partition in list(self.parts):
            half_end, op_end = (self._end_of(topic, partition) for topic in (self.topics.half, self.topics.op))
            self._log_ends[partition] = half_end, op_end

    def _half_partitions(self) -> int:
        return clients.shard_count(self.connection.admin(), self.topics)

    def _tick(self, part: _Part) -> None:
        now_ms, rounds = self.clock.now_ms(), part.rounds
        if rounds is None:
            return
        with part.shard.lock:
            if self._stopping.is_set():
                return
            if rounds.wanted(now_ms):
                done = rounds.rounds_done
                count_decisions(self.metrics, rounds.work(now_ms, lambda: False))
                self.metrics.rounds.inc(rounds.rounds_done - done)
            topic = part.shard.retries.due(part.shard.store.undeliverable, now_ms)
            if topic is not None:
                part.shard.try_again(topic, now_ms, RELEASE_BYTES_MAX)
            if part.shard.held_back and part.ends is not None and not self._is_full(part.shard):
                self._settle_shard(part, [], [], part.ends)
            self._tell_again(part, now_ms)
            if now_ms > self._marker_due_ms(part):
                part.shard.commit(self._same_place(part.shard, now_ms))
            self._retain(part, now_ms)

    def _retain(self, part: _Part, now_ms: int) -> None:
        """State files that nothing needs any more go, of a busy shard too."""
        every_ms, retention_ms = MARKER_SHARE * self.settings.retention_ms, self.settings.retention_ms
        if not part.retained_ms <= now_ms < part.retained_ms + every_ms and self.clock.deletes_allowed():
            part.retained_ms = now_ms
            part.shard.store.retain(now_ms, retention_ms, self.clock.leapt_ms(retention_ms))

    def _tell_again(self, part: _Part, now_ms: int) -> None:
        """Halves that stay pending beyond fileReservedTime (discards may be stopped): the redo topic is kept for twice as long, and
        the batch that told their rows must not be the only one."""
        if now_ms >= part.tell_again_ms:
            part.tell_again_ms = now_ms + int(MARKER_SHARE * self.settings.retention_ms)
            part.telling = part.shard.store.pending_since_before((now_ms - self.settings.retention_ms) // 1000)
        half_offsets = next(part.telling, None)
        if half_offsets is not None:
            batch = self._same_place(part.shard, now_ms)
            batch.tell_again(half_offsets, part.shard.table.get(half_offsets))
            part.shard.commit(batch)

    def _marker_due_ms(self, part: _Part) -> float:
        marker = part.shard.marker
        if not marker.sequence or not part.shard.names_told:
            return part.claimed_ms + FIRST_MARKER_MS
        return marker.now_ms + MARKER_SHARE * self.settings.retention_ms

    def _same_place(self, shard: Shard, now_ms: int) -> Any:
        marker = shard.marker
        return shard.batch(half_cursor=marker.half_cursor, op_cursor=marker.op_cursor, now_ms=now_ms)


def pieces_of(feed: Feed, table: StateTable) -> Iterator[Feed]:
    """A feed cut so that no piece releases and discards much more than RELEASE_BYTES_MAX: a Kafka transaction must be done before
    its timeout. The first piece has all the halves."""
    sizes = table.get(feed.ops["half_offset"])["size_bytes"].astype(np.int64)
    if len(feed.halves):
        at = np.minimum(np.searchsorted(feed.halves["half_offset"], feed.ops["half_offset"]), len(feed.halves) - 1)
        new = feed.halves["half_offset"][at] == feed.ops["half_offset"]
        sizes[new] = feed.halves["size_bytes"][at[new]]
    sizes[~np.isin(feed.ops["kind"], _WITH_BODIES)] = 0
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    # Alike, so that none is a transaction for a handful of messages; a tenth too much is no reason for another.
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
