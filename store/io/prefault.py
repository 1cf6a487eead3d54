"""The next stretch of a log, kept in the system's memory ahead of its writer.

A write needs pages; if there are none yet, the writer waits until the system has found some. Usually that is fast. On a virtual
machine that gives free memory back to its host it is most of the work: 350 to 600 MB/s instead of 4,000 to 6,600 (measured;
docs/performance.md). So another thread reads the part of the log that was reserved and never written: that creates pages of
zeros without reading the disk.

Nothing depends on it: without these pages a write costs what it did before.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from store.errors import StoreUnusable
from store.io import disk
from store.io.segments import segment_name

#: This much is kept ready and refilled when half of it is used: some tenths of a second of the fastest writing.
AHEAD_BYTES: Final = 64 << 20
#: Read with one call.
STEP_BYTES: Final = 8 << 20


class Runway:
    """Of one log of segments. `extend` is for one thread at a time."""

    def __init__(self, directory: Path, segment_bytes: int) -> None:
        self._directory, self._segment_bytes = directory, segment_bytes
        #: Up to here it was made ready.
        self.ready = 0
        self._stopped = False

    def is_short(self, end: int) -> bool:
        """Whether, for a log that ends here, half of it is used."""
        return self.ready < min(end + AHEAD_BYTES // 2, self._segment_end(end))

    def extend(self, end: Callable[[], int]) -> None:
        """Make it as long as it should be, for a log that may grow meanwhile. It ends with the segment."""
        begin = end()
        stop, start = self._segment_end(begin), begin - begin % self._segment_bytes
        path = self._directory / segment_name(start)
        with suppress(StoreUnusable):  # there is no such segment yet, or any more
            fd = disk.open_file(path, writable=False)
            try:
                while not self._stopped and (at := max(self.ready, end())) < min(end() + AHEAD_BYTES, stop):
                    read = disk.touch(fd, at - start, max(min(STEP_BYTES, stop - at), disk.TOUCH_BYTES), path)
                    self.ready = min(at + max(read, disk.TOUCH_BYTES), stop)
            finally:
                disk.close_file(fd)

    def stop(self) -> None:
        """A running `extend` soon stops; later calls do nothing."""
        self._stopped = True

    def _segment_end(self, offset: int) -> int:
        return offset - offset % self._segment_bytes + self._segment_bytes
