"""Any history of jumps, small steps, restarts of processes and of the machine, and confirmations, for two processes that share a
clock: nothing looks older than it is, what elapses never jumps, and when the clock is right for long enough, everything goes on."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from store.clock import ANCHOR_EVERY_MS, Alert, ClockState, Reading, Rules, begin, look
from store.guarded_clock import ALERT_FILE, GuardedClock
from tests.support.hand_clock import START_MS, HandClock

HOUR_S, DAY_S = 3_600, 86_400
HORIZON_MS = 72 * HOUR_S * 1000
JUMPS_S = st.one_of(st.integers(-400 * DAY_S, 400 * DAY_S), st.integers(-2 * HOUR_S, 2 * HOUR_S)).filter(
    lambda jump_s: abs(jump_s) > 120
)
#: A part of a small drift is made good meanwhile; what looks this much too old is no harm.
SLACK_MS = 60_000 + 5_000


class Machine(RuleBasedStateMachine):
    """`truth_ms` is what really elapsed. Each thing that was stored is known by (stamp, truth, elapsed line)."""

    @initialize()
    def start(self) -> None:
        self.place = tempfile.TemporaryDirectory()
        self.directory = Path(self.place.name)
        self.source = HandClock()
        self.truth_ms, self.boot, self.right_ms = 0, 1, START_MS  # right_ms: the wall clock, were it right
        self.things: list[tuple[int, int]] = []
        self.leases: list[tuple[int, int, int]] = []
        self.reboots = 0
        self.clocks = [self.make(), self.make()]

    def make(self) -> GuardedClock:
        return GuardedClock(self.source, self.directory, Rules(horizon_ms=HORIZON_MS), boot=self.boot)

    def look(self) -> None:
        for clock in self.clocks:
            clock.look()

    @rule(seconds=st.integers(1, 3 * DAY_S), steps=st.integers(1, 4))
    def pass_time(self, seconds: int, steps: int) -> None:
        for _ in range(steps):
            self.source.advance(seconds)
            self.truth_ms += seconds * 1000
            self.right_ms += seconds * 1000
            self.look()

    @rule()
    def store(self) -> None:
        clock = self.clocks[0]
        self.things.append((clock.now_ms(), self.truth_ms))
        self.leases.append((clock.elapsed_ms(), self.truth_ms, self.reboots))

    @rule(jump_s=JUMPS_S)
    def jump(self, jump_s: int) -> None:
        self.source.jump(jump_s)

    @rule(step_s=st.integers(-5, 5))
    def step(self, step_s: int) -> None:
        self.source.jump(step_s)

    @rule()
    def set_right(self) -> None:
        self.source.wall_ms = self.right_ms

    @rule(which=st.integers(0, 1))
    def restart(self, which: int) -> None:
        self.clocks[which] = self.make()

    @precondition(lambda self: self.clocks[0].alert)
    @rule()
    def confirm(self) -> None:
        self.look()
        (self.directory / ALERT_FILE).unlink(missing_ok=True)
        self.look()
        assert abs(self.clocks[0].drift_s) < 61

    @rule(seconds=st.integers(1, 20 * DAY_S))
    def switch_off(self, seconds: int) -> None:
        """The machine is off; its clock goes on as it was."""
        self.source.off(seconds)
        self.truth_ms += seconds * 1000
        self.right_ms += seconds * 1000
        self.boot += 1
        self.reboots += 1
        self.clocks = [self.make(), self.make()]

    @rule()
    def heal(self) -> None:
        """The clock is right and stays so; where that alone does not tell, the operator does."""
        self.set_right()
        self.look()
        if self.clocks[0].alert:
            self.confirm()
        self.pass_time(HOUR_S, 2)
        assert all(clock.deletes_allowed() for clock in self.clocks)
        assert abs(self.clocks[0].drift_s) < 61
        self.pass_time(HORIZON_MS // 2000 + 1, 2)
        assert self.clocks[0].leapt_ms(HORIZON_MS) == 0, "what leapt is not held against anything for ever"

    @invariant()
    def nothing_is_deleted_early(self) -> None:
        """As long as the machine was not off while its clock was wrong, which nobody can see."""
        for clock in self.clocks:
            if self.reboots == 0 and clock.deletes_allowed():
                aged_ms = clock.now_ms() - clock.leapt_ms(HORIZON_MS)
                for stamp_ms, stored_truth_ms in self.things:
                    if aged_ms - stamp_ms > HORIZON_MS + SLACK_MS:
                        assert self.truth_ms - stored_truth_ms > HORIZON_MS

    @invariant()
    def what_elapses_never_leaps(self) -> None:
        for clock in self.clocks:
            elapsed_ms = clock.elapsed_ms()
            for then_ms, then_truth_ms, then_reboots in self.leases:
                # A start of the machine forgets what elapsed since the last anchor, if the wall clock was put back as well.
                forgotten_ms = ANCHOR_EVERY_MS if then_reboots != self.reboots else 0
                assert elapsed_ms >= then_ms - forgotten_ms * (self.reboots - then_reboots)
                if then_reboots == self.reboots:
                    passed_ms = self.truth_ms - then_truth_ms
                    assert abs(elapsed_ms - then_ms - passed_ms) <= SLACK_MS + passed_ms * 0.05

    @invariant()
    def both_processes_say_the_same(self) -> None:
        self.look()
        one, other = self.clocks
        assert one.alert == other.alert
        assert abs(one.now_ms() - other.now_ms()) <= 5_000
        assert abs(one.elapsed_ms() - other.elapsed_ms()) <= 5_000

    def teardown(self) -> None:
        if hasattr(self, "place"):
            self.place.cleanup()


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


@given(
    now_ms=st.integers(0, 1 << 50),
    wall_ms=st.integers(-(1 << 50), 1 << 50),
    passed_ms=st.integers(0, 1 << 40),
    flags=st.tuples(*[st.booleans()] * 4),
)
def test_no_reading_is_too_wild(now_ms, wall_ms, passed_ms, flags):
    """Whatever the clocks say: a state, no exception; and while nothing is confirmed and nothing followed, only time elapses."""
    other_boot, believed, alert, confirmed = flags
    known = ClockState(now_ms, 5, 1, believed=believed, alert=Alert("x", 1, 2, filed=True) if alert else None)
    reading = Reading(wall_ms, 5 + passed_ms, 2 if other_boot else 1)
    begun = begin(known, reading, Rules())
    after, _ = look(begun, reading, Rules(), confirmed=confirmed)
    assert after.elapsed_at(reading.steady_ms) >= known.elapsed_at(5) - 60_000
    if believed and not confirmed and not other_boot:
        assert abs(after.at(reading.steady_ms) - known.at(reading.steady_ms)) <= 60_000
    assert ClockState.from_dict(after.to_dict()) == after
