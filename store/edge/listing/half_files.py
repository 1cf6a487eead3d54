"""What the files say about halves: how they ended, their state words, their columns, their keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from store.arrays import Array, Ints
from store.directory import StoreDirectory
from store.edge.listing.columns import Columns, with_keys
from store.edge.listing.wanted import among
from store.io.pages import EdgeSlot
from store.properties import KEYS, PropertyFinder, encode_route
from store.read.rows import Rows
from store.tables.ends import SEGMENT_BYTES as ENDS_SEGMENT
from store.tables.ends import EndsTable
from store.tables.frames import HALF_HEAD_BYTES, MAGIC, FrameKind
from store.tables.journals.names import Dictionary

#: Half offsets looked at between two questions whether it is enough.
SCAN_OFFSETS: Final = 1 << 13
_KEY: Final = PropertyFinder(KEYS)


def spans(first: int, stop: int) -> Iterator[tuple[int, int]]:
    """first … stop - 1 in pieces of SCAN_OFFSETS."""
    for at in range(first, stop, SCAN_OFFSETS):
        yield at, min(at + SCAN_OFFSETS, stop)


class HalfFiles:
    """Open files of its own."""

    def __init__(self, directory: StoreDirectory, dictionary: Dictionary) -> None:
        self.dictionary = dictionary
        self.rows = Rows(directory)
        self.log = self.rows.log
        self.ends = EndsTable(directory.ends())

    @property
    def begin(self) -> int:
        return max(self.log.half_queue.begin, self.log.page[EdgeSlot.HALF_BEGIN])

    @property
    def end(self) -> int:
        return self.log.page[EdgeSlot.HALF_END]

    def ends_of(self, half_offsets: Ints) -> npt.NDArray[np.uint8]:
        """How halves, ascending, ended."""
        found = np.zeros(len(half_offsets), np.uint8)
        at = 0
        while at < len(half_offsets):
            start = int(half_offsets[at]) // ENDS_SEGMENT * ENDS_SEGMENT
            stop = int(np.searchsorted(half_offsets, start + ENDS_SEGMENT))
            content = np.frombuffer(self.ends.file.segment(start).buffer, np.uint8)
            found[at:stop] = content[_places(half_offsets[at:stop], start)]
            at = stop
        return found

    def words(self, half_offsets: Ints) -> npt.NDArray[np.uint32]:
        """State words; 0 where the job has not made the row."""
        topics = self.rows.topics()
        return topics.words(half_offsets) if topics is not None else np.zeros(len(half_offsets), np.uint32)

    def under_way(self, words: Array) -> Array:
        """Which of these rows have a check request under way."""
        topics = self.rows.topics()
        return topics.under_way(words) if topics is not None else np.zeros(len(words), np.bool_)

    def describe(self, first: int, stop: int, ends: frozenset[int], *, keys: bool) -> Columns:
        """Columns of the halves first … stop - 1 that ended in one of these ways."""
        marks = np.frombuffer(self.ends.file.view(first, stop - first), np.uint8)
        offsets = np.flatnonzero(among(marks, ends)).astype(np.int64) + first
        entries, heads = self.log.half_heads(offsets)
        good = (heads["magic"] == MAGIC) & (heads["kind"] == FrameKind.HALF) & (heads["queue_offset"] == offsets)
        good &= heads["size_bytes"] == entries["size_bytes"]
        if not good.all():  # the job quarantines them
            offsets, entries, heads = offsets[good], entries[good], heads[good]
        stored, groups, topics = (heads[name].copy() for name in ("stored_at_ms", "group_no", "topic_no"))
        if not keys:
            return Columns(first, stop, offsets, stored, groups, topics)
        numbers = np.flatnonzero(self._may_have_key(heads))
        found = dict(zip(numbers.tolist(), self.read_keys(entries[numbers], heads[numbers]), strict=True))
        return with_keys((first, stop, offsets, stored, groups, topics), found)

    def _may_have_key(self, heads: Array) -> npt.NDArray[np.bool_]:
        """False where a half has only the properties that every half of its group for its topic has: looking into the log
        for each would cost more than the rest of a list's work."""
        routes, which = np.unique(heads["group_no"].astype(np.int64) << 32 | heads["topic_no"], return_inverse=True)
        least = np.array([self._least(route >> 32, route & 0xFFFFFFFF) for route in routes.tolist()], np.int64)
        return np.asarray(heads["properties_bytes"] > least[which])

    def _least(self, group_no: int, topic_no: int) -> int:
        """Bytes of properties that a half has at least; 0 where its names are not known here."""
        groups, topics = self.dictionary.groups, self.dictionary.topics
        if not (0 <= group_no < len(groups) and 0 <= topic_no < len(topics)):
            return 0
        return len(encode_route(groups[group_no], topics[topic_no]))

    def read_keys(self, entries: Array, heads: Array) -> Iterator[bytes]:
        """Whole keys, in the order of the entries; empty where a half has none."""
        log = self.log.log
        size = log.segment_bytes
        begins = (entries["commit_log_offset"] + HALF_HEAD_BYTES + heads["body_bytes"]).tolist()
        for begin, length in zip(begins, heads["properties_bytes"].tolist(), strict=True):
            within = begin % size
            content = log.file.segment(begin - within).buffer[within : within + length]
            yield _KEY.find(content) or b""

    def refresh(self) -> None:
        """Files were deleted: let go of them."""
        for part in (self.log.log.file, self.log.half_queue.file, self.log.op_queue.file, self.ends.file):
            part.refresh()

    def close(self) -> None:
        self.rows.close()
        self.ends.file.close()


def _places(ascending: Ints, start: int) -> Ints | slice:
    """Where they are, from start on; as a slice where there is no gap, which is many times faster."""
    first, last = int(ascending[0]), int(ascending[-1])
    if last - first + 1 == len(ascending):
        return slice(first - start, last + 1 - start)
    return ascending - start
