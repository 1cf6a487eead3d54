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

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from prometheus_client import CollectorRegistry
from pyspark.sql import DataFrame, SparkSession

from checker.decisions import Decision
from checker.policy import Policy
from runtime.clock import Clock, SystemClock, this_boot
from runtime.metrics import JobMetrics, KafkaMetrics
from runtime.settings import Settings
from sinks.kafka import clients, contract, redo
from sinks.kafka.committed import Lane
from sinks.kafka.stuck import is_stuck
from sinks.kafka.task import Target
from store.arrays import Bools
from store.clock import Rules
from store.guarded_clock import GuardedClock
from store.job.shard import ShardStore
from streaming.errors import JobError
from streaming.kafka.broker_time import BrokerTime
from streaming.kafka.checks.locating import Locating
from streaming.kafka.checks.presence import GroupsAlive
from streaming.kafka.checks.requests import CommittedOffsets, Requests
from streaming.kafka.executors import Executors
from streaming.kafka.group_figures import GroupFigures
from streaming.kafka.lease import Lease
from streaming.kafka.part import Ends, Part
from streaming.kafka.reading.feeds import RELEASE_BYTES_MAX, Feeds
from streaming.kafka.reading.ranges import ends_of, start_of
from streaming.kafka.reading.records import Piece, collect, read_ops, read_stream
from streaming.kafka.room import RoomForShards
from streaming.kafka.settling import Settling
from streaming.kafka.shard import Shard
from streaming.kafka.ticks import Ticks
from streaming.kafka.upkeep import Upkeep
from streaming.lifecycle import STOP_S, Lifecycle
from streaming.metrics_feed import watch_shard, watch_shards
from streaming.settlement.disk_room import Room
from streaming.settlement.rounds import Rounds

LOG: Final = logging.getLogger("escrow.kafka")
FOLLOW_S: Final = 0.2
LEASE_LOST: Final = "the lease was lost: "


class KafkaJobService:
    """One driver. `take_over` waits for the lease, `start` the query; then `failure`, then `stop`."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock | None = None,
        registry: CollectorRegistry | None = None,
        executors: Executors | None = None,
        tell: Callable[[str, bool], None] = lambda *_: None,
    ) -> None:
        """`tell`: see `streaming.settlement.disk_room.Room`."""
        self.settings, self.executors = settings, executors or Executors()
        self.connection = clients.Connection(**settings.kafka_values())
        self.topics = contract.Topics(**settings.kafka_topics())
        self.metrics = JobMetrics(registry or CollectorRegistry())
        self.kafka_metrics = KafkaMetrics(self.metrics.registry)
        self.policy = Policy.from_ms(**settings.policy_values())
        self._machine = clock or SystemClock()
        self._boot = 0 if clock else this_boot() or None
        self.parts: dict[int, Part] = {}
        self.batches = 0
        self.lifecycle = Lifecycle(self.metrics, self._on_tick)
        self._room = RoomForShards(Room(settings.store_dir, self.lifecycle.stopping, tell))
        self._opening = threading.Lock()
        self._lease: Lease | None = None
        self._ends: Ends = {}
        self._early: dict[int, list[Piece]] = {}
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
        prefix = settings.kafka_check_group_prefix
        self._alive = GroupsAlive(self.connection, prefix)
        self._offsets = CommittedOffsets(self.connection, self.topics.check, prefix, self._lanes)
        self._locating = Locating(self.executors.locate)
        for partition in range(count):
            self.parts[partition] = self._open_part(partition)
        records_max, stopping = settings.max_records_per_batch, self.lifecycle.stopping
        self._feeds = Feeds(
            self.topics,
            half_end=lambda partition: clients.bounds_of(self._half_watcher, self.topics.half, partition)[1],
            read_ops=self._read_ops,
            shard_count=lambda: len(self.parts),
            batch_records_max=records_max,
            undeliverable_max=settings.kafka_undeliverable_max,
            stopping=stopping,
        )
        self._settling = Settling(self._feeds, self.metrics, self.clock, self.lifecycle, records_max)
        self._upkeep = Upkeep(
            self.clock,
            self.metrics,
            self._feeds,
            self._settling,
            retention_ms=settings.retention_ms,
            stopping=stopping,
        )
        self._ticks = Ticks(
            self.connection,
            self.topics,
            self.parts,
            self._upkeep,
            lifecycle=self.lifecycle,
            brokers=self._brokers,
            clock=self.clock,
            room=self._room,
            end_of=self._end_of,
        )
        self._watch()

    def _watch(self) -> None:
        settings = self.settings
        watch_shards(self.metrics, self._shards, self.clock, self._held)
        GroupFigures(
            self.metrics.registry,
            lambda: [part.counted for part in list(self.parts.values())],
            self._alive.known,
            lambda: self.clock.now_ms() // 1000,
            names_max=settings.metrics_names_max,
            timeout_s=settings.transaction_timeout_ms / 1000,
        )
        self.kafka_metrics.master.set_function(lambda: self._lease is not None and self._lease.held.is_set())
        self.kafka_metrics.no_room.set_function(lambda: self._room.lacks)

    def _held(self) -> int:
        rounds = [part.rounds for part in list(self.parts.values()) if part.rounds is not None]
        return sum(each.finished[Decision.HOLD] for each in rounds)

    def _open_part(self, partition: int) -> Part:
        store = ShardStore(self.settings.store_dir / "shards" / str(partition), self.settings.state_table_file_bytes // 24)
        store.no_room, store.has_room = partial(self._room.wait, partition), partial(self._room.found, partition)
        target = Target(
            topics=self.topics,
            partition=partition,
            transactional_id=f"{self.settings.kafka_transactional_id_prefix}{self.topics.half}-{partition}",
            client=self.connection.librdkafka(),
            transaction_timeout_ms=self.settings.kafka_transaction_timeout_ms,
            check_bodies=self.settings.kafka_check_bodies,
        )
        shard = Shard(
            store,
            target,
            self.executors.run,
            self.lifecycle.stopping,
            pause_max_ms=self.settings.kafka_retry_interval_ms,
            is_stuck=partial(is_stuck, self.connection),
            topic_ids=self._topic_ids,
            requests=Requests(self._offsets.known),
            locate=self._locating,
        )
        watch_shard(self.kafka_metrics, shard, lambda: self._ticks.log_ends(partition), self._kept_for)
        return Part(shard, self.policy, RELEASE_BYTES_MAX)

    def _kept_for(self, stored_at_ms: int) -> float:
        """Which share of its time in the half topic has passed for a half; 0 where there is none."""
        kept_ms = clients.HALVES_KEPT * self.settings.retention_ms
        return max(0.0, (self.clock.now_ms() - stored_at_ms) / kept_ms) if stored_at_ms else 0.0

    def _lanes(self) -> set[Lane]:
        """Where requests wait to be taken."""
        return {lane for shard in self._shards() for lane in shard.requests.lanes()}

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

    def _claim(self, part: Part) -> None:
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
        self.executors.spark, self._checkpoint = spark, checkpoint
        self.lifecycle.listen(spark)
        start = start_of(self.parts, self.topics, self._watcher, self.connection.admin())
        self._ends = {topic: dict(offsets) for topic, offsets in start.items()}
        rows = read_stream(spark, self.connection.java(), self.topics, start, self.settings.max_records_per_batch)
        writer = rows.writeStream.foreachBatch(self._on_batch).queryName("escrow")
        self.lifecycle.started(writer.option("checkpointLocation", str(checkpoint)).start())

    def first_batch(self) -> None:
        """Nothing: without records there is none."""

    def warm_up_beside(self) -> None:
        """Nothing: a backlog warms Java better than empty batches would."""

    def failure(self) -> str | None:
        """Why the job has ended by itself; None while it runs."""
        if self.lifecycle.error is None and self._lease is not None and self._lease.lost.is_set():
            return LEASE_LOST + self._lease.why_lost
        return self.lifecycle.failure()

    def stop(self) -> None:
        """1 no new batches · 2 the one at work ends · 3 shards are flushed and closed · 4 the lease is given back."""
        give_up_s = time.monotonic() + STOP_S
        self.lifecycle.stop(ticker_s=STOP_S)
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
        self._offsets.close()
        self._locating.close()
        self._watcher.close()
        self._half_watcher.close()

    # --- a batch -----------------------------------------------------------------------------------------------------------------
    def _on_batch(self, rows: DataFrame, batch_id: int) -> None:
        with self.lifecycle.guarded():
            if not self.lifecycle.stopping.is_set():
                self._batch(rows, batch_id)

    def _batch(self, rows: DataFrame, batch_id: int) -> None:
        started_s = time.perf_counter()
        halves, ops = collect(rows)  # 1
        ends = ends_of(self._checkpoint, batch_id)
        self.metrics.phase_s.labels("collect").observe(time.perf_counter() - started_s)
        self._settling.wait_for_room(list(self.parts.values()))
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
            brought = halves.get(partition, []), ops.get(partition, [])
            self._settling.hand_over(self.parts[partition], *brought, ends)
        self._ends = ends
        self.batches += 1

    def _read_ops(self, partition: int, start: int, stop: int) -> list[Piece]:
        spark = self.executors.spark
        assert spark is not None
        _, ops = collect(read_ops(spark, self.connection.java(), self.topics, partition, (start, stop)))
        return ops.get(partition, [])

    def _end_of(self, topic: str, partition: int) -> int:
        return clients.bounds_of(self._watcher, topic, partition)[1]

    def _live_groups(self, shard: Shard, _now_ms: int) -> Bools | None:
        return self._alive.of(shard.store.groups)  # a number whose name is not known ("") has nobody live

    # --- partitions --------------------------------------------------------------------------------------------------------------
    def _open_new(self, ends: Ends) -> None:
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

    def _on_tick(self) -> None:
        self._ticks.on_tick()

    def _half_partitions(self) -> int:
        return clients.shard_count(self.connection.admin(), self.topics)
