"""Verify, the state table: every row against the replay of the redo log."""

from __future__ import annotations

from typing import Any

import numpy as np

from store.arrays import Ints
from store.inspect.verify.edge_files import EdgeFiles
from store.inspect.verify.files import Findings, SegmentFiles
from store.inspect.verify.job_files import JobFiles
from store.inspect.verify.redo import RedoScan, Replay, marker_pending
from store.records import ROW
from store.tables.redo_log import KIND_SHIFT, NUMBER_MASK, REDO, RedoKind


class StateRows:
    """Rows of the files, and rows that the redo log gives."""

    def __init__(self, job: JobFiles, replay: Replay, edge: EdgeFiles) -> None:
        self._job, self._replay, self._edge = job, replay, edge

    def check_pending(self) -> int:
        """Every row has an image, and as many are pending as the totals say. Returns how many."""
        replay = self._replay
        missing = np.flatnonzero(~replay.imaged)
        if self._job.scan.begin:
            # Of rows whose ids are gone no image need be left.
            missing = missing[missing + replay.row_begin >= self._edge.half_floor]
        for row in missing.tolist():
            at = (row + replay.row_begin) * ROW.itemsize
            self._job.table.add(at, f"row {row + replay.row_begin} has no image in the redo log: a rebuild would lose it")
        pending, wanted = replay.pending(), marker_pending(replay.marker)
        if pending != wanted and len(self._job.scan.markers):
            at = int(self._job.scan.starts[-1] + self._job.scan.counts[-1]) * REDO.itemsize + 88
            self._job.redo_files.add(at, f"{pending} rows are pending, the totals say {wanted}")
        return pending

    def compare(self) -> None:
        """Every row of the table against the replay."""
        replay, first = self._replay, self._replay.row_begin
        if self._job.table.end < replay.half_cursor * ROW.itemsize and not self._forgiven(np.array([replay.half_cursor - 1]))[0]:
            self._job.table.add(self._job.table.end, f"the table ends here, before the cursor {replay.half_cursor}")
        rows_per_file = self._job.geometry.state_rows_per_file
        for start in self._job.table.starts:
            low = start // ROW.itemsize
            stop = min(low + rows_per_file, replay.half_cursor)
            found = self._job.table.records(ROW, low, max(low, stop))
            wanted = replay.rows[low - first : max(low, stop) - first]
            wrong = np.flatnonzero(found != wanted)
            # Rows whose ids are gone stay until their file goes. The redo log need not have them, nor a rebuild make them.
            forgotten = ~replay.imaged[wrong + low - first] | (found[wrong] == np.zeros(1, ROW))
            unjudged = (wrong + low < self._edge.half_floor) & forgotten
            wrong = wrong[~unjudged]
            if len(wrong):
                wrong = wrong[~self._forgiven(wrong + low)]
            for row in wrong.tolist():
                self._report_row(row + low, found[row], wanted[row])
        if self._job.clean:
            self._job.table.check_zero_from(replay.half_cursor * ROW.itemsize, "a row behind the cursor is not NONE")

    def _report_row(self, row: int, found: Any, wanted: Any) -> None:
        assert ROW.fields is not None
        for name in ROW.names or ():
            if found[name] != wanted[name]:
                reason = f"row {row}: {name} is {int(found[name])}, the redo log says {int(wanted[name])}"
                self._job.table.add(row * ROW.itemsize + ROW.fields[name][1], reason)

    def _forgiven(self, numbers: Ints) -> Any:
        """Rows that a batch touches which may have been applied while the table was read: they are not judged."""
        if self._job.clean:
            return np.zeros(len(numbers), bool)
        now = RedoScan(SegmentFiles(self._job.directory.redo_log(), self._job.geometry.redo_segment_bytes, Findings()))
        last = int(self._job.scan.markers["sequence"][self._job.settled - 1]) if self._job.settled else 0
        first = int(np.searchsorted(now.markers["sequence"], last, side="right"))
        entries = now.entries(first, len(now.starts))
        of_row = (entries["tag"] >> KIND_SHIFT) < RedoKind.QUARANTINE_OP
        return np.isin(numbers, (entries["tag"] & NUMBER_MASK)[of_row])
