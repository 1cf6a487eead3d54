"""One record of the keys topic: which half a producer's dedup key led to. docs/kafka.md has the format.

    key     BLAKE2b-128 of group NUL dedup key (UTF-8)
    value   version u8 (1) · half partition i32 · half offset i64 · CRC-32 of the body u32       (little-endian)

Partition: the key's first 8 bytes (little-endian, unsigned) mod the number of partitions that the topic was made with. It is never
given more, so a key stays in its partition. The first record of a key within dedupWindow, by the order of its partition and the
brokers' time, is the half; later ones count for nothing. A record and its half are written in one Kafka transaction.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from ingest.kafka.records.places import Place
from store.messages import Message

VERSION: Final = 1
VALUE: Final = struct.Struct("<BiqI")
assert VALUE.size == 17
DIGEST_BYTES: Final = 16


class KeyRecord(NamedTuple):
    """As it was read. `at_s`: when the broker took it."""

    digest: bytes
    place: Place
    body_crc: int
    at_s: int
    partition: int
    offset: int


def digest_of(message: Message) -> bytes:
    text = f"{message.group}\0{message.dedup_key}"
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


def partition_of(digest: bytes, partitions: int) -> int:
    return int.from_bytes(digest[:8], "little") % partitions


def encode(place: Place, body_crc: int) -> bytes:
    return VALUE.pack(VERSION, place.partition, place.half_offset, body_crc)


def decode(message: Any) -> KeyRecord | None:
    """None if it is no record of ours: then it counts for nothing."""
    digest, value = message.key() or b"", message.value() or b""
    if len(digest) != DIGEST_BYTES or len(value) != VALUE.size or value[0] != VERSION:
        return None
    _, partition, half_offset, body_crc = VALUE.unpack(value)
    at_s = max(message.timestamp()[1], 0) // 1000
    return KeyRecord(digest, Place(partition, half_offset), body_crc, at_s, message.partition(), message.offset())
