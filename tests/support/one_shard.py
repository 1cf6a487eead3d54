"""One shard on a real broker, without Spark: a driver or two, and the halves that a test writes. Tasks run in this process."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import Producer, TopicPartition

from checker.policy import Policy
from sinks.kafka import clients, contract, release
from sinks.kafka.stuck import is_stuck
from sinks.kafka.task import SUPERSEDED, Done, Superseded, Target, Task
from store.job.shard import ShardStore
from store.records import HALF, OP, OpKind
from streaming.kafka.checks.requests import Requests
from streaming.kafka.shard import Shard
from streaming.settlement.settle import Feed, Settler
from tests.support.kafka import Cluster

NOW_MS = 1_900_000_000_000
NAMES = ("half", "op", "redo", "check", "discard", "lease", "ends", "keys")
_NUMBERS = itertools.count(1)


class OneShard:
    """A shard, a driver or two, and the halves that a test writes."""

    def __init__(self, cluster: Cluster, root: Path) -> None:
        self.cluster, self.root, self.name = cluster, root, f"task{next(_NUMBERS)}"
        self.topics = contract.Topics(*(f"{self.name}.{name}" for name in NAMES))
        self.connection = clients.Connection(cluster.bootstrap)
        copies = min(3, len(cluster.brokers))
        clients.ensure_topics(
            self.connection, self.topics, partitions=1, replication=copies, min_insync=max(1, copies - 1), retention_ms=10**9
        )
        self.real = f"{self.name}.real"
        cluster.create_topic(self.real, 2, max_message_bytes="3000")
        self.drivers: list[Shard] = []
        self._ops = 0

    def driver(self, name: str = "a", rows_per_file: int = 1000, requests: Requests | None = None) -> Shard:
        options = self.connection.librdkafka()
        target = Target(self.topics, 0, f"{self.name}-0", options, 60_000)
        store, stuck = ShardStore(self.root / name, rows_per_file), partial(is_stuck, self.connection)
        own = [self.topics.half, self.topics.op, self.topics.redo]
        ids = clients.topic_ids(self.connection.admin(), own)
        try:
            shard = Shard(store, target, self._run, threading.Event(), is_stuck=stuck, topic_ids=ids, requests=requests)
        except BaseException:
            store.close(clean=False)
            raise
        self.drivers.append(shard)
        shard.catch_up()
        shard.claim(name, NOW_MS)
        return shard

    @staticmethod
    def _run(task: Task) -> Done | str:
        done = release.attempt(task)
        if isinstance(done, str) and done.startswith(SUPERSEDED):
            raise Superseded(done)
        return done

    def halves(
        self, *bodies: bytes, topic: str | None = None, group: str = "g", key: bytes | None = None, **headers: str
    ) -> list[int]:
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "linger.ms": 0})
        places: list[int] = []
        made: list[Any] = [("escrow-group", group.encode()), ("escrow-topic", (topic or self.real).encode())]
        made += [(name.replace("_", "-"), value.encode()) for name, value in headers.items()]
        for body in bodies:
            producer.produce(
                self.topics.half, body, key, partition=0, headers=made, on_delivery=lambda _e, m: places.append(m.offset() or 0)
            )
        producer.flush(60)
        return places

    def fill(self, count: int) -> None:
        """So many halves with an empty body, at the offsets from 0 on."""
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "queue.buffering.max.messages": 0, "linger.ms": 50})
        headers: list[Any] = [("escrow-group", b"g"), ("escrow-topic", self.real.encode())]
        for _ in range(count):
            producer.produce(self.topics.half, b"", None, 0, None, None, 0, headers)
        assert producer.flush(60) == 0

    def end_of(self, topic: str) -> int:
        """Where its partition ends."""
        return clients.bounds_of(clients.end_watcher(self.connection), topic, 0)[1]

    def feed(self, shard: Shard, half_offsets: list[int], kind: OpKind = OpKind.COMMIT, size_bytes: int = 100) -> Feed:
        """These halves and their ends, as the stream would bring them."""
        halves, ops = np.zeros(len(half_offsets), HALF), np.zeros(len(half_offsets), OP)
        halves["half_offset"] = ops["half_offset"] = half_offsets
        halves["size_bytes"], halves["stored_at_s"] = size_bytes, NOW_MS // 1000
        halves["group_no"] = ops["group_no"] = shard.store.group_no("g")
        return self.feed_of(shard, halves, ops, kind)

    def prepare(self, shard: Shard, half_offset: int, group: str, stored_at_s: int = NOW_MS // 1000) -> None:
        """Settle a half that nobody has ended."""
        halves = np.zeros(1, HALF)
        halves["half_offset"], halves["group_no"] = half_offset, shard.store.group_no(group)
        halves["size_bytes"], halves["stored_at_s"] = 100, stored_at_s
        Settler(shard, Policy()).settle(self.feed_of(shard, halves, np.zeros(0, OP), OpKind.COMMIT), NOW_MS)

    def say_commit(self, shard: Shard, half_offset: int, group: str) -> None:
        """Settle a group's word about a half that was settled before."""
        ops = np.zeros(1, OP)
        ops["half_offset"], ops["group_no"] = half_offset, shard.store.known_group(group)
        Settler(shard, Policy()).settle(self.feed_of(shard, np.zeros(0, HALF), ops, OpKind.COMMIT), NOW_MS)

    @staticmethod
    def feed_of(shard: Shard, halves: Any, ops: Any, kind: OpKind) -> Feed:
        marker = shard.marker
        ops["op_offset"], ops["kind"], ops["position"] = np.arange(len(ops)) + marker.op_cursor, int(kind), -1
        half_stop = max([marker.half_cursor, *(at + 1 for at in halves["half_offset"].tolist())])
        return Feed(marker.half_cursor, half_stop, marker.op_cursor, marker.op_cursor + len(ops), halves, ops)

    def commit(self, shard: Shard, half_offsets: list[int]) -> None:
        Settler(shard, Policy()).settle(self.feed(shard, half_offsets), NOW_MS)

    def roll_back(self, shard: Shard, half_offsets: list[int]) -> None:
        Settler(shard, Policy()).settle(self.feed(shard, half_offsets, OpKind.ROLLBACK), NOW_MS)

    def bodies(self, topic: str | None = None) -> Counter[bytes]:
        return Counter(message.value() for message in self.cluster.read_all(topic or self.real))

    def redo_records(self) -> list[tuple[int, bytes | None]]:
        """(offset, kind) of each."""
        found = self.cluster.read_all(self.topics.redo)
        return [(m.offset() or 0, contract.first_header(contract.headers_of(m), contract.REDO)) for m in found]

    def retention_takes_the_redo_partition(self, before: int) -> int:
        """All before this offset, all there is for -1; where the partition begins then."""
        admin = self.connection.admin()  # must live until the answer is there
        (done,) = admin.delete_records([TopicPartition(self.topics.redo, 0, before)]).values()
        begin: int = done.result(60).low_watermark
        return begin

    def close(self) -> None:
        for driver in self.drivers:
            driver.close(clean=False)
