"""A webhook's receiver over real loopback sockets, with whatever manners a test gives it."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Request:
    """What came."""

    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def check(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


Manner = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]


def answers(status: int = 200, content: Any = None, **headers: str) -> Manner:
    """Answers so: content as JSON, bytes as they are."""

    async def behave(_: Request, writer: asyncio.StreamWriter) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}", *(f"{name}: {value}" for name, value in headers.items())]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        await writer.drain()

    return behave


def says(outcome: str) -> Manner:
    return answers(content={"outcome": outcome})


@dataclass(slots=True)
class Receiver:
    """`manners`: one for each request, the last for all that follow."""

    manners: list[Manner]
    port: int = 0
    scheme: str = "http"
    requests: list[Request] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/checks"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {line.split(": ", 1)[0].lower(): line.split(": ", 1)[1] for line in head[1:-2]}
                body = await reader.readexactly(int(headers["content-length"]))
                request = Request(head[0], headers, body)
                self.requests.append(request)
                manner = self.manners[min(len(self.requests), len(self.manners)) - 1]
                self.at_once += 1
                self.most_at_once = max(self.most_at_once, self.at_once)
                try:
                    await manner(request, writer)
                finally:
                    self.at_once -= 1
        except (OSError, EOFError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def receiver(*manners: Manner, tls: ssl.SSLContext | None = None, port: int = 0) -> AsyncIterator[Receiver]:
    made = Receiver(list(manners))
    running: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            await made.serve(reader, writer)
        finally:
            running.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", port, ssl=tls)
    made.port, made.scheme = server.sockets[0].getsockname()[1], "https" if tls else "http"
    try:
        yield made
    finally:
        server.close()
        for task in list(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
