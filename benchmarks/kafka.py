"""Benchmark of Kafka mode, with a real broker and real Spark: `make bench-kafka`. Ratios within one run, on the same cores.

copy      Spark alone: Kafka source → Kafka sink, at least once, as it comes
release   Escrow: halves and commits through the job, exactly once, until all may be seen by read_committed consumers
tuned     with `--tuned`: the copy, its source with the options that Escrow gives its own (streaming/kafka/reading/records.py, POLL)

All begin with a new query and a whole backlog of the same messages (key, 1 KiB, a header) in as many partitions, uncompressed,
acknowledged by all replicas (the default of both clients), and are timed until the last message is in Kafka. Each has a Spark of
its own, in a process with the same settings, as they would run: what Java compiles for the one makes the other slower. They take
turns on the same cores, each first in its turn, and what one has written is gone before the next begins; the first two rounds warm
Java and are not counted. A backlog is long enough that the start of a query counts for little: with a quarter of it Java is busy
compiling for a tenth of the release's time: planning and offsets, which a job that runs for months has behind it.

    kafka.release_over_copy          messages a second of the release over those of the copy, medians
    kafka.release_over_tuned_copy    with `--tuned`: the same, over the tuned copy
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession

from benchmarks.support import load, report, scratch, spread
from runtime.settings import Settings
from runtime.settings import load as load_settings
from sinks.kafka import clients, contract
from streaming.kafka.reading.records import POLL
from streaming.kafka.service import KafkaJobService
from streaming.spark.session import make_run_directory, start_spark
from tests.support.kafka import Cluster, connector_dir, kafka_cluster

PARTITIONS = 2
#: Java needs that many of that length to be warm (docs/performance.md).
WARM_UPS = 2
BODY_BYTES = 1024
REAL = "bench.real"
TRACE = ("trace", b"abc")
#: Halves and ops are the same in every round; what the job makes of them is each round's own.
SHARED = {"Half": "bench.half", "Op": "bench.op"}
OWN = ("Redo", "Check", "Discard", "Lease", "Ends", "Keys")


def settings_for(root: Path, bootstrap: str, number: int | str, *more: str) -> Settings:
    flags = [
        f"dataDir={root / f'data{number}'}", "mode=kafka", f"kafkaBootstrapServers={bootstrap}", "kafkaReplication=1",
        "kafkaMinInsync=1", f"kafkaPartitions={PARTITIONS}", f"kafkaJarsDir={connector_dir()}",
        *(f"kafka{name}Topic={topic}" for name, topic in SHARED.items()),
        *(f"kafka{name}Topic=bench.{name.lower()}.{number}" for name in OWN),
        f"kafkaTransactionalIdPrefix=bench{number}-", f"kafkaLeaseGroup=bench{number}", *more,
    ]  # fmt: skip
    return load_settings(None, flags, {})


def make_topics(settings: Settings) -> contract.Topics:
    """Escrow's own, as the job would make them."""
    topics = contract.Topics(**settings.kafka_topics())
    clients.ensure_topics(
        clients.Connection(**settings.kafka_values()),
        topics,
        partitions=PARTITIONS,
        replication=1,
        min_insync=1,
        retention_ms=settings.retention_ms,
    )
    return topics


def fill(bootstrap: str, topic: str, numbers: range, headers: list[tuple[str, bytes]], body_bytes: int = 0) -> None:
    """Message n to partition n mod PARTITIONS; without a body it is an op and says which half it is about."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    body = os.urandom(body_bytes)
    for number in numbers:
        more = [] if body else [("escrow-half-offset", b"%d" % (number // PARTITIONS))]
        while True:
            try:
                producer.produce(topic, body, b"%d" % number, partition=number % PARTITIONS, headers=[*headers, *more])
                break
            except BufferError:
                producer.poll(0.5)
    assert producer.flush(600) == 0


def fill_halves(bootstrap: str, topics: contract.Topics, numbers: range, body_bytes: int) -> None:
    """Halves for REAL, then their commits."""
    group = ("escrow-group", b"bench")
    fill(bootstrap, topics.half, numbers, [group, ("escrow-topic", REAL.encode()), TRACE], body_bytes)
    fill(bootstrap, topics.op, numbers, [group, ("escrow-op", b"COMMIT")])


def visible(bootstrap: str, topic: str) -> int:
    """Messages that a read_committed consumer sees."""
    options = {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False, "log_level": 2}
    consumer = Consumer({**options, "isolation.level": "read_committed", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found, left = 0, PARTITIONS
    while left:
        for message in consumer.consume(10_000, timeout=1.0):
            found += message.error() is None
            left -= message.error() is not None
    consumer.close()
    return found


def copy(spark: SparkSession, bootstrap: str, root: Path, name: str, source: Mapping[str, str]) -> float:
    """Seconds of Spark's own copy of `bench.in`."""
    common = {"kafka.bootstrap.servers": bootstrap}
    reader = spark.readStream.format("kafka").options(
        **common, **source, subscribe="bench.in", startingOffsets="earliest", includeHeaders="true"
    )
    rows = reader.load().select("key", "value", "headers", "partition")
    started_s = time.perf_counter()
    writer = rows.writeStream.format("kafka").options(**common, topic=copied(name), checkpointLocation=str(root / f"copy{name}"))
    query = writer.option("includeHeaders", "true").trigger(availableNow=True).start()
    query.awaitTermination()
    return time.perf_counter() - started_s


def copied(name: str) -> str:
    """The topic a copy goes to."""
    return f"bench.copy.{name}"


@contextmanager
def job(settings: Settings) -> Iterator[KafkaJobService]:
    service = KafkaJobService(settings)
    service.take_over()
    try:
        yield service
    finally:
        service.stop()


def await_commits(service: KafkaJobService, count: int) -> None:
    look_s = 0.0
    while sum(part.shard.marker.totals["commits"] for part in list(service.parts.values())) < count:
        if time.monotonic() > look_s:  # asks Java: fifty times a second that was most of the driver's work
            look_s = time.monotonic() + 1.0
            failure = service.failure()
            assert failure is None, failure
        time.sleep(0.02)


def release(spark: SparkSession, bootstrap: str, root: Path, number: int, count: int) -> float:
    """Seconds of Escrow, from the start of the query until all are released and settled."""
    settings = settings_for(root, bootstrap, number)
    with job(settings) as service:
        started_s = time.perf_counter()
        service.start(spark, make_run_directory(settings) / "checkpoint")
        await_commits(service, count)
        return time.perf_counter() - started_s


class Side:
    """A process with a Spark of its own, which does what it is told and answers how long that took."""

    def __init__(self, name: str, root: Path, bootstrap: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(name, root, bootstrap, other), daemon=False)
        self._process.start()
        other.close()

    def took_s(self, work: Callable[..., float], *arguments: object) -> float:
        self._pipe.send((work, arguments))
        return float(self._pipe.recv())  # EOFError: it has died, and has said why

    def close(self) -> None:
        self._pipe.close()
        self._process.join()


def _serve(name: str, root: Path, bootstrap: str, pipe: Connection) -> None:
    # A data directory of its own: each start of a job empties its scratch.
    settings = settings_for(root, bootstrap, f"-{name}")
    spark: Any = start_spark(settings, make_run_directory(settings))
    try:
        while True:
            work, arguments = pipe.recv()
            pipe.send(work(spark, bootstrap, root, *arguments))
    except EOFError:
        pass
    finally:
        spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka")
    parser.add_argument("--messages", type=int, default=1_200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tuned", action="store_true", help="measure the copy with our source's options as well")
    args = parser.parse_args()
    print(load())
    with scratch() as root, kafka_cluster() as cluster:
        figures = _measure(root, cluster, args.messages, args.rounds, tuned=args.tuned)
    print(load())
    report(figures)


def remove(cluster: Cluster, topic: str) -> None:
    """Until its files are gone: else the disk would be busy with what one side has written while the next one is timed."""
    cluster.delete_topic(topic)
    while any(cluster.directory.glob(f"**/{topic}-*")):
        time.sleep(0.1)


def _measure(root: Path, cluster: Cluster, messages: int, rounds: int, *, tuned: bool) -> dict[str, float]:
    cluster.create_topic("bench.in", PARTITIONS)
    fill(cluster.bootstrap, "bench.in", range(messages), [TRACE], BODY_BYTES)
    fill_halves(cluster.bootstrap, make_topics(settings_for(root, cluster.bootstrap, "-fill")), range(messages), BODY_BYTES)
    rates: dict[str, list[float]] = {kind: [] for kind in ("copy", "release", *(["tuned"] if tuned else []))}
    with ExitStack() as stack:
        sides = {kind: stack.enter_context(closing(Side(kind, root, cluster.bootstrap))) for kind in rates}
        for number in range(WARM_UPS + rounds):
            work: dict[str, tuple[str, Callable[..., float], tuple[object, ...]]] = {
                "copy": (copied(f"plain{number}"), copy, (f"plain{number}", {})),
                "tuned": (copied(f"tuned{number}"), copy, (f"tuned{number}", POLL)),
                "release": (REAL, release, (number, messages)),
            }
            # Nobody has the advantage of his place.
            order = [list(rates)[(number + place) % len(rates)] for place in range(len(rates))]
            for kind in order:
                topic, function, arguments = work[kind]
                cluster.create_topic(topic, PARTITIONS)
                rates[kind].append(messages / sides[kind].took_s(function, *arguments))
                assert visible(cluster.bootstrap, topic) == messages
                remove(cluster, topic)
            told = ", ".join(f"{kind} {rates[kind][-1]:.0f}/s" for kind in order)
            print(f"round {number}: {told}{' (warm-up)' if number < WARM_UPS else ''}", flush=True)
    counted = {kind: values[WARM_UPS:] for kind, values in rates.items()}
    for kind, values in counted.items():
        print(f"{kind}/s: {spread(values)}")
    median = {kind: statistics.median(values) for kind, values in counted.items()}
    names = {"copy": "kafka.release_over_copy", "tuned": "kafka.release_over_tuned_copy"}
    return {name: median["release"] / median[kind] for kind, name in names.items() if kind in median}


if __name__ == "__main__":
    main()
