"""Writes halves that have a dedup key: each with its record in the keys topic, in one Kafka transaction.

So no half exists without its record, and no record without its half, wherever the endpoint is killed. Requests that wait share
a transaction. The transactional id is this process's own: Kafka aborts what a killed endpoint leaves open after TIMEOUT_S.
"""

from __future__ import annotations

import asyncio
import queue
import secrets
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from ingest.errors import KafkaUnreachable
from ingest.kafka.keys.known import KnownKeys
from ingest.kafka.keys.record import encode, partition_of
from ingest.kafka.reach import Reach
from ingest.kafka.records.places import Place
from ingest.kafka.writer import PARTITIONER, Record
from sinks.kafka.clients import Connection

#: For one answer of Kafka, and for a transaction.
ANSWER_S: Final = 10.0
TIMEOUT_S: Final = 30.0
#: Halves in one transaction.
AT_ONCE: Final = 500


class Keyed(NamedTuple):
    """A half that is to be written under a dedup key."""

    record: Record
    digest: bytes
    body_crc: int


class Written(NamedTuple):
    """Where the half lies, and where its record in the keys topic does."""

    place: Place
    key_place: tuple[int, int]


class _Order(NamedTuple):
    halves: Sequence[Keyed]
    future: asyncio.Future[list[Written]]


class KeyedWriter:
    """Made and used in the event loop; writes in a thread of its own, which is started with the first half. `partitions`: of the
    keys topic."""

    def __init__(
        self,
        connection: Connection,
        reach: Reach,
        topic: str,
        keys: KnownKeys,
        *,
        transactional_id_prefix: str,
        partitions: Callable[[], int],
    ) -> None:
        self._reach, self._topic, self._partitions, self._keys = reach, topic, partitions, keys
        self._options = connection.librdkafka(
            transactional_id=f"{transactional_id_prefix}{topic}-{secrets.token_hex(8)}",
            transaction_timeout_ms=int(1000 * TIMEOUT_S),
            partitioner=PARTITIONER,
            compression_type="lz4",
            linger_ms=0,
            message_max_bytes=1_000_000_000,  # what a topic takes is the topic's to say (messages.py)
            enable_sparse_connections=False,
        )
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._producer: Producer | None = None
        self._thread = threading.Thread(target=self._run, name="kafka-keyed-halves", daemon=True)

    def write(self, halves: Sequence[Keyed]) -> asyncio.Future[list[Written]]:
        """Once Kafka has them all."""
        self._reach.require()
        if not self._thread.is_alive():
            self._thread.start()
        order = _Order(halves, self._loop.create_future())
        self._queue.put(order)
        return order.future

    async def close(self) -> None:
        if self._thread.is_alive():
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)

    # --- in the thread --------------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            orders, stop = [first], False
            while sum(len(order.halves) for order in orders) < AT_ONCE and not self._queue.empty():
                more = self._queue.get()
                if more is None:
                    stop = True
                    break
                orders.append(more)
            self._settle(orders)
            if stop:
                return

    def _settle(self, orders: list[_Order]) -> None:
        try:
            written = iter(self._transaction([half for order in orders for half in order.halves]))
            results = [(order, [next(written) for _ in order.halves]) for order in orders]
        except (KafkaException, BufferError) as error:
            self._producer = None  # the next one takes the id, which ends what this one has begun
            reason = error.args[0].str() if isinstance(error, KafkaException) else "its queue is full"
            self._tell(self._refuse, orders, reason)
        else:
            self._tell(_give, results)

    def _tell(self, told: Callable[..., None], *arguments: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(told, *arguments)

    def _refuse(self, orders: list[_Order], reason: str) -> None:
        self._reach.failed(reason)
        text = f"Kafka has not acknowledged it ({reason}): whether it has it is not known; try again, that does no harm"
        for order in orders:
            if not order.future.done():
                order.future.set_exception(KafkaUnreachable(text))

    def _transaction(self, halves: list[Keyed]) -> list[Written]:
        """1 halves, which get their places · 2 a record for each · 3 commit."""
        producer = self._taken()
        producer.begin_transaction()
        places = self._produced(producer, [half.record for half in halves])  # 1
        count = self._partitions()
        keys = [
            Record(self._topic, encode(Place(*place), half.body_crc), half.digest, [], partition_of(half.digest, count))
            for half, place in zip(halves, places, strict=True)
        ]
        key_places = self._produced(producer, keys)  # 2
        self._keys.expect(key_places)
        try:
            producer.commit_transaction(ANSWER_S)  # 3
        except BaseException:
            self._keys.forget(key_places)
            raise
        return [Written(Place(*place), key_place) for place, key_place in zip(places, key_places, strict=True)]

    def _taken(self) -> Producer:
        if self._producer is None:
            producer = Producer(self._options)
            producer.init_transactions(ANSWER_S)
            self._producer = producer
        return self._producer

    @staticmethod
    def _produced(producer: Producer, records: Sequence[Record]) -> list[tuple[int, int]]:
        """(partition, offset) of each."""
        places: list[tuple[int, int]] = [(-1, -1)] * len(records)
        errors: list[KafkaError] = []

        def reported(number: int, error: KafkaError | None, message: Any) -> None:
            if error is not None:
                errors.append(error)
            else:
                places[number] = message.partition(), message.offset()

        for number, record in enumerate(records):
            producer.produce(
                record.topic, record.value, record.key, record.partition, partial(reported, number),
                timestamp=record.timestamp_ms, headers=list(record.headers),
            )  # fmt: skip
        left = producer.flush(ANSWER_S)
        if errors or left:
            raise KafkaException(errors[0] if errors else KafkaError(KafkaError._TIMED_OUT))
        return places


def _give(results: list[tuple[_Order, list[Written]]]) -> None:
    for order, written in results:
        if not order.future.done():
            order.future.set_result(written)
