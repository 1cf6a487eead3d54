"""The catalogue: which topic queues there are and from where to where they reach. One per generation.

slot, 24 bytes
      0  i64  queue key + 1      topic_no << 6 | queue_id, plus 1; 0 = free slot, and so are all behind it
      8  i64  begin              first entry that may be read
     16  i64  end                entries before it are in place

Each field is stored and loaded as one aligned word; the key is written last. Writer: the settling job. Rebuilt from: the redo log.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from store.arrays import Ints, distinct
from store.errors import Corrupt
from store.io.segments import SegmentedFile, segment_name

SLOT: Final = np.dtype([("key_plus_1", "<i8"), ("begin", "<i8"), ("end", "<i8")])
assert SLOT.itemsize == 24
SLOTS_PER_FILE: Final = 4096


class Catalogue:
    """begin and end of every topic queue, by queue key."""

    def __init__(self, directory: Path, *, writable: bool = False) -> None:
        self.file = SegmentedFile(directory, SLOTS_PER_FILE * SLOT.itemsize, "catalogue", writable=writable, mapped_writes=True)
        self._slot_of: dict[int, int] = {}
        self._views: dict[int, np.ndarray[Any, Any]] = {}
        self.refresh()

    def refresh(self) -> None:
        """Reader: find the queues that were added since."""
        self.file.refresh()
        if self.file.begin:  # nothing ever removes the first one
            raise Corrupt(self.file.directory / segment_name(0), 0, "is missing; escrow store rebuild makes it anew")
        number, files = len(self._slot_of), len(self.file.starts())
        while number // SLOTS_PER_FILE < files:
            keys = self._view(number // SLOTS_PER_FILE)["key_plus_1"][number % SLOTS_PER_FILE :].tolist()
            used = keys.index(0) if 0 in keys else len(keys)
            self._slot_of |= {key - 1: number + place for place, key in enumerate(keys[:used])}
            if used < len(keys):
                return
            number += used

    def _view(self, file_no: int) -> np.ndarray[Any, Any]:
        view = self._views.get(file_no)
        if view is None:
            segment = self.file.segment(file_no * self.file.segment_bytes)
            view = self._views[file_no] = np.frombuffer(segment.buffer, SLOT)
        return view

    def _slot(self, number: int) -> Any:
        return self._view(number // SLOTS_PER_FILE)[number % SLOTS_PER_FILE]

    def queue_keys(self) -> list[int]:
        return sorted(self._slot_of)

    def extent(self, queue_key: int) -> tuple[int, int]:
        """(begin, end) of a queue; (0, 0) where it has never had a message."""
        number = self._slot_of.get(queue_key)
        if number is None:
            return 0, 0
        slot = self._slot(number)
        return int(slot["begin"]), int(slot["end"])

    def extents(self) -> dict[int, tuple[int, int]]:
        """(begin, end) of every queue, by queue key."""
        found: dict[int, tuple[int, int]] = {}
        for file_no in range(-(-len(self._slot_of) // SLOTS_PER_FILE)):
            slots = self._view(file_no)[: len(self._slot_of) - file_no * SLOTS_PER_FILE]
            columns = ((slots["key_plus_1"] - 1).tolist(), slots["begin"].tolist(), slots["end"].tolist())
            found |= {key: (begin, end) for key, begin, end in zip(*columns, strict=True)}
        return found

    def extend(self, queue_key: int, begin: int, end: int) -> None:
        """A queue reaches to `end` now (never back). `begin` counts for a new queue only."""
        slot = self._slot(self._slot_of[queue_key]) if queue_key in self._slot_of else self._add(queue_key, begin)
        slot["end"] = max(end, int(slot["end"]))
        # Also where it stands there already: a process that died may have written it without a flush.
        self.file.mark_dirty(self._slot_of[queue_key] // SLOTS_PER_FILE * self.file.segment_bytes)

    def extend_many(self, queues: Mapping[int, tuple[int, int]]) -> None:
        """`extend` with (begin, end) for each queue key."""
        known = self._slot_of
        for queue_key, (begin, _) in queues.items():
            if queue_key not in known:
                self._add(queue_key, begin)
        numbers = np.fromiter((known[queue_key] for queue_key in queues), np.int64, len(queues))
        ends = np.fromiter((end for _, end in queues.values()), np.int64, len(queues))
        files = numbers // SLOTS_PER_FILE
        for file_no in distinct(files):
            chosen = files == file_no
            column, at = self._view(file_no)["end"], numbers[chosen] % SLOTS_PER_FILE
            column[at] = np.maximum(ends[chosen], column[at])  # word by word, as all that readers may see
            self.file.mark_dirty(file_no * self.file.segment_bytes)

    def begins(self, queue_keys: Ints) -> Ints:
        """The begin of each queue; 0 where it has never had a message."""
        numbers = np.fromiter((self._slot_of.get(key, -1) for key in queue_keys.tolist()), np.int64, len(queue_keys))
        found, files = np.zeros(len(queue_keys), np.int64), numbers // SLOTS_PER_FILE
        for file_no in distinct(files[numbers >= 0]):
            chosen = files == file_no
            found[chosen] = self._view(file_no)["begin"][numbers[chosen] % SLOTS_PER_FILE]
        return found

    def raise_begin(self, queue_key: int, begin: int) -> None:
        slot = self._slot(self._slot_of[queue_key])
        if begin > slot["begin"]:
            slot["begin"] = begin
            self.file.mark_dirty(self._slot_of[queue_key] // SLOTS_PER_FILE * self.file.segment_bytes)

    def _add(self, queue_key: int, begin: int) -> Any:
        number = len(self._slot_of)
        if not self.file.starts():
            self.file.segment(0, create=True)
        self.file.ensure((number + 1) * SLOT.itemsize)
        self.file.mark_dirty(number // SLOTS_PER_FILE * self.file.segment_bytes)
        slot = self._slot(number)
        slot["begin"], slot["end"] = begin, begin
        slot["key_plus_1"] = queue_key + 1
        self._slot_of[queue_key] = number
        return slot

    def close(self) -> None:
        self._views.clear()
        self.file.close()
