"""A tiny world around the checker: a table of rows, an edge that hands requests over, rounds that pass.

Time moves only when a test says so. `World.tick` decides and marks; `World.settle` applies ops.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from checker.decisions import Decision, Decisions, Tick, check_words, count_outstanding, decide
from checker.matcher import Matched, match, mentioned_halves
from checker.policy import Policy
from store.records import OP, ROW, OpKind, State, Via, check_count_of, pack_word, state_of
from store.transitions import Effect

T0_S = 1_800_000_000


def row_array(*rows):
    """Rows of (stored_at_s, group_no, word)."""
    table = np.zeros(len(rows), ROW)
    for at, (stored_at_s, group_no, word) in enumerate(rows):
        table[at] = (at * 100, 100, stored_at_s, group_no, word)
    return table


def op(half_offset, kind, *, group_no=-1, position=-1, stored_at_ms=0, via=Via.PRODUCER, corrupt=0):
    """One op record without its own offset; `op_array` numbers them."""
    return (0, half_offset, position, stored_at_ms, group_no, 64, int(kind), int(via), corrupt, 0, 0)


def op_array(*ops):
    array = np.array(list(ops), OP) if ops else np.empty(0, OP)
    array["op_offset"] = np.arange(len(ops))
    return array


def prepared(check_count=0, immunity_s=0, ask_round=0, outstanding=False):
    return pack_word(State.PREPARED, check_count, immunity_s, ask_round, outstanding)


def tick_at(now_s, round_no=2, round_start_s=None, ops_caught_up=True, discards_allowed=True):
    """A tick whose round began just now, unless told otherwise."""
    start_s = now_s if round_start_s is None else round_start_s
    return Tick(now_s * 1000, round_no, start_s * 1000, ops_caught_up, discards_allowed)


def decide_age(age_s, policy=None, group_no=0, word=None, live=(True,), **tick):
    """The decision over a single row of that age."""
    rows = row_array((T0_S - age_s, group_no, prepared() if word is None else word))
    decided = decide(rows, policy or Policy(), np.array(live, bool), tick_at(T0_S, **tick))
    if not decided.looked:
        return Decision.WAIT
    return Decision(int(np.flatnonzero(decided.counts)[0]))


def match_one(word, *ops, group_no=0, round_no=2):
    """Match ops against half 0."""
    return match(op_array(*ops), np.array([0]), np.array([word], np.uint32), np.array([group_no], np.int32), round_no)


def decide_every(rows, policy, live, tick) -> dict[int, Decision]:
    """The decision of every PREPARED row, the waiting and held ones too: one row at a time, as the rows before it left it."""
    outstanding = count_outstanding(rows, tick.round_no, len(live))
    found = {}
    for at in np.flatnonzero(state_of(rows["word"]) == State.PREPARED).tolist():
        decided = decide(rows[at : at + 1], policy, live, tick, outstanding)
        outstanding = decided.outstanding_by_group
        found[at] = Decision(int(np.flatnonzero(decided.counts)[0])) if decided.looked else Decision.WAIT
    return found


def positions_of(decided: Decisions, decision: Decision) -> list[int]:
    """Rows with that decision, ascending."""
    return decided.index[decided.decision == decision].tolist()


def pending_delta(matched: Matched) -> int:
    """By how much the ops change the number of pending rows."""
    n = matched.counts()
    ended = n[Effect.RELEASE] + n[Effect.ROLLBACK] + n[Effect.DISCARD_MAX] + n[Effect.DISCARD_EXPIRED]
    return n[Effect.RESUME] - ended - n[Effect.SET_ASIDE]


class World:
    """Rows, rounds and an edge whose members answer as the test wants."""

    def __init__(self, policy=None, live=(True,)):
        self.policy = policy or Policy()
        self.live = np.array(live, bool)
        self.rows = np.empty(0, ROW)
        self.now_s = T0_S
        self.requests: list[tuple[int, int]] = []  # (now_s, half_offset) of every hand-over
        self.proposals: list[tuple[int, int, Decision]] = []
        self.effects: Counter[Effect] = Counter()

    def half(self, group_no=0, immunity_s=0, age_s=0):
        row = row_array((self.now_s - age_s, group_no, prepared(immunity_s=immunity_s)))
        self.rows = np.concatenate([self.rows, row])
        return len(self.rows) - 1

    @property
    def round_no(self):
        return (self.now_s - T0_S) // self.policy.check_interval_s

    def tick(self, **flags) -> Decisions:
        start_s = T0_S + self.round_no * self.policy.check_interval_s
        decided = decide(self.rows, self.policy, self.live, tick_at(self.now_s, self.round_no, start_s, **flags))
        self.rows["word"][decided.index] = check_words(self.rows["word"][decided.index], self.round_no)
        return decided

    def settle(self, *ops) -> Matched:
        array = op_array(*ops)
        halves = mentioned_halves(array)
        halves = halves[(halves >= 0) & (halves < len(self.rows))]
        matched = match(array, halves, self.rows["word"][halves], self.rows["group_no"][halves], self.round_no)
        self.rows["word"][halves] = matched.words
        reset = matched.stored_at_s >= 0
        self.rows["stored_at_s"][halves[reset]] = matched.stored_at_s[reset]
        self.effects.update({effect: n for effect, n in matched.counts().items() if n})
        return matched

    def hand_over(self, decided: Decisions, answer=None):
        """Deliver every request (ASKED), let the members answer, and turn proposals into discards."""
        ops = []
        for half in positions_of(decided, Decision.CHECK):
            self.requests.append((self.now_s, half))
            ops.append(op(half, OpKind.ASKED, via=Via.CHECKER))
            if answer is not None:
                ops.append(op(half, answer, via=Via.CHECK, position=half))
        for decision in (Decision.DISCARD_MAX, Decision.DISCARD_EXPIRED):
            kind = OpKind.DISCARD_MAX if decision is Decision.DISCARD_MAX else OpKind.DISCARD_EXPIRED
            for half in positions_of(decided, decision):
                self.proposals.append((self.now_s, half, decision))
                ops.append(op(half, kind, via=Via.CHECKER, stored_at_ms=self.now_s * 1000))
        self.settle(*ops)

    def live_through(self, seconds, answer=None, step_s=1):
        """Let time pass with a tick every step, all requests delivered."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += step_s
            self.hand_over(self.tick(), answer)

    def state(self, half):
        return State(int(state_of(self.rows["word"][half])))

    def check_count(self, half):
        return int(check_count_of(self.rows["word"][half]))
