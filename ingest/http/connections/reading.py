"""The reading side of a connection: bytes to requests, with the limits of heads and framing.

httptools' parser calls the methods `on_…` of a `Reader`. What is wrong with the bytes comes back from `feed` as a `Fault`.
Trailers are dropped. An offered upgrade is declined by answering in HTTP/1.1 (RFC 9110, 7.8): `_behind_upgrade`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

import httptools

from ingest.auth import callers
from ingest.errors import InvalidRequest
from ingest.http.request import Link, Request, split_url

HEAD_MAX_BYTES: Final = 32 << 10
HEADERS_MAX: Final = 256
#: Of each header, besides its name and its value.
_HEADER_ROOM_BYTES: Final = 4
#: What a client may go on sending after it was refused, so that it can read the refusal.
DRAINED_MAX_BYTES: Final = 64 << 20
#: Bytes of chunk sizes for one byte of a body: a chunk of one byte has five.
FRAMING_FACTOR: Final = 8
#: Of a body that the application has not taken.
BUFFERED_MAX_BYTES: Final = 64 << 10

#: Status, code, detail and field of a problem.
Fault = tuple[int, str, str, str]
NO_HTTP: Final[Fault] = (400, "bad_http", "the request is not valid HTTP: check its request line, headers and framing", "request")
HEAD_TOO_LARGE: Final[Fault] = (
    431, "too_large", f"the head has more than {HEAD_MAX_BYTES} bytes or {HEADERS_MAX} headers: send less", "headers"
)  # fmt: skip
FRAMING_TOO_LARGE: Final[Fault] = (
    431, "too_large", f"chunk extensions and trailers have more than {HEAD_MAX_BYTES} bytes: leave them out", "body"
)  # fmt: skip


class Stop(Exception):
    """Raised in a callback to stop the parser."""


class Receiver(Link, Protocol):
    """What the reading side needs of its connection."""

    def receive(self, request: Request) -> None:
        """A head is complete. Raises Stop if the connection takes no further request."""

    def received(self) -> None:
        """The whole body of the last request is there."""

    def pause_reading(self) -> None: ...


class Reader:
    """`in_head`: no request is being received. `head_bytes`: received of the next head. `receiving`: whose body is being
    received."""

    __slots__ = (
        "_body_bytes", "_connection", "_drained_bytes", "_fault", "_framed_bytes", "_head", "_offered", "_parser", "_paths",
        "_piece_bytes", "_url", "head_bytes", "in_head", "receiving",
    )  # fmt: skip

    def __init__(self, connection: Receiver, paths: Mapping[bytes, str]) -> None:
        self._connection, self._paths = connection, paths
        self._parser = _make_parser(self)
        self._url, self._head = b"", list[tuple[bytes, bytes]]()
        self.in_head, self._offered = True, False
        self.receiving: Request | None = None
        self.head_bytes = self._piece_bytes = self._framed_bytes = self._body_bytes = self._drained_bytes = 0
        self._fault = NO_HTTP

    def feed(self, data: bytes) -> Fault | None:
        """Read one piece. Returns what is wrong with it; None if it is valid so far."""
        self._piece_bytes = len(data)
        if self.in_head:
            self.head_bytes += self._piece_bytes
        else:
            self._framed_bytes += self._piece_bytes
        while True:
            try:
                self._parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as stopped:
                data = self._behind_upgrade(data[stopped.args[0] :])
            except httptools.HttpParserError:
                return self._fault
        if self.in_head:
            return HEAD_TOO_LARGE if self.head_bytes > HEAD_MAX_BYTES else None
        return FRAMING_TOO_LARGE if self._framed_bytes > HEAD_MAX_BYTES + FRAMING_FACTOR * self._body_bytes else None

    def close(self) -> None:
        """The connection has ended. It, the reader and the parser refer to each other: break the cycles."""
        self._parser = self.receiving = None
        del self._connection

    def _behind_upgrade(self, rest: bytes) -> bytes:
        """Go on behind a head that offers an upgrade as if it did not. The parser takes what follows for another protocol and reads
        no body; Java's own HTTP client offers h2c with the first request of every connection, POST included. So a new parser
        gets a head that says as much of the body as the real one did. Its callbacks find that no head is being read."""
        assert self.receiving is not None
        self._offered, headers = False, self.receiving.headers
        framing = [b"%b: %b\r\n" % (name, headers[name]) for name in (b"content-length", b"transfer-encoding") if name in headers]
        self._parser = _make_parser(self)
        return b"".join([b"POST / HTTP/1.1\r\n", *framing, b"\r\n", rest])

    def on_message_begin(self) -> None:
        if self.in_head and not self.head_bytes:
            self.head_bytes = 1  # it begins in the piece that ended the last request

    def on_url(self, url: bytes) -> None:
        if self.in_head:
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.in_head:  # trailers are dropped
            self._head.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if not self.in_head:
            return
        head, self._head, url, self._url = self._head, [], self._url, b""
        headers = dict(head)
        if self.head_bytes + self._piece_bytes > HEAD_MAX_BYTES or len(head) > HEADERS_MAX:
            self._check_size(url, head)
        if len(headers) < len(head) or b"host" not in headers:
            self._check_host(head)
            self._check_single(head)
        self.in_head = False
        self.head_bytes = self._framed_bytes = self._body_bytes = self._drained_bytes = 0
        self.receiving = self._make_request(url, headers)
        self._connection.receive(self.receiving)

    def _check_size(self, url: bytes, head: list[tuple[bytes, bytes]]) -> None:
        """A head that came in one piece with what follows it is measured here, one that does not end in `data_received`."""
        size = len(url) + sum(len(name) + len(value) + _HEADER_ROOM_BYTES for name, value in head)
        if size > HEAD_MAX_BYTES or len(head) > HEADERS_MAX:
            self._fault = HEAD_TOO_LARGE
            raise Stop

    def _check_host(self, head: list[tuple[bytes, bytes]]) -> None:
        hosts = sum(name == b"host" for name, _ in head)
        if hosts > 1 or (not hosts and self._parser.get_http_version() == "1.1"):
            self._fault = (400, "bad_http", f"Host: must be sent once, and was sent {hosts} times", "host")
            raise Stop

    def _check_single(self, head: list[tuple[bytes, bytes]]) -> None:
        try:
            callers.check_single(head)
        except InvalidRequest as error:
            self._fault = (400, "bad_http", str(error), "headers")
            raise Stop from error

    def _make_request(self, url: bytes, headers: dict[bytes, bytes]) -> Request:
        parser, path, query = self._parser, self._paths.get(url), b""
        if path is None:
            path, query = split_url(url)
        keep_alive, expects_continue = parser.should_keep_alive(), False
        if keep_alive and b"connection" in headers:
            keep_alive = parser.get_http_version() == "1.1"
        if b"expect" in headers:
            expects_continue = headers[b"expect"].lower() == b"100-continue" and parser.get_http_version() == "1.1"
        self._offered = b"upgrade" in headers and parser.should_upgrade()
        return Request(
            self._connection,
            parser.get_method().decode("ascii"),
            path,
            query,
            headers,
            keep_alive=keep_alive,
            expects_continue=expects_continue,
        )

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        request = self.receiving
        assert request is not None
        if request.answered:
            self._drained_bytes += len(body)
            if self._drained_bytes > DRAINED_MAX_BYTES:
                self._connection.abort()
            return
        request.put(body)
        if request.buffered_bytes > BUFFERED_MAX_BYTES:
            self._connection.pause_reading()

    def on_message_complete(self) -> None:
        if self._offered:
            return  # not before its body was read
        request, self.receiving = self.receiving, None
        self.in_head = True
        self._connection.received()
        if request is not None:
            request.complete()


def _make_parser(reader: Reader) -> Any:
    parser = httptools.HttpRequestParser(reader)
    # What follows a request that says `Connection: close` is dropped when that one is answered; it must not spoil the answer.
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser
