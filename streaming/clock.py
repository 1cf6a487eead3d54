"""The clock of the job: wall time in milliseconds, and whether it may be trusted for discards.

Stored times are wall times of this machine, so ages are differences of wall times. A wall clock may jump; a half must not be
discarded because it did. So the job watches wall time against the time since boot. When they part by more than clockDriftMax
(60 s), or when the wall clock stands before the last settled batch, discards stop and `clock.alert` is written into the data
directory. It stays, over restarts too, until an operator has looked and removes it with `escrow clock confirm`: from then on the
new time counts.
"""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any, Final, Protocol

LOG: Final = logging.getLogger("escrow.clock")
ALERT_FILE: Final = "clock.alert"
DRIFT_MAX_MS: Final = 60_000
#: Keeps counting while the machine sleeps, where the system has such a clock.
_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def read_alert(path: Path) -> dict[str, Any] | None:
    """What the alert says; {} where somebody else wrote it; None where there is none."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class Clock(Protocol):
    """Where the job's time comes from."""

    def now_ms(self) -> int:
        """Wall time."""

    def steady_ms(self) -> int:
        """Time that never jumps, from an arbitrary start."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        return time.clock_gettime_ns(_STEADY) // 1_000_000


class ClockGuard:
    """Says whether discards are allowed."""

    def __init__(self, clock: Clock, data_dir: Path, last_batch_ms: int, drift_max_ms: int = DRIFT_MAX_MS) -> None:
        self._clock, self._path, self._drift_max_ms = clock, data_dir / ALERT_FILE, drift_max_ms
        self._base_ms = self._difference()
        self._alert = self._path.exists()
        behind_ms = last_batch_ms - clock.now_ms()
        if behind_ms > drift_max_ms:
            self._raise(-behind_ms, "the wall clock stands before the last settled batch")

    @property
    def alert(self) -> bool:
        return self._alert

    def discards_allowed(self) -> bool:
        """Look at the clocks, and for the operator's word."""
        if self._alert and not self._path.exists():
            self._alert, self._base_ms = False, self._difference()
            LOG.warning("the clock alert was confirmed: discards go on")
        drift_ms = self._difference() - self._base_ms
        if not self._alert and abs(drift_ms) > self._drift_max_ms:
            self._raise(drift_ms, "the wall clock left the time since boot")
        return not self._alert

    def _difference(self) -> int:
        return self._clock.now_ms() - self._clock.steady_ms()

    def _raise(self, drift_ms: int, reason: str) -> None:
        self._alert = True
        text = {
            "reason": reason,
            "drift_ms": drift_ms,
            "now_ms": self._clock.now_ms(),
            "remedy": "look at the clock; when it is right: escrow clock confirm",
        }
        # As a whole: whoever reads it finds all of it.
        temporary = self._path.with_suffix(".new")
        temporary.write_text(json.dumps(text) + "\n")
        temporary.replace(self._path)
        LOG.warning("clock alert: %s by %+.1f s; discards are stopped until `escrow clock confirm`", reason, drift_ms / 1000)
