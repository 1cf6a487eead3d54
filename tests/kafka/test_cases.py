"""Cases of the specification (§7) that do not need HTTP, in Kafka mode: plain Kafka clients on one side, the real job on the other.

The job's clock is moved by the test; stored times are the broker's. `settled` is the barrier: a half that is committed last and
comes out says that everything before it in its shard was settled.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaConsumer

from tests.support.kafka import Cluster
from tests.support.kafka_world import KafkaWorld, Place

ROUND_S = 31

#: The first test waits for Kafka, Java and Spark to start.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def world(kafka: Cluster) -> Iterator[KafkaWorld]:
    with KafkaWorld(kafka, 1, ["transactionCheckMax=2", "kafkaRetryInterval=1s"]) as world:
        for topic in ("cases", "barrier"):
            kafka.create_topic(topic)
        world.start()
        yield world


def settled(world: KafkaWorld) -> None:
    """Everything that was written before is settled."""
    place = world.prepare(b"barrier", "barrier")
    world.say(place, "COMMIT")
    world.await_that(lambda: places_in(world, "barrier"), lambda found: place in found)


def places_in(world: KafkaWorld, topic: str) -> Counter[Place]:
    """Transactions that came out of a topic, by the header that was added."""
    return Counter(place_of(message) for message in world.released(topic))


def place_of(message: Any) -> Place:
    partition, _, offset = dict(message.headers())["escrow-transaction-id"].decode().partition("-")
    return int(partition), int(offset)


def checks_of(world: KafkaWorld, place: Place) -> list[Any]:
    return [message for message in world.cluster.read_all(world.check) if place_of(message) == place]


@contextlib.contextmanager
def member(world: KafkaWorld, group: str) -> Iterator[None]:
    """A live member of a producer group: a consumer of the check topic in the group's own consumer group. It never answers."""
    consumer = KafkaConsumer(world.check, bootstrap_servers=world.cluster.bootstrap, group_id=world.check_prefix + group)
    joined, leaving = threading.Event(), threading.Event()

    def poll() -> None:
        while not leaving.is_set():
            consumer.poll(500)
            if consumer.assignment():
                joined.set()
        consumer.close()

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        assert joined.wait(240)
        yield
    finally:
        leaving.set()
        thread.join(60)


def next_round(world: KafkaWorld) -> None:
    world.advance(ROUND_S)


def test_5_6_27_28_29_33_34_35_52_the_first_end_in_the_op_partition_wins(world: KafkaWorld) -> None:
    said = {
        "unknown": ["UNKNOWN"],
        "rolled back": ["ROLLBACK"],
        "twice": ["COMMIT", "COMMIT"],
        "late rollback": ["COMMIT", "ROLLBACK"],
        "late commit": ["ROLLBACK", "COMMIT"],
        "from a check": ["UNKNOWN", "COMMIT"],
    }
    places = {name: world.prepare(name.encode(), "cases") for name in said}
    wrong = world.prepare(b"wrong group", "cases", group="Aa")
    waits = [world.send_op(places[name], kind) for name, kinds in said.items() for kind in kinds]
    waits.append(world.send_op(wrong, "COMMIT", group="BB"))
    waits.append(world.send_op((0, 1_000_000_000), "COMMIT"))  # no such half
    waits.append(world.producer.send(world.op, b"?", partition=0))  # no headers at all
    waits.append(world.producer.send(world.op, b"", partition=0, headers=[("escrow-op", b"EXPLODE"), ("escrow-half-offset", b"x")]))
    waits.append(world.producer.send(world.half, b"a half without a group", partition=0))
    for wait in waits:
        wait.get(60)
    settled(world)
    released = places_in(world, "cases")
    assert released == Counter(places[name] for name in ("twice", "late rollback", "from a check"))
    world.say(wrong, "COMMIT", group="Aa")  # still pending
    world.await_that(lambda: places_in(world, "cases"), lambda found: wrong in found)


def test_11_16_20_31_44_45_a_due_half_is_asked_about_once_a_round_if_somebody_can_be_asked(world: KafkaWorld) -> None:
    asked = world.prepare(b"asked", "cases", group="present", key=b"order 7", escrow_born_time="1700000000000", trace="abc")
    held = world.prepare(b"held", "cases", group="absent")
    immune = world.prepare(b"immune", "cases", group="present", escrow_immunity="3000")
    with member(world, "present"):
        next_round(world)
        (check,) = world.await_that(lambda: checks_of(world, asked), bool)
        settled(world)
        assert len(checks_of(world, asked)) == 1
        assert not checks_of(world, held)
        assert not checks_of(world, immune)
        headers = dict(check.headers())
        assert (check.key(), check.value(), headers["escrow-key"], headers["trace"]) == (b"present", b"asked", b"order 7", b"abc")
        assert (headers["escrow-topic"], headers["escrow-check-count"]) == (b"cases", b"0")
        assert headers["escrow-born-time"] == b"1700000000000"
        world.say(asked, "COMMIT", group="present", via="check")
        world.await_that(lambda: places_in(world, "cases"), lambda found: found[asked] == 1)
    with member(world, "absent"):
        next_round(world)
        world.await_that(lambda: checks_of(world, held), bool)
        settled(world)
        assert len(checks_of(world, asked)) == 1, "ended: never asked again"
    world.say(held, "ROLLBACK", group="absent", via="check")
    world.say(immune, "ROLLBACK", group="present")
    settled(world)


def test_10_30_47_61_unknown_for_ever_is_asked_checkmax_times_and_discarded_once_and_can_be_resumed(world: KafkaWorld) -> None:
    place = world.prepare(b"nobody knows", "cases", group="unsure", key=b"k")

    def discards() -> list[Any]:
        return [message for message in world.cluster.read_all(world.discard) if place_of(message) == place]

    with member(world, "unsure"):
        rounds = 0
        while not discards():
            rounds += 1
            assert rounds < 30
            next_round(world)
            settled(world)
        assert len(checks_of(world, place)) == 2
    (discard,) = discards()
    assert (discard.key(), discard.value(), dict(discard.headers())["escrow-reason"]) == (b"k", b"nobody knows", b"check_max")
    world.say(place, "COMMIT", group="unsure")
    settled(world)
    assert place not in places_in(world, "cases"), "a commit after the discard is refused"
    world.say(place, "RESUME", group=None, via="operator")
    world.say(place, "COMMIT", group="unsure")
    world.await_that(lambda: places_in(world, "cases"), lambda found: found[place] == 1)
    assert len(discards()) == 1


def test_a_release_that_kafka_refuses_waits_on_a_list_and_the_rest_goes_on(world: KafkaWorld) -> None:
    world.cluster.create_topic("small", 1, max_message_bytes="2000")
    refused = {
        "missing": world.prepare(b"missing", "not-yet-there"),
        "large": world.prepare(b"x" * 5000, "small"),
        "partition": world.prepare(b"partition", "cases", escrow_partition="7"),
    }
    fine = [world.prepare(b"fine %d" % number, "small") for number in range(20)]
    for place in [*refused.values(), *fine]:
        world.say(place, "COMMIT")
    world.await_that(lambda: places_in(world, "small"), lambda found: len(found) == len(fine))
    settled(world)
    assert places_in(world, "small") == Counter(fine)
    world.cluster.create_topic("not-yet-there")
    admin = world.cluster.admin()
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    larger = ConfigEntry("max.message.bytes", "100000", incremental_operation=AlterConfigOpType.SET)
    for done in admin.incremental_alter_configs(
        [ConfigResource(ResourceType.TOPIC, "small", incremental_configs=[larger])]
    ).values():
        done.result(60)
    world.advance(2)
    world.await_that(lambda: places_in(world, "not-yet-there"), lambda found: found == Counter([refused["missing"]]))
    world.await_that(lambda: places_in(world, "small"), lambda found: found == Counter([*fine, refused["large"]]))
