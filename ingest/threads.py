"""Threads for code that may block: a plug-in's, that of lists and of the runway. Each gets a few of its own, so that one that hangs
holds up no other call, and none keeps the process from ending."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
_Call = tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]


def tellable(error: BaseException) -> Exception:
    """What a future may carry out of a thread: asyncio refuses a StopIteration, and a SystemExit would end the event loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")


class Threads:
    """`await threads.call(function, …)`: at most `most` at a time, the others wait. For one event loop."""

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy = 0

    async def call(self, function: Callable[..., T], *arguments: Any, timeout_s: float | None = None) -> T:
        """What the function returns or raises. TimeoutError where it takes longer; it goes on, unheard."""
        if self._busy >= len(self._threads) and len(self._threads) < self._most:
            thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        future: asyncio.Future[T] = self._loop.create_future()
        self._busy += 1
        self._calls.put((future, function, arguments))
        async with asyncio.timeout(timeout_s):
            return await future

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function, arguments = call
            try:
                result, error = function(*arguments), None
            except BaseException as raised:  # whatever it raises: a caller waits
                result, error = None, tellable(raised)
            try:
                self._loop.call_soon_threadsafe(self._tell, future, result, error)
            except RuntimeError:
                return  # the loop has ended: no caller waits

    def _tell(self, future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
        self._busy -= 1
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def close(self) -> None:
        """Threads end after their current call; this does not wait for them."""
        for _ in self._threads:
            self._calls.put(None)
