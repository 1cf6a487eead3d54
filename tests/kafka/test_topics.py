"""Escrow's own topics as somebody else has left them, on a real broker."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from sinks.errors import KafkaUnfit
from sinks.kafka import clients, contract, release
from streaming.errors import JobCannotStart
from tests.support.kafka import Cluster
from tests.support.one_shard import OneShard

RETENTION_MS = 1_000_000
NAMES = ("half", "op", "redo", "check", "discard", "lease", "ends", "keys")
_NUMBERS = itertools.count(1)


class OwnTopics:
    def __init__(self, cluster: Cluster) -> None:
        self.connection, prefix = clients.Connection(cluster.bootstrap), f"topics{next(_NUMBERS)}"
        self.topics = contract.Topics(*(f"{prefix}.{name}" for name in NAMES))
        self.admin = self.connection.admin()

    def ensure(self, **more: Any) -> None:
        given = {"partitions": 1, "replication": 1, "min_insync": 1, "retention_ms": RETENTION_MS} | more
        clients.ensure_topics(self.connection, self.topics, **given)

    def set(self, topic: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        self.admin.incremental_alter_configs([resource])[resource].result(60)

    def get(self, topic: str, name: str) -> str:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        found: str = self.admin.describe_configs([resource])[resource].result(60)[name].value
        return found


@pytest.fixture
def own(kafka: Cluster) -> OwnTopics:
    made = OwnTopics(kafka)
    made.ensure()
    return made


@pytest.mark.parametrize(
    ("which", "name", "value"),
    [
        ("half", "retention.ms", str(2 * RETENTION_MS - 1)),
        ("op", "retention.bytes", "1000000"),
        ("redo", "cleanup.policy", "compact"),
        ("redo", "message.timestamp.type", "CreateTime"),
        ("check", "cleanup.policy", "compact,delete"),
        ("discard", "retention.ms", "1000"),
    ],
)
def test_a_topic_that_would_lose_what_is_needed_is_refused_and_repaired_with_consent(
    own: OwnTopics, which: str, name: str, value: str
) -> None:
    topic = getattr(own.topics, which)
    good = own.get(topic, name)
    own.set(topic, name, value)
    with pytest.raises(KafkaUnfit, match=rf"{topic} has {name}={value}: .*--add-config {name}={good}.*kafkaRepairTopics"):
        own.ensure()
    assert own.get(topic, name) == value, "nothing is changed without consent"
    own.ensure(repair=True)
    assert own.get(topic, name) == good
    own.ensure()


def test_a_raised_reserved_time_is_told_before_bodies_go(own: OwnTopics) -> None:
    with pytest.raises(KafkaUnfit, match=f"retention.ms={2 * RETENTION_MS}: it is kept for less than fileReservedTime asks for"):
        own.ensure(retention_ms=2 * RETENTION_MS)
    own.ensure(retention_ms=2 * RETENTION_MS, repair=True)
    topics = own.topics
    kept = {name: int(own.get(name, "retention.ms")) for name in (topics.half, topics.op, topics.redo, topics.discard)}
    assert set(kept.values()) == {4 * RETENTION_MS}
    own.ensure(retention_ms=RETENTION_MS)  # kept for longer than needed does no harm


def test_topics_that_are_kept_for_ever_are_fine(own: OwnTopics) -> None:
    own.set(own.topics.half, "retention.ms", "-1")
    own.ensure()


# --- topics that were made anew -----------------------------------------------------------------------------------------
def ensure(shard: OneShard) -> None:
    clients.ensure_topics(shard.connection, shard.topics, partitions=1, replication=1, min_insync=1, retention_ms=10**9)


@pytest.mark.parametrize("directory", ["same", "fresh"])
@pytest.mark.parametrize("which", ["half", "op"])
def test_a_topic_that_was_made_anew_is_told_by_its_id_however_far_it_has_grown(shard: OneShard, which: str, directory: str) -> None:
    driver = shard.driver("same")
    shard.commit(driver, shard.halves(b"a", b"b"))
    driver.close(clean=True)
    shard.drivers.clear()
    topic = getattr(shard.topics, which)
    shard.cluster.delete_topic(topic)
    ensure(shard)
    shard.halves(*[b"new"] * 5)
    with pytest.raises(JobCannotStart, match=rf"topic {topic} was deleted and made anew \(its id was .*together"):
        shard.driver(directory)
    assert shard.bodies() == Counter([b"a", b"b"])


def test_a_redo_topic_that_was_made_anew_is_told_by_its_id(shard: OneShard) -> None:
    driver = shard.driver("same")
    shard.commit(driver, shard.halves(b"a"))
    driver.close(clean=True)
    shard.drivers.clear()
    shard.cluster.delete_topic(shard.topics.redo)
    ensure(shard)
    with pytest.raises(JobCannotStart, match=f"topic {shard.topics.redo} was deleted and made anew"):
        shard.driver("same")


def test_topics_that_were_all_made_anew_begin_anew_in_an_empty_directory(shard: OneShard) -> None:
    driver = shard.driver("same")
    shard.commit(driver, shard.halves(b"a"))
    driver.close(clean=True)
    shard.drivers.clear()
    for topic in (shard.topics.half, shard.topics.op, shard.topics.redo):
        shard.cluster.delete_topic(topic)
    ensure(shard)
    release._owners.clear()
    fresh = shard.driver("fresh")
    shard.commit(fresh, shard.halves(b"b"))
    assert shard.bodies() == Counter([b"a", b"b"])
