"""Verify, halves: their frames against the half queue and against the rows that the redo log gives."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from store.arrays import Array, Ints
from store.inspect.verify.edge.log_order import NumberOrder
from store.inspect.verify.edge.log_queues import check_entries_left, compare_queue
from store.inspect.verify.edge.messages import MessageFrames
from store.inspect.verify.edge_files import EdgeFiles
from store.inspect.verify.job_files import JobFiles
from store.inspect.verify.log_walk import LogWalk
from store.records import IMMUNITY_MAX_S, NO_POSITION, STATE_MASK, State, immunity_of, queue_key
from store.tables import frames

_UNSEEN: Final = -2


class Halves:
    """One item for each half that the half queue still has."""

    def __init__(self, edge: EdgeFiles, job: JobFiles, walk: LogWalk, numbers: NumberOrder) -> None:
        self._edge, self._job, self._walk, self.numbers = edge, job, walk, numbers
        self._messages = MessageFrames(edge)
        count = max(0, edge.half_end - edge.half_begin)
        #: Queue key and group of each half, once the walk has seen its frame.
        self.key = np.full(count, _UNSEEN, np.int32)
        self.group = np.full(count, -1, np.int32)

    def __len__(self) -> int:
        return len(self.key)

    def seen(self, at: Any = slice(None)) -> Any:
        """Whether the walk has seen the frame, for all halves or those at `at`."""
        return self.key[at] != _UNSEEN

    def check(self, offsets: Ints, heads: Array) -> None:
        edge = self._edge
        numbers = heads["queue_offset"]
        self.numbers.check(offsets, numbers)
        self._messages.check(offsets, heads)
        edge.log.add_where(offsets, heads["position"] != NO_POSITION, 112, "a half with a topic position")
        edge.log.add_where(offsets, heads["sys_flag"] != frames.SYS_FLAG_PREPARED, 58, "a half without the PREPARED flag")
        inside = (numbers >= edge.half_begin) & (numbers < edge.half_end)
        at = numbers[inside] - edge.half_begin
        self.key[at] = queue_key(heads["topic_no"][inside], heads["queue_id"][inside])
        self.group[at] = heads["group_no"][inside]
        compare_queue(edge.half_queue, "half", offsets[inside], heads[inside], heads["tags_code"][inside])
        self._compare_rows(offsets, heads)

    def _compare_rows(self, offsets: Ints, heads: Array) -> None:
        """Rows as the redo log gives them against the frames of their halves."""
        replay = self._job.replay
        if replay is None or not self._job.comparable:
            return
        numbers = heads["queue_offset"]
        settled = (numbers >= replay.row_begin) & (numbers < replay.half_cursor)
        numbers, offsets, heads = numbers[settled], offsets[settled], heads[settled]
        rows, resumed = replay.rows[numbers - replay.row_begin], replay.resumed[numbers - replay.row_begin]
        known = replay.imaged[numbers - replay.row_begin]
        readable = (rows["word"] & STATE_MASK) != State.QUARANTINED
        immunity = np.minimum(heads["immunity_s"], IMMUNITY_MAX_S)
        wrong = {
            "commit_log_offset": (0, rows["commit_log_offset"] != offsets),
            "size_bytes": (8, rows["size_bytes"] != heads["size_bytes"].astype(np.int64)),
            "stored_at_s": (12, readable & ~resumed & (rows["stored_at_s"] != heads["stored_at_ms"] // 1000)),
            "group_no": (16, readable & (rows["group_no"] != heads["group_no"])),
            "immunity_s": (20, readable & (immunity_of(rows["word"]) != immunity)),
        }
        for name, (at, mask) in wrong.items():
            for number in numbers[mask & known].tolist():
                self._job.table.add(number * 24 + at, f"row {number}: {name} in the redo log is not what the half's frame says")

    def check_entries_left(self) -> None:
        edge = self._edge
        check_entries_left(edge.half_queue, "half", edge.half_begin, self.seen(), self._walk)
