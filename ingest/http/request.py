"""One HTTP request: what its head says, its body as it arrives, and its answer.

A connection makes it (protocol.py) and the application uses it (app.py). The application either takes the whole body at once
(`take`) or waits for it piece by piece (`next_piece`), and answers once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol
from urllib.parse import unquote

import httptools

from ingest.http.problems import Headers

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_CONTROLS: Final = bytes(range(32)) + b"\x7f"


class ClientGone(ConnectionError):
    """The client has closed its connection and does not take the answer."""


class Link(Protocol):
    """What a request needs of its connection."""

    secure: bool
    write_paused: bool

    def write(self, data: bytes) -> None: ...
    def resume_reading(self) -> None: ...
    def send(self) -> None: ...
    async def drained(self) -> bool: ...
    def answer(self, request: Request, status: int, lines: bytes, content: bytes) -> None: ...
    def abort(self) -> None: ...


class Request:
    """`lines` of an answer are whole header lines, as `header_lines` makes them."""

    __slots__ = (
        "_expects_continue",
        "_link",
        "_more",
        "_on_gone",
        "_parts",
        "_waiter",
        "answered",
        "buffered_bytes",
        "gone",
        "headers",
        "keep_alive",
        "method",
        "path",
        "query",
    )

    def __init__(
        self, link: Link, method: str, path: str, query: bytes, headers: dict[bytes, bytes],
        *, keep_alive: bool, expects_continue: bool,
    ) -> None:  # fmt: skip
        self._link, self.method, self.path, self.query, self.headers = link, method, path, query, headers
        self.keep_alive, self._expects_continue = keep_alive, expects_continue
        self._parts: list[bytes] = []
        self.buffered_bytes = 0
        self._more = True
        self.answered = self.gone = False
        self._waiter: asyncio.Future[None] | None = None
        self._on_gone: Callable[[], object] | None = None

    # --- for the application ----------------------------------------------------------------------------------------------
    @property
    def secure(self) -> bool:
        return self._link.secure

    @property
    def is_whole(self) -> bool:
        """The whole body has arrived."""
        return not self._more

    def take(self) -> bytes | None:
        """The whole body, or None while some of it is still to come."""
        return None if self._more else self._taken()

    async def next_piece(self) -> bytes:
        """What has arrived of the body since the last call; empty behind its end."""
        while self._more and not self._parts:
            if self.gone:
                raise ClientGone
            if self._expects_continue:
                self._expects_continue = False
                self._link.write(CONTINUE)
            self._link.resume_reading()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self.gone:
            raise ClientGone
        return self._taken()

    def _taken(self) -> bytes:
        content, self._parts, self.buffered_bytes = b"".join(self._parts), [], 0
        return content

    def watch(self, on_gone: Callable[[], object] | None) -> None:
        """Call this when the client goes away; None: no longer."""
        self._on_gone = on_gone

    @property
    def must_wait(self) -> bool:
        """The client does not read: wait for `drained` before answering."""
        return self._link.write_paused and not self.gone

    async def drained(self) -> None:
        await self._link.drained()

    async def taken(self) -> None:
        """After the answer: until the client has taken nearly all of it; ClientGone where it goes before."""
        self._link.send()  # the transport knows then whether the client reads
        if not await self._link.drained():
            raise ClientGone

    def answer(self, status: int, lines: bytes, content: bytes) -> None:
        if self.gone or self.answered:
            return
        self.answered, self._expects_continue = True, False
        self._link.answer(self, status, lines, content)

    def fail(self) -> None:
        """The application ended without an answer."""
        if not self.gone:
            self._link.abort()

    # --- for the connection -----------------------------------------------------------------------------------------------
    def put(self, piece: bytes) -> None:
        self._parts.append(piece)
        self.buffered_bytes += len(piece)
        self._expects_continue = False
        if self._waiter is not None:
            self._wake()

    def complete(self) -> None:
        self._more = False
        if self._waiter is not None:
            self._wake()

    def lose(self) -> None:
        """The client has gone, or what it sent turned out to be no request."""
        self.gone = True
        self._wake()
        if self._on_gone is not None:
            self._on_gone()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def header_lines(headers: Headers) -> bytes:
    """Raises ValueError where a value would break out of its line."""
    for _, value in headers:
        if value.translate(None, _CONTROLS) != value:
            raise ValueError(f"a header with control characters: {value[:64]!r}")
    return b"".join([b"%b: %b\r\n" % pair for pair in headers])


def split_url(url: bytes) -> tuple[str, bytes]:
    """(path, query) of a request line; raises where it has no path."""
    parsed = httptools.parse_url(url)
    if parsed.path is None:
        raise ValueError("no path")
    path = parsed.path.decode("ascii")
    return (unquote(path) if "%" in path else path), parsed.query or b""
