"""Benchmark of the standby, with a real broker and real Spark, at the default lease settings: `make bench-kafka`.

A master releases a steady stream; a standby waits; the master's processes are killed (kill -9). The next master is the standby of
before, a new one waits beside it, and so on.

    kafka.takeover_s    from the kill to the first message that the standby released, the median
    kafka.takeover_s_max    the longest
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.support import load, report, spread
from tests.support.kafka import kafka_cluster
from tests.support.kafka_world import Job, KafkaWorld

TOPIC = "taken-over"
PARTITIONS = 2


@contextmanager
def stream(world: KafkaWorld) -> Iterator[None]:
    """Ten commits a second."""
    stopping = threading.Event()

    def work() -> None:
        number = 0
        while not stopping.wait(0.1):
            number += 1
            world.say(world.prepare(b"%d" % number, TOPIC, partition=number % PARTITIONS), "COMMIT")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def until_one_more(world: KafkaWorld, driver: Job) -> None:
    """Until a message is out that was not when this was called."""
    before = len(world.released(TOPIC))
    world.await_released(TOPIC, before + 1, [driver])


def takeovers(world: KafkaWorld, rounds: int) -> list[float]:
    """Seconds of each."""
    master, took = world.start("driver0"), list[float]()
    for number in range(1, rounds + 1):
        standby = world.start(f"driver{number}")
        assert standby.said("standby")
        until_one_more(world, master)
        master.kill()
        killed_s = time.perf_counter()
        until_one_more(world, standby)
        took.append(time.perf_counter() - killed_s)
        print(f"takeover {number}: {took[-1]:.1f} s", flush=True)
        master = standby
    return took


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka_takeover")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(load())
    with kafka_cluster() as cluster, KafkaWorld(cluster, PARTITIONS) as world:
        cluster.create_topic(TOPIC)
        with stream(world):
            took = takeovers(world, args.rounds)
    print(load())
    print(f"takeover, seconds: {spread(took)}")
    report({"kafka.takeover_s": statistics.median(took), "kafka.takeover_s_max": max(took)})


if __name__ == "__main__":
    main()
