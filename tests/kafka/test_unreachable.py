"""A real topic whose only broker dies, in the middle of a transaction: its messages are set aside, everything else goes on."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka.admin import NewTopic

from sinks.kafka import release
from sinks.kafka.task import Superseded
from sinks.kafka.transaction import Attempt
from tests.support.kafka import Cluster, kafka_cluster
from tests.support.one_shard import NOW_MS, OneShard

pytestmark = pytest.mark.timeout(600)
SICK_BROKER = 3
BYTES_MAX = 1 << 27


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    with kafka_cluster(3) as cluster:
        yield cluster


@pytest.fixture
def shard(three: Cluster, tmp_path: Path) -> Iterator[OneShard]:
    made = OneShard(three, tmp_path)
    yield made
    made.close()
    release._owners.clear()


def until(condition: Any, what: str) -> None:
    end = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.2)


def test_a_topic_on_a_dead_broker_holds_its_own_messages_only(
    shard: OneShard, three: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    sick, admin = f"{shard.name}.sick", three.admin()
    real = f"{shard.name}.copied"
    admin.create_topics([NewTopic(real, 1, 3)])[real].result(60)
    admin.create_topics([NewTopic(sick, num_partitions=1, replica_assignment=[[SICK_BROKER]])])[sick].result(60)
    driver = shard.driver()
    shard.commit(driver, shard.halves(b"warm", topic=real))

    # The broker dies when messages of the transaction are with it, so Kafka cannot end the transaction there.
    first = shard.halves(b"s0", b"s1", topic=sick, key=b"a")
    fine = shard.halves(b"f0", b"f1", topic=real, key=b"a")
    produce, killed = Attempt._release, threading.Event()

    def die_within(attempt: Any, half_offsets: list[int], halves: Any) -> None:
        if not killed.is_set():
            killed.set()
            produce(attempt, half_offsets[:1], halves)
            assert attempt.owner.producer.flush(30) == 0
            three.brokers[SICK_BROKER - 1].kill()
            produce(attempt, half_offsets[1:], halves)
        else:
            produce(attempt, half_offsets, halves)

    monkeypatch.setattr(Attempt, "_release", die_within)
    shard.commit(driver, [*first, *fine])
    assert shard.bodies(real) == Counter([b"warm", b"f0", b"f1"])
    assert list(driver.store.undeliverable) == first
    assert driver.target.generation == 1, "the transactional id is held by the dead broker's partition"

    # Later batches do not touch the topic, and nobody overtakes.
    later = shard.halves(b"s2", topic=sick, key=b"a")
    more = shard.halves(b"f2", topic=real, key=b"a")
    shard.commit(driver, [*later, *more])
    assert shard.bodies(real)[b"f2"] == 1
    assert list(driver.store.undeliverable) == [*first, *later]
    until(lambda: admin.list_topics(sick, timeout=10).topics[sick].partitions[0].leader < 0, "the broker is given up")
    driver.try_again(sick, NOW_MS, BYTES_MAX)
    assert list(driver.store.undeliverable) == [*first, *later]
    assert driver.target.generation == 1, "a topic without a leader does not become part of a transaction"

    # Another driver takes over, under the id in use.
    release._owners.clear()
    other = shard.driver("other")
    assert (other.target.generation, list(other.store.undeliverable)) == (1, [*first, *later])
    with pytest.raises(Superseded):
        shard.commit(driver, shard.halves(b"late", topic=real))

    three.brokers[SICK_BROKER - 1].start()
    three.wait()
    release._owners.clear()
    other.try_again(sick, NOW_MS, BYTES_MAX)
    assert len(other.store.undeliverable) == 0
    arrived = three.read_all(sick)
    assert [message.value() for message in arrived] == [b"s0", b"s1", b"s2"]
    assert np.diff([message.offset() or 0 for message in arrived]).min() > 0
    assert shard.bodies(real) == Counter([b"warm", b"f0", b"f1", b"f2"])
