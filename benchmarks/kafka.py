"""Benchmark of Kafka mode, with a real broker and real Spark: `make bench-kafka`. Ratios within one run, on the same cores.

copy      Spark alone: Kafka source → Kafka sink, the same 1 KiB messages, at least once
release   Escrow: halves and commits of the same messages through the job, exactly once, until all may be seen by read_committed
          consumers

    kafka.release_over_copy    messages a second of the release over those of the copy, medians of alternating runs
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec
from pyspark.sql import SparkSession

from benchmarks.support import load, report, scratch, spread
from escrow.settings import Settings
from escrow.settings import load as load_settings
from streaming.kafka_service import KafkaJobService
from streaming.session import make_run_directory, start_spark
from tests.support.kafka import Cluster, connector_dir, kafka_cluster

BODY = os.urandom(1024)
PARTITIONS = 2
TOPICS = {name: f"bench.{name.lower()}" for name in ("Half", "Op", "Redo", "Check", "Discard", "Lease")}


def settings_for(root: Path, cluster: Cluster, number: int | str) -> Settings:
    flags = [
        f"dataDir={root / f'data{number}'}", "mode=kafka", f"kafkaBootstrapServers={cluster.bootstrap}", "kafkaReplication=1",
        "kafkaMinInsync=1", f"kafkaPartitions={PARTITIONS}", f"kafkaJarsDir={connector_dir()}",
        *(f"kafka{name}Topic={topic}.{number}" for name, topic in TOPICS.items()),
        f"kafkaTransactionalIdPrefix=bench{number}-", f"kafkaLeaseGroup=bench{number}",
    ]  # fmt: skip
    return load_settings(None, flags, {})


def fill(cluster: Cluster, topic: str, count: int, headers: list[tuple[str, bytes]], value: bytes) -> None:
    """`count` messages, the n-th to partition n mod PARTITIONS; an op also says which half it is about."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    for number in range(count):
        more = [("escrow-half-offset", b"%d" % (number // PARTITIONS))] if not value else []
        while True:
            try:
                producer.produce(topic, value, b"%d" % number, partition=number % PARTITIONS, headers=[*headers, *more])
                break
            except BufferError:
                producer.poll(0.5)
    producer.flush(600)


def records_in(cluster: Cluster, topic: str) -> int:
    """Visible records, control records left out: counted by reading would cost more than what is measured."""
    admin = cluster.admin()
    wanted = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(PARTITIONS)}  # type: ignore[no-untyped-call]
    return sum(future.result(30).offset for future in admin.list_offsets(wanted).values())


def copy(spark: SparkSession, cluster: Cluster, root: Path, number: int) -> float:
    """Messages a second of Spark's own copy of `bench.in`."""
    out = f"bench.copy.{number}"
    cluster.create_topic(out, PARTITIONS)
    common = {"kafka.bootstrap.servers": cluster.bootstrap}
    source = spark.readStream.format("kafka").options(
        **common, subscribe="bench.in", startingOffsets="earliest", includeHeaders="true"
    )
    rows = source.load().select("key", "value", "headers", "partition")
    started_s = time.perf_counter()
    writer = rows.writeStream.format("kafka").options(**common, topic=out, checkpointLocation=str(root / f"copy{number}"))
    query = writer.option("includeHeaders", "true").trigger(availableNow=True).start()
    query.awaitTermination()
    took_s = time.perf_counter() - started_s
    return records_in(cluster, out) / took_s


@contextmanager
def job(settings: Settings, spark: SparkSession) -> Iterator[KafkaJobService]:
    service = KafkaJobService(settings)
    service.take_over()
    try:
        yield service
    finally:
        service.stop()


def released(spark: SparkSession, cluster: Cluster, root: Path, number: int, count: int) -> float:
    """Messages a second of Escrow, from the start of the query until all are released and settled."""
    settings = settings_for(root, cluster, number)
    real = f"bench.real.{number}"
    cluster.create_topic(real, PARTITIONS)
    with job(settings, spark) as service:
        topics = service.topics
        group = [("escrow-group", b"bench")]
        fill(cluster, topics.half, count, [*group, ("escrow-topic", real.encode())], BODY)
        fill(cluster, topics.op, count, [*group, ("escrow-op", b"COMMIT")], b"")
        started_s = time.perf_counter()
        service.start(spark, make_run_directory(settings) / "checkpoint")
        while sum(part.shard.marker.totals["commits"] for part in service.parts.values()) < count:
            failure = service.failure()
            assert failure is None, failure
            time.sleep(0.02)
        took_s = time.perf_counter() - started_s
    assert len(cluster.read_all(real)) == count
    return count / took_s


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(load())
    with scratch() as root, kafka_cluster() as cluster:
        figures = _measure(root, cluster, args.messages, args.rounds)
    print(load())
    report(figures)


def _measure(root: Path, cluster: Cluster, messages: int, rounds: int) -> dict[str, float]:
    cluster.create_topic("bench.in", PARTITIONS)
    fill(cluster, "bench.in", messages, [("trace", b"abc")], BODY)
    settings = settings_for(root, cluster, "-spark")  # a data directory of its own: each start of a job empties its scratch
    spark: Any = start_spark(settings, make_run_directory(settings))
    copies, releases = [], []
    for number in range(rounds + 1):
        copies.append(copy(spark, cluster, root, number))
        releases.append(released(spark, cluster, root, number, messages))
        print(
            f"round {number}: copy {copies[-1]:.0f}/s, release {releases[-1]:.0f}/s{' (warm-up)' if not number else ''}", flush=True
        )
    spark.stop()
    print(f"copy/s: {spread(copies[1:])}\nrelease/s: {spread(releases[1:])}")
    return {"kafka.release_over_copy": statistics.median(releases[1:]) / statistics.median(copies[1:])}


if __name__ == "__main__":
    main()
