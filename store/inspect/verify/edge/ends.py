"""Verify, ends: every mark of the ends table against a replay of the op log, and the rows' states against the same replay."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from store.arrays import Array, Ints
from store.inspect.verify.edge.halves import Halves
from store.inspect.verify.edge.log_queues import front_before_log
from store.inspect.verify.edge.suspects import SuspectOps
from store.inspect.verify.edge_files import EdgeFiles
from store.inspect.verify.files import Findings, SegmentFiles
from store.inspect.verify.job_files import JobFiles
from store.inspect.verify.log_walk import LogWalk
from store.records import ENTRY, STATE_MASK, OpKind, State
from store.tables import frames
from store.tables.frames import OP_HEAD, FrameKind

#: Ops that change a mark.
ENDING: Final = (OpKind.COMMIT, OpKind.ROLLBACK, OpKind.DISCARD_MAX, OpKind.DISCARD_EXPIRED, OpKind.RESUME)
#: Mark of a half after an op of each kind; RESUME opens it again.
_MARK_AFTER: Final = np.zeros(16, np.uint8)
_MARK_AFTER[1:5] = (State.COMMITTED, State.ROLLED_BACK, State.DISCARDED_MAX, State.DISCARDED_EXPIRED)


class EndsReplay:
    """The mark of each half as the ops leave it: after all of them, and after those that the job has settled."""

    def __init__(self, edge: EdgeFiles, job: JobFiles, walk: LogWalk, halves: Halves, suspects: SuspectOps) -> None:
        self._edge, self._job, self._walk, self._halves, self._suspects = edge, job, walk, halves, suspects
        self._mark, self._settled = np.zeros(len(halves), np.uint8), np.zeros(len(halves), np.uint8)
        self._ended = np.zeros(len(halves), bool)

    def apply(self, offsets: Ints, ops: Array) -> None:
        """Marks after these ops; and whether each op could follow the one before."""
        edge = self._edge
        chosen = np.flatnonzero(np.isin(ops["op_kind"], ENDING) | (ops["op_kind"] == OpKind.UNKNOWN))
        half = ops["half_offset"][chosen]
        inside = (half >= edge.half_begin) & (half < edge.half_end)
        chosen, at = chosen[inside], half[inside] - edge.half_begin
        order = np.argsort(at, kind="stable")
        chosen, at = chosen[order], at[order]
        kind = ops["op_kind"][chosen]
        changes = kind != OpKind.UNKNOWN
        firsts = np.concatenate([[True], np.diff(at) != 0]) if len(at) else np.empty(0, bool)
        # The mark before each op is the one that the op before it, about the same half, left. An UNKNOWN changes nothing; there
        # are few of them, so they are walked one by one.
        before = np.concatenate([[0], _MARK_AFTER[kind[:-1]]]) if len(at) else np.empty(0, np.uint8)
        before[firsts] = self._mark[at[firsts]]
        for index in np.flatnonzero(~changes[:-1] & ~firsts[1:]).tolist() if len(at) else []:
            before[index + 1] = before[index]
        resumes = kind == OpKind.RESUME
        wrong = np.where(resumes, (before == State.COMMITTED) | (before == State.ROLLED_BACK), before != 0)
        # If the half lies before the log's begin, its earlier ops are gone, too.
        wrong &= self._halves.seen(at) | ~firsts | self._ended[at]
        for index in np.flatnonzero(wrong).tolist():
            if int(at[index]) + edge.half_begin not in self._suspects.halves():
                edge.log.add(int(offsets[chosen[index]]) + 52, f"{OpKind(int(kind[index])).name} of a half that has ended before")
        _set_marks(self._mark, at[changes], kind[changes])
        self._ended[at[changes]] = True
        replay = self._job.replay
        settled = changes & (ops["queue_offset"][chosen] < (int(replay.marker["op_cursor"]) if replay else 0))
        _set_marks(self._settled, at[settled], kind[settled])

    def check(self, op_seen: Any) -> None:
        """The ends table against the replay of the op log, and the rows' states against it up to the op cursor."""
        edge = self._edge
        count = len(self._mark)
        if count and not edge.ends.starts:  # also where no half has ended
            edge.ends.add(edge.half_begin, "missing: there are halves, and no file of their ends")
        found = edge.ends.read(edge.half_begin, count).copy()
        seen = self._halves.seen() | self._ended
        rows = self._row_states()
        # Of a half that lies before the log's begin and of which no op is left, the row tells.
        wanted = np.where(seen, self._mark, np.where(((rows >= 2) & (rows <= 5)) | (rows == State.MEMBER), rows, 0))
        wanted[self._halves.head >= 0] = State.MEMBER
        judged = (seen | (rows > 0)) & (np.arange(count) + edge.half_begin >= edge.ends.begin)
        front = edge.half_queue.records(ENTRY, edge.half_begin, edge.half_begin + front_before_log(self._halves.seen(), self._walk))
        judged[: len(front)] &= (front["size_bytes"] > 0) | self._ended[: len(front)]
        wrong = np.flatnonzero((found != wanted) & judged)
        if len(wrong) and not edge.clean:
            later = self._behind_the_end()
            wrong = np.array([at for at in wrong.tolist() if int(found[at]) not in later.get(at + edge.half_begin, ())], np.int64)
        for at in wrong.tolist():
            half = at + edge.half_begin
            if half not in self._suspects.halves() or int(found[at]) not in self._possible_marks(half, op_seen):
                reason = f"half {half} is marked {int(found[at])}, the op log says {int(wanted[at])}"
                edge.findings.add(*edge.ends.place(half), reason)
        self._check_states(rows, seen)
        if edge.clean:
            edge.ends.check_zero_from(edge.half_end, "a mark behind the last half")

    def _possible_marks(self, half_offset: int, op_seen: Any) -> set[int]:
        """Marks that a half may have if one of its ops is or was corrupt: with that op, without it, or any if it is unreadable."""
        edge = self._edge
        entries = edge.op_queue.records(ENTRY, edge.op_begin, edge.op_end)
        numbers = np.flatnonzero(entries["tags_code"] == half_offset)
        marks = {"with": 0, "without": 0}
        quarantined = self._suspects.quarantined()
        for at in numbers.tolist():
            if not op_seen[at]:
                return {0, *_MARK_AFTER[1:5].tolist()}
            kind = int(edge.gather(entries["commit_log_offset"][at : at + 1], OP_HEAD)["op_kind"][0])
            if kind in ENDING:
                marks["with"] = int(_MARK_AFTER[kind])
                if at + edge.op_begin not in quarantined:
                    marks["without"] = int(_MARK_AFTER[kind])
        return set(marks.values())

    def _row_states(self) -> Any:
        """State of each half's row, 0 where it has none."""
        edge = self._edge
        states = np.zeros(len(self._mark), np.uint8)
        replay = self._job.replay
        if replay is not None and self._job.comparable:
            first, stop = max(replay.row_begin, edge.half_begin), min(replay.half_cursor, edge.half_end)
            if stop > first:
                words = replay.rows["word"][first - replay.row_begin : stop - replay.row_begin]
                states[first - edge.half_begin : stop - edge.half_begin] = words & STATE_MASK
        return states

    def _check_states(self, rows: Any, seen: Any) -> None:
        wanted = np.where(self._settled == 0, int(State.PREPARED), self._settled)
        wanted[self._halves.head >= 0] = State.MEMBER
        wrong = seen & self._halves.seen() & (rows != 0) & (rows != State.QUARANTINED) & (rows != wanted)
        for at in np.flatnonzero(wrong).tolist():
            half = at + self._edge.half_begin
            if half not in self._suspects.halves():
                reason = (
                    f"row {half} is {State(int(rows[at])).name}, the op log up to the cursor says {State(int(wanted[at])).name}"
                )
                self._job.table.add(half * 24 + 20, reason)

    def _behind_the_end(self) -> dict[int, set[int]]:
        """Bytes that ops behind the published end may have set already, by half."""
        edge = self._edge
        found: dict[int, set[int]] = {}
        files = SegmentFiles(edge.directory.commit_log, edge.log.segment_bytes, Findings())
        walk = LogWalk(files, False)
        for offsets in walk.blocks(edge.log_end, files.end):
            for offset in offsets.tolist():
                head = files.read(offset, OP_HEAD.itemsize)
                if len(head) == OP_HEAD.itemsize and head[frames.KIND_AT] == FrameKind.OP:
                    op = head.view(OP_HEAD)[0]
                    if op["op_kind"] in ENDING:
                        found.setdefault(int(op["half_offset"]), set()).add(int(_MARK_AFTER[op["op_kind"]]))
            if walk.damaged:
                break
        return found


def _set_marks(table: Any, at: Ints, kind: Any) -> None:
    # `at` is sorted and stable: the last of each run counts.
    last = np.flatnonzero(np.concatenate([np.diff(at) != 0, [True]])) if len(at) else np.empty(0, np.int64)
    table[at[last]] = _MARK_AFTER[kind[last]]
