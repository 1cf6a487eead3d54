"""The guarded clock: trusted time by the rules of `store.clock`, shared by the processes of a data directory.

`clock.state`   JSON and its CRC: a `ClockState`. Replaced as a whole, about once a minute and at every event.
                If missing or damaged, the last time in the store's own files is used instead.
`clock.alert`   JSON for operators, there while there is an alert. Removing it (`escrow clock confirm`) confirms the jump.
`clock.lock`    held (flock) while one of these is changed.

Writer: every process that keeps time here; each follows the state that another wrote. Nothing is rebuilt from them.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

from store.clock import FOREIGN, Alert, ClockState, Event, Reading, Rules, begin, look
from store.errors import Corrupt, StoreError
from store.io import disk

LOG: Final = logging.getLogger("runtime.clock")
STATE_FILE: Final = "clock.state"
ALERT_FILE: Final = "clock.alert"
LOCK_FILE: Final = "clock.lock"
REMEDY: Final = "look at the clock; when it is right: escrow clock confirm"


class Source(Protocol):
    """The clocks that are read."""

    def now_ms(self) -> int: ...

    def steady_ms(self) -> int: ...


def read_alert(path: Path) -> dict[str, Any] | None:
    """What the alert says; {} if it was not written by this program; None if there is no alert."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def read_state(directory: Path) -> ClockState | None:
    """The stored state; None if there is none or it cannot be read."""
    try:
        found = disk.read_json(directory / STATE_FILE)
        return ClockState.from_dict(found) if found else None
    except (Corrupt, TypeError, ValueError) as error:
        LOG.warning("%s is left aside: %s", directory / STATE_FILE, error)
        return None


class _Latest:
    """The latest time that was told. Threads share it, and so do the lines between two leaps."""

    def __init__(self) -> None:
        self._last_ms, self._lock = 0, threading.Lock()

    def not_before(self, now_ms: int) -> int:
        with self._lock:
            self._last_ms = max(self._last_ms, now_ms)
            return self._last_ms


class _Line:
    """A state, and the time by it: time stands still where a drift is made good, and never goes back but by a leap."""

    def __init__(self, state: ClockState, before: _Line | None = None) -> None:
        """`before`: the line that this one goes on from. A thread may still be reading it."""
        self.state = state
        self._latest: _Latest = before._latest if before and before.state.leapt_ms == state.leapt_ms else _Latest()

    def at(self, steady_ms: int) -> int:
        return self._latest.not_before(self.state.at(steady_ms))


class GuardedClock:
    """Time for one process. `look` about once a second, from one thread at a time or several; everything else from any thread.

    `directory`: where the state lies; None = this process keeps it to itself. `boot`: which boot of the machine this is; None = the
    system does not tell, and every start counts as another. `last_ms`: the last time that the store's files tell; 0 = none."""

    def __init__(
        self, source: Source, directory: Path | None, rules: Rules | None = None, *, boot: int | None = 0, last_ms: int = 0
    ) -> None:
        self._source, self._directory, self._rules = source, directory, rules or Rules()
        self._boot = secrets.randbits(62) if boot is None else boot
        self._looking = threading.Lock()
        self._seen: tuple[int, int] | None = None
        self._said = ""
        with self._held_files():
            self._seen = self._signature()
            state = begin(self._read(), self._reading(), self._rules, last_ms)
            self._line = _Line(state)
            if state.alert is not None and not state.alert.filed:
                self._line.state = state = replace(state, alert=self._filed(state.alert))
            self._save(state)
        self._tell_start(state)

    # --- time -----------------------------------------------------------------------------------------------------------------
    def now_ms(self) -> int:
        """Trusted time: what is stored, and what ages are counted to."""
        return self._line.at(self._source.steady_ms())

    def elapsed_ms(self) -> int:
        """Time that never leaps, the same in all processes of a data directory and over restarts: for leases and presence."""
        line = self._line
        return line.at(self._source.steady_ms()) - line.state.leapt_ms

    def leapt_ms(self, horizon_ms: int) -> int:
        """How much of the last `horizon_ms` was a leap. Subtract it from now to ask what is older than the horizon."""
        return self._line.state.leapt_within(horizon_ms, self.elapsed_ms())

    def wall_ms(self) -> int:
        """What the wall clock says, right or wrong: for display alone."""
        return self._source.now_ms()

    # --- may something be deleted? ----------------------------------------------------------------------------------------------
    def deletes_allowed(self) -> bool:
        """Look, then whether age may delete or discard anything now."""
        self.look()
        return self._line.state.may_delete

    @property
    def alert(self) -> bool:
        return self._line.state.alert is not None

    @property
    def held_s(self) -> float:
        """How long nothing is deleted yet because the machine was started; 0 = no wait."""
        state = self._line.state
        if state.believed or state.alert is not None:
            return 0.0
        return max(0, state.held_until_ms - self.elapsed_ms()) / 1000

    @property
    def drift_s(self) -> float:
        """By how much the wall clock is ahead of trusted time."""
        return (self._source.now_ms() - self.now_ms()) / 1000

    def look(self) -> None:
        """1 follow what another process wrote · 2 hold the wall clock against it · 3 where that changes something, once more under
        the lock, and write it."""
        with self._looking:
            self._follow()  # 1
            if self._next()[1] is None and not self._is_unfiled():  # 2
                return
            with self._held_files():  # 3
                self._follow()
                self._file_again()
                state, event = self._next()
                if event is not None:
                    self._change(state, event)

    def _next(self) -> tuple[ClockState, Event | None]:
        state = self._line.state
        found = read_alert(self._path(ALERT_FILE)) if self._directory is not None else None
        confirmed = state.alert is not None and state.alert.filed and found is None
        return look(state, self._reading(), self._rules, confirmed=confirmed, found_alert=_alert_of(found))

    def _is_unfiled(self) -> bool:
        alert = self._line.state.alert
        return alert is not None and not alert.filed and self._directory is not None

    def _file_again(self) -> None:
        """Write an alert that found no room on the disk: it cannot be confirmed before it is there."""
        state = self._line.state
        if state.alert is not None and self._is_unfiled() and (filed := self._filed(state.alert)).filed:
            self._line.state = replace(state, alert=filed)
            self._save(self._line.state)

    def _change(self, state: ClockState, event: Event) -> None:
        before, alert = self._line.state, state.alert
        if event is Event.ALERT and alert is not None and not alert.filed:
            state = replace(state, alert=self._filed(alert))
        self._line = _Line(state, self._line)
        self._save(state)
        if before.alert is not None and alert is None and self._directory is not None:
            disk.remove(self._path(ALERT_FILE), "clock")
        self._tell(event, before, state)

    # --- the files ------------------------------------------------------------------------------------------
    def _path(self, name: str) -> Path:
        assert self._directory is not None
        return self._directory / name

    @contextmanager
    def _held_files(self) -> Iterator[None]:
        if self._directory is None:
            yield
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._path(LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _reading(self) -> Reading:
        return Reading(self._source.now_ms(), self._source.steady_ms(), self._boot)

    def _signature(self) -> tuple[int, int] | None:
        try:
            found = self._path(STATE_FILE).stat() if self._directory is not None else None
        except FileNotFoundError:
            return None
        return (found.st_ino, found.st_mtime_ns) if found is not None else None

    def _read(self) -> ClockState | None:
        return read_state(self._directory) if self._directory is not None else None

    def _follow(self) -> None:
        """Take over what another process wrote."""
        seen = self._signature()
        if seen == self._seen or seen is None:
            return
        state, self._seen = self._read(), seen
        if state is not None:
            self._line = _Line(state, self._line)

    def _save(self, state: ClockState) -> None:
        """Where it cannot be written (a full disk), this process goes on with what it knows; the next event tries again."""
        if self._directory is None:
            return
        try:
            disk.write_json(self._path(STATE_FILE), state.to_dict(), "clock")
            self._seen, self._said = self._signature(), ""
        except StoreError as error:
            if self._said != (said := str(error)):
                self._said = said
                LOG.warning("the clock's state cannot be written: %s", said)

    def _filed(self, alert: Alert) -> Alert:
        """The alert, written down for the operator where that is possible."""
        if self._directory is None:
            return alert
        text = {"reason": alert.reason, "drift_ms": alert.drift_ms, "now_ms": alert.wall_ms, "remedy": REMEDY}
        try:
            disk.replace_file(self._path(ALERT_FILE), json.dumps(text).encode() + b"\n", "clock")
        except StoreError:
            return alert
        return replace(alert, filed=True)

    # --- what is said ---------------------------------------------------------------------------------------
    def _tell_start(self, state: ClockState) -> None:
        if state.alert is not None:
            self._tell(Event.ALERT, state, state)
        elif not state.believed:
            LOG.warning(
                "the machine was started since the last time known, which the wall clock says was %.0f s ago: "
                "nothing is deleted or discarded for %.0f s",
                state.slack_ms / 1000, self.held_s,
            )  # fmt: skip

    def _tell(self, event: Event, before: ClockState, after: ClockState) -> None:
        if event is Event.ALERT and after.alert is not None:
            LOG.warning(
                "clock alert: %s, by %+.1f s; nothing is deleted or discarded until it is back, or `escrow clock confirm`",
                after.alert.reason, after.alert.drift_ms / 1000,
            )  # fmt: skip
        elif event is Event.BACK:
            LOG.warning("the wall clock is back: the clock alert is over")
        elif event is Event.CONFIRMED:
            by_s = (after.leapt_ms - before.leapt_ms) / 1000
            LOG.warning("the clock alert was confirmed: time continues at the wall clock's, %+.1f s", by_s)
        elif event is Event.FOLLOWED:
            LOG.warning("the wall clock jumped soon after the machine's start: it is followed, and the wait starts over")
        elif event is Event.BELIEVED:
            LOG.info("the wall clock was steady since the machine's start: it is believed")


def _alert_of(found: dict[str, Any] | None) -> Alert | None:
    """An alert file that the state does not know of: of an earlier release, or of a process that was killed behind it."""
    if found is None:
        return None
    drift_ms, now_ms = (found.get(name, 0) for name in ("drift_ms", "now_ms"))
    if not isinstance(drift_ms, int) or not isinstance(now_ms, int):  # written by hand
        drift_ms = now_ms = 0
    return Alert(str(found.get("reason", FOREIGN)), drift_ms, now_ms, heals=False, filed=True)
