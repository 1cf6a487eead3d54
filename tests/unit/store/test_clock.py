"""Trusted time: each state and each way out of it, and the files that processes share it by."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import pytest

from store.clock import ANCHOR_EVERY_MS, LEAPS_MAX, ClockState, Rules
from store.guarded_clock import ALERT_FILE, STATE_FILE, GuardedClock, read_state
from store.io import disk
from tests.support.hand_clock import START_MS, HandClock

HOUR_S, DAY_S = 3_600, 86_400
DAY_MS = DAY_S * 1000


@pytest.fixture
def source():
    return HandClock()


@pytest.fixture
def clock(source, tmp_path):
    return GuardedClock(source, tmp_path)


def state_in(tmp_path) -> ClockState:
    found = read_state(tmp_path)
    assert found is not None
    return found


def confirm(tmp_path):
    (tmp_path / ALERT_FILE).unlink()


def run(clock, source, seconds, step_s=10):
    for _ in range(int(seconds / step_s)):
        source.advance(step_s)
        clock.look()


def test_time_passes(clock, source):
    source.advance(100)
    assert clock.now_ms() == clock.elapsed_ms() == clock.wall_ms() == START_MS + 100_000
    assert clock.deletes_allowed()


@pytest.mark.parametrize("jump_s", [61, HOUR_S, 365 * DAY_S, -61, -HOUR_S, -365 * DAY_S])
def test_a_jump_moves_no_time_stops_deletes_and_is_over_when_the_clock_is_back(clock, source, tmp_path, jump_s):
    source.advance(10)
    source.jump(jump_s)
    assert clock.now_ms() == START_MS + 10_000, "even before the first look"
    assert not clock.deletes_allowed()
    assert clock.alert
    assert json.loads((tmp_path / ALERT_FILE).read_text())["drift_ms"] == jump_s * 1000
    run(clock, source, 2 * HOUR_S, 60)
    assert clock.now_ms() == clock.elapsed_ms() == START_MS + 10_000 + 2 * HOUR_S * 1000
    assert clock.alert
    source.jump(-jump_s)
    assert clock.deletes_allowed()
    assert not clock.alert
    assert not (tmp_path / ALERT_FILE).exists()


@pytest.mark.parametrize("jump_s", [4 * DAY_S, -4 * DAY_S])
def test_confirmed_the_wall_clock_counts_and_what_elapsed_does_not_change(clock, source, tmp_path, jump_s):
    source.jump(jump_s)
    assert not clock.deletes_allowed()
    source.advance(30)
    confirm(tmp_path)
    assert clock.deletes_allowed()
    assert clock.now_ms() == source.wall_ms
    assert clock.elapsed_ms() == START_MS + 30_000


def test_a_leap_forth_is_no_age(clock, source, tmp_path):
    stored_ms = clock.now_ms()
    source.jump(4 * DAY_S)
    clock.look()
    confirm(tmp_path)
    clock.look()
    after_ms = clock.now_ms()
    for day in range(6):
        aged_ms = clock.now_ms() - clock.leapt_ms(3 * DAY_MS)
        assert (aged_ms - stored_ms > 3 * DAY_MS) is (day > 3), f"stored before, {day} days ago in truth"
        assert (aged_ms - after_ms > 3 * DAY_MS) is (day > 3)
        run(clock, source, DAY_S, HOUR_S)
    run(clock, source, 3 * DAY_S, HOUR_S)
    assert clock.leapt_ms(3 * DAY_MS) == 0


def test_leaps_beyond_the_horizon_are_forgotten_and_too_many_are_counted_together(source, tmp_path):
    clock = GuardedClock(source, tmp_path, Rules(horizon_ms=DAY_MS))
    for _ in range(LEAPS_MAX + 5):
        source.jump(HOUR_S)
        clock.look()
        confirm(tmp_path)
        clock.look()
    assert clock.leapt_ms(DAY_MS) == (LEAPS_MAX + 5) * HOUR_S * 1000
    assert len(state_in(tmp_path).leaps) == LEAPS_MAX
    run(clock, source, 2 * DAY_S, HOUR_S)
    assert state_in(tmp_path).leaps == ()


def test_small_steps_are_made_good_slowly_and_time_never_goes_back(clock, source):
    for step_s in (50, -50, 30, 30, -60):
        source.jump(step_s)
        last_ms = clock.now_ms()
        for _ in range(HOUR_S // 10):
            source.advance(10)
            assert clock.deletes_allowed()
            assert last_ms <= clock.now_ms() <= last_ms + 60_000 * 0.05 + 10_000
            last_ms = clock.now_ms()
        assert abs(clock.drift_s) < 0.1


def test_time_does_not_go_back_for_a_thread_that_read_the_clock_while_a_drift_was_made_good(source, tmp_path):
    """A round would begin early: time before the beginning of the last one means that the clock was put back."""

    class Interrupted(HandClock):
        look: Callable[[], None] | None = None

        def steady_ms(self) -> int:
            look, self.look = self.look, None
            if look is not None:
                look()
            return super().steady_ms()

    source = Interrupted()
    clock = GuardedClock(source, tmp_path)
    source.advance(600)
    source.jump(-2)
    source.look = clock.look  # another thread's, after this one has begun to read
    told_ms = clock.now_ms()
    assert clock.now_ms() >= told_ms


def test_many_small_steps_one_behind_another_are_a_jump(clock, source):
    for _ in range(10):
        source.jump(20)
        run(clock, source, 1, 1)
    assert clock.alert


# --- restarts -------------------------------------------------------------------------------------------------------------
def test_a_restart_within_a_boot_knows_what_elapsed_whatever_the_wall_clock_says(clock, source, tmp_path):
    source.advance(100)
    source.jump(4 * DAY_S)
    source.advance(5 * HOUR_S)
    again = GuardedClock(source, tmp_path)
    assert again.now_ms() == START_MS + (100 + 5 * HOUR_S) * 1000
    assert not again.deletes_allowed()
    source.jump(-4 * DAY_S)
    assert GuardedClock(source, tmp_path).deletes_allowed()


def test_an_alert_that_was_confirmed_while_nothing_ran(clock, source, tmp_path):
    source.jump(4 * DAY_S)
    clock.look()
    confirm(tmp_path)
    again = GuardedClock(source, tmp_path)
    assert again.deletes_allowed()
    assert again.now_ms() == source.wall_ms


def test_after_a_start_of_the_machine_deletes_wait(clock, source, tmp_path):
    run(clock, source, 600, 60)
    source.off(7 * DAY_S)
    again = GuardedClock(source, tmp_path, boot=1)
    assert again.now_ms() == source.wall_ms
    assert not again.deletes_allowed()
    assert not again.alert
    assert again.held_s == HOUR_S
    run(again, source, HOUR_S - 10)
    assert not again.deletes_allowed()
    run(again, source, 10)
    assert again.deletes_allowed()
    assert again.held_s == 0
    assert again.leapt_ms(DAY_MS) == 0


def test_a_short_start_of_the_machine_needs_no_wait(clock, source, tmp_path):
    source.off(30)
    again = GuardedClock(source, tmp_path, boot=1)
    assert again.deletes_allowed()
    assert again.now_ms() == source.wall_ms, "a little that elapsed meanwhile is believed at once"
    run(again, source, HOUR_S, 10)
    assert again.now_ms() == source.wall_ms


@pytest.mark.parametrize("wrong_s", [4 * DAY_S, -50 * 60])
def test_a_clock_that_is_set_right_soon_after_the_machines_start_is_followed(clock, source, tmp_path, wrong_s):
    source.off(HOUR_S, wrong_by_s=wrong_s)
    again = GuardedClock(source, tmp_path, boot=1)
    run(again, source, 300)
    elapsed_ms = again.elapsed_ms()
    source.jump(-wrong_s)  # the network's time
    assert not again.deletes_allowed()
    assert not again.alert
    assert (again.now_ms(), again.elapsed_ms()) == (source.wall_ms, elapsed_ms)
    run(again, source, HOUR_S - 10)
    assert not again.deletes_allowed(), "the wait began anew"
    run(again, source, 20)
    assert again.deletes_allowed()


def test_a_clock_that_comes_up_before_the_last_time_known(clock, source, tmp_path):
    source.off(HOUR_S, wrong_by_s=-30 * 365 * DAY_S)  # an empty battery
    again = GuardedClock(source, tmp_path, boot=1)
    assert (again.alert, again.now_ms()) == (True, START_MS)
    run(again, source, 60)
    assert again.now_ms() == START_MS + 60_000
    source.jump(30 * 365 * DAY_S)
    assert not again.deletes_allowed()
    assert not again.alert
    assert again.now_ms() == source.wall_ms
    run(again, source, HOUR_S, 10)
    assert again.deletes_allowed()


def test_during_the_wait_a_jump_before_the_last_time_known_is_an_alert(clock, source, tmp_path):
    source.off(HOUR_S)
    again = GuardedClock(source, tmp_path, boot=1)
    source.jump(-2 * HOUR_S)
    again.look()
    assert again.alert
    assert again.now_ms() == START_MS + HOUR_S * 1000


@pytest.mark.parametrize("jump_s", [4 * DAY_S, -4 * DAY_S])
def test_an_alert_outlives_a_start_of_the_machine(clock, source, tmp_path, jump_s):
    """Ahead: only the operator can know. Behind, and not behind any more: the machine's own start has set it right."""
    source.jump(jump_s)
    clock.look()
    source.off(HOUR_S, wrong_by_s=0 if jump_s > 0 else -jump_s)
    again = GuardedClock(source, tmp_path, boot=1)
    run(again, source, 2 * HOUR_S, 60)
    assert again.alert is (jump_s > 0)
    assert again.deletes_allowed() is (jump_s < 0)
    if again.alert:
        confirm(tmp_path)
        assert again.deletes_allowed()
        assert again.now_ms() == source.wall_ms


def test_a_store_of_an_earlier_release_tells_the_last_time(source, tmp_path):
    assert GuardedClock(source, tmp_path / "a", last_ms=START_MS - 10_000).deletes_allowed()
    assert GuardedClock(source, tmp_path / "b", last_ms=START_MS - DAY_MS).held_s == HOUR_S
    ahead = GuardedClock(source, tmp_path / "c", last_ms=START_MS + DAY_MS)
    assert ahead.alert
    assert ahead.now_ms() == START_MS + DAY_MS
    confirm(tmp_path / "c")
    assert ahead.deletes_allowed()
    assert ahead.now_ms() == START_MS


def test_where_the_system_does_not_tell_the_boot_every_start_is_another(source, tmp_path):
    GuardedClock(source, tmp_path, boot=None)
    source.advance(HOUR_S)
    assert GuardedClock(source, tmp_path, boot=None).held_s == HOUR_S


# --- processes ------------------------------------------------------------------------------------------------------------
def test_two_processes_keep_one_time(clock, source, tmp_path):
    other = GuardedClock(source, tmp_path)
    for act in (lambda: source.jump(DAY_S), lambda: confirm(tmp_path), lambda: source.jump(-3 * DAY_S), lambda: confirm(tmp_path)):
        source.advance(10)
        act()
        clock.look()
        other.look()
        assert (clock.now_ms(), clock.elapsed_ms(), clock.alert) == (other.now_ms(), other.elapsed_ms(), other.alert)
    assert clock.now_ms() == source.wall_ms
    assert clock.elapsed_ms() == START_MS + 40_000
    source.jump(20)
    run(clock, source, 2 * ANCHOR_EVERY_MS // 1000)
    other.look()
    assert clock.now_ms() == other.now_ms() != source.running_ms + START_MS - 2 * DAY_MS


def test_without_a_directory_a_jump_is_over_when_the_clock_is_back(source):
    clock = GuardedClock(source, None)
    source.jump(DAY_S)
    run(clock, source, 100)
    assert clock.alert
    assert clock.now_ms() == START_MS + 100_000
    source.jump(-DAY_S)
    assert clock.deletes_allowed()


@pytest.mark.parametrize("damage", [b"", b"{}", b"no", b'{"now_ms": 1}\n00000000\n'])
def test_a_damaged_state_is_left_aside(clock, source, tmp_path, damage, caplog):
    (tmp_path / STATE_FILE).write_bytes(damage)
    with caplog.at_level(logging.WARNING, "runtime.clock"):
        again = GuardedClock(source, tmp_path, last_ms=START_MS - DAY_MS)
    assert STATE_FILE in caplog.text
    assert again.held_s == HOUR_S


def test_a_full_disk_hides_no_jump_and_confirms_nothing(clock, source, tmp_path):
    disk.arm("clock.replace", "ENOSPC", disk.EVERY_PASS)
    try:
        source.jump(DAY_S)
        for _ in range(3):
            assert not clock.deletes_allowed()
            source.advance(100)
        assert not (tmp_path / ALERT_FILE).exists()
    finally:
        disk.arm(None)
    assert not clock.deletes_allowed()
    assert (tmp_path / ALERT_FILE).exists()
    confirm(tmp_path)
    assert clock.deletes_allowed()


def test_the_state_is_written_and_read_whole(clock, source, tmp_path):
    source.jump(DAY_S)
    clock.look()
    confirm(tmp_path)
    clock.look()
    source.jump(DAY_S)
    clock.look()
    state = state_in(tmp_path)
    assert ClockState.from_dict(json.loads(json.dumps(state.to_dict()))) == state
    assert state.alert is not None
    assert state.leaps


def test_a_leap_back_takes_away_what_leapt_forth(clock, source, tmp_path):
    def leap(seconds):
        source.jump(seconds)
        clock.look()
        confirm(tmp_path)
        clock.look()
        return clock.leapt_ms(DAY_MS) // 1000

    assert [leap(by_s) for by_s in (1_000, 5_000, -2_000, -3_500, -10_000, 700)] == [1_000, 6_000, 4_000, 500, 0, 700]


@pytest.mark.parametrize("written", ['{"drift_ms": null}', '{"drift_ms": "much", "now_ms": []}', '{"reason": 7}'])
def test_an_alert_that_somebody_wrote_by_hand_does_no_harm(clock, source, tmp_path, written):
    (tmp_path / "clock.alert").write_text(written)
    clock.look()
    assert clock.alert
    again = GuardedClock(source, tmp_path, boot=0)
    again.look()
    (tmp_path / "clock.alert").unlink()
    again.look()
    assert not again.alert
