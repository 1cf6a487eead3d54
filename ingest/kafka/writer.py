"""A producer and its reports. What is written is acknowledged by all in-sync replicas, once each (`acks=all`, idempotence), or the
caller hears that it was not.

While Kafka is out of reach whoever has begun waits for DELIVERY_MS at most; after the first such failure the others are refused at
once (`Reach`), until a look at Kafka succeeds again. Nothing is kept for later: the client says it again.

An idempotent producer that meets an error which it cannot repair (a broker that lost what it had acknowledged) is put away for a
new one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from ingest.errors import EdgeError, KafkaRefused, KafkaUnreachable, Overloaded, TooLarge
from ingest.kafka.reach import Reach
from sinks.kafka.clients import Connection
from sinks.kafka.contract import Headers

#: How long a record may be on its way before its caller is told that Kafka is out of reach.
DELIVERY_MS: Final = 10_000
POLL_S: Final = 0.2
CLOSE_S: Final = 3.0
LOG: Final = logging.getLogger("escrow.edge")
#: Spreads like Java's default partitioner: by key where there is one.
PARTITIONER: Final = "murmur2_random"
ANY_PARTITION: Final = -1

_SAYS_NO: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)


class Record(NamedTuple):
    """What is to be written. `timestamp_ms` 0: now."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: Headers
    partition: int = ANY_PARTITION
    timestamp_ms: int = 0


class _Batch:
    """What one caller handed in."""

    __slots__ = ("future", "left", "places")

    def __init__(self, future: asyncio.Future[list[tuple[int, int]]], count: int) -> None:
        self.future, self.left = future, count
        self.places: list[tuple[int, int]] = [(-1, -1)] * count


_Report = tuple[_Batch, int, KafkaError | None, int, int]


class Writer:
    """Made and used in the event loop; a thread of its own hears the reports."""

    def __init__(
        self, connection: Connection, reach: Reach, name: str, fail: Callable[[str], None], *, queued_bytes_max: int
    ) -> None:
        self._options = connection.librdkafka(
            acks="all",
            enable_idempotence=True,
            partitioner=PARTITIONER,
            delivery_timeout_ms=DELIVERY_MS,
            linger_ms=1,
            reconnect_backoff_max_ms=1000,
            compression_type="lz4",
            queue_buffering_max_kbytes=max(queued_bytes_max >> 10, 1 << 10),
            message_max_bytes=1_000_000_000,  # what a topic takes is the topic's to say (messages.py)
        ) | {"error_cb": self._heard}
        self._reach, self._fail, self._queued_bytes_max = reach, fail, queued_bytes_max
        self._loop = asyncio.get_running_loop()
        self._producer = Producer(self._options)
        self._reports: deque[_Report] = deque()
        self._fatal = self._stopping = False
        self.records = self.refused_for_load = 0
        self._thread = threading.Thread(target=self._run, name=f"kafka-{name}", daemon=True)
        self._thread.start()

    # --- in the event loop ------------------------------------------------------------------------------------------------
    def write(self, records: Sequence[Record]) -> asyncio.Future[list[tuple[int, int]]]:
        """(partition, offset) of each once Kafka has them all. Where one fails, nothing is known of the others."""
        self._reach.require()
        batch = _Batch(self._loop.create_future(), len(records))
        for number, record in enumerate(records):
            try:
                self._producer.produce(
                    record.topic, record.value, record.key, record.partition, partial(self._reported, batch, number),
                    timestamp=record.timestamp_ms, headers=list(record.headers),
                )  # fmt: skip
            except BufferError:
                self.refused_for_load += 1
                text = f"{self._queued_bytes_max} bytes wait for Kafka, no more may (maxQueuedSize): try again"
                batch.future.set_exception(Overloaded(text))
                break
            except KafkaException as error:
                batch.future.set_exception(self._error_of(error.args[0]))
                break
        return batch.future

    @property
    def waiting(self) -> int:
        """Records on their way."""
        return len(self._producer)

    def _tell(self) -> None:
        while self._reports:
            batch, number, error, partition, offset = self._reports.popleft()
            batch.left -= 1
            if batch.future.done():
                continue
            if error is not None:
                batch.future.set_exception(self._error_of(error))
                continue
            batch.places[number] = (partition, offset)
            self.records += 1
            if not batch.left:
                batch.future.set_result(batch.places)

    def _error_of(self, error: KafkaError) -> EdgeError:
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return TooLarge(f"body: Kafka does not take it: {error.str()}")
        if error.code() in _SAYS_NO:
            return KafkaRefused(f"Kafka does not take it: {error.str()}: ask who runs it")
        self._reach.failed(error.str())
        return KafkaUnreachable(
            f"Kafka has not acknowledged it ({error.str()}): whether it has it is not known; try again, that does no harm"
        )

    async def close(self) -> None:
        """What is on its way is given a moment to arrive."""
        await asyncio.to_thread(self._producer.flush, CLOSE_S)
        self._stopping = True
        await asyncio.to_thread(self._thread.join)
        self._tell()

    # --- in the thread ----------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            while not self._stopping:
                self._producer.poll(POLL_S)
                self._pass_on()
                if self._fatal:
                    self._replace()
        except BaseException as error:  # a defect: without this thread nobody would hear what became of his records
            LOG.exception("reports of Kafka")
            self._loop.call_soon_threadsafe(self._fail, f"{type(error).__name__}: {error}")

    def _reported(self, batch: _Batch, number: int, error: KafkaError | None, message: Any) -> None:
        self._reports.append((batch, number, error, message.partition() or 0, -1 if error else message.offset()))

    def _pass_on(self) -> None:
        if self._reports and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell)

    def _heard(self, error: KafkaError) -> None:
        if error.fatal():
            LOG.warning("Kafka: %s: a new producer takes over", error.str())
            self._fatal = True

    def _replace(self) -> None:
        """Whoever waits for the old one is told that it failed."""
        old, self._producer, self._fatal = self._producer, Producer(self._options), False
        old.purge()
        old.flush(CLOSE_S)
        self._pass_on()
