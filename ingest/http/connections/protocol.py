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
the connection: the application while it answers, otherwise a deadline here (`_look_ahead`). Deadlines move with every request, the
timer does not: it looks when it fires whether the deadline has moved.

Trailers are dropped. An offered upgrade is declined by answering in HTTP/1.1 (RFC 9110, 7.8): `_behind_upgrade`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum
from typing import Any, Final

import httptools

from ingest.auth import callers
from ingest.errors import InvalidRequest
from ingest.http.connections.crowd import Admission, Crowd
from ingest.http.fast_path import Runner
from ingest.http.problems import head_of, problem
from ingest.http.request import Request, split_url
from ingest.http.wire import codec

HEAD_MAX_BYTES: Final = 32 << 10
HEADERS_MAX: Final = 256
#: Of each header, besides its name and its value.
_HEADER_ROOM_BYTES: Final = 4
#: What a client may go on sending after it was refused, so that it can read the refusal.
DRAINED_MAX_BYTES: Final = 64 << 20
#: Bytes of chunk sizes for one byte of a body: a chunk of one byte has five.
FRAMING_FACTOR: Final = 8
LINGER_MS: Final = 1_000
#: Requests that may wait behind one that is being answered.
PIPELINED_MAX: Final = 64
#: Of a body that the application has not taken.
BUFFERED_MAX_BYTES: Final = 64 << 10

_Fault = tuple[int, str, str, str]
_NO_HTTP: Final[_Fault] = (400, "bad_http", "the request is not valid HTTP: check its request line, headers and framing", "request")
_HEAD_TOO_LARGE: Final[_Fault] = (
    431, "too_large", f"the head has more than {HEAD_MAX_BYTES} bytes or {HEADERS_MAX} headers: send less", "headers"
)  # fmt: skip
_FRAMING_TOO_LARGE: Final[_Fault] = (
    431, "too_large", f"chunk extensions and trailers have more than {HEAD_MAX_BYTES} bytes: leave them out", "body"
)  # fmt: skip
_HEAD_TOO_SLOW: Final[_Fault] = (408, "too_slow", "no whole request head arrived within headerTimeout", "")
_BODY_TOO_SLOW: Final[_Fault] = (
    408, "too_slow", "the body did not arrive within requestTimeout: send it faster, or in smaller batches", "body"
)  # fmt: skip


class _Await(Enum):
    """What must come before the deadline."""

    NOTHING = 0
    HEAD = 1
    BODY = 2
    ANY = 3
    #: The connection's end: it was refused, or it is closed and its client does not read.
    END = 4


_NOTHING, _HEAD, _BODY, _ANY, _END = _Await


class _Refuse(Exception):
    """Raised where the parser is to stop; `_fault` says why."""


class Connection(asyncio.Protocol):
    """The parser calls the methods `on_…`."""

    __slots__ = (
        "_awaited", "_beginning", "_body_bytes", "_crowd", "_current", "_drained_bytes", "_drainers", "_due_s", "_fault",
        "_framed_bytes", "_head", "_head_bytes", "_in_head", "_loop", "_lost", "_offered", "_parser", "_parts", "_piece_bytes",
        "_read_paused", "_receiving", "_refused", "_runner", "_stopping", "_timer", "_timer_s", "_transport", "_url", "_waiting",
        "_write_timer", "secure", "write_paused",
    )  # fmt: skip

    def __init__(self, crowd: Crowd, runner: Runner) -> None:
        self._crowd, self._runner, self._loop = crowd, runner, asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._parser = _make_parser(self)
        self.secure = self.write_paused = self._lost = False
        # What is being read.
        self._url, self._head = b"", list[tuple[bytes, bytes]]()
        self._in_head, self._offered = True, False
        self._receiving: Request | None = None
        self._head_bytes = self._piece_bytes = self._framed_bytes = self._body_bytes = self._drained_bytes = 0
        self._fault = _NO_HTTP
        # What is being answered.
        self._current: Request | None = None
        self._waiting: deque[Request] = deque()
        self._beginning = self._read_paused = self._refused = self._stopping = False
        self._parts: list[bytes] = []
        self._drainers: list[asyncio.Future[None]] = []
        # Deadlines.
        self._awaited, self._due_s, self._timer_s = _NOTHING, 0.0, 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self.secure = transport.get_extra_info("sslcontext") is not None
        admission = self._crowd.admit(self)
        if admission is Admission.TAKEN:
            self._crowd.idle[self] = None
            self._expect(_HEAD, self._crowd.settings.header_timeout_ms)
        elif admission is Admission.REFUSED:
            most = self._crowd.connections_max
            text = f"{most} connections are open (maxConnections), each with a request under way: try again later"
            self._refuse((503, "overloaded", text, ""), retry_after_s=1)
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._crowd.leave(self)
        self._awaited, self._lost = _NOTHING, True
        for timer in (self._timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._write_timer = None
        self._wake_drainer()
        self._waiting.clear()
        self._parts.clear()
        self._receiving = None
        self._parser = None  # it knows us
        if self._current is not None:
            current, self._current = self._current, None
            current.lose()

    # --- what arrives -----------------------------------------------------------------------------------------------------
    def data_received(self, data: bytes) -> None:
        if self._refused or self._transport.is_closing():
            return  # what still arrives is dropped
        self._piece_bytes = len(data)
        if self._in_head:
            self._head_bytes += self._piece_bytes
        else:
            self._framed_bytes += self._piece_bytes
        if not self._parse(data) or self._transport.is_closing():
            return
        if self._in_head:
            if self._head_bytes > HEAD_MAX_BYTES:
                self._refuse(_HEAD_TOO_LARGE)
                return
        elif self._framed_bytes > HEAD_MAX_BYTES + FRAMING_FACTOR * self._body_bytes:
            self._refuse(_FRAMING_TOO_LARGE)
            return
        if self._waiting and self._current is None:
            self._begin()
        self._look_ahead()

    def _parse(self, data: bytes) -> bool:
        """Whether it was HTTP."""
        while True:
            try:
                self._parser.feed_data(data)
                return True
            except httptools.HttpParserUpgrade as stopped:
                data = self._behind_upgrade(data[stopped.args[0] :])
            except httptools.HttpParserError:
                if not self._transport.is_closing():
                    self._refuse(self._fault)
                return False

    def _behind_upgrade(self, rest: bytes) -> bytes:
        """Go on behind a head that offers an upgrade as if it did not. The parser takes what follows for another protocol and reads
        no body; Java's own HTTP client offers h2c with the first request of every connection, POST included. So a new parser
        gets a head that says as much of the body as the real one did. Its callbacks find that no head is being read."""
        assert self._receiving is not None
        self._offered, headers = False, self._receiving.headers
        framing = [b"%b: %b\r\n" % (name, headers[name]) for name in (b"content-length", b"transfer-encoding") if name in headers]
        self._parser = _make_parser(self)
        return b"".join([b"POST / HTTP/1.1\r\n", *framing, b"\r\n", rest])

    def on_message_begin(self) -> None:
        if self._in_head and not self._head_bytes:
            self._head_bytes = 1  # it begins in the piece that ended the last request

    def on_url(self, url: bytes) -> None:
        if self._in_head:
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # trailers are dropped
            self._head.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if not self._in_head:
            return
        head, self._head, url, self._url = self._head, [], self._url, b""
        headers = dict(head)
        if self._head_bytes + self._piece_bytes > HEAD_MAX_BYTES or len(head) > HEADERS_MAX:
            self._check_size(url, head)
        if len(headers) < len(head) or b"host" not in headers:
            self._check_host(head)
            self._check_single(head)
        self._in_head = False
        self._head_bytes = self._framed_bytes = self._body_bytes = self._drained_bytes = 0
        self._crowd.idle.pop(self, None)
        self._awaited = _NOTHING
        self._receive(self._make_request(url, headers))

    def _check_size(self, url: bytes, head: list[tuple[bytes, bytes]]) -> None:
        """A head that came in one piece with what follows it is measured here, one that does not end in `data_received`."""
        size = len(url) + sum(len(name) + len(value) + _HEADER_ROOM_BYTES for name, value in head)
        if size > HEAD_MAX_BYTES or len(head) > HEADERS_MAX:
            self._fault = _HEAD_TOO_LARGE
            raise _Refuse

    def _check_host(self, head: list[tuple[bytes, bytes]]) -> None:
        hosts = sum(name == b"host" for name, _ in head)
        if hosts > 1 or (not hosts and self._parser.get_http_version() == "1.1"):
            self._fault = (400, "bad_http", f"Host: must be sent once, and was sent {hosts} times", "host")
            raise _Refuse

    def _check_single(self, head: list[tuple[bytes, bytes]]) -> None:
        try:
            callers.check_single(head)
        except InvalidRequest as error:
            self._fault = (400, "bad_http", str(error), "headers")
            raise _Refuse from error

    def _make_request(self, url: bytes, headers: dict[bytes, bytes]) -> Request:
        parser, path, query = self._parser, self._runner.paths.get(url), b""
        if path is None:
            path, query = split_url(url)
        keep_alive, expects_continue = parser.should_keep_alive(), False
        if keep_alive and b"connection" in headers:
            keep_alive = parser.get_http_version() == "1.1"
        if b"expect" in headers:
            expects_continue = headers[b"expect"].lower() == b"100-continue" and parser.get_http_version() == "1.1"
        self._offered = b"upgrade" in headers and parser.should_upgrade()
        return Request(
            self,
            parser.get_method().decode("ascii"),
            path,
            query,
            headers,
            keep_alive=keep_alive,
            expects_continue=expects_continue,
        )

    def _receive(self, request: Request) -> None:
        self._receiving = request
        if self._current is not None or self._waiting:
            self._pause_reading()
            if len(self._waiting) + (self._current is not None) > PIPELINED_MAX:
                self._transport.abort()
                raise _Refuse
        self._waiting.append(request)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        request = self._receiving
        assert request is not None
        if request.answered:
            self._drained_bytes += len(body)
            if self._drained_bytes > DRAINED_MAX_BYTES:
                self._transport.abort()
            return
        request.put(body)
        if request.buffered_bytes > BUFFERED_MAX_BYTES:
            self._pause_reading()

    def on_message_complete(self) -> None:
        if self._offered:
            return  # not before its body was read
        request, self._receiving = self._receiving, None
        self._in_head, self._awaited = True, _NOTHING
        if request is not None:
            request.complete()

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
        if request is self._receiving:
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
    def _pause_reading(self) -> None:
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
        settings, is_free = self._crowd.settings, self._current is None
        if not self._in_head:
            if self._awaited is not _BODY and not self._waiting:
                self._expect(_BODY, settings.request_timeout_ms)
        elif self._head_bytes:
            if is_free:
                self._crowd.idle.setdefault(self, None)
            if self._awaited is not _HEAD:
                self._expect(_HEAD, settings.header_timeout_ms)
        elif is_free:
            self._crowd.idle[self] = None
            self._expect(_ANY, settings.keep_alive_ms)

    def _expect(self, awaited: _Await, within_ms: int) -> None:
        self._awaited, self._due_s = awaited, self._loop.time() + within_ms / 1000
        if self._timer is None or self._due_s < self._timer_s:
            if self._timer is not None:
                self._timer.cancel()
            self._set_timer()

    def _set_timer(self) -> None:
        self._timer_s = self._due_s
        self._timer = self._loop.call_at(self._due_s, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if self._awaited is _NOTHING:
            return
        if self._loop.time() < self._due_s:
            self._set_timer()
            return
        awaited, self._awaited = self._awaited, _NOTHING
        if awaited is _HEAD:
            self._refuse(_HEAD_TOO_SLOW)
        elif awaited is _BODY and self._receiving is not None and not self._receiving.answered:
            self._refuse(_BODY_TOO_SLOW)
        elif awaited is _ANY:
            self.close()
        else:
            self.abort()

    # --- the end ----------------------------------------------------------------------------------------------------------
    def _refuse(self, fault: _Fault, *, retry_after_s: float = 0.0) -> None:
        """Say why, and hang up."""
        self._crowd.refused += 1
        if self._receiving is not None and self._receiving.answered:
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
        if under_way and under_way != [self._receiving]:
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
            self._expect(_END, LINGER_MS)
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
                self._expect(_END, self._crowd.settings.request_timeout_ms)

    def abort(self) -> None:
        self._transport.abort()


def _make_parser(connection: Connection) -> Any:
    parser = httptools.HttpRequestParser(connection)
    # What follows a request that says `Connection: close` is dropped when that one is answered; it must not spoil the answer.
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser
