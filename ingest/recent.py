"""Something that is expensive to find out, shared by all who ask for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")
#: Finding out may take this share of the time.
SHARE: Final = 0.05


class Recent(Generic[T]):
    """The last finding, while it is fresh: `keep_s`, and longer where finding out takes long.

    One search runs at a time. Callers who come while it runs wait for that search, so nobody gets an older
    finding than the one under way. A failed search is told to those who waited, and the next caller tries again.
    """

    def __init__(self, find: Callable[[], Awaitable[T]], clock_s: Callable[[], float], keep_s: float) -> None:
        self._find, self._clock_s, self._keep_s = find, clock_s, keep_s
        self._running: asyncio.Task[T] | None = None
        self._found: T | None = None
        self._found_s = self._took_s = 0.0

    async def get(self) -> T:
        if self._running is None:
            if self._found is not None and self._clock_s() - self._found_s <= max(self._keep_s, self._took_s / SHARE):
                return self._found
            self._running = asyncio.get_running_loop().create_task(self._search())
            self._running.add_done_callback(_heard)
        # A caller that gives up does not take the finding from the others.
        return await asyncio.shield(self._running)

    async def _search(self) -> T:
        begun_s = self._clock_s()
        try:
            self._found = await self._find()
            self._found_s = self._clock_s()
            self._took_s = self._found_s - begun_s
            return self._found
        finally:
            self._running = None


def _heard(task: asyncio.Task[T]) -> None:
    """All who waited may have gone; then nobody else asks for the error."""
    if not task.cancelled():
        task.exception()
