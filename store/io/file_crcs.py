"""What a checkpoint notes of files that only grow: the CRC of each, up to where they reached.

So a file that is cut off, changed, old or another one's is found when the store is opened, whatever its records prove by
themselves. The noted form is `[end, first, CRC, CRC, …]`: files from logical offset `first` on, all bytes before `end`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

from store.errors import Corrupt

#: Bytes at a logical offset, all in one file: (offset, size).
Read = Callable[[int, int], bytes | memoryview]


class FileCrcs:
    """CRCs of the files of one address space."""

    __slots__ = ("_crcs", "_end", "_segment_bytes")

    def __init__(self, segment_bytes: int, noted: Sequence[int] = ()) -> None:
        self._segment_bytes = segment_bytes
        self._end, first = (noted[0], noted[1]) if noted else (0, 0)
        self._crcs = {first + number * segment_bytes: crc for number, crc in enumerate(noted[2:])}

    def follow(self, begin: int, end: int, read: Read) -> None:
        """The files hold begin … end - 1 by now, and nothing that was followed before has changed."""
        begin -= begin % self._segment_bytes
        if end < self._end or begin >= self._end:
            self._crcs, self._end = {}, begin
        self.forget_before(begin)
        at = max(self._end, begin)
        while at < end:
            start = at - at % self._segment_bytes
            size = min(end - at, start + self._segment_bytes - at)
            self._crcs[start] = zlib.crc32(read(at, size), self._crcs.get(start, 0))
            at += size
        self._end = end

    def forget_before(self, begin: int) -> None:
        """Files before it are gone."""
        self._crcs = {start: crc for start, crc in self._crcs.items() if start >= begin}

    def noted(self) -> list[int]:
        return [self._end, min(self._crcs), *(self._crcs[start] for start in sorted(self._crcs))] if self._crcs else []

    def first_wrong(self, begin: int, read: Read) -> int | None:
        """Where the first file begins that is not what was followed, of those that reach behind `begin`; None if all are."""
        for start, crc in sorted(self._crcs.items()):
            stop = min(self._end, start + self._segment_bytes)
            if stop > begin and not _fits(start, stop - start, crc, read):
                return start
        return None


def _fits(start: int, size: int, crc: int, read: Read) -> bool:
    try:
        return zlib.crc32(read(start, size)) == crc
    except (Corrupt, IndexError):  # cut off, or gone
        return False
