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
from store.transitions import Effect

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


def match_ops(ops: Iterable[Op], rows: Mapping[int, HalfRow], round_no: int) -> tuple[dict[int, HalfRow], list[Effect]]:
    """Take ops in log order; rows by half offset. Returns the rows afterwards and the effect of each op."""
    after, effects = dict(rows), []
    for op in ops:
        effect = _effect_one(op, after.get(op.half_offset))
        if effect <= Effect.ANSWERED:
            after[op.half_offset] = _changed(after[op.half_offset], op, effect, round_no)
        effects.append(effect)
    return after, effects


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
