"""Pending halves by producer group: how many, and since when the oldest of each group waits.
Volatile: counted again at every start.

`PendingByGroup` is the edge's: exact as of the last op in the log. `change` and `halves` keep it up to date, under the store's
append lock; `count` makes it from the files, in a thread, while the edge goes on:
    1  under the lock: up to which half is counted; what comes later is added as it comes
    2  for each piece: under the lock copy the ends of its halves and note how far we are, so that an end counts once, either
       because the copy has it or because it came behind us; then look up the groups of the open ones, without the lock
    3  under the lock: the new counts take the place of the old ones
A half's group is in its row of the state table, and in its frame while the job has not read it: rows are dense, frames are not.

`OldestPending` looks at the files like any reader.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from store.arrays import Ints
from store.directory import StoreDirectory
from store.edge.append.unflushed import Unflushed
from store.edge.files import EdgeFiles, EdgeState
from store.io.pages import EdgeSlot, JobSlot
from store.read.readers import TopicReader
from store.read.rows import Rows
from store.records import State, state_of
from store.tables.ends import EndsTable
from store.tables.redo_log import TOTALS

PIECE: Final = 1 << 18
#: Of the halves that the job has not read, this many are looked at for their age, oldest first.
TAIL_HALVES: Final = 65_536
NEVER_S: Final = 0xFFFF_FFFF


class PendingByGroup:
    """Counts by group_no. `known` is False until the first count is through, `stale` asks for another."""

    def __init__(self, files: EdgeFiles, state: EdgeState, unflushed: Unflushed, lock: threading.Lock) -> None:
        self._files, self._state, self._unflushed, self._lock = files, state, unflushed, lock
        self.counts: list[int] = []
        #: Halves of each group that have ended since the start: how fast a group's pending ones go.
        self.ended: list[int] = []
        self.known, self.stale = False, True
        self._fresh: list[int] | None = None
        self._scanned = self._stop = 0
        self._counting, self._stopping = threading.Lock(), False

    def of(self, group_no: int) -> int:
        return self.counts[group_no] if group_no < len(self.counts) else 0

    def ended_of(self, group_no: int) -> int:
        return self.ended[group_no] if group_no < len(self.ended) else 0

    # --- under the append lock ------------------------------------------------------------------------------------------
    def halves(self, group_nos: list[int]) -> None:
        """New halves: behind everything that is being counted."""
        new = Counter(group_nos).items()
        for counts in (self.counts, self._fresh):
            if counts is not None:
                for group_no, count in new:
                    _add(counts, group_no, count)

    def change(self, half_offset: int, group_no: int, difference: int) -> None:
        """A half was ended (-1) or opened again (+1). If the group is no longer known, count everything again."""
        if group_no < 0:
            self.stale = True
            return
        _add(self.counts, group_no, difference)
        if difference < 0:
            _add(self.ended, group_no, 1)
        if self._fresh is not None and not self._scanned <= half_offset < self._stop:
            _add(self._fresh, group_no, difference)

    def end_all(self, half_offsets: Sequence[int], group_no: int) -> None:
        """These halves of one group, which is known, were ended."""
        _add(self.counts, group_no, -len(half_offsets))
        _add(self.ended, group_no, len(half_offsets))
        if self._fresh is not None:
            counted = sum([not self._scanned <= half_offset < self._stop for half_offset in half_offsets])
            _add(self._fresh, group_no, -counted)

    # --- in a thread ------------------------------------------------------------------------------------------------------
    def count(self) -> None:
        """Count everything again. StoreError or IndexError if files change meanwhile: then retry."""
        with self._counting:
            rows = Rows(self._files.directory)
            try:
                self._count(rows)
            except BaseException:
                self.stale = True
                raise
            finally:
                self._fresh = None
                rows.close()

    def _count(self, rows: Rows) -> None:
        fresh: list[int] = []
        with self._lock:  # 1
            self.stale = False
            self._scanned = max(self._files.half_queue.begin, self._state.half_begin)
            self._stop = self._state.half_end
            self._fresh = fresh
        while self._scanned < self._stop and not self._stopping:  # 2
            groups = rows.groups_of(self._next_open())
            counted = np.bincount(groups[groups >= 0])
            with self._lock:
                for group_no in np.flatnonzero(counted).tolist():
                    _add(fresh, group_no, int(counted[group_no]))
        with self._lock:  # 3
            if not self._stopping:
                self.counts, self.known, self._fresh = fresh, True, None

    def _next_open(self) -> Ints:
        """The open halves of the next piece."""
        with self._lock:
            first = self._scanned
            stop = min(self._stop, first + PIECE)
            ends = np.frombuffer(self._files.ends_table.file.view(first, stop - first), np.uint8).copy()
            for half_offset, (_, mark) in self._unflushed.marks.items():
                if first <= half_offset < stop:
                    ends[half_offset - first] = mark
            self._scanned = stop
        return np.flatnonzero(ends == 0).astype(np.int64) + first

    def close(self) -> None:
        """A count that is under way ends at its next piece."""
        self._stopping = True
        with self._counting:
            pass


def _add(counts: list[int], number: int, difference: int) -> None:
    if number >= len(counts):
        counts.extend([0] * (number + 1 - len(counts)))
    counts[number] += difference


class OldestPending:
    """Since when the oldest pending half of each group waits. One thread at a time."""

    def __init__(self, directory: StoreDirectory) -> None:
        self._rows = Rows(directory)
        self._ends = EndsTable(directory.ends())
        #: Files of the state table that the job has filled and that hold nothing pending; a resume may change that.
        self._empty: set[int] = set()
        self._seen: tuple[int, int] = (-1, -1)

    def sample(self, group_count: int) -> npt.NDArray[np.uint32]:
        """stored_at_s of the oldest pending half by group_no; NEVER_S if there is none. StoreError or IndexError if files
        change meanwhile: then retry."""
        oldest = np.full(group_count, NEVER_S, np.uint32)
        page, topics = self._rows.log.page, self._rows.topics()
        begin = page[EdgeSlot.HALF_BEGIN]
        cursor = topics.page[JobSlot.HALF_CURSOR] if topics is not None else begin
        if topics is not None:
            self._settled(topics, begin, cursor, oldest)
        first = max(begin, cursor)
        stop = min(page[EdgeSlot.HALF_END], first + TAIL_HALVES)
        if first < stop:
            self._note(self._rows.log.halves(first, stop), first, stop, oldest)
        return oldest

    def _settled(self, topics: TopicReader, begin: int, cursor: int, oldest: Any) -> None:
        table = topics.table
        table.file.refresh()
        seen = (topics.page[JobSlot.GENERATION], topics.page[JobSlot.TOTALS + TOTALS.index("resumes")])
        if seen != self._seen:
            self._seen = seen
            self._empty.clear()
        size = table.rows_per_file
        for file_no in table.file_numbers():
            first, stop = max(begin, file_no * size), min(cursor, (file_no + 1) * size)
            if file_no in self._empty or first >= stop:
                continue
            rows = table.rows_of(file_no)
            pieces = [(at, min(at + PIECE, stop)) for at in range(first, stop, PIECE)]
            pending = [self._note(rows[low % size : (high - 1) % size + 1], low, high, oldest) for low, high in pieces]
            if not any(pending) and stop == (file_no + 1) * size:
                self._empty.add(file_no)

    def _note(self, records: Any, first: int, stop: int, oldest: Any) -> bool:
        """Rows or halves first … stop - 1; was anything pending by the job's word?"""
        if "word" in (records.dtype.names or ()):
            pending = np.flatnonzero(state_of(records["word"]) == State.PREPARED)
        else:
            pending = np.flatnonzero(records["corrupt"] == 0)
        if not len(pending):
            return False
        ends = np.frombuffer(self._ends.file.view(first, stop - first), np.uint8)
        still = pending[ends[pending] == 0]  # the job may not have read the op yet
        groups = records["group_no"][still]
        known = groups < len(oldest)
        np.minimum.at(oldest, groups[known], records["stored_at_s"][still][known])
        return True

    def close(self) -> None:
        self._rows.close()
        self._ends.file.close()
