"""Many clients in one event loop: a line is one connection that asks and waits for its answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

from tests.support.endpoint import PATIENCE_S, Endpoint

#: Connections that are opened at one time: more than the kernel's queue takes would have to come again.
OPENING = 128


class Answer:
    """Status, headers (lower case) and what the body says."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.content = status, headers, json.loads(body)

    def __repr__(self) -> str:
        return f"{self.status} {self.content}"


class Line:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Line:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, method: str, path: str, content: Any = None) -> Answer:
        await self.send(method, path, content)
        async with asyncio.timeout(PATIENCE_S):
            return await self.answer()

    async def send(self, method: str, path: str, content: Any = None) -> None:
        body = b"" if content is None else json.dumps(content).encode()
        length = f"content-length: {len(body)}\r\n" if content is not None else ""
        self._writer.write(f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n{length}\r\n".encode() + body)
        await self._writer.drain()

    async def answer(self) -> Answer:
        """EOFError or ConnectionError where the other side is gone."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        return Answer(int(head[0].split()[1]), headers, await self._reader.readexactly(int(headers["content-length"])))

    @property
    def silent(self) -> bool:
        """Nothing has come that nobody read, and the other side is there."""
        return not self._reader._buffer and not self._reader.at_eof()  # type: ignore[attr-defined]

    async def close(self) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


@asynccontextmanager
async def lines(port: int, count: int):
    """So many connections, opened a few at a time; closed together."""
    gate = asyncio.Semaphore(OPENING)

    async def open_one() -> Line:
        async with gate:
            return await Line.open(port)

    made = await asyncio.gather(*[open_one() for _ in range(count)])
    try:
        yield made
    finally:
        await asyncio.gather(*[line.close() for line in made])


async def together(works: Iterable[Awaitable[Any]]) -> list[Any]:
    """All at once; the first that fails ends them all."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_run(work)) for work in works]
    return [task.result() for task in tasks]


async def _run(work: Awaitable[Any]) -> Any:
    return await work


class Peak:
    """The most private memory that the endpoint had while this was entered."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.before = self.most = endpoint.private_bytes()

    async def _watch(self) -> None:
        while True:
            self.most = max(self.most, self._endpoint.private_bytes())
            await asyncio.sleep(0.02)

    async def __aenter__(self) -> Peak:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        self.most = max(self.most, self._endpoint.private_bytes())

    @property
    def growth(self) -> int:
        return self.most - self.before


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not true():
            await asyncio.sleep(0.01)
