"""The job's side of the store: settlement batches, made durable in the redo log and then applied.

Files it writes: redo log, state table, topic queues, check, proposal, discard and quarantine queue, catalogue, job.published,
job.checkpoint.

A batch is flushed to the redo log before anything of it is applied. What is applied is derived: after a crash, recovery applies
it again (`recovery.py`).
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from store.directory import Geometry, Lock, StoreDirectory
from store.errors import BatchBeyondCursor, FlushFailed, NoRoom, StoreUnusable
from store.io.pages import FEATURE_TRANSACTIONS, JOB_MAGIC, JOB_PUBLISHED, EdgeSlot, JobSlot, PublishedPage
from store.job import expired_files
from store.job.apply import Applier
from store.job.batch import Batch
from store.job.checkpoint import CheckpointWriter
from store.job.expired_files import RemovedTopics
from store.job.recovery import Recovery
from store.job.retention import Ledger, Settled
from store.progress import Progress, no_progress
from store.read.readers import LogReader
from store.tables.queue_extents import Catalogue
from store.tables.redo_log import MARKER_ENTRIES, TOTALS, Marker, RedoLog
from store.tables.state_table import StateTable

LOG: Final = logging.getLogger(__name__)
#: Replaying this many entries takes well under two seconds.
CHECKPOINT_ENTRIES: Final = 2_000_000


class JobStore:
    """One process opens it at a time, and one thread uses it. Open the edge first: it says how far the log reaches."""

    def __init__(
        self,
        root: Path,
        *,
        geometry: Geometry | None = None,
        rebuild: bool = False,
        checkpoint_entries: int = CHECKPOINT_ENTRIES,
        progress: Progress = no_progress,
    ) -> None:
        self.directory = StoreDirectory(root, geometry, create=False)
        self.checkpoint_entries = checkpoint_entries
        self._lock = Lock(root / "job.lock", "the settling job of this store")
        try:
            self.log = LogReader(self.directory)
            shape = self.directory.geometry
            self.redo = RedoLog(self.directory.redo_log(), shape.redo_entries_per_file, writable=True)
            self.page = PublishedPage(root / JOB_PUBLISHED, JOB_MAGIC, writable=True)
            self._removed_topics = RemovedTopics(root)
            self._failed: StoreUnusable | None = None
            #: Called when the disk is full. It waits and returns True to try again, or returns False, and the batch fails.
            self.no_room: Callable[[NoRoom], bool] = lambda _: False
            recovered = Recovery(self.directory, self.redo, self.log, self.page, progress).run(rebuild=rebuild)
            self._files, self.recovery = recovered.files, recovered.report
            if self.recovery.rebuilt and not rebuild:
                LOG.warning("%s: state table and queues were rebuilt: %s", root, self.recovery.reason)
            self._applier = Applier(self._files, self.log)
            self._checkpoint = CheckpointWriter(root, self._files, self.redo)
            #: Redo entries since the last checkpoint.
            self._unflushed = 0
            #: The log's low-water mark at which the begins of the queues were last raised.
            self._begins_for = -1
            self._open()
        except BaseException:
            self._lock.release()
            raise

    def _open(self) -> None:
        """Publish what recovery gave, and note it in a new checkpoint."""
        self.page[JobSlot.FEATURES] = FEATURE_TRANSACTIONS
        self._publish()
        self.checkpoint()
        self._files.queues.doubtful = False
        for name in sorted(os.listdir(self.directory.transaction)):
            if name.startswith("generation-") and name != self.root.name:
                shutil.rmtree(self.directory.transaction / name, ignore_errors=True)
        self.page[JobSlot.EPOCH] += 1

    # --- what is derived ---
    @property
    def marker(self) -> Marker:
        """Of the last batch that was committed."""
        return self._files.marker

    @property
    def table(self) -> StateTable:
        return self._files.table

    @property
    def catalogue(self) -> Catalogue:
        return self._files.catalogue

    @property
    def ledger(self) -> Ledger:
        return self._files.ledger

    @property
    def generation(self) -> int:
        return self._files.generation

    @property
    def root(self) -> Path:
        """The directory of the generation in force."""
        return self._files.root

    # --- settling ---
    def batch(self, *, half_cursor: int, op_cursor: int, now_ms: int) -> Batch:
        """Begin a batch that will move the cursors to these values."""
        return Batch(self.marker, half_cursor=half_cursor, op_cursor=op_cursor, now_ms=now_ms)

    def commit(self, batch: Batch) -> None:
        """Make a batch durable and visible:

        1  append it to the redo log and flush
        2  apply it: rows, then queues
        3  extend the catalogue
        4  publish the new ends and cursors
        5  write a checkpoint, if enough has been applied since the last one

        From 2 on everything is derived. After a failure in 1 to 3 the store refuses further work: only recovery can tell how far
        it got.
        """
        self._refuse_after_failure()
        if batch.before is not self.marker:
            raise BatchBeyondCursor("another batch was committed after this one was begun: begin it again")
        entries = batch.entries
        try:
            self._with_room(lambda: self.redo.append(entries, batch.marker))  # 1
            self._with_room(lambda: self._applier.apply(entries, batch.marker))  # 2
            self._with_room(self._files.extend_catalogue)  # 3
        except BaseException as error:
            self._failed = error if isinstance(error, StoreUnusable) else StoreUnusable(f"interrupted while settling: {error!r}")
            raise
        self._unflushed += len(entries) + MARKER_ENTRIES
        self._publish()  # 4
        if self._unflushed >= self.checkpoint_entries:  # 5
            try:
                self.checkpoint()
            except NoRoom:  # the redo log is whole; only the next recovery takes longer
                self._unflushed = self.checkpoint_entries * 3 // 4

    def _with_room(self, step: Callable[[], None]) -> None:
        """Retry a step as long as `no_room` returns True. A step may be repeated: values and places are absolute."""
        while True:
            try:
                return step()
            except NoRoom as error:
                if not self.no_room(error):
                    raise

    def _refuse_after_failure(self) -> None:
        if self._failed is not None:
            raise StoreUnusable(f"refused since an earlier failure: {self._failed}") from self._failed

    def _publish(self) -> None:
        files, marker, page = self._files, self._files.marker, self.page
        files.extend_catalogue()
        for slot, value in (
            (JobSlot.CHECK_END, marker.check_end),
            (JobSlot.PROPOSAL_END, marker.proposal_end),
            (JobSlot.DISCARD_END, marker.discard_end),
            (JobSlot.QUARANTINE_END, marker.quarantine_end),
            (JobSlot.ROUND_CHECK_START, marker.round_check_start),
            (JobSlot.ROUND_NO, marker.round_no),
            (JobSlot.ROW_BEGIN, files.table.begin),
            (JobSlot.LOG_LOW_WATER, files.ledger.log_low_water),
            (JobSlot.HALF_LOW_WATER, files.ledger.half_low_water),
            (JobSlot.OP_LOW_WATER, files.ledger.op_low_water),
            (JobSlot.SEQUENCE, marker.sequence),
            (JobSlot.NOW_MS, marker.now_ms),
            (JobSlot.GENERATION, files.generation),
            (JobSlot.OP_CURSOR, marker.op_cursor),
            (JobSlot.HALF_CURSOR, marker.half_cursor),
        ):
            page[slot] = value
        for number, name in enumerate(TOTALS):
            page[JobSlot.TOTALS + number] = marker.totals[name]

    def heartbeat(self, now_ms: int) -> None:
        self.page[JobSlot.HEARTBEAT_MS] = now_ms

    # --- checkpoint, retention, close ---
    def checkpoint(self, *, clean: bool = False, redo_begin: int | None = None) -> None:
        """Flush what is derived and note how far recovery may rely on it. `redo_begin`: as far as redo files go next."""
        self._refuse_after_failure()
        try:
            self._checkpoint.write(clean=clean, redo_begin=self.redo.file.begin if redo_begin is None else redo_begin)
        except FlushFailed as error:
            # The pages may be lost although they look clean: no later checkpoint may rely on them.
            self._failed = error
            raise
        self._unflushed = 0

    def retain(self, now_ms: int, retention_ms: int, leapt_ms: int = 0) -> dict[str, int]:
        """Remove this side's files that have expired, and publish how far the edge may remove its own (see retention.py).

        `leapt_ms`: by how much the clock leapt within the last retention_ms. Returns the numbers of files removed.
        """
        # Rows go one cycle after their ids. By then the edge has published that it accepts no more ops about halves before
        # HALF_BEGIN, and all ops that it accepted before (a resume, say) are settled.
        half_begin, (_, op_end) = self.log.page[EdgeSlot.HALF_BEGIN], self.log.ends()
        files, ledger = self._files, self._files.ledger
        before = ledger.low_water
        low = ledger.advance(Settled(files.table, files.marker, self.log), now_ms, retention_ms, leapt_ms)
        if ledger.low_water != before:
            try:
                self.checkpoint()  # first: recovery takes a begin that no mark accounts for as damage
            except StoreUnusable:
                ledger.log_low_water, ledger.half_low_water, ledger.op_low_water = before
                raise
        # Before the checkpoint, which makes the begins durable: files go only behind a begin that stays.
        moved = ledger.log_low_water != self._begins_for
        if moved:
            expired_files.raise_begins(files)
        first_row = min(half_begin, low) if files.marker.op_cursor >= op_end else files.table.begin
        removed = {"state": files.table.remove_before(first_row)}
        redo_begin = expired_files.redo_kept_from(self.redo, max(first_row, files.table.begin), ledger.op_low_water)
        self.checkpoint(redo_begin=redo_begin)
        removed["redo"] = self.redo.file.remove_before(redo_begin)
        removed["topics"] = expired_files.remove_numbered_files(files)
        removed["topics"] += expired_files.remove_topic_files(files) if moved else 0
        # Before the marks are published: only when the edge has removed up to them may another topic get the number.
        removed["topics"] += self._removed_topics.drop_files(files.queues)
        self._begins_for = ledger.log_low_water
        # The marks may have gone back. Their cursor is published last, so that the edge never takes old marks for new ones.
        self._publish()
        self.page[JobSlot.MARKS_OP_CURSOR] = files.marker.op_cursor
        return removed

    def close(self) -> None:
        """Flush, note a clean exit, release the lock."""
        try:
            if self._failed is None:
                self.checkpoint(clean=True)
        finally:
            self._release_files()
            self._lock.release()

    def _release_files(self) -> None:
        self._files.close()
        self.redo.close()
        self.log.close()
        self._removed_topics.close()

    def __enter__(self) -> JobStore:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._release_files()
            self._lock.release()
