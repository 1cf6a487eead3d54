"""Verify, halves: their frames against the half queue and against the rows that the redo log gives."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from store.arrays import Array, Ints
from store.directory import TRANSACTIONS
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
        #: The head of each member; -1 of the others.
        self.head = np.full(count, -1, np.int64)

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
        is_member = heads["sys_flag"] & frames.SYS_FLAG_MEMBER != 0
        edge.log.add_where(offsets, ~is_member & (heads["position"] != NO_POSITION), 112, "a half with a topic position")
        rest = heads["sys_flag"] & ~np.uint16(frames.SYS_FLAG_MEMBER | frames.SYS_FLAG_NAMED)
        edge.log.add_where(offsets, rest != frames.SYS_FLAG_PREPARED, 58, "a half with flags that no writer sets")
        inside = (numbers >= edge.half_begin) & (numbers < edge.half_end)
        at = numbers[inside] - edge.half_begin
        self.key[at] = queue_key(heads["topic_no"][inside], heads["queue_id"][inside])
        self.group[at] = heads["group_no"][inside]
        if (heads["sys_flag"] != frames.SYS_FLAG_PREPARED).any():
            self._check_flagged(offsets, heads, is_member)
        compare_queue(edge.half_queue, "half", offsets[inside], heads[inside], heads["tags_code"][inside])
        self._compare_rows(offsets, heads)

    def _check_flagged(self, offsets: Ints, heads: Array, is_member: Any) -> None:
        """Members and named halves: of a store that says so; a member behind a head that is none, of the same group."""
        edge, numbers = self._edge, heads["queue_offset"]
        flagged = heads["sys_flag"] != frames.SYS_FLAG_PREPARED
        if TRANSACTIONS not in edge.directory.needs:
            edge.log.add_where(offsets, flagged, 58, f"flags of {TRANSACTIONS}, which format.json does not have")
        both = is_member & (heads["sys_flag"] & frames.SYS_FLAG_NAMED != 0)
        edge.log.add_where(offsets, both, 58, "a member with a name of its own")
        edge.log.add_where(offsets, is_member & (heads["immunity_s"] < 1), 60, "a member without an ordinal")
        far = is_member & ((heads["position"] < 0) | (heads["position"] >= numbers))
        edge.log.add_where(offsets, far, 112, "a member whose head does not lie before it")
        for at in np.flatnonzero(is_member & ~far).tolist():
            number, head = int(numbers[at]), int(heads["position"][at])
            its_group = int(heads["group_no"][at])
            if not self._walk.damaged and not self._may_lead(head, its_group):
                edge.log.add(int(offsets[at]) + 112, "a member whose head is of another group, or a member itself")
            if edge.half_begin <= number < edge.half_end:
                self.head[number - edge.half_begin] = head

    def _may_lead(self, head: int, group_no: int) -> bool:
        """Whether a half may have members of this group, as far as is known of it."""
        at = head - self._edge.half_begin
        return not 0 <= at < len(self) or not self.seen(at) or (self.head[at] < 0 and self.group[at] == group_no)

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
        states = rows["word"] & STATE_MASK
        readable = (states != State.QUARANTINED) | (rows["group_no"] >= 0)  # set aside, and never unreadable
        is_member = heads["sys_flag"] & frames.SYS_FLAG_MEMBER != 0
        immunity = np.minimum(heads["immunity_s"], IMMUNITY_MAX_S)
        follows = rows["word"] >> 3 == numbers - heads["position"]
        wrong = {
            "commit_log_offset": (0, rows["commit_log_offset"] != offsets),
            "size_bytes": (8, rows["size_bytes"] != heads["size_bytes"].astype(np.int64)),
            "stored_at_s": (12, readable & ~resumed & (rows["stored_at_s"] != heads["stored_at_ms"] // 1000)),
            "group_no": (16, readable & (rows["group_no"] != heads["group_no"])),
            "immunity_s": (20, readable & ~is_member & (immunity_of(rows["word"]) != immunity)),
            "MEMBER": (20, readable & (is_member != ((states == State.MEMBER) & follows))),
        }
        for name, (at, mask) in wrong.items():
            for number in numbers[mask & known].tolist():
                self._job.table.add(number * 24 + at, f"row {number}: {name} in the redo log is not what the half's frame says")

    def check_entries_left(self) -> None:
        edge = self._edge
        check_entries_left(edge.half_queue, "half", edge.half_begin, self.seen(), self._walk)
