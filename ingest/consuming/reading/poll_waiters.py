"""Polls that wait for messages: one queue of waiters for each topic and group, woken one at a time.

News wake the poll that has waited longest; if it leaves something it wakes the next. One that was woken for nothing and waits again
keeps its place if it says so. A wake that reaches a poll which has left is passed on, so none is lost.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from itertools import count

#: A place and who is woken; places are unique, so waiters are in their order.
Waiter = tuple[int, asyncio.Future[None]]


class Waiting:
    """Lives in the event loop. Topics and groups by name: a topic may not exist yet."""

    def __init__(self) -> None:
        self._waiters: dict[str, dict[str, list[Waiter]]] = {}
        self._places = count()

    def place(self) -> int:
        """Behind all that were given before it."""
        return next(self._places)

    async def wait(self, topic: str, group: str, timeout_s: float, place: int) -> None:
        """Until woken, at most timeout_s."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (place, woken)
        waiters = self._waiters.setdefault(topic, {}).setdefault(group, [])
        insort(waiters, waiter)
        handle = asyncio.get_running_loop().call_later(timeout_s, _wake, woken)
        try:
            await woken
        except asyncio.CancelledError:
            if woken.done() and not woken.cancelled():
                self.wake(topic, group)  # this poll has left: pass the wake on
            raise
        finally:
            handle.cancel()
            self._leave(topic, group, waiters, waiter)

    def _leave(self, topic: str, group: str, waiters: list[Waiter], waiter: Waiter) -> None:
        if waiter in waiters:
            waiters.remove(waiter)
        groups = self._waiters.get(topic)
        if not waiters and groups is not None and groups.get(group) is waiters:
            del groups[group]
            if not groups:
                del self._waiters[topic]

    def wake(self, topic: str, group: str) -> None:
        """One poll of a group."""
        waiters = self._waiters.get(topic, {}).get(group)
        while waiters:
            _, woken = waiters.pop(0)
            if not woken.done():
                woken.set_result(None)
                return

    def wake_topic(self, topic: str) -> None:
        """One poll of each group."""
        for group in list(self._waiters.get(topic, ())):
            self.wake(topic, group)

    def wake_all(self) -> None:
        for groups in list(self._waiters.values()):
            for waiters in list(groups.values()):
                for _, woken in list(waiters):
                    _wake(woken)

    def topics(self) -> list[str]:
        return list(self._waiters)

    def __len__(self) -> int:
        return sum(len(waiters) for groups in self._waiters.values() for waiters in groups.values())


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
