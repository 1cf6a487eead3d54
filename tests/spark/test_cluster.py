"""The same source on a standalone cluster of two workers: tasks run in other processes, and read the queues beside each other."""

from __future__ import annotations

import pytest

import escrow.spark
from tests.support.edge_client import EdgeClient
from tests.support.live import live
from tests.support.spark import user_spark
from tests.support.spark_cluster import spark_cluster


@pytest.mark.timeout(600)  # five Java processes start
def test_two_workers_copy_a_topic_exactly_once(tmp_path):
    with live(tmp_path / "data") as service, spark_cluster(workers=2, memory="768m") as cluster:
        with EdgeClient(service.port) as client:
            client.send([{"group": "g", "topic": "spread", "text": f"m{n}", "queue_id": n % 4} for n in range(400)])
        secret = {
            "spark.authenticate": "true",
            "spark.authenticate.secret": cluster.secret,
            "spark.network.crypto.enabled": "true",
            "spark.executor.memory": "512m",
        }
        with user_spark(tmp_path / "user", cluster.url, **secret) as spark:
            escrow.spark.register(spark)
            options = {"url": service.url, "topic": "spread", "startingOffsets": "earliest", "maxMessagesPerTrigger": "150"}
            query = (
                spark.readStream.format("escrow")
                .options(**options)
                .load()
                .writeStream.format("parquet")
                .option("path", str(tmp_path / "out"))
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            batches = [each["numInputRows"] for each in query.recentProgress]
            copied = [bytes(row.body).decode() for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    assert sorted(copied) == sorted(f"m{n}" for n in range(400))
    assert max(batches) <= 150
