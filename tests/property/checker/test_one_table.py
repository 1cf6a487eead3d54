"""The judge of ends and the matcher do what the table of transitions says, for every op in every state."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checker.matcher import WAVES_MAX, match
from store.records import OP, STATE_OF_OP, OpKind, State, pack_word, state_of
from store.tables.ends import OPEN, Verdict, byte_after, judge
from store.transitions import EFFECTS, HALF_OPS, Effect

PAIRS = list(itertools.product(HALF_OPS, [state for state in State if state is not State.NONE]))
#: What an effect may be answered: the edge has accepted whatever changes a row.
VERDICTS = {
    Effect.ALREADY: {Verdict.ALREADY},
    Effect.CONFLICT: {Verdict.CONFLICT, Verdict.REFUSED},
    Effect.LATE_DISCARD: {Verdict.ALREADY, Verdict.CONFLICT, Verdict.REFUSED},
    Effect.LATE: {Verdict.ALREADY, Verdict.CONFLICT, Verdict.REFUSED},
}


def ops_of(kinds: list[OpKind]) -> np.ndarray:
    ops = np.zeros(len(kinds), OP)
    ops["op_offset"], ops["kind"], ops["group_no"] = np.arange(len(kinds)), kinds, -1
    return ops


def test_the_table_has_every_op_in_every_state() -> None:
    assert set(EFFECTS) == set(PAIRS)


@pytest.mark.parametrize("repeated", [1, WAVES_MAX + 1], ids=["in a wave", "one by one"])
@pytest.mark.parametrize(("kind", "state"), PAIRS)
def test_the_matcher_does_what_the_table_says(kind: OpKind, state: State, repeated: int) -> None:
    """The ops before the last one do not change the state; so many that the last one is handled singly."""
    kinds = [OpKind.UNKNOWN if state is not State.PREPARED else OpKind.ASKED] * (repeated - 1) + [kind]
    matched = match(ops_of(kinds), np.array([0]), np.array([pack_word(state)], np.uint32), np.array([0]), 1)
    assert Effect(matched.effect[-1]) is EFFECTS[kind, state]
    if EFFECTS[kind, state] <= Effect.DISCARD_EXPIRED:
        assert state_of(matched.words).tolist() == [STATE_OF_OP[kind]]


@pytest.mark.parametrize(("kind", "state"), [pair for pair in PAIRS if pair[1] is not State.QUARANTINED])
def test_the_judge_accepts_what_changes_a_row_and_nothing_else(kind: OpKind, state: State) -> None:
    answer, effect = judge(kind, OPEN if state is State.PREPARED else int(state)), EFFECTS[kind, state]
    if effect <= Effect.ANSWERED:
        assert answer.verdict is Verdict.ACCEPTED
    else:
        assert (answer.verdict in VERDICTS[effect], answer.state) == (True, state)


@given(st.lists(st.sampled_from(HALF_OPS), max_size=3 * WAVES_MAX))
def test_what_the_edge_answers_is_what_the_job_does_with_the_accepted_ops(kinds: list[OpKind]) -> None:
    """The edge writes the ops that it accepts; their states are the same on both sides, and no accepted end is late."""
    byte, accepted = OPEN, list[OpKind]()
    for kind in kinds:
        if judge(kind, byte).verdict is Verdict.ACCEPTED:
            accepted.append(kind)
            byte = byte_after(kind, byte)
    matched = match(ops_of(accepted), np.array([0]), np.array([pack_word(State.PREPARED)], np.uint32), np.array([0]), 1)
    assert state_of(matched.words).tolist() == [byte or State.PREPARED]
    assert all(effect <= Effect.ANSWERED for effect in matched.effect.tolist())
