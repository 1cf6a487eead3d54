"""What a connection waits for, and until when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum


class Await(Enum):
    """What must come before the deadline."""

    NOTHING = 0
    HEAD = 1
    BODY = 2
    ANY = 3
    #: The connection's end: it was refused, or it is closed and its client does not read.
    END = 4


NOTHING, HEAD, BODY, ANY, END = Await


class Deadline:
    """Moves with every request. The timer does not: when it fires, it looks whether the deadline has moved.

    Set `awaited` to NOTHING when what was awaited has come.
    """

    __slots__ = ("_due_s", "_loop", "_on_late", "_timer", "_timer_s", "awaited")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_late: Callable[[Await], None]) -> None:
        self._loop, self._on_late = loop, on_late
        self.awaited, self._due_s, self._timer_s = NOTHING, 0.0, 0.0
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, awaited: Await, within_ms: int) -> None:
        self.awaited, self._due_s = awaited, self._loop.time() + within_ms / 1000
        if self._timer is None or self._due_s < self._timer_s:
            if self._timer is not None:
                self._timer.cancel()
            self._set_timer()

    def _set_timer(self) -> None:
        self._timer_s = self._due_s
        self._timer = self._loop.call_at(self._due_s, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if self.awaited is NOTHING:
            return
        if self._loop.time() < self._due_s:
            self._set_timer()
            return
        awaited, self.awaited = self.awaited, NOTHING
        self._on_late(awaited)

    def close(self) -> None:
        """The connection has ended. `on_late` refers to it: break the cycle."""
        self.awaited, self._on_late = NOTHING, _ignore
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _ignore(_: Await) -> None:
    """After the connection's end nothing is late."""
