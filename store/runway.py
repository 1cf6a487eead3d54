"""The next stretch of a log, kept in the system's memory ahead of whoever writes it.

A write needs pages, and where they are not there yet the writer waits until the system has found some. That is little where memory
lies ready. On a virtual machine that gives free memory back to its host it is most of the work: 350 to 600 MB/s instead of 4,000 to
6,600 (measured; benchmarks/NOTES.md). So somebody else, who has time, reads what was reserved for the log and never written. That
makes pages of zeros and reads nothing from the disk.

Nothing depends on it: pages that the system takes away again, or that could not be had, cost a writer what they did before.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from store.segments import segment_name

#: So much lies ready, and is filled up again when half of it is used: some tenths of a second of the fastest writing.
AHEAD_BYTES: Final = 64 << 20
#: Read with one call, during which other threads of this process run.
STEP_BYTES: Final = 8 << 20
_PIECE: Final = 64 << 10


class Runway:
    """Of one log of segments. `extend` is for one thread at a time."""

    def __init__(self, directory: Path, segment_bytes: int) -> None:
        self._directory, self._segment_bytes = directory, segment_bytes
        #: Up to here it was made ready.
        self.ready = 0

    def is_short(self, end: int) -> bool:
        """Whether, for a log that ends here, half of it is used."""
        return self.ready < min(end + AHEAD_BYTES // 2, self._segment_end(end))

    def extend(self, end: Callable[[], int]) -> None:
        """Make it as long as it should be, for a log that may grow meanwhile. It ends with the segment."""
        # All is read into the same place, which stays in the processor's cache.
        piece, begin = bytearray(_PIECE), end()
        stop, start = self._segment_end(begin), begin - begin % self._segment_bytes
        with suppress(OSError):  # there is no such segment yet, or any more
            fd = os.open(self._directory / segment_name(start), os.O_RDONLY)
            try:
                while (at := max(self.ready, end())) < min(end() + AHEAD_BYTES, stop):
                    pieces = -(-min(STEP_BYTES, stop - at) // _PIECE)
                    self.ready = min(at + max(os.preadv(fd, [piece] * pieces, at - start), _PIECE), stop)
            finally:
                os.close(fd)

    def _segment_end(self, offset: int) -> int:
        return offset - offset % self._segment_bytes + self._segment_bytes
