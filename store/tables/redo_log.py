"""The redo log: the truth of settlement. Batches of 20-byte entries of absolute values, each closed by a marker.

entry, 20 bytes
      0  i64  kind << 56 | number   RedoKind; number = half_offset, or op_offset for MESSAGE and QUARANTINE_OP
      8  u32  word                  the row's new state word
     12  i64  position              by kind:
  kind              number       word           position
   1 ROW            half_offset  new word       -1
   2 IMAGE          half_offset  new word       commit_log_offset       (always followed by IMAGE_REST)
   3 IMAGE_REST     half_offset  size_bytes     stored_at_s << 32 | group_no
   4 RELEASE        half_offset  new word       topic position
   5 HOLE           half_offset  new word       topic position          (a commit of a quarantined half)
   6 CHECK          half_offset  new word       entry number in the check queue
   7 PROPOSE        half_offset  new word       State << 56 | entry number in the proposal queue
   8 DISCARD        half_offset  new word       State << 56 | entry number in the discard queue
   9 QUARANTINE     half_offset  new word       entry number in the quarantine queue
  10 QUARANTINE_OP  op_offset    0              entry number in the quarantine queue
  11 MESSAGE        op_offset    size_bytes     topic position

marker, 160 bytes = 8 entries, closes a batch
      0  i64  0x7F << 56 | number of entries before it in this batch
      8  u32  crc             CRC-32 of the batch's entries and of the marker with crc = 0, started with the low 32 bits of the
      batch's offset
     12  u32  reserved        0
     16  i64  half_cursor     settled: halves before it
     24  i64  op_cursor       settled: ops before it
     32  i64  now_ms          the batch's time
     40  i64  round_no
     48  i64  round_check_start   entry number in the check queue where this round began
     56  i64  check_end       ends of the four queues after this batch
     64  i64  proposal_end
     72  i64  discard_end
     80  i64  quarantine_end
     88  8 × i64 totals       TOTALS below, since the store was made
    152  i64  sequence        1 for the first batch, then one more each

A batch counts when its marker is whole: number of entries and CRC fit and the sequence follows. All values are absolute, so
applying a batch
twice equals applying it once. A batch may run over into the next file. Files: `redo_entries_per_file` entries each.

Writer: the settling job. Truth: rebuilt from nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

import numpy as np

from store.io.segments import SegmentedFile

REDO: Final = np.dtype([("tag", "<i8"), ("word", "<u4"), ("position", "<i8")])
assert REDO.itemsize == 20

KIND_SHIFT: Final = 56
NUMBER_MASK: Final = (1 << KIND_SHIFT) - 1
MARKER_KIND: Final = 0x7F

TOTALS: Final = (
    "prepares",
    "resumes",
    "commits",
    "rollbacks",
    "discards_max",
    "discards_expired",
    "quarantined",
    "messages",
)

MARKER: Final = np.dtype(
    [
        ("tag", "<i8"),
        ("crc", "<u4"),
        ("reserved", "<u4"),
        ("half_cursor", "<i8"),
        ("op_cursor", "<i8"),
        ("now_ms", "<i8"),
        ("round_no", "<i8"),
        ("round_check_start", "<i8"),
        ("check_end", "<i8"),
        ("proposal_end", "<i8"),
        ("discard_end", "<i8"),
        ("quarantine_end", "<i8"),
        ("totals", "<i8", 8),
        ("sequence", "<i8"),
    ]
)
MARKER_ENTRIES: Final = 8
assert MARKER.itemsize == MARKER_ENTRIES * REDO.itemsize == 160
assert len(TOTALS) == 8
_FIELDS: Final = (
    "half_cursor",
    "op_cursor",
    "now_ms",
    "round_no",
    "round_check_start",
    "check_end",
    "proposal_end",
    "discard_end",
    "quarantine_end",
    "sequence",
)


class RedoKind(IntEnum):
    ROW = 1
    IMAGE = 2
    IMAGE_REST = 3
    RELEASE = 4
    HOLE = 5
    CHECK = 6
    PROPOSE = 7
    DISCARD = 8
    QUARANTINE = 9
    QUARANTINE_OP = 10
    MESSAGE = 11


@dataclass(slots=True)
class Marker:
    """What a batch leaves behind, in absolute values."""

    half_cursor: int = 0
    op_cursor: int = 0
    now_ms: int = 0
    round_no: int = 0
    round_check_start: int = 0
    check_end: int = 0
    proposal_end: int = 0
    discard_end: int = 0
    quarantine_end: int = 0
    sequence: int = 0
    totals: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TOTALS, 0))

    @property
    def pending(self) -> int:
        """prepares + resumes - commits - rollbacks - discards - quarantined."""
        total = self.totals
        ended = total["commits"] + total["rollbacks"] + total["discards_max"] + total["discards_expired"] + total["quarantined"]
        return total["prepares"] + total["resumes"] - ended

    def copy(self) -> Marker:
        return marker_from_dict(marker_to_dict(self))


def marker_to_dict(marker: Marker) -> dict[str, Any]:
    return {**{name: getattr(marker, name) for name in _FIELDS}, "totals": dict(marker.totals)}


def marker_from_dict(state: dict[str, Any]) -> Marker:
    values = {name: int(state[name]) for name in _FIELDS}
    return Marker(**values, totals={name: int(state["totals"][name]) for name in TOTALS})


def make_entries(kind: RedoKind, numbers: Any, words: Any, positions: Any) -> np.ndarray[Any, Any]:
    """Entries of one kind from columns."""
    entries = np.empty(len(numbers), REDO)
    entries["tag"] = np.asarray(numbers, np.int64) | (int(kind) << KIND_SHIFT)
    entries["word"], entries["position"] = words, positions
    return entries


def make_images(half_offsets: Any, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Two entries a row: its whole image, so that a rebuild touches no frame."""
    pairs = np.empty((len(rows), 2), REDO)
    numbers = np.asarray(half_offsets, np.int64)
    pairs["tag"][:, 0] = numbers | (RedoKind.IMAGE << KIND_SHIFT)
    pairs["tag"][:, 1] = numbers | (RedoKind.IMAGE_REST << KIND_SHIFT)
    pairs["word"][:, 0], pairs["position"][:, 0] = rows["word"], rows["commit_log_offset"]
    pairs["word"][:, 1] = rows["size_bytes"].astype(np.uint32)
    pairs["position"][:, 1] = (rows["stored_at_s"].astype(np.int64) << 32) | rows["group_no"].astype(np.uint32)
    return pairs.reshape(-1)


def kinds_of(entries: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(entries["tag"] >> KIND_SHIFT, np.uint8)


def numbers_of(entries: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(entries["tag"] & NUMBER_MASK, np.int64)


def group_numbers(entries: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The numbers of groups that row images use, each once; a quarantined half has none."""
    rest = entries["position"][kinds_of(entries) == RedoKind.IMAGE_REST]
    numbers = np.unique((rest & 0xFFFFFFFF).astype(np.uint32).view(np.int32))
    return numbers[numbers >= 0]


def encode_marker(marker: Marker, count: int) -> np.ndarray[Any, Any]:
    encoded = np.zeros(1, MARKER)
    encoded["tag"] = (MARKER_KIND << KIND_SHIFT) | count
    for name in _FIELDS:
        encoded[name] = getattr(marker, name)
    encoded["totals"] = [marker.totals[name] for name in TOTALS]
    return encoded


def decode_marker(encoded: Any) -> Marker:
    values = {name: int(encoded[name]) for name in _FIELDS}
    return Marker(**values, totals=dict(zip(TOTALS, encoded["totals"].tolist(), strict=True)))


def batch_crc(entries: bytes | memoryview, marker: bytes, redo_offset: int) -> int:
    """CRC of a batch; `marker` with its crc field zeroed."""
    return zlib.crc32(marker, zlib.crc32(entries, redo_offset & 0xFFFFFFFF))


@dataclass(frozen=True, slots=True)
class RedoBatch:
    """A valid batch as read back."""

    redo_offset: int
    end: int
    entries: np.ndarray[Any, Any]
    marker: Marker


class RedoLog:
    """Append batches; read valid batches. Offsets are bytes."""

    WINDOW_ENTRIES: Final = 1 << 18

    def __init__(self, directory: Path, entries_per_file: int, *, writable: bool = False) -> None:
        self.file = SegmentedFile(directory, entries_per_file * REDO.itemsize, "redo", writable=writable)
        self.end = self.file.begin
        self.stop_reason = ""

    def append(self, entries: np.ndarray[Any, Any], marker: Marker) -> None:
        """Write one batch and make it durable: entries and marker with one write and one flush (one a file where it runs over)."""
        encoded = encode_marker(marker, len(entries))
        content = entries.tobytes()
        encoded["crc"] = batch_crc(content, encoded.tobytes(), self.end)
        data = content + encoded.tobytes()
        if not self.file.starts():
            self.file.segment(0, create=True)
        self.file.ensure(self.end + len(data))
        self.file.write(self.end, data)
        self.file.flush()
        self.end += len(data)

    def batches(self, start: int, sequence: int | None) -> Iterator[RedoBatch]:
        """Every valid batch from `start` on. `sequence`: of the batch before `start`; None where it is not known.

        Stops at the first place that is not a valid batch; `stop_reason` then says why.
        """
        self.stop_reason = "end of the log"
        at = start
        while (batch := self._batch_at(at)) is not None:
            if sequence is not None and batch.marker.sequence != sequence + 1:
                self.stop_reason = f"batch {batch.marker.sequence} where {sequence + 1} belongs"
                return
            yield batch
            at, sequence = batch.end, batch.marker.sequence

    def _batch_at(self, at: int) -> RedoBatch | None:
        width = 64
        room = (self.file.end - at) // REDO.itemsize
        while True:
            window = self._window(at, min(width, room))
            # Candidates are slots with the marker's kind; only the one that counts the entries before it can be it.
            slots = np.flatnonzero(kinds_of(window) == MARKER_KIND)
            fitting = slots[numbers_of(window[slots]) == slots]
            for slot in fitting.tolist():
                if slot + MARKER_ENTRIES > len(window):
                    break
                return self._checked(at, window, slot)
            if len(window) >= room or (not len(fitting) and not window["tag"][-1]):
                if len(window) and window["tag"][0]:
                    self.stop_reason = "entries without a marker"
                return None
            width *= 8

    def _window(self, at: int, count: int) -> np.ndarray[Any, Any]:
        if count <= 0:
            return np.empty(0, REDO)
        return np.frombuffer(self.file.view(at, count * REDO.itemsize), REDO)

    def _checked(self, at: int, window: np.ndarray[Any, Any], count: int) -> RedoBatch | None:
        raw = bytearray(window[count : count + MARKER_ENTRIES].tobytes())
        encoded = np.frombuffer(raw, MARKER, 1)[0]
        crc = int(encoded["crc"])
        raw[8:12] = bytes(4)
        entries = window[:count]
        if batch_crc(entries.tobytes() if count else b"", bytes(raw), at) != crc:
            self.stop_reason = "a batch whose CRC does not match"
            return None
        end = at + (count + MARKER_ENTRIES) * REDO.itemsize
        return RedoBatch(at, end, entries, decode_marker(encoded))

    def first_batch(self) -> int:
        """Where the first whole batch begins. Retention may have taken the beginning of the one that ran over into the first
        file, and the first whole one may itself run over."""
        begin, size = self.file.begin, REDO.itemsize
        if begin == 0:
            return 0
        for start in self.file.starts():
            window = self._window(start, self.file.segment_bytes // size)
            for slot in np.flatnonzero(kinds_of(window) == MARKER_KIND).tolist():
                count = int(numbers_of(window[slot : slot + 1])[0])
                at, end = start + (slot - count) * size, start + (slot + MARKER_ENTRIES) * size
                # The marker's inner slots may look like a marker: only a valid batch that ends here has one.
                if at >= begin and (batch := self._batch_at(at)) is not None and batch.end == end:
                    return at
        return begin

    def cut(self, redo_offset: int) -> None:
        self.end = redo_offset
        self.file.cut(redo_offset)

    def close(self) -> None:
        self.file.close()


def about(entries: np.ndarray[Any, Any], first_half: int, first_op: int) -> Any:
    """Which of these entries are about a row from first_half on, or about an op from first_op on."""
    kinds, numbers = kinds_of(entries), numbers_of(entries)
    of_op = (kinds == RedoKind.MESSAGE) | (kinds == RedoKind.QUARANTINE_OP)
    return numbers >= np.where(of_op, first_op, first_half)


def speaks_of(entries: np.ndarray[Any, Any], first_half: int, first_op: int) -> bool:
    """Whether any of these entries is `about` something that is still there."""
    return bool(about(entries, first_half, first_op).any())
