"""Where a consumer group begins: `earliest`, `latest`, or a time.

A time means *released at or after*: when the commit was stored, not when the half was. The op log is in that order, so its first op
of that time is found by halving, and the places that it and the ops behind it give are where the queues of the topic begin. (A
clock that was set back makes this as exact as that clock was.) Searching a sparse topic reads many ops: it runs beside the event
loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import numpy as np

from ingest.errors import InvalidRequest
from store.directory import StoreDirectory
from store.errors import StoreError
from store.read.readers import LogReader
from store.records import queue_key_of, queue_offset_of

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_OPS_AT_ONCE: Final = 65_536


def parse_start(text: str, field: str) -> str | int:
    """`earliest`, `latest` or a time in ms since 1970; InvalidRequest names the field."""
    if text in (EARLIEST, LATEST):
        return text
    if text.isascii() and text.isdecimal() and len(text) < 18:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidRequest(
            f"{field}: {text[:40]!r} is neither {EARLIEST} nor {LATEST} nor a time: write milliseconds since 1970, or RFC 3339 "
            "with its offset (2027-01-15T08:00:00Z)"
        )
    return int(moment.timestamp() * 1000)


def offsets_at(directory: StoreDirectory, queue_keys: Sequence[int], at_ms: int) -> dict[int, int]:
    """For each queue the place of its first message released at or after a time; queues without one are left out."""
    log = LogReader(directory)
    try:
        return _search(log, set(queue_keys), at_ms)
    finally:
        log.close()


def _search(log: LogReader, wanted: set[int], at_ms: int) -> dict[int, int]:
    end = log.ends()[1]
    first, found = _first_op(log, log.op_queue.begin, end, at_ms), dict[int, int]()
    while first < end and wanted:
        stop = min(end, first + _OPS_AT_ONCE)
        positions = log.positions(first, stop)
        keys, offsets = queue_key_of(positions), queue_offset_of(positions)
        for queue_key in list(wanted):
            here = offsets[keys == queue_key]
            if len(here):
                found[queue_key] = int(np.min(here))
                wanted.discard(queue_key)
        first = stop
    return found


def _first_op(log: LogReader, low: int, high: int, at_ms: int) -> int:
    """The first op stored at or after a time, by halving; `high` where there is none."""
    while low < high:
        middle = (low + high) // 2
        probe, stored_at_ms = middle, None
        while probe < high and (stored_at_ms := _stored_at_ms(log, probe)) is None:
            probe += 1  # corrupt: its neighbour tells
        if stored_at_ms is None or stored_at_ms >= at_ms:
            high = middle
        else:
            low = probe + 1
    return low


def _stored_at_ms(log: LogReader, op_offset: int) -> int | None:
    try:
        op = log.ops(op_offset, op_offset + 1)[0]
    except (StoreError, IndexError):
        return None
    return None if op["corrupt"] else int(op["stored_at_ms"])
