"""The state table: one 24-byte row for each half, row number = half offset, mapped as a numpy array.

row, 24 bytes (widths of RocketMQ 3.x)
      0  i64  commit_log_offset
      8  i32  size_bytes
     12  u32  stored_at_s
     16  i32  group_no            number in the dictionary
     20  u32  state word          see records.py

A file holds `state_rows_per_file` rows (2,000,000 = 48,000,000 bytes) and is named by its first byte's offset in the table.
A row whose state is NONE has not been settled into the table yet.

Writer: the settling job, through the mapping, after the redo log is durable. Rebuilt from: the redo log.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from store.arrays import Ints, distinct
from store.io.segments import SegmentedFile
from store.records import ROW, STATE_MASK, State

Rows = np.ndarray[Any, Any]


class StateTable:
    """Rows by half offset, and for each file how many of them are pending: a file with none is never scanned again."""

    def __init__(self, directory: Path, rows_per_file: int, *, writable: bool = False) -> None:
        self.rows_per_file = rows_per_file
        self.file = SegmentedFile(directory, rows_per_file * ROW.itemsize, "state", writable=writable, mapped_writes=True)
        self._rows: dict[int, Rows] = {}
        #: Pending rows of each file, by file number. Kept by `set_words`; `count_pending` counts again.
        self.pending_by_file: dict[int, int] = {}

    @property
    def begin(self) -> int:
        return self.file.begin // ROW.itemsize

    @property
    def allocated(self) -> int:
        """Rows that have a place; those beyond the half cursor hold NONE."""
        return self.file.end // ROW.itemsize

    @property
    def pending(self) -> int:
        return sum(self.pending_by_file.values())

    def file_numbers(self) -> list[int]:
        return [start // (self.rows_per_file * ROW.itemsize) for start in self.file.starts()]

    def rows_of(self, file_no: int) -> Rows:
        """All rows of one file, mapped."""
        rows = self._rows.get(file_no)
        if rows is None:
            segment = self.file.segment(file_no * self.rows_per_file * ROW.itemsize)
            rows = self._rows[file_no] = np.frombuffer(segment.buffer, ROW)
        return rows

    def ensure(self, first: int, stop: int) -> None:
        if not self.file.starts():
            at = first * ROW.itemsize
            self.file.segment(at - at % self.file.segment_bytes, create=True)
        self.file.ensure(stop * ROW.itemsize)

    def _by_file(self, half_offsets: Ints) -> Iterator[tuple[int, Any, Any]]:
        """(file number, which of the given, their rows within the file). Slices where the offsets allow, which is far faster."""
        if not len(half_offsets):
            return
        size = self.rows_per_file
        first, last = int(half_offsets[0]), int(half_offsets[-1])
        ascending = last - first + 1 == len(half_offsets) and bool((np.diff(half_offsets) == 1).all())
        if ascending:
            for file_no in range(first // size, last // size + 1):
                low, high = max(first, file_no * size), min(last + 1, (file_no + 1) * size)
                yield file_no, slice(low - first, high - first), slice(low - file_no * size, high - file_no * size)
            return
        files = half_offsets // size
        if files.min() == files.max():
            yield int(files[0]), slice(None), half_offsets - files[0] * size
            return
        for file_no in distinct(files):
            chosen = np.flatnonzero(files == file_no)
            yield file_no, chosen, half_offsets[chosen] - file_no * size

    def get(self, half_offsets: Ints) -> Rows:
        """Copies of rows; all zero (NONE) where the table has none."""
        found = np.zeros(len(half_offsets), ROW)
        known = set(self.file_numbers())
        for file_no, chosen, rows in self._by_file(half_offsets):
            if file_no in known:
                found[chosen] = self.rows_of(file_no)[rows]
        return found

    def words(self, half_offsets: Ints) -> npt.NDArray[np.uint32]:
        """State words only; 0 (NONE) where the table has no row."""
        found = np.zeros(len(half_offsets), np.uint32)
        known = set(self.file_numbers())
        for file_no, chosen, rows in self._by_file(half_offsets):
            if file_no in known:
                found[chosen] = self.rows_of(file_no)["word"][rows]
        return found

    def put(self, half_offsets: Ints, rows: Rows) -> None:
        """Write whole rows (distinct half offsets)."""
        self._write(half_offsets, rows, None)

    def set_words(self, half_offsets: Ints, words: Any) -> None:
        """Write state words (distinct half offsets)."""
        self._write(half_offsets, words, "word")

    def _write(self, half_offsets: Ints, values: Any, name: str | None) -> None:
        known = set(self.file_numbers())
        for file_no, chosen, at in self._by_file(half_offsets):
            if file_no not in known:
                continue  # retention has removed it: its rows are gone for good
            table = self.rows_of(file_no)
            words = values["word"] if name is None else values
            before = _count_prepared(table["word"][at])
            if name is None:
                table[at] = values[chosen]
            else:
                table[name][at] = values[chosen]
            self.pending_by_file[file_no] = self.pending_by_file.get(file_no, 0) + _count_prepared(words[chosen]) - before
            self.file.mark_dirty(file_no * self.file.segment_bytes)

    def count_pending(self) -> int:
        """Count every file again (after opening)."""
        self.pending_by_file = {file_no: _count_prepared(self.rows_of(file_no)["word"]) for file_no in self.file_numbers()}
        return self.pending

    def scannable(self) -> list[int]:
        """Files with something pending, oldest first."""
        return sorted(file_no for file_no, count in self.pending_by_file.items() if count)

    def flush(self) -> None:
        self.file.flush()

    def remove_before(self, half_offset: int) -> int:
        gone = self.file.remove_before(half_offset * ROW.itemsize)
        known = set(self.file_numbers())
        for file_no in set(self._rows) - known:
            del self._rows[file_no]
        for file_no in set(self.pending_by_file) - known:
            del self.pending_by_file[file_no]
        return gone

    def close(self) -> None:
        self._rows.clear()
        self.file.close()


def _count_prepared(words: Any) -> int:
    return int(np.count_nonzero((words & np.uint32(STATE_MASK)) == np.uint32(State.PREPARED)))
