"""The door: connections. uvicorn's HTTP/1.1 protocol (httptools), guarded against what a careless or hostile client may do.

    too much head       more than HEAD_MAX_BYTES of request line and headers, or
                        more than HEADERS_MAX of them                               431, closed
    no one Host         none in HTTP/1.1, or several                                400, closed
    too much around     chunk extensions and trailers that outgrow the body         431, closed
    too slow            no whole head within headerTimeout, of a new connection too 408, closed
                        no whole body within requestTimeout of its head, be it
                        wanted or refused                                           408, closed
    not HTTP                                                                        400, closed
    too many            more than maxConnections                                    503, closed
    no handshake        TLS: none within headerTimeout, or others need its room     closed
    does not read       an answer that is not taken within requestTimeout, or more
                        than STALLED_MAX clients that do not take theirs            aborted
    asks and asks       more than PIPELINED_MAX requests before the first is answered aborted
    sends on and on     a body that was refused, beyond DRAINED_MAX_BYTES           closed

Every refusal is problem+json, as from the application behind it. Oversized bodies are the application's matter (app.py).

At any moment something bounds the connection: the application while it answers, otherwise a timer here (`_arm`).

Trailers are dropped. An upgrade that somebody offers is declined by answering in HTTP/1.1 (RFC 9110, 7.8): `_Rest`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from collections.abc import Callable
from email.utils import formatdate
from typing import Any, Final

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from escrow.settings import Settings
from ingest import wire
from ingest.accepting import Accepting
from ingest.app import WHOLE
from ingest.large import LARGE_BYTES
from ingest.problems import Headers, head_of, problem
from ingest.room import LINGERING_MAX, Room
from ingest.straight import Straight, rendered

HEAD_MAX_BYTES: Final = 32 << 10
HEADERS_MAX: Final = 256
#: Of each header, besides its name and its value.
_HEADER_ROOM_BYTES: Final = 4
_TOO_LARGE: Final = f"request line and headers have more than {HEAD_MAX_BYTES} bytes or {HEADERS_MAX} headers: send less"
_NO_HTTP: Final = (400, "bad_http", "this is no HTTP request that could be understood", "request")
#: What a client may go on sending after it was refused, so that it can read the refusal.
DRAINED_MAX_BYTES: Final = 64 << 20
#: Bytes of chunk sizes for one byte of a body: a chunk of one byte has five.
FRAMING_FACTOR: Final = 8
LINGER_MS: Final = 1_000
#: Requests that may wait behind one that is being answered.
PIPELINED_MAX: Final = 64
#: Each holds an answer, which may be megabytes. Beyond this many, the one that has stalled longest is hung up on.
STALLED_MAX: Final = 64
BACKLOG: Final = 2048


class Door:
    """Listens, and holds what all connections share."""

    def __init__(self, application: Any, settings: Settings, room: Room | None = None) -> None:
        self.settings = settings
        self.connections_max = settings.max_connections if room is None else room.http
        self.lingering_max = LINGERING_MAX if room is None else room.lingering
        self.state = ServerState()
        self.config = Config(
            application,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=settings.keep_alive_ms // 1000 or 1,
        )
        self.config.load()
        #: Connections whose client does not take its answer, the one that has stalled longest first.
        self.stalled: dict[GuardedProtocol, None] = {}
        #: URLs whose requests may go straight, and those that do at the moment.
        self.straight: frozenset[bytes] = getattr(application, "straight", frozenset())
        self.began: set[Straight] = set()
        self.refused = 0
        self._outboxes: list[_Outbox] = []
        self._server: asyncio.Server | None = None
        self._accepting: Accepting | None = None

    async def open(self, listening: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        self.beat()
        if tls is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(lambda: GuardedProtocol(self), sock=listening, backlog=BACKLOG)
        else:
            self._accepting = Accepting(self, listening, tls, lambda: GuardedProtocol(self))
            self._accepting.start(BACKLOG)

    @property
    def handshakes_max(self) -> int:
        """At this moment."""
        return self.connections_max + self.lingering_max - len(self.state.connections)

    def beat(self) -> None:
        """Once a second: the Date of answers."""
        self.state.default_headers = [(b"date", formatdate(usegmt=True).encode())]

    @property
    def connections(self) -> int:
        """With those that have not come through their handshake yet."""
        return len(self.state.connections) + (len(self._accepting) if self._accepting is not None else 0)

    def stall(self, connection: GuardedProtocol) -> None:
        self.stalled[connection] = None
        if len(self.stalled) > STALLED_MAX:
            next(iter(self.stalled)).transport.abort()

    def collect(self, outbox: _Outbox) -> None:
        """It has something to send; all that have are emptied together."""
        if not self._outboxes:
            asyncio.get_running_loop().call_soon(self._send_all)
        self._outboxes.append(outbox)

    def _send_all(self) -> None:
        outboxes, self._outboxes = self._outboxes, []
        for outbox in outboxes:
            outbox.send()

    async def close(self, within_s: float) -> None:
        """No new connections; those that are idle are closed, the others when their answer is written."""
        if self._server is not None:
            self._server.close()
        if self._accepting is not None:
            self._accepting.close()
        for connection in list(self.state.connections):
            connection.shutdown()
        waiting = [*self.state.tasks, *(straight.ended() for straight in self.began)]
        if waiting:
            await asyncio.wait(waiting, timeout=within_s)
        self._send_all()  # answers that were just written
        for connection in list(self.state.connections):
            connection.transport.close()


class _Timer:
    """Calls once, unless it is stopped or started anew before."""

    __slots__ = ("_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None

    @property
    def running(self) -> bool:
        return self._handle is not None

    def start(self, after_ms: int, call: Callable[[], None]) -> None:
        self.stop()
        self._handle = self._loop.call_later(after_ms / 1000, self._fire, call)

    def _fire(self, call: Callable[[], None]) -> None:
        self._handle = None
        call()

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class _Rest:
    """What follows a head that offers an upgrade, read as HTTP/1.1. (The parser takes it for another protocol and reads no body;
    Java's own HTTP client offers h2c with the first request of every connection, POST included.)"""

    def __init__(self, connection: GuardedProtocol) -> None:
        self._connection, self._made_up = connection, True
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does

    @staticmethod
    def head(headers: list[tuple[bytes, bytes]]) -> bytes:
        """A head that says as much of the body as the real one did, and nothing else."""
        framing = [b"%s: %s\r\n" % pair for pair in headers if pair[0] in (b"content-length", b"transfer-encoding")]
        return b"".join([b"POST / HTTP/1.1\r\n", *framing, b"\r\n"])

    def on_message_begin(self) -> None:
        if not self._made_up:
            self._connection.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._made_up:
            self._connection.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._made_up:
            self._connection.on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self._made_up:
            self._connection.on_headers_complete()
        self._made_up = False

    def on_body(self, body: bytes) -> None:
        self._connection.on_body(body)

    def on_message_complete(self) -> None:
        self._connection.on_message_complete()


class _Outbox:
    """In the place of the transport for whoever writes answers: takes head and body together, and the answers of one turn of the
    loop one right after the other. A system call for each, with a client that falls asleep in between, was a third of all work."""

    __slots__ = ("_door", "_parts", "_transport")

    def __init__(self, door: Door, transport: asyncio.Transport) -> None:
        self._door, self._transport = door, transport
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._door.collect(self)
        self._parts.append(data)

    def send(self) -> None:
        parts, self._parts = self._parts, []
        if parts and not self._transport.is_closing():
            self._transport.write(b"".join(parts))

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self.send()
        self._transport.close()


class Whole:
    """What this server offers beyond ASGI: a body that is all there, and an answer in one piece. Nearly every request is
    served so; by way of events it costs a third more."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    def take(self) -> bytes | None:
        """The body; None where it is not all there, or nobody is any more: then ASGI's `receive` tells which."""
        cycle = self._cycle
        if cycle.more_body or cycle.disconnected or cycle.response_complete or cycle.waiting_for_100_continue:
            return None
        content, cycle.body = bytes(cycle.body), bytearray()
        cycle.message_event.clear()
        return content

    def answer(self, status: int, headers: Headers, content: bytes) -> bool:
        """Write the whole answer; False where ASGI's `send` must be used: the client takes nothing at the moment, or has gone, or
        wants only the head."""
        cycle = self._cycle
        if cycle.response_started or cycle.disconnected or cycle.flow.write_paused or cycle.scope["method"] == "HEAD":
            return False
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        cycle.transport.write(rendered(status, cycle.default_headers, headers, content, keep_alive=cycle.keep_alive))
        cycle.scope.pop("extensions")  # or it would hold us, we the cycle, and the cycle it: work for the collector
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()
        return True


class GuardedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, door: Door) -> None:
        super().__init__(door.config, door.state, {})
        self._door = door
        self._head_bytes = self._drained_bytes = self._raw_bytes = self._body_bytes = 0
        self._in_head, self._refused = True, False
        self._parsed_bytes, self._fault = 0, _NO_HTTP
        self._data = b""
        self._running: Any = None
        self._straight: Straight | None = None
        self._read_timer, self._write_timer = _Timer(self.loop), _Timer(self.loop)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._outbox = _Outbox(self._door, transport)
        if len(self.connections) > self._door.connections_max:
            if len(self.connections) > self._door.connections_max + self._door.lingering_max:
                transport.abort()
                return
            text = f"{self._door.connections_max} connections are open already (maxConnections): try again later"
            self._refuse(503, "overloaded", text, retry_after_s=1)
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._read_timer.stop()
        self._write_timer.stop()
        self._door.stalled.pop(self, None)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # after a reset, too
        self.pipeline.clear()
        if self._running is not None:  # uvicorn tells only the last request that was read
            self._running.disconnected = True
            self._running.message_event.set()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    # --- what arrives ---------------------------------------------------------------------------------------------------------
    def data_received(self, data: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return  # what still arrives is let go
        if self._in_head:
            self._head_bytes += len(data)
        self._raw_bytes += len(data)
        self._data = data
        super().data_received(data)
        self._data = b""
        if self._straight is not None:
            straight, self._straight = self._straight, None
            if not straight.more_body:
                straight.run(self.app, self._door.began)
            elif not straight.disconnected:  # or what followed was no HTTP
                self._go_round(straight)
        self._bound()

    def _bound(self) -> None:
        """After each piece: is it too much, and by when must the next one be here?"""
        if self._refused:
            return
        if self._in_head and self._head_bytes > HEAD_MAX_BYTES:
            self._refuse(431, "too_large", _TOO_LARGE, field="headers")
        elif not self._in_head and self._raw_bytes > HEAD_MAX_BYTES + FRAMING_FACTOR * self._body_bytes:
            text = f"chunk extensions and trailers have more than {HEAD_MAX_BYTES} bytes: leave them out"
            self._refuse(431, "too_large", text, field="body")
        else:
            self._arm()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._parsed_bytes = True, 0
        self._head_bytes = max(self._head_bytes, 1)  # one that begins in the piece that ended the last request

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # trailers are of no use to anybody here, and their number has no bound
            super().on_header(name, value)
            self._parsed_bytes += len(name) + len(value) + _HEADER_ROOM_BYTES

    def on_headers_complete(self) -> None:
        self._check_head()
        self._in_head = False
        self._head_bytes = self._drained_bytes = self._raw_bytes = self._body_bytes = 0
        self._read_timer.stop()
        if not self._go_straight():
            self._go_by_asgi()

    def _check_head(self) -> None:
        """A head that came in one piece with what follows it is measured here; `_bound` measures one that does not end."""
        hosts = sum(name == b"host" for name, _ in self.headers)
        if self._parsed_bytes + len(self.url) > HEAD_MAX_BYTES or len(self.headers) > HEADERS_MAX:
            self._fault = 431, "too_large", _TOO_LARGE, "headers"
        elif hosts > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            self._fault = 400, "bad_http", f"Host: is there {hosts} times, and must be once", "host"
        else:
            return
        raise ValueError("the parser stops here, and `send_400_response` answers")

    def _go_by_asgi(self) -> None:
        super().on_headers_complete()
        self.cycle.transport = self._outbox  # type: ignore[assignment]
        self.scope["extensions"] = {WHOLE: Whole(self.cycle)}  # type: ignore[dict-item]
        if len(self.pipeline) > PIPELINED_MAX:
            self.transport.abort()

    def _go_straight(self) -> bool:
        """Whether this request goes straight: then it has its cycle (straight.py)."""
        if self.url not in self._door.straight or self._answering:
            return False
        parser, headers = self.parser, dict(self.headers)
        length = headers.get(b"content-length", b"")
        if (
            not length.isdigit()
            or int(length) > len(self._data)  # it cannot be all there
            or int(length) > LARGE_BYTES  # decoding waits for a thread
            or self.expect_100_continue
            or parser.should_upgrade()
            or parser.get_method() != b"POST"
            or parser.get_http_version() != "1.1"
        ):
            return False
        scope: dict[str, Any] = {"method": "POST", "path": self.url.decode("ascii"), "headers": headers, "scheme": self.scheme}
        default_headers, keep_alive = self.server_state.default_headers, parser.should_keep_alive()
        cycle: Any = Straight(scope, self._outbox, default_headers, keep_alive, self.on_response_complete)
        scope["extensions"] = {WHOLE: cycle}
        self.cycle = self._running = self._straight = cycle
        return True

    def _go_round(self, straight: Straight) -> None:
        """Its body is not all there: whoever sent it may have to be refused before the rest comes."""
        self.cycle = None  # type: ignore[assignment]
        self._go_by_asgi()
        self.cycle.body += straight.take()
        self.cycle.message_event.set()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self.cycle.response_complete:
            self._drained_bytes += len(body)
            if self._drained_bytes > DRAINED_MAX_BYTES:
                self.transport.abort()
            return
        cycle: Any = self.cycle  # also one of another kind than uvicorn knows
        if isinstance(cycle, Straight):
            cycle.put(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # not before `_Rest` has seen the body
        super().on_message_complete()
        self._read_timer.stop()
        # Bytes of the next request's head that came in the same piece are not counted: they are few, and read already.
        self._in_head = True

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._arm()

    def _unsupported_upgrade_warning(self) -> None:
        """Called by uvicorn where the parser has stopped at an upgrade: go on behind the head as if none had been offered."""
        stopped = sys.exception()
        assert stopped is not None
        head = _Rest.head(self.headers)
        self._data = head + self._data[stopped.args[0] :]
        self.parser = _Rest(self).parser
        if not self.transport.is_closing():
            super().data_received(self._data)

    def shutdown(self) -> None:
        self._outbox.send()
        super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn says where it could not parse a request."""
        status, code, text, field = self._fault
        self._refuse(status, code, text, field=field)

    # --- timers ---------------------------------------------------------------------------------------------------------------
    def _arm(self) -> None:
        """See to it that a timer runs for what is to arrive. A body behind others that are not answered yet has time: reading is
        paused until then."""
        if self._refused or self.transport.is_closing() or self._read_timer.running:
            return
        if not self._in_head:
            if not self.pipeline:
                self._read_timer.start(self._door.settings.request_timeout_ms, self._body_too_slow)
        elif self._head_bytes:
            self._expect_head()
        elif not self._answering and self.timeout_keep_alive_task is None:
            # uvicorn starts it when it has answered, and stops it when anything arrives: here the rest of a refused body.
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _expect_head(self) -> None:
        self._read_timer.start(self._door.settings.header_timeout_ms, self._head_too_slow)

    def _head_too_slow(self) -> None:
        if self._in_head and not self._refused:
            self._refuse(408, "too_slow", "no whole request head arrived within headerTimeout")

    def _body_too_slow(self) -> None:
        if self._answering:
            text = "the body did not arrive within requestTimeout: send it faster, or in smaller batches"
            self._refuse(408, "too_slow", text, field="body")
        else:
            self.transport.abort()  # it has had its answer

    def pause_writing(self) -> None:
        super().pause_writing()
        self._door.stall(self)
        self._write_timer.start(self._door.settings.request_timeout_ms, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._door.stalled.pop(self, None)
        self._write_timer.stop()

    @property
    def _answering(self) -> bool:
        cycle: Any = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    # --- refusals -------------------------------------------------------------------------------------------------------------
    def _refuse(self, status: int, code: str, detail: str, *, field: str = "", retry_after_s: float = 0.0) -> None:
        """Say why and hang up."""
        self._read_timer.stop()
        self._door.refused += 1
        if self._answering and not self._call_off():
            self.transport.abort()  # the answer to an earlier request is under way: nothing can be said in between
            return
        content = wire.encode(problem(status, code, detail, field), wire.JSON)
        self._outbox.send()
        self.transport.write(head_of(status, len(content), retry_after_s) + content)
        self._linger()

    def _call_off(self) -> bool:
        """The request that the application is at turned out to be none: for the application its client has gone. False where
        it is whole, or is being answered, or is not the only one."""
        cycle = self.cycle
        if self.pipeline or cycle.response_started or not cycle.more_body:
            return False
        cycle.disconnected, cycle.waiting_for_100_continue = True, False
        cycle.message_event.set()
        return True

    def _linger(self) -> None:
        """Closing on a client that still sends would reset the connection before it has read the refusal: let it see the end
        first, and drop what it sends, for a moment."""
        self._refused = True
        self._unset_keepalive_if_required()
        self.flow.resume_reading()  # or its end would not be seen
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._read_timer.start(LINGER_MS, self.transport.abort)
        else:  # TLS
            self.transport.close()
