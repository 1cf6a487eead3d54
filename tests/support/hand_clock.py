"""A machine's clocks, moved by hand: wall time and time since boot, apart or together."""

from __future__ import annotations

from collections.abc import Callable

START_MS = 1_800_000_000_000


class HandClock:
    def __init__(self, wall_ms: int = START_MS, running_ms: int = 0) -> None:
        self.wall_ms, self.running_ms = wall_ms, running_ms

    def now_ms(self) -> int:
        return self.wall_ms

    def steady_ms(self) -> int:
        return self.running_ms

    def advance(self, seconds: float) -> None:
        """Time passes."""
        self.wall_ms += int(seconds * 1000)
        self.running_ms += int(seconds * 1000)

    def jump(self, seconds: float) -> None:
        """The wall clock alone is moved."""
        self.wall_ms += int(seconds * 1000)

    def off(self, seconds: float, wrong_by_s: float = 0.0) -> None:
        """The machine is switched off for so long; its wall clock comes up wrong by so much."""
        self.wall_ms += int((seconds + wrong_by_s) * 1000)
        self.running_ms = 10_000


class ByHand:
    """Clocks that say what a test says, wall time and time since boot alike."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.now_ms = self.steady_ms = now_ms
