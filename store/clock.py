"""Trusted time: the rules by which wall time is believed, followed or refused. Pure: what the clocks say is an argument.

Stored times must be comparable for months, so they are wall times; but a wall clock may jump, and nothing may be deleted because it
did. So time runs on what cannot jump: trusted time = the last trusted time + what has elapsed since boot (CLOCK_BOOTTIME). The wall
clock is only looked at, about once a second:

    state       means                                         left when
    believed    wall and trusted time agree within            the wall clock leaves it: alert
                clockDriftMax; the rest is made good slowly
    alert       they do not: nothing is deleted or            the wall clock is back: believed · an operator confirms: trusted
                discarded; time goes on by what elapses       time leaps to the wall clock, believed
    held        the machine was started meanwhile, so what    clockGrace passed without a jump: believed · a jump: follow it and
                elapsed is unknown: the wall clock is         wait again · a jump to before the last time known: alert
                followed, and nothing is deleted or discarded

`elapsed_ms` is a second line through the same state: it never leaps, not even when an operator confirms. Leases, visibility and
presence run on it. A third line, "aged", answers "older than horizon?": trusted time less `leapt_ms(horizon)`, because what leapt
forward within the horizon is not age. It is exact: what was stored after such a leap is younger than the horizon anyway.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any, Final

DRIFT_MAX_MS: Final = 60_000
GRACE_MS: Final = 3_600_000
#: Trusted time gets a new anchor this often: it corrects a small drift, and a later start knows that time.
ANCHOR_EVERY_MS: Final = 60_000
#: At most this share of the time that passed is added or taken away to correct a small drift.
SLEW_SHARE: Final = 0.05
#: More leaps than this within a horizon are counted together, as if they were one at the time of the later.
LEAPS_MAX: Final = 16

LEFT: Final = "the wall clock left the time since boot"
BEHIND: Final = "the wall clock stands before the last time known here"
FOREIGN: Final = "the alert was raised by an earlier release, or written by hand"


@dataclass(frozen=True, slots=True)
class Reading:
    """What the machine's clocks say."""

    wall_ms: int
    steady_ms: int  # since boot; never jumps
    boot: int = 0  # which boot; another number = what elapsed in between is unknown


@dataclass(frozen=True, slots=True)
class Rules:
    drift_max_ms: int = DRIFT_MAX_MS
    grace_ms: int = GRACE_MS
    horizon_ms: int = 1 << 62  # leaps older than this are forgotten: no horizon is longer


@dataclass(frozen=True, slots=True)
class Alert:
    reason: str
    drift_ms: int
    wall_ms: int  # when it was raised
    heals: bool = True  # it ends by itself when the wall clock is back
    filed: bool = False  # the file that an operator confirms by removing it was written


@dataclass(frozen=True, slots=True)
class Leap:
    """Trusted time was put forward by `by_ms`, at `at_ms` of the elapsed line."""

    at_ms: int
    by_ms: int


@dataclass(frozen=True, slots=True)
class ClockState:
    """All there is to know. The first three are the anchor: trusted time was `now_ms` when the time since boot was `steady_ms`."""

    now_ms: int
    steady_ms: int
    boot: int
    leapt_ms: int = 0  # sum of all leaps, forth and back
    leaps: tuple[Leap, ...] = ()  # forth only; a leap back takes away from the last of them
    believed: bool = True
    slack_ms: int = 0  # not believed: trusted time may be too late by this much
    held_until_ms: int = 0  # not believed: on the elapsed line
    alert: Alert | None = None

    def at(self, steady_ms: int) -> int:
        """Trusted time."""
        return self.now_ms + steady_ms - self.steady_ms

    def elapsed_at(self, steady_ms: int) -> int:
        return self.at(steady_ms) - self.leapt_ms

    def leapt_within(self, horizon_ms: int, elapsed_ms: int) -> int:
        """By how much stored times from before the last leaps look too old, for those who ask "older than horizon?"."""
        return sum(leap.by_ms for leap in self.leaps if elapsed_ms - leap.at_ms <= horizon_ms)

    @property
    def may_delete(self) -> bool:
        return self.alert is None and self.believed

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> ClockState:
        alert, leaps = found.get("alert"), found.get("leaps", ())
        known = found | {"alert": Alert(**alert) if alert else None, "leaps": tuple(Leap(**leap) for leap in leaps)}
        made = cls(**known)
        numbers = [made.now_ms, made.steady_ms, made.boot, made.leapt_ms, made.slack_ms, made.held_until_ms]
        numbers += [number for leap in made.leaps for number in (leap.at_ms, leap.by_ms)]
        numbers += [made.alert.drift_ms, made.alert.wall_ms] if made.alert else []
        if not all(isinstance(number, int) for number in numbers):
            raise ValueError("the time is not a number")
        return made


class Event(Enum):
    ANCHORED = "anchored"
    ALERT = "alert"
    BACK = "back"
    CONFIRMED = "confirmed"
    FOLLOWED = "followed"
    BELIEVED = "believed"


def begin(known: ClockState | None, reading: Reading, rules: Rules, last_ms: int = 0) -> ClockState:
    """The state at a start. `last_ms`: the last time that the store's own files tell, for where no state is known; 0 = none."""
    if known is None:
        if not last_ms:
            return ClockState(reading.wall_ms, reading.steady_ms, reading.boot)
        known = ClockState(last_ms, reading.steady_ms, reading.boot ^ 1)
    if known.boot == reading.boot and reading.steady_ms >= known.steady_ms:
        return known  # what elapsed is known
    here = replace(known, steady_ms=reading.steady_ms, boot=reading.boot)
    gap_ms = reading.wall_ms - known.now_ms
    if known.alert is not None:
        # A clock that was ahead may still be: only the operator knows. One that was behind shows by itself when it is right.
        return replace(here, believed=known.believed and known.alert.drift_ms > 0)
    if abs(gap_ms) <= rules.drift_max_ms:
        # The anchor is up to ANCHOR_EVERY_MS old: time does not go back to it where the wall clock tells more.
        return replace(here, now_ms=max(known.now_ms, reading.wall_ms))
    if gap_ms < 0:
        return replace(here, believed=False, slack_ms=0, alert=Alert(BEHIND, gap_ms, reading.wall_ms))
    return replace(
        here, now_ms=reading.wall_ms, believed=False, slack_ms=known.slack_ms + gap_ms,
        held_until_ms=reading.wall_ms - known.leapt_ms + rules.grace_ms,
    )  # fmt: skip


def look(
    state: ClockState, reading: Reading, rules: Rules, *, confirmed: bool = False, found_alert: Alert | None = None
) -> tuple[ClockState, Event | None]:
    """One look at the wall clock. `confirmed`: an operator confirmed the alert; `found_alert`: another process raised one."""
    drift_ms = reading.wall_ms - state.at(reading.steady_ms)
    agrees = abs(drift_ms) <= rules.drift_max_ms
    if state.alert is not None:
        if confirmed:
            leapt = _leap(state, reading, drift_ms)
            return replace(leapt, alert=None, believed=True, slack_ms=0, held_until_ms=0), Event.CONFIRMED
        if state.alert.heals and not state.believed and drift_ms >= -rules.drift_max_ms:
            # The machine was off for an unknown time: whatever is not before the last time known may be right.
            return _follow(replace(state, alert=None), reading, rules, drift_ms), Event.FOLLOWED
        if state.alert.heals and agrees:
            return replace(_anchored(state, reading, drift_ms), alert=None), Event.BACK
    elif found_alert is not None:
        return replace(state, alert=found_alert), Event.ALERT
    elif not agrees:
        if not state.believed and drift_ms >= -state.slack_ms - rules.drift_max_ms:
            return _follow(state, reading, rules, drift_ms), Event.FOLLOWED
        return replace(state, alert=Alert(LEFT, drift_ms, reading.wall_ms)), Event.ALERT
    elif not state.believed and state.elapsed_at(reading.steady_ms) >= state.held_until_ms:
        return replace(_anchored(state, reading, drift_ms), believed=True, slack_ms=0, held_until_ms=0), Event.BELIEVED
    if reading.steady_ms - state.steady_ms < ANCHOR_EVERY_MS:
        return state, None
    return _forget_leaps(_anchored(state, reading, drift_ms if agrees else 0), rules), Event.ANCHORED


def _anchored(state: ClockState, reading: Reading, drift_ms: int) -> ClockState:
    """The anchor moved to now, a part of the drift made good."""
    most_ms = int((reading.steady_ms - state.steady_ms) * SLEW_SHARE)
    now_ms = state.at(reading.steady_ms) + max(-most_ms, min(drift_ms, most_ms))
    return replace(state, now_ms=now_ms, steady_ms=reading.steady_ms, boot=reading.boot)


def _leap(state: ClockState, reading: Reading, by_ms: int) -> ClockState:
    leaps = list(state.leaps)
    if by_ms > 0:
        leaps.append(Leap(state.elapsed_at(reading.steady_ms), by_ms))
        if len(leaps) > LEAPS_MAX:
            leaps[:2] = [Leap(leaps[1].at_ms, leaps[0].by_ms + leaps[1].by_ms)]
    back_ms = -by_ms
    while leaps and back_ms > 0:
        last = leaps.pop()
        if last.by_ms > back_ms:
            leaps.append(replace(last, by_ms=last.by_ms - back_ms))
        back_ms -= last.by_ms
    return replace(
        state,
        now_ms=reading.wall_ms,
        steady_ms=reading.steady_ms,
        boot=reading.boot,
        leapt_ms=state.leapt_ms + by_ms,
        leaps=tuple(leaps),
    )


def _follow(state: ClockState, reading: Reading, rules: Rules, by_ms: int) -> ClockState:
    leapt = _leap(state, reading, by_ms)
    until_ms = leapt.elapsed_at(reading.steady_ms) + rules.grace_ms
    return replace(leapt, slack_ms=max(0, state.slack_ms + by_ms), held_until_ms=until_ms)


def _forget_leaps(state: ClockState, rules: Rules) -> ClockState:
    elapsed_ms = state.now_ms - state.leapt_ms
    kept = tuple(leap for leap in state.leaps if elapsed_ms - leap.at_ms <= rules.horizon_ms)
    return replace(state, leaps=kept)
