"""Journal: small records of any length, appended one after another to one file. For the dictionary, the audit and the consumers.

record
      0  u32  payload_bytes
      4  u32  crc            CRC-32 of the payload, started with the low 32 bits of the record's own offset
      8  …    payload

The journal ends at the first record that is not whole and valid. Behind it lies a torn tail, which its writer cuts when it
opens; or damage, which must not be cut. `survey` tells them apart. A valid record behind the first invalid bytes was written after
them, and a record's own CRC, which knows its place, makes that certain. The exception is a power failure before a flush: it may
keep a later sector and lose an earlier one, whose new part then reads as zeros. What was flushed (`flushed_bytes`) is never a
torn tail. A journal with a `mark_slot` notes after each flush how far it reaches (`journal_marks.py`), so that after a kill a lost
tail is told from a torn one.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from store.errors import Corrupt, FlushFailed, StoreUnusable
from store.io import disk, journal_marks
from store.io.journal_marks import Mark, MarkWriter

HEAD: Final = struct.Struct("<II")
assert HEAD.size == 8
PAYLOAD_MAX_BYTES: Final = 1 << 24
SECTOR_BYTES: Final = 512
_ZERO_SECTOR: Final = bytes(SECTOR_BYTES)
#: What to do with a journal that nothing can tell again.
REMEDY: Final = "Restore the file from a copy, or continue with what is left of it (escrow store repair)"


def encode(payload: bytes, offset: int) -> bytes:
    return HEAD.pack(len(payload), zlib.crc32(payload, offset & 0xFFFFFFFF)) + payload


def encode_all(payloads: Sequence[bytes]) -> bytes:
    """A whole journal of these records."""
    data = bytearray()
    for payload in payloads:
        data += encode(payload, len(data))
    return bytes(data)


def decode(content: bytes, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """(end offset, payload) of each valid record from `offset` on; `content` is the whole file."""
    while offset + HEAD.size <= len(content):
        size, crc = HEAD.unpack_from(content, offset)
        payload = content[offset + HEAD.size : offset + HEAD.size + size]
        # No record is empty: eight zero bytes at the beginning of a file would be one.
        if not size or len(payload) != size or zlib.crc32(payload, offset & 0xFFFFFFFF) != crc:
            return
        offset += HEAD.size + size
        yield offset, payload


@dataclass(frozen=True, slots=True)
class Survey:
    """What lies in a journal's file. `end`: behind the last record before anything invalid; `damaged`: what follows there is no
    torn tail; `payloads`: of all valid records, those behind the damage too."""

    payloads: list[bytes]
    end: int
    size_bytes: int
    damaged: bool
    content: bytes

    def crc(self, size_bytes: int) -> int:
        """Of the first bytes of the file."""
        return zlib.crc32(memoryview(self.content)[:size_bytes])


def survey(path: Path, flushed_bytes: int = 0) -> Survey:
    """Read a journal around damage. Nothing is changed."""
    content = read(path)
    payloads, end, damaged, at = list[bytes](), 0, False, 0
    while at < len(content):
        found = list(decode(content, at))
        payloads += [payload for _, payload in found]
        stop = found[-1][0] if found else at
        following = _next_valid(content, stop + 1)
        if not damaged:
            end = stop
            behind = following < len(content) and not _has_lost_sector(content, stop, following)
            damaged = stop < len(content) and (behind or stop < flushed_bytes)
        if not damaged:
            break
        at = following
    return Survey(payloads, end, len(content), damaged or end < flushed_bytes, content)


def survey_marked(path: Path, slot: int, flushed_bytes: int = 0) -> tuple[Survey, str]:
    """A survey, and why the file is not the one that its mark speaks of; "" where it is. Its writer may run."""
    mark = journal_marks.read(path.parent, slot)
    found = survey(path, max(flushed_bytes, mark.end if mark else 0))
    if mark is None:
        return found, ""
    problem = ""
    if found.end < mark.end:
        problem = f"{mark.end} bytes were flushed ({journal_marks.PAGE}), of which {found.end} are left: damaged, or cut off"
    elif found.crc(mark.end) != mark.crc:
        problem = f"its first {mark.end} bytes are not those that were flushed ({journal_marks.PAGE}): an older or another file"
    # Replaced meanwhile: the mark goes before the file does.
    if problem and journal_marks.read(path.parent, slot) != mark:
        return survey_marked(path, slot, flushed_bytes)
    return found, problem


def read(path: Path) -> bytes:
    """The whole file; empty if there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise disk.unusable(error, path) from error


def _next_valid(content: bytes, at: int) -> int:
    """The next place where a valid record lies, the end of the file if there is none."""
    while at + HEAD.size < len(content):
        size, crc = HEAD.unpack_from(content, at)
        stop = at + HEAD.size + size
        fits = 0 < size <= PAYLOAD_MAX_BYTES and stop <= len(content)
        if fits and zlib.crc32(memoryview(content)[at + HEAD.size : stop], at & 0xFFFFFFFF) == crc:
            return at
        at += 1
    return len(content)


def _has_lost_sector(content: bytes, first: int, stop: int) -> bool:
    """Whether a sector between these places, or what was new in the first one, reads as zeros: it never reached the disk."""
    boundary = -(-first // SECTOR_BYTES) * SECTOR_BYTES
    if first < boundary <= stop and not any(content[first:boundary]):
        return True
    return any(content[at : at + SECTOR_BYTES] == _ZERO_SECTOR for at in range(boundary, stop, SECTOR_BYTES))


class Journal:
    """Append and read. A reader calls `read_new` again to see what came since."""

    def __init__(self, path: Path, point: str, *, writable: bool = False, mark_slot: int | None = None) -> None:
        self.path, self.point, self.end = path, point, 0
        #: CRC of all bytes before `end`.
        self.crc = 0
        #: Reader: the last `read_new` found another file, and read it from its beginning.
        self.began_anew = False
        self._fd = -1
        self._failure: StoreUnusable | None = None
        #: `end` and `crc` in one piece: the thread that flushes reads them while another one writes.
        self._written = Mark(0, 0)
        self._mark_slot, self._marks = mark_slot, MarkWriter(path.parent, mark_slot) if writable and mark_slot else None
        if writable:
            if not path.exists():
                disk.replace_file(path, b"", point)
            self._fd = disk.open_file(path, True)

    def recover(self) -> list[bytes]:
        """Writer: all payloads; a torn tail behind the last valid record is cut off. Corrupt where it is damage instead."""
        found, problem = survey_marked(self.path, self._mark_slot) if self._mark_slot else (survey(self.path), "")
        if problem:
            raise Corrupt(self.path, min(found.end, found.size_bytes), f"{problem}. {REMEDY}")
        if found.damaged:
            raise damage(self.path, found.end)
        payloads = found.payloads
        self._reach(Mark(found.end, found.crc(found.end)))
        if payloads:
            # The last record's writer may have died before its flush, or of a failed one: write it again.
            last = self.end - HEAD.size - len(payloads[-1])
            disk.write(self._fd, encode(payloads[-1], last), last, self.point, self.path)
            disk.flush(self._fd, self.point, self.path)
        if os.fstat(self._fd).st_size != self.end:
            with disk.step(f"{self.point}.cut", self.path):
                os.ftruncate(self._fd, self.end)
                os.fsync(self._fd)
        self._note_flushed(self._written)
        return payloads

    def read_new(self) -> list[bytes]:
        """Payloads appended since the last call; all of them, and `began_anew`, where the file was replaced by another one."""
        content = read(self.path)
        # Only the writer replaces its own file, and its end and CRC may just be changing in another thread.
        self.began_anew = self._fd < 0 and zlib.crc32(memoryview(content)[: self.end]) != self.crc
        if self.began_anew:
            self.end = self.crc = 0
        found = list(decode(content, self.end))
        if found:
            self.crc = zlib.crc32(memoryview(content)[self.end : found[-1][0]], self.crc)
            self.end = found[-1][0]
        return [payload for _, payload in found]

    def read_at(self, offset: int) -> bytes:
        """The payload of the record at an offset."""
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                size, crc = HEAD.unpack(file.read(HEAD.size))
                payload = file.read(min(size, PAYLOAD_MAX_BYTES))
        except OSError as error:
            raise disk.unusable(error, self.path) from error
        except struct.error as error:
            raise damage(self.path, offset) from error
        if zlib.crc32(payload, offset & 0xFFFFFFFF) != crc:
            raise damage(self.path, offset)
        return payload

    def append(self, payloads: Sequence[bytes]) -> None:
        """Append records and make them durable."""
        written = self._write(payloads)
        self._flush()
        self._reach(written)
        self._note_flushed(written)

    def write(self, payloads: Sequence[bytes]) -> None:
        """Append records without making them durable: they survive the process, not the machine, until the next `flush`."""
        self._reach(self._write(payloads))

    def _reach(self, written: Mark) -> None:
        self.end, self.crc = self._written = written

    def _note_flushed(self, flushed: Mark) -> None:
        if self._marks is not None:
            self._marks.note(flushed)

    def _write(self, payloads: Sequence[bytes]) -> Mark:
        if self._failure is not None:
            raise FlushFailed(f"refused since an earlier failure: {self._failure}") from self._failure
        data = bytearray()
        for payload in payloads:
            data += encode(payload, self.end + len(data))
        try:
            disk.write(self._fd, data, self.end, self.point, self.path)
        except StoreUnusable:
            self._take_back()
            raise
        return Mark(self.end + len(data), zlib.crc32(data, self.crc))

    def _take_back(self) -> None:
        """The disk cut a write short. Whole records of it must not stay behind `end`: a later, shorter write would leave them
        there to be taken for written. A shorter file needs no room; where even that fails, nothing more is written here."""
        try:
            with disk.step(f"{self.point}.take_back", self.path):
                os.ftruncate(self._fd, self.end)
        except StoreUnusable as error:
            self._failure = error
            raise FlushFailed(f"{error}; reopen the store to find out what is written") from error

    def flush(self) -> None:
        """Make all that was written durable. A failed flush is never tried again: a second one would prove nothing."""
        written = self._written  # before the flush: what comes meanwhile may not be covered
        self._flush()
        self._note_flushed(written)

    def _flush(self) -> None:
        try:
            disk.flush(self._fd, self.point, self.path)
        except FlushFailed as error:
            self._failure = error
            raise

    def replace(self, payloads: Sequence[bytes]) -> None:
        """Rewrite the journal with these records (compaction)."""
        data = encode_all(payloads)
        if self._marks is not None:
            self._marks.clear()
        try:
            disk.replace_file(self.path, data, self.point)
        except StoreUnusable as error:
            # Still the old file under its name: nothing has happened. Otherwise what this descriptor leads to has no name.
            if os.stat(self.path).st_ino == os.fstat(self._fd).st_ino:
                raise
            self._failure = error
            raise FlushFailed(f"{error}; reopen the store to find out what is durable") from error
        # Closed once, whatever comes: a number closed twice may be another file by then.
        self.close()
        self._fd = disk.open_file(self.path, True)
        self._reach(Mark(len(data), zlib.crc32(data)))
        self._note_flushed(self._written)

    def close(self) -> None:
        if self._fd >= 0:
            disk.close_file(self._fd)
            self._fd = -1


def damage(path: Path, offset: int) -> Corrupt:
    return Corrupt(
        path,
        offset,
        "damaged: valid records follow bytes that are not a record, so nothing is cut. Restore the file from a "
        "backup, or keep what can be read of it (escrow store repair)",
    )
