"""Members of transactions: the messages that are added to a half, the head, and end with it.

A member is a half of its own in the log, and its frame names its head and its ordinal. What an add and a COMMIT need to know
of a head's members is kept in memory, for every head that is open or discarded. It is read from the frames at every start,
and again for a head whose end was taken back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from store.directory import TRANSACTIONS
from store.edge.append.unflushed import Unflushed
from store.edge.files import EdgeFiles, EdgeState
from store.errors import Corrupt, InvalidRecord, NoTransaction, OrdinalTaken, TransactionEnded, TransactionTooLarge
from store.messages import Message
from store.properties import decode_properties
from store.records import FOLLOWS_MAX, State
from store.tables import frames
from store.tables.frames import Frame

MESSAGES_MAX: Final = 1_000
BYTES_MAX: Final = 4 << 20
_PIECE: Final = 65_536
#: Marks of heads whose members are kept: open, or may be resumed.
_KEPT: Final = (0, int(State.DISCARDED_MAX), int(State.DISCARDED_EXPIRED))


class Limits(NamedTuple):
    """Of one transaction, its head included: transactionMessagesMax and transactionBytesMax (of bodies)."""

    messages: int = MESSAGES_MAX
    body_bytes: int = BYTES_MAX


class Member(NamedTuple):
    half_offset: int
    body_bytes: int


class Members:
    """By head, then by ordinal. Call its methods under the append lock."""

    def __init__(self, files: EdgeFiles, state: EdgeState, unflushed: Unflushed, limits: Limits) -> None:
        self._files, self._state, self._unflushed, self.limits = files, state, unflushed, limits
        self.by_head: dict[int, dict[int, Member]] = {}
        if TRANSACTIONS in files.directory.needs:
            self._learn(self._state.half_begin, None)

    def of(self, head: int) -> Mapping[int, Member]:
        return self.by_head.get(head, {})

    def add(self, head: int, ordinal: int, member: Member) -> None:
        self.by_head.setdefault(head, {})[ordinal] = member

    def forget(self, heads: Iterable[int]) -> None:
        """These have ended for good."""
        for head in heads:
            self.by_head.pop(head, None)

    def content_of(self, half_offset: int) -> tuple[bytes, dict[str, str]]:
        """(body, properties) of a member that is stored."""
        frame = self._files.read_half(half_offset)
        return frame.body, frame.properties

    def learn_again(self, head: int) -> None:
        """A head whose end was taken back."""
        if TRANSACTIONS in self._files.directory.needs:
            self._learn(head + 1, head)

    @property
    def half_end(self) -> int:
        return self._state.half_end

    def open_head(self, head: int) -> Frame:
        """The frame of a half that may get members."""
        begin = max(self._files.half_queue.begin, self._state.half_begin)
        if not 0 <= head < self._state.half_end:
            raise NoTransaction("transaction: unknown id")
        if head < begin:
            raise NoTransaction("transaction: gone; retention has removed it")
        try:
            frame = self._files.read_half(head)
        except Corrupt as error:
            raise NoTransaction("transaction: its first message is damaged (quarantined); begin a new one") from error
        ended = self._unflushed.end_of(head)
        if ended and ended != State.MEMBER:
            raise TransactionEnded(f"transaction: it has ended ({State(ended).name.lower()}); begin a new one")
        return frame

    def _learn(self, first: int, wanted: int | None) -> None:
        table, begin = self._files.ends_table.file, max(first, self._files.half_queue.begin)
        for low in range(begin, self._state.half_end, _PIECE):
            stop = min(low + _PIECE, self._state.half_end)
            marks = np.frombuffer(table.view(low, stop - low), np.uint8)
            for half_offset in (np.flatnonzero(marks == State.MEMBER) + low).tolist():
                self._learn_one(half_offset, wanted)

    def _learn_one(self, half_offset: int, wanted: int | None) -> None:
        try:
            frame = self._files.read_half(half_offset)
        except (Corrupt, IndexError):
            return  # a COMMIT that counts it is refused
        head = frame.fields["position"]
        if head == wanted or (wanted is None and self._unflushed.end_of(head) in _KEPT):
            self.add(head, frame.fields["immunity_s"], Member(half_offset, frame.fields["body_bytes"]))


class Admission:
    """Members among the messages of one batch: which of them are new, and whether their transactions take them."""

    def __init__(self, members: Members, messages: Sequence[Message], heads: Any, tails: Sequence[Sequence[bytes]]) -> None:
        self._members, self._messages, self._heads, self._tails = members, messages, heads, tails
        #: Of this batch: (head, ordinal, member), and number in the batch by half_offset.
        self.fresh: list[tuple[int, int, Member]] = []
        self._numbers: dict[int, int] = {}
        self._known: dict[int, dict[int, Member]] = {}
        self._bytes: dict[int, int] = {}

    def offset_of(self, number: int, offsets: Sequence[int], following: int) -> int:
        """The half_offset of the message with this number in the batch: that of the member that it was before, or `following`.
        `offsets` are those of the messages before it."""
        message = self._messages[number]
        assert message.member is not None
        head, ordinal = self._head(number, message, offsets), message.member.ordinal
        if ordinal < 1:
            raise InvalidRecord(f"ordinal: {ordinal}; the first member of a transaction has 1, the next one 2, and so on")
        if message.dedup_key or message.name:
            raise InvalidRecord("dedup_key, name: only the first message of a transaction may have them; leave them out")
        known = self._members_of(head, number, offsets)
        if (before := known.get(ordinal)) is not None:
            self._compare(before.half_offset, number, ordinal)
            return before.half_offset
        if following - head > FOLLOWS_MAX:
            raise TransactionTooLarge(f"transaction: {following - head} halves came since it began; begin a new one")
        member = Member(following, len(message.body))
        self._hold_limits(head, len(known) + 2, member.body_bytes)
        known[ordinal] = member
        self._numbers[following] = number
        self.fresh.append((head, ordinal, member))
        self._heads["position"][number] = head
        return following

    def _head(self, number: int, message: Message, offsets: Sequence[int]) -> int:
        assert message.member is not None
        head = message.member.head
        if head >= 0:
            return head
        if number + head < 0:
            raise InvalidRecord(f"transaction: {head} lies before the first message of the batch")
        return offsets[number + head]

    def _members_of(self, head: int, number: int, offsets: Sequence[int]) -> dict[int, Member]:
        """The members so far, those of this batch included."""
        if head in self._known:
            return self._known[head]
        groups = self._heads["group_no"]
        if head in offsets and (own := self._messages[offsets.index(head)]).member is None and head >= self._members.half_end:
            its_group, its_bytes, is_member = int(groups[offsets.index(head)]), len(own.body), False
        else:
            frame = self._members.open_head(head)
            its_group, its_bytes = frame.fields["group_no"], frame.fields["body_bytes"]
            is_member = bool(frame.fields["sys_flag"] & frames.SYS_FLAG_MEMBER)
        if its_group != groups[number]:
            raise NoTransaction("transaction: of another group; a message is added by the group that began it")
        if is_member:
            raise NoTransaction("transaction: this id is that of a member; add to the transaction that it belongs to")
        found = self._known[head] = dict(self._members.of(head))
        self._bytes[head] = its_bytes + sum(member.body_bytes for member in found.values())
        return found

    def _hold_limits(self, head: int, count: int, body_bytes: int) -> None:
        limits = self._members.limits
        if count > limits.messages:
            raise TransactionTooLarge(
                f"transaction: {count} messages; at most {limits.messages} (transactionMessagesMax) go into one"
            )
        self._bytes[head] += body_bytes
        if self._bytes[head] > limits.body_bytes:
            text = f"{self._bytes[head]} bytes of bodies; at most {limits.body_bytes} (transactionBytesMax) go into one"
            raise TransactionTooLarge(f"transaction: {text}")

    def _compare(self, half_offset: int, number: int, ordinal: int) -> None:
        """The same ordinal again has to be the same message."""
        bodies, encoded = self._tails
        if (earlier := self._numbers.get(half_offset)) is not None:
            before = bodies[earlier], decode_properties(encoded[earlier])
        else:
            before = self._members.content_of(half_offset)
        same = before == (bodies[number], decode_properties(encoded[number]))
        if not same:
            raise OrdinalTaken(f"ordinal: {ordinal} is taken by another message of this transaction; use the next one")
