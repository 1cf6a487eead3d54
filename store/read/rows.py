"""The job's rows where it has made any, and the log behind them: what the edge counts and lists from."""

from __future__ import annotations

import numpy as np

from store.arrays import Ints
from store.directory import StoreDirectory
from store.io.pages import JOB_PUBLISHED, JobSlot
from store.read.readers import LogReader, TopicReader
from store.records import State, state_of


class Rows:
    def __init__(self, directory: StoreDirectory) -> None:
        self.directory, self.log = directory, LogReader(directory)
        self._topics: TopicReader | None = None

    def topics(self) -> TopicReader | None:
        if self._topics is None and (self.directory.root / JOB_PUBLISHED).exists():
            self._topics = TopicReader(self.directory)
        if self._topics is None or not self._topics.page[JobSlot.GENERATION]:
            return None
        self._topics.follow()
        return self._topics

    def groups_of(self, half_offsets: Ints) -> Ints:
        """group_no of halves, ascending; -1 where a half is quarantined or cannot be read."""
        topics = self.topics()
        # The cursor before the rows: a row before it is whole.
        cursor = topics.page[JobSlot.HALF_CURSOR] if topics is not None else 0
        split = int(np.searchsorted(half_offsets, cursor))
        found = np.full(len(half_offsets), -1, np.int64)
        if topics is not None and split:
            rows = topics.rows(half_offsets[:split])
            found[:split] = np.where(state_of(rows["word"]) == State.QUARANTINED, -1, rows["group_no"])
        if split < len(half_offsets):
            first, stop = int(half_offsets[split]), int(half_offsets[-1]) + 1
            halves = self.log.halves(first, stop)
            found[split:] = halves["group_no"][half_offsets[split:] - first]
        return found

    def close(self) -> None:
        self.log.close()
        if self._topics is not None:
            self._topics.close()
