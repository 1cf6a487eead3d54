"""Ends, dedup keys and names of transactions of records that are in the log and not yet flushed.

A mapped page may reach the disk before the log does. So ends, keys and names wait in memory until the log is flushed
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
    names: dict[bytes, Known]


class Unflushed:
    """Call its methods under the append lock; `end_of` needs no lock."""

    def __init__(self, ends_table: EndsTable, dedup: Dedup, names: Dedup) -> None:
        self._ends_table, self._dedup, self._names = ends_table, dedup, names
        self._waiting: deque[_Waiting] = deque()
        #: (ticket, end) by half_offset, and (ticket, what it led to) by dedup key and by name.
        self.marks: dict[int, tuple[int, int]] = {}
        self.keys: dict[bytes, tuple[int, Known]] = {}
        self.names: dict[bytes, tuple[int, Known]] = {}

    def end_of(self, half_offset: int) -> int:
        """The half's end as of the last op in the log, flushed or not."""
        waiting = self.marks.get(half_offset)
        return self._ends_table[half_offset] if waiting is None else waiting[1]

    def known(self, digests: Sequence[bytes], now_s: int) -> dict[bytes, Known]:
        """What these dedup keys led to, in the tables or waiting here; unknown keys are left out."""
        known = self._dedup.find([digest for digest in digests if digest], now_s)
        known.update({digest: self.keys[digest][1] for digest in self.keys.keys() & digests})
        return known

    def named(self, digest: bytes, now_s: int) -> Known | None:
        """The half that was committed under a name, in the table or waiting here."""
        waiting = self.names.get(digest)
        return self._names.get(digest, now_s) if waiting is None else waiting[1]

    def add(self, ticket: int, marks: dict[int, int], keys: dict[bytes, Known], names: dict[bytes, Known] | None = None) -> None:
        if marks or keys:
            self._waiting.append(_Waiting(ticket, marks, keys, names or {}))
            self.marks.update({half_offset: (ticket, mark) for half_offset, mark in marks.items()})
            self.keys.update({key: (ticket, known) for key, known in keys.items()})
            if names:
                self.names.update({name: (ticket, known) for name, known in names.items()})

    def settle(self, log_end: int) -> None:
        """The log is durable up to `log_end`: write its ends, keys and names into their tables."""
        while self._waiting and self._waiting[0].ticket <= log_end:
            done = self._waiting.popleft()
            for half_offset, mark in done.marks.items():
                self._ends_table[half_offset] = mark
                if self.marks[half_offset][0] == done.ticket:
                    del self.marks[half_offset]
            for table, waiting, settled in (
                (self._dedup, self.keys, done.keys), (self._names, self.names, done.names)
            ):  # fmt: skip
                table.put_all(settled)
                for key in settled:
                    if waiting[key][0] == done.ticket:
                        del waiting[key]
