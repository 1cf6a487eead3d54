"""The happy path: halves and ops written by a plain Kafka client, committed messages in real topics. The job logs in (SASL).

And what it tells: a real Prometheus scrapes it under load, every query of the board has data, docs/metrics.md names all of it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.support.boards import queries
from tests.support.kafka import SASL_PASSWORD, Cluster
from tests.support.kafka_world import KafkaWorld, bodies, processes
from tests.support.metrics_page import documented, exposed
from tests.support.prometheus import Prometheus, scraping
from tests.support.tools import require_tool

#: The first test waits for Kafka, Java and Spark to start.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def world(kafka: Cluster) -> Iterator[KafkaWorld]:
    with KafkaWorld(kafka, partitions=2, sasl=True) as world:
        world.start()
        yield world


def test_exactly_the_commits_arrive_in_order(world: KafkaWorld) -> None:
    world.cluster.create_topic("orders", 3)
    places = [world.prepare(b"%d" % number, "orders", key=b"k%d" % (number % 5), partition=number % 2) for number in range(60)]
    for number, place in enumerate(places):
        world.say(place, ("COMMIT", "ROLLBACK", "UNKNOWN")[number % 3])
    arrived = world.await_released("orders", 20)
    assert bodies(arrived) == bodies_of(range(0, 60, 3))
    by_key: dict[bytes, list[int]] = {}
    for message in arrived:
        by_key.setdefault(message.key(), []).append(int(message.value()))
    assert {key: [n for n in numbers if n % 2 == 0] for key, numbers in by_key.items()} == {
        key: sorted(n for n in numbers if n % 2 == 0) for key, numbers in by_key.items()
    }


def bodies_of(numbers: Iterator[int] | range) -> dict[bytes, int]:
    return {b"%d" % number: 1 for number in numbers}


def test_key_headers_time_and_partition_survive_and_the_place_is_added(world: KafkaWorld) -> None:
    world.cluster.create_topic("survive", 4)
    place = world.prepare(
        b"body", "survive", key=b"the key", escrow_partition="2", escrow_born_time="1700000000123", trace="abc", other="x"
    )
    world.say(place, "COMMIT")
    (message,) = world.await_released("survive", 1)
    assert (message.key(), message.value(), message.partition()) == (b"the key", b"body", 2)
    assert message.timestamp()[1] == 1700000000123
    assert message.headers() == [("trace", b"abc"), ("other", b"x"), ("escrow-transaction-id", b"%d-%d" % place)]


def test_the_password_is_in_no_log(world: KafkaWorld) -> None:
    logs = list((world.jobs[0].directory / "logs").iterdir())
    assert logs
    for log in [*logs, world.jobs[0].directory / "stderr"]:
        assert SASL_PASSWORD not in log.read_text(errors="replace"), log.name


def test_kcat_as_producer_and_consumer(world: KafkaWorld) -> None:
    world.cluster.create_topic("by-kcat")
    kcat = [require_tool("kcat"), "-b", world.cluster.bootstrap]
    half = [*kcat, "-P", "-t", world.half, "-p", "0", "-k", "key", "-H", "escrow-group=orders", "-H", "escrow-topic=by-kcat"]
    subprocess.run([*half, "-H", b"\xff=1"], input=b"a header that is no text", timeout=60, check=True)  # stops nobody
    subprocess.run(half, input=b"from kcat", timeout=60, check=True)
    (stored,) = (message for message in world.cluster.read_all(world.half) if message.value() == b"from kcat")
    for half_offset in (stored.offset() - 1, stored.offset()):
        op = ["-H", "escrow-op=COMMIT", "-H", f"escrow-half-offset={half_offset}", "-H", "escrow-group=orders"]
        subprocess.run([*kcat, "-P", "-t", world.op, "-p", "0", *op], input=b"-", timeout=60, check=True)
    world.await_released("by-kcat", 1)
    read = [*kcat, "-C", "-t", "by-kcat", "-e", "-q", "-X", "isolation.level=read_committed", "-f", "%k %s %h"]
    told = subprocess.run(read, capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout == f"key from kcat escrow-transaction-id=0-{stored.offset()}"


def test_groups_and_offsets_of_others_are_not_touched(world: KafkaWorld) -> None:
    world.cluster.create_topic("shared-with-others", 2)
    theirs = [TopicPartition(topic, 0, 1) for topic in ("shared-with-others", world.half, world.op)]
    other = Consumer({"bootstrap.servers": world.cluster.bootstrap, "group.id": f"{world.name}-others", "log_level": 2})
    try:
        other.commit(offsets=theirs, asynchronous=False)
        for number in range(5):
            world.say(world.prepare(b"%d" % number, "shared-with-others"), "COMMIT")
        world.await_released("shared-with-others", 5)
        assert [at.offset for at in other.committed(theirs, timeout=30)] == [1, 1, 1]
    finally:
        other.close()
    admin = world.cluster.admin()
    groups = {group.group_id for group in admin.list_consumer_groups().result(30).valid}
    assert {group for group in groups if group.startswith(world.name)} == {f"{world.name}-lease", f"{world.name}-others"}
    assert not {group for group in groups if group.startswith(("escrow", "spark"))}, "what only reads makes no group"


def test_the_job_goes_on_when_its_python_workers_die(world: KafkaWorld) -> None:
    world.cluster.create_topic("worker-died")
    (job,) = world.jobs
    workers = processes(job.process.pid, "streaming.spark.worker_daemon pyspark.worker")
    assert workers
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    places = [world.prepare(b"%d" % number, "worker-died", partition=number % 2) for number in range(10)]
    for place in places:
        world.say(place, "COMMIT")
    assert bodies(world.await_released("worker-died", 10)) == bodies_of(range(10))
    assert job.alive, "the same driver"


# --- what it tells -----------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def port(world: KafkaWorld) -> Iterator[int]:
    """Of the metrics of the job, which has work all the time from here on."""
    stop = threading.Event()
    world.cluster.create_topic("measured", 2)

    def work() -> None:
        number = 0
        while not stop.wait(0.1):
            number += 1
            place = world.prepare(b"%d" % number, "measured", partition=number % 2)
            world.say(place, "ROLLBACK" if number % 3 == 0 else "COMMIT")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield next(line["metrics_port"] for line in world.jobs[0].lines if line.get("ready"))
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
