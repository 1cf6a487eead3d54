"""Properties of a message: RocketMQ's names for them, and `name 0x01 value 0x02` pairs as bytes."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, final

import numpy as np
import numpy.typing as npt

from store.errors import DelayedHalf, IllegalProperty

# RocketMQ's property names; the ones that the store writes itself may not be given by a producer.
TRAN_MSG: Final = "TRAN_MSG"
PGROUP: Final = "PGROUP"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QID: Final = "REAL_QID"
UNIQ_KEY: Final = "UNIQ_KEY"
KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
CHECK_IMMUNITY_TIME_IN_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
DEDUP_KEY: Final = "__DEDUP_KEY__"
#: The name of a transaction: within its group at most one of that name is committed.
TX_NAME: Final = "__TX_NAME__"
#: A replayed dead letter: only this consumer group gets it, the others skip it.
FOR_GROUP: Final = "__FOR_GROUP__"
#: A dead letter: where the message came from, who sent it, and how often it was handed out.
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_QUEUE: Final = "DLQ_ORIGIN_QUEUE"
DLQ_ORIGIN_OFFSET: Final = "DLQ_ORIGIN_OFFSET"
DLQ_ORIGIN_GROUP: Final = "DLQ_ORIGIN_GROUP"
DLQ_ATTEMPTS: Final = "DLQ_ATTEMPTS"
OWN_PROPERTIES: Final = frozenset(
    {
        FOR_GROUP,
        DLQ_ORIGIN_TOPIC,
        DLQ_ORIGIN_QUEUE,
        DLQ_ORIGIN_OFFSET,
        DLQ_ORIGIN_GROUP,
        DLQ_ATTEMPTS,
        TRAN_MSG,
        PGROUP,
        REAL_TOPIC,
        REAL_QID,
        DEDUP_KEY,
        TX_NAME,
        "__transactionId__",
        "TRANSACTION_CHECK_TIMES",
        "TRAN_PREPARED_QUEUE_OFFSET",
    }
)
#: How RocketMQ's clients say "later": by level, by time (5.x), and by time in the commercial edition.
DELAY_PROPERTIES: Final = frozenset({"DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "__STARTDELIVERTIME"})
_REFUSED_PROPERTIES: Final = OWN_PROPERTIES | DELAY_PROPERTIES
#: Longer tags are hashed each time: the cache is bounded in bytes, too.
CACHED_TAGS_MAX: Final = 256


def tags_code(tags: str) -> int:
    """Java's String.hashCode, which RocketMQ's queues use to filter by tag; 0 without tags."""
    return _hash_code(tags) if len(tags) > CACHED_TAGS_MAX else _cached_hash_code(tags)


def _hash_code(tags: str) -> int:
    code = 0
    units = tags.encode("utf-16-le", "surrogatepass")
    for (unit,) in struct.iter_unpack("<H", units):
        code = (code * 31 + unit) & 0xFFFFFFFF
    return code - (1 << 32) if code >= 1 << 31 else code


_cached_hash_code: Final = lru_cache(maxsize=4096)(_hash_code)


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """`name 0x01 value 0x02` for each; IllegalProperty where that could not be read back."""
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    if text.count("\x01") != len(properties) or text.count("\x02") != len(properties) or "" in properties:
        raise IllegalProperty(_bad_property(properties))
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise IllegalProperty(f"properties: not encodable as UTF-8 ({error.reason})") from error


def encode_route(group: str, topic: str) -> bytes:
    """The properties that every half and message of this group for this topic carries, before all others."""
    return encode_properties({PGROUP: group, REAL_TOPIC: topic})


def encode_dedup_keys(keys: Sequence[str]) -> list[bytes]:
    """The property that keeps a message's dedup key, of many messages; nothing where one has no key."""
    text = "".join(keys)
    if "\x01" in text or "\x02" in text:
        raise IllegalProperty(f"properties: {DEDUP_KEY!r} has a control character 0x01 or 0x02, which separate properties")
    try:
        return [f"{DEDUP_KEY}\x01{key}\x02".encode() if key else b"" for key in keys]
    except UnicodeEncodeError as error:
        raise IllegalProperty(f"properties: not encodable as UTF-8 ({error.reason})") from error


def _bad_property(properties: Mapping[str, str]) -> str:
    if "" in properties:
        return "properties: a name is empty"
    bad = next(name for name, value in properties.items() if any(sign in name + value for sign in "\x01\x02"))
    return f"properties: {bad!r} has a control character 0x01 or 0x02, which separate properties"


def encode_given_properties(properties: Mapping[str, str]) -> bytes:
    """A producer's properties; those that Escrow sets itself, and delays, are refused."""
    if not _REFUSED_PROPERTIES.isdisjoint(properties):
        name = next(name for name in properties if name in _REFUSED_PROPERTIES)
        if name in DELAY_PROPERTIES:
            raise DelayedHalf(f"properties: {name}: a half cannot be delayed, nor can an ordinary message be; leave it out")
        raise IllegalProperty(f"properties: {name} is set by Escrow; leave it out")
    return encode_properties(properties)


def decode_properties(content: bytes) -> dict[str, str]:
    """All of them; ValueError if these bytes are not properties."""
    pairs = content.decode().split("\x02")[:-1]
    return dict(pair.split("\x01", 1) for pair in pairs)


@final
class PropertyFinder:
    """Finds one property's value among encoded ones without decoding the others.

    A name counts only as a whole, between the separators: `my__DEDUP_KEY__` is not `__DEDUP_KEY__`."""

    __slots__ = ("_first", "_later")

    def __init__(self, name: str) -> None:
        self._first = f"{name}\x01".encode()
        self._later = b"\x02" + self._first

    def find(self, content: bytes) -> bytes | None:
        """The value, UTF-8; None where the property is not there."""
        if content.startswith(self._first):
            begin = len(self._first)
        elif (at := content.find(self._later)) >= 0:
            begin = at + len(self._later)
        else:
            return None
        stop = content.find(b"\x02", begin)
        return content[begin:stop] if stop >= 0 else None


class Texts(NamedTuple):
    """Values of one property of many messages: `content` from `offsets[n]` to `offsets[n + 1]` is the value of message n."""

    content: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]
    missing: npt.NDArray[np.bool_]

    def tolist(self) -> list[str | None]:
        text, ends = self.content.tobytes(), self.offsets.tolist()
        return [
            None if gone else text[begin:end].decode(errors="replace")
            for begin, end, gone in zip(ends[:-1], ends[1:], self.missing.tolist(), strict=True)
        ]


NO_TEXTS: Final = Texts(np.zeros(0, np.uint8), np.zeros(1, np.int64), np.zeros(0, np.bool_))


class PropertiesOfMany:
    """The encoded properties of many messages, laid out so that one property of all of them is found without a loop."""

    def __init__(self, contents: Sequence[bytes | memoryview]) -> None:
        # A separator before each: then every name stands between two separators, the first ones too.
        self._content = np.frombuffer(b"".join([b"\x02", b"\x02".join(contents), b"\x02"]), np.uint8)
        sizes = np.fromiter(map(len, contents), np.int64, len(contents))
        self._begins = np.cumsum(sizes + 1) - sizes - 1
        self._separators = np.flatnonzero(self._content == 2)

    def values(self, name: str) -> Texts:
        """The same as `PropertyFinder` for each."""
        content, places = self._content, self._separators
        for number, byte in enumerate(f"{name}\x01".encode(), 1):
            places = places[places + number < len(content)]
            places = places[content[places + number] == byte]
        rows = np.searchsorted(self._begins, places, side="right") - 1
        is_first = np.diff(rows, prepend=-1) != 0
        rows, begins = rows[is_first], places[is_first] + len(name.encode()) + 2
        sizes = np.zeros(len(self._begins), np.int64)
        sizes[rows] = self._separators[np.searchsorted(self._separators, begins)] - begins
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        # Where each byte of the values comes from.
        source = np.repeat(begins - offsets[rows], sizes[rows]) + np.arange(offsets[-1])
        missing = np.ones(len(sizes), np.bool_)
        missing[rows] = False
        return Texts(content[source], offsets, missing)
