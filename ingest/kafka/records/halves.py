"""Halves read by partition and offset: one consumer that jumps. Used by one thread at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from sinks.kafka.clients import NO_GROUP, Connection, bounds_of

#: A gap between two offsets that is read over rather than jumped.
GAP_MAX: Final = 256
ASK_S: Final = 10.0
_AT_ONCE: Final = 512
#: After an outage everybody is back soon: the brokers of one endpoint are few.
RECONNECT_MS: Final = 1000


def reading(connection: Connection, **more: Any) -> dict[str, Any]:
    """Options of a consumer that belongs to no group and sees only what was committed."""
    fixed: dict[str, Any] = {
        "group_id": NO_GROUP, "enable_auto_commit": False, "enable_partition_eof": True, "isolation_level": "read_committed",
        "auto_offset_reset": "earliest", "reconnect_backoff_max_ms": RECONNECT_MS,
    }  # fmt: skip
    return connection.librdkafka(**{**fixed, **more})


class Reader:
    """Reads single records of one topic."""

    def __init__(self, connection: Connection, topic: str) -> None:
        self._topic = topic
        # A fetch that waits at the broker for news holds up every question behind it.
        self._options = reading(connection, queued_max_messages_kbytes=4096, fetch_wait_max_ms=10)
        self._consumer: Consumer | None = None
        self._lock = threading.Lock()

    def read(self, partition: int, offsets: Iterable[int]) -> dict[int, Any]:
        """The records at these offsets; those that are not there (never were, were aborted, are gone) are left out.
        KafkaException where Kafka does not answer."""
        with self._lock:
            low, high = bounds_of(self._connected(), self._topic, partition, ASK_S)
            wanted = sorted({offset for offset in offsets if low <= offset < high})
            found: dict[int, Any] = {}
            try:
                for run in _runs(wanted):
                    found.update(self._read_run(partition, run))
            finally:
                self._connected().unassign()
            return found

    def _connected(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(self._options)
        return self._consumer

    def _read_run(self, partition: int, run: list[int]) -> dict[int, Any]:
        consumer = self._connected()
        wanted, found, end_s = set(run), dict[int, Any](), time.monotonic() + ASK_S
        consumer.assign([TopicPartition(self._topic, partition, run[0])])
        while time.monotonic() < end_s:
            first = consumer.poll(0.5)
            messages: list[Any] = [first, *consumer.consume(_AT_ONCE, 0)] if first is not None else []
            for message in messages:
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    return found
                if error is not None:
                    raise KafkaException(error)
                if message.offset() in wanted:
                    found[message.offset()] = message
                if message.offset() >= run[-1]:
                    return found
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{self._topic} could not be read within {ASK_S:g} s"))

    def close(self) -> None:
        with self._lock:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None


def _runs(offsets: list[int]) -> Iterator[list[int]]:
    """Offsets in pieces that are worth reading in one go."""
    run: list[int] = []
    for offset in offsets:
        if run and offset - run[-1] > GAP_MAX:
            yield run
            run = []
        run.append(offset)
    if run:
        yield run
