"""What the embedded edge sees of the streaming job, and of what the job has not settled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

import numpy as np

from ingest.capabilities import JobState
from ingest.edge.quotas import Quotas
from store.directory import StoreDirectory
from store.edge.store import EdgeStore
from store.errors import StoreError
from store.guarded_clock import GuardedClock
from store.io.pages import JOB_MAGIC, JOB_PUBLISHED, EdgeSlot, JobSlot, PublishedPage
from store.read.readers import LogReader, TopicReader

#: A job whose last heartbeat is older is called silent.
JOB_SILENT_MS: Final = 10_000


class JobView:
    def __init__(self, store: EdgeStore, topics: Callable[[], TopicReader | None], clock: GuardedClock) -> None:
        self._store, self._topics, self._clock = store, topics, clock

    def files(self) -> TopicReader | None:
        """The job's files; None where it has none, or is just switching to others."""
        try:
            return self._topics()
        except (StoreError, IndexError):
            return None

    def state(self) -> JobState:
        topics, own = self.files(), self._store.page
        if topics is None:
            return JobState("absent", own[EdgeSlot.HALF_END], own[EdgeSlot.OP_END])
        page = topics.page
        heartbeat_ms = page[JobSlot.HEARTBEAT_MS]
        alive = "no_room" if page[JobSlot.NO_ROOM_SINCE_MS] else "running"
        return JobState(
            alive if abs(self._clock.elapsed_ms() - heartbeat_ms) < JOB_SILENT_MS else "silent",
            own[EdgeSlot.HALF_END] - page[JobSlot.HALF_CURSOR],
            own[EdgeSlot.OP_END] - page[JobSlot.OP_CURSOR],
            page[JobSlot.ROUND_NO],
            heartbeat_ms,
        )


class StoreBacklog:
    """What is pending (`ingest.edge.quotas` counts), and how old the oldest record is that the job has not settled."""

    def __init__(self, directory: StoreDirectory, quotas: Quotas) -> None:
        self._directory = directory
        self.pending_by_group, self.ended_by_group = quotas.pending_by_group, quotas.ended_by_group
        self.oldest_age_s = quotas.oldest_age_s

    def oldest_unsettled_ms(self, job: JobState) -> int | None:
        """When the first half and the first op that the job has not settled were stored: the earlier of the two."""
        if not job.halves_behind and not job.ops_behind:
            return None
        stored_ms: list[int] = []
        with contextlib.suppress(StoreError, IndexError):  # files that change under our hands: at the next look
            log = LogReader(self._directory)
            try:
                half_end, op_end = log.ends()
                half, op = half_end - job.halves_behind, op_end - job.ops_behind
                stored_ms += (log.halves(half, min(half + 1, half_end))["stored_at_s"].astype(np.int64) * 1000).tolist()
                stored_ms += log.ops(op, min(op + 1, op_end))["stored_at_ms"].tolist()
            finally:
                log.close()
        return min(filter(None, stored_ms), default=None)


def last_time_ms(store: EdgeStore) -> int:
    """The last time that a store of an earlier release tells; 0 = none. The edge's heartbeat is the newest; where there is none,
    the time of the last settled batch."""
    if heartbeat_ms := store.page[EdgeSlot.HEARTBEAT_MS]:
        return heartbeat_ms
    try:
        return PublishedPage(store.directory.root / JOB_PUBLISHED, JOB_MAGIC)[JobSlot.NOW_MS]
    except StoreError:
        return 0
