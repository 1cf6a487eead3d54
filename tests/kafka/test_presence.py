"""Who can be asked, as the driver sees it: also while the broker goes away and comes back."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer

from sinks.kafka.clients import Connection
from streaming.kafka.checks import presence
from streaming.kafka.checks.presence import GroupsAlive
from tests.support.endpoint import until
from tests.support.kafka import Cluster

PREFIX = "presence-check-"


@contextlib.contextmanager
def member(kafka: Cluster, group: str) -> Iterator[None]:
    options = {"bootstrap.servers": kafka.bootstrap, "group.id": PREFIX + group, "session.timeout.ms": 6000, "log_level": 2}
    consumer = Consumer({**options, "reconnect.backoff.max.ms": 1000})
    consumer.subscribe(["presence"])
    leaving = threading.Event()

    def poll() -> None:
        while not leaving.is_set():
            consumer.poll(0.2)
        consumer.close()

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        leaving.set()
        thread.join()


def test_a_group_with_a_member_is_live_also_when_the_broker_was_away(
    breakable_kafka: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "ASK_S", 2.0)  # a broker that is away is waited for to no end
    kafka = breakable_kafka
    kafka.create_topic("presence")
    alive = GroupsAlive(Connection(kafka.bootstrap), PREFIX)

    def of(*groups: str) -> list[bool] | None:
        found = alive.of(groups)
        return None if found is None else list(found)

    assert of() == []
    assert of("present", "absent") == [False, False]
    with member(kafka, "present"):
        until(lambda: of("present", "absent") == [True, False])
        kafka.brokers[0].kill()
        until(lambda: of("present", "absent") is None)  # out of reach: nobody knows who is there
        kafka.brokers[0].start()
        kafka.wait()
        until(lambda: of("present", "absent") == [True, False])
    until(lambda: of("present") == [False])


def join(kafka: Cluster, group: str) -> Consumer:
    """A consumer that has its partition."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": PREFIX + group, "log_level": 2})
    consumer.subscribe(["joined"])
    while not consumer.assignment():
        consumer.poll(0.02)
    return consumer


def test_a_member_that_has_just_joined_is_seen_by_the_next_round(breakable_kafka: Cluster) -> None:
    """Also where another round has asked a moment before: with that one's answer the group would be held for an interval."""
    breakable_kafka.create_topic("joined")
    join(breakable_kafka, "first").close()  # the topic of offsets is there: the next one joins within a moment
    alive = GroupsAlive(Connection(breakable_kafka.bootstrap), PREFIX)
    assert alive.of(["joined"]) == [False]
    consumer = join(breakable_kafka, "joined")
    assert alive.of(["joined"]) == [True]
    consumer.close()
