"""What both kinds of edge are made of: parts that live with them, loops that run beside requests, the gate, the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from ingest.errors import Closing, InvalidRequest, Standby, TooLarge, TransactionsRejected
from runtime.clock import Clock, SystemClock, this_boot
from runtime.settings import Settings
from store.clock import Rules
from store.errors import StoreError
from store.guarded_clock import GuardedClock

MEMBER_MAX_CHARACTERS: Final = 128


class Part(Protocol):
    """Something beside the edge that lives as long as it does."""

    name: str

    async def open(self) -> None:
        """The edge is open; an EdgeError keeps it from starting."""

    def stop(self) -> None:
        """Begin nothing new. May be called twice, and before `open`."""

    async def close(self) -> None:
        """Let go of everything, whether `open` was through or not. May be called twice."""

    def figures(self) -> dict[str, Any]:
        """For the status; {} = nothing to tell."""


class Parts(list[Part]):
    """Opened in order, after the edge; closed in reverse, before it."""

    async def open(self) -> None:
        for part in self:
            await part.open()

    def stop(self) -> None:
        for part in self:
            part.stop()

    async def close(self) -> None:
        for part in reversed(self):
            await part.close()

    def figures(self) -> dict[str, Any]:
        return {part.name: told for part in self if (told := part.figures())}


class Loops:
    """What runs beside requests. A loop never ends by itself: if one does, `fail` is told why."""

    def __init__(self, fail: Callable[[str], None]) -> None:
        self._fail, self._closing = fail, False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._closing:
            self._fail(str(error) if isinstance(error, StoreError) else f"{type(error).__name__}: {error}")

    def stop(self) -> None:
        """From now on a loop may end."""
        self._closing = True

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Gate:
    """Refuses what a standby, a stopping edge or the limits of one request refuse."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self.closing = settings, False

    def require_master(self, what: str) -> None:
        if self.closing:
            raise Closing("the edge is stopping: try again later")
        if self._settings.standby:
            raise Standby(f"this is a standby (role = standby): it takes no {what}; send them to the master")

    def require_halves(self) -> None:
        self.require_master("halves")
        if self._settings.reject_transactions:
            raise TransactionsRejected(
                "halves are refused here (rejectTransactionMessage = true): send them elsewhere, or set it to false"
            )

    def check_count(self, items: Sequence[object], what: str) -> None:
        most = self._settings.max_messages_per_request
        if not items:
            raise InvalidRequest(f"{what}: empty; send at least one")
        if len(items) > most:
            raise TooLarge(f"{what}: {len(items)} in one request; the limit is {most} (maxMessagesPerRequest)")

    def check_poll(self, member: str, max_requests: int, wait_s: float) -> tuple[int, float]:
        """How many a poll gets at most, and how long it may wait; or why it is refused."""
        self.require_master("polls")
        if not member or len(member) > MEMBER_MAX_CHARACTERS:
            raise InvalidRequest(f"member: give a name of 1 to {MEMBER_MAX_CHARACTERS} characters")
        if max_requests < 1 or wait_s < 0:
            raise InvalidRequest("max: must be at least 1, and wait_s at least 0")
        return min(max_requests, self._settings.checks_per_poll_max), min(wait_s, self._settings.poll_wait_max_ms / 1000)


def guarded_clock(settings: Settings, source: Clock | None, directory: Path | None, last_ms: int = 0) -> GuardedClock:
    """The edge's clock. Without a directory it keeps nothing over a restart."""
    return GuardedClock(
        source or SystemClock(), directory, Rules(**settings.clock_values()),
        boot=0 if source else this_boot() or None, last_ms=last_ms,
    )  # fmt: skip
