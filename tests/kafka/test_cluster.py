"""The job on a standalone Spark cluster of two workers, and half partitions that are added while it runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from confluent_kafka.admin import NewPartitions

from tests.support.kafka import Cluster
from tests.support.kafka_world import KafkaWorld, bodies
from tests.support.spark_cluster import SparkCluster, spark_cluster

pytestmark = pytest.mark.timeout(900)


def executors_that_released(cluster: SparkCluster) -> set[str]:
    """Executors whose own log tells of a release: the source's tasks run under another name."""
    logs = cluster.directory.glob("worker*/work/app-*/*/stderr")
    return {
        f"{log.parent.parent.name}/{log.parent.name}"
        for log in logs
        if re.search(r"INFO PythonRunner: Times: total", log.read_text(errors="replace"))
    }


def test_two_workers_share_the_work_and_new_partitions_are_taken_up(kafka: Cluster) -> None:
    kafka.create_topic("shared", 2)
    flags = ["sparkExecutorMemory=512MiB", "sparkDriverMemory=512MiB"]
    with spark_cluster(2) as spark, KafkaWorld(kafka, 2, [*spark.flags, *flags]) as world:
        log4j = Path(world.root / "spark.conf")
        log4j.write_text("spark.log.level INFO\n")
        world.start(flags=[f"sparkConfFile={log4j}"])
        sent = 0
        while len(executors_that_released(spark)) < 2:
            places = [world.prepare(b"%d" % (sent + number), "shared", partition=number % 2) for number in range(20)]
            sent += 20
            for place in places:
                world.say(place, "COMMIT")
            world.await_released("shared", sent)
        admin = kafka.admin()
        admin.create_partitions([NewPartitions(world.half, 3)])[world.half].result(60)
        world.await_that(lambda: len(kafka.admin().list_topics(world.op, timeout=30).topics[world.op].partitions), lambda n: n == 3)
        world.producer.close(timeout=30)
        world._producer = None  # a client that has just asked for the topic's partitions
        places = [world.prepare(b"%d" % (sent + number), "shared", partition=2) for number in range(10)]
        sent += 10
        for place in places:
            world.say(place, "COMMIT")
        assert bodies(world.await_released("shared", sent)) == {b"%d" % number: 1 for number in range(sent)}
