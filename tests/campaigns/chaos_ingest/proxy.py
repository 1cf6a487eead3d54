"""A network that breaks: a TCP proxy between clients and the endpoint, real sockets on both sides.

It reads whole requests and answers, so that it can break a connection exactly where it wants:

    cut_request      in the middle of the request: Escrow has half of it
    cut_forwarded    when the request was passed on whole: nobody knows whether it was carried out
    cut_unanswered   when the answer has begun to arrive: it was carried out, the client never hears so
    cut_answer       in the middle of the answer
    stall_request    the request is held back until the client has lost patience, and passed on all the same
    stall_answer     the answer is

A cut is a reset or an ordinary end of the connection, at random. Each request has a connection to Escrow of its own; whoever wants
to see kept connections break talks to the endpoint directly.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

#: Longer than the patience of the clients (3 s).
STALL_S = 4.0
RESET = struct.pack("ii", 1, 0)
#: Last words of a path → route.
ROUTES = ("halves", "ends", "checks", "messages", "acks", "visibility")

#: (route, how many came before) → a cut, or "".
Choose = Callable[[str, int], str]
#: (route, request body): it has been passed on whole. True: the client is dead now, and gets nothing.
Forwarded = Callable[[str, bytes], bool]
#: (route, request body, answer body) of an answered request, whether or not the client will hear of it.
Answered = Callable[[str, bytes, bytes], None]


@dataclass(frozen=True, slots=True)
class Part:
    """A request or an answer."""

    head: bytes
    body: bytes

    @property
    def whole(self) -> bytes:
        return self.head + self.body

    @property
    def half(self) -> bytes:
        """Something of the body, where there is one."""
        return self.head + self.body[: len(self.body) // 2] if self.body else self.head[: len(self.head) // 2]

    @property
    def route(self) -> str:
        path = self.head.split(b" ", 2)[1].partition(b"?")[0].decode()
        return next((route for route in ROUTES if path.endswith(f"/{route}")), "other")


@dataclass(frozen=True, slots=True)
class _Flow:
    """A request under way, with both connections: reader and writer are the client's, upstream and escrow the endpoint's."""

    request: Part
    cut: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    upstream: asyncio.StreamReader
    escrow: asyncio.StreamWriter


class Proxy:
    """`async with Proxy(port, choose, counts, rng) as proxy:` … `proxy.url`"""

    def __init__(
        self,
        upstream_port: int,
        choose: Choose,
        counts: Counter[str],
        rng: random.Random,
        *,
        forwarded: Forwarded = lambda *_: False,
        answered: Answered = lambda *_: None,
    ) -> None:
        self._upstream_port, self._choose, self._counts, self._rng = upstream_port, choose, counts, rng
        self._forwarded, self._answered = forwarded, answered
        self._came: Counter[str] = Counter()
        self._flows: set[asyncio.Task[None]] = set()
        #: Requests that are or were held back, and are still under way; their clients may have gone.
        self.stalled = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.close()
        for flow in self._flows:
            flow.cancel()
        await asyncio.gather(*self._flows, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        flow = asyncio.current_task()
        assert flow is not None
        self._flows.add(flow)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                while await self._serve(reader, writer):
                    pass
        except asyncio.CancelledError:
            pass  # the proxy closes; a cancelled handler would be logged as an error
        finally:
            writer.transport.abort()
            self._flows.discard(flow)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; whether the connection goes on."""
        request = await _read(reader)
        connection = await self._connect()
        if connection is None:
            return False  # the endpoint is dead just now
        cut = self._choose(request.route, self._came[request.route])
        self._came[request.route] += 1
        if cut == "stall_request":
            connection[1].transport.abort()
            connection = None
        stalls = cut.startswith("stall")
        self.stalled += stalls
        try:
            async with asyncio.timeout(60):
                while connection is None:
                    await asyncio.sleep(STALL_S)
                    connection = await self._connect()
                return await self._exchange(_Flow(request, cut, reader, writer, *connection))
        except TimeoutError:
            return False
        finally:
            self.stalled -= stalls
            if connection is not None:
                connection[1].transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        try:
            return await asyncio.open_connection("127.0.0.1", self._upstream_port)
        except OSError:
            return None

    async def _exchange(self, flow: _Flow) -> bool:
        request, cut, route = flow.request, flow.cut, flow.request.route
        if cut == "cut_request":
            await _send(flow.escrow, request.half)
            return self._break(flow)
        await _send(flow.escrow, request.whole)
        if cut == "stall_request":
            self._counts[f"{cut} of {route}"] += 1
        if self._forwarded(route, request.body):
            return False
        if cut == "cut_forwarded":
            return self._break(flow)
        answer = await _answer(flow)
        if answer is None:
            return False
        self._answered(route, request.body, answer.body)
        if cut == "cut_unanswered":
            return self._break(flow)
        if cut == "cut_answer":
            await _send(flow.writer, answer.half)
            return self._break(flow)
        if cut == "stall_answer":
            self._counts[f"{cut} of {route}"] += 1
            await asyncio.sleep(STALL_S)
        await _send(flow.writer, answer.whole)
        return True

    def _break(self, flow: _Flow) -> bool:
        reset = self._rng.random() < 0.5
        for end in (flow.escrow, flow.writer):
            if reset:
                end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            end.transport.abort()
        self._counts[f"{flow.cut} of {flow.request.route}"] += 1
        return False


async def _answer(flow: _Flow) -> Part | None:
    """The answer; None when the client has gone meanwhile, which a poll must hear of. (Who cuts waits all the same.)"""
    answer, gone = asyncio.ensure_future(_read(flow.upstream)), asyncio.ensure_future(flow.reader.read(1))
    try:
        await asyncio.wait([answer] if flow.cut else [answer, gone], return_when=asyncio.FIRST_COMPLETED)
        return await answer if answer.done() else None
    finally:
        for task in (answer, gone):
            task.cancel()
        await asyncio.gather(answer, gone, return_exceptions=True)


async def _read(reader: asyncio.StreamReader) -> Part:
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return Part(head, await reader.readexactly(length))


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Into the kernel, all of it: what is aborted after that was sent."""
    writer.write(data)
    while writer.transport.get_write_buffer_size():
        await writer.drain()
        await asyncio.sleep(0.001)
