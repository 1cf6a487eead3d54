"""Records of the redo topic: encode, decode, read to the end (docs/kafka.md has the layout).

A batch is some `entries` records, `groups` with the names of the producer groups that they use, `refused` where Kafka refused
messages, and one `marker`, written in one Kafka transaction by the one owner of the shard; a `claim` says who that is. Readers are
`read_committed`, so a batch is there whole or not at all. It is held against its CRC all the same: the topic can be written by
whoever the ACLs allow.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from sinks.errors import RedoBroken
from sinks.kafka import contract
from sinks.kafka.clients import NO_GROUP, bounds_of
from store.arrays import Array
from store.job.undeliverable import Refusal
from store.tables.redo_log import MARKER, NUMBER_MASK, REDO, Marker, batch_crc, decode_marker, encode_marker

CLAIM, ENTRIES, GROUPS, REFUSED, MARK = b"claim", b"entries", b"groups", b"refused", b"marker"
#: Uncompressed, so many fit into Kafka's default record; of groups whatever their names are (contract.GROUP_MAX_BYTES), of
#: refusals whatever topic and reason are.
ENTRIES_PER_RECORD: Final = 32_768
GROUPS_PER_RECORD: Final = 1_024
REFUSED_PER_RECORD: Final = 1_024
#: Characters: a reason may repeat what a client wrote.
REASON_MAX: Final = 400
POLL_S: Final = 1.0
#: How far before the end the last marker is looked for at first.
LOOK_BACK: Final = 64

Record = tuple[contract.Headers, bytes]


@dataclass(frozen=True, slots=True)
class Claim:
    """From here on the shard belongs to this term."""

    partition: int
    redo_offset: int  # behind the record
    term: int
    generation: int = 0  # of the shard's transactional id


@dataclass(frozen=True, slots=True)
class RedoBatch:
    """A whole batch."""

    partition: int
    redo_offset: int  # behind its marker
    entries: Array
    marker: Marker
    term: int
    groups: list[tuple[int, str]] = field(default_factory=list)
    refused: list[tuple[int, Refusal]] = field(default_factory=list)
    next_group: int = 0  # the next free number
    generation: int = 0
    topic_ids: dict[str, str] = field(default_factory=dict)  # by topic: whose offsets the batch speaks of


class Last(NamedTuple):
    """The end of a redo partition: the last marker's sequence, the highest term and generation; 0 where there is none."""

    sequence: int = 0
    term: int = 0
    generation: int = 0


def pack_entries(entries: Array) -> bytes:
    """Entries, transposed and compressed: neighbours in a column differ little."""
    return zlib.compress(np.ascontiguousarray(entries).view(np.uint8).reshape(len(entries), REDO.itemsize).T.tobytes(), 1)


def unpack_entries(packed: bytes) -> Array:
    raw = np.frombuffer(zlib.decompress(packed), np.uint8)
    return np.ascontiguousarray(raw.reshape(REDO.itemsize, -1).T).reshape(-1).view(REDO)


def claim_record(term: int, owner: str, at_ms: int, generation: int) -> Record:
    value = {"term": term, "owner": owner, "at_ms": at_ms, "generation": generation}
    return [(contract.REDO, CLAIM)], json.dumps(value).encode()


def batch_records(
    entries: Array,
    marker: Marker,
    term: int,
    groups: list[tuple[int, str]],
    refused: Mapping[int, Refusal],
    *,
    next_group: int = 0,
    generation: int = 0,
    topic_ids: Mapping[str, str] | None = None,
) -> Iterator[Record]:
    """A batch as records, the marker last."""
    for first in range(0, len(entries), ENTRIES_PER_RECORD):
        yield [(contract.REDO, ENTRIES)], pack_entries(entries[first : first + ENTRIES_PER_RECORD])
    yield from _texts(GROUPS, groups, GROUPS_PER_RECORD)
    reasons = [(half_offset, why.reason[:REASON_MAX], *why[1:]) for half_offset, why in refused.items()]
    yield from _texts(REFUSED, reasons, REFUSED_PER_RECORD)
    encoded = encode_marker(marker, len(entries))
    encoded["crc"] = batch_crc(entries.tobytes(), encoded.tobytes(), marker.sequence)
    numbers = {"term": term, "new_groups": len(groups), "next_group": next_group, "generation": generation}
    rest = {**numbers, "topic_ids": dict(topic_ids or {})}
    yield [(contract.REDO, MARK)], encoded.tobytes() + json.dumps(rest).encode()


def _texts(kind: bytes, numbered: Sequence[tuple[Any, ...]], per_record: int) -> Iterator[Record]:
    """A number, a text and maybe more, as records that fit."""
    for first in range(0, len(numbered), per_record):
        yield [(contract.REDO, kind)], zlib.compress(json.dumps(numbered[first : first + per_record]).encode(), 1)


class Decoder:
    """Puts the records of one redo partition together, in their order. `cut`: retention may have taken the beginning of the first
    batch, which is passed over then."""

    def __init__(self, partition: int, *, cut: bool = False) -> None:
        self.partition, self._cut = partition, cut
        self._forget()

    def _forget(self) -> None:
        """What belongs to one batch."""
        self._parts: list[Array] = []
        self._groups: list[tuple[int, str]] = []
        self._refused: list[tuple[int, Refusal]] = []

    def take(self, message: Message) -> Claim | RedoBatch | None:
        """What this record completes, if anything."""
        kind, value = contract.first_header(contract.headers_of(message), contract.REDO), message.value() or b""
        behind = int(message.offset() or 0) + 1
        try:
            if kind == CLAIM:
                self._forget()
                self._cut = False
                found = json.loads(value)
                return Claim(self.partition, behind, int(found["term"]), int(found.get("generation", 0)))
            if kind == ENTRIES:
                self._parts.append(unpack_entries(value))
                return None
            if kind == GROUPS:
                self._groups += _pairs(json.loads(zlib.decompress(value)))
                return None
            if kind == REFUSED:
                self._refused += _refusals(json.loads(zlib.decompress(value)))
                return None
            if kind == MARK:
                return self._batch(value, behind)
        except (ValueError, KeyError, zlib.error) as error:
            raise RedoBroken(self.partition, message.offset(), repr(error)) from error
        raise RedoBroken(self.partition, message.offset(), f"no record of ours: {kind!r}")

    def _batch(self, value: bytes, behind: int) -> RedoBatch | None:
        entries = np.concatenate(self._parts) if self._parts else np.empty(0, REDO)
        groups, refused, may_be_cut = self._groups, self._refused, self._cut
        self._forget()
        self._cut = False
        raw, rest = bytearray(value[: MARKER.itemsize]), json.loads(value[MARKER.itemsize :])
        encoded = np.frombuffer(bytes(raw), MARKER, 1)[0]
        marker = decode_marker(encoded)
        told = int(rest.get("new_groups", 0))
        if may_be_cut and (len(entries) < int(encoded["tag"]) & NUMBER_MASK or len(groups) < told):
            return None
        raw[8:12] = bytes(4)
        if batch_crc(entries.tobytes(), bytes(raw), marker.sequence) != int(encoded["crc"]):
            raise ValueError(f"the CRC of batch {marker.sequence} does not match")
        if len(groups) != told:
            raise ValueError(f"batch {marker.sequence} has the names of {told} groups, and {len(groups)} are there")
        groups += _pairs(rest.get("groups", []))  # where both stood at first
        refused += _refusals(rest.get("refused", []))
        term, next_group, generation = int(rest["term"]), int(rest.get("next_group", 0)), int(rest.get("generation", 0))
        topic_ids = {str(topic): str(id) for topic, id in rest.get("topic_ids", {}).items()}
        return RedoBatch(self.partition, behind, entries, marker, term, groups, refused, next_group, generation, topic_ids)


def _pairs(found: list[Any]) -> list[tuple[int, str]]:
    return [(int(number), str(text)) for number, text in found]


def _refusals(found: list[Any]) -> list[tuple[int, Refusal]]:
    """Of earlier versions: number and reason alone."""
    return [(int(number), Refusal(str(reason), *rest)) for number, reason, *rest in found]


def redo_consumer(options: dict[str, Any]) -> Consumer:
    """No group is ever joined and no offset committed: the id is asked for, not used."""
    fixed = {"isolation.level": "read_committed", "enable.partition.eof": True, "enable.auto.commit": False}
    return Consumer({**options, **fixed, "group.id": NO_GROUP, "auto.offset.reset": "error"})


def take(consumer: Consumer, count: int, timeout_s: float) -> list[Message]:
    """What is there, at most `count`; waits for the first only. (`consume` alone would wait for all of them.)"""
    first = consumer.poll(timeout_s)
    return [] if first is None else [first, *consumer.consume(count - 1, 0)] if count > 1 else [first]


def read_some(consumer: Consumer, timeout_s: float) -> Iterator[tuple[int, Message | None]]:
    """(partition, message) of what came; (partition, None) where the end was reached."""
    for message in take(consumer, 1000, timeout_s):
        error, partition = message.error(), message.partition()
        if error is None:
            yield int(partition or 0), message
        elif error.code() == KafkaError._PARTITION_EOF:
            yield int(partition or 0), None
        elif not error.retriable() and error.code() not in TRANSIENT:
            raise KafkaException(error)


#: What a client says while brokers come and go; it goes on by itself.
TRANSIENT: Final = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._TIMED_OUT})


class Follower:
    """Reads redo partitions in order, from where it was told; keeps its place between calls."""

    def __init__(self, options: dict[str, Any], topic: str) -> None:
        self._consumer, self._topic = redo_consumer(options), topic
        self._decoders: dict[int, Decoder] = {}

    def add(self, partition: int, redo_offset: int, *, cut: bool = False) -> None:
        """Follow this partition from that offset. `cut`: it is where retention has put the partition's beginning."""
        self._decoders[partition] = Decoder(partition, cut=cut)
        self._consumer.incremental_assign([TopicPartition(self._topic, partition, redo_offset)])

    def restart(self, partition: int, begin: int) -> None:
        """Follow it from its beginning again."""
        self._consumer.incremental_unassign([TopicPartition(self._topic, partition)])
        self.add(partition, begin, cut=begin > 0)

    def bounds(self, partition: int) -> tuple[int, int]:
        """(begin, end) of a partition."""
        return bounds_of(self._consumer, self._topic, partition)

    def read(self, timeout_s: float = POLL_S) -> Iterator[Claim | RedoBatch | int]:
        """What came, in order; a partition's number when its end was reached."""
        for partition, message in read_some(self._consumer, timeout_s):
            taken = partition if message is None else self._decoders[partition].take(message)
            if taken is not None:
                yield taken

    def close(self) -> None:
        self._consumer.close()


def last_of(options: dict[str, Any], topic: str, partition: int, timeout_s: float) -> Last:
    """Only what is near the end is read: a marker carries the term of its writer, so the last one and the claims behind it tell."""
    # The end of a partition is told when the broker has waited for more in vain: half a second by default.
    consumer = redo_consumer({**options, "fetch.wait.max.ms": 10})
    try:
        begin, end = bounds_of(consumer, topic, partition, timeout_s)
        distance = LOOK_BACK
        while True:
            start = max(begin, end - distance)
            last = _scan(consumer, TopicPartition(topic, partition, start))
            if last.sequence or start == begin:
                return last
            distance *= 8
    finally:
        consumer.close()


def _scan(consumer: Consumer, place: TopicPartition) -> Last:
    """From a place to the end."""
    last = Last()
    consumer.assign([place])
    while True:
        for _, message in read_some(consumer, POLL_S):
            if message is None:
                return last
            kind, value = contract.first_header(contract.headers_of(message), contract.REDO), message.value() or b""
            if kind in (CLAIM, MARK):
                told = json.loads(value if kind == CLAIM else value[MARKER.itemsize :])
                term, generation = max(last.term, int(told["term"])), max(last.generation, int(told.get("generation", 0)))
                last = Last(last.sequence, term, generation)
            if kind == MARK:
                last = last._replace(sequence=decode_marker(np.frombuffer(value[: MARKER.itemsize], MARKER, 1)[0]).sequence)
