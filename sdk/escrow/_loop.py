"""Calls in an event loop: what `escrow._transport` is for threads, and by the same rules.

A task that sends through threads costs three times as much: each hand-over takes locks, and the threads compete with the loop for
the interpreter (measured: 65 against 22 µs of the client for a transaction of 64 tasks). So nothing here leaves the loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from typing import Any, TypeVar

from escrow._calls import Call
from escrow._http1 import Answer, answering, request_of
from escrow._transport import KEPT_MAX, Backoff, Request, Server, decoded, pause_after
from escrow.errors import Closed, EscrowError

_T = TypeVar("_T")


class LoopHome:
    """The event loop that something is made in."""

    def __init__(self) -> None:
        self.loop, self.thread = asyncio.get_running_loop(), threading.get_ident()

    def is_here(self) -> bool:
        """Whether it is the one that runs here. (Before Python 3.12 `get_running_loop` is a system call, which a message would pay
        for twice.)"""
        quick = threading.get_ident() == self.thread and self.loop.is_running()
        return quick or asyncio.get_running_loop() is self.loop


class LoopConnection(asyncio.Protocol):
    """One connection; one request after another."""

    def __init__(self, authority: str, loop: asyncio.AbstractEventLoop) -> None:
        self._authority, self._loop = authority, loop
        self._came = bytearray()
        self._ended = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._wire: asyncio.Transport | None = None

    @classmethod
    async def open(cls, server: Server) -> LoopConnection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(server.authority, loop), server.host, server.port, ssl=server.tls)
        return connection

    @property
    def is_open(self) -> bool:
        """Nothing is due on it between two requests, so what has come is its end, or answers no request."""
        return self._wire is not None and not (self._ended or self._came)

    def close(self) -> None:
        self._ended = True
        if self._wire is not None:
            self._wire.abort()
            self._wire = None

    async def exchange(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        """Any error, and a cancellation, leaves a connection that is of no more use: close it."""
        if self._wire is None:
            raise ConnectionResetError("the connection was closed")
        self._wire.write(request_of(self._authority, method, target, headers, body))
        reading = answering()
        room = next(reading)
        while True:
            try:
                room = reading.send(await self._fill(room))
            except StopIteration as end:
                answer: Answer = end.value
                break
        if not answer.keeps:
            self.close()
        return answer

    async def _fill(self, room: memoryview) -> int:
        while not self._came:
            if self._error is not None:
                raise self._error
            if self._ended:
                return 0
            self._waiter = self._loop.create_future()
            await self._waiter
        count = min(len(room), len(self._came))
        room[:count] = self._came[:count]
        del self._came[:count]
        return count

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- what the loop tells ----------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._wire = transport

    def data_received(self, data: bytes) -> None:
        self._came += data
        self._wake()

    def eof_received(self) -> None:
        self._ended = True
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._ended, self._error, self._wire = True, error, None
        self._wake()


class LoopTransport:
    """Calls to one Escrow, as `Transport` makes them, from the tasks of one event loop."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._kept: list[LoopConnection] = []
        self._closed = False

    async def perform(self, call: Call[_T], give_up_at: float | None = None) -> _T:
        """What the answer says; patience and repetition as in `Transport.perform`."""
        request = self._server.request(call)
        if give_up_at is None:
            give_up_at = time.monotonic() + self._server.retry_for_s
        backoff = Backoff()
        while True:
            try:
                answer = await self._attempt(request)
            except EscrowError as error:
                pause_s = pause_after(error, call.repeat, backoff)
                if pause_s is None or time.monotonic() + pause_s >= give_up_at:
                    raise
            else:
                return call.read(answer)
            await asyncio.sleep(pause_s)

    async def _attempt(self, request: Request) -> Any:
        if self._closed:
            raise Closed("this producer or consumer is closed")
        connection: LoopConnection | None = None
        try:
            async with asyncio.timeout(self._server.timeout_s + (request.wait_s or 0.0)):
                connection = self._kept_one() or await LoopConnection.open(self._server)
                answer = await connection.exchange(request.method, request.path, request.headers, request.content)
        except OSError as error:  # a TimeoutError is one
            if connection is None:
                raise self._server.no_connection(error) from error
            connection.close()
            raise self._server.no_answer(request, error) from error
        except BaseException:
            if connection is not None:
                connection.close()  # an answer that still comes answers no request
            raise
        if connection.is_open:
            self._keep(connection)
        return decoded(answer)

    def _kept_one(self) -> LoopConnection | None:
        """The one that was used last and is still open."""
        while self._kept:
            connection = self._kept.pop()
            if connection.is_open:
                return connection
            connection.close()
        return None

    def _keep(self, connection: LoopConnection) -> None:
        if len(self._kept) < KEPT_MAX and not self._closed:
            self._kept.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Calls under way end by themselves; none begins."""
        self._closed = True
        for connection in self._kept:
            connection.close()
        self._kept.clear()
