"""Consumers: how far each consumer group has read, and what it has in hand. A journal (`journal.py`) of 32-byte payloads.

      0  u8   kind           OFFSET 1: every entry before queue_offset is done · RECEIPT 2: the entry was handed out ·
                             DONE 3: acknowledged out of order · SEEK 4: the group was put here, whatever it had done before
      1  u8   edition        of the topic number (`names.py`): whatever was noted of an earlier topic with it is void
      2  u16  attempts       RECEIPT: how often it was handed out so far
      4  i32  group_no       the consumer group's number in the dictionary
      8  i64  queue_key      topic_no << 6 | queue_id
     16  i64  queue_offset
     24  i64  visible_at_ms  RECEIPT: when the entry may be handed out again

The last record about an entry counts; an OFFSET ends all records about entries before it, a SEEK all records about its queue.
Writer: the edge. Truth: rebuilt from nothing. RECEIPTs are written without a flush (they survive the process, and the next flush
makes them durable); OFFSET, DONE and SEEK are durable before they are reported. When the journal holds far more records than are in
force, it is rewritten with these.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Final

from store.errors import Corrupt
from store.io.journal import Journal
from store.io.pages import EdgeSlot

NAME: Final = "consumers"
#: Where the page says how far it was flushed.
MARK_SLOT: Final = EdgeSlot.CONSUMERS_END
RECORD: Final = struct.Struct("<BBHiqqq")
assert RECORD.size == 32
COMPACT_FROM: Final = 65_536


class ConsumerKind(IntEnum):
    OFFSET = 1
    RECEIPT = 2
    DONE = 3
    SEEK = 4


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    kind: ConsumerKind
    group_no: int
    queue_key: int
    queue_offset: int
    attempts: int = 0
    visible_at_ms: int = 0
    edition: int = 0

    def encode(self) -> bytes:
        places = self.group_no, self.queue_key, self.queue_offset
        return RECORD.pack(self.kind, self.edition, self.attempts, *places, self.visible_at_ms)


def decode(payload: bytes) -> ConsumerRecord:
    kind, edition, attempts, group_no, queue_key, queue_offset, visible_at_ms = RECORD.unpack(payload)
    return ConsumerRecord(ConsumerKind(kind), group_no, queue_key, queue_offset, attempts, visible_at_ms, edition)


@dataclass(slots=True)
class Progress:
    """One group's progress in one queue: all before `offset` is done; of the later entries these are out or done."""

    offset: int = 0
    ahead: dict[int, ConsumerRecord] = field(default_factory=dict)
    edition: int = 0

    def pass_to(self, queue_offset: int) -> None:
        """All before `queue_offset` is done: what was noted about it goes."""
        if 0 <= queue_offset - self.offset <= len(self.ahead):
            for at in range(self.offset, queue_offset):
                self.ahead.pop(at, None)
        elif self.ahead:
            self.ahead = {at: kept for at, kept in self.ahead.items() if at >= queue_offset}
        self.offset = queue_offset


class Consumers:
    """Progress of every group in every queue."""

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        self._journal = Journal(path, NAME, writable=writable, mark_slot=MARK_SLOT)
        self.progress: dict[tuple[int, int], Progress] = {}
        #: Whether a topic number (of a queue key) is in this edition and its topic is there; what was noted of others goes.
        self.is_there: Callable[[int, int], bool] = lambda _queue_key, _edition: True
        self._written, self._count_from = 0, COMPACT_FROM
        for payload in self._journal.recover() if writable else self._journal.read_new():
            try:
                self._learn(decode(payload))
            except (struct.error, ValueError) as error:
                reason = f"not a consumer's record ({error}): another file was put here. Put it back from a backup"
                raise Corrupt(path, 0, reason) from error

    def _learn(self, record: ConsumerRecord) -> None:
        self._written += 1
        progress = self.progress.get((record.group_no, record.queue_key))
        if progress is None or progress.edition < record.edition:
            progress = self.progress[record.group_no, record.queue_key] = Progress(edition=record.edition)
        elif progress.edition > record.edition:  # it waited for room on the disk until its topic was removed
            return
        if record.kind == ConsumerKind.OFFSET:
            progress.pass_to(record.queue_offset)
        elif record.kind == ConsumerKind.SEEK:
            progress.offset, progress.ahead = record.queue_offset, {}
        else:
            progress.ahead[record.queue_offset] = record

    def append(self, records: Sequence[ConsumerRecord]) -> None:
        """Take note of records; durable on return."""
        self._journal.append([record.encode() for record in records])
        self._learned(records)
        if self.is_long():
            self.compact()

    def write(self, records: Sequence[ConsumerRecord]) -> None:
        """Take note of records without a flush: they survive this process, and `flush` makes them durable."""
        self._journal.write([record.encode() for record in records])
        self._learned(records)

    def _learned(self, records: Sequence[ConsumerRecord]) -> None:
        for record in records:
            self._learn(record)

    def flush(self) -> None:
        self._journal.flush()

    def is_long(self) -> bool:
        """Whether it holds far more records than are in force: time to `compact`."""
        if self._written < self._count_from:
            return False
        in_force = len(self.progress) + sum(len(progress.ahead) for progress in self.progress.values())
        if self._written > 4 * in_force:
            return True
        # Counted again when a quarter more was written, not at every write: there may be very many groups and queues.
        self._count_from = self._written + self._written // 4
        return False

    def in_force(self) -> list[ConsumerRecord]:
        """The records that say all there is to say."""
        kept = []
        for (group_no, queue_key), progress in sorted(self.progress.items()):
            kept.append(ConsumerRecord(ConsumerKind.OFFSET, group_no, queue_key, progress.offset, edition=progress.edition))
            kept += [progress.ahead[at] for at in sorted(progress.ahead)]
        return kept

    def clip(self, ends: Mapping[int, int]) -> bool:
        """No group has read beyond the end of a queue (by queue key). Whether one had, in memory: `compact` writes it."""
        clipped = False
        for (_, queue_key), progress in self.progress.items():
            end = ends.get(queue_key, 0)
            if progress.offset > end or any(at >= end for at in progress.ahead):
                progress.offset = min(progress.offset, end)
                progress.ahead = {at: record for at, record in progress.ahead.items() if at < end}
                clipped = True
        return clipped

    def forget_removed(self) -> None:
        """What was noted of topics that are there no more goes."""
        self.progress = {at: progress for at, progress in self.progress.items() if self.is_there(at[1], progress.edition)}

    def compact(self) -> None:
        self.forget_removed()
        kept = self.in_force()
        self._journal.replace([record.encode() for record in kept])
        self._written, self._count_from = len(kept), COMPACT_FROM

    def close(self) -> None:
        self._journal.close()
