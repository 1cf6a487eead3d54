"""What verify's parts share: the findings they collect, and a look at segment files that needs no lock and changes nothing.

Writers may be at work meanwhile. A file that goes between the listing and the opening was taken by retention and is simply not
there; files that come later are not looked at.
"""

from __future__ import annotations

import json
import mmap
import os
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from store.arrays import Array, Ints
from store.io.disk import TEMPORARY_SUFFIX
from store.io.segments import NAME_DIGITS, segment_name

Bytes = npt.NDArray[np.uint8]

#: Problems named one by one in each file; the others are counted.
NAMED_PER_FILE_MAX: Final = 50
_CHUNK_BYTES: Final = 1 << 24


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """Something that should not be so. `offset` is in bytes from the beginning of `file`."""

    file: Path
    offset: int
    reason: str


@dataclass(slots=True)
class Report:
    """What verify found: problems, and figures about what it looked at."""

    problems: list[Problem] = field(default_factory=list)
    summary: dict[str, object] = field(default_factory=dict)


class Findings:
    """Collects problems; of a file with very many, the first ones and the number of the others."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []
        self._count: Counter[Path] = Counter()
        self.notes: list[str] = []

    def add(self, file: Path, offset: int, reason: str) -> None:
        self._count[file] += 1
        if self._count[file] <= NAMED_PER_FILE_MAX:
            self._problems.append(Problem(file, int(offset), reason))

    def note(self, file: Path, what: str) -> None:
        """Worth knowing, and not a problem."""
        self.notes.append(f"{file}: {what}")

    def problems(self) -> list[Problem]:
        more = [
            Problem(file, 0, f"and {count - NAMED_PER_FILE_MAX} more problems in this file")
            for file, count in self._count.items()
            if count > NAMED_PER_FILE_MAX
        ]
        return sorted(set(self._problems)) + more


class SegmentFiles:
    """The segment files of one directory, mapped for reading. What is missing between them reads as zeros and is a problem.

    `growing`: the last file may be shorter than a segment, and what lies behind its end reads as zeros (`growing_files.py`).
    """

    def __init__(
        self, directory: Path, segment_bytes: int, findings: Findings, *, gapless: bool = True, growing: bool = False
    ) -> None:
        self.directory, self.segment_bytes, self.findings = directory, segment_bytes, findings
        self._growing, self._lengths = growing, dict[int, int]()
        self._content: dict[int, Bytes] = {}
        for name in sorted(list_directory(directory, findings)):
            self._take(name)
        self.starts = sorted(self._content)
        for start in self.starts:
            self._check_length(start)
        if gapless and self.starts:
            for start in range(self.starts[0], self.starts[-1], segment_bytes):
                if start not in self._content:
                    findings.add(directory / segment_name(start), 0, "the segment is missing between its neighbours")

    def _take(self, name: str) -> None:
        path = self.directory / name
        if len(name) != NAME_DIGITS or not (name.isascii() and name.isdecimal()) or int(name) % self.segment_bytes:
            wanted = f"names here are {NAME_DIGITS} digits, multiples of {self.segment_bytes}"
            self.findings.add(path, 0, f"foreign file: not a segment of this store ({wanted})")
            return
        content = map_bytes(path)
        if content is None:
            return
        self._lengths[int(name)] = len(content)
        if len(content) != self.segment_bytes and not self._growing:
            padded = np.zeros(self.segment_bytes, np.uint8)
            padded[: len(content)] = content[: self.segment_bytes]
            content = padded
        self._content[int(name)] = content

    def _check_length(self, start: int) -> None:
        length = self._lengths[start]
        may_grow = self._growing and start == self.starts[-1] and length < self.segment_bytes
        if length != self.segment_bytes and not may_grow:
            reason = f"the file has {length} bytes, a segment here has {self.segment_bytes}"
            self.findings.add(self.directory / segment_name(start), min(length, self.segment_bytes), reason)

    @property
    def begin(self) -> int:
        return self.starts[0] if self.starts else 0

    @property
    def end(self) -> int:
        if not self.starts:
            return 0
        return self.starts[-1] + (self._lengths[self.starts[-1]] if self._growing else self.segment_bytes)

    def segment(self, start: int) -> Bytes | None:
        return self._content.get(start)

    def place(self, offset: int) -> tuple[Path, int]:
        """File and offset in it of a logical offset."""
        within = int(offset) % self.segment_bytes
        return self.directory / segment_name(int(offset) - within), within

    def add(self, offset: int, reason: str) -> None:
        """A problem at a logical offset."""
        self.findings.add(*self.place(offset), reason)

    def add_where(self, offsets: Ints, wrong: Any, within: int, reason: str) -> None:
        """The same problem `within` bytes behind each of the offsets that is wrong."""
        for offset in offsets[wrong].tolist():
            self.add(offset + within, reason)

    def read(self, offset: int, size: int) -> Bytes:
        """Bytes at a logical offset; zeros where there is no file."""
        parts: list[Bytes] = []
        while size > 0:
            within = offset % self.segment_bytes
            count = min(size, self.segment_bytes - within)
            content = self._content.get(offset - within)
            there = np.empty(0, np.uint8) if content is None else content[within : within + count]
            parts.append(there)
            if len(there) < count:
                parts.append(np.zeros(count - len(there), np.uint8))
            offset, size = offset + count, size - count
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, np.uint8)

    def records(self, dtype: np.dtype[Any], first: int, stop: int) -> Array:
        """Records first … stop - 1 of a file of records."""
        if stop <= first:
            return np.empty(0, dtype)
        raw = self.read(first * dtype.itemsize, (stop - first) * dtype.itemsize)
        return np.frombuffer(raw, dtype) if raw.flags.c_contiguous else np.frombuffer(raw.tobytes(), dtype)

    def check_zero_from(self, offset: int, reason: str) -> None:
        """Problem at the first byte behind `offset` that is not zero, in each file."""
        for start in self.starts:
            if start + self.segment_bytes <= offset:
                continue
            at = first_nonzero(self._content[start], max(0, offset - start))
            if at >= 0:
                self.add(start + at, reason)

    def used_bytes(self, end: int) -> int:
        return max(0, min(end, self.end) - self.begin)


def slots_of(page: type) -> list[int]:
    """Numbers of the slots that a published page names."""
    return [slot for name, slot in vars(page).items() if name.isupper()]


def first_nonzero(content: Bytes, at: int) -> int:
    """Where the first byte that is not zero lies, from `at` on; -1 if there is none."""
    for start in range(at, len(content), _CHUNK_BYTES):
        chunk = content[start : min(start + _CHUNK_BYTES, len(content))]
        if chunk.any():
            return start + int(np.argmax(chunk != 0))
    return -1


def map_bytes(path: Path) -> Bytes | None:
    """A file's bytes, mapped; None where it is not there (any more)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        size = os.fstat(fd).st_size
        if size == 0:
            return np.empty(0, np.uint8)
        return np.frombuffer(mmap.mmap(fd, size, access=mmap.ACCESS_READ), np.uint8)
    finally:
        os.close(fd)


def list_directory(directory: Path, findings: Findings) -> list[str]:
    """Names in a directory; what an interrupted creation left behind is noted and left out."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        findings.add(directory, 0, "foreign file: a directory belongs here")
        return []
    for name in names:
        if name.endswith(TEMPORARY_SUFFIX):
            findings.note(directory / name, "left over from a creation that was interrupted; its writer removes it")
    return [name for name in names if not name.endswith(TEMPORARY_SUFFIX)]


def check_names(directory: Path, known: Iterable[str], findings: Findings) -> None:
    """Report every name in a directory that is not known there."""
    for name in sorted(set(list_directory(directory, findings)) - set(known)):
        findings.add(directory / name, 0, "foreign file: nothing of this name belongs here; move it elsewhere")


def read_checked_json(path: Path, findings: Findings) -> dict[str, Any] | None:
    """A file of `disk.write_json`, byte for byte as it writes them; None where it is missing or a problem was found."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    text, _, _ = content.partition(b"\n")
    if content != text + b"\n%08x\n" % zlib.crc32(text):
        findings.add(path, 0, "the CRC on its second line does not match its first line")
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        findings.add(path, 0, f"not JSON ({error})")
        return None
    if not isinstance(value, dict):
        findings.add(path, 0, "not a JSON object")
        return None
    return value
