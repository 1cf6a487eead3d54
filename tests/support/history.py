"""What producers, operators and consumers know about a store, and what must therefore be true of it after any crash.

A crash test plays *actions*. Each is noted in a `History` before it is done (`intend`: from here on it is in doubt) and after it
was answered (`acknowledge`: from here on it is a fact). `Audit` (audit of a store, `check_store.py`) compares a reopened store
with the history: facts must hold to the letter, what was in doubt must have happened whole or not at all, and is a fact afterwards.

Bodies are made from a number, so that a history travels through a pipe in a few bytes and every byte of a body can be checked.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from store.messages import Message
from store.records import OpKind, State, Via
from store.tables.ends import Verdict

T0_MS = 1_800_000_000_000
RETENTION_MS = 600_000
#: By how much a job in a process of its own is ahead: more than an edge has actions, at a millisecond each.
LEAD_MS = 10_000
DISCARDED = (State.DISCARDED_MAX, State.DISCARDED_EXPIRED)
STATE_AFTER = {
    OpKind.COMMIT: State.COMMITTED,
    OpKind.ROLLBACK: State.ROLLED_BACK,
    OpKind.DISCARD_MAX: State.DISCARDED_MAX,
    OpKind.DISCARD_EXPIRED: State.DISCARDED_EXPIRED,
    OpKind.RESUME: State.PREPARED,
}


@dataclass(frozen=True, slots=True)
class Sent:
    """One message: everything about it follows from these."""

    ident: int
    size: int
    group: str
    topic: str
    immunity_s: int = 0
    dedup_key: str = ""
    tags: str = ""

    @property
    def body(self) -> bytes:
        return (b"%012d" % self.ident + Random(self.ident).randbytes(self.size))[: max(12, self.size)]

    @property
    def message(self) -> Message:
        properties = {"TAGS": self.tags} if self.tags else {}
        return Message(self.group, self.topic, self.body, properties, immunity_s=self.immunity_s, dedup_key=self.dedup_key)


def ident_of(body: bytes) -> int:
    return int(body[:12])


@dataclass(frozen=True, slots=True)
class Wish:
    """How somebody wants a half to end."""

    half_offset: int
    kind: OpKind
    group: str | None
    via: Via = Via.PRODUCER
    remark: str = ""

    @property
    def leaves_op(self) -> bool:
        return self.kind != OpKind.UNKNOWN or self.via != Via.PRODUCER or bool(self.remark)


# --- actions --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Prepare:
    messages: tuple[Sent, ...]
    now_ms: int


@dataclass(frozen=True, slots=True)
class Send:
    """Ordinary messages."""

    messages: tuple[Sent, ...]
    now_ms: int


@dataclass(frozen=True, slots=True)
class EndMany:
    wishes: tuple[Wish, ...]
    now_ms: int
    proposal_cursor: int = -1


@dataclass(frozen=True, slots=True)
class Ask:
    """Check requests were handed over."""

    half_offsets: tuple[int, ...]
    check_cursor: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class Settle:
    records_max: int
    batches: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class Round:
    """A check round, or more of the one that is under way: then it still began at start_ms."""

    round_no: int
    start_ms: int
    now_ms: int
    nobody: str = ""  # the group of which no member is live


@dataclass(frozen=True, slots=True)
class Retain:
    now_ms: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    side: str  # "edge" or "job"
    now_ms: int


@dataclass(frozen=True, slots=True)
class Reopen:
    side: str
    clean: bool
    rebuild: bool
    now_ms: int


Action = Prepare | Send | EndMany | Ask | Settle | Round | Retain | Checkpoint | Reopen
#: (verdict, reason, state, position) as an answer travels.
Told = tuple[Verdict, str, State, int]


@dataclass(slots=True)
class Half:
    sent: Sent
    state: State = State.PREPARED
    position: int = -1
    asked: int = 0
    discards: int = 0
    changed_ms: int = 0


@dataclass(frozen=True, slots=True)
class Clock:
    """The time of a job that settles meanwhile, in a process of its own: it tells the time before it acts, whoever looks reads it
    afterwards. On one machine a job is never behind the edge whose ops it reads: the edge follows LEAD_MS behind."""

    path: Path

    def tell(self, now_ms: int) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT)  # not truncated: it tells some time at every moment
        try:
            os.pwrite(descriptor, b"%020d" % now_ms, 0)
        finally:
            os.close(descriptor)

    def told_ms(self) -> int:
        return int(self.path.read_bytes() or b"0") if self.path.exists() else 0


@dataclass(slots=True)
class History:
    """Facts, and what is in doubt."""

    now_ms: int = T0_MS
    halves: dict[int, Half] = field(default_factory=dict)
    by_key: dict[tuple[str, str], int] = field(default_factory=dict)
    messages: dict[int, tuple[Sent, int]] = field(default_factory=dict)
    doubts: list[Action] = field(default_factory=list)
    half_begin: int = 0
    check_cursor: int = 0
    proposal_cursor: int = 0
    round_no: int = 0
    round_start_ms: int = T0_MS
    idents: int = 0
    job_clock: Clock | None = None
    #: Dedup keys were learnt again from the log: those of halves that retention has taken are gone with them.
    keys_made_anew: bool = False

    # --- notes ------------------------------------------------------------------------------------------------------------
    def intend(self, action: Action) -> None:
        self.now_ms = max(self.now_ms, action.now_ms)
        if isinstance(action, Prepare | Send):
            self.idents = max([self.idents, *(sent.ident + 1 for sent in action.messages)])
        if isinstance(action, Round) and action.round_no >= self.round_no:
            self.round_no, self.round_start_ms = action.round_no, action.start_ms
        self.doubts.append(action)

    def acknowledge(self, action: Action, result: Any) -> None:
        """It was answered: check the answer, make it a fact."""
        self.doubts.remove(action)
        if isinstance(action, Prepare):
            self._prepared(action, result)
        elif isinstance(action, Send):
            self.messages.update({sent.ident: (sent, action.now_ms) for sent in action.messages})
        elif isinstance(action, EndMany):
            self._ended(action, result)
        elif isinstance(action, Ask):
            self.check_cursor = max(self.check_cursor, action.check_cursor)
            self.apply_asked(action)
        elif isinstance(action, Retain):
            self.forget_before(result)

    def _prepared(self, action: Prepare, offsets: list[int]) -> None:
        assert len(offsets) == len(action.messages), "an offset for each message"
        for sent, offset in zip(action.messages, offsets, strict=True):
            earlier = self.by_key.get((sent.group, sent.dedup_key)) if sent.dedup_key else None
            if earlier is not None and self.keys_made_anew and offset != earlier:
                self.assert_old(earlier)  # retention took the frame that the key could be learnt from
                del self.by_key[sent.group, sent.dedup_key]
                self.adopt(offset, sent, action.now_ms)
            elif earlier is not None:
                assert offset == earlier, f"dedup key {sent.dedup_key} led to half {offset}, not to {earlier}"
            else:
                self.adopt(offset, sent, action.now_ms)

    def adopt(self, offset: int, sent: Sent, now_ms: int) -> None:
        assert offset not in self.halves, f"half_offset {offset} was given out twice"
        self.halves[offset] = Half(sent, changed_ms=now_ms)
        if sent.dedup_key:
            self.by_key[sent.group, sent.dedup_key] = offset

    def _ended(self, action: EndMany, told: list[Told]) -> None:
        self.proposal_cursor = max(self.proposal_cursor, action.proposal_cursor)
        for wish, answer in zip(action.wishes, told, strict=True):
            expected = self.expected(wish)
            if answer[1] == "gone" and expected[1] != "gone":
                # Its row is still there, its frame is not: the log went first.
                self.assert_old(wish.half_offset)
                continue
            assert answer[:3] == expected, f"{wish} was answered {answer}, not {expected}"
            if answer[0] is Verdict.ACCEPTED:
                assert (answer[3] >= 0) == (wish.kind == OpKind.COMMIT), f"{wish} was answered {answer}"
                self.apply_wish(wish, action.now_ms, answer[3])

    def apply_wish(self, wish: Wish, now_ms: int, position: int = -1) -> None:
        if wish.kind not in STATE_AFTER:
            return
        half = self.halves[wish.half_offset]
        half.state, half.changed_ms = STATE_AFTER[wish.kind], now_ms
        if wish.kind == OpKind.COMMIT:
            half.position = position
        elif wish.kind == OpKind.RESUME:
            half.asked = 0
        elif wish.kind != OpKind.ROLLBACK:
            half.discards += 1

    def apply_asked(self, action: Ask) -> None:
        for half_offset in action.half_offsets:
            half = self.halves[half_offset]
            if half.state == State.PREPARED:
                half.asked += 1

    def forget_before(self, half_begin: int) -> None:
        """Retention took ids: only such as ended long ago."""
        for offset in range(self.half_begin, half_begin):
            self.assert_old(offset)
        self.half_begin = max(self.half_begin, half_begin)

    def assert_old(self, offset: int) -> None:
        """Retention may have taken this half."""
        half = self.halves.get(offset)
        if half is not None:
            assert half.state != State.PREPARED, f"half {offset} is pending and was removed by retention"
            assert self.may_be_gone(half.changed_ms), (
                f"half {offset} of {half.changed_ms - T0_MS} was removed too early, at {self._latest_ms() - T0_MS}"
            )

    def may_be_gone(self, changed_ms: int) -> bool:
        """Has it come to a time at which retention takes what changed then?"""
        return changed_ms < self._latest_ms() - RETENTION_MS

    def _latest_ms(self) -> int:
        return max(self.now_ms, self.job_clock.told_ms() if self.job_clock else 0)

    def next_ms(self, rng: Random) -> int:
        """No two actions at the same time: the ops in the log then tell which action they are of."""
        if self.job_clock is not None:
            return max(self.now_ms + 1, self.job_clock.told_ms() - LEAD_MS)
        return self.now_ms + rng.choice((1, 1, 2, 400, 1500, 7000, 35_000))

    # --- rules ------------------------------------------------------------------------------------------------------------
    def expected(self, wish: Wish) -> tuple[Verdict, str, State]:
        """The rule of ends, said once more and in other words than `store.tables.ends`."""
        half = self.halves.get(wish.half_offset)
        if half is None:
            return Verdict.REFUSED, "unknown id", State.NONE
        if wish.half_offset < self.half_begin:
            return Verdict.REFUSED, "gone", State.NONE
        if wish.group is not None and wish.group != half.sent.group:
            return Verdict.REFUSED, "wrong group", State.NONE
        state, kind = half.state, wish.kind
        if kind == OpKind.RESUME:
            fine = state == State.PREPARED or state in DISCARDED
            return (Verdict.ACCEPTED, "", state) if fine else (Verdict.CONFLICT, "already ended", state)
        if state == State.PREPARED:
            return Verdict.ACCEPTED, "", STATE_AFTER.get(kind, State.PREPARED)
        if kind == OpKind.UNKNOWN or STATE_AFTER[kind] == state:
            return Verdict.ALREADY, "", state
        if state in DISCARDED:
            is_discard = STATE_AFTER[kind] in DISCARDED
            return (Verdict.ALREADY, "", state) if is_discard else (Verdict.REFUSED, "discarded", state)
        return Verdict.CONFLICT, f"already {state.name.lower()}", state

    def trial(self, action: EndMany) -> History:
        """As much of this history as an action concerns, to try it on."""
        known = {wish.half_offset for wish in action.wishes} & self.halves.keys()
        return History(self.now_ms, {offset: _copy(self.halves[offset]) for offset in known}, half_begin=self.half_begin)

    def pending(self) -> list[int]:
        return [offset for offset, half in self.halves.items() if half.state == State.PREPARED]

    def offsets(self, states: Iterable[State]) -> list[int]:
        wanted = set(states)
        return [offset for offset, half in self.halves.items() if half.state in wanted and offset >= self.half_begin]


def _copy(half: Half) -> Half:
    return Half(half.sent, half.state, half.position, half.asked, half.discards, half.changed_ms)
