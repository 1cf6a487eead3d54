"""Ops against rows, by the case numbers of docs/cases.md."""

from __future__ import annotations

import numpy as np
import pytest

from checker import matcher
from checker.matcher import match, mentioned_halves
from store.records import OP, OpKind, State, Via, immunity_of, pack_word
from store.transitions import Effect
from tests.support.checker_world import World, match_one, op, op_array, pending_delta, prepared

ENDS = {
    State.COMMITTED: OpKind.COMMIT,
    State.ROLLED_BACK: OpKind.ROLLBACK,
    State.DISCARDED_MAX: OpKind.DISCARD_MAX,
    State.DISCARDED_EXPIRED: OpKind.DISCARD_EXPIRED,
}


def effects(matched):
    return [Effect(int(effect)) for effect in matched.effect]


@pytest.mark.parametrize(("state", "kind"), ENDS.items())
def test_a_terminal_op_ends_a_prepared_half_and_keeps_its_history(state, kind):
    matched = match_one(prepared(4, 600, 3, True), op(0, kind))
    assert matched.words.tolist() == [pack_word(state, 4, 600, 3, False)]
    assert pending_delta(matched) == -1
    assert matched.stored_at_s.tolist() == [-1]


def test_case_05_unknown_is_an_answer_and_no_end():
    assert match_one(prepared(2, 9, 1, True), op(0, OpKind.UNKNOWN)).words.tolist() == [prepared(2, 9, 1, False)]
    assert match_one(prepared(2, 9, 1, False), op(0, OpKind.UNKNOWN)).words.tolist() == [prepared(2, 9, 1, False)]


def test_unknown_before_its_hand_over_is_counted_leaves_the_row_outstanding():
    """Otherwise nothing would remember the request of this round, and the half would be asked twice in it."""
    asked = prepared(0, 0, 2, True)
    assert match_one(asked, op(0, OpKind.UNKNOWN)).words.tolist() == [asked]
    world = World()
    half = world.half(age_s=100)
    world.now_s += 1
    assert len(world.tick().index) == 1
    world.settle(op(half, OpKind.UNKNOWN))
    assert len(world.tick().index) == 0


def test_case_15_empty_batch():
    none = np.empty(0, np.int64)
    matched = match(op_array(), none, none.astype(np.uint32), none.astype(np.int32), 0)
    assert len(matched.words) == len(matched.effect) == 0
    assert mentioned_halves(op_array()).tolist() == []
    assert sum(matched.counts().values()) == 0


def test_case_27_duplicate_commit_is_one_delivery():
    ops = op(0, OpKind.COMMIT, position=7), op(0, OpKind.COMMIT, position=8)
    assert effects(match_one(prepared(), *ops)) == [Effect.RELEASE, Effect.ALREADY]
    assert effects(match_one(pack_word(State.COMMITTED), ops[0])) == [Effect.ALREADY]
    assert effects(match_one(pack_word(State.ROLLED_BACK), op(0, OpKind.ROLLBACK))) == [Effect.ALREADY]


def test_case_28_commit_after_rollback_is_a_conflict():
    matched = match_one(prepared(), op(0, OpKind.ROLLBACK), op(0, OpKind.COMMIT, position=7))
    assert effects(matched) == [Effect.ROLLBACK, Effect.CONFLICT]
    assert matched.words.tolist() == [pack_word(State.ROLLED_BACK)]
    assert effects(match_one(pack_word(State.ROLLED_BACK), op(0, OpKind.COMMIT))) == [Effect.CONFLICT]


def test_case_29_rollback_after_commit_is_a_conflict():
    matched = match_one(prepared(), op(0, OpKind.COMMIT), op(0, OpKind.ROLLBACK))
    assert effects(matched) == [Effect.RELEASE, Effect.CONFLICT]
    assert matched.words.tolist() == [pack_word(State.COMMITTED)]


@pytest.mark.parametrize("state", [State.DISCARDED_MAX, State.DISCARDED_EXPIRED])
def test_case_30_commit_after_discard_is_refused_unless_resumed(state):
    for kind in (OpKind.COMMIT, OpKind.ROLLBACK):
        refused = match_one(pack_word(state), op(0, kind))
        assert effects(refused) == [Effect.CONFLICT]
        assert refused.words.tolist() == [pack_word(state)]
    forced = match_one(pack_word(state, 15, 50), op(0, OpKind.RESUME), op(0, OpKind.COMMIT, via=Via.OPERATOR))
    assert effects(forced) == [Effect.RESUME, Effect.RELEASE]
    assert forced.words.tolist() == [pack_word(State.COMMITTED, 0, 50)]
    assert pending_delta(forced) == 0


@pytest.mark.parametrize("state", set(State) - {State.NONE, State.PREPARED})
@pytest.mark.parametrize("kind", [OpKind.DISCARD_MAX, OpKind.DISCARD_EXPIRED])
def test_case_30_a_late_discard_changes_nothing(state, kind):
    matched = match_one(pack_word(state, 3, 4, 1), op(0, kind))
    assert effects(matched) == [Effect.LATE_DISCARD]
    assert matched.words.tolist() == [pack_word(state, 3, 4, 1)]


def test_case_31_commit_while_a_check_is_outstanding():
    matched = match_one(prepared(1, 0, 2, True), op(0, OpKind.COMMIT, position=3), op(0, OpKind.ASKED))
    assert effects(matched) == [Effect.RELEASE, Effect.LATE]
    assert matched.words.tolist() == [pack_word(State.COMMITTED, 1, 0, 2, False)]


def test_case_32_check_answer_and_commit_in_one_batch():
    ops = op_array(op(0, OpKind.COMMIT, position=3, via=Via.CHECK), op(0, OpKind.COMMIT, position=3))
    matched = match(ops, np.array([0]), np.array([prepared(1, 0, 2, True)], np.uint32), np.zeros(1, np.int32), 2)
    assert ops[matched.where(Effect.RELEASE)]["via"].tolist() == [Via.CHECK]
    assert effects(matched) == [Effect.RELEASE, Effect.ALREADY]


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_case_33_log_order_decides_whatever_the_batches(cut):
    ops = [op(0, OpKind.ROLLBACK), op(0, OpKind.COMMIT, position=1), op(0, OpKind.DISCARD_MAX)]
    first = match_one(prepared(), *ops[:cut])
    second = match_one(int(first.words[0]), *ops[cut:])
    assert effects(first) + effects(second) == [Effect.ROLLBACK, Effect.CONFLICT, Effect.LATE_DISCARD]
    assert second.words.tolist() == [pack_word(State.ROLLED_BACK)]


@pytest.mark.parametrize("kind", set(OpKind) - {OpKind.MESSAGE})
def test_case_34_wrong_group_is_refused_and_the_half_stays_pending(kind):
    matched = match_one(prepared(1), op(0, kind, group_no=4), group_no=3)
    assert effects(matched) == [Effect.WRONG_GROUP]
    assert matched.words.tolist() == [prepared(1)]


def test_case_34_right_group_or_none_stated():
    assert effects(match_one(prepared(), op(0, OpKind.COMMIT, group_no=3), group_no=3)) == [Effect.RELEASE]
    assert effects(match_one(prepared(), op(0, OpKind.COMMIT, group_no=-1), group_no=3)) == [Effect.RELEASE]
    assert effects(match_one(prepared(), op(0, OpKind.COMMIT, group_no=0), group_no=3)) == [Effect.WRONG_GROUP]


@pytest.mark.parametrize("kind", set(OpKind) - {OpKind.MESSAGE})
def test_case_35_unknown_half_creates_nothing(kind):
    absent = match_one(pack_word(State.NONE), op(0, kind, group_no=5))
    assert effects(absent) == [Effect.UNKNOWN_HALF]
    assert absent.words.tolist() == [0]
    beyond = match_one(prepared(), op(1, kind), op(-1, kind), op(2**62, kind))
    assert effects(beyond) == [Effect.UNKNOWN_HALF] * 3
    assert beyond.words.tolist() == [prepared()]


def test_case_52_corrupt_illegal_and_duplicate_ops_are_counted_and_passed():
    matched = match_one(
        prepared(),
        op(0, OpKind.ROLLBACK, corrupt=1),
        op(2**50, 200, corrupt=3),
        op(0, 0),
        op(0, 9),
        op(0, 255),
        op(0, OpKind.MESSAGE, position=4),
        op(0, OpKind.COMMIT, position=5),
        op(0, OpKind.COMMIT, position=5),
    )
    assert effects(matched) == ([Effect.CORRUPT] * 2 + [Effect.ILLEGAL] * 3 + [Effect.MESSAGE, Effect.RELEASE, Effect.ALREADY])
    assert matched.counts()[Effect.CORRUPT] == 2
    assert sum(matched.counts().values()) == 8


def test_case_52_a_corrupt_op_mentions_no_half():
    ops = op_array(
        op(9, OpKind.COMMIT), op(3, OpKind.ASKED), op(9, OpKind.UNKNOWN), op(5, OpKind.COMMIT, corrupt=1), op(6, 99),
        op(7, OpKind.MESSAGE),
    )  # fmt: skip
    assert mentioned_halves(ops).tolist() == [3, 9]


@pytest.mark.parametrize("state", [State.DISCARDED_MAX, State.DISCARDED_EXPIRED])
def test_case_61_resume_reopens_with_count_0_and_a_new_stored_at(state):
    matched = match_one(pack_word(state, 15, 600, 3), op(0, OpKind.RESUME, stored_at_ms=1_900_000_123_999))
    assert effects(matched) == [Effect.RESUME]
    assert matched.words.tolist() == [prepared(0, 600)]
    assert matched.stored_at_s.tolist() == [1_900_000_123]
    assert pending_delta(matched) == 1


def test_case_61_resume_of_a_pending_half_recounts_and_leaves_the_gauge():
    matched = match_one(prepared(9, 600, 3, True), op(0, OpKind.RESUME, stored_at_ms=5_000))
    assert effects(matched) == [Effect.RECOUNT]
    assert matched.words.tolist() == [prepared(0, 600)]
    assert matched.stored_at_s.tolist() == [5]
    assert pending_delta(matched) == 0


@pytest.mark.parametrize("state", [State.COMMITTED, State.ROLLED_BACK, State.QUARANTINED])
def test_case_61_resume_after_a_final_end_is_a_conflict(state):
    matched = match_one(pack_word(state, 2), op(0, OpKind.RESUME, stored_at_ms=5_000))
    assert effects(matched) == [Effect.CONFLICT]
    assert matched.words.tolist() == [pack_word(state, 2)]
    assert matched.stored_at_s.tolist() == [-1]


def test_case_61_the_last_resume_in_log_order_sets_stored_at():
    matched = match_one(
        pack_word(State.DISCARDED_MAX),
        op(0, OpKind.RESUME, stored_at_ms=9_000),
        op(0, OpKind.DISCARD_MAX),
        op(0, OpKind.RESUME, stored_at_ms=7_000),
        op(0, OpKind.RESUME, stored_at_ms=8_000),
    )
    assert effects(matched) == [Effect.RESUME, Effect.DISCARD_MAX, Effect.RESUME, Effect.RECOUNT]
    assert matched.stored_at_s.tolist() == [8]


def test_asked_counts_the_hand_over_and_saturates():
    assert match_one(prepared(0, 7, 0), op(0, OpKind.ASKED), round_no=7).words.tolist() == [prepared(1, 7, 3, True)]
    assert match_one(prepared(254), op(0, OpKind.ASKED), op(0, OpKind.ASKED)).words.tolist() == [prepared(255, 0, 2, True)]
    full = match_one(prepared(255, 2**18 - 1, 1), op(0, OpKind.ASKED), round_no=4)
    assert full.words.tolist() == [prepared(255, 2**18 - 1, 0, True)]
    assert immunity_of(int(full.words[0])) == 2**18 - 1


@pytest.mark.parametrize("state", set(State) - {State.NONE, State.PREPARED})
@pytest.mark.parametrize("kind", [OpKind.ASKED, OpKind.UNKNOWN])
def test_asked_and_unknown_after_the_end_are_late(state, kind):
    matched = match_one(pack_word(state, 3), op(0, kind))
    assert effects(matched) == [Effect.LATE]
    assert matched.words.tolist() == [pack_word(state, 3)]


def test_a_commit_of_a_quarantined_half_leaves_a_hole_whatever_its_group():
    ops = op_array(op(0, OpKind.COMMIT, group_no=8, position=77), op(0, OpKind.ROLLBACK, group_no=8))
    quarantined = pack_word(State.QUARANTINED)
    matched = match(ops, np.array([0]), np.array([quarantined], np.uint32), np.array([-1], np.int32), 0)
    assert effects(matched) == [Effect.HOLE, Effect.LATE]
    assert ops[matched.where(Effect.HOLE)]["position"].tolist() == [77]
    assert matched.words.tolist() == [quarantined]
    assert pending_delta(matched) == 0


def test_effects_are_in_log_order_across_halves():
    kinds = [(5, OpKind.ASKED), (2, OpKind.COMMIT), (5, OpKind.COMMIT), (9, OpKind.ROLLBACK), (2, OpKind.ROLLBACK)]
    ops = op_array(*[op(half, kind, position=at) for at, (half, kind) in enumerate(kinds)])
    halves = mentioned_halves(ops)
    matched = match(ops, halves, np.full(3, prepared(), np.uint32), np.zeros(3, np.int32), 1)
    assert halves.tolist() == [2, 5, 9]
    assert matched.where(Effect.RELEASE).tolist() == [1, 2]
    assert matched.where(Effect.RELEASE, Effect.ROLLBACK).tolist() == [1, 2, 3]
    assert ops["half_offset"][matched.where(Effect.RELEASE)].tolist() == [2, 5]
    assert effects(matched)[4] is Effect.CONFLICT
    assert pending_delta(matched) == -3


def test_arguments_are_not_changed():
    words = np.array([prepared()], np.uint32)
    words.setflags(write=False)
    assert match(op_array(op(0, OpKind.COMMIT)), np.array([0]), words, np.zeros(1, np.int32), 0).words[0] != words[0]


@pytest.mark.parametrize("waves_max", [1, 2, 32])
def test_a_flood_of_ops_about_one_half_is_matched_too(monkeypatch, waves_max):
    monkeypatch.setattr(matcher, "WAVES_MAX", waves_max)
    flood = [op(0, OpKind.ASKED)] * 300 + [op(0, OpKind.UNKNOWN), op(0, OpKind.COMMIT, group_no=6)]
    flood += [op(0, OpKind.RESUME, stored_at_ms=3_000), op(1, OpKind.COMMIT), op(0, OpKind.ROLLBACK)]
    ops = np.array(flood, OP)
    matched = match(ops, np.array([0, 1]), np.full(2, prepared(), np.uint32), np.array([5, 5], np.int32), 1)
    assert matched.counts()[Effect.ASKED] == 300
    assert effects(matched)[300:] == [
        Effect.ANSWERED, Effect.WRONG_GROUP, Effect.RECOUNT, Effect.RELEASE, Effect.ROLLBACK
    ]  # fmt: skip
    assert matched.words.tolist() == [pack_word(State.ROLLED_BACK), pack_word(State.COMMITTED)]
    assert matched.stored_at_s.tolist() == [3, -1]
