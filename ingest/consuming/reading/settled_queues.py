"""The job's topic queues as consumers may read them: what is settled, once the job's files are known to be whole.

The job writes entries, then the catalogue, then its cursor, so a reader that sees an end finds the entries before it.
That holds for the page cache, not for the disk: after a power failure a catalogue may name entries that were never
written, until the job has recovered. A consumer would take such a place for a hole and skip a message. So after
another boot of the machine nothing counts as settled until the job has given a sign of life; `edge.cursors` remembers
the boot in which it did.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from store.arrays import Bools, Ints
from store.directory import StoreDirectory
from store.errors import StoreError
from store.io.pages import JOB_PUBLISHED, JobSlot, PublishedPage
from store.read.readers import TopicReader
from store.records import State, state_of, topic_of_key
from store.tables import delivery_cursors
from store.tables.delivery_cursors import Cursors
from store.tables.queue_files import topic_queue_name

_NOTHING: Final = (0, 0)
_DISCARDED: Final = (int(State.DISCARDED_MAX), int(State.DISCARDED_EXPIRED))


class Settled:
    """Follows the job's files. Lives in the event loop."""

    def __init__(self, directory: StoreDirectory, cursors: Cursors, boot: int) -> None:
        self._directory, self._cursors, self._boot = directory, cursors, boot
        self._topics: TopicReader | None = None
        self._page_path = directory.root / JOB_PUBLISHED
        self._whole = False
        self._first_signs: tuple[int, ...] | None = None
        # Where no job has been yet, whatever one makes is of this boot.
        if not self._page_path.exists() or (boot and cursors[delivery_cursors.BOOT] == boot):
            self._found_whole()

    def look(self) -> int | None:
        """The op up to which everything is settled, then the job's files as they are now; None: not known to be whole."""
        if self._topics is None and not self._open():
            return 0 if self._whole else None
        topics = self._topics
        assert topics is not None
        # The cursor first: the catalogue that is looked at later has all that lies before it.
        op_cursor = topics.page[JobSlot.OP_CURSOR]
        if not topics.page[JobSlot.GENERATION]:
            return 0 if self._whole else None
        try:
            topics.follow()
        except (StoreError, IndexError):
            self._topics = None  # the job is just changing them: they are opened anew at the next look
            raise
        return op_cursor if self._is_whole(topics.page) else None

    def _open(self) -> bool:
        if not self._page_path.exists():
            return False
        try:
            self._topics = TopicReader(self._directory)
        except (StoreError, IndexError):  # the job is just making it: next time
            return False
        return True

    def _is_whole(self, page: PublishedPage) -> bool:
        if not self._whole:
            signs = tuple(page[slot] for slot in (JobSlot.EPOCH, JobSlot.SEQUENCE, JobSlot.HEARTBEAT_MS))
            self._first_signs = self._first_signs or signs
            if signs != self._first_signs:
                self._found_whole()
        return self._whole

    def _found_whole(self) -> None:
        self._whole, self._cursors[delivery_cursors.BOOT] = True, self._boot

    @property
    def whole(self) -> bool:
        return self._whole

    def extent(self, queue_key: int) -> tuple[int, int]:
        """(begin, end) of a topic queue; (0, 0) where nothing of it is settled."""
        topics = self._topics
        return topics.catalogue.extent(queue_key) if topics is not None and topics.generation else _NOTHING

    def extents(self) -> dict[int, tuple[int, int]]:
        """`extent` of every topic queue of which something is settled, by queue key."""
        topics = self._topics
        return topics.catalogue.extents() if topics is not None and topics.generation else {}

    def entries(self, queue_key: int, first: int, stop: int) -> list[tuple[int, int, int]]:
        """(commit_log_offset, size_bytes, tags_code) of entries within the extent; none where the files are just changing."""
        if self._topics is None or stop <= first:
            return []
        try:
            found: Any = self._topics.queue(topic_queue_name(*topic_of_key(queue_key))).read(first, stop).tolist()
        except (StoreError, IndexError):  # retention or a rebuild took the file: the next look sees where the queue begins
            return []
        return list(found)

    def may_release(self, half_offsets: Ints, resumed: set[int]) -> Bools:
        """Whether a commit of each half will release it, as far as the job has got: the edge accepted it, but an op that was lost
        may have told the job something else before."""
        topics = self._topics
        if topics is None or not topics.generation:
            return np.ones(len(half_offsets), np.bool_)
        # The cursor before the rows: rows before it are there.
        half_cursor = topics.page[JobSlot.HALF_CURSOR]
        known = half_offsets < half_cursor
        states = np.full(len(half_offsets), int(State.PREPARED))
        try:
            states[known] = state_of(topics.rows(half_offsets[known])["word"])
        except (StoreError, IndexError):
            states[known] = int(State.NONE)
        good: Bools = states == int(State.PREPARED)
        for at in np.flatnonzero(np.isin(states, _DISCARDED)).tolist():
            good[at] = int(half_offsets[at]) in resumed
        return good

    def may_follow(self, half_offsets: Ints) -> Bools:
        """Whether each member will be released where its head is: not if it cannot be read."""
        topics = self._topics
        if topics is None or not topics.generation:
            return np.ones(len(half_offsets), np.bool_)
        known = half_offsets < topics.page[JobSlot.HALF_CURSOR]
        states = np.full(len(half_offsets), int(State.MEMBER))
        try:
            states[known] = state_of(topics.rows(half_offsets[known])["word"])
        except (StoreError, IndexError):
            states[known] = int(State.NONE)
        good: Bools = states == int(State.MEMBER)
        return good

    def let_go(self) -> None:
        """Let go of files that were removed."""
        if self._topics is not None:
            self._topics.let_go()

    def close(self) -> None:
        if self._topics is not None:
            self._topics.close()
