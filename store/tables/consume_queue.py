"""Consume queue: 20-byte entries that point at frames. One for halves, ops, every real topic's queue, checks, proposals, discards.

entry, 20 bytes (as in RocketMQ)
      0  i64  commit_log_offset
      8  i32  size_bytes         0 = hole: nothing is here and nothing will be
     12  i64  tags_code          half queue and topic queues: tags · op queue: half_offset, -1 for MESSAGE, -2 for ASKED ·
                                 check queue: half_offset · proposal and discard queue: State << 56 | half_offset ·
                                 quarantine queue: half_offset, or -1 - op_offset

Entry n lies at byte 20·n of the address space of the directory's segments. A queue does not know its own end: the
published pages do (`pages.py`, `queue_extents.py`), and recovery finds it again from what the queue is derived from.
"""

from __future__ import annotations

import struct
from mmap import mmap
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from store.arrays import distinct
from store.io.growing_files import GrowingFile
from store.io.segments import SegmentedFile
from store.records import ENTRY

Entries = np.ndarray[Any, Any]
_ENTRY: Final = struct.Struct("<qiq")
assert _ENTRY.size == ENTRY.itemsize
REASON_SHIFT: Final = 56
#: tags_code of an ASKED frame in the op queue: it speaks of many halves.
ASKED_TAG: Final = -2


class EntryFile(Protocol):
    """The address space that entries lie in: `segments.SegmentedFile` or `growing.GrowingFile`."""

    segment_bytes: int

    @property
    def begin(self) -> int: ...
    def starts(self) -> list[int]: ...
    def refresh(self) -> None: ...
    def write(self, offset: int, data: bytes) -> None: ...
    def view(self, offset: int, size: int) -> memoryview: ...
    def locate(self, offset: int, size: int) -> tuple[bytes | mmap, int]: ...
    def remove_before(self, offset: int) -> int: ...


class EntryQueue:
    """Entries by number. Writing the same entries again changes nothing."""

    __slots__ = ("file",)
    file: EntryFile

    @property
    def begin(self) -> int:
        """First entry that is still there."""
        return self.file.begin // ENTRY.itemsize

    def put(self, first: int, entries: Entries) -> None:
        """Write consecutive entries at their fixed place."""
        if len(entries):
            self.reach(first)
            self.file.write(first * ENTRY.itemsize, entries.tobytes())

    def reach(self, number: int) -> None:
        """Make files up to this entry. The first file need not be number 0: a rebuilt queue begins where its oldest entry lies."""
        raise NotImplementedError

    def scatter(self, numbers: np.ndarray[Any, Any], entries: Entries) -> None:
        """Write entries at numbers that need not be consecutive (sorted, distinct), one write for each run."""
        if not len(numbers):
            return
        breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
        if not len(breaks):  # mostly
            self.put(int(numbers[0]), entries)
            return
        for run in np.split(np.arange(len(numbers)), breaks):
            self.put(int(numbers[run[0]]), entries[run[0] : run[-1] + 1])

    def read(self, first: int, stop: int) -> Entries:
        """Entries first … stop - 1, without a copy where they lie in one file. The caller keeps within the published ends."""
        if stop <= first:
            return np.empty(0, ENTRY)
        size = ENTRY.itemsize
        return np.frombuffer(self.file.view(first * size, (stop - first) * size), ENTRY)

    def gather(self, numbers: np.ndarray[Any, Any]) -> Entries:
        """Entries at any numbers, one look-up for each file."""
        found, per_file = np.empty(len(numbers), ENTRY), self.file.segment_bytes // ENTRY.itemsize
        files = numbers // per_file
        for file_no in distinct(files):
            chosen = np.flatnonzero(files == file_no)
            first = int(numbers[chosen].min())
            buffer, at = self.file.locate(first * ENTRY.itemsize, (int(numbers[chosen].max()) + 1 - first) * ENTRY.itemsize)
            content = np.frombuffer(buffer, ENTRY, offset=at, count=int(numbers[chosen].max()) + 1 - first)
            found[chosen] = content[numbers[chosen] - first]
        return found

    def entry(self, number: int) -> tuple[int, int, int]:
        """(commit_log_offset, size_bytes, tags_code) of one entry: far cheaper than a `read` of one."""
        return _ENTRY.unpack_from(*self.file.locate(number * ENTRY.itemsize, ENTRY.itemsize))

    def remove_before(self, first: int) -> int:
        return self.file.remove_before(first * ENTRY.itemsize)


class ConsumeQueue(EntryQueue):
    """Of halves or ops: in mapped segments of a fixed size."""

    file: SegmentedFile

    def __init__(self, directory: Path, entries_per_file: int, point: str, *, writable: bool = False) -> None:
        self.file = SegmentedFile(directory, entries_per_file * ENTRY.itemsize, point, writable=writable)

    def reach(self, number: int) -> None:
        at = number * ENTRY.itemsize
        if not self.file.starts():
            self.file.segment(at - at % self.file.segment_bytes, create=True)
        self.file.ensure(at)

    def flush(self) -> None:
        self.file.flush()

    def cut(self, end: int) -> None:
        self.file.cut(end * ENTRY.itemsize)

    def close(self) -> None:
        self.file.close()


class GrowingQueue(EntryQueue):
    """Of a topic, or one of the numbered queues of the job: in files that grow, whose descriptors belong to `queue_files`."""

    __slots__ = ()
    file: GrowingFile

    def __init__(self, file: GrowingFile) -> None:
        self.file = file

    def reach(self, number: int) -> None:
        self.file.begin_at(number * ENTRY.itemsize)
        self.file.ensure(number * ENTRY.itemsize)


def make_entries(commit_log_offsets: Any, sizes: Any, tags_codes: Any) -> Entries:
    entries = np.empty(len(commit_log_offsets), ENTRY)
    entries["commit_log_offset"], entries["size_bytes"], entries["tags_code"] = commit_log_offsets, sizes, tags_codes
    return entries
