"""The fixture itself: a real broker, read and written by clients that nobody here wrote, and what survives its death."""

from __future__ import annotations

import subprocess

from confluent_kafka import Producer
from kafka import KafkaConsumer, KafkaProducer

from tests.support.kafka import Cluster
from tests.support.tools import require_tool


def test_three_clients_of_different_origin_agree(kafka: Cluster) -> None:
    kafka.create_topic("smoke", 2)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    producer.send("smoke", key=b"k", value=b"v", headers=[("h", b"1")], partition=1).get(30)
    producer.close()
    assert [(m.key(), m.value(), m.headers()) for m in kafka.read_all("smoke")] == [(b"k", b"v", [("h", b"1")])]
    told = subprocess.run(
        [require_tool("kcat"), "-b", kafka.bootstrap, "-C", "-t", "smoke", "-e", "-q", "-f", "%p %k %s %h"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert told.stdout == "1 k v h=1"


def test_a_killed_broker_comes_back_with_its_records_and_open_transactions_stay_invisible(breakable_kafka: Cluster) -> None:
    cluster = breakable_kafka
    cluster.create_topic("kept")
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "t", "log_level": 2})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("kept", b"committed")
    producer.commit_transaction(60)
    producer.begin_transaction()
    producer.produce("kept", b"open")
    producer.flush(60)
    cluster.brokers[0].kill()
    cluster.brokers[0].start()
    cluster.wait()
    assert [m.value() for m in cluster.read_all("kept", isolation="read_uncommitted")] == [b"committed", b"open"]
    consumer = KafkaConsumer(
        "kept", bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed",
        group_id=None, consumer_timeout_ms=3000,
    )  # fmt: skip
    assert [record.value for record in consumer] == [b"committed"]
    consumer.close()
