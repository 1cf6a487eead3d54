"""Recovery of the job's side: what a job finds when it opens a store becomes derived files that it can rely on.

    1  read the checkpoint
    2  open its generation and replay the redo log behind it
    3  validate what that gives; if it cannot be trusted, rebuild all of it from the redo log in a new generation
    4  compare the cursors with the log
    5  cut the torn tail of the redo log: last, because what is refused must stay as it is

Everything derived can be made again from the redo log: rows and queue entries have absolute values and places.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from store.directory import StoreDirectory
from store.errors import Corrupt, CursorBeyondLog
from store.io import growing_files
from store.io.file_crcs import FileCrcs
from store.io.pages import EdgeSlot, JobSlot, PublishedPage
from store.io.segments import segment_name
from store.job import expired_files
from store.job.apply import Applier
from store.job.checkpoint import read_checkpoint
from store.job.derived import DerivedFiles
from store.job.queue_crcs import QueueCrcs
from store.job.retention import Ledger
from store.progress import Progress
from store.read.readers import LogReader
from store.records import ENTRY, topic_of_key
from store.tables import redo_log
from store.tables.queue_files import NUMBERED_QUEUES, topic_queue_name
from store.tables.redo_log import Marker, RedoLog

Extents = dict[int, tuple[int, int]]


@dataclass(slots=True)
class JobRecovery:
    """What opening had to do."""

    clean: bool = False
    rebuilt: bool = False
    reason: str = ""
    entries_replayed: int = 0
    cut_at: int = 0


@dataclass(frozen=True, slots=True)
class Recovered:
    """The derived files, up to date with the redo log, and how they came to be so."""

    files: DerivedFiles
    report: JobRecovery


@dataclass(frozen=True, slots=True)
class _Found:
    """The checkpoint as it was noted; and why it cannot be used, "" where it can."""

    noted: dict[str, Any] | None
    reason: str
    fresh: bool = False


class Recovery:
    """One recovery. `redo` is left open at the end of its last valid batch."""

    def __init__(self, directory: StoreDirectory, redo: RedoLog, log: LogReader, page: PublishedPage, progress: Progress) -> None:
        self._directory, self._redo, self._log, self._page, self._progress = directory, redo, log, page, progress
        self._report = JobRecovery()
        #: Where the first file of the redo log begins that is not what the checkpoint noted.
        self._redo_wrong: int | None = None

    def run(self, *, rebuild: bool) -> Recovered:
        """Steps 1 to 5. Raises Corrupt where truth is damaged, CursorBeyondLog where the log is older than the settlement."""
        found = self._read_checkpoint(rebuild)  # 1
        self._look_at_redo((found.noted or {}).get("redo_crcs") or ())
        if found.fresh:
            files = self._first_generation()
        elif found.noted is None or found.reason:
            files = self._rebuild(found.reason, found.noted)  # 3
        else:
            files = self._resume(found.noted)  # 2, 3
        self._compare_with_log(files.marker)  # 4
        if not self._report.clean:
            self._redo.cut(self._redo.end)  # 5
        return Recovered(files, self._report)

    def _read_checkpoint(self, rebuild: bool) -> _Found:
        noted: dict[str, Any] | None = None
        try:
            noted = read_checkpoint(self._directory.root)
            reason = "" if noted else "there is no checkpoint"
        except Corrupt as error:
            reason = str(error)
        generation: int | None = None
        try:
            generation = self._directory.current_generation()
        except Corrupt as error:
            reason = str(error)
        if noted is not None and not reason and noted["generation"] != generation:
            reason = f"the checkpoint speaks of generation {noted['generation']}, not {generation}"
        if rebuild:
            reason = "asked for"
        empty = generation is None and not self._redo.file.starts() and not self._directory.generations()
        return _Found(noted, reason, fresh=empty and noted is None)

    def _look_at_redo(self, noted: Sequence[int]) -> None:
        """Find the first damaged file. A redo log that lost its front looks like one whose beginning retention took, and a rebuild
        would forget rows: refused."""
        redo = self._redo.file
        self._redo_wrong = FileCrcs(redo.segment_bytes, noted).first_wrong(0, redo.view)
        if noted and redo.starts() and redo.begin > noted[1]:
            raise Corrupt(redo.directory / segment_name(noted[1]), 0, f"is missing. {self._remedy()}")
        if redo.begin and self._redo_wrong == redo.begin:
            what = "damaged, and retention has taken what came before it"
            raise Corrupt(redo.directory / segment_name(redo.begin), 0, f"{what}. {self._remedy()}")

    def _first_generation(self) -> DerivedFiles:
        files = DerivedFiles(self._directory, 1, Marker(), Ledger(self._directory.geometry))
        self._directory.switch_generation(1)
        return files

    # --- steps 2 and 3: from a checkpoint ---
    def _resume(self, state: dict[str, Any]) -> DerivedFiles:
        """The checkpoint's generation, replayed; a rebuilt one where that cannot be trusted."""
        self._report.clean = bool(state["clean"])
        marker, ledger = redo_log.marker_from_dict(state["marker"]), Ledger.from_dict(self._directory.geometry, state["ledger"])
        try:
            files = DerivedFiles(self._directory, int(state["generation"]), marker, ledger)
        except Corrupt as error:
            return self._rebuild(str(error), state)
        if doubt := self._bring_up_to_date(files, state):
            files.close()
            return self._rebuild(doubt, state)
        return files

    def _bring_up_to_date(self, files: DerivedFiles, state: dict[str, Any]) -> str:
        """Replay what lies behind the checkpoint. Returns why the result cannot be trusted, "" where it can."""
        table, start = files.table, int(state["redo_end"])
        noted = {int(key): (int(begin), int(end)) for key, begin, end in state.get("queues", [])}
        if files.marker.half_cursor > table.allocated:
            return f"{table.file.directory}: the table ends at row {table.allocated}, before the cursor {files.marker.half_cursor}"
        if table.file.is_cut_off():  # before a file is opened, which fills it with zeros
            return f"{table.file.directory}: a file was cut off"
        if doubt := self._doubt_of_redo(state):
            return doubt
        try:
            if doubt := self._doubt_of_queues(files, noted, state.get("queue_crcs") or {}):
                return doubt
            table.count_pending()
            self._replay(files, start, files.marker.sequence)
        except Corrupt as error:
            return str(error)
        if doubt := self._doubt_of_catalogue(files, noted):
            return doubt
        if self._page[JobSlot.SEQUENCE] > files.marker.sequence:
            sequence, last = self._page[JobSlot.SEQUENCE], files.marker.sequence
            return f"{self._redo.file.directory}: ends with batch {last}, but job.published says that {sequence} was applied"
        if table.pending != files.marker.pending:
            return f"{table.file.directory}: {table.pending} rows are pending, {files.marker.pending} should be"
        return ""

    def _doubt_of_redo(self, state: dict[str, Any]) -> str:
        """Why the redo log is not what the checkpoint knew; "" where it is. It is the truth: what lies behind the damage is settled
        again, if the logs still tell it."""
        redo, end = self._redo.file, int(state["redo_end"])
        if end > redo.end:
            return f"{redo.directory}: the files end at {redo.end}, before {end}"
        if self._redo_wrong is None:
            return ""
        return f"{redo.directory / segment_name(self._redo_wrong)}: damaged, cut off or gone; it is not the file that was here"

    def _doubt_of_queues(self, files: DerivedFiles, noted: Extents, crcs: dict[str, list[int]]) -> str:
        """Why the queues are not what the checkpoint knew, before anything is written to them; "" where they are: each of their
        files is there, as long as what was written to it, and has the noted CRC."""
        extents = {topic_queue_name(*topic_of_key(key)): extent for key, extent in noted.items() if extent[0] < extent[1]}
        if any(files.catalogue.extent(key)[1] < end for key, (_, end) in noted.items()):
            return f"{files.root / 'catalogue'}: lacks a queue, or a queue's end, that the checkpoint knows"
        extents |= {name: (0, end) for name in NUMBERED_QUEUES if (end := getattr(files.marker, f"{name}_end"))}
        segment_bytes = self._directory.geometry.topic_queue_entries_per_file * ENTRY.itemsize
        for name, (begin, end) in extents.items():
            first, reach = growing_files.extent_of(files.root / name, segment_bytes)
            # Retention removes what lies before a topic queue's begin, and expired entries at the front of numbered queues.
            front_missing = name not in NUMBERED_QUEUES and first > begin * ENTRY.itemsize
            if reach < end * ENTRY.itemsize or front_missing:
                return f"{files.root / name}: a file is missing or cut off before entry {end}"
        wrong = QueueCrcs(crcs, segment_bytes).first_wrong(files)
        return f"{wrong}: damaged; it is not the file that was here" if wrong else ""

    def _doubt_of_catalogue(self, files: DerivedFiles, noted: Extents) -> str:
        """Why the catalogue cannot be right after the replay; "" where it can: no queue reaches further than was released to it."""
        for key in files.catalogue.queue_keys():
            known, extent = noted.get(key, (0, 0)), files.catalogue.extent(key)
            end = max(known[1], files.grown.get(key, (0, 0))[1])
            if extent[1] > end or not 0 <= extent[0] <= extent[1] or (self._report.clean and noted and extent != known):
                return f"{files.root / 'catalogue'}: queue {key} is {extent}, the redo log ends it at {end}"
        return ""

    # --- the replay ---
    def _replay(self, files: DerivedFiles, start: int, sequence: int | None, first_row: int = 0) -> None:
        """Apply all valid batches behind `start`, many at a time; of them what is about rows from first_row on."""
        applier = Applier(files, self._log)
        self._redo.end = start
        window: list[redo_log.RedoBatch] = []
        size, total = 0, max(self._redo.file.end - start, 1)
        for batch in self._redo.batches(start, sequence):
            window.append(batch)
            size += len(batch.entries)
            if size >= RedoLog.WINDOW_ENTRIES:
                self._apply_window(applier, window[:-1], first_row)
                self._progress(batch.end - start, total, "replaying the redo log")
                window, size = window[-1:], 0
        self._apply_window(applier, window[:-1], first_row)
        for last in window[-1:]:
            # Its flush may have failed or never happened. Only what is durable may be applied.
            self._redo.file.rewrite(last.redo_offset, last.end)
            self._redo.file.flush()
        self._apply_window(applier, window[-1:], first_row)
        self._report.cut_at = self._redo.end

    def _apply_window(self, applier: Applier, window: list[redo_log.RedoBatch], first_row: int) -> None:
        if window:
            entries = window[0].entries if len(window) == 1 else np.concatenate([batch.entries for batch in window])
            if first_row:
                entries = entries[redo_log.about(entries, first_row, 0)]
            applier.apply(entries, window[-1].marker)
            self._redo.end = window[-1].end
            self._report.entries_replayed += len(entries)

    # --- step 3: a rebuild ---
    def _rebuild(self, reason: str, noted: dict[str, Any] | None) -> DerivedFiles:
        """State table and queues from the redo log, in a new generation. It is switched to when it is whole."""
        self._report.clean, self._report.rebuilt, self._report.reason = False, True, reason
        # A number that was never in force: readers of an earlier one must notice.
        number = max(self._directory.likely_generation() or 0, int(noted["generation"]) if noted else 0) + 1
        shutil.rmtree(self._directory.generation(number), ignore_errors=True)
        files = DerivedFiles(self._directory, number, Marker(), Ledger(self._directory.geometry))
        start = self._redo.first_batch()
        # Batches that are kept for later rows may speak of rows that retention has removed: they stay removed.
        self._replay(files, start, 0 if start == 0 else None, first_row=self._log.page[EdgeSlot.HALF_BEGIN])
        self._complete_table(files)
        files.extend_catalogue()
        # Entries that only removed redo files had are holes: readers up to the published end must find a file there.
        for name in NUMBERED_QUEUES:
            if end := getattr(files.marker, f"{name}_end"):
                files.queue(name).reach(end)
        # Messages that retention has removed from the log are not offered again.
        files.ledger.log_low_water = max(self._log.log.file.begin, self._page[JobSlot.LOG_LOW_WATER])
        expired_files.raise_begins(files)
        expired_files.remove_topic_files(files)
        expired_files.remove_numbered_files(files)
        if noted is not None and files.marker.sequence >= max(noted["marker"]["sequence"], self._page[JobSlot.SEQUENCE]):
            _keep_extents(files, noted.get("queues", []))
        self._compare_with_log(files.marker)  # before the switch: what is refused stays as it is
        files.flush()
        self._directory.switch_generation(number)
        return files

    def _complete_table(self, files: DerivedFiles) -> None:
        marker, table = files.marker, files.table
        if marker.half_cursor > table.allocated:  # no row is left, but the next one has its place
            table.ensure(marker.half_cursor - 1, marker.half_cursor)
        if table.pending != marker.pending:
            reason = f"replayed to {table.pending} pending rows, its last marker says {marker.pending}. {self._remedy()}"
            raise Corrupt(self._redo.file.directory, self._redo.end, reason)

    def _compare_with_log(self, marker: Marker) -> None:
        half_end, op_end = self._log.ends()
        if marker.half_cursor > half_end or marker.op_cursor > op_end:
            raise CursorBeyondLog(
                f"{self._directory.root}: settled up to half {marker.half_cursor} and op {marker.op_cursor}, but the log "
                f"ends at half {half_end} and op {op_end}: an older log was put here, or the edge has not been opened since the "
                "machine failed. Open the edge first; if this stays, restore a whole backup (escrow store restore)"
            )
        if marker.half_cursor < self._log.half_queue.begin or marker.op_cursor < self._log.op_queue.begin:
            raise Corrupt(
                self._redo.file.directory,
                self._redo.end,
                f"{self._redo.stop_reason}: the redo log can be read up to half {marker.half_cursor} and op "
                f"{marker.op_cursor} only, and the logs no longer reach back that far. {self._remedy()}",
            )

    def _remedy(self) -> str:
        why = f" ({self._report.reason})" if self._report.reason else ""
        return f"Put the file back, or restore a backup (escrow store restore){why}"


def _keep_extents(files: DerivedFiles, queues: list[tuple[int, int, int]]) -> None:
    """Take over the extents that the checkpoint knows: a topic's offsets never start again and its begin never goes back, and
    retention may have removed the redo entries that tell. Only where the redo log is whole: otherwise what is settled again must
    get the same places."""
    known = set(files.catalogue.queue_keys())
    for queue_key, begin, end in queues:
        if queue_key in known:
            files.topic_queue(queue_key).reach(end)
            files.catalogue.extend(queue_key, begin, end)
            files.catalogue.raise_begin(queue_key, begin)
        else:
            files.catalogue.extend(queue_key, end, end)
