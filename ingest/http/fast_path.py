"""Runs the application for each request.

A request begins when the bytes that arrived with its head have been read. Mostly it runs as a task. Halves, messages and ends
make up nearly all traffic and wait for nothing but the committer's future: where their body is there, they run without a task
(`_Steps`). They begin at once, in the same turn of the loop, and go on when the future is done: as eager tasks do, which asyncio
has from Python 3.12 on. Such a request cannot be cancelled and has no current task; nothing else differs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any, Final, Protocol

from ingest.http.large import LARGE_BYTES
from ingest.http.request import Request

LOG: Final = logging.getLogger("escrow.door")


class Application(Protocol):
    """`paths`: URLs without names in them, which need no parsing. `straight`: paths whose handlers wait for plain futures only."""

    @property
    def paths(self) -> Mapping[bytes, str]: ...
    @property
    def straight(self) -> frozenset[str]: ...
    def __call__(self, request: Request) -> Coroutine[Any, Any, None]: ...


class Runner:
    """Of one application; `running` has what is under way."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self.paths, self._straight = application.paths, application.straight
        self.running: set[object] = set()
        self._loop = asyncio.get_running_loop()
        self._idle: asyncio.Future[None] | None = None

    def begin(self, request: Request) -> None:
        steps = self._application(request)
        # A large body is decoded in a thread.
        if request.path in self._straight and request.is_whole and request.buffered_bytes <= LARGE_BYTES:
            _Steps(self, request, steps).go_on(None)
        else:
            task = self._loop.create_task(self._run(request, steps))
            self.running.add(task)
            task.add_done_callback(self.through)

    async def _run(self, request: Request, steps: Coroutine[Any, Any, None]) -> None:
        try:
            await steps
        except Exception:
            LOG.exception("a request ended with an unexpected error")
        finally:
            if not request.answered:
                request.fail()

    def through(self, ended: object) -> None:
        self.running.discard(ended)
        if not self.running and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def drained(self, within_s: float) -> None:
        """Until nothing runs any more, or so long."""
        if self.running:
            self._idle = self._loop.create_future()
            await asyncio.wait([self._idle], timeout=within_s)


class _Steps:
    """A request that runs without a task."""

    __slots__ = ("_request", "_runner", "_steps")

    def __init__(self, runner: Runner, request: Request, steps: Coroutine[Any, Any, None]) -> None:
        self._runner, self._request, self._steps = runner, request, steps
        runner.running.add(self)

    def go_on(self, _: object) -> None:
        try:
            awaited = self._steps.send(None)
        except StopIteration:
            self._through()
        except BaseException:
            LOG.exception("a request ended with an unexpected error")
            self._through()
        else:
            awaited._asyncio_future_blocking = False  # as a task does (see asyncio.isfuture): `await` has set it
            awaited.add_done_callback(self.go_on)

    def _through(self) -> None:
        self._runner.through(self)
        if not self._request.answered:
            self._request.fail()
