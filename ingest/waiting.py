"""Polls that wait for messages: one queue of waiters for each topic and group, woken one at a time.

News wake the poll that has waited longest; if it leaves something it wakes the next. A wake that reaches somebody who has gone is
passed on, so none is lost.
"""

from __future__ import annotations

import asyncio
from collections import deque

Waiter = asyncio.Future[None]


class Waiting:
    """Lives in the event loop. Topics and groups by name: a topic may not exist yet."""

    def __init__(self) -> None:
        self._waiters: dict[str, dict[str, deque[Waiter]]] = {}

    async def wait(self, topic: str, group: str, timeout_s: float) -> None:
        """Until woken, at most timeout_s."""
        waiter: Waiter = asyncio.get_running_loop().create_future()
        waiters = self._waiters.setdefault(topic, {}).setdefault(group, deque())
        waiters.append(waiter)
        handle = asyncio.get_running_loop().call_later(timeout_s, _wake, waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.wake(topic, group)  # the wake was for somebody who has gone
            raise
        finally:
            handle.cancel()
            self._leave(topic, group, waiters, waiter)

    def _leave(self, topic: str, group: str, waiters: deque[Waiter], waiter: Waiter) -> None:
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
            waiter = waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def wake_topic(self, topic: str) -> None:
        """One poll of each group."""
        for group in list(self._waiters.get(topic, ())):
            self.wake(topic, group)

    def wake_all(self) -> None:
        for groups in list(self._waiters.values()):
            for waiters in list(groups.values()):
                for waiter in list(waiters):
                    _wake(waiter)

    def topics(self) -> list[str]:
        return list(self._waiters)

    def __len__(self) -> int:
        return sum(len(waiters) for groups in self._waiters.values() for waiters in groups.values())


def _wake(waiter: Waiter) -> None:
    if not waiter.done():
        waiter.set_result(None)
