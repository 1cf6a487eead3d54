"""Judging the ends of one batch: what each is answered, and the ops that come of those that are accepted.

An end is about one half, or jointly about several. A half may have members, which a COMMIT lists by their number, and a name,
under which at most one is committed. All of it is judged before anything is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

from store.edge.append.log_writer import LogWriter
from store.edge.append.members import Members
from store.edge.append.recent import RecentHalves
from store.edge.append.unflushed import Unflushed
from store.edge.files import EdgeFiles, EdgeState
from store.errors import Corrupt, JobTooOld
from store.properties import TX_NAME
from store.records import NO_POSITION, QUEUE_ID_BITS, OpKind, State, Via
from store.tables import frames
from store.tables.dedup import Known, digest_of
from store.tables.ends import Answer, Verdict, byte_after, judge
from store.tables.frames import FrameKind, Item, Op

_DISCARDS = (OpKind.DISCARD_MAX, OpKind.DISCARD_EXPIRED)


class Head(NamedTuple):
    """A half that ends together with others, and how many members its COMMIT lists."""

    half_offset: int
    members: int | None = None


class End(NamedTuple):
    """How a transaction is to end. `group` None: the caller (operator, checker) may end any group's. `members`: how many
    members a COMMIT lists, the ordinals 1 … members; None where the caller knows of none (an operator's lists all there are).
    `joint`: the others that end with it, all or none; only for COMMIT and ROLLBACK."""

    half_offset: int
    kind: OpKind
    group: str | None = None
    via: Via = Via.PRODUCER
    actor: str = ""
    remark: str = ""
    members: int | None = None
    joint: tuple[Head, ...] = ()


class _Place(NamedTuple):
    """What a half's frame says."""

    group_no: int
    topic_no: int
    queue_id: int
    sys_flag: int


class _Found(NamedTuple):
    """One head of an end: its frame, its mark, and what the end is answered as far as the mark goes."""

    half_offset: int
    place: _Place
    before: int
    answer: Answer
    members: int | None


class Refused(Exception):
    """An end that comes to nothing, and what is answered."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.reason)
        self.answer = answer


class Judging:
    """The ends of one batch, one after another. Under the append lock."""

    def __init__(
        self,
        files: EdgeFiles,
        state: EdgeState,
        writer: LogWriter,
        *,
        unflushed: Unflushed,
        recent: RecentHalves,
        members: Members,
        now_ms: int,
    ) -> None:
        self._files, self._state, self._writer, self._unflushed = files, state, writer, unflushed
        self._recent, self._members, self._now_s = recent, members, now_ms // 1000
        self._begin = max(files.half_queue.begin, state.half_begin)
        self.ops: list[Op] = []
        #: Ends of halves: before this batch, and as its ops leave them. Their groups.
        self.before: dict[int, int] = {}
        self.marks: dict[int, int] = {}
        self.groups: dict[int, int] = {}
        #: Places in topic queues that are given away, and names under which halves are committed.
        self.taken: dict[int, int] = {}
        self.names: dict[bytes, Known] = {}

    def judge(self, end: End, recent: tuple[int, ...]) -> Answer:
        """`recent` is the slot of its half in the cache."""
        try:
            return self._judge_joint(end) if end.joint else self._judge_one(end, recent)
        except Refused as refused:
            return refused.answer

    def _judge_one(self, end: End, recent: tuple[int, ...]) -> Answer:
        found = self._look(end, Head(end.half_offset, end.members), recent)
        if end.kind == OpKind.COMMIT and (winner := self._winner(found)) is not None:
            return self._name_taken(end, [found], winner)
        silent = end.kind == OpKind.UNKNOWN and end.via == Via.PRODUCER and not end.remark
        if found.answer.verdict is not Verdict.ACCEPTED or silent:
            return found.answer
        items = self._items(end, found)
        self._mark(found, end.kind)
        position = items[0].position
        detail = frames.encode_detail(end.actor, end.remark)
        listed = items if len(items) > 1 else ()
        self.ops.append(Op(end.kind, end.half_offset, found.place.group_no, end.via, position, detail, items=listed))
        return found.answer if end.kind != OpKind.COMMIT else found.answer._replace(position=position)

    def _judge_joint(self, end: End) -> Answer:
        heads = [Head(end.half_offset, end.members), *end.joint]
        slots = self._recent.tuples([head.half_offset for head in heads])
        found = [self._look(end, head, slot) for head, slot in zip(heads, slots, strict=True)]
        if end.kind == OpKind.COMMIT:
            for one in found:
                if (winner := self._winner(one)) is not None:
                    return self._name_taken(end, found, winner)
        if len({one.half_offset for one in found}) < len(found):
            raise Refused(Answer(Verdict.REFUSED, "one of them is named twice", State.NONE))
        verdicts = {one.answer.verdict for one in found}
        if verdicts == {Verdict.ALREADY}:
            return found[0].answer
        for one in found:
            if one.answer.verdict is not Verdict.ACCEPTED:
                verdict = Verdict.REFUSED if one.answer.verdict is Verdict.REFUSED else Verdict.CONFLICT
                reason = one.answer.reason or f"already {one.answer.state.name.lower()}"
                raise Refused(Answer(verdict, reason, one.answer.state, other=one.half_offset))
        return self._end_jointly(end, found)

    def _end_jointly(self, end: End, found: Sequence[_Found], reason: str = "", **more: int) -> Answer:
        """All of them are open, and have different names."""
        taken, names = dict(self.taken), dict(self.names)
        try:
            self._files.require_transactions()
            if end.kind == OpKind.COMMIT:
                self._hold_names_apart(found)
            items = [item for one in found for item in self._items(end, one)]
        except JobTooOld as error:
            raise Refused(Answer(Verdict.REFUSED, str(error), State.PREPARED)) from error
        except Refused:
            self.taken, self.names = taken, names
            raise
        for one in found:
            self._mark(one, end.kind)
        detail = frames.encode_detail(end.actor, reason or end.remark, **more)
        first = items[0]
        group_no = found[0].place.group_no
        self.ops.append(Op(end.kind, first.half_offset, group_no, end.via, first.position, detail, items=items, joint=True))
        return found[0].answer._replace(position=first.position)

    def _hold_names_apart(self, found: Sequence[_Found]) -> None:
        digests = [self._digest(one)[0] for one in found if one.place.sys_flag & frames.SYS_FLAG_NAMED]
        if len(set(digests)) < len(digests):
            raise Refused(Answer(Verdict.REFUSED, "two of them have one name", State.PREPARED))

    # --- one half --------------------------------------------------------------------------------------------
    def _look(self, end: End, head: Head, recent: tuple[int, ...]) -> _Found:
        """The half as it is now. Refused if it is not there, cannot be read, is a member, or is of another group."""
        half_offset = head.half_offset
        several = half_offset if end.joint else -1
        if not 0 <= half_offset < self._state.half_end:
            raise Refused(Answer(Verdict.REFUSED, "unknown id", State.NONE, other=several))
        try:
            if half_offset < self._begin:
                raise IndexError
            place = self._place_of(half_offset, recent)
        except IndexError:
            raise Refused(Answer(Verdict.REFUSED, "gone", State.NONE, other=several)) from None
        except Corrupt:
            # It went bad after it was settled. Only the checker may still end it: otherwise it would stay
            # pending and pin its files.
            if end.kind not in _DISCARDS:
                raise Refused(Answer(Verdict.REFUSED, "quarantined", State.QUARANTINED, other=several)) from None
            place = _Place(-1, -1, -1, 0)
        if end.group is not None and self._files.dictionary.group_no(end.group) != place.group_no:
            raise Refused(Answer(Verdict.REFUSED, "wrong group", State.NONE, other=several))
        if place.sys_flag & frames.SYS_FLAG_MEMBER:
            head_offset = self._files.read_half(half_offset).fields["position"]
            raise Refused(Answer(Verdict.REFUSED, "member", State.MEMBER, other=head_offset))
        before = self.marks[half_offset] if half_offset in self.marks else self._unflushed.end_of(half_offset)
        return _Found(half_offset, place, before, judge(end.kind, before), head.members)

    def _place_of(self, half_offset: int, recent: tuple[int, ...]) -> _Place:
        """What a half's frame says, after checking it whole: a half that cannot be read must not end."""
        log, (known, offset, size, *place) = self._files.log, recent
        if known == half_offset and frames.is_whole(log.frame_bytes(offset, size), offset):
            return _Place(*place)
        offset, size, _ = self._files.half_queue.entry(half_offset)
        content = log.frame_bytes(offset, size)
        frames.check_frame(content, offset, str(log.file.directory))
        kind, number = content[frames.KIND_AT], frames.read_head(content)[7]
        if kind != FrameKind.HALF or number != half_offset:
            raise self._files.not_this_half(half_offset, offset)
        return _Place(*frames.HALF_STRUCT.unpack_from(content)[11:15])

    def _mark(self, found: _Found, kind: OpKind) -> None:
        half_offset = found.half_offset
        if half_offset not in self.marks:
            self.before[half_offset] = found.before
        self.marks[half_offset] = byte_after(kind, found.before)
        self.groups[half_offset] = found.place.group_no
        if kind == OpKind.COMMIT and found.place.sys_flag & frames.SYS_FLAG_NAMED:
            digest, body_crc = self._digest(found)
            self.names[digest] = Known(half_offset, self._now_s, body_crc)

    # --- members ---------------------------------------------------------------------------------------------
    def _items(self, end: End, found: _Found) -> list[Item]:
        """The half, and of a COMMIT the members that it lists, each with its place."""
        if end.kind != OpKind.COMMIT:
            return [Item(found.half_offset)]
        place, removed = found.place, self._files.dictionary.removed
        if not found.members and found.half_offset not in self._members.by_head and place.topic_no not in removed:  # mostly
            position = self._writer.take_position(place.topic_no << QUEUE_ID_BITS | place.queue_id, self.taken)
            return [Item(found.half_offset, position)]
        places = [(found.half_offset, found.place), *self._listed(end, found)]
        if any(place.topic_no in removed for _, place in places):
            # The half had ended, and its op was damaged after its topic was removed: it has no readers.
            other = found.half_offset if end.joint else -1
            raise Refused(Answer(Verdict.REFUSED, "topic removed", State.PREPARED, other=other))
        take = self._writer.take_position
        positions = [take(place.topic_no << QUEUE_ID_BITS | place.queue_id, self.taken) for _, place in places]
        offsets = [half_offset for half_offset, _ in places]
        return [Item(*item, member=number > 0) for number, item in enumerate(zip(offsets, positions, strict=True))]

    def _listed(self, end: End, found: _Found) -> list[tuple[int, _Place]]:
        known, count = self._members.of(found.half_offset), found.members
        if not known and not count:
            return []
        there = f"{len(known)} member{'s' * (len(known) != 1)}"
        other = found.half_offset if end.joint else -1
        if count is None and end.via != Via.OPERATOR:
            reason = f"members: it has {there}; say how many there are to be"
            raise Refused(Answer(Verdict.REFUSED, reason, State.PREPARED, other=other))
        ordinals = sorted(known) if count is None else range(1, count + 1)
        missing = [ordinal for ordinal in ordinals if ordinal not in known]
        if missing:
            reason = f"members: {count} are to be there, it has {there} and none with ordinal {missing[0]}"
            raise Refused(Answer(Verdict.REFUSED, reason, State.PREPARED, other=other))
        offsets = [known[ordinal].half_offset for ordinal in ordinals]
        try:
            slots = self._recent.tuples(offsets)
            return [(offset, self._place_of(offset, slot)) for offset, slot in zip(offsets, slots, strict=True)]
        except (Corrupt, IndexError):
            raise Refused(Answer(Verdict.REFUSED, "quarantined", State.QUARANTINED, other=other)) from None

    # --- names -----------------------------------------------------------------------------------------------
    def _digest(self, found: _Found) -> tuple[bytes, int]:
        frame = self._files.read_half(found.half_offset)
        return digest_of(found.place.group_no, frame.properties.get(TX_NAME, "")), crc32(frame.body)

    def _winner(self, found: _Found) -> int | None:
        """Another half that is committed under the name of this one. One that is not committed any more, because its
        COMMIT was lost to damage, has no claim to it."""
        if not found.place.sys_flag & frames.SYS_FLAG_NAMED:
            return None
        digest, _ = self._digest(found)
        known = self.names.get(digest) or self._unflushed.named(digest, self._now_s)
        if known is None or known.half_offset == found.half_offset:
            return None
        winner = known.half_offset
        if winner >= self._begin:
            mark = self.marks[winner] if winner in self.marks else self._unflushed.end_of(winner)
            return winner if mark == State.COMMITTED else None
        return winner

    def _name_taken(self, end: End, found: Sequence[_Found], winner: int) -> Answer:
        """The half, or all that were to end jointly, are rolled back where they are open."""
        back = end._replace(kind=OpKind.ROLLBACK)
        still = [one._replace(answer=judge(OpKind.ROLLBACK, one.before)) for one in found]
        if all(one.answer.verdict is Verdict.ACCEPTED for one in still):
            if end.joint:
                self._end_jointly(back, still, "name_taken", winner=winner)
            else:
                detail = frames.encode_detail(end.actor, "name_taken", winner=winner)
                self._mark(still[0], OpKind.ROLLBACK)
                op = Op(OpKind.ROLLBACK, end.half_offset, still[0].place.group_no, end.via, NO_POSITION, detail)
                self.ops.append(op)
        return Answer(Verdict.ALREADY, "name_taken", State.COMMITTED, other=winner)
