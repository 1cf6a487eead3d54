"""Ending transactions: judge each end by the half's state, append its op, count it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import repeat
from typing import Final

import numpy as np

from store.edge.append.judging import End, Judging
from store.edge.append.log_writer import NO_HALF, LogWriter
from store.edge.append.members import Members
from store.edge.append.recent import RecentHalves
from store.edge.append.unflushed import Unflushed
from store.edge.files import EdgeFiles, EdgeState
from store.edge.pending_counts import PendingByGroup
from store.errors import Corrupt
from store.messages import ALIKE_MIN
from store.records import NO_POSITION, QUEUE_ID_BITS, STATE_OF_OP, OpKind, State, Via
from store.tables import frames
from store.tables.ends import Answer, Verdict, byte_after
from store.tables.frames import Op

_FOR_GOOD: Final = (int(State.COMMITTED), int(State.ROLLED_BACK))
__all__ = ["End", "Ending"]

#: What a producer says of nearly every half.
_PLAIN_ENDS: Final = frozenset({OpKind.COMMIT, OpKind.ROLLBACK})


class Ending:
    """Call its methods under the append lock, after `GroupCommit.check`."""

    def __init__(
        self,
        files: EdgeFiles,
        state: EdgeState,
        writer: LogWriter,
        *,
        unflushed: Unflushed,
        recent: RecentHalves,
        pending: PendingByGroup,
        members: Members,
    ) -> None:
        self._files, self._state, self._writer = files, state, writer
        self._log, self._half_queue, self._dictionary = files.log, files.half_queue, files.dictionary
        self._unflushed, self._recent, self._pending, self._members = unflushed, recent, pending, members
        #: Ends that were taken back, and ends by kind, since the start.
        self.reopened = 0
        self.ended: Counter[OpKind] = Counter()

    def append(self, ends: Sequence[End], now_ms: int) -> list[Answer]:
        """Judge ends in order and append their ops."""
        if len(ends) >= ALIKE_MIN and (alike := self.append_alike(ends, now_ms)) is not None:
            return alike
        judging = Judging(
            self._files, self._state, self._writer, unflushed=self._unflushed, recent=self._recent, members=self._members,
            now_ms=now_ms,
        )  # fmt: skip
        recent = self._recent.tuples([end.half_offset for end in ends])
        answers = [judging.judge(end, noted) for end, noted in zip(ends, recent, strict=True)]
        if judging.ops:
            self._write(judging, now_ms)
        return answers

    def _write(self, judging: Judging, now_ms: int) -> None:
        if judging.names:  # room also for those that wait for their flush
            self._files.names.ensure(len(self._unflushed.names) + len(judging.names), now_ms // 1000)
        self._writer.ops(judging.ops, now_ms, judging.taken)
        for op in judging.ops:
            self.ended[op.kind] += sum(not item.member for item in op.items) or 1
        for half_offset, mark in judging.marks.items():
            before = judging.before[half_offset]
            if bool(before) != bool(mark):
                self._pending.change(half_offset, judging.groups[half_offset], 1 if before else -1)
        self._members.forget(half_offset for half_offset, mark in judging.marks.items() if mark in _FOR_GOOD)
        self._unflushed.add(self._log.end, judging.marks, {}, judging.names)

    def append_alike(self, ends: Sequence[End], now_ms: int) -> list[Answer] | None:
        """`append` in columns, where one group ends recent, open halves, each once, without a remark: nearly all
        ends that come many at a time. Otherwise None, and nothing is done."""
        half_offsets, kinds, groups, vias, actors, remarks, members, joint = zip(*ends, strict=True)
        group = groups[0]
        if group is None or groups.count(group) < len(ends) or not _PLAIN_ENDS.issuperset(kinds):
            return None
        if any(actors) or any(remarks) or any(members) or any(joint):
            return None
        if not self._members.by_head.keys().isdisjoint(half_offsets):
            return None
        begin = max(self._half_queue.begin, self._state.half_begin)
        if min(half_offsets) < begin or max(half_offsets) >= self._state.half_end:
            return None
        if len(set(half_offsets)) < len(ends):
            return None
        wanted = np.array(half_offsets)
        recent = self._recent.rows(wanted)
        group_nos, topic_nos = recent["group_no"], recent["topic_no"]
        if (recent["half_offset"] != wanted).any() or (group_nos != self._dictionary.group_no(group)).any():
            return None
        if (recent["sys_flag"] != frames.SYS_FLAG_PREPARED).any():
            return None
        if not self._unflushed.marks.keys().isdisjoint(half_offsets) or self._files.ends_table.any(wanted):
            return None
        if (removed := self._dictionary.removed) and not removed.keys().isdisjoint(topic_nos.tolist()):
            return None
        if not self._log.are_whole(recent["offset"].tolist(), recent["size"].tolist()):
            return None
        taken: dict[int, int] = {}
        keys, take = (topic_nos << QUEUE_ID_BITS | recent["queue_id"]).tolist(), self._writer.take_position
        positions = [take(key, taken) if kind == OpKind.COMMIT else NO_POSITION for key, kind in zip(keys, kinds, strict=True)]
        group_no, first = int(group_nos[0]), self._state.op_end
        heads = frames.op_heads_of(half_offsets, kinds, vias, positions, first_op_offset=first, now_ms=now_ms)
        heads["group_no"] = group_no
        self._writer.op_frames(heads, (), half_offsets, taken)
        self.ended.update(kinds)
        self._pending.end_all(half_offsets, group_no)
        states = [STATE_OF_OP[kind] for kind in kinds]
        self._unflushed.add(self._log.end, dict(zip(half_offsets, map(int, states), strict=True)), {})
        return list(map(Answer, repeat(Verdict.ACCEPTED), repeat(""), states, positions))

    def append_asked(self, half_offsets: Sequence[int], member: str, now_ms: int) -> None:
        """Record that check requests were handed to a member, but for halves that have ended meanwhile."""
        half_end, end_of = self._state.half_end, self._unflushed.end_of
        still = [h for h in half_offsets if 0 <= h < half_end and end_of(h) == 0]
        detail = frames.encode_detail(member)
        chunks = [still[at : at + frames.ASKED_MAX] for at in range(0, len(still), frames.ASKED_MAX)]
        ops = [Op(OpKind.ASKED, NO_HALF, via=Via.CHECK, detail=detail, asked=chunk) for chunk in chunks]
        if ops:
            self._writer.ops(ops, now_ms, {})

    def reopen(self, op_offset: int) -> int:
        """The op was found corrupt: determine its half's end again from the ops that can be read, so that
        check-back settles a half whose only end was lost. Returns the half_offset, -1 if the op was about none.
        A second call changes nothing."""
        op_queue, table = self._files.op_queue, self._files.ends_table
        half_offset = self._lone_half_of(op_offset)
        if not 0 <= half_offset < self._state.half_end:
            return -1
        mark = 0
        entries = op_queue.read(op_queue.begin, self._state.op_end)
        for entry in entries[entries["tags_code"] == half_offset]:
            try:
                op = self._log.read(int(entry["commit_log_offset"]), int(entry["size_bytes"]))
            except Corrupt:
                continue
            mark = byte_after(OpKind(op.fields["op_kind"]), mark)
        if bool(mark) != bool(self._unflushed.end_of(half_offset)):
            self._pending.stale = True  # rare: all are counted again
            self.reopened += 1
        table[half_offset] = mark
        self._members.learn_again(half_offset)
        return half_offset

    def _lone_half_of(self, op_offset: int) -> int:
        """The half that the op was about; -1 if it was about several that are not each other's members. Those are
        quarantined: to open them again could end one differently from another."""
        op_queue, size = self._files.op_queue, frames.ITEM.itemsize
        place, frame_bytes, half_offset = op_queue.entry(op_offset)
        if frame_bytes < frames.OP_HEAD.itemsize + size:
            return half_offset
        most = frame_bytes // size
        first, stop = max(op_offset - most, op_queue.begin), min(op_offset + most, self._state.op_end)
        entries = op_queue.read(first, stop)
        tags = entries["tags_code"][(entries["commit_log_offset"] == place) & (entries["size_bytes"] > 0)].tolist()
        heads = [tag for tag in tags if not (0 <= tag < self._state.half_end and self._unflushed.end_of(tag) == State.MEMBER)]
        return int(heads[0]) if len(heads) == 1 else -1
