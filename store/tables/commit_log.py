"""The commit log: frames (see `frames.py`), one after another, in segments.

A batch lies in one segment, written with one write; where it does not fit, a PAD frame closes the segment.
The log ends at the first place whose bytes are not a whole valid batch.

Writer: the edge. Truth: rebuilt from nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from store.errors import BatchTooLarge, Corrupt, FlushFailed
from store.io.disk import Flusher
from store.io.segments import SegmentedFile
from store.tables import frames
from store.tables.frames import HEAD_STRUCT, FrameKind

NAME = "commitlog"


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a batch was put: commit_log_offset and size of each frame, and the log's end behind them."""

    offsets: np.ndarray[Any, np.dtype[np.int64]]
    sizes: np.ndarray[Any, np.dtype[np.int64]]
    end: int


@dataclass(frozen=True, slots=True)
class ScannedBatch:
    """A whole valid batch found by `CommitLog.scan`: commit_log_offset and size of its frames."""

    frames: list[tuple[int, int]]
    end: int


class CommitLog:
    """Append frames, read frames. One thread appends at a time (the edge's lock sees to that)."""

    def __init__(self, directory: Path, segment_bytes: int, *, writable: bool = False) -> None:
        self.file = SegmentedFile(directory, segment_bytes, NAME, writable=writable)
        self.segment_bytes = segment_bytes
        #: Where the next frame goes. A writer sets it once recovery has found it.
        self.end = self.file.begin
        self.scan_stop, self.scan_reason = self.end, ""

    def append(self, heads: np.ndarray[Any, Any], tails: Sequence[Sequence[bytes]]) -> Placed:
        """Append one batch (as `frames.encode_batch` takes it), all or none, with one write. Durable only after `flush`."""
        if len(heads) > frames.BATCH_MAX:
            raise BatchTooLarge(f"{len(heads)} messages in one batch; at most {frames.BATCH_MAX} go into one")
        offset = self.end
        data = frames.encode_batch(heads, tails, offset)
        room = self.segment_bytes - offset % self.segment_bytes
        if len(data) > room:
            if len(data) > self.segment_bytes:
                raise BatchTooLarge(f"the batch has {len(data)} bytes, a segment {self.segment_bytes}; send smaller batches")
            # The place is part of each CRC: pad, then encode again for the next segment.
            offset = self._pad(room)
            data = frames.encode_batch(heads, tails, offset)
        self.file.write(offset, data)
        sizes = heads["size_bytes"].astype(np.int64)
        self.end = offset + len(data)
        return Placed(offset + np.cumsum(sizes) - sizes, sizes, self.end)

    def _pad(self, room: int) -> int:
        if room >= HEAD_STRUCT.size:
            self.file.write(self.end, frames.encode_pad(room, self.end))
        return self.end + room

    def flush(self) -> None:
        self.file.flush()

    def begin_flush(self, flusher: Flusher, done: Callable[[FlushFailed | None], None]) -> bool:
        return self.file.begin_flush(flusher, done)

    def frame_bytes(self, commit_log_offset: int, size: int) -> memoryview:
        """The bytes of a frame, unchecked."""
        return self.file.view(commit_log_offset, size)

    def are_whole(self, commit_log_offsets: Sequence[int], sizes: Sequence[int]) -> bool:
        """Whether all frames of these places are what was written there."""
        start, content = -1, memoryview(b"")
        for offset, size in zip(commit_log_offsets, sizes, strict=True):
            at = offset % self.segment_bytes  # a frame lies in one segment
            if offset - at != start:
                start = offset - at
                try:
                    content = memoryview(self.file.segment(start).buffer)
                except IndexError:
                    return False
            if not frames.is_whole(content[at : at + size], offset):
                return False
        return True

    def read(self, commit_log_offset: int, size: int) -> frames.Frame:
        """One checked, decoded frame; Corrupt if its bytes are not what was written there."""
        try:
            content = self.frame_bytes(commit_log_offset, size)
        except IndexError as error:
            raise Corrupt(self.file.directory, commit_log_offset, "no such segment") from error
        return frames.decode_frame(content, commit_log_offset, str(self.file.directory))

    def scan(self, start: int) -> Iterator[ScannedBatch]:
        """Every whole valid batch from `start` to the log's end, in order (recovery, verify, dump).

        Stops silently at the first place that is not one: `self.scan_stop` then tells where and `scan_reason` why.
        """
        self.scan_stop, self.scan_reason = start, "end of the log"
        pending: list[tuple[int, int]] = []
        at = start
        while True:
            try:
                size, kind, length, index = self._frame_at(at)
            except Corrupt as error:
                self.scan_reason = error.reason
                return
            if size == 0:
                if pending:
                    self.scan_reason = f"batch cut off: {len(pending)} frames of more"
                return
            following = at + size
            if kind != FrameKind.PAD and size >= HEAD_STRUCT.size:
                if index != len(pending) or index >= length:
                    self.scan_reason = f"frame {index} of a batch of {length} where frame {len(pending)} belongs"
                    return
                pending.append((at, size))
                if index + 1 == length:
                    yield ScannedBatch(pending, following)
                    pending = []
            at = following
            if not pending:
                self.scan_stop = at

    def salvage(self, start: int, stop: int, damage: Callable[[int, int, str], None]) -> Iterator[tuple[int, int]]:
        """(commit_log_offset, size) of every valid frame in a range that is known to have been durable.

        Here bytes that are not a frame are damage, not a torn tail: each such range goes to `damage(start, stop, reason)`, and the
        reading goes on at the next valid frame. A frame's own CRC, which knows its place, makes that certain.
        """
        at = start
        while at < stop:
            try:
                size, kind, _, _ = self._frame_at(at)
                reason = "zeros where a frame was acknowledged"
            except Corrupt as error:
                size, kind, reason = 0, 0, error.reason
            if size == 0:
                following = self._next_valid(at + 1, stop)
                damage(at, following, reason)
                at = following
                continue
            if kind != FrameKind.PAD:
                yield at, size
            at += size

    def _next_valid(self, at: int, stop: int) -> int:
        """The next place at or behind `at` where a valid frame lies, `stop` if there is none before it."""
        magic = frames.MAGIC.to_bytes(2, "little")
        while at < stop:
            start = at - at % self.segment_bytes
            limit = min(stop - start, self.segment_bytes)
            if start not in self.file.starts():
                at = start + self.segment_bytes
                continue
            found = self.file.segment(start).buffer.find(magic, at - start + frames.MAGIC_AT, limit)
            if found < 0:
                at = start + limit
                continue
            at = start + found - frames.MAGIC_AT
            try:
                if self._frame_at(at)[0]:
                    return at
            except Corrupt:
                pass
            at += 1
        return stop

    def _frame_at(self, at: int) -> tuple[int, int, int, int]:
        """(size, kind, batch_length, batch_index) of the valid frame here; size 0 where the log ends."""
        room = self.segment_bytes - at % self.segment_bytes
        start = at - at % self.segment_bytes
        if start not in self.file.starts():
            return 0, 0, 0, 0
        if room < HEAD_STRUCT.size:
            return room, FrameKind.PAD, 1, 0
        buffer = memoryview(self.file.segment(start).buffer)
        _, size, magic, kind, _, length, index, *_ = frames.read_head(buffer, at - start)
        if size == 0 and magic == 0:
            return 0, 0, 0, 0
        if size < HEAD_STRUCT.size or size > room:
            raise Corrupt(self.file.directory, at, f"a frame cannot have {size} bytes here")
        frames.check_frame(buffer[at - start : at - start + size], at, str(self.file.directory))
        return size, kind, length, index
