"""Decisions over pending rows, by the case numbers of docs/cases.md; whole lives are simulated round by round."""

from __future__ import annotations

import numpy as np
import pytest

from checker import decisions
from checker.decisions import Decision, Tick, check_words, count_outstanding, decide
from checker.policy import Policy
from store.records import ROW, OpKind, State, ask_round_of, outstanding_of, pack_word
from store.transitions import Effect
from tests.support.checker_world import T0_S, World, decide_age, decide_every, op, positions_of, prepared, row_array, tick_at

WAIT, HOLD, CHECK = Decision.WAIT, Decision.HOLD, Decision.CHECK
DISCARD_MAX, DISCARD_EXPIRED = Decision.DISCARD_MAX, Decision.DISCARD_EXPIRED
LIVE = np.array([True])


def test_case_05_unknown_changes_no_state():
    world = World()
    half = world.half()
    world.settle(op(half, OpKind.UNKNOWN))
    assert world.state(half) is State.PREPARED
    assert world.check_count(half) == 0


@pytest.mark.parametrize(("immunity_s", "grace_s"), [(1, 6), (5, 6), (0, 6), (7, 7), (100, 100)])
def test_case_09_immunity_decides_the_first_check(immunity_s, grace_s):
    word = prepared(immunity_s=immunity_s)
    assert decide_age(grace_s, word=word) is WAIT
    assert decide_age(grace_s + 1, word=word) is CHECK


def test_case_10_count_at_max_is_one_discard_and_no_check():
    for count in (15, 16, 255):
        assert decide_age(1000, word=prepared(count, ask_round=0), round_no=2) is DISCARD_MAX
    assert decide_age(1000, word=prepared(14, ask_round=0), round_no=2) is CHECK


@pytest.mark.parametrize("outstanding", [False, True])
def test_case_10_no_discard_before_a_whole_interval_has_passed(outstanding):
    word = prepared(15, ask_round=1, outstanding=outstanding)
    assert [decide_age(1000, word=word, round_no=r) for r in (1, 2, 3, 4)] == [WAIT, WAIT, DISCARD_MAX, DISCARD_MAX]


def test_case_11_old_half_without_op_is_checked_once_a_round():
    world = World()
    half = world.half(age_s=100)
    world.now_s += 1
    checked = [positions_of(world.tick(), CHECK)]
    for _ in range(28):  # to the end of round 0
        world.now_s += 1
        checked.append(positions_of(world.tick(), CHECK))
    assert checked == [[half]] + [[]] * 28
    world.now_s += 1  # round 1 begins; the request, never handed over, has lapsed
    assert positions_of(world.tick(), CHECK) == [half]
    assert world.check_count(half) == 0


def test_case_15_empty_table():
    for rows in (np.empty(0, ROW), np.zeros(5, ROW)):
        decided = decide(rows, Policy(), LIVE, tick_at(T0_S))
        assert len(decided.index) == len(decided.decision) == 0
        assert decided.counts.sum() == 0
        assert decided.looked
        assert decide_every(rows, Policy(), LIVE, tick_at(T0_S)) == {}
    assert decide(np.zeros(5, ROW), Policy(), np.zeros(0, bool), tick_at(T0_S)).counts.sum() == 0


def test_case_20_no_live_member_no_request():
    assert decide_age(100, live=(True,)) is CHECK
    assert decide_age(100, live=(False,)) is HOLD
    assert decide_age(100, group_no=1, live=(False, True)) is CHECK
    for group_no in (-1, 1, 2, 2**31 - 1, -(2**31)):  # outside of the presence file
        assert decide_age(100, group_no=group_no, live=(True,)) is HOLD
    assert decide_age(100, live=()) is HOLD


def test_case_20_rows_of_groups_without_a_live_member_are_held():
    rows = row_array(*[(T0_S - 100, group_no, prepared()) for group_no in (0, 1, 1, 2, 7, -1)])
    asked = rows, Policy(), np.array([True, False, False]), tick_at(T0_S)
    assert list(decide_every(*asked).values()) == [CHECK, HOLD, HOLD, HOLD, HOLD, HOLD]
    decided = decide(*asked)
    assert decided.counts.tolist() == [0, 5, 1, 0, 0]


def test_case_31_an_end_stops_the_checks():
    world = World()
    half = world.half(age_s=100)
    world.now_s += 1
    world.hand_over(world.tick())  # asked, no answer yet
    assert world.check_count(half) == 1
    world.settle(op(half, OpKind.COMMIT, position=5))
    world.live_through(300)
    assert len(world.requests) == 1
    assert not world.proposals


def test_case_38_age_equal_to_timeout_is_not_checked():
    assert decide_age(5) is WAIT
    assert decide_age(6) is WAIT
    assert decide_age(7) is CHECK


def test_case_38_ages_are_whole_seconds_both_sides_floored():
    rows = row_array((T0_S - 7, 0, prepared()))
    early = Tick(T0_S * 1000 - 1, 2, T0_S * 1000, True)
    due = Tick(T0_S * 1000, 2, T0_S * 1000, True)
    assert decide(rows, Policy(), LIVE, early).counts[WAIT] == 1
    assert decide(rows, Policy(), LIVE, due).counts[CHECK] == 1


def test_case_38_the_3x_key_is_a_further_lower_bound():
    policy = Policy(check_at_least_interval_s=60)
    assert [decide_age(age_s, policy) for age_s in (7, 60, 61)] == [WAIT, WAIT, CHECK]


def test_case_39_long_immunity_costs_no_attempt():
    world = World()
    half = world.half(immunity_s=600)
    world.live_through(600 + 20 * 30)
    asked_s = [at_s - T0_S for at_s, _ in world.requests]
    assert asked_s[0] == 601
    assert len(asked_s) == 15
    assert asked_s[1:] == [630 + 30 * k for k in range(14)]  # at every round's begin
    assert world.proposals == [(T0_S + 630 + 30 * 13 + 60, half, DISCARD_MAX)]


def test_case_40_commit_inside_immunity_after_several_rounds():
    world = World()
    half = world.half(immunity_s=600)
    world.live_through(300)
    matched = world.settle(op(half, OpKind.COMMIT, position=9))
    assert matched.where(Effect.RELEASE).tolist() == [0]
    world.live_through(900)
    assert world.requests == []
    assert world.check_count(half) == 0


def test_case_41_immunity_below_timeout_follows_the_timeout():
    policy = Policy(transaction_timeout_s=20)
    assert decide_age(20, policy, word=prepared(immunity_s=3)) is WAIT
    assert decide_age(21, policy, word=prepared(immunity_s=3)) is CHECK


def test_case_42_huge_immunity_ends_with_retention():
    policy = Policy(retention_s=1000)
    word = prepared(immunity_s=10**9)
    assert decide_age(1000, policy, word=word) is WAIT
    assert decide_age(1001, policy, word=word) is DISCARD_EXPIRED


def test_case_43_only_the_stored_time_counts():
    """A producer's clock has no way in: a row holds no born time. A stored time ahead of now is simply not due."""
    assert "born_at" not in " ".join(ROW.names or ())
    for ahead_s in (1, 3600):
        assert decide_age(-ahead_s) is WAIT
        assert decide_age(-ahead_s, word=prepared(3, ask_round=0)) is WAIT
    assert decide(row_array((2**32 - 1, 0, prepared())), Policy(), LIVE, tick_at(T0_S)).counts[WAIT] == 1


def test_case_44_nobody_online_costs_no_attempt_until_retention():
    world = World(Policy(retention_s=2000), live=(False,))
    half = world.half()
    world.live_through(2000, step_s=5)
    assert world.requests == []
    assert world.check_count(half) == 0
    assert world.state(half) is State.PREPARED
    world.live_through(5)
    assert [decision for _, _, decision in world.proposals] == [DISCARD_EXPIRED]
    assert world.state(half) is State.DISCARDED_EXPIRED


def test_case_45_member_returns_and_is_asked():
    world = World(live=(False,))
    half = world.half()
    world.live_through(600)
    world.live[0] = True
    world.live_through(1, answer=OpKind.COMMIT)
    assert world.state(half) is State.COMMITTED
    assert world.requests == [(T0_S + 601, half)]


def test_case_47_unknown_for_ever_is_exactly_max_checks_and_one_discard():
    world = World()
    half = world.half()
    world.live_through(40 * 30, answer=OpKind.UNKNOWN)
    asked_s = [at_s for at_s, _ in world.requests]
    assert len(asked_s) == 15
    assert len({(at_s - T0_S) // 30 for at_s in asked_s}) == 15  # one a round
    assert [decision for _, _, decision in world.proposals] == [DISCARD_MAX]
    assert world.proposals[0][0] - asked_s[-1] >= 30
    assert world.state(half) is State.DISCARDED_MAX
    assert world.effects[Effect.DISCARD_MAX] == 1


def test_case_47_a_lost_proposal_is_repeated_only_after_it_lapsed():
    world = World()
    world.rows = row_array((T0_S - 900, 0, prepared(15, ask_round=2)))  # two rounds ago, seen from round 0
    proposed_s = []
    for second in range(200):
        world.now_s = T0_S + second
        if positions_of(world.tick(), DISCARD_MAX):
            proposed_s.append(second)
    assert proposed_s == [0, 60, 120, 180]


def test_case_49_older_than_retention_is_expired_with_its_own_reason():
    policy = Policy(retention_s=100)
    assert decide_age(100, policy) is CHECK
    assert decide_age(101, policy) is DISCARD_EXPIRED
    assert decide_age(101, policy, live=(False,)) is DISCARD_EXPIRED
    assert decide_age(101, policy, word=prepared(15)) is DISCARD_MAX  # rule 2 stands before rule 3
    assert decide_age(101, Policy(retention_s=100, checks_enabled=False)) is DISCARD_EXPIRED
    assert decide_age(101, Policy(retention_s=100, checks_enabled=False), word=prepared(15)) is DISCARD_EXPIRED


def test_case_49_one_record_only():
    world = World(Policy(retention_s=100), live=(False,))
    world.half()
    world.live_through(600)
    assert len(world.proposals) == 1


@pytest.mark.parametrize("distance", [0, 1, 2, 3])
def test_case_49_no_expiry_right_after_a_hand_over(distance):
    word = prepared(1, ask_round=1)
    expected = WAIT if distance < 2 else DISCARD_EXPIRED
    assert decide_age(101, Policy(retention_s=100), word=word, round_no=1 + distance) is expected


def test_case_50_no_check_while_ops_are_still_to_be_read():
    assert decide_age(100) is CHECK
    assert decide_age(100, ops_caught_up=False) is WAIT
    assert decide_age(10**6, ops_caught_up=False) is WAIT
    rows = row_array((T0_S - 100, 0, prepared()))
    assert decide_every(rows, Policy(), LIVE, tick_at(T0_S, ops_caught_up=False)) == {0: WAIT}


def test_case_55_crash_in_a_round_repeats_no_attempt():
    """Whatever was redone after a crash: the count comes from ASKED ops alone, and each is read once."""
    world = World()
    half = world.half(age_s=100)
    world.now_s += 1
    before = world.rows.copy()
    world.tick()
    world.rows = before  # crashed before the mark was durable
    assert positions_of(world.tick(), CHECK) == [half]
    assert world.check_count(half) == 0
    world.settle(op(half, OpKind.ASKED))
    assert positions_of(world.tick(), CHECK) == []
    assert world.check_count(half) == 1


def test_case_57_one_old_pending_head_delays_nobody():
    ages = [250_000, 100, 50, 20, 6]
    rows = row_array(*[(T0_S - age_s, at, prepared()) for at, age_s in enumerate(ages)])
    decided = decide(rows, Policy(), np.array([False, True, True, True, True]), tick_at(T0_S))
    assert positions_of(decided, CHECK) == [1, 2, 3]
    assert decided.counts[HOLD] == 1


def test_case_61_a_resumed_half_is_asked_from_the_start_again():
    world = World(Policy(check_count_max=2))
    half = world.half()
    world.live_through(300)
    assert world.state(half) is State.DISCARDED_MAX
    world.settle(op(half, OpKind.RESUME, stored_at_ms=world.now_s * 1000))
    resumed_s = world.now_s
    world.live_through(300)
    assert [at_s for at_s, _ in world.requests if at_s <= resumed_s + 6] == [at_s for at_s, _ in world.requests[:2]]
    assert len(world.requests) == 4
    assert len(world.proposals) == 2


def test_case_65_groups_go_by_number_so_equal_hashes_never_meet():
    """ "Aa" and "BB" have one Java hash; here they are two numbers of the dictionary."""
    aa, bb = 0, 1
    rows = row_array((T0_S - 100, aa, prepared()), (T0_S - 100, bb, prepared()))
    assert decide_every(rows, Policy(), np.array([True, False]), tick_at(T0_S)) == {0: CHECK, 1: HOLD}


def test_case_67_a_standby_decides_nothing():
    policy = Policy(standby=True)
    for age_s in (100, 10**6):
        assert decide_age(age_s, policy) is WAIT
    assert decide_age(1000, policy, word=prepared(15)) is WAIT
    rows = row_array((T0_S - 100, 0, prepared()))
    assert decide_every(rows, policy, LIVE, tick_at(T0_S)) == {0: WAIT}
    assert not decide(rows, policy, LIVE, tick_at(T0_S)).looked


# --- rules without a case number --------------------------------------------------------------------------------------
def test_rule_4_a_half_of_this_round_waits_for_the_next():
    policy = Policy(transaction_timeout_s=0)
    rows = row_array(*[(T0_S - 10 + s, 0, prepared()) for s in (-1, 0, 1)])
    start_ms = (T0_S - 10) * 1000
    for ms in (0, 1, 500, 999):  # a half stored in the second in which the round begins may be younger than the round
        tick = Tick(T0_S * 1000, 2, start_ms + ms, True)
        assert positions_of(decide(rows, policy, LIVE, tick), CHECK) == [0]


def test_checks_disabled_asks_nobody_and_discards_nobody_for_its_count():
    policy = Policy(checks_enabled=False)
    assert decide_age(100, policy) is WAIT
    assert decide_age(100, policy, live=(False,)) is WAIT
    assert decide_age(100, policy, word=prepared(15)) is WAIT


def test_no_discard_while_wall_time_has_left_monotonic_time():
    assert decide_age(10**6, discards_allowed=False) is WAIT
    assert decide_age(1000, word=prepared(15), discards_allowed=False) is WAIT
    assert decide_age(100, discards_allowed=False) is CHECK


@pytest.mark.parametrize(("distance", "expected"), [(0, WAIT), (1, CHECK), (2, CHECK), (3, CHECK), (4, WAIT), (5, CHECK)])
@pytest.mark.parametrize("word", [prepared(1, ask_round=3), prepared(0, ask_round=3, outstanding=True)])
def test_at_most_once_a_round_and_the_wrap_costs_one_round(word, distance, expected):
    assert decide_age(100, word=word, round_no=3 + distance) is expected


def test_a_fresh_row_is_not_taken_for_one_asked_in_round_0():
    assert decide_age(100, word=prepared(0, ask_round=0), round_no=4) is CHECK


def test_the_bound_takes_the_oldest_first_and_counts_what_is_outstanding():
    policy = Policy(outstanding_per_group_max=3)
    due, asked = prepared(), prepared(1, ask_round=2, outstanding=True)
    answered, lapsed = prepared(1, ask_round=2), prepared(1, ask_round=1, outstanding=True)
    words = [(0, due), (1, due), (0, lapsed), (0, due), (0, answered), (0, asked), (1, due)]
    rows = row_array(*[(T0_S - 100, group_no, word) for group_no, word in words])
    live = np.array([True, True])
    decided = decide(rows, policy, live, tick_at(T0_S))
    assert positions_of(decided, CHECK) == [0, 1, 2, 6]
    assert decided.counts.tolist() == [3, 0, 4, 0, 0]
    assert decided.outstanding_by_group.tolist() == [3, 2]
    assert count_outstanding(rows, 2, 2).tolist() == [1, 0]
    given = decide(rows, policy, live, tick_at(T0_S), np.array([3, 2]))
    assert positions_of(given, CHECK) == [1]
    assert positions_of(decide(rows, policy, live, tick_at(T0_S), np.array([7])), CHECK) == [1, 6]


def test_the_bound_is_exact_across_chunks_and_slices(monkeypatch):
    rng = np.random.default_rng(7)
    rows = row_array(*[(T0_S - 100, int(g), prepared()) for g in rng.integers(0, 3, 300)])
    live, policy, tick = np.ones(3, bool), Policy(outstanding_per_group_max=40), tick_at(T0_S)
    expected = sorted(at for g in range(3) for at in np.flatnonzero(rows["group_no"] == g)[:40].tolist())
    for chunk_rows in (1, 7, 64, 1 << 17):
        monkeypatch.setattr(decisions, "CHUNK_ROWS", chunk_rows)
        assert decide(rows, policy, live, tick).index.tolist() == expected
    outstanding, found = count_outstanding(rows, 2, 3), []
    for start in range(0, 300, 50):  # file by file, as a big table is decided
        decided = decide(rows[start : start + 50], policy, live, tick, outstanding)
        outstanding = decided.outstanding_by_group
        found += (decided.index + start).tolist()
    assert found == expected


def test_only_prepared_rows_are_decided():
    rows = row_array(*[(T0_S - 10**6, 0, pack_word(state)) for state in State])
    assert decide(rows, Policy(), LIVE, tick_at(T0_S)).index.tolist() == [int(State.PREPARED)]


def test_neither_rows_nor_arguments_are_changed():
    rows = row_array((T0_S - 100, 0, prepared()), (T0_S - 100, 0, prepared(1, 0, 2, True)))
    rows.setflags(write=False)
    outstanding = np.array([1])
    decide(rows, Policy(), LIVE, tick_at(T0_S), outstanding)
    decide(rows, Policy(), LIVE, tick_at(T0_S))
    assert outstanding.tolist() == [1]


def test_a_strided_view_is_decided_like_its_copy():
    rows = row_array(*[(T0_S - 10 * at, at % 2, prepared()) for at in range(20)])
    view = rows[::3]
    assert decide(view, Policy(), LIVE, tick_at(T0_S)).index.tolist() == [at for at in range(7) if 3 * at % 2 == 0 and 30 * at > 6]


def test_check_words_mark_the_round_and_keep_the_rest():
    words = np.array([prepared(3, 77, 1), prepared(0, 0, 3, True), prepared(255, 2**18 - 1, 0)], np.uint32)
    marked = check_words(words, 6)
    assert marked.dtype == np.uint32
    assert marked.tolist() == [prepared(3, 77, 2, True), prepared(0, 0, 2, True), prepared(255, 2**18 - 1, 2, True)]
    assert ask_round_of(marked).tolist() == [2, 2, 2]
    assert outstanding_of(marked).tolist() == [1, 1, 1]
    assert words.tolist()[0] == prepared(3, 77, 1)
