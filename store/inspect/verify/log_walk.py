"""Verify, the commit log: every frame against its CRC and its head, and what lies between frames."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final

import numpy as np

from store.arrays import Ints
from store.inspect.verify.files import SegmentFiles
from store.tables import frames
from store.tables.frames import HEAD, MAGIC, FrameKind

_HEAD: Final = struct.Struct("<IIHBBHH")
_MAGIC: Final = MAGIC.to_bytes(2, "little")
_BLOCK_FRAMES: Final = 1 << 18
_PIECE_BYTES: Final = 1 << 16


class LogWalk:
    """Frames of the log in order, in blocks; damage is reported and walked around."""

    def __init__(self, files: SegmentFiles, quick: bool) -> None:
        self.files, self.quick = files, quick
        self.damaged: list[tuple[int, int]] = []
        self.frames = 0

    def blocks(self, begin: int, end: int) -> Iterator[Ints]:
        """commit_log_offsets of valid frames (PAD aside), a block at a time; never across a segment."""
        size = self.files.segment_bytes
        for start in range(begin - begin % size, end, size):
            content = self.files.segment(start)
            if content is None:
                if start < self.files.begin or start >= self.files.end:
                    self.files.add(start, "the segment is missing, although the log reaches into it")
                self._damage(start, min(start + size, end), "")
                continue
            yield from self._segment(memoryview(content.data), start, min(size, end - start))

    def _segment(self, content: memoryview, start: int, limit: int) -> Iterator[Ints]:
        found: list[int] = []
        unpack, crc32, size_of_segment = _HEAD.unpack_from, zlib.crc32, self.files.segment_bytes
        at, pad, half, message, op = 0, FrameKind.PAD, FrameKind.HALF, FrameKind.MESSAGE, FrameKind.OP
        while at < limit:
            if size_of_segment - at < HEAD.itemsize:
                self._check_rest(content, start, at)
                break
            crc, size, magic, kind, flags, length, index = unpack(content, at)
            reason = ""
            if magic != MAGIC or size < HEAD.itemsize or at + size > limit:
                reason = "zeros where a frame belongs" if not (crc or size or magic) else "not a frame"
                if magic == MAGIC:
                    reason = f"a frame cannot have {size} bytes here"
            elif not self.quick and crc32(content[at + 4 : at + (size if kind != pad else 32)], (start + at) & 0xFFFFFFFF) != crc:
                reason = "the frame's CRC does not match its bytes"
            elif (flags and (kind != op or flags > 3)) or index >= length or kind not in (half, op, message, pad):
                reason = "a frame with a head that no writer makes"
            if reason:
                following = self._next_valid(content, start, at + 1, limit)
                self._damage(start + at, start + following, reason)
                at = following
                continue
            if kind == pad:
                self._check_pad(content, start, at, size)
            else:
                found.append(start + at)
                if len(found) >= _BLOCK_FRAMES:
                    self.frames += len(found)
                    yield np.array(found, np.int64)
                    found = []
            at += size
        if found:
            self.frames += len(found)
            yield np.array(found, np.int64)

    def _damage(self, start: int, stop: int, reason: str) -> None:
        if reason:
            self.files.add(start, reason)
        self.damaged.append((start, stop))

    def _check_pad(self, content: memoryview, start: int, at: int, size: int) -> None:
        if at + size != self.files.segment_bytes:
            self.files.add(start + at, "a PAD that does not reach the end of its segment")
        self._check_rest(content, start, at + HEAD.itemsize)

    def _check_rest(self, content: memoryview, start: int, at: int) -> None:
        rest = np.frombuffer(content[at:], np.uint8)
        if not self.quick and rest.any():
            self.files.add(start + at + int(np.argmax(rest != 0)), "bytes of padding that are not zero")

    def _next_valid(self, content: memoryview, start: int, at: int, limit: int) -> int:
        """The next valid frame from `at` on, by its magic and its CRC; `limit` if there is none."""
        while (at := _find_magic(content, at + frames.MAGIC_AT, limit) - frames.MAGIC_AT) + HEAD.itemsize <= limit:
            crc, size, _, kind, *_ = _HEAD.unpack_from(content, at)
            covered = HEAD.itemsize if kind == FrameKind.PAD else size
            fits = HEAD.itemsize <= size <= limit - at
            if fits and zlib.crc32(content[at + frames.CRC_FROM : at + covered], (start + at) & 0xFFFFFFFF) == crc:
                return at
            at += 1
        return limit

    def damage_begins(self, offset: int) -> bool:
        return any(start == offset for start, _ in self.damaged)

    def near_damage(self, offset: int) -> bool:
        """Whether damage lies at an offset or anywhere before it."""
        return any(stop <= offset for _, stop in self.damaged) or self.touched_by_damage(offset)

    def touched_by_damage(self, offset: int) -> bool:
        return any(start <= offset < stop for start, stop in self.damaged)


def _find_magic(content: memoryview, at: int, limit: int) -> int:
    """Where the magic of a frame lies next, `limit` if nowhere; a piece at a time, since damage is often small."""
    while at + len(_MAGIC) <= limit:
        piece = bytes(content[at : min(at + _PIECE_BYTES, limit)])
        found = piece.find(_MAGIC)
        if found >= 0:
            return at + found
        at += len(piece) - 1
    return limit
