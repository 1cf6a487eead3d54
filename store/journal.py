"""Journal: small records of any length, appended one after another to one file. For the dictionary, the audit and the consumers.

record
      0  u32  payload_bytes
      4  u32  crc            CRC-32 of the payload, started with the low 32 bits of the record's own offset
      8  …    payload

The journal ends at the first record that is not whole and valid; its writer cuts what lies behind when it opens.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from store import disk
from store.errors import Corrupt, FlushFailed, StoreUnusable

HEAD: Final = struct.Struct("<II")
assert HEAD.size == 8
PAYLOAD_MAX_BYTES: Final = 1 << 24


def encode(payload: bytes, offset: int) -> bytes:
    return HEAD.pack(len(payload), zlib.crc32(payload, offset & 0xFFFFFFFF)) + payload


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


class Journal:
    """Append and read. A reader calls `read_new` again to see what came since."""

    def __init__(self, path: Path, point: str, *, writable: bool = False) -> None:
        self.path, self.point, self.end = path, point, 0
        self._fd = -1
        if writable:
            if not path.exists():
                disk.replace_file(path, b"", point)
            self._fd = disk.open_file(path, True)

    def recover(self) -> list[bytes]:
        """Writer: all payloads; what lies behind the last valid record is cut off."""
        payloads = self.read_new()
        if payloads:
            # The last record's writer may have died before its flush, or of a failed one: write it again.
            last = self.end - HEAD.size - len(payloads[-1])
            disk.write(self._fd, encode(payloads[-1], last), last, self.point, self.path)
            disk.flush(self._fd, self.point, self.path)
        if os.fstat(self._fd).st_size != self.end:
            with disk.step(f"{self.point}.cut", self.path):
                os.ftruncate(self._fd, self.end)
                os.fsync(self._fd)
        return payloads

    def read_new(self) -> list[bytes]:
        """Payloads appended since the last call."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise disk.unusable(error, self.path) from error
        found = list(decode(content, self.end))
        if found:
            self.end = found[-1][0]
        return [payload for _, payload in found]

    def read_at(self, offset: int) -> bytes:
        """The payload of the record at an offset."""
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                size, _ = HEAD.unpack(file.read(HEAD.size))
                return file.read(size)
        except OSError as error:
            raise disk.unusable(error, self.path) from error

    def append(self, payloads: Sequence[bytes]) -> None:
        """Append records and make them durable."""
        end = self._write(payloads)
        disk.flush(self._fd, self.point, self.path)
        self.end = end

    def write(self, payloads: Sequence[bytes]) -> None:
        """Append records without making them durable: they survive the process, not the machine, until the next `flush`."""
        self.end = self._write(payloads)

    def _write(self, payloads: Sequence[bytes]) -> int:
        data, end = bytearray(), self.end
        for payload in payloads:
            data += encode(payload, end + len(data))
        disk.write(self._fd, data, self.end, self.point, self.path)
        return self.end + len(data)

    def flush(self) -> None:
        """Make all that was written durable."""
        disk.flush(self._fd, self.point, self.path)

    def replace(self, payloads: Sequence[bytes]) -> None:
        """Write the journal anew with these records (compaction)."""
        data = bytearray()
        for payload in payloads:
            data += encode(payload, len(data))
        try:
            disk.replace_file(self.path, bytes(data), self.point)
        except StoreUnusable as error:
            # Still the old file under its name: nothing has happened. Otherwise what this descriptor leads to is nobody's.
            if os.stat(self.path).st_ino == os.fstat(self._fd).st_ino:
                raise
            raise FlushFailed(f"{error}; reopen the store to find out what is durable") from error
        # Closed once, whatever comes: a number closed twice may be somebody else's file by then.
        self.close()
        self._fd, self.end = disk.open_file(self.path, True), len(data)

    def close(self) -> None:
        if self._fd >= 0:
            disk.close_file(self._fd)
            self._fd = -1


def check_whole(path: Path) -> None:
    """Raise Corrupt unless every byte of the file belongs to a valid record (verify)."""
    content = path.read_bytes()
    end = max((end for end, _ in decode(content)), default=0)
    if end != len(content):
        raise Corrupt(path, end, "not a whole valid record")
