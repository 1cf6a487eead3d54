"""Ends and dedup keys of records that are in the log and not yet flushed.

A mapped page may reach the disk before the log does. So ends and keys wait in memory until the log is flushed
behind their records, and only then go into their tables.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from store.tables.dedup import Dedup, Known
from store.tables.ends import EndsTable


class _Waiting(NamedTuple):
    """What goes into the tables when the log is flushed up to the ticket."""

    ticket: int
    marks: dict[int, int]
    keys: dict[bytes, Known]


class Unflushed:
    """Call its methods under the append lock; `end_of` needs no lock."""

    def __init__(self, ends_table: EndsTable, dedup: Dedup) -> None:
        self._ends_table, self._dedup = ends_table, dedup
        self._waiting: deque[_Waiting] = deque()
        #: (ticket, end) by half_offset, and (ticket, what it led to) by dedup key.
        self.marks: dict[int, tuple[int, int]] = {}
        self.keys: dict[bytes, tuple[int, Known]] = {}

    def end_of(self, half_offset: int) -> int:
        """The half's end as of the last op in the log, flushed or not."""
        waiting = self.marks.get(half_offset)
        return self._ends_table[half_offset] if waiting is None else waiting[1]

    def known(self, digests: Sequence[bytes], now_s: int) -> dict[bytes, Known]:
        """What these dedup keys led to, in the tables or waiting here; unknown keys are left out."""
        known = self._dedup.find([digest for digest in digests if digest], now_s)
        known.update({digest: self.keys[digest][1] for digest in self.keys.keys() & digests})
        return known

    def add(self, ticket: int, marks: dict[int, int], keys: dict[bytes, Known]) -> None:
        if marks or keys:
            self._waiting.append(_Waiting(ticket, marks, keys))
            self.marks.update({half_offset: (ticket, mark) for half_offset, mark in marks.items()})
            self.keys.update({key: (ticket, known) for key, known in keys.items()})

    def settle(self, log_end: int) -> None:
        """The log is durable up to `log_end`: write its ends and keys into their tables."""
        while self._waiting and self._waiting[0].ticket <= log_end:
            done = self._waiting.popleft()
            for half_offset, mark in done.marks.items():
                self._ends_table[half_offset] = mark
                if self.marks[half_offset][0] == done.ticket:
                    del self.marks[half_offset]
            self._dedup.put_all(done.keys)
            for key in done.keys:
                if self.keys[key][0] == done.ticket:
                    del self.keys[key]
