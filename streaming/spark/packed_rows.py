"""Packed chunks: how a feed travels through Spark. One row holds many fixed-width records as bytes.

    row     kind     first                      count              payload
    range   RANGE    -                          1                  RANGE_RECORD: half and op range and tick of the batch
    halves  HALVES   number within the feed     records in it      records.HALF, packed
    ops     OPS      number within the feed     records in it      records.OP, packed

Every batch has exactly one range row; the others come in order of `first`. A repeated task may deliver a row twice or out of order
after a failure: `unpack` puts them in order, takes each once, and refuses a feed with a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np

from store.arrays import Array
from store.records import HALF, OP
from streaming.settlement.settle import Feed

CHUNK_RECORDS: Final = 65_536
SCHEMA: Final = "kind tinyint, first bigint, count int, payload binary"
RANGE_RECORD: Final = np.dtype([(name, "<i8") for name in ("half_start", "half_stop", "op_start", "op_stop", "tick")])
assert RANGE_RECORD.itemsize == 40

Row = tuple[int, int, int, bytes]


class ChunkKind(IntEnum):
    RANGE = 0
    HALVES = 1
    OPS = 2


@dataclass(frozen=True, slots=True)
class Delivery:
    """What one micro-batch brought."""

    feed: Feed
    tick: int


def pack(feed: Feed, tick: int) -> list[Row]:
    """A feed as rows."""
    head = np.array([(feed.half_start, feed.half_stop, feed.op_start, feed.op_stop, tick)], RANGE_RECORD)
    rows: list[Row] = [(int(ChunkKind.RANGE), 0, 1, head.tobytes())]
    rows += _chunks(ChunkKind.HALVES, feed.halves)
    rows += _chunks(ChunkKind.OPS, feed.ops)
    return rows


def _chunks(kind: ChunkKind, records: Array) -> Iterator[Row]:
    for first in range(0, len(records), CHUNK_RECORDS):
        part = records[first : first + CHUNK_RECORDS]
        yield int(kind), first, len(part), part.tobytes()


def unpack(rows: Iterable[Row]) -> Delivery:
    """The feed that rows carry."""
    by_kind: dict[int, dict[int, Row]] = {kind: {} for kind in ChunkKind}
    for row in rows:
        by_kind[row[0]][row[1]] = row
    head = np.frombuffer(by_kind[ChunkKind.RANGE][0][3], RANGE_RECORD)[0]
    halves = _joined(by_kind[ChunkKind.HALVES], HALF)
    ops = _joined(by_kind[ChunkKind.OPS], OP)
    half_start, half_stop, op_start, op_stop, tick = (int(value) for value in head)
    if len(halves) != half_stop - half_start or len(ops) < op_stop - op_start:
        raise ValueError(
            f"the batch brings {len(halves)} halves of {half_stop - half_start} and {len(ops)} ops of {op_stop - op_start}"
        )
    return Delivery(Feed(half_start, half_stop, op_start, op_stop, halves, ops), tick)


def _joined(chunks: dict[int, Row], dtype: np.dtype[Any]) -> Array:
    parts = [np.frombuffer(chunks[first][3], dtype, chunks[first][2]) for first in sorted(chunks)]
    if not parts:
        return np.empty(0, dtype)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
