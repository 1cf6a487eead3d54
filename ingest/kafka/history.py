"""What is known of one transaction: its half, and every op about it. In threads: reading the op partition may take a while.

The op partition has no index by half. It is read from the half's append time on; nothing about a half was written before."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from ingest.errors import BadId
from ingest.kafka.ended.follower import OpFollower
from ingest.kafka.records.halves import Reader, reading
from ingest.kafka.records.messages import born_at_ms_of
from ingest.kafka.records.ops import headers_of, read_op
from ingest.kafka.records.places import Place
from ingest.kafka.records.sealing import PlaceSealer, place_in
from ingest.operating.history import Event, Transaction, event_of
from sinks.kafka.clients import Connection, bounds_of
from sinks.kafka.contract import TOPIC, Topics, owner_of
from store.properties import REAL_TOPIC
from store.records import OpKind, State
from store.tables.ends import OPEN, Verdict, byte_after, judge

ASK_S: Final = 10.0
#: A history that cannot be read within this is not told: Kafka is out of reach, or the op partition is very long.
READ_S: Final = 60.0
_AT_ONCE: Final = 4096


class KafkaHistories:
    """Reads with consumers of its own, one question at a time."""

    def __init__(self, connection: Connection, topics: Topics, sealer: PlaceSealer, ends: OpFollower) -> None:
        self._topics, self._sealer, self._ends = topics, sealer, ends
        self._halves = Reader(connection, topics.half)
        self._options = reading(connection)
        self._lock = threading.Lock()

    def of(self, id: str) -> Transaction:
        """BadId unless this id was issued for the group that the half has. KafkaException where Kafka does not answer."""
        place = place_in(id)
        if place.partition >= self._ends.partitions:
            raise BadId("id: names a partition that is not there")
        half = self._halves.read(place.partition, [place.half_offset]).get(place.half_offset)
        if half is None:
            return Transaction(place.half_offset, "GONE")
        headers = headers_of(half)
        group = owner_of(headers)
        if not self._sealer.is_good(id, place, group):
            raise BadId("id: its seal is broken; use the id exactly as it was answered")
        stored_at_ms = half.timestamp()[1]
        found = Transaction(
            place.half_offset,
            State.PREPARED.name,
            group,
            headers.get(TOPIC, b"").decode("utf-8", "replace"),
            (half.key() or b"").decode("utf-8", "replace"),
            born_at_ms=born_at_ms_of(headers) or stored_at_ms,
            stored_at_ms=stored_at_ms,
            history=[Event("prepared", stored_at_ms, "producer")],
        )
        self._tell(found, place)
        return found

    def properties_of(self, id: str) -> dict[str, str]:
        """Headers of the half that an id names, with its topic as REAL_TOPIC; none where the half is gone."""
        place = place_in(id)
        if place.partition >= self._ends.partitions:
            return {}
        half = self._halves.read(place.partition, [place.half_offset]).get(place.half_offset)
        if half is None:
            return {}
        headers = {name: (value or b"").decode("utf-8", "replace") for name, value in headers_of(half).items()}
        return {REAL_TOPIC: headers.get(TOPIC, ""), **headers}

    def _tell(self, found: Transaction, place: Place) -> None:
        """Every op about the half that counted, in order; what lost against an earlier end is no part of its history."""
        with self._lock:
            consumer, ended = Consumer(self._options), OPEN
            try:
                at = TopicPartition(self._topics.op, place.partition, found.stored_at_ms)
                _, end = bounds_of(consumer, self._topics.op, place.partition, ASK_S)
                consumer.assign(consumer.offsets_for_times([at], timeout=ASK_S))
                for message in _to_the_end(consumer, end):
                    ended = _add(found, place.half_offset, message, ended)
            finally:
                consumer.close()
        found.state = State(ended or State.PREPARED).name

    def close(self) -> None:
        self._halves.close()


def _add(found: Transaction, half_offset: int, message: Any, ended: int) -> int:
    """Add what a record says of this half, if it does; the half's byte after it."""
    op = read_op(message)
    if op is None or half_offset not in (op.half_offset, *op.asked) or op.group not in (None, found.group):
        return ended
    if op.kind is not OpKind.ASKED and judge(op.kind, ended).verdict is not Verdict.ACCEPTED:
        return ended
    found.attempts += op.kind is OpKind.ASKED
    found.history.append(event_of(op.kind, message.timestamp()[1], op.via, "", op.remark))
    return byte_after(op.kind, ended)


def _to_the_end(consumer: Consumer, end: int) -> Iterator[Any]:
    """Every record from where the consumer stands to this end of its one partition, or to its end now."""
    end_s = time.monotonic() + READ_S
    while time.monotonic() < end_s:
        first = consumer.poll(0.5)
        messages: list[Any] = [first, *consumer.consume(_AT_ONCE, 0)] if first is not None else []
        for message in messages:
            if message.error() is None:
                yield message
                if message.offset() + 1 >= end:
                    return
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return
            else:
                raise KafkaException(message.error())
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"the ops could not be read within {READ_S:g} s"))
