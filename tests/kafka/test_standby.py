"""A second driver waits on the lease and takes over; the first, when it wakes up again, can write nothing."""

from __future__ import annotations

import os
import shutil
import signal

import pytest

from escrow.processes import session_members
from tests.support.kafka import Cluster
from tests.support.kafka_world import KafkaWorld, bodies


def freeze(pid: int, number: int) -> None:
    """Stop or continue a driver with all its processes."""
    for member in session_members(pid):
        os.kill(member, number)


@pytest.mark.timeout(900)
def test_67_a_standby_takes_over_and_the_frozen_master_can_write_nothing_when_it_wakes(kafka: Cluster) -> None:
    kafka.create_topic("handed-over")
    with KafkaWorld(kafka, 2) as world:
        first = world.start("first")
        for number in range(20):
            world.say(world.prepare(b"a%d" % number, "handed-over", partition=number % 2), "COMMIT")
        world.await_released("handed-over", 20)
        second = world.start("second")  # ready to wait
        assert second.said("standby")
        freeze(first.process.pid, signal.SIGSTOP)
        places = [world.prepare(b"b%d" % number, "handed-over", partition=number % 2) for number in range(20)]
        for place in places:
            world.say(place, "COMMIT")
        world.await_released("handed-over", 40, [second])
        freeze(first.process.pid, signal.SIGCONT)
        for number in range(20):
            world.say(world.prepare(b"c%d" % number, "handed-over", partition=number % 2), "COMMIT")
        arrived = world.await_released("handed-over", 60, [second])
        assert bodies(arrived) == bodies_of("abc")
        status = first.process.wait(120)
        assert status == 1, "the old master ends by itself"
        assert bodies(world.released("handed-over")) == bodies_of("abc")


def bodies_of(letters: str) -> dict[bytes, int]:
    return {b"%s%d" % (letter.encode(), number): 1 for letter in letters for number in range(20)}


@pytest.mark.timeout(900)
def test_64_a_lost_store_is_rebuilt_from_kafka_and_old_places_still_end(kafka: Cluster) -> None:
    kafka.create_topic("rebuilt")
    with KafkaWorld(kafka, 1) as world:
        job = world.start()
        places = [world.prepare(b"%d" % number, "rebuilt") for number in range(30)]
        for place in places[:10]:
            world.say(place, "COMMIT")
        for place in places[10:20]:
            world.say(place, "ROLLBACK")
        world.await_released("rebuilt", 10)
        job.kill()
        shutil.rmtree(job.directory)
        world.start("elsewhere")
        for place in places:
            world.say(place, "COMMIT")  # again, too late, and now
        arrived = world.await_released("rebuilt", 20)
        assert bodies(arrived) == {b"%d" % number: 1 for number in [*range(10), *range(20, 30)]}
