"""Verify, suspect ops: ops that are corrupt or were quarantined. What other ops say of the same halves may not fit."""

from __future__ import annotations

import numpy as np

from store.inspect.verify.edge_files import EdgeFiles
from store.inspect.verify.job_files import JobFiles
from store.inspect.verify.log_walk import LogWalk
from store.records import ENTRY


class SuspectOps:
    """Grows with the damage that the walk finds."""

    def __init__(self, edge: EdgeFiles, job: JobFiles, walk: LogWalk) -> None:
        self._edge, self._job, self._walk = edge, job, walk
        self._halves: set[int] = set()
        self._damage_known = -1

    def halves(self) -> set[int]:
        """Halves about which an op is corrupt or was quarantined."""
        edge = self._edge
        if self._damage_known == len(self._walk.damaged):
            return self._halves
        self._damage_known = len(self._walk.damaged)
        corrupt = self.quarantined()
        if self._walk.damaged:
            entries = edge.op_queue.records(ENTRY, edge.op_begin, edge.op_end)
            for start, stop in self._walk.damaged:
                inside = (entries["commit_log_offset"] >= start) & (entries["commit_log_offset"] < stop)
                corrupt |= set((np.flatnonzero(inside) + edge.op_begin).tolist())
        tags = (
            int(edge.op_queue.records(ENTRY, op, op + 1)["tags_code"][0]) for op in corrupt if edge.op_begin <= op < edge.op_end
        )
        self._halves = {tag for tag in tags if tag >= 0}
        return self._halves

    def quarantined(self) -> set[int]:
        """Ops that the job quarantined."""
        if self._job.replay is None:
            return set()
        quarantined = self._job.replay.places["quarantine"]
        return set(quarantined.numbers[quarantined.of_op].tolist())
