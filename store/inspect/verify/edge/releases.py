"""Verify, releases: every settled commit and message against the redo log, and every release against the op that asks for it."""

from __future__ import annotations

from typing import Any

import numpy as np

from store.arrays import Ints
from store.inspect.verify.edge.suspects import SuspectOps
from store.inspect.verify.edge_files import EdgeFiles
from store.inspect.verify.job_files import JobFiles
from store.inspect.verify.log_walk import LogWalk
from store.io.pages import JobSlot
from store.tables.redo_log import RedoKind


class Releases:
    """Remembers which releases of the redo log an op asks for."""

    def __init__(self, edge: EdgeFiles, job: JobFiles, walk: LogWalk, suspects: SuspectOps) -> None:
        self._edge, self._job, self._walk, self._suspects = edge, job, walk, suspects
        self._seen = np.zeros(len(job.replay.position) if job.replay else 0, bool)

    def match(self, offsets: Ints, numbers: Ints, positions: Ints, about: Ints, of_message: Any) -> None:
        """Commits and messages before the op cursor against the redo log's releases."""
        edge = self._edge
        replay = self._job.replay
        if replay is None or not self._job.comparable or not len(positions):
            return
        settled = numbers < int(replay.marker["op_cursor"])
        quarantined = replay.places["quarantine"]
        settled &= ~np.isin(numbers, quarantined.numbers[quarantined.of_op])
        at = np.searchsorted(replay.position, positions)
        at = np.minimum(at, max(len(replay.position) - 1, 0))
        there = replay.position[at] == positions if len(replay.position) else np.zeros(len(positions), bool)
        wanted = np.where(of_message, numbers, about)
        if len(replay.position):
            there &= (replay.number[at] == wanted) & ((replay.kind[at] == RedoKind.MESSAGE) == of_message)
            self._seen[at[there]] = True
        # A redo file that retention took had told of rows that are all gone.
        gone = (self._job.scan.begin > 0) & (of_message | (about < max(replay.row_begin, edge.half_floor)))
        for index in np.flatnonzero(settled & ~there & ~gone).tolist():
            if int(about[index]) not in self._suspects.halves():
                edge.log.add(
                    int(offsets[index]) + 40, f"op {int(numbers[index])} is settled, but the redo log does not release it there"
                )

    def check_left(self) -> None:
        """After the walk: cursors within the log, and no release that no op asked for."""
        edge = self._edge
        replay = self._job.replay
        if replay is None or not self._job.comparable:
            return
        half_cursor, op_cursor = int(replay.marker["half_cursor"]), int(replay.marker["op_cursor"])
        if half_cursor > edge.half_end or op_cursor > edge.op_end:
            reason = f"settled up to half {half_cursor} and op {op_cursor}, but the log ends at {edge.half_end} and {edge.op_end}"
            edge.findings.add(self._job.page_path, JobSlot.HALF_CURSOR * 8, reason)
            return
        if edge.log.begin or self._walk.damaged:
            return
        for at in np.flatnonzero(~self._seen).tolist():
            self._job.redo_files.add(int(replay.slot[at]) * 20, "a release that no op in the log asks for")
