"""A check request counts when a member of the group has taken it, not when it was written (docs/kafka.md, "A check request")."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Consumer, TopicPartition

from checker.decisions import Tick
from checker.policy import Policy
from ingest.kafka.checking.checks import KafkaChecks
from ingest.kafka.records.places import Place
from sinks.kafka import asking
from sinks.kafka.committed import CommittedReader
from sinks.kafka.contract import Topics
from sinks.kafka.task import Requested, Target
from store.records import HALF, OP, OpKind, State, Via, check_count_of, state_of
from streaming.kafka.checks.locating import Locating, locate_at_once
from streaming.kafka.checks.requests import Requests
from streaming.kafka.shard import Shard
from streaming.settlement.settle import Settler
from tests.support.endpoint import until
from tests.support.kafka import Cluster
from tests.support.one_shard import NOW_MS, OneShard

PREFIX = "taken-"
POLICY = Policy(check_count_max=2, check_interval_s=30, retention_s=3 * 3600)


class Rig:
    """A shard, the rounds that the test begins, and a member that takes what the test says."""

    def __init__(self, kafka: Cluster, root: Path) -> None:
        self.world = OneShard(kafka, root)
        self._reader = CommittedReader(self.world.connection, self.world.topics.check, PREFIX + self.world.name)
        self.requests = Requests(lambda: self._reader.read(set(self.requests.lanes())))
        self.shard: Shard = self.world.driver(requests=self.requests)
        self.settler = Settler(self.shard, POLICY, carried=self.shard.carried)
        self.round_no, self.now_ms, self._ops = 0, NOW_MS, 0
        [self.half] = self.world.halves(b"body")
        self.world.prepare(self.shard, self.half, "g")

    def round(self) -> None:
        """The next one, in which the group is live; then what was taken is counted."""
        self.round_no, self.now_ms = self.round_no + 1, self.now_ms + 30_000
        self.settle_ops()
        for _ in self.settler.check_round(Tick(self.now_ms, self.round_no, self.now_ms, True), np.array([True])):
            pass
        self.settle_ops()

    def settle_ops(self) -> None:
        """What the job wrote to the op topic, read as the stream would bring it."""
        self.shard.count_taken(self.now_ms)
        for message in self.world.cluster.read_all(self.world.topics.op)[self._ops :]:
            self._ops += 1
            headers = dict(message.headers())
            kind = OpKind[headers["escrow-op"].decode()]
            told = np.frombuffer(message.value() or b"", "<i8").tolist() or [int(headers["escrow-half-offset"])]
            feed = self.world.feed_of(self.shard, np.zeros(0, HALF), self._ops_about(told), kind)
            self.settler.settle(feed, self.now_ms)

    @staticmethod
    def _ops_about(half_offsets: list[int]) -> Any:
        ops = np.zeros(len(half_offsets), OP)
        ops["half_offset"], ops["group_no"] = half_offsets, -1
        return ops

    def answer_unknown(self, group: str) -> None:
        """A member of this group says so, to a check."""
        ops = self._ops_about([self.half])
        ops["kind"], ops["via"], ops["group_no"] = int(OpKind.UNKNOWN), int(Via.CHECK), self.shard.store.group_no(group)
        self.shard.note_answers(ops)

    def take(self) -> None:
        """A member commits everything that is in the check topic."""
        records = self.asked()
        places = {record.partition(): record.offset() + 1 for record in records}
        group = PREFIX + self.world.name + "g"
        consumer = Consumer({"bootstrap.servers": self.world.cluster.bootstrap, "group.id": group})
        offsets = [TopicPartition(self.world.topics.check, partition, offset) for partition, offset in places.items()]
        consumer.commit(offsets=offsets, asynchronous=False)
        consumer.close()

    def asked(self) -> list[Any]:
        return self.world.cluster.read_all(self.world.topics.check)

    @property
    def word(self) -> int:
        return int(self.shard.table.get(np.array([self.half]))["word"][0])

    @property
    def count(self) -> int:
        return int(check_count_of(self.word))


@pytest.fixture
def rig(kafka: Cluster, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(kafka, tmp_path)
    yield made
    made._reader.close()
    made.world.close()


def test_a_member_that_lags_for_an_hour_is_asked_once_and_uses_up_no_attempt(rig: Rig) -> None:
    rig.round()
    rig.take()
    rig.round()  # its first request is counted: it has committed, and is known to come back for more
    rig.round()
    before = len(rig.asked())
    for _ in range(120):  # an hour
        rig.round()
    assert (rig.count, len(rig.asked())) == (1, before), "the request waits in Kafka: neither counted nor written again"
    assert state_of(rig.word) == State.PREPARED
    rig.take()
    rig.round()
    assert rig.count == 2
    rig.round()
    rig.round()
    assert state_of(rig.word) == State.DISCARDED_MAX, "asked as often as may be, and each time taken"
    assert len(rig.asked()) == before


def test_a_group_that_has_committed_nothing_is_asked_again_each_round_and_not_counted(rig: Rig) -> None:
    """Its member may have begun behind the request."""
    for _ in range(5):
        rig.round()
    assert (rig.count, len(rig.asked())) == (0, 5)
    rig.take()
    rig.round()
    assert rig.count == 1, "many requests that were taken in one round count once"


def test_a_half_that_nobody_takes_is_discarded_when_it_is_too_old(rig: Rig) -> None:
    rig.round()
    rig.take()
    rig.round()
    rig.round()
    rig.now_ms += POLICY.retention_s * 1000
    for _ in range(4):
        rig.round()
    assert (state_of(rig.word), rig.count) == (State.DISCARDED_EXPIRED, 1)


def test_an_answer_of_unknown_says_that_the_request_was_taken(rig: Rig) -> None:
    """Also where an earlier request of the partition was not, and nothing is committed."""
    rig.round()
    rig.answer_unknown("another group")
    rig.settle_ops()
    assert rig.count == 0
    rig.answer_unknown("g")
    rig.settle_ops()
    assert rig.count == 1
    rig.settle_ops()
    assert rig.count == 1


def test_no_batch_waits_for_a_check_topic_that_cannot_be_looked_at() -> None:
    nowhere = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    assert asking.ends_of(nowhere, "t") == {}
    target = Target(Topics(*"abcdefgh"), 0, "id", nowhere, 60_000)
    assert len(asking.places_of(target, Requested(frozenset({1}), {}))) == 0


def test_a_shard_goes_on_while_its_requests_are_looked_for_and_counts_them_when_they_are_found(rig: Rig) -> None:
    """The look may take Kafka a while: nothing of the shard waits for it, and no answer that comes meanwhile is lost."""
    looks: list[Callable[[], None]] = []
    rig.shard._locate = lambda target, requested, then: looks.append(lambda: then(asking.places_of(target, requested)))
    rig.round()
    [second] = rig.world.halves(b"second")
    rig.world.commit(rig.shard, [second])
    assert rig.world.bodies() == Counter([b"second"]), "released while nobody knows where the request lies"
    rig.answer_unknown("g")
    rig.settle_ops()
    assert rig.count == 0
    looks[0]()
    rig.settle_ops()
    assert rig.count == 1


def test_a_look_that_fails_leaves_requests_uncounted_and_the_next_round_asks_again(rig: Rig) -> None:
    def fails(_target: Target, _requested: Requested) -> Any:
        raise RuntimeError("an executor died")

    beside = Locating(fails)
    rig.shard._locate = beside
    rig.round()
    until(lambda: not rig.requests.wait)
    rig.shard._locate = locate_at_once
    rig.round()
    rig.take()
    rig.settle_ops()
    assert (rig.count, len(rig.asked())) == (1, 2)
    beside.close()


def test_a_request_that_cannot_be_delivered_does_not_keep_those_behind_it_from_being_counted(rig: Rig) -> None:
    """Kafka's offsets are in order: the first is given up when one behind it was handed over and is not ended."""
    first, second = rig.half, *rig.world.halves(b"second")
    rig.world.prepare(rig.shard, second, "g")
    rig.round()
    [partition] = {record.partition() for record in rig.asked()}
    lane, end = ("g", partition), max(record.offset() for record in rig.asked()) + 1

    async def deliver() -> None:
        prefix, passing_over = PREFIX + rig.world.name, {Place(0, first).number}
        checks = KafkaChecks(
            rig.world.connection,
            rig.world.topics,
            prefix,
            lambda _: False,
            lambda: NOW_MS,
            lapse_s=2,
            linger_s=60,
        )
        handed = list[int]()
        while not handed:
            handover = await checks.poll("g", "m", 1, 1000, 1.0, passing_over=passing_over)
            checks.was_handed_over(handover)
            handed = [request.half_offset for request in handover.requests]
        assert handed == [Place(0, second).number]
        [waits], membership = checks._queues["g"], checks._memberships["g"]
        assert membership.stands_in_the_way(waits, lambda _: False)
        assert not membership.stands_in_the_way(waits, lambda _: True), "what has ended needs no counting"
        while rig._reader.read({lane})[lane] < end:
            await checks.poll("g", "m", 1, 1000, 0.2, passing_over=passing_over)
        await checks.close()

    asyncio.run(deliver())
    rig.round()
    assert rig.count == 1


def test_requests_without_bodies_show_no_more_than_topic_key_and_place(rig: Rig) -> None:
    rig.shard.target = replace(rig.shard.target, check_bodies=False)
    [half] = rig.world.halves(b"secret", key=b"order 7", trace="abc")
    rig.world.prepare(rig.shard, half, "g")
    rig.round()
    [asked] = [record for record in rig.asked() if record.headers() and ("escrow-key", b"order 7") in record.headers()]
    assert asked.value() is None
    assert dict(asked.headers()) == {
        "escrow-group": b"g",
        "escrow-topic": rig.world.real.encode(),
        "escrow-key": b"order 7",
        "escrow-transaction-id": b"0-%d" % half,
        "escrow-half-partition": b"0",
        "escrow-half-offset": b"%d" % half,
        "escrow-check-count": b"0",
        "escrow-body": b"in-half-topic",
    }
