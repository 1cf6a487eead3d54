"""Ending transactions: judge each end by the half's state, append its op, count it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import repeat
from typing import Final, NamedTuple

import numpy as np

from store.edge.append.log_writer import NO_HALF, LogWriter
from store.edge.append.recent import RecentHalves
from store.edge.append.unflushed import Unflushed
from store.edge.files import EdgeFiles, EdgeState
from store.edge.pending_counts import PendingByGroup
from store.errors import Corrupt
from store.messages import ALIKE_MIN
from store.records import NO_POSITION, QUEUE_ID_BITS, STATE_OF_OP, OpKind, State, Via
from store.tables import frames
from store.tables.ends import Answer, Verdict, byte_after, judge
from store.tables.frames import FrameKind, Op

#: What a producer says of nearly every half.
_PLAIN_ENDS: Final = frozenset({OpKind.COMMIT, OpKind.ROLLBACK})


class End(NamedTuple):
    """How a transaction is to end. `group` None: the caller (operator, checker) may end any group's."""

    half_offset: int
    kind: OpKind
    group: str | None = None
    via: Via = Via.PRODUCER
    actor: str = ""
    remark: str = ""


class _Judging:
    """What came of the ends of one batch so far."""

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.ops: list[Op] = []
        #: Ends of halves: before this batch, and as its ops leave them.
        self.before: dict[int, int] = {}
        self.marks: dict[int, int] = {}
        #: Places in topic queues that are given away.
        self.taken: dict[int, int] = {}


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
    ) -> None:
        self._files, self._state, self._writer = files, state, writer
        self._log, self._half_queue, self._dictionary = files.log, files.half_queue, files.dictionary
        self._unflushed, self._recent, self._pending = unflushed, recent, pending
        #: Ends that were taken back, and ends by kind, since the start.
        self.reopened = 0
        self.ended: Counter[OpKind] = Counter()

    def append(self, ends: Sequence[End], now_ms: int) -> list[Answer]:
        """Judge ends in order and append their ops."""
        if len(ends) >= ALIKE_MIN and (alike := self.append_alike(ends, now_ms)) is not None:
            return alike
        judging = _Judging(max(self._half_queue.begin, self._state.half_begin))
        recent = self._recent.tuples([end.half_offset for end in ends])
        answers = [self._judge(end, noted, judging) for end, noted in zip(ends, recent, strict=True)]
        if judging.ops:
            self._writer.ops(judging.ops, now_ms, judging.taken)
            self.ended.update([op.kind for op in judging.ops])
            groups = {op.half_offset: op.group_no for op in judging.ops}
            for half_offset, mark in judging.marks.items():
                before = judging.before[half_offset]
                if bool(before) != bool(mark):
                    self._pending.change(half_offset, groups[half_offset], 1 if before else -1)
            self._unflushed.add(self._log.end, judging.marks, {})
        return answers

    def append_alike(self, ends: Sequence[End], now_ms: int) -> list[Answer] | None:
        """`append` in columns, where one group ends recent, open halves, each once, without a remark: nearly all
        ends that come many at a time. Otherwise None, and nothing is done."""
        half_offsets, kinds, groups, vias, actors, remarks = zip(*ends, strict=True)
        group = groups[0]
        if group is None or groups.count(group) < len(ends) or not _PLAIN_ENDS.issuperset(kinds):
            return None
        if any(actors) or any(remarks):
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

    def _judge(self, end: End, recent: tuple[int, ...], judging: _Judging) -> Answer:
        half_offset, marks = end.half_offset, judging.marks
        if not 0 <= half_offset < self._state.half_end:
            return Answer(Verdict.REFUSED, "unknown id", State.NONE)
        if half_offset < judging.begin:
            return Answer(Verdict.REFUSED, "gone", State.NONE)
        try:
            group_no, topic_no, queue_id = self._queue_of(half_offset, recent)
        except IndexError:
            return Answer(Verdict.REFUSED, "gone", State.NONE)
        except Corrupt:
            # It went bad after it was settled. Only the checker may still end it: otherwise it would stay
            # pending and pin its files.
            if end.kind not in (OpKind.DISCARD_MAX, OpKind.DISCARD_EXPIRED):
                return Answer(Verdict.REFUSED, "quarantined", State.QUARANTINED)
            group_no = topic_no = queue_id = -1
        if end.group is not None and self._dictionary.group_no(end.group) != group_no:
            return Answer(Verdict.REFUSED, "wrong group", State.NONE)
        before = marks[half_offset] if half_offset in marks else self._unflushed.end_of(half_offset)
        answer = judge(end.kind, before)
        silent = end.kind == OpKind.UNKNOWN and end.via == Via.PRODUCER and not end.remark
        if answer.verdict is not Verdict.ACCEPTED or silent:
            return answer
        if end.kind == OpKind.COMMIT and topic_no in self._dictionary.removed:
            # The half had ended, and its op was damaged after its topic was removed: it has no readers.
            return Answer(Verdict.REFUSED, "topic removed", State.PREPARED)
        if half_offset not in marks:
            judging.before[half_offset] = before
        marks[half_offset] = byte_after(end.kind, before)
        position = NO_POSITION
        if end.kind == OpKind.COMMIT:
            position = self._writer.take_position(topic_no << QUEUE_ID_BITS | queue_id, judging.taken)
            answer = Answer(answer.verdict, "", answer.state, position)
        detail = frames.encode_detail(end.actor, end.remark)
        judging.ops.append(Op(end.kind, half_offset, group_no, end.via, position, detail))
        return answer

    def _queue_of(self, half_offset: int, recent: tuple[int, ...]) -> tuple[int, int, int]:
        """(group_no, topic_no, queue_id) of a half, after checking its whole frame: a half that cannot be read
        must not end."""
        known, offset, size, group_no, topic_no, queue_id = recent
        if known == half_offset and frames.is_whole(self._log.frame_bytes(offset, size), offset):
            return group_no, topic_no, queue_id
        offset, size, _ = self._half_queue.entry(half_offset)
        content = self._log.frame_bytes(offset, size)
        frames.check_frame(content, offset, str(self._log.file.directory))
        kind, number = content[frames.KIND_AT], frames.read_head(content)[7]
        if kind != FrameKind.HALF or number != half_offset:
            raise self._files.not_this_half(half_offset, offset)
        found: tuple[int, int, int] = frames.HALF_STRUCT.unpack_from(content)[11:14]
        return found

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
        half_offset = op_queue.entry(op_offset)[2]
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
        return half_offset
