"""Segments: fixed-size files that together form one address space.

A segment file's name is its first byte's logical offset, 20 digits, zero-padded; its size never changes and its blocks
are allocated when it is made. Bytes that were not written are zero. Files are removed only from the front (retention) or,
during recovery, from the back (torn tail), so the existing files are always consecutive.

Writer: exactly one process, through `write` (pwrite) or, for tables, through `writable_view` (the mapping).
Readers: any process, through `view`; segments made later are found when first asked for.
"""

from __future__ import annotations

import mmap
import os
import threading
from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from store.errors import Corrupt, FlushFailed, ForeignFile, SegmentGone, StoreUnusable
from store.io import disk

NAME_DIGITS = 20


def segment_name(start: int) -> str:
    return f"{start:0{NAME_DIGITS}d}"


class Segment:
    """One mapped file."""

    __slots__ = ("buffer", "fd", "path", "start")

    def __init__(self, path: Path, start: int, size_bytes: int, writable: bool, map_writable: bool) -> None:
        self.path, self.start = path, start
        self.fd = disk.open_file(path, writable)
        actual = os.fstat(self.fd).st_size
        if actual < size_bytes and writable:
            # An earlier version's crash inside `disk.cut` left the file short; what is missing was to be zeros.
            disk.cut(self.fd, actual, size_bytes, "segment", path)
            actual = size_bytes
        if actual != size_bytes:
            self.close()
            raise Corrupt(path, actual, f"the file has {actual} bytes, a segment here has {size_bytes}")
        try:
            self.buffer: mmap.mmap = disk.map_file(self.fd, size_bytes, map_writable, path)
        except StoreUnusable:  # repeated calls must not use up the descriptors
            self.close()
            raise
        if not writable:  # a mapping does not need its descriptor
            self.close()

    def close(self) -> None:
        """Close the descriptor. The mapping goes when its last view does: views may be in a reader's hands."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class SegmentedFile:
    """One logical address space over the segments of one directory."""

    def __init__(
        self, directory: Path, segment_bytes: int, point: str, *, writable: bool = False, mapped_writes: bool = False
    ) -> None:
        self.directory, self.segment_bytes, self.point = directory, segment_bytes, point
        self.writable, self.mapped_writes = writable, mapped_writes
        self._segments: dict[int, Segment] = {}
        self._starts: list[int] = []
        self._dirty: set[int] = set()
        self._flushing = threading.Lock()
        if writable:
            disk.make_directory(directory)
            for leftover in directory.glob("*" + disk.TEMPORARY_SUFFIX):
                disk.remove(leftover, point)
        self.refresh()
        if writable and self._starts:
            # The process that made the newest segment may have died before its name was durable.
            disk.flush_directory(directory, point)

    def refresh(self) -> None:
        """Look at the directory again: which segments are there?"""
        starts = list_segments(self.directory, self.segment_bytes)
        for start in set(self._segments) - set(starts):
            self._segments.pop(start).close()
        self._starts = starts

    @property
    def begin(self) -> int:
        """First offset that is still there."""
        return self._starts[0] if self._starts else 0

    @property
    def end(self) -> int:
        """Offset behind the last segment (allocated, not necessarily written)."""
        return self._starts[-1] + self.segment_bytes if self._starts else 0

    def starts(self) -> list[int]:
        return list(self._starts)

    def segment(self, start: int, create: bool = False) -> Segment:
        found = self._segments.get(start)
        if found is not None:
            return found
        path = self.directory / segment_name(start)
        if start not in self._starts:
            if not path.exists():
                if not create:
                    raise SegmentGone(f"{path} does not exist")
                self._create(path, start)
            elif self.writable:
                # Made before, but its directory could not be flushed then (a full disk): it is not ours until that is done.
                disk.flush_directory(self.directory, self.point)
            self.refresh()
        segment = self._segments[start] = self._open(path, start)
        return segment

    def _open(self, path: Path, start: int) -> Segment:
        try:
            return Segment(path, start, self.segment_bytes, self.writable, self.writable and self.mapped_writes)
        except StoreUnusable as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            if not self.writable:  # the writer's own thread is just removing it
                self.refresh()
            raise SegmentGone(f"{path} does not exist any more") from error

    def _create(self, path: Path, start: int) -> None:
        refuse_gap(self._starts, start, self.segment_bytes, path)
        disk.create_segment(path, self.segment_bytes, self.point)

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write bytes at a logical offset, making segments as needed."""
        view = memoryview(data)
        while len(view) > 0:
            start = offset - offset % self.segment_bytes
            room = start + self.segment_bytes - offset
            segment = self.segment(start, create=True)
            disk.write(segment.fd, view[:room], offset - start, self.point, segment.path)
            self._dirty.add(start)
            offset, view = offset + min(room, len(view)), view[room:]

    def ensure(self, stop: int) -> None:
        """Make sure that segments exist up to `stop`."""
        while self.end < stop:
            self.segment(self.end, create=True)

    def mark_dirty(self, start: int) -> None:
        self._dirty.add(start)

    def flush(self) -> None:
        """Make everything written so far durable. A second caller waits for the first: what it finds clean must be durable."""
        with self._flushing:
            for start in sorted(self._dirty.copy()):
                # The mark goes first: a write that comes during the flush sets it again and is flushed next time.
                self._dirty.discard(start)
                segment = self._segments.get(start)
                if segment is not None:
                    disk.flush(segment.fd, self.point, segment.path)

    def begin_flush(self, flusher: disk.Flusher, done: Callable[[FlushFailed | None], None]) -> bool:
        """`flush`, begun. False where it would have to wait: another thread is flushing, or there is not one segment to flush."""
        if not self._flushing.acquire(blocking=False):
            return False
        segment = self._segments.get(next(iter(self._dirty))) if len(self._dirty) == 1 else None
        if segment is None:
            self._flushing.release()
            return False
        self._dirty.discard(segment.start)

        def through(failure: FlushFailed | None) -> None:
            self._flushing.release()
            done(failure)

        begun = False
        try:
            begun = disk.begin_flush(flusher, segment.fd, self.point, segment.path, through)
        finally:
            if not begun:
                self._dirty.add(segment.start)
                self._flushing.release()
        return begun

    def locate(self, offset: int, size: int) -> tuple[mmap.mmap, int]:
        """(a buffer, where in it) the bytes at a logical offset lie; they lie in one segment."""
        within = offset % self.segment_bytes
        return self.segment(offset - within).buffer, within

    def view(self, offset: int, size: int) -> memoryview:
        """Bytes at a logical offset: without a copy where they lie in one segment."""
        start = offset - offset % self.segment_bytes
        room = start + self.segment_bytes - offset
        first = memoryview(self.segment(start).buffer)[offset - start : offset - start + min(size, room)]
        if size <= room:
            return first
        return memoryview(bytes(first) + bytes(self.view(offset + room, size - room)))

    def rewrite(self, offset: int, stop: int) -> None:
        """Recovery: write bytes again as they are, so that the next flush makes them durable whatever became of an earlier one."""
        while offset < stop:
            size = min(stop - offset, self.segment_bytes - offset % self.segment_bytes)
            self.write(offset, bytes(self.view(offset, size)))
            offset += size

    def cut(self, offset: int) -> None:
        """Recovery: forget everything from `offset` on, durably; what lay there is zero afterwards."""
        for start in reversed(self._starts):
            if start >= offset and start != self.begin:
                self._drop(start)
            elif start + self.segment_bytes > offset:
                segment = self.segment(start)
                disk.cut(segment.fd, max(0, offset - start), self.segment_bytes, self.point, segment.path)
        self.refresh()

    def clear(self) -> None:
        """Recovery: remove every segment; their content is rebuilt."""
        for start in self._starts:
            self._drop(start)
        self.refresh()

    def cut_off(self) -> list[tuple[Path, int]]:
        """(path, size) of files that are shorter than a segment, before they are opened (which fills them with zeros)."""
        sizes = ((path, path.stat().st_size) for path in (self.directory / segment_name(start) for start in self._starts))
        return [(path, size) for path, size in sizes if size < self.segment_bytes]

    def is_cut_off(self) -> bool:
        return bool(self.cut_off())

    def remove_before(self, offset: int) -> int:
        """Retention: remove whole segments that end at or before `offset`; the last one stays. Returns how many went."""
        gone = ended_before(self._starts, offset, self.segment_bytes)
        for start in gone:
            self._drop(start)
        if gone:
            self.refresh()
        return len(gone)

    def _drop(self, start: int) -> None:
        disk.remove(self.directory / segment_name(start), self.point)
        self._dirty.discard(start)

    def close(self) -> None:
        for segment in self._segments.values():
            segment.close()
        self._segments.clear()


def ended_before(starts: list[int], offset: int, segment_bytes: int) -> list[int]:
    """The segments that end at or before an offset; never the last one."""
    return starts[: min(bisect_right(starts, offset - segment_bytes), len(starts) - 1)]


def refuse_gap(starts: list[int], start: int, segment_bytes: int, path: Path | str) -> None:
    """A new segment must follow the last one."""
    if starts and start != starts[-1] + segment_bytes:
        raise StoreUnusable(f"{path}: would leave a gap behind {segment_name(starts[-1])}")


def list_segments(directory: Path | str, segment_bytes: int) -> list[int]:
    """Where the segments of a directory start; Corrupt where one is missing between its neighbours."""
    starts, missing = _list(directory, segment_bytes)
    if missing is not None:
        # A long directory is listed in several calls: files that are removed between them look like a gap once, not twice.
        starts, missing = _list(directory, segment_bytes)
    if missing is not None:
        reason = "segment missing between its neighbours. Put the file back, or restore a backup (escrow store restore)"
        raise Corrupt(Path(directory, segment_name(missing)), 0, reason)
    return starts


def _list(directory: Path | str, segment_bytes: int) -> tuple[list[int], int | None]:
    """(starts of the segments, the first that is missing between two of them)."""
    starts = sorted(_start_of(directory, name, segment_bytes) for name in _names(directory))
    gaps = (start + segment_bytes for start, following in pairwise(starts) if following != start + segment_bytes)
    return starts, next(gaps, None)


def _start_of(directory: Path | str, name: str, segment_bytes: int) -> int:
    if len(name) != NAME_DIGITS or not (name.isascii() and name.isdecimal()) or int(name) % segment_bytes:
        raise ForeignFile(
            f"{Path(directory, name)}: not a segment of this store (names are {NAME_DIGITS} digits, "
            f"multiples of {segment_bytes}); move it elsewhere"
        )
    return int(name)


def _names(directory: Path | str) -> list[str]:
    try:
        return [name for name in os.listdir(directory) if not name.endswith(disk.TEMPORARY_SUFFIX)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise disk.unusable(error, directory) from error
