"""What the job tells in Kafka mode: a real Prometheus scrapes it under load, every query of the board has data, and docs/metrics.md
names what is told."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.boards import queries
from tests.support.kafka import Cluster
from tests.support.kafka_world import KafkaWorld
from tests.support.metrics_page import documented, exposed
from tests.support.prometheus import Prometheus, scraping

TOPIC = "measured"


@pytest.fixture(scope="module")
def port(kafka: Cluster) -> Iterator[int]:
    """Of the metrics of a job that has work all the time."""
    stop = threading.Event()
    with KafkaWorld(kafka, partitions=2) as world:
        job = world.start()
        world.cluster.create_topic(TOPIC, 2)

        def work() -> None:
            number = 0
            while not stop.wait(0.1):
                number += 1
                place = world.prepare(b"%d" % number, TOPIC, partition=number % 2)
                world.say(place, "ROLLBACK" if number % 3 == 0 else "COMMIT")

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield next(line["metrics_port"] for line in job.lines if line.get("ready"))
        finally:
            stop.set()
            thread.join()


@pytest.fixture(scope="module")
def prometheus(port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    place: Path = tmp_path_factory.mktemp("prometheus") / "its"
    with scraping(place, {"7480": port, "7482": port}) as made:
        yield made


@pytest.mark.parametrize("expr", queries("kafka"))
def test_every_panel_has_data(expr: str, prometheus: Prometheus) -> None:
    prometheus.until_values(expr)


def test_the_page_names_what_is_told(prometheus: Prometheus, port: int) -> None:
    prometheus.until_values("escrow_kafka_released_messages_total > 0")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        told = exposed(answer.read().decode())
    assert {name: each for name, each in told.items() if "kafka" in name} == {
        name: each for name, each in documented("kafka").items() if "kafka" in name
    }
    assert told.keys() <= documented("job", "kafka").keys()
    assert prometheus.values("sum(escrow_kafka_master)")[0] >= 1
