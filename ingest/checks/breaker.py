"""A circuit breaker: who has failed several times in a row is left alone for a while, then tried once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

FAILURES_MAX: Final = 5
PAUSE_S: Final = 10.0
PAUSE_MAX_S: Final = 300.0


class Breaker:
    """closed: all goes on · open: nothing is tried before `wait_s` is over · half-open: one is tried, and decides."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self.failures = 0
        self._pause_s, self._until_s = PAUSE_S, 0.0

    @property
    def state(self) -> str:
        if self.failures < FAILURES_MAX:
            return "closed"
        return "open" if self._clock_s() < self._until_s else "half-open"

    @property
    def wait_s(self) -> float:
        """How long to leave it alone."""
        return max(self._until_s - self._clock_s(), 0.0) if self.failures >= FAILURES_MAX else 0.0

    def succeeded(self) -> None:
        self.failures, self._pause_s = 0, PAUSE_S

    def failed(self) -> None:
        """The pause doubles with every try that fails."""
        self.failures += 1
        if self.failures >= FAILURES_MAX and self.wait_s == 0.0:
            self._until_s = self._clock_s() + self._pause_s
            self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)
