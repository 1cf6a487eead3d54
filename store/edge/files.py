"""The files that the edge writes, and how far it has come in them.

`EdgeFiles` are the open files. `EdgeState` is what recovery finds and every append moves on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from store.directory import TRANSACTIONS, Lock, StoreDirectory
from store.edge.recovery import names as names_recovery
from store.errors import Corrupt, JobTooOld, SegmentGone, StoreLocked
from store.io import disk
from store.io.pages import (
    EDGE_MAGIC,
    EDGE_PUBLISHED,
    FEATURE_TRANSACTIONS,
    JOB_MAGIC,
    JOB_PUBLISHED,
    JobSlot,
    PublishedPage,
)
from store.io.prefault import Runway
from store.progress import Progress
from store.records import ENTRY
from store.tables.commit_log import CommitLog
from store.tables.consume_queue import ConsumeQueue
from store.tables.dedup import DEDUP, NAMES, Dedup
from store.tables.ends import EndsTable
from store.tables.frames import Frame, FrameKind
from store.tables.journals import names as dictionary
from store.tables.journals.names import Dictionary


@dataclass(slots=True)
class EdgeState:
    """Ends of the queues and of each topic queue. Changed under the append lock only."""

    #: Halves before it are gone for callers of this store. Readers see it, as HALF_BEGIN, once a checkpoint
    #: has made it durable.
    half_begin: int = 0
    half_end: int = 0
    op_end: int = 0
    #: The next queue_offset of each topic queue, by queue key.
    next_offset: dict[int, int] = field(default_factory=dict)
    #: The log's segments before it are gone, or go next.
    log_begin: int = 0


class EdgeFiles:
    """The edge's files, open for writing."""

    def __init__(self, directory: StoreDirectory, *, default_queues: int, dedup_window_s: int, name_window_s: int) -> None:
        self.directory, root, shape = directory, directory.root, directory.geometry
        self.dictionary = Dictionary(root / dictionary.NAME, writable=True, default_queues=default_queues)
        self.log = CommitLog(directory.commit_log, shape.commit_log_segment_bytes, writable=True)
        self.runway = Runway(directory.commit_log, shape.commit_log_segment_bytes)
        entries = shape.log_queue_entries_per_file
        self.half_queue = ConsumeQueue(directory.half_queue(), entries, "half", writable=True)
        self.op_queue = ConsumeQueue(directory.op_queue(), entries, "op", writable=True)
        self.ends_table = EndsTable(directory.ends(), writable=True)
        self.dedup = Dedup(root / DEDUP, dedup_window_s, writable=True)
        self.names = Dedup(root / NAMES, name_window_s, writable=True, made_late=True)
        self.page = PublishedPage(root / EDGE_PUBLISHED, EDGE_MAGIC, writable=True)

    def require_transactions(self) -> None:
        """The store needs TRANSACTIONS from now on: before the first record of it. JobTooOld while a job runs that does not
        know them; a later start of one is refused by format.json."""
        if TRANSACTIONS in self.directory.needs:
            return
        path = self.directory.root / JOB_PUBLISHED
        if path.exists() and not PublishedPage(path, JOB_MAGIC)[JobSlot.FEATURES] & FEATURE_TRANSACTIONS and self._job_runs():
            raise JobTooOld(
                "transaction: the settling job is of a release that knows no transactions of many messages, names and joint "
                "ends; start the job of this release first"
            )
        self.directory.require(TRANSACTIONS)

    def _job_runs(self) -> bool:
        try:
            Lock(self.directory.root / "job.lock", "the settling job of this store").release()
        except StoreLocked:
            return True
        return False

    def learn_names_again(self, queue_keys: Iterable[int], progress: Progress) -> None:
        """For recovery: make the dictionary again, because it lacks names that the log has."""
        default_queues = self.dictionary.default_queues
        self.dictionary.close()
        names_recovery.learn_again(self.directory, queue_keys, default_queues, progress)
        path = self.directory.root / dictionary.NAME
        self.dictionary = Dictionary(path, writable=True, default_queues=default_queues)

    def read_half(self, half_offset: int) -> Frame:
        """A half as it was stored. Corrupt if it cannot be read. SegmentGone if retention has removed it: its
        entry in the queue may stay longer than its frame in the log."""
        offset, size, _ = self.half_queue.entry(half_offset)
        if size and offset < self.log.file.begin:
            raise SegmentGone(f"half {half_offset}: the log begins behind it")
        frame = self.log.read(offset, size)
        if frame.kind != FrameKind.HALF or frame.queue_offset != half_offset:
            raise self.not_this_half(half_offset, offset)
        return frame

    def not_this_half(self, half_offset: int, offset: int) -> Corrupt:
        """The error for a damaged entry of the half queue that leads to a valid frame of another record."""
        at = half_offset * ENTRY.itemsize
        what = f"half {half_offset}: its entry leads to another frame, at {offset}"
        return Corrupt(self.half_queue.file.directory, at, what)

    def free_topic_numbers(self) -> None:
        """Release the numbers of removed topics of which the log has no record any more, also after a power
        failure."""
        passed = self.dictionary.passed(self.log.file.begin)
        if passed:
            disk.flush_directory(self.log.file.directory, "commitlog")
            self.dictionary.free(passed)

    def close(self) -> None:
        self.runway.stop()
        parts = (self.log.file, self.half_queue, self.op_queue, self.ends_table.file, self.dedup, self.names)
        for part in (*parts, self.dictionary):
            part.close()
