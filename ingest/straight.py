"""The straight way through the door, for the operations that make up nearly all traffic: halves, messages and ends.

What ASGI needs for a request, a task and a handful of objects that pass events, is a tenth of what such a request costs
(docs/performance.md). Here the application begins as soon as the body is there, in the same turn of the loop, and goes on when
what it waits for has come: as asyncio's eager tasks do (Python 3.12), only that nothing can be cancelled and there is no current
task. So it is for handlers that wait for plain futures and nothing else (`App.straight`).

A request goes this way if its URL is one of these, all of it came in one piece, and nothing is being answered before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from ingest.problems import Headers

LOG: Final = logging.getLogger("escrow.door")


def rendered(status: int, default_headers: Headers, headers: Headers, content: bytes, *, keep_alive: bool) -> bytes:
    """An answer in one piece. Headers are our own: lower case, and without line breaks."""
    head = [STATUS_LINE[status]]
    for name, value in default_headers:
        head += (name, b": ", value, b"\r\n")
    for name, value in headers:
        head += (name, b": ", value, b"\r\n")
    head.append(b"\r\n" if keep_alive else b"connection: close\r\n\r\n")
    head.append(content)
    return b"".join(head)


class _NoEvent:
    """In the place of an event that nobody waits for."""

    def set(self) -> None:
        pass


class Straight:
    """One request. Has what uvicorn's connection wants of its cycles, and is `Whole` for the application."""

    __slots__ = (
        "_began",
        "_content",
        "_ended",
        "_scope",
        "_steps",
        "default_headers",
        "disconnected",
        "keep_alive",
        "more_body",
        "on_response",
        "response_complete",
        "response_started",
        "transport",
        "waiting_for_100_continue",
    )
    message_event: Final = _NoEvent()

    def __init__(
        self,
        scope: dict[str, Any],
        transport: Any,
        default_headers: list[tuple[bytes, bytes]],
        keep_alive: bool,
        on_response: Callable[[], None],
    ) -> None:
        self._scope: dict[str, Any] | None = scope
        self.transport, self.default_headers = transport, default_headers
        self.keep_alive, self.on_response = keep_alive, on_response
        self._content, self.more_body = b"", True
        self.disconnected = self.response_started = self.response_complete = self.waiting_for_100_continue = False
        self._steps: Coroutine[Any, Any, None] | None = None
        self._began: set[Straight] = set()
        self._ended: asyncio.Future[None] | None = None

    # --- the application's side ------------------------------------------------------------------------------------------------
    def take(self) -> bytes:
        content, self._content = self._content, b""
        return content

    def answer(self, status: int, headers: Headers, content: bytes) -> bool:
        """Write the whole answer: one is small, and the connection's timer bounds how long it may wait to be taken."""
        if self.disconnected:
            return True
        self.response_started = self.response_complete = True
        self.transport.write(rendered(status, self.default_headers, headers, content, keep_alive=self.keep_alive))
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
        return True

    # --- the door's side ----------------------------------------------------------------------------------------------------------
    def put(self, body: bytes) -> None:
        """A piece of the body; mostly it is all of it."""
        self._content = self._content + body if self._content else body

    def run(self, application: Any, began: set[Straight]) -> None:
        """The body is there: begin. It is among `began` until it is through."""
        scope, self._scope = self._scope, None  # it knows us as `Whole`
        self._steps, self._began = application(scope, None, None), began
        began.add(self)
        self._step(None)

    def _step(self, _: asyncio.Future[Any] | None) -> None:
        assert self._steps is not None
        try:
            awaited = self._steps.send(None)
        except StopIteration:
            self._through()
        except BaseException:
            LOG.exception("a request ended with an error that nobody foresaw")
            self._through()
            self.transport.close()
        else:
            awaited._asyncio_future_blocking = False  # as a task does: it was asked for by `await`
            awaited.add_done_callback(self._step)

    def _through(self) -> None:
        self._steps = None
        self._began.discard(self)
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def ended(self) -> asyncio.Future[None]:
        """Done when the answer is written."""
        self._ended = self._ended or asyncio.get_running_loop().create_future()
        return self._ended
