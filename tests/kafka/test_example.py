"""examples/kafka_producer.py: a plain kafka-python program whose halves, ends and answers the endpoint and the job understand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.edge_client import EdgeClient
from tests.support.endpoint import Endpoint, until
from tests.support.kafka import Cluster
from tests.support.kafka_world import KafkaWorld

ROOT = Path(__file__).parents[2]


def test_a_plain_producer_and_the_whole_service(kafka: Cluster) -> None:
    """Endpoint and job run; two orders are committed, the third is asked about by Kafka and answered from the database."""
    flags = ["transactionTimeOut=1s", "transactionCheckInterval=2s", "listenPort=0"]
    if "paid" not in kafka.admin().list_topics(timeout=30).topics:
        kafka.create_topic("paid", 3)
    with KafkaWorld(kafka, partitions=1, flags=flags) as world, Endpoint(world.root / "edge", *world.flags) as endpoint:
        job = world.start("job")
        with EdgeClient(endpoint.port) as client:
            until(lambda: client.call("GET", "/readyz")["job"]["state"] == "running")
        command = [
            sys.executable, str(ROOT / "examples/kafka_producer.py"), "--bootstrap", kafka.bootstrap,
            "--orders", str(world.root / "db"),
            "--half-topic", world.half, "--op-topic", world.op, "--check-topic", world.check,
            "--check-group-prefix", world.check_prefix, "--forget", "--answer-for", "3600",
        ]  # fmt: skip
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as example:
            try:
                assert example.stdout is not None
                said = [example.stdout.readline().strip() for _ in range(4)]
                assert said == [
                    "order-0 is committed", "order-1 is committed", "order-2 is at (0, 2), and nothing is said of it",
                    "asked about order-2: COMMIT",
                ]  # fmt: skip
            finally:
                example.kill()
        found = world.await_that(
            lambda: [message for message in world.released("paid") if (message.key() or b"").startswith(b"order-")],
            lambda messages: len(messages) >= 3, [job],
        )  # fmt: skip
        assert sorted(message.value() for message in found) == [b"order-0", b"order-1", b"order-2"]
        assert sorted(dict(message.headers())["escrow-transaction-id"] for message in found) == [b"0-0", b"0-1", b"0-2"]
        with EdgeClient(endpoint.port) as client:
            [id] = client.prepare([{"group": "orders", "topic": "paid", "text": "by-http", "key": "h"}])
            assert client.end("orders", id, "commit")["verdict"] == "accepted"
        by_http = world.await_that(lambda: [message for message in world.released("paid") if message.key() == b"h"], bool, [job])
        assert [(message.value(), dict(message.headers())["escrow-transaction-id"]) for message in by_http] == [
            (b"by-http", b"0-3")
        ]
