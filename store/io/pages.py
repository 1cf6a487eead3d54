"""Published pages: what one side of the store tells the other, and every reader, through a mapped file.

A page is 4,096 bytes: i64 slots, little-endian, slot n at byte 8·n, unused ones 0. Each slot is stored and loaded as one
aligned 8-byte word. Slot 0 holds the magic. A writer changes a slot only after what it speaks of is durable and in place.

`edge.published` (writer: the edge)            `job.published` (writer: the settling job)
    1 epoch          how often it was opened        1 epoch
    2 log_begin                                     2 generation       directory under transaction/ that is current
    3 log_end        flushed end of the log         3 half_cursor      settled up to here
    4 half_begin                                    4 op_cursor
    5 half_end       published before op_end        5 round_no
    6 op_begin                                      6 round_check_start  check entries before it have lapsed
    7 op_end         read before half_end           7 check_end
    8 heartbeat_ms                                  8 proposal_end
    9 visible_end    log_end, published last        9 discard_end
   10 consumers_end  flushed end of `consumers`    10 quarantine_end
   11 consumers_seal see journal_marks.py          11 log_low_water    the edge may delete the log before it
   12 audit_end      flushed end of `audit`        12 half_low_water   halves before it are gone
   13 audit_seal                                   13 op_low_water
                                                   14 now_ms           of the last settled batch
                                                   15 heartbeat_ms
                                                   16 row_begin        first row of the state table
                                                   17 tick             counted up to have the job's source offer a batch
                                                   18 sequence         of the last batch that was applied
                                                   19 marks_op_cursor  the low-water marks know of the ops before it
                                                   20-27 totals, in the order of `redo_log.TOTALS`
                                                   28 no_room_since_ms the job waits for room on the disk; 0 = it does not
                                                   29 features         what the job knows beside format 1: bit 0 transactions

Order matters in two places. An op's half is visible whenever the op is: the writer publishes half_end first, a reader reads op_end
first. Retention, which must know of every half and op in a part of the log, reads visible_end first and half_end and op_end
after it: log_end, which is published before them, may speak of records that they do not yet show.
Volatile: each side rewrites its page when it opens, except for the marks of journals (10 to 13), which their writers keep.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from store.errors import Corrupt
from store.io import disk

PAGE_BYTES: Final = 4096
EDGE_PUBLISHED: Final = "edge.published"
JOB_PUBLISHED: Final = "job.published"
EDGE_MAGIC: Final = 0x45_44_47_45_E5C0
JOB_MAGIC: Final = 0x4A_4F_42_E5C0


class EdgeSlot:
    EPOCH, LOG_BEGIN, LOG_END, HALF_BEGIN, HALF_END, OP_BEGIN, OP_END, HEARTBEAT_MS, VISIBLE_END = range(1, 10)
    CONSUMERS_END, CONSUMERS_SEAL, AUDIT_END, AUDIT_SEAL = range(10, 14)


class JobSlot:
    (
        EPOCH,
        GENERATION,
        HALF_CURSOR,
        OP_CURSOR,
        ROUND_NO,
        ROUND_CHECK_START,
        CHECK_END,
        PROPOSAL_END,
        DISCARD_END,
        QUARANTINE_END,
        LOG_LOW_WATER,
        HALF_LOW_WATER,
        OP_LOW_WATER,
        NOW_MS,
        HEARTBEAT_MS,
        ROW_BEGIN,
        TICK,
        SEQUENCE,
        MARKS_OP_CURSOR,
    ) = range(1, 20)
    TOTALS = 20
    NO_ROOM_SINCE_MS = 28
    FEATURES = 29


#: Bits of JobSlot.FEATURES.
FEATURE_TRANSACTIONS: Final = 1


#: Slots from here on are unused.
_STOPS: Final = {EDGE_MAGIC: EdgeSlot.AUDIT_SEAL + 1, JOB_MAGIC: JobSlot.FEATURES + 1}


class PublishedPage:
    """One mapped page of i64 slots."""

    def __init__(self, path: Path, magic: int, *, writable: bool = False) -> None:
        if writable and not path.exists():
            disk.create_segment(path, PAGE_BYTES, "published")
        fd = disk.open_file(path, writable)
        try:
            self._slots = np.frombuffer(disk.map_file(fd, PAGE_BYTES, writable, path), "<i8")
        finally:
            disk.close_file(fd)
        if writable:
            if int(self._slots[0]) not in (0, magic):
                self._slots[:] = 0  # another file was put here: nothing in it is an end of this store
            self._slots[0] = magic
            self._slots[_STOPS.get(magic, len(self._slots)) :] = 0  # damage, or of a later release: not used here
        elif int(self._slots[0]) != magic:
            raise Corrupt(path, 0, "not a published page of this kind")

    def __getitem__(self, slot: int) -> int:
        return int(self._slots[slot])

    def __setitem__(self, slot: int, value: int) -> None:
        self._slots[slot] = value
