"""The rules once more, one row and one op at a time, to be read beside the decision table of docs/cases.md.

Slow on purpose: this is the text that the vectorised forms in `decisions.py` and `matcher.py` are held equal to by
tests over random histories. Change a rule here first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

from checker.decisions import Decision, Tick
from checker.policy import Policy, effective_immunity_s
from store.records import STATE_OF_OP, OpKind, State, ask_round_of, check_count_of, immunity_of, pack_word, state_of
from store.transitions import Effect, Together

TERMINAL = {OpKind.COMMIT, OpKind.ROLLBACK, OpKind.DISCARD_MAX, OpKind.DISCARD_EXPIRED}
DISCARDS = {OpKind.DISCARD_MAX, OpKind.DISCARD_EXPIRED}
DISCARDED = {State.DISCARDED_MAX, State.DISCARDED_EXPIRED}


def is_outstanding(word: int) -> bool:
    return bool(word >> 31)


# --- decisions -----------------------------------------------------------------------------------------------------
class PendingRow(NamedTuple):
    """What a decision reads of a row."""

    stored_at_s: int
    group_no: int
    word: int


def decide_one(row: PendingRow, policy: Policy, live_groups: Set[int], tick: Tick, outstanding_of_group: int = 0) -> Decision:
    """Decide for one PREPARED row; the numbers are those of the decision table."""
    stored_at_s, group_no, word = row
    age_s = tick.now_ms // 1000 - stored_at_s  # stored time, never the producer's clock; negative = never due
    count = check_count_of(word)
    distance = (tick.round_no - ask_round_of(word)) % 4
    asked_before = count > 0 or is_outstanding(word)
    recent = asked_before and distance < 2  # not a whole interval since the last hand-over
    may_discard = tick.discards_allowed and not recent

    # A standby decides nothing.
    if policy.standby:
        return Decision.WAIT
    # 1  An op may be on its way that resolves it: wait until all are read. (One that was read has settled the row.)
    if not tick.ops_caught_up:
        return Decision.WAIT
    # 2  Asked often enough, and a whole interval for the last answer: discard.
    if policy.checks_enabled and count >= policy.check_count_max:
        return Decision.DISCARD_MAX if may_discard else Decision.WAIT
    # 3  Older than retention: discard, with checks disabled too, because the disk must stay bounded.
    if age_s - tick.leapt_s > policy.retention_s:
        return Decision.DISCARD_EXPIRED if may_discard else Decision.WAIT
    # -  Checks disabled: no check is sent.
    if not policy.checks_enabled:
        return Decision.WAIT
    # 4  Stored at or after this round's start, both floored to seconds: next round.
    if stored_at_s >= tick.round_start_ms // 1000:
        return Decision.WAIT
    # 5  Within its immunity; costs no attempt.
    if age_s <= effective_immunity_s(immunity_of(word), policy):
        return Decision.WAIT
    # -  Asked in this very round: at most once a round. The request lapses when the next one begins.
    if asked_before and distance == 0:
        return Decision.WAIT
    # 7  No live member to ask; costs no attempt.
    if group_no not in live_groups:
        return Decision.HOLD
    # -  The group has enough to answer already.
    if outstanding_of_group >= policy.outstanding_per_group_max:
        return Decision.WAIT
    # 6  Due, no op on its way, a member is live: ask.
    return Decision.CHECK


def decide_rows(rows: Iterable[PendingRow], policy: Policy, live_groups: Set[int], tick: Tick) -> dict[int, Decision]:
    """Decide for the PREPARED among these rows, lowest first; position → decision."""
    pending = [(at, row) for at, row in enumerate(rows) if state_of(row.word) == State.PREPARED]
    outstanding = Counter(
        row.group_no for _, row in pending if is_outstanding(row.word) and ask_round_of(row.word) == tick.round_no % 4
    )
    decided = {}
    for at, row in pending:
        decided[at] = decide_one(row, policy, live_groups, tick, outstanding[row.group_no])
        outstanding[row.group_no] += decided[at] is Decision.CHECK
    return decided


# --- matching ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class HalfRow:
    """What the matcher reads and writes of a row."""

    word: int
    group_no: int
    stored_at_s: int


@dataclass(frozen=True, slots=True)
class Op:
    """What the matcher reads of an op; names as in records.OP."""

    half_offset: int
    kind: int
    group_no: int = -1
    stored_at_ms: int = 0
    corrupt: int = 0
    follows: int = 0
    together: int = 0


def match_ops(ops: Iterable[Op], rows: Mapping[int, HalfRow], round_no: int) -> tuple[dict[int, HalfRow], list[Effect]]:
    """Take ops in log order; rows by half offset. Returns the rows afterwards and the effect of each op."""
    after: dict[int, HalfRow] = dict(rows)
    effects: list[Effect] = []
    for frame in _frames(ops):
        said = _effects_of_frame(frame, after)
        for op, effect in zip(frame, said, strict=True):
            if effect <= Effect.ANSWERED:
                after[op.half_offset] = _changed(after[op.half_offset], op, effect, round_no)
            if effect is Effect.SET_ASIDE:
                after[op.half_offset] = _set_aside(after[op.half_offset])
        effects += said
    return after, effects


def _frames(ops: Iterable[Op]) -> list[list[Op]]:
    """Ops that are one decision, or one head and its members, together."""
    found: list[list[Op]] = []
    for op in ops:
        if op.together == Together.OTHER or (op.follows and not op.corrupt):
            found[-1].append(op)
        else:
            found.append([op])
    return found


def _effects_of_frame(frame: list[Op], rows: Mapping[int, HalfRow]) -> list[Effect]:
    first = frame[0]
    if first.corrupt and first.together:
        return _effects_of_lost(frame, rows)
    heads = {at: _effect_one(op, rows.get(op.half_offset)) for at, op in enumerate(frame) if not op.follows}
    # Jointly: all of them, or none. A quarantined head can neither be released nor hold up the others.
    fine = {OpKind.COMMIT: {Effect.RELEASE, Effect.HOLE}, OpKind.ROLLBACK: {Effect.ROLLBACK, Effect.LATE}}
    if first.together and not set(heads.values()) <= fine.get(OpKind(first.kind), set()):
        return [Effect.CONFLICT, *[Effect.VOID] * (len(frame) - 1)]
    said: list[Effect] = []
    head = Effect.VOID
    for at, op in enumerate(frame):
        if at in heads:
            head = heads[at]
        said.append(heads[at] if at in heads else _effect_on_member(op, rows.get(op.half_offset), head))
    return said


def _effect_on_member(op: Op, row: HalfRow | None, head: Effect) -> Effect:
    """It goes where its head goes. A place that was given to what cannot be read stays empty."""
    if row is None or head not in (Effect.RELEASE, Effect.HOLE):
        return Effect.VOID
    if state_of(row.word) == State.QUARANTINED:
        return Effect.HOLE
    if state_of(row.word) != State.MEMBER or row.word >> 3 != op.follows:
        return Effect.VOID
    return Effect.FOLLOWED if head is Effect.RELEASE else Effect.HOLE


def _effects_of_lost(frame: list[Op], rows: Mapping[int, HalfRow]) -> list[Effect]:
    """What it said is lost, not of which halves it spoke. Several heads may not be ended one by one."""
    states = [state_of(rows[op.half_offset].word) if op.half_offset in rows else State.NONE for op in frame]
    several = sum(state not in (State.NONE, State.MEMBER) for state in states) > 1
    said = [Effect.CORRUPT, *[Effect.VOID] * (len(frame) - 1)]
    return [Effect.SET_ASIDE if several and state == State.PREPARED else effect for effect, state in zip(said, states, strict=True)]


def _set_aside(row: HalfRow) -> HalfRow:
    word = pack_word(State.QUARANTINED, check_count_of(row.word), immunity_of(row.word), ask_round_of(row.word))
    return HalfRow(word, row.group_no, row.stored_at_s)


def _effect_one(op: Op, row: HalfRow | None) -> Effect:
    """What this op does to that row."""
    if op.corrupt:
        return Effect.CORRUPT  # before anything else: none of its fields is true
    if op.kind == OpKind.MESSAGE:
        return Effect.MESSAGE
    if op.kind not in set(OpKind):
        return Effect.ILLEGAL
    if row is None or state_of(row.word) not in set(State) - {State.NONE}:
        return Effect.UNKNOWN_HALF
    kind, state = OpKind(op.kind), State(state_of(row.word))
    if state is State.QUARANTINED:  # its group is not known, so it is not compared
        return _effect_on_quarantined(kind)
    if op.group_no >= 0 and op.group_no != row.group_no:
        return Effect.WRONG_GROUP
    return _effect_on_prepared(kind) if state is State.PREPARED else _effect_on_ended(kind, state)


def _effect_on_prepared(kind: OpKind) -> Effect:
    """Terminal ops end it, a resume starts it over, ASKED and UNKNOWN keep track of its requests."""
    if kind is OpKind.COMMIT:
        return Effect.RELEASE
    if kind is OpKind.ROLLBACK:
        return Effect.ROLLBACK
    if kind is OpKind.DISCARD_MAX:
        return Effect.DISCARD_MAX
    if kind is OpKind.DISCARD_EXPIRED:
        return Effect.DISCARD_EXPIRED
    if kind is OpKind.RESUME:
        return Effect.RECOUNT
    return Effect.ASKED if kind is OpKind.ASKED else Effect.ANSWERED


def _effect_on_ended(kind: OpKind, state: State) -> Effect:
    """The first end has won."""
    if kind in DISCARDS:
        return Effect.LATE_DISCARD
    if kind in TERMINAL:
        return Effect.ALREADY if STATE_OF_OP[kind] is state else Effect.CONFLICT
    if kind is OpKind.RESUME:
        return Effect.RESUME if state in DISCARDED else Effect.CONFLICT
    return Effect.LATE


def _effect_on_quarantined(kind: OpKind) -> Effect:
    """Its body is unreadable: a commit leaves a hole at its place, nothing else has any effect."""
    if kind is OpKind.COMMIT:
        return Effect.HOLE
    if kind is OpKind.RESUME:
        return Effect.CONFLICT
    return Effect.LATE_DISCARD if kind in DISCARDS else Effect.LATE


def _changed(row: HalfRow, op: Op, effect: Effect, round_no: int) -> HalfRow:
    """The row after an effect that changes it."""
    count, immunity_s, ask_round = check_count_of(row.word), immunity_of(row.word), ask_round_of(row.word)
    stored_at_s = row.stored_at_s
    if effect in (Effect.RESUME, Effect.RECOUNT):
        word, stored_at_s = pack_word(State.PREPARED, 0, immunity_s), op.stored_at_ms // 1000
    elif effect is Effect.ASKED:
        word = pack_word(State.PREPARED, count + 1, immunity_s, round_no, outstanding=True)
    elif effect is Effect.ANSWERED:
        # Before the first counted hand-over only the outstanding bit remembers that it was asked in this round.
        word = pack_word(State.PREPARED, count, immunity_s, ask_round, is_outstanding(row.word) and count == 0)
    else:
        word = pack_word(STATE_OF_OP[OpKind(op.kind)], count, immunity_s, ask_round, outstanding=False)
    return HalfRow(word, row.group_no, stored_at_s)
