"""The vectorised forms equal the scalar reference over random histories.

Volume comes from a seeded numpy generator (each run prints its seed; ESCROW_TEST_SEED repeats one), shrinking from
hypothesis. Values are drawn near the borders of the rules far more often than chance would: see `_ages_s`.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checker import decisions, matcher
from checker.decisions import Decision, Tick, check_words, count_outstanding, decide
from checker.matcher import match, mentioned_halves
from checker.policy import Policy, effective_immunity_s
from checker.reference import HalfRow, Op, PendingRow, decide_rows, match_ops
from store.records import IMMUNITY_MAX_S, OP, ROW, OpKind, State, member_words, pack_word, state_of
from store.transitions import Effect, Together
from tests.support.checker_world import decide_every, pending_delta

SEED = int(os.environ.get("ESCROW_TEST_SEED", "0")) or int(np.random.SeedSequence().generate_state(1)[0])
T0_S = 1_800_000_000
TABLES, BATCHES, LIVES = 3_500, 3_500, 4_000  # at least 10,000 histories together


@pytest.fixture
def rng():
    print(f"repeat with ESCROW_TEST_SEED={SEED}")  # shown when the test fails
    return np.random.default_rng(SEED)


@pytest.fixture
def small_chunks(monkeypatch):
    """Borders of chunks and waves fall inside of small histories."""
    monkeypatch.setattr(decisions, "CHUNK_ROWS", 8)
    monkeypatch.setattr(matcher, "WAVES_MAX", 3)


# --- generators ------------------------------------------------------------------------------------------------------
def _policy(rng):
    retention_s = int(rng.choice([20, 60, 3600, 72 * 3600]))
    return Policy(
        transaction_timeout_s=int(rng.choice([0, 1, 6, 19])),
        check_count_max=int(rng.choice([1, 2, 15, 255])),
        check_interval_s=int(rng.choice([1, 5, 30])),
        retention_s=retention_s,
        checks_enabled=bool(rng.random() < 0.85),
        standby=bool(rng.random() < 0.03),
        check_at_least_interval_s=int(rng.choice([0, 0, 0, 15])),
        outstanding_per_group_max=int(rng.choice([1, 2, 5, 10_000])),
    )


def _tick(rng):
    now_ms = T0_S * 1000 + int(rng.integers(0, 1000))
    back_ms = int(rng.choice([0, 1, 999, 1000, 5_000, 30_000, int(rng.integers(0, 40_000))]))
    return Tick(
        now_ms=now_ms,
        round_no=int(rng.integers(0, 9)),
        round_start_ms=now_ms - back_ms,
        ops_caught_up=bool(rng.random() < 0.95),
        discards_allowed=bool(rng.random() < 0.85),
        leapt_s=int(rng.choice([0, 0, 1, 1000, 10**6])),
    )


def _ages_s(rng, immunities_s, policy, tick):
    """Ages of which three in four stand on, or one second beside, a border of some rule."""
    borders = [
        [effective_immunity_s(int(immunity_s), policy) for immunity_s in immunities_s],
        [policy.retention_s + tick.leapt_s * int(rng.integers(0, 2))] * len(immunities_s),
        [tick.now_ms // 1000 - tick.round_start_ms // 1000] * len(immunities_s),
        rng.choice([-1000, 0, 3, 50, 1000, 10**6, T0_S, T0_S - 2**32 + 1], len(immunities_s)),
    ]
    picked = np.array(borders)[rng.integers(0, 4, len(immunities_s)), np.arange(len(immunities_s))]
    ages_s = picked + rng.integers(-1, 2, len(immunities_s))
    return np.clip(ages_s, T0_S - 2**32 + 1, T0_S)


def _table(rng, policy, tick, n):
    """n rows: mostly PREPARED, some with every other code that three bits can hold."""
    immunity_pool = [0, 0, 1, policy.timeout_s, policy.timeout_s + 1, policy.retention_s, IMMUNITY_MAX_S]
    immunities_s = np.minimum(rng.choice(immunity_pool, n), IMMUNITY_MAX_S)
    count_pool = [0, 0, 0, 1, policy.check_count_max - 1, policy.check_count_max, 255]
    fields = zip(
        np.where(rng.random(n) < 0.8, int(State.PREPARED), rng.integers(0, 8, n)).tolist(),
        rng.choice(count_pool, n).tolist(),
        immunities_s.tolist(),
        rng.integers(0, 4, n).tolist(),
        (rng.random(n) < 0.3).tolist(),
        strict=True,
    )
    rows = np.zeros(n, ROW)
    rows["word"] = [pack_word(*each) for each in fields]
    rows["stored_at_s"] = T0_S - _ages_s(rng, immunities_s, policy, tick)
    rows["group_no"] = rng.choice([-1, 0, 0, 1, 1, 2, 3, 2**31 - 1], n)
    return rows


def _ops(rng, n, halves, now_s):
    """n ops over few halves, so that most halves get several; every field may be wrong."""
    ops = np.zeros(n, OP)
    ops["op_offset"] = np.arange(n)
    ops["half_offset"] = np.where(rng.random(n) < 0.95, rng.integers(0, max(halves, 1), n), rng.integers(-2, 99, n))
    ops["kind"] = rng.choice([1, 1, 2, 2, 3, 4, 5, 5, 6, 6, 6, 7, 7, 8, 0, 9], n)
    ops["group_no"] = rng.choice([-1, -1, -1, 0, 0, 1], n)
    ops["position"] = rng.integers(-1, 1 << 62, n)
    ops["stored_at_ms"] = now_s * 1000 + rng.integers(0, 5_000, n)
    ops["corrupt"] = rng.random(n) < 0.03
    return ops


def _with_members(rng, rows):
    """Some rows become members of one before them."""
    for at in range(1, len(rows)):
        if rng.random() < 0.4:
            rows["word"][at] = member_words(int(rng.integers(1, at + 1)))
    return rows


def _with_frames(rng, ops, rows):
    """Some ops become frames of several: a head and its members, heads jointly with theirs, or what is left of a corrupt one."""
    parts, at = [], 0
    while at < len(ops):
        if rng.random() < 0.8 or not len(rows):
            parts.append(ops[at : at + 1])
            at += 1
            continue
        joint, lost = rng.random() < 0.6, rng.random() < 0.2
        heads = rng.permutation(len(rows))[: rng.integers(1, 4) if joint else 1].tolist()
        items = [item for head in heads for item in _items(rng, rows, head) if not item[1] or item[0] not in heads]
        items = [item for number, item in enumerate(items) if item[0] not in [half for half, _ in items[:number]]]
        frame = np.repeat(ops[at : at + 1], len(items))
        frame["half_offset"], frame["follows"] = zip(*items, strict=True)
        frame["kind"], frame["corrupt"] = rng.choice([1, 1, 2]), lost
        if joint or (lost and len(items) > 1):
            frame["together"] = Together.OTHER
            frame["together"][0] = Together.FIRST
        if lost:
            frame["follows"] = 0
        parts.append(frame)
        at += len(frame)
    return np.concatenate(parts) if parts else ops


def _items(rng, rows, head):
    words = rows["word"]
    members = [at for at in range(head + 1, len(rows)) if state_of(words[at]) == State.MEMBER and words[at] >> 3 == at - head]
    spoilt = [at for at in range(head + 1, len(rows)) if rng.random() < 0.05]
    return [(head, 0), *[(at, at - head) for at in sorted({*members, *spoilt})]]


# --- comparisons -----------------------------------------------------------------------------------------------------
def _pending_rows(rows):
    return [PendingRow(*each) for each in rows[["stored_at_s", "group_no", "word"]].tolist()]


def _assert_decides_alike(rows, policy, live, tick):
    """decide against the reference; returns the reference's decisions."""
    live_groups = set(np.flatnonzero(live).tolist())
    expected = decide_rows(_pending_rows(rows), policy, live_groups, tick)

    acting = {at: decision for at, decision in expected.items() if decision >= Decision.CHECK}
    counted = count_outstanding(rows, tick.round_no, len(live))
    for outstanding in (None, counted):  # counted on the way, or beforehand
        decided = decide(rows, policy, live, tick, outstanding)
        assert dict(zip(decided.index.tolist(), decided.decision.tolist(), strict=True)) == acting
        assert (np.diff(decided.index) > 0).all()
        if not decided.looked:
            assert set(expected.values()) <= {Decision.WAIT}
            continue
        by_decision = Counter(expected.values())
        assert decided.counts.tolist() == [by_decision[decision] for decision in Decision]
        checks = rows["group_no"][[at for at, what in expected.items() if what is Decision.CHECK]]
        assert (decided.outstanding_by_group - counted).tolist() == [int((checks == group).sum()) for group in range(len(live))]
    return expected


def _assert_matches_alike(ops, rows, round_no):
    """match against the reference; returns the rows afterwards, with words and stored_at_s written."""
    known = {at: HalfRow(word, group_no, stored_at_s) for at, (stored_at_s, group_no, word) in enumerate(_pending_rows(rows))}
    listed = ops[["half_offset", "kind", "group_no", "stored_at_ms", "corrupt", "follows", "together"]].tolist()
    after, effects = match_ops([Op(*each) for each in listed], known, round_no)

    halves = mentioned_halves(ops)
    halves = halves[(halves >= 0) & (halves < len(rows))]
    matched = match(ops, halves, rows["word"][halves], rows["group_no"][halves], round_no)
    assert matched.effect.tolist() == effects
    new = rows.copy()
    new["word"][halves] = matched.words
    reset = matched.stored_at_s >= 0
    new["stored_at_s"][halves[reset]] = matched.stored_at_s[reset]
    assert _pending_rows(new) == [PendingRow(row.stored_at_s, row.group_no, row.word) for row in after.values()]

    pending_before = int((state_of(rows["word"]) == State.PREPARED).sum())
    pending_after = int((state_of(new["word"]) == State.PREPARED).sum())
    assert pending_after - pending_before == pending_delta(matched)
    assert matched.counts() == {effect: effects.count(effect) for effect in Effect}
    return new, matched


# --- volume ----------------------------------------------------------------------------------------------------------
def test_decisions_equal_the_reference_over_random_tables(rng, small_chunks):
    seen: Counter[Decision] = Counter()
    for number in range(TABLES):
        policy, tick = _policy(rng), _tick(rng)
        rows = _table(rng, policy, tick, int(rng.integers(0, 40)))
        live = rng.random(int(rng.integers(0, 4))) < 0.8
        expected = _assert_decides_alike(rows, policy, live, tick)
        if number % 10 == 0:  # which rows wait and which are held; otherwise only how many
            assert decide_every(rows, policy, live, tick) == expected
        seen.update(expected.values())
    assert min(seen[decision] for decision in Decision) > TABLES / 10, f"a decision is hardly ever met: {seen}"


def test_matches_equal_the_reference_over_random_batches(rng, small_chunks):
    seen: Counter[int] = Counter()
    for _ in range(BATCHES):
        policy, tick = _policy(rng), _tick(rng)
        rows = _table(rng, policy, tick, int(rng.integers(0, 8)))
        rows["group_no"] = np.clip(rows["group_no"], -1, 1)
        ops = _ops(rng, int(rng.integers(0, 30)), len(rows), T0_S)
        if rng.random() < 0.5:
            rows = _with_members(rng, rows)
            ops = _with_frames(rng, ops, rows)
        seen.update(_assert_matches_alike(ops, rows, tick.round_no)[1].effect.tolist())
    assert min(seen[effect] for effect in Effect) > BATCHES / 50, f"an effect is hardly ever met: {seen}"


def test_whole_lives_equal_the_reference(rng, small_chunks):
    """Halves arrive, ops are settled, rounds pass, decisions are marked: step by step the same, and never
    a half asked twice in a round, released twice, or checked beyond the maximum."""
    for _ in range(LIVES):
        policy = replace(_policy(rng), standby=False)
        _live_one_history(rng, policy, steps=_STEPS[rng.integers(len(_STEPS))])


_FRESH_WORDS = np.array([pack_word(State.PREPARED, 0, s) for s in (0, 0, 7, 25)], np.uint32)
_STEPS = (2, 2, 2, 3, 3, 10)


def _live_one_history(rng, policy, steps):
    now_s, rows = T0_S, np.empty(0, ROW)
    asked_in: set[tuple[int, int]] = set()
    released: Counter[int] = Counter()
    for _ in range(steps):
        round_no = (now_s - T0_S) // policy.check_interval_s
        tick = Tick(now_s * 1000, round_no, (T0_S + round_no * policy.check_interval_s) * 1000, True)
        fresh = np.zeros(int(rng.integers(0, 5)), ROW)
        fresh["word"] = _FRESH_WORDS[rng.integers(0, len(_FRESH_WORDS), len(fresh))]
        fresh["group_no"] = rng.integers(-1, 4, len(fresh))
        fresh["stored_at_s"] = now_s - rng.integers(0, 3, len(fresh))
        rows = np.concatenate([rows, fresh])
        ops = _ops(rng, int(rng.integers(0, 6)), len(rows), now_s)
        rows, matched = _assert_matches_alike(ops, rows, round_no)
        resumed = ops["half_offset"][matched.where(Effect.RESUME, Effect.RECOUNT)].tolist()
        asked_in -= {(half, round_no) for half in resumed}  # a new life
        released.update(ops["half_offset"][matched.where(Effect.RELEASE)].tolist())

        decided = _assert_decides_alike(rows, policy, np.array([True, True, False]), tick)
        acting = [at for at, decision in decided.items() if decision >= Decision.CHECK]
        for at in acting:
            assert (at, round_no) not in asked_in, "asked twice in one round"
            asked_in.add((at, round_no))
        rows["word"][acting] = check_words(rows["word"][acting], round_no)
        now_s += int(rng.choice([0, 1, policy.check_interval_s - 1, policy.check_interval_s, 40]))
    assert all(times == 1 for times in released.values())


# --- shrinking -------------------------------------------------------------------------------------------------------
_words = st.builds(
    pack_word,
    st.sampled_from([1, 1, 1, 0, 2, 3, 4, 5, 6, 7]),
    st.sampled_from([0, 1, 2, 14, 15, 254, 255]),
    st.sampled_from([0, 5, 6, 7, 99, 100, 101, IMMUNITY_MAX_S]),
    st.integers(0, 3),
    st.booleans(),
)
_rows = st.tuples(st.sampled_from([-1, 0, 1, 5, 6, 7, 8, 29, 30, 31, 99, 100, 101, 10**6]), st.sampled_from([-1, 0, 1, 2]), _words)
_ops_strategy = st.tuples(
    st.integers(-1, 4), st.integers(0, 9), st.integers(-1, 1), st.integers(0, 9_999), st.sampled_from([0, 0, 0, 0, 1])
)


def _filled(rows):
    table = np.zeros(len(rows), ROW)
    for at, (age_s, group_no, word) in enumerate(rows):
        table[at] = (0, 0, T0_S - age_s, group_no, word)
    return table


@settings(max_examples=300, deadline=None)
@given(
    rows=st.lists(_rows, max_size=12),
    policy=st.builds(
        Policy,
        transaction_timeout_s=st.sampled_from([0, 6]),
        check_count_max=st.sampled_from([1, 15]),
        retention_s=st.sampled_from([30, 100]),
        checks_enabled=st.booleans(),
        outstanding_per_group_max=st.sampled_from([1, 2, 9]),
    ),
    live=st.lists(st.booleans(), max_size=3),
    tick=st.builds(
        Tick,
        now_ms=st.just(T0_S * 1000 + 500),
        round_no=st.integers(0, 5),
        round_start_ms=st.sampled_from([0, 1, 999, 5_000, 7_999, 8_000]).map(lambda ms: T0_S * 1000 + 500 - ms),
        ops_caught_up=st.just(True),
        discards_allowed=st.booleans(),
        leapt_s=st.sampled_from([0, 1, 8]),
    ),
)
def test_decisions_equal_the_reference_shrinking(rows, policy, live, tick):
    table, alive = _filled(rows), np.array(live, bool)
    assert decide_every(table, policy, alive, tick) == _assert_decides_alike(table, policy, alive, tick)


@settings(max_examples=300, deadline=None)
@given(rows=st.lists(_rows, max_size=4), ops=st.lists(_ops_strategy, max_size=12), round_no=st.integers(0, 5))
def test_matches_equal_the_reference_shrinking(rows, ops, round_no):
    array = np.zeros(len(ops), OP)
    for at, (half_offset, kind, group_no, stored_at_ms, corrupt) in enumerate(ops):
        array[at] = (at, half_offset, -1, stored_at_ms, group_no, 64, kind, 0, corrupt, 0, 0)
    _assert_matches_alike(array, _filled(rows), round_no)


@settings(max_examples=200, deadline=None)
@given(ops=st.lists(_ops_strategy, max_size=12), cut=st.integers(0, 12), word=_words)
def test_batch_boundaries_change_no_outcome(ops, cut, word):
    """One batch or two: the same effects, the same rows."""
    rows = _filled([(10, 0, word)] * 4)
    array = np.zeros(len(ops), OP)
    for at, (half_offset, kind, group_no, stored_at_ms, corrupt) in enumerate(ops):
        array[at] = (at, half_offset, -1, stored_at_ms, group_no, 64, kind, 0, corrupt, 0, 0)
    whole, in_one = _assert_matches_alike(array, rows, 1)
    halfway, first = _assert_matches_alike(array[:cut], rows, 1)
    end, second = _assert_matches_alike(array[cut:], halfway, 1)
    assert end.tobytes() == whole.tobytes()
    assert first.effect.tolist() + second.effect.tolist() == in_one.effect.tolist()


def test_kinds_and_states_are_those_the_tables_were_written_for():
    assert [int(kind) for kind in OpKind] == list(range(1, 9))
    assert [int(state) for state in State] == list(range(8))
