"""Journal marks: how far a journal was flushed, and the CRC of these bytes, in two slots of the page `edge.published`.

    slot n      end    bytes of the journal that a flush has made durable; 0 = not known
    slot n + 1  seal   the CRC of these bytes in the low 32 bits; above it 31 bits of a CRC over `end` and that CRC

A mark costs two stores into mapped memory. It survives the process. A power failure may set the page back: an older mark is still
true, because a journal only grows. Where it does not (compaction, repair), the mark is cleared, and the page flushed, before the
file is replaced. A pair whose seal does not fit says nothing: the process died between the two stores, or the page is damaged.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from store.errors import StoreUnusable
from store.io import disk
from store.io.pages import EDGE_MAGIC, EDGE_PUBLISHED, PAGE_BYTES

PAGE: Final = EDGE_PUBLISHED
_PAIR: Final = struct.Struct("<qq")
_SEALED: Final = struct.Struct("<qI")
_CRC_BITS: Final = 32
_SEAL_MASK: Final = (1 << 31) - 1


class Mark(NamedTuple):
    """How many bytes of a journal were flushed, and their CRC."""

    end: int
    crc: int


def seal_of(mark: Mark) -> int:
    return (zlib.crc32(_SEALED.pack(*mark)) & _SEAL_MASK) << _CRC_BITS | mark.crc


def decode(end: int, seal: int) -> Mark | None:
    """What a pair of slots says; None where it says nothing."""
    mark = Mark(end, seal & (1 << _CRC_BITS) - 1)
    return mark if end > 0 and seal == seal_of(mark) else None


def read(root: Path, slot: int) -> Mark | None:
    """The mark of a journal of the store in `root`; None if it has none."""
    try:
        content = (root / PAGE).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise disk.unusable(error, root / PAGE) from error
    if len(content) != PAGE_BYTES or int.from_bytes(content[:8], "little") != EDGE_MAGIC:
        return None
    return decode(*_PAIR.unpack_from(content, slot * 8))


class MarkWriter:
    """Writes the mark of one journal. Where the store has no page, it does nothing."""

    def __init__(self, root: Path, slot: int) -> None:
        self._path, self._slot = root / PAGE, slot
        self._slots: np.ndarray[tuple[int], np.dtype[np.int64]] | None = None
        try:
            fd = disk.open_file(self._path, True)
        except (FileNotFoundError, StoreUnusable):
            return
        try:
            if os.fstat(fd).st_size == PAGE_BYTES:
                slots = np.frombuffer(disk.map_file(fd, PAGE_BYTES, True, self._path), "<i8")
                self._slots = slots if int(slots[0]) == EDGE_MAGIC else None
        finally:
            disk.close_file(fd)

    def note(self, mark: Mark) -> None:
        """Set the mark; call it after the flush."""
        if self._slots is not None:
            self._slots[self._slot] = mark.end
            self._slots[self._slot + 1] = seal_of(mark) if mark.end else 0

    def clear(self) -> None:
        """Before the journal is replaced by a shorter one; durable on return."""
        if self._slots is None:
            return
        self._slots[self._slot : self._slot + 2] = 0
        fd = disk.open_file(self._path, True)
        try:
            disk.flush(fd, "published", self._path)
        finally:
            disk.close_file(fd)
