"""Headers may be as large as a topic takes a record: nobody's headers end the job, and a released message has all of its own.
Broker, Spark and job are real."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from runtime.settings import load as load_settings
from sinks.kafka import contract
from store.records import HALF, OP
from streaming.kafka.reading.records import HEADERS_MAX_BYTES, SCHEMA, collect, columns_of, pack
from tests.support.kafka import Cluster
from tests.support.kafka_world import KafkaWorld
from tests.support.spark import own_spark

pytestmark = pytest.mark.timeout(900)

TOPICS = contract.Topics("half", "op", "redo", "check", "discard", "lease", "ends", "keys")
RECORDS = "topic string, partition int, offset long, timestamp timestamp, key binary, value binary, headers {}"
HEADERS = "array<struct<key: string, value: binary>>"
Headers = list[tuple[str, bytes | None]]

GROUP, TOPIC = ("escrow-group", b"orders"), ("escrow-topic", b"paid")
END: Headers = [("escrow-op", b"COMMIT"), ("escrow-half-offset", b"7")]
#: By themselves they weigh little; what they say may not depend on what lies beside them.
LITTLE: list[Headers] = [
    [],
    [GROUP],
    [GROUP, TOPIC],
    [GROUP, TOPIC, ("escrow-immunity", b"30")],
    [GROUP, TOPIC, ("escrow-immunity", None)],
    [GROUP, TOPIC, ("escrow-immunity", b"9" * 300)],
    [GROUP, TOPIC, ("escrow-immunity", b"0" * 300 + b"5")],
    [("escrow-group", None), TOPIC],
    [("escrow-group", b"\xff"), TOPIC],
    [("escrow-group", b"g" * 127), TOPIC],
    [("escrow-group", b"g" * 300), TOPIC],
    [GROUP, ("escrow-group", b"other"), TOPIC],
    [GROUP, ("escrow-topic", b"\xc3\xa4" * 400)],
    [GROUP, ("escrow-topic", b"t" * 400 + b"\xff")],
    [GROUP, TOPIC, ("tr\N{REPLACEMENT CHARACTER}ce", b"1")],
    END,
    [GROUP, *END],
    [GROUP, *END, ("escrow-via", b"check")],
    [GROUP, *END, ("escrow-via", b"v" * 300)],
    [("escrow-op", b"c" * 300), END[1]],
    [END[0], ("escrow-half-offset", b"0" * 300)],
    [("escrow-op", b"ASKED")],
]
LARGE: dict[str, Headers] = {
    "a value": [("baggage", b"b" * 20_000)],
    "a name": [("n" * 20_000, b"")],
    "many": [("", None)] * 2_000,
    "ours, long": [("escrow-remark", b"r" * 20_000), ("escrow-via", b"v" * 20_000)],
    "ours, again and again": [GROUP] * 1_000,
}


@pytest.fixture(scope="module")
def spark(kafka: Cluster) -> Iterator[SparkSession]:
    with KafkaWorld(kafka) as world:
        settings = load_settings(None, [f"dataDir={world.root / 'spark'}", *world.flags], {})
        with own_spark(settings) as session:
            yield session


def records(spark: SparkSession, headers: list[Headers]) -> Any:
    """Each as a half and as an op, as Spark's source would bring it."""
    stored, asked = datetime(2026, 1, 1, tzinfo=UTC), np.array([5, 6], "<i8").tobytes()
    rows = [(topic, 0, at, stored, b"key", asked, given) for topic in ("half", "op") for at, given in enumerate(headers)]
    return spark.createDataFrame(rows, RECORDS.format(HEADERS)).coalesce(1)


def meaning(spark: SparkSession, headers: list[Headers]) -> list[Any]:
    """What the job makes of them, but for their size."""
    halves, ops = collect(columns_of(records(spark, headers), TOPICS).mapInArrow(pack, SCHEMA))
    found = []
    for pieces, dtype in ((halves, HALF), (ops, OP)):
        names = [name for name in dtype.names or () if name not in ("size_bytes", "group_no")]
        for piece in pieces[0]:
            found += [
                (*(row[name].item() for name in names), piece.names[row["group_no"]] if row["group_no"] >= 0 else None)
                for row in piece.records
            ]
    return found


@pytest.mark.parametrize("large", ["a value", "a name", "many"])
def test_what_a_record_says_does_not_depend_on_the_size_of_its_headers(spark: SparkSession, large: str) -> None:
    alone, beside = meaning(spark, LITTLE), meaning(spark, [[*little, *LARGE[large]] for little in LITTLE])
    assert len(alone) == 2 * len(LITTLE) + 1, "an ASKED of two halves is two ops"
    assert beside == alone


@pytest.mark.parametrize("large", LARGE)
def test_no_record_brings_more_to_python_than_a_few_kilobytes(spark: SparkSession, large: str) -> None:
    size = sum(len(name) + len(value or b"") for name, value in LARGE[large])
    table = columns_of(records(spark, [[GROUP, TOPIC, *LARGE[large]]]), TOPICS).toArrow()
    for row in table.to_pylist():
        brought = sum(8 + len(header["key"]) + len(header["value"] or b"") for header in row["headers"])
        assert brought <= HEADERS_MAX_BYTES
        assert row["size_bytes"] >= size, "what a release has to carry"


def send_all(world: KafkaWorld, headers: list[Any], count: int) -> None:
    """Halves that are numbered by their bodies. (kafka-python is slow with large records.)"""
    producer = Producer({"bootstrap.servers": world.cluster.bootstrap, "linger.ms": 0})
    for number in range(count):
        producer.produce(world.half, b"%d" % number, partition=0, headers=headers)
        while len(producer) > 20:
            producer.poll(0.1)
    assert producer.flush(60) == 0


def test_more_headers_than_the_heap_holds(kafka: Cluster) -> None:
    """In one batch, of halves that wait. Those that are committed are released with their headers."""
    kafka.create_topic("large-headers")
    with KafkaWorld(kafka, flags=["sparkDriverMemory=512MiB"]) as world:
        for name in (world.half, world.op):
            kafka.create_topic(name, message_timestamp_type="LogAppendTime")
        baggage = b"b" * 900_000
        places = [(0, half_offset) for half_offset in range(620)]
        send_all(world, [GROUP, ("escrow-topic", b"large-headers"), ("baggage", baggage)], len(places))
        for place in (places[0], places[-1]):
            world.say(place, "COMMIT")
        world.start()
        found = world.await_released("large-headers", 2)
        assert [message.value() for message in found] == [b"0", b"619"]
        for message, place in zip(found, (places[0], places[-1]), strict=True):
            assert message.headers() == [("baggage", baggage), ("escrow-transaction-id", b"%d-%d" % place)]
