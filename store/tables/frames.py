"""Frames: the records of the commit log.

common head, 32 bytes
      0  u32  crc            CRC-32 (zlib) of bytes 4..size, started with the low 32 bits of the frame's own commit_log_offset;
                             of a PAD: of bytes 4..32
      4  u32  size_bytes     of the whole frame, head included; 0 = nothing was written here
      8  u16  magic          0xE5C0
     10  u8   kind           HALF 1, OP 2, MESSAGE 3, PAD 4
     11  u8   frame_flags       OP: 1 = ITEMS, 2 = JOINT · others: 0
     12  u16  batch_length   frames appended together, all or none
     14  u16  batch_index    0 … batch_length - 1
     16  i64  queue_offset   HALF: half_offset · OP and MESSAGE: op_offset, of an op with items the first of theirs · PAD: 0
     24  i64  stored_at_ms

HALF and MESSAGE, 120 bytes of head, then body, then properties
     32  i64  born_at_ms        the producer's clock: shown, never used to decide
     40  i64  tags_code         Java's hashCode of TAGS, 0 without tags
     48  i32  group_no
     52  i32  topic_no          the real topic
     56  u16  queue_id          the real queue
     58  u16  sys_flag          4 = PREPARED on a half, with 16 = MEMBER, 128 = NAMED; 0 on a message
     60  u32  immunity_s        as parsed, 0 = not given · MEMBER: its ordinal, from 1 on
     64  16s  born_host         IPv6, or IPv4 mapped into it
     80  16s  store_host
     96  u16  born_port
     98  u16  store_port
    100  u32  flag              the producer's own
    104  u32  body_bytes
    108  u32  properties_bytes
    112  i64  position          MESSAGE: topic position · HALF: -1 · MEMBER: half_offset of its head

OP, 56 bytes of head, then detail
     32  i64  half_offset       ASKED: -1
     40  i64  position          COMMIT: topic position, otherwise -1
     48  i32  group_no
     52  u8   op kind           OpKind
     53  u8   via               Via
     54  u16  detail_bytes
   detail: UTF-8 JSON object ({"actor": …, "remark": …}) or nothing. ASKED: detail, then the asked half_offsets, i64 each.
   ITEMS (COMMIT and ROLLBACK only): detail, then what it ends, 16 bytes each. The op has as many numbers as items, and its
   half_offset and position are those of the first.

item, 16 bytes
      0  i64  kind << 56 | half_offset   0 = HEAD, a half of its own; 1 = MEMBER of the last head before it
      8  i64  position                   COMMIT: its topic position · ROLLBACK: -1
   JOINT: all heads end together, or none does.

PAD fills the rest of a segment when a batch does not fit; fewer than 32 bytes are left without one.
A frame is valid when magic, kind, lengths and CRC fit. Starting the CRC with the offset makes a frame valid only where
it was written; that is how the physical offset of RocketMQ's frame is kept. Properties are `name 0x01 value 0x02` pairs.

Writer: the edge. Truth: rebuilt from nothing.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from operator import add, itemgetter
from typing import Any, Final, NamedTuple

import numpy as np

from store.errors import Corrupt
from store.properties import decode_properties
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
    ("frame_flags", "u1"),
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
SYS_FLAG_MEMBER: Final = 16
SYS_FLAG_NAMED: Final = 128
SYS_FLAG_AT: Final = 58
FRAME_FLAGS_AT: Final = 11
OP_ITEMS: Final = 1
OP_JOINT: Final = 2

#: One of the halves that an op with items ends.
ITEM: Final = np.dtype([("what", "<i8"), ("position", "<i8")])
assert ITEM.itemsize == 16
_ITEM_SHIFT: Final = 56
_ITEM_MASK: Final = (1 << _ITEM_SHIFT) - 1


class Item(NamedTuple):
    """A half that an op ends together with others: a head, or a member of the head before it."""

    half_offset: int
    position: int = NO_POSITION
    member: bool = False


def encode_items(items: Sequence[Item]) -> bytes:
    encoded = np.empty(len(items), ITEM)
    encoded["what"] = [item.half_offset | item.member << _ITEM_SHIFT for item in items]
    encoded["position"] = [item.position for item in items]
    return encoded.tobytes()


def items_in(frame: memoryview) -> np.ndarray[Any, Any]:
    """The items of a whole op frame that has them."""
    detail_bytes = OP_STRUCT.unpack_from(frame)[14]
    rest = frame[OP_STRUCT.size + detail_bytes :]
    return np.frombuffer(rest[: len(rest) - len(rest) % ITEM.itemsize], ITEM)


def halves_of_items(items: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """(half_offsets, how far before each its head lies: 0 of a head itself)."""
    half_offsets, is_member = items["what"] & _ITEM_MASK, (items["what"] >> _ITEM_SHIFT) == 1
    if not is_member.any():
        return half_offsets, np.zeros(len(items), np.int64)
    last_head = np.maximum.accumulate(np.where(is_member, 0, np.arange(len(items))))
    return half_offsets, np.where(is_member, half_offsets - half_offsets[last_head], 0)


class Op(NamedTuple):
    """An op about a half, as the op log keeps it."""

    kind: OpKind
    half_offset: int
    group_no: int = -1
    via: Via = Via.PRODUCER
    position: int = NO_POSITION
    detail: bytes = b""
    asked: Sequence[int] = ()
    items: Sequence[Item] = ()
    joint: bool = False

    @property
    def numbers(self) -> int:
        """How many op numbers it takes."""
        return len(self.items) or 1


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
    kinds, half_offsets, group_nos, vias, positions, details, _, items, joint = zip(*ops, strict=True)
    heads = op_heads_of(half_offsets, kinds, vias, positions, first_op_offset=first_op_offset, now_ms=now_ms)
    heads["group_no"], heads["detail_bytes"] = group_nos, list(map(len, details))
    if any(items):
        counts = np.array([op.numbers for op in ops])
        heads["queue_offset"] = first_op_offset + np.cumsum(counts) - counts
        heads["frame_flags"] = [OP_ITEMS * bool(its) | OP_JOINT * one for its, one in zip(items, joint, strict=True)]
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
    items = [encode_items(op.items) if op.items else b"" for op in ops]
    return [column for column in (details, asked, items) if any(column)]


def encode_detail(actor: str = "", remark: str = "", **more: str | int) -> bytes:
    """Actor and remark of an op; a remark that is too long is cut, never refused."""
    if not actor and not remark and not more:
        return b""
    detail = {key: value for key, value in (("actor", actor[:256]), ("remark", remark[:1024])) if value}
    return json.dumps({**detail, **more}).encode()


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
    items: tuple[Item, ...] = ()
    joint: bool = False

    @property
    def numbers(self) -> int:
        """How many op numbers an op takes."""
        return len(self.items) or 1

    def item(self, half_offset: int) -> Item:
        """What an op says of one of the halves that it ends."""
        own = Item(self.fields["half_offset"], self.fields["position"])
        return next((item for item in self.items if item.half_offset == half_offset), own)


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
    _, size, _, kind, flags, length, index, queue_offset, stored_at_ms = head
    rest_at = OP_HEAD.itemsize + fields["detail_bytes"]
    try:
        detail = json.loads(bytes(frame[OP_HEAD.itemsize : rest_at]) or b"{}")
    except ValueError:
        detail = {}
    place = commit_log_offset, size, FrameKind(kind), queue_offset, stored_at_ms
    if flags & OP_ITEMS:
        items = items_in(frame)
        half_offsets, follows = halves_of_items(items)
        columns = half_offsets.tolist(), items["position"].tolist(), (follows != 0).tolist()
        found = tuple(map(Item, *columns))
        return Frame(*place, length, index, fields, detail=detail, items=found, joint=bool(flags & OP_JOINT))
    asked = tuple(np.frombuffer(frame[rest_at:], "<i8").tolist())
    return Frame(*place, length, index, fields, detail=detail, asked=asked)
