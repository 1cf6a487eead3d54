"""Growing files: one address space over files that are as long as what was written to them.

Named like segments (`segments.py`): by the logical offset of the first byte, 20 digits. Every file but the last has the full size
of a segment; the last one ends behind the last byte that was written. A file that an earlier release made at its full size is read
and written in the same way. Bytes that were not written are zero. Nothing is allocated ahead: a queue of one message takes a block.

Writer: exactly one process, by pwrite(2). Readers: any process, by pread(2); a file that ends before what is published is damage.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from pathlib import Path

from store.errors import Corrupt, SegmentGone, StoreUnusable
from store.io import disk
from store.io.handles import Handles
from store.io.segments import ended_before, list_segments, refuse_gap, segment_name


class GrowingFile:
    """The files of one queue. It holds no descriptor: `handles` does, for many."""

    __slots__ = ("_directory", "_length", "_starts", "handles", "point", "segment_bytes")

    def __init__(self, directory: Path | str, segment_bytes: int, point: str, handles: Handles) -> None:
        # A path as text: there are very many of these.
        self._directory, self.segment_bytes, self.point, self.handles = str(directory), segment_bytes, point, handles
        self._starts: list[int] = []
        #: Writer: size of the last file; -1 before it was asked for.
        self._length = -1
        self.refresh()

    def refresh(self) -> None:
        """Look at the directory again: which files are there?"""
        starts = list_segments(self._directory, self.segment_bytes)
        for start in set(self._starts) - set(starts):
            self.handles.forget(self._path(start))
        if starts[-1:] != self._starts[-1:]:
            self._length = -1
        self._starts = starts

    def _path(self, start: int) -> str:
        return f"{self._directory}/{segment_name(start)}"

    def path(self, start: int) -> str:
        """The file that begins at a logical offset."""
        return self._path(start)

    @property
    def directory(self) -> Path:
        return Path(self._directory)

    @property
    def begin(self) -> int:
        """First offset that is still there."""
        return self._starts[0] if self._starts else 0

    @property
    def end(self) -> int:
        """Offset up to which the last file could reach."""
        return self._starts[-1] + self.segment_bytes if self._starts else 0

    def starts(self) -> list[int]:
        return list(self._starts)

    def _has(self, start: int) -> bool:
        at = bisect_left(self._starts, start)
        return at < len(self._starts) and self._starts[at] == start

    # --- reading --------------------------------------------------------------------------------------------------------------
    def locate(self, offset: int, size: int) -> tuple[bytes, int]:
        """(a buffer, where in it) the bytes at a logical offset lie; they lie in one file."""
        start = offset - offset % self.segment_bytes
        if not self._has(start):
            self.refresh()
            if not self._has(start):
                raise SegmentGone(f"{self._path(start)} does not exist")
        try:
            found = self.handles.read(self._path(start), size, offset - start)
        except StoreUnusable as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            self.refresh()
            raise SegmentGone(f"{self._path(start)} does not exist any more") from error
        if len(found) < size and not self.handles.writable:
            # The queues of a removed topic may have been created again under the same name.
            self.handles.forget(self._path(start))
            found = self.handles.read(self._path(start), size, offset - start)
        if len(found) < size:
            end = offset - start + len(found)
            raise Corrupt(Path(self._path(start)), end, f"the file ends here, before the entry at {offset - start}")
        return found, 0

    def view(self, offset: int, size: int) -> memoryview:
        """Bytes at a logical offset, copied."""
        parts = bytearray()
        while size > 0:
            count = min(size, self.segment_bytes - offset % self.segment_bytes)
            parts += self.locate(offset, count)[0]
            offset, size = offset + count, size - count
        return memoryview(parts)

    # --- writing --------------------------------------------------------------------------------------------------------------
    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write bytes at a logical offset, making files as needed."""
        view = memoryview(data)
        while len(view) > 0:
            start = offset - offset % self.segment_bytes
            piece = view[: start + self.segment_bytes - offset]
            if not self._has(start):
                self.ensure(start)
                self._add(start)
            self.handles.write(self._path(start), piece, offset - start, self.point)
            if start == self._starts[-1] and self._length >= 0:
                self._length = max(self._length, offset - start + len(piece))
            offset, view = offset + len(piece), view[len(piece) :]

    def ensure(self, stop: int) -> None:
        """Have every byte up to `stop`, from where the first file begins. Does nothing if there is no file."""
        while self._starts and self._reach() < stop:
            last = self._starts[-1]
            if self._length == self.segment_bytes:
                self._add(last + self.segment_bytes)
                continue
            length = min(stop - last, self.segment_bytes)
            self.handles.extend(self._path(last), length, self.point)
            self._length = length  # only now: without room for it the file is as long as it was

    def begin_at(self, offset: int) -> None:
        """Make the first file: the one that this offset lies in. An address space need not begin at 0."""
        if not self._starts:
            self._add(offset - offset % self.segment_bytes)

    def _reach(self) -> int:
        if self._length < 0:
            self._length = self.handles.size_bytes(self._path(self._starts[-1]))
        return self._starts[-1] + self._length

    def _add(self, start: int) -> None:
        refuse_gap(self._starts, start, self.segment_bytes, self._path(start))
        self.handles.create(self._path(start), self.point)
        self._starts.append(start)
        self._length = 0

    def remove_before(self, offset: int) -> int:
        """Retention: remove whole files that end at or before `offset`; the last one stays. Returns how many went."""
        gone = ended_before(self._starts, offset, self.segment_bytes)
        for start in gone:
            disk.remove(Path(self._path(start)), self.point)
            self.handles.forget(self._path(start))
        if gone:
            self.refresh()
        return len(gone)


def extent_of(directory: Path, segment_bytes: int) -> tuple[int, int]:
    """(first offset, offset behind the last byte) that the files of a directory hold without a gap; (0, 0) where there is none. A
    file that was cut off ends it."""
    starts = list_segments(directory, segment_bytes)
    for start in starts:
        try:
            size_bytes = os.stat(f"{directory}/{segment_name(start)}").st_size
        except OSError as error:
            raise disk.unusable(error, directory / segment_name(start)) from error
        if size_bytes < segment_bytes:
            return starts[0], start + size_bytes
    return (starts[0], starts[-1] + segment_bytes) if starts else (0, 0)
