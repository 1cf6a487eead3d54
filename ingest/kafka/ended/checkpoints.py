"""Checkpoints of the ends tables, in Kafka: an endpoint starts from them instead of reading all ops. docs/kafka.md has the format.

One partition of the ends topic for each half partition; the topic is compacted, so the newest record of each key stays.

    key               value (little-endian)
    "mark"            HEAD, then zlib of the numbers of all chunks (u32 each), then CRC-32 of key and value before it
    "chunk-<number>"  HEAD, then zlib of 65,536 bytes, one a half (table.py), then CRC-32; null where the chunk is gone

HEAD: version u8 · binding 16 bytes · op_offset i64. The binding is a digest of the ids of half and op topic and of the
partition: a checkpoint of topics that were made anew, or of others, is told from ours. In the mark, op_offset is where to go on
reading; in a chunk, the op offset below which every op about its halves is in it.

A checkpoint is one Kafka transaction: chunks, then the mark. The transactional id is the partition's own, so of two writers one is
fenced, and what a killed writer began does not exist. Who has taken the id writes all chunks first; as long as nobody has taken it
from him, nobody else has written, and the chunks that changed are enough. So endpoints may write in turn, whichever is ahead. A
chunk that the mark does not list is passed over; one that it lists and that is gone from the half topic may be missing.
"""

from __future__ import annotations

import hashlib
import logging
import queue
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from ingest.kafka.ended.table import CHUNK, CHUNK_BITS
from ingest.kafka.records.halves import reading
from sinks.kafka.clients import Connection

VERSION: Final = 1
HEAD: Final = struct.Struct("<B16sq")
CRC: Final = struct.Struct("<I")
assert HEAD.size == 25
MARK: Final = b"mark"
CHUNK_KEY: Final = b"chunk-"
#: A partition of the ends topic that tells nothing for so long does not answer.
SILENT_S: Final = 10.0
TRANSACTION_S: Final = 30.0
LOG: Final = logging.getLogger("escrow.edge")


class Unusable(Exception):
    """A record is no checkpoint of ours; the text says why."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What an ends table starts from. `op_offset`: every op below it is in the chunks; `through`: of chunks that have more."""

    op_offset: int
    chunks: Mapping[int, bytes]
    through: Mapping[int, int]


class Snapshot(NamedTuple):
    """What is to be written for one partition: chunks (None: gone), and the numbers of all there are."""

    partition: int
    binding: bytes
    op_offset: int
    chunks: Mapping[int, bytes | None]
    numbers: list[int]


def binding_of(half_topic_id: str, op_topic_id: str, partition: int) -> bytes:
    """What ties a checkpoint to its topics."""
    return hashlib.blake2b(f"{half_topic_id}\0{op_topic_id}\0{partition}".encode(), digest_size=16).digest()


# --- records ------------------------------------------------------------------------------------------------------------------
def chunk_key(number: int) -> bytes:
    return CHUNK_KEY + str(number).encode()


def encode(key: bytes, binding: bytes, op_offset: int, content: bytes) -> bytes:
    value = HEAD.pack(VERSION, binding, op_offset) + zlib.compress(content, 1)
    return value + CRC.pack(zlib.crc32(value, zlib.crc32(key)))


def decode(key: bytes, value: bytes, binding: bytes) -> tuple[int, bytes]:
    """(op_offset, content)."""
    if len(value) < HEAD.size + CRC.size:
        raise Unusable(f"{key!r} is too short")
    body, [crc] = value[: -CRC.size], CRC.unpack(value[-CRC.size :])
    if crc != zlib.crc32(body, zlib.crc32(key)):
        raise Unusable(f"{key!r} is damaged: its CRC does not match")
    version, bound, op_offset = HEAD.unpack_from(body)
    if version != VERSION:
        raise Unusable(f"{key!r} has version {version}, and this release knows {VERSION}")
    if bound != binding:
        raise Unusable(f"{key!r} is about other topics: those of that name were made anew")
    return op_offset, zlib.decompress(body[HEAD.size :])


def records_of(snapshot: Snapshot) -> Iterator[tuple[bytes, bytes | None]]:
    """(key, value) of a checkpoint, in the order in which they are written."""
    for number, chunk in snapshot.chunks.items():
        key = chunk_key(number)
        yield key, None if chunk is None else encode(key, snapshot.binding, snapshot.op_offset, chunk)
    numbers = np.array(snapshot.numbers, "<u4").tobytes()
    yield MARK, encode(MARK, snapshot.binding, snapshot.op_offset, numbers)


def numbers_in(records: Mapping[bytes, bytes]) -> set[int]:
    """The chunks that the topic has, whoever wrote them."""
    texts = (key[len(CHUNK_KEY) :] for key in records if key.startswith(CHUNK_KEY))
    return {int(text) for text in texts if text.isdigit() and len(text) < 11}


def checkpoint_of(records: Mapping[bytes, bytes], binding: bytes, half_low: int) -> Checkpoint | None:
    """From the newest value of each key; None where there never was one. Unusable where it cannot be relied on. `half_low`: the
    first half that there is."""
    if MARK not in records:
        return None
    op_offset, listed = decode(MARK, records[MARK], binding)
    chunks, through = dict[int, bytes](), dict[int, int]()
    for number in np.frombuffer(listed, "<u4").tolist():
        key = chunk_key(number)
        if (number + 1) << CHUNK_BITS <= half_low:
            continue
        if key not in records:
            raise Unusable(f"{key!r} is missing")
        until, chunks[number] = decode(key, records[key], binding)
        if len(chunks[number]) != CHUNK:
            raise Unusable(f"{key!r} has {len(chunks[number])} halves, not {CHUNK}")
        if until > op_offset:
            through[number] = until
    return Checkpoint(op_offset, chunks, through)


# --- reading ------------------------------------------------------------------------------------------------------------------
def read_all(connection: Connection, topic: str, partitions: Iterable[int]) -> dict[int, dict[bytes, bytes]]:
    """By partition, the newest value of each key. KafkaException where Kafka does not answer."""
    found: dict[int, dict[bytes, bytes]] = {partition: {} for partition in partitions}
    consumer, left = Consumer(reading(connection, fetch_wait_max_ms=10)), set(found)
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in found])
        heard_s = time.monotonic()
        while left:
            first = consumer.poll(0.5)
            messages: list[Any] = [first, *consumer.consume(1000, 0)] if first is not None else []
            for message in messages:
                error = message.error()
                if error is None:
                    _keep(found[message.partition()], message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                elif not error.retriable() and error.code() not in _PASSING:
                    raise KafkaException(error)
                heard_s = time.monotonic() if error is None or error.code() == KafkaError._PARTITION_EOF else heard_s
            if time.monotonic() > heard_s + SILENT_S:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{topic} could not be read within {SILENT_S:g} s"))
    finally:
        consumer.close()
    return found


_PASSING: Final = frozenset(
    {KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError.UNKNOWN_TOPIC_OR_PART}
)


def _keep(records: dict[bytes, bytes], message: Any) -> None:
    key, value = message.key() or b"", message.value()
    if value is None:
        records.pop(key, None)
    else:
        records[key] = value


# --- writing ------------------------------------------------------------------------------------------------------------------
class Saver:
    """Writes checkpoints in a thread of its own: who follows ops never waits for it."""

    def __init__(self, connection: Connection, topic: str, transactional_id_prefix: str) -> None:
        self._connection, self._topic, self._prefix = connection, topic, transactional_id_prefix
        self._queue: queue.SimpleQueue[Snapshot | None] = queue.SimpleQueue()
        self._producers: dict[int, Producer] = {}
        #: (snapshot, whether it is in Kafka), for whoever ordered it.
        self.done: deque[tuple[Snapshot, bool]] = deque()
        self.written = self.failures = 0
        self.trouble = ""
        self._thread = threading.Thread(target=self._run, name="kafka-checkpoints", daemon=True)
        self._thread.start()

    def save(self, snapshot: Snapshot) -> None:
        self._queue.put(snapshot)

    def holds(self, partition: int) -> bool:
        """Whether the last checkpoint of the partition is ours: the chunks that changed since are enough then."""
        return partition in self._producers

    def close(self, timeout_s: float) -> None:
        """What was ordered is given a moment to be written."""
        self._queue.put(None)
        self._thread.join(timeout_s)

    # --- in the thread --------------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while (ordered := self._queue.get()) is not None:
            problem = self._write(ordered)
            self.written, self.failures = self.written + (not problem), self.failures + bool(problem)
            if problem and problem != self.trouble:
                LOG.warning("checkpoint of op partition %d: %s", ordered.partition, problem)
            self.trouble = problem
            self.done.append((ordered, not problem))

    def _write(self, snapshot: Snapshot) -> str:
        """1 take the partition's transactional id: who had it can write no more · 2 chunks and mark · 3 commit. "" or what failed:
        the transaction is left open then, and aborted by whoever takes the id next, or by its timeout."""
        producer = self._producers.pop(snapshot.partition, None)
        reported: list[KafkaError] = []
        try:
            if producer is None:
                producer = Producer(self._options(snapshot.partition))
                producer.init_transactions(TRANSACTION_S)  # 1
            producer.begin_transaction()
            for key, value in records_of(snapshot):  # 2
                producer.produce(
                    self._topic, value, key, snapshot.partition,
                    on_delivery=lambda error, _: reported.append(error) if error else None,
                )  # fmt: skip
                producer.poll(0)
            producer.commit_transaction(TRANSACTION_S)  # 3
        except (KafkaException, BufferError) as error:
            if producer is not None:
                producer.purge()
            reason = error.args[0] if isinstance(error, KafkaException) else KafkaError(KafkaError._QUEUE_FULL)
            return str((reported or [reason])[0].str())
        self._producers[snapshot.partition] = producer
        return ""

    def _options(self, partition: int) -> dict[str, Any]:
        return self._connection.librdkafka(
            transactional_id=f"{self._prefix}{self._topic}-{partition}",
            transaction_timeout_ms=int(1000 * TRANSACTION_S),
            linger_ms=500,
            enable_sparse_connections=False,
        )
