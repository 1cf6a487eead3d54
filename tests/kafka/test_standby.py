"""A second driver waits on the lease and takes over; the first, when it wakes up again, can write nothing. And a broker goes
away for a while."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator

import pytest

from runtime.processes import session_members
from tests.support.kafka import Cluster
from tests.support.kafka_world import DEADLINE_S, Job, KafkaWorld, bodies

TOPIC = "handed-over"
AWAY_S = 10.0


def freeze(pid: int, number: int) -> None:
    """Stop or continue a driver with all its processes."""
    for member in session_members(pid):
        os.kill(member, number)


def commit_some(world: KafkaWorld, letter: str) -> None:
    places = [world.prepare(b"%s%d" % (letter.encode(), number), TOPIC, partition=number % 2) for number in range(20)]
    for place in places:
        world.say(place, "COMMIT")


def bodies_of(letters: str) -> dict[bytes, int]:
    return {b"%s%d" % (letter.encode(), number): 1 for letter in letters for number in range(20)}


def terms_in(world: KafkaWorld) -> dict[int, list[int]]:
    """Of what was written to each redo partition, in its order: the term of its writer."""
    found: dict[int, list[int]] = {}
    for message in world.cluster.read_all(world.redo):
        kind = dict(message.headers())["escrow-redo"]
        if kind in (b"claim", b"marker"):
            text = message.value() if kind == b"claim" else message.value()[160:]
            found.setdefault(message.partition(), []).append(json.loads(text)["term"])
    return found


@pytest.fixture(scope="module")
def world(breakable_kafka: Cluster) -> Iterator[KafkaWorld]:
    breakable_kafka.create_topic(TOPIC)
    with KafkaWorld(breakable_kafka, 2) as made:
        yield made


@pytest.fixture(scope="module")
def successor(world: KafkaWorld) -> Job:
    """A driver that has taken over from one that was frozen, and is asleep in the middle of its work."""
    first = world.start("first")
    commit_some(world, "a")
    world.await_released(TOPIC, 20)
    second = world.start("second")  # ready to wait
    assert second.said("standby")
    freeze(first.process.pid, signal.SIGSTOP)
    commit_some(world, "b")
    world.await_released(TOPIC, 40, [second])
    return second


@pytest.mark.timeout(900)
def test_a_standby_takes_over_and_the_frozen_master_can_write_nothing_when_it_wakes_67(world: KafkaWorld, successor: Job) -> None:
    first = world.jobs[0]
    freeze(first.process.pid, signal.SIGCONT)
    commit_some(world, "c")
    assert bodies(world.await_released(TOPIC, 60, [successor])) == bodies_of("abc")
    assert first.process.wait(120) == 1, "the old master ends by itself"
    assert bodies(world.released(TOPIC)) == bodies_of("abc")
    for terms in terms_in(world).values():
        assert terms == sorted(terms), "the old master wrote after the new one's claim"
        assert set(terms) == {1, 2}


@pytest.mark.timeout(900)
def test_the_job_goes_on_when_its_broker_was_away_and_loses_nothing(world: KafkaWorld, successor: Job) -> None:
    """For longer than the lease: the driver may end, and is started again as `escrow run` does."""
    (broker,) = world.cluster.brokers
    before = world.released(TOPIC)
    commit_some(world, "d")
    broker.kill()  # in the middle of it
    time.sleep(AWAY_S)  # what is waited for is that nothing happens
    broker.start()
    world.cluster.wait()
    commit_some(world, "e")
    end = time.monotonic() + DEADLINE_S
    while len(world.released(TOPIC)) < len(before) + 40:
        if not world.jobs[-1].alive:
            world.start("second", wait=False)
        assert time.monotonic() < end, world.jobs[-1].tail()
        time.sleep(0.2)
    assert bodies(world.released(TOPIC)) == {**bodies(before), **bodies_of("de")}
    told = "".join(job.tail() for job in world.jobs[1:])
    assert "given it to another driver" not in told, "there was no other one"
