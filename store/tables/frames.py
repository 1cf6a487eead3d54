"""Frames: the records of the commit log.

common head, 32 bytes
      0  u32  crc            CRC-32 (zlib) of bytes 4..size, started with the low 32 bits of the frame's own commit_log_offset;
                             of a PAD: of bytes 4..32
      4  u32  size_bytes     of the whole frame, head included; 0 = nothing was written here
      8  u16  magic          0xE5C0
     10  u8   kind           HALF 1, OP 2, MESSAGE 3, PAD 4
     11  u8   reserved       0
     12  u16  batch_length   frames appended together, all or none
     14  u16  batch_index    0 … batch_length - 1
     16  i64  queue_offset   HALF: half_offset · OP and MESSAGE: op_offset · PAD: 0
     24  i64  stored_at_ms

HALF and MESSAGE, 120 bytes of head, then body, then properties
     32  i64  born_at_ms        the producer's clock: shown, never used to decide
     40  i64  tags_code         Java's hashCode of TAGS, 0 without tags
     48  i32  group_no
     52  i32  topic_no          the real topic
     56  u16  queue_id          the real queue
     58  u16  sys_flag          4 = PREPARED on a half, 0 on a message
     60  u32  immunity_s        as parsed, 0 = not given
     64  16s  born_host         IPv6, or IPv4 mapped into it
     80  16s  store_host
     96  u16  born_port
     98  u16  store_port
    100  u32  flag              the producer's own
    104  u32  body_bytes
    108  u32  properties_bytes
    112  i64  position          MESSAGE: topic position · HALF: -1

OP, 56 bytes of head, then detail
     32  i64  half_offset       ASKED: -1
     40  i64  position          COMMIT: topic position, otherwise -1
     48  i32  group_no
     52  u8   op kind           OpKind
     53  u8   via               Via
     54  u16  detail_bytes
   detail: UTF-8 JSON object ({"actor": …, "remark": …}) or nothing. ASKED: detail, then the asked half_offsets, i64 each.

PAD fills the rest of a segment when a batch does not fit; fewer than 32 bytes are left without one.
A frame is valid when magic, kind, lengths and CRC fit. Starting the CRC with the offset makes a frame valid only where
it was written; that is how the physical offset of RocketMQ's frame is kept. Properties are `name 0x01 value 0x02` pairs.

Writer: the edge. Truth: rebuilt from nothing.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from itertools import chain
from operator import add, attrgetter, itemgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple, final, overload

import numpy as np

from store.errors import Corrupt, DelayedHalf, IllegalName, IllegalProperty
from store.records import NO_POSITION, OpKind, Via

MAGIC: Final = 0xE5C0


class FrameKind(IntEnum):
    HALF = 1
    OP = 2
    MESSAGE = 3
    PAD = 4


_COMMON: Final = [
    ("crc", "<u4"),
    ("size_bytes", "<u4"),
    ("magic", "<u2"),
    ("kind", "u1"),
    ("reserved", "u1"),
    ("batch_length", "<u2"),
    ("batch_index", "<u2"),
    ("queue_offset", "<i8"),
    ("stored_at_ms", "<i8"),
]
HEAD: Final = np.dtype(_COMMON)
_HEAD_NAMES: Final = frozenset(HEAD.names or ())
HEAD_STRUCT: Final = struct.Struct("<IIHBBHHqq")
assert HEAD.itemsize == HEAD_STRUCT.size == 32

HALF_HEAD: Final = np.dtype(
    [
        *_COMMON,
        ("born_at_ms", "<i8"),
        ("tags_code", "<i8"),
        ("group_no", "<i4"),
        ("topic_no", "<i4"),
        ("queue_id", "<u2"),
        ("sys_flag", "<u2"),
        ("immunity_s", "<u4"),
        ("born_host", "S16"),
        ("store_host", "S16"),
        ("born_port", "<u2"),
        ("store_port", "<u2"),
        ("flag", "<u4"),
        ("body_bytes", "<u4"),
        ("properties_bytes", "<u4"),
        ("position", "<i8"),
    ]
)
HALF_STRUCT: Final = struct.Struct("<IIHBBHHqqqqiiHHI16s16sHHIIIq")
HALF_HEAD_BYTES: Final = HALF_STRUCT.size
assert HALF_HEAD.itemsize == HALF_HEAD_BYTES == 120

OP_HEAD: Final = np.dtype(
    [
        *_COMMON,
        ("half_offset", "<i8"),
        ("position", "<i8"),
        ("group_no", "<i4"),
        ("op_kind", "u1"),
        ("via", "u1"),
        ("detail_bytes", "<u2"),
    ]
)
OP_STRUCT: Final = struct.Struct("<IIHBBHHqqqqiBBH")
assert OP_HEAD.itemsize == OP_STRUCT.size == 56

CRC_AT: Final = 0
_CRC: Final = struct.Struct("<I")
CRC_FROM: Final = 4
MAGIC_AT: Final = 8
KIND_AT: Final = 10
BATCH_MAX: Final = 0xFFFF
ASKED_MAX: Final = 4096
SYS_FLAG_PREPARED: Final = 4

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
#: A replayed dead letter: only this consumer group gets it, the others pass over it.
FOR_GROUP: Final = "__FOR_GROUP__"
#: A dead letter: where the message came from, who sent it, and how often it was handed out.
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_QUEUE: Final = "DLQ_ORIGIN_QUEUE"
DLQ_ORIGIN_OFFSET: Final = "DLQ_ORIGIN_OFFSET"
DLQ_ORIGIN_GROUP: Final = "DLQ_ORIGIN_GROUP"
DLQ_ATTEMPTS: Final = "DLQ_ATTEMPTS"
DLQ_PREFIX: Final = "%DLQ%"
SYSTEM_PREFIX: Final = "%SYS%"
LOST_PREFIX: Final = "%lost-"
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
        "__transactionId__",
        "TRANSACTION_CHECK_TIMES",
        "TRAN_PREPARED_QUEUE_OFFSET",
    }
)
#: How RocketMQ's clients say "later": by level, by time (5.x), and by time in the commercial edition.
DELAY_PROPERTIES: Final = frozenset({"DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "__STARTDELIVERTIME"})
_REFUSED_PROPERTIES: Final = OWN_PROPERTIES | DELAY_PROPERTIES

HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
DISCARD_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
RESERVED_TOPICS: Final = frozenset({HALF_TOPIC, OP_TOPIC, DISCARD_TOPIC})
NAME_MAX_BYTES: Final = 127
#: Tags that are longer are worked out each time: what is kept is bounded in bytes, too.
CACHED_TAGS_MAX: Final = 256
_NAME_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-%|.")

NO_HOST: Final = bytes(16)
NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})


class Message(NamedTuple):
    """What a producer hands in: a half, or an ordinary message."""

    group: str
    topic: str
    body: bytes
    properties: Mapping[str, str] = NO_PROPERTIES
    queue_id: int | None = None
    born_at_ms: int = 0
    born_host: bytes = NO_HOST
    born_port: int = 0
    immunity_s: int = 0
    flag: int = 0
    dedup_key: str = ""
    #: Properties that Escrow sets itself and that no producer may give: of dead letters and their replay.
    own: Mapping[str, str] = NO_PROPERTIES


#: So many messages, or ends, of a batch, and more, are worth a look at whether they are alike.
ALIKE_MIN: Final = 8


@final
class AlikeMessages(Sequence[Message]):
    """Messages of one group for one topic that ask for nothing special, in columns: nearly all that come many at a time.

    Ask for `type(…) is AlikeMessages`: `isinstance` is slow to say no of an abstract class's heir (half a microsecond)."""

    __slots__ = ("bodies", "born_at_ms", "born_host", "dedup_keys", "group", "topic")

    def __init__(
        self,
        group: str,
        topic: str,
        bodies: Sequence[bytes],
        dedup_keys: Sequence[str],
        born_at_ms: Sequence[int],
        *,
        born_host: bytes = NO_HOST,
    ) -> None:
        self.group, self.topic, self.born_host = group, topic, born_host
        self.bodies, self.dedup_keys, self.born_at_ms = bodies, dedup_keys, born_at_ms

    @staticmethod
    def of(messages: Sequence[Message]) -> AlikeMessages | None:
        """The same messages; None where they are not alike."""
        if type(messages) is AlikeMessages:
            return messages
        groups, topics, bodies, properties, queue_ids, born, hosts, ports, immunities, flags, keys, own = zip(
            *messages, strict=True
        )
        same = all(are_same(values) for values in (groups, topics, queue_ids, hosts))
        if not same or queue_ids[0] is not None or any(map(any, (properties, ports, immunities, flags, own))):
            return None
        return AlikeMessages(groups[0], topics[0], bodies, keys, born, born_host=hosts[0])

    def goes_with(self, other: Sequence[Message]) -> bool:
        """Whether both together are alike, too."""
        return type(other) is AlikeMessages and (self.group, self.topic, self.born_host) == (
            other.group, other.topic, other.born_host
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.bodies)

    @overload
    def __getitem__(self, at: int) -> Message: ...
    @overload
    def __getitem__(self, at: slice) -> list[Message]: ...
    def __getitem__(self, at: int | slice) -> Message | list[Message]:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        message = Message(self.group, self.topic, self.bodies[at])
        return message._replace(born_at_ms=self.born_at_ms[at], born_host=self.born_host, dedup_key=self.dedup_keys[at])


def are_same(values: Sequence[object]) -> bool:
    return values.count(values[0]) == len(values)


def joined(parts: Sequence[Sequence[Message]]) -> Sequence[Message]:
    """All of them as one, in columns where they are alike."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0] if parts else ()
    if type(first) is not AlikeMessages or not all(map(first.goes_with, parts)):
        return [message for part in parts for message in part]
    bodies, keys, born = (
        list(chain.from_iterable(map(attrgetter(name), parts))) for name in ("bodies", "dedup_keys", "born_at_ms")
    )
    return AlikeMessages(first.group, first.topic, bodies, keys, born, born_host=first.born_host)


def routes_of(messages: Sequence[Message]) -> set[tuple[str, str]]:
    """(group, topic) of messages."""
    if type(messages) is AlikeMessages:
        return {(messages.group, messages.topic)}
    return {(message.group, message.topic) for message in messages}


def groups_of(messages: Sequence[Message]) -> Sequence[str]:
    return [messages.group] * len(messages) if type(messages) is AlikeMessages else [message.group for message in messages]


def bodies_of(messages: Sequence[Message]) -> Sequence[bytes]:
    return messages.bodies if type(messages) is AlikeMessages else [message.body for message in messages]


def dedup_keys_of(messages: Sequence[Message]) -> Sequence[str]:
    return messages.dedup_keys if type(messages) is AlikeMessages else [message.dedup_key for message in messages]


class Op(NamedTuple):
    """What is said about a half, as the op log keeps it."""

    kind: OpKind
    half_offset: int
    group_no: int = -1
    via: Via = Via.PRODUCER
    position: int = NO_POSITION
    detail: bytes = b""
    asked: Sequence[int] = ()


@lru_cache(maxsize=4096)
def check_name(name: str, what: str) -> str:
    """A topic or group name that may be used, or IllegalName saying why not."""
    if not name:
        raise IllegalName(f"{what}: is empty; give it a name")
    if not _NAME_CHARACTERS.issuperset(name):
        raise IllegalName(f"{what}: {name[:40]!r} has characters other than letters, digits and _ - % | .")
    if len(name) > NAME_MAX_BYTES:
        raise IllegalName(f"{what}: {name[:40]!r}… is longer than {NAME_MAX_BYTES} bytes")
    if name in (".", ".."):
        raise IllegalName(f"{what}: {name!r} is not a name")
    if name.startswith(LOST_PREFIX):
        raise IllegalName(f"{what}: {name[:40]!r} is Escrow's own: names must not begin with {LOST_PREFIX}")
    if what == "topic" and name in RESERVED_TOPICS:
        raise IllegalName(f"topic: {name} is Escrow's own; producers may not send to it")
    return name


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
    """All of them; ValueError where these bytes are no properties."""
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


def crc_seed(commit_log_offset: int) -> int:
    return commit_log_offset & 0xFFFFFFFF


def frame_crc(frame: memoryview | bytes, commit_log_offset: int) -> int:
    return zlib.crc32(frame[CRC_FROM:], crc_seed(commit_log_offset))


def is_whole(frame: memoryview, commit_log_offset: int) -> bool:
    """Whether a frame of which place and size are known is what was written there."""
    return bool(_CRC.unpack_from(frame, CRC_AT)[0] == frame_crc(frame, commit_log_offset))


def encode_batch(heads: np.ndarray[Any, Any], tails: Sequence[Sequence[bytes]], commit_log_offset: int) -> bytearray:
    """Frames of one batch as one piece of bytes: heads filled in but for sizes, batch fields and CRC. `tails` are columns: each has
    something for every frame, and they follow its head one after another.

    Numbers are set for all frames at once; only the CRC is a loop.
    """
    count, width = len(heads), heads.dtype.itemsize
    sizes = [width] * count
    for column in tails:
        sizes = list(map(add, sizes, map(len, column)))
    heads["size_bytes"], heads["magic"] = sizes, MAGIC
    heads["batch_length"], heads["batch_index"] = count, np.arange(count)
    raw = heads.tobytes()
    if not tails:  # as of most ops
        data = bytearray(raw)
    else:
        stride = 1 + len(tails)
        parts: list[bytes] = [b""] * (stride * count)
        parts[::stride] = [raw[at : at + width] for at in range(0, len(raw), width)]
        for number, column in enumerate(tails, 1):
            parts[number::stride] = column
        data = bytearray().join(parts)
    view, crc32, pack_into, at = memoryview(data), zlib.crc32, _CRC.pack_into, 0
    for size in sizes:
        crc = crc32(view[at + CRC_FROM : at + size], (commit_log_offset + at) & 0xFFFFFFFF)
        pack_into(data, at + CRC_AT, crc)
        at += size
    return data


def encode_pad(size_bytes: int, commit_log_offset: int) -> bytes:
    """A PAD frame of the given size: its bytes behind the head are zero."""
    head = bytearray(HEAD_STRUCT.pack(0, size_bytes, MAGIC, FrameKind.PAD, 0, 1, 0, 0, 0))
    struct.pack_into("<I", head, CRC_AT, frame_crc(bytes(head), commit_log_offset))
    return bytes(head)


def op_heads(ops: Sequence[Op], first_op_offset: int, now_ms: int) -> np.ndarray[Any, Any]:
    kinds, half_offsets, group_nos, vias, positions, details, _ = zip(*ops, strict=True)
    heads = op_heads_of(half_offsets, kinds, vias, positions, first_op_offset=first_op_offset, now_ms=now_ms)
    heads["group_no"], heads["detail_bytes"] = group_nos, list(map(len, details))
    return heads


def op_heads_of(
    half_offsets: Sequence[int],
    kinds: Sequence[OpKind],
    vias: Sequence[Via],
    positions: Sequence[int],
    *,
    first_op_offset: int,
    now_ms: int,
) -> np.ndarray[Any, Any]:
    """Heads of ops without a detail and, so far, without a group."""
    count = len(half_offsets)
    heads = np.zeros(count, OP_HEAD)
    heads["kind"], heads["stored_at_ms"] = FrameKind.OP, now_ms
    heads["queue_offset"] = np.arange(first_op_offset, first_op_offset + count)
    heads["half_offset"], heads["op_kind"], heads["via"], heads["position"] = half_offsets, kinds, vias, positions
    return heads


def op_tails(ops: Sequence[Op]) -> list[list[bytes]]:
    """What follows the heads of ops, for `encode_batch`: mostly nothing does."""
    details, asked = [op.detail for op in ops], [np.asarray(op.asked, "<i8").tobytes() if op.asked else b"" for op in ops]
    return [column for column in (details, asked) if any(column)]


def encode_detail(actor: str = "", remark: str = "") -> bytes:
    """Actor and remark of an op; a remark that is too long is cut, never refused."""
    if not actor and not remark:
        return b""
    detail = {key: value for key, value in (("actor", actor[:256]), ("remark", remark[:1024])) if value}
    return json.dumps(detail).encode()


def read_head(log: memoryview, at: int = 0) -> tuple[int, ...]:
    """(crc, size, magic, kind, reserved, batch_length, batch_index, queue_offset, stored_at_ms)."""
    return HEAD_STRUCT.unpack_from(log, at)


def check_frame(frame: memoryview, commit_log_offset: int, file: str) -> None:
    """Raise Corrupt unless these bytes are a valid frame for this place."""
    if len(frame) < HEAD_STRUCT.size:
        raise Corrupt(file, commit_log_offset, f"a frame has at least {HEAD_STRUCT.size} bytes, not {len(frame)}")
    crc, size, magic, kind, *_ = read_head(frame)
    if magic != MAGIC or size != len(frame):
        raise Corrupt(file, commit_log_offset, f"not a frame of {len(frame)} bytes (magic {magic:#06x}, size {size})")
    # A PAD's rest is never read: its CRC covers the head only.
    covered = frame[: HEAD_STRUCT.size] if kind == FrameKind.PAD else frame
    if frame_crc(covered, commit_log_offset) != crc:
        raise Corrupt(file, commit_log_offset, "the frame's CRC does not match its bytes")


@dataclass(slots=True)
class Frame:
    """A decoded frame, for people and for consumers. Do not change it; frozen, it would take three times as long to make."""

    commit_log_offset: int
    size_bytes: int
    kind: FrameKind
    queue_offset: int
    stored_at_ms: int
    batch_length: int
    batch_index: int
    fields: dict[str, int]
    body: bytes = b""
    properties: dict[str, str] = field(default_factory=dict)
    detail: dict[str, str] = field(default_factory=dict)
    asked: tuple[int, ...] = ()


def decode_frame(frame: memoryview, commit_log_offset: int, file: str = "commitlog") -> Frame:
    """Decode a frame after checking it. The bytes are copied."""
    check_frame(frame, commit_log_offset, file)
    kind = FrameKind(frame[KIND_AT])
    if kind in (FrameKind.HALF, FrameKind.MESSAGE):
        return _decode_message(frame, commit_log_offset, kind)
    if kind == FrameKind.OP:
        return _decode_op(frame, commit_log_offset)
    _, size, _, _, _, length, index, queue_offset, stored_at_ms = read_head(frame)
    return Frame(commit_log_offset, size, kind, queue_offset, stored_at_ms, length, index, {})


class _Layout:
    """Decodes heads of one layout. Consumers get every message through here: one unpack, and no numpy."""

    def __init__(self, dtype: np.dtype[Any], layout: struct.Struct) -> None:
        names = dtype.names or ()
        numbers = [name for name in names if name not in _HEAD_NAMES and dtype[name].kind in "iu"]
        self._unpack, self._names = layout.unpack_from, numbers
        self._numbers = itemgetter(*[names.index(name) for name in numbers])

    def decode(self, frame: memoryview) -> tuple[tuple[Any, ...], dict[str, int]]:
        """(the common head, the numbers behind it by name)."""
        values = self._unpack(frame)
        return values[: len(_HEAD_NAMES)], dict(zip(self._names, self._numbers(values), strict=True))


_HALF_LAYOUT: Final = _Layout(HALF_HEAD, HALF_STRUCT)
_OP_LAYOUT: Final = _Layout(OP_HEAD, OP_STRUCT)


def _decode_message(frame: memoryview, commit_log_offset: int, kind: FrameKind) -> Frame:
    head, fields = _HALF_LAYOUT.decode(frame)
    body_at = HALF_HEAD_BYTES
    properties_at = body_at + fields["body_bytes"]
    if properties_at + fields["properties_bytes"] != len(frame):
        raise Corrupt("commitlog", commit_log_offset, "body and properties do not fill the frame")
    _, size, _, _, _, length, index, queue_offset, stored_at_ms = head
    body = bytes(frame[body_at:properties_at])
    try:
        properties = decode_properties(bytes(frame[properties_at:]))
    except ValueError as error:
        raise Corrupt("commitlog", commit_log_offset, f"properties that cannot be read ({error})") from error
    return Frame(commit_log_offset, size, kind, queue_offset, stored_at_ms, length, index, fields, body, properties)


def _decode_op(frame: memoryview, commit_log_offset: int) -> Frame:
    head, fields = _OP_LAYOUT.decode(frame)
    asked_at = OP_HEAD.itemsize + fields["detail_bytes"]
    asked = tuple(np.frombuffer(frame[asked_at:], "<i8").tolist())
    try:
        detail = json.loads(bytes(frame[OP_HEAD.itemsize : asked_at]) or b"{}")
    except ValueError:
        detail = {}
    _, size, _, kind, _, length, index, queue_offset, stored_at_ms = head
    place = commit_log_offset, size, FrameKind(kind), queue_offset, stored_at_ms
    return Frame(*place, length, index, fields, detail=detail, asked=asked)
