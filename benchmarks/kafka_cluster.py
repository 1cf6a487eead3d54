"""Who does the work on a Spark cluster: `python -m benchmarks.kafka_cluster`, part of `make bench-kafka`.

A broker, a standalone master and two workers of one core, and for each body size a driver in a process of its own. Once all is
warm (the executors have fetched jars and code from the driver), halves and their commits come from yet another process. Meanwhile
the driver is looked at:

    kafka.executors_releasing               executors whose tasks have released bytes
    kafka.executor_bytes_min_share          the least that one of them released, as a share of all (0.5 = even)
    kafka.driver_network_share              bytes through sockets of the driver's Java and Python, in and out, over the bytes of
                                            released bodies of 1 KiB. Sockets between the two of them are no network.
    kafka.driver_network_bytes_per_message  the same, for each message
    kafka.driver_memory_ratio_16k_over_1k   peak of the driver (Java's heap after a collection + Python's private memory) with
                                            bodies of 16 KiB over that with 1 KiB, as many of them
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import subprocess
import threading
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.kafka import REAL, await_commits, fill_halves, job, make_topics, settings_for, visible
from benchmarks.support import load, private_mib, report, scratch
from streaming.spark.session import make_run_directory, start_spark
from tests.support.kafka import kafka_cluster
from tests.support.spark_cluster import spark_cluster
from tests.support.tools import require_tool

WARM_UP = 4_000
LOOK_S = 0.1
COLLECT_EVERY = 10
BODIES = (1 << 10, 16 << 10)


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of one driver."""

    messages: int
    released_bytes: dict[str, int]  # by executor
    network_bytes: int
    heap_mib: float
    python_mib: float

    @property
    def memory_mib(self) -> float:
        return self.heap_mib + self.python_mib


class Sockets:
    """Bytes through the TCP sockets of some processes, as the kernel counts them. One that has gone counts as last seen."""

    def __init__(self, pids: set[int]) -> None:
        self._pids, self._bytes = pids, dict[str, int]()

    def look(self) -> None:
        listed = subprocess.run([require_tool("ss"), "-tinpHO"], capture_output=True, text=True, check=True).stdout
        mine = {}
        for line in listed.replace("[::ffff:127.0.0.1]", "127.0.0.1").splitlines():  # Java's name for the same
            words = line.split()
            if self._pids & {int(pid) for pid in re.findall(r"pid=(\d+)", line)}:
                counts = dict(re.findall(r"(bytes_acked|bytes_received):(\d+)", line))
                mine[words[3], words[4]] = sum(int(count) for count in counts.values())
        self._bytes.update({f"{here} {there}": count for (here, there), count in mine.items() if (there, here) not in mine})

    @property
    def total(self) -> int:
        return sum(self._bytes.values())


class Watch(threading.Thread):
    """Looks at the driver until it is told to end."""

    def __init__(self, spark: Any) -> None:
        super().__init__(daemon=True)
        self._java = spark.sparkContext._jvm.java.lang
        self.sockets = Sockets({os.getpid(), spark.sparkContext._gateway.proc.pid})
        self.sockets.look()
        self._before = self.sockets.total
        self._ended = threading.Event()
        self.heap_mib = self.python_mib = 0.0

    def run(self) -> None:
        looks = 0
        while not self._ended.wait(LOOK_S):
            self.sockets.look()
            self.python_mib = max(self.python_mib, private_mib())
            if looks % COLLECT_EVERY == 0:
                self._collect()
            looks += 1
        self.sockets.look()
        self._collect()

    def _collect(self) -> None:
        self._java.System.gc()
        used = self._java.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed()
        self.heap_mib = max(self.heap_mib, used / (1 << 20))

    def end(self) -> int:
        """Network bytes since it was made."""
        self._ended.set()
        self.join()
        return self.sockets.total - self._before


def drive(root: Path, bootstrap: str, spark_flags: list[str], body_bytes: int, messages: int) -> Seen:
    """A driver from start to end: warm up, then release `messages` and look."""
    flags = [*spark_flags, "sparkExecutorMemory=512MiB", "sparkDriverMemory=512MiB"]
    settings = settings_for(root, bootstrap, body_bytes, *flags)
    topics = make_topics(settings)
    run = make_run_directory(settings)
    spark: Any = start_spark(settings, run)
    try:
        with job(settings) as service, _fresh_process() as other:
            service.start(spark, run / "checkpoint")
            other.submit(fill_halves, bootstrap, topics, range(WARM_UP), body_bytes).result()
            await_commits(service, WARM_UP)
            before, watch = service.executors.released_bytes.copy(), Watch(spark)
            watch.start()
            other.submit(fill_halves, bootstrap, topics, range(WARM_UP, WARM_UP + messages), body_bytes).result()
            await_commits(service, WARM_UP + messages)
            network_bytes = watch.end()
            return Seen(messages, dict(service.executors.released_bytes - before), network_bytes, watch.heap_mib, watch.python_mib)
    finally:
        spark.stop()


def _fresh_process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka_cluster")
    parser.add_argument("--messages", type=int, default=100_000)
    args = parser.parse_args()
    print(load())
    seen = [_measure(body_bytes, args.messages) for body_bytes in BODIES]
    print(load())
    for body_bytes, one in zip(BODIES, seen, strict=True):
        memory = f"{one.heap_mib:.0f} MiB of heap, {one.python_mib:.0f} MiB of Python"
        print(f"{body_bytes} bytes: {one.released_bytes} by executor, {one.network_bytes} of network, {memory}")
    small, large = seen
    shares = [count / sum(small.released_bytes.values()) for count in small.released_bytes.values()]
    report(
        {
            "kafka.executors_releasing": len(small.released_bytes),
            "kafka.executor_bytes_min_share": min(shares),
            "kafka.driver_network_share": small.network_bytes / sum(small.released_bytes.values()),
            "kafka.driver_network_bytes_per_message": small.network_bytes / small.messages,
            "kafka.driver_memory_ratio_16k_over_1k": large.memory_mib / small.memory_mib,
        }
    )


def _measure(body_bytes: int, messages: int) -> Seen:
    with scratch() as root, kafka_cluster() as cluster, spark_cluster(2) as spark, _fresh_process() as driver:
        cluster.create_topic(REAL, 2)
        seen = driver.submit(drive, root, cluster.bootstrap, spark.flags, body_bytes, messages).result()
        assert visible(cluster.bootstrap, REAL) == WARM_UP + messages
        return seen


if __name__ == "__main__":
    main()
