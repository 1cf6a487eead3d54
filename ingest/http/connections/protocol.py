"""One HTTP/1.1 connection: an asyncio protocol on httptools' parser. It bounds what a careless or hostile client can do.

    head too large      more than HEAD_MAX_BYTES of request line and headers, or
                        more than HEADERS_MAX of them                               431, closed
    Host                none in HTTP/1.1, or several                                400, closed
    framing too large   chunk extensions and trailers that outgrow the body         431, closed
    too slow            no whole head within headerTimeout, of a new connection too 408, closed
                        no whole body within requestTimeout of its head, be it
                        wanted or refused                                           408, closed
    idle                longer than keepAliveTimeout, or others need the room       closed
    not HTTP                                                                        400, closed
    too many            maxConnections, all of them with a request under way        503, closed
    does not read       an answer that is not taken within requestTimeout, or more
                        than STALLED_MAX such clients (crowd.py)                    aborted
    pipelining          more than PIPELINED_MAX requests behind the first           aborted
    refused body        more than DRAINED_MAX_BYTES sent after the answer           aborted

Each refusal is problem+json, as from the application. The application bounds the size of bodies (app.py).

Requests are answered in the order in which they came: one is under way (`_current`), others wait behind it, and reading is paused
while any wait. Reading is also paused while the application has not taken what arrived of a body. At any moment something bounds
the connection: the application while it answers, otherwise a deadline (`_look_ahead`).

`Reader` (reading.py) makes requests of the bytes, `Deadline` (deadline.py) keeps the time; here requests are answered in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from ingest.http.connections.crowd import Admission, Crowd
from ingest.http.connections.deadline import ANY, BODY, END, HEAD, NOTHING, Await, Deadline
from ingest.http.connections.reading import Fault, Reader, Stop
from ingest.http.fast_path import Runner
from ingest.http.problems import head_of, problem
from ingest.http.request import Request
from ingest.http.wire import codec

LINGER_MS: Final = 1_000
#: Requests that may wait behind one that is being answered.
PIPELINED_MAX: Final = 64

_HEAD_TOO_SLOW: Final[Fault] = (408, "too_slow", "no whole request head arrived within headerTimeout", "")
_BODY_TOO_SLOW: Final[Fault] = (
    408, "too_slow", "the body did not arrive within requestTimeout: send it faster, or in smaller batches", "body"
)  # fmt: skip


class Connection(asyncio.Protocol):
    """Answers the requests of one connection, in order."""

    __slots__ = (
        "_beginning", "_crowd", "_current", "_deadline", "_drainers", "_loop", "_lost", "_parts", "_read_paused", "_reader",
        "_refused", "_runner", "_stopping", "_transport", "_waiting", "_write_timer", "secure", "write_paused",
    )  # fmt: skip

    def __init__(self, crowd: Crowd, runner: Runner) -> None:
        self._crowd, self._runner, self._loop = crowd, runner, asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._reader, self._deadline = Reader(self, runner.paths), Deadline(self._loop, self._on_late)
        self.secure = self.write_paused = self._lost = False
        self._current: Request | None = None
        self._waiting: deque[Request] = deque()
        self._beginning = self._read_paused = self._refused = self._stopping = False
        self._parts: list[bytes] = []
        self._drainers: list[asyncio.Future[None]] = []
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self.secure = transport.get_extra_info("sslcontext") is not None
        admission = self._crowd.admit(self)
        if admission is Admission.TAKEN:
            self._crowd.idle[self] = None
            self._deadline.expect(HEAD, self._crowd.settings.header_timeout_ms)
        elif admission is Admission.REFUSED:
            most = self._crowd.connections_max
            text = f"{most} connections are open (maxConnections), each with a request under way: try again later"
            self._refuse((503, "overloaded", text, ""), retry_after_s=1)
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._crowd.leave(self)
        self._lost = True
        self._deadline.close()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        self._wake_drainer()
        self._waiting.clear()
        self._parts.clear()
        self._reader.close()
        if self._current is not None:
            current, self._current = self._current, None
            current.lose()

    # --- what arrives -----------------------------------------------------------------------------------------------------
    def data_received(self, data: bytes) -> None:
        if self._refused or self._transport.is_closing():
            return  # what still arrives is dropped
        fault = self._reader.feed(data)
        if self._transport.is_closing():
            return
        if fault is not None:
            self._refuse(fault)
            return
        if self._waiting and self._current is None:
            self._begin()
        self._look_ahead()

    def receive(self, request: Request) -> None:
        self._crowd.idle.pop(self, None)
        self._deadline.awaited = NOTHING
        if self._current is not None or self._waiting:
            self.pause_reading()
            if len(self._waiting) + (self._current is not None) > PIPELINED_MAX:
                self._transport.abort()
                raise Stop
        self._waiting.append(request)

    def received(self) -> None:
        self._deadline.awaited = NOTHING

    # --- answers ----------------------------------------------------------------------------------------------------------
    def _begin(self) -> None:
        """Requests that wait, in order, until one is not answered at once."""
        self._beginning = True
        while self._waiting and self._current is None and not self._transport.is_closing():
            self._current = self._waiting.popleft()
            self._runner.begin(self._current)
        self._beginning = False

    def answer(self, request: Request, status: int, lines: bytes, content: bytes) -> None:
        goes_on = request.keep_alive and not self._stopping
        begin = self._crowd.begins.get(status) or self._crowd.begin_of(status)
        end = b"\r\n\r\n" if goes_on else b"\r\nconnection: close\r\n\r\n"
        body = content if request.method != "HEAD" else b""
        self.write(b"%b%bcontent-length: %d%b%b" % (begin, lines, len(content), end, body))
        self._current = None
        if not goes_on:
            self._hang_up(request)
            return
        if self._read_paused and not self._waiting:
            self.resume_reading()
        if not self._beginning:
            if self._waiting:
                self._begin()
            self._look_ahead()

    def _hang_up(self, request: Request) -> None:
        self._waiting.clear()
        if request is self._reader.receiving:
            self._linger()  # it still sends its body
        else:
            self.close()

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._crowd.collect(self)
        self._parts.append(data)

    def send(self) -> None:
        if self._parts:
            parts, self._parts = self._parts, []
            if not self._transport.is_closing():
                self._transport.write(b"".join(parts))

    # --- flow -------------------------------------------------------------------------------------------------------------
    def pause_reading(self) -> None:
        if not self._read_paused and not self._transport.is_closing():
            self._read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Unless a request waits behind the one under way."""
        if self._read_paused and not self._waiting and not self._transport.is_closing():
            self._read_paused = False
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self.write_paused = True
        self._crowd.stall(self)
        self._write_timer = self._loop.call_later(self._crowd.settings.request_timeout_ms / 1000, self.abort)

    def resume_writing(self) -> None:
        self.write_paused = False
        self._crowd.stalled.pop(self, None)
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        self._wake_drainer()

    async def drained(self) -> bool:
        """Until the client has read, or has gone; whether it has read."""
        if self.write_paused and not self._transport.is_closing():
            drainer = self._loop.create_future()
            self._drainers.append(drainer)  # an answer and the one behind it may both wait
            await drainer
        return not self._lost

    def _wake_drainer(self) -> None:
        self.write_paused = False
        drainers, self._drainers = self._drainers, []
        for drainer in drainers:
            if not drainer.done():
                drainer.set_result(None)

    # --- deadlines --------------------------------------------------------------------------------------------------------
    def _look_ahead(self) -> None:
        """After each piece and each answer: what must come next, and by when? A body behind requests that wait has time: reading
        is paused until then."""
        if self._refused or self._transport.is_closing():
            return
        settings, reader, deadline, is_free = self._crowd.settings, self._reader, self._deadline, self._current is None
        if not reader.in_head:
            if deadline.awaited is not BODY and not self._waiting:
                deadline.expect(BODY, settings.request_timeout_ms)
        elif reader.head_bytes:
            if is_free:
                self._crowd.idle.setdefault(self, None)
            if deadline.awaited is not HEAD:
                deadline.expect(HEAD, settings.header_timeout_ms)
        elif is_free:
            self._crowd.idle[self] = None
            deadline.expect(ANY, settings.keep_alive_ms)

    def _on_late(self, awaited: Await) -> None:
        receiving = self._reader.receiving
        if awaited is HEAD:
            self._refuse(_HEAD_TOO_SLOW)
        elif awaited is BODY and receiving is not None and not receiving.answered:
            self._refuse(_BODY_TOO_SLOW)
        elif awaited is ANY:
            self.close()
        else:
            self.abort()

    # --- the end ----------------------------------------------------------------------------------------------------------
    def _refuse(self, fault: Fault, *, retry_after_s: float = 0.0) -> None:
        """Say why, and hang up."""
        self._crowd.refused += 1
        if self._reader.receiving is not None and self._reader.receiving.answered:
            self._linger()  # it has had its answer
        elif self._call_off():
            status, code, detail, field = fault
            content = codec.encode(problem(status, code, detail, field), codec.JSON)
            self.write(head_of(status, len(content), retry_after_s) + content)
            self._linger()
        else:
            self.abort()  # the answer to an earlier request comes first, and nothing can be said in between

    def _call_off(self) -> bool:
        """The request that is being received turned out to be none: for the application its client has gone. False where another
        one is to be answered before."""
        under_way = [request for request in (self._current, *self._waiting) if request is not None]
        if under_way and under_way != [self._reader.receiving]:
            return False
        self._waiting.clear()
        if self._current is not None:
            current, self._current = self._current, None
            current.lose()
        return True

    def _linger(self) -> None:
        """Closing on a client that still sends would reset the connection before it has read the answer: let it see the end
        first, and drop what it sends, for a moment."""
        self._refused = True
        self._crowd.idle.pop(self, None)
        self._waiting.clear()
        self.resume_reading()  # or its end would not be seen
        if self._transport.can_write_eof() and not self._transport.is_closing():
            self.send()
            self._transport.write_eof()
            self._deadline.expect(END, LINGER_MS)
        else:  # TLS
            self.close()

    def stop(self) -> None:
        """The server ends: now, or when the request under way is answered."""
        self._stopping = True
        if self._current is None:
            self.close()

    def make_room(self) -> None:
        """There is no request under way, and another connection needs the room now."""
        self.send()
        if self.secure or self._transport.get_write_buffer_size():
            self.abort()  # closing would wait for the client
        else:
            self.close()

    def close(self) -> None:
        self.send()
        if not self._transport.is_closing():
            self._transport.close()
            if self._transport.get_write_buffer_size():
                self._deadline.expect(END, self._crowd.settings.request_timeout_ms)

    def abort(self) -> None:
        self._transport.abort()
