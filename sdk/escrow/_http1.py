"""HTTP/1.1 over one connection: a request in one write, its answer read whole. What the SDK needs of it, and no more.

The standard library's client parses an answer's head as it would a mail's, which alone costs more than everything here. An answer
may come with a length, in chunks, or end with the connection. If anything follows it, the connection is closed.

`answering` takes an answer apart without reading itself: it asks for bytes and is given them, by a thread that waits for a socket
(`Connection`, here) or by an event loop (`escrow._loop`).
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Final

#: An answer's head may be this large.
HEAD_MAX_BYTES: Final = 64 << 10
_READ_BYTES: Final = 64 << 10
_NO_BODY: Final = frozenset({204, 304})


class Broken(ConnectionError):
    """The connection ended in the middle of an answer, or what came is no HTTP."""


def authority(host: str, port: int | None, default_port: int) -> str:
    """For the Host header."""
    name = f"[{host}]" if ":" in host else host
    return name if port in (None, default_port) else f"{name}:{port}"


class Connection:
    """Connected when made."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, authority: str, timeout_s: float) -> None:
        self.is_open, self._authority = True, authority
        sock = socket.create_connection((host, port), timeout_s)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.sock: socket.socket = sock if tls is None else tls.wrap_socket(sock, server_hostname=host)
        except BaseException:
            sock.close()
            raise

    def close(self) -> None:
        self.is_open = False
        self.sock.close()

    def exchange(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        """Any error leaves a connection that is of no more use: close it."""
        self.sock.sendall(request_of(self._authority, method, target, headers, body))
        reading = answering()
        room = next(reading)
        while True:
            try:
                room = reading.send(self.sock.recv_into(room))
            except StopIteration as end:
                answer: Answer = end.value
                break
        if not answer.keeps:
            self.close()
        return answer


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    #: Names in lower case.
    headers: Mapping[str, str]
    body: bytes
    #: Its connection may be used again.
    keeps: bool


#: Asks for room to be filled, and is told by how many bytes; none: the connection has ended.
Reading = Generator[memoryview, int, Answer]


def request_of(authority: str, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {authority}", "Accept-Encoding: identity"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header or the path has a line break in it: look at the url and the token")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def answering() -> Reading:
    """Take one answer apart, as it comes."""
    reader = _Reader()
    while True:
        status, version, headers = yield from reader.head()
        if status >= 200:  # before it, 1xx: the answer is still to come
            break
    body, ends_with_connection = yield from reader.body(status, headers)
    keeps = not (ends_with_connection or reader.has_more() or _wants_close(version, headers))
    return Answer(status, headers, body, keeps)


class _Reader:
    """What has come and was not taken yet. The generators ask for more."""

    def __init__(self) -> None:
        self._read, self._room = bytearray(), memoryview(bytearray(_READ_BYTES))

    def has_more(self) -> bool:
        return bool(self._read)

    def head(self) -> Generator[memoryview, int, tuple[int, bytes, dict[str, str]]]:
        """(status, version, headers)"""
        raw = yield from self._until(b"\r\n\r\n", HEAD_MAX_BYTES)
        first, *lines = raw.split(b"\r\n")
        words = first.split(b" ", 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
            raise Broken(f"the answer begins with {bytes(first[:60])!r}, which is no HTTP")
        headers = {}
        for line in lines:
            name, _, value = line.partition(b":")
            headers[name.decode("latin-1").lower()] = value.strip().decode("latin-1")
        return int(words[1]), words[0], headers

    def body(self, status: int, headers: Mapping[str, str]) -> Generator[memoryview, int, tuple[bytes, bool]]:
        """(body, whether it ended with the connection)"""
        if status in _NO_BODY:
            return b"", False
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return (yield from self._chunks()), False
        length = headers.get("content-length")
        if length is not None:
            return (yield from self._exactly(_number(length, 10))), False
        while (yield from self._more()):
            pass
        return bytes(self._read), True

    def _chunks(self) -> Generator[memoryview, int, bytes]:
        whole = bytearray()
        while True:
            line = yield from self._until(b"\r\n", HEAD_MAX_BYTES)
            size = _number(line.partition(b";")[0].decode("latin-1"), 16)
            if not size:
                break
            whole += yield from self._exactly(size)
            if (yield from self._exactly(2)) != b"\r\n":
                raise Broken("a chunk of the answer does not end where it should")
        while (yield from self._until(b"\r\n", HEAD_MAX_BYTES)):  # trailers
            pass
        return bytes(whole)

    def _until(self, mark: bytes, most: int) -> Generator[memoryview, int, bytes]:
        """What comes before the mark; the mark is taken, too."""
        while (at := self._read.find(mark)) < 0:
            if len(self._read) > most:
                raise Broken("the head of the answer is too large")
            yield from self._need()
        found = bytes(self._read[:at])
        del self._read[: at + len(mark)]
        return found

    def _exactly(self, count: int) -> Generator[memoryview, int, bytes]:
        have = len(self._read)
        if count <= have:
            found = bytes(memoryview(self._read)[:count])
            del self._read[:count]
            return found
        # The rest goes to its place at once: answers to polls are large.
        whole = self._read + bytes(count - have)
        self._read = bytearray()
        with memoryview(whole) as room:
            while have < count:
                came = yield room[have:]
                if not came:
                    raise Broken("the connection ended in the middle of the answer")
                have += came
        return bytes(whole)

    def _need(self) -> Generator[memoryview, int, None]:
        if not (yield from self._more()):
            raise Broken(
                "the connection ended in the middle of the answer" if self._read else "the connection ended without an answer"
            )

    def _more(self) -> Generator[memoryview, int, bool]:
        came = yield self._room
        self._read += self._room[:came]
        return bool(came)


def _number(text: str, base: int) -> int:
    text = text.strip()
    try:
        found = int(text, base)
    except ValueError:
        found = -1
    if found < 0 or not text.isalnum():  # int() takes signs and underlines
        raise Broken(f"the answer's length is {text!r}")
    return found


def _wants_close(version: bytes, headers: Mapping[str, str]) -> bool:
    said = headers.get("connection", "").lower()
    return "close" in said or (version == b"HTTP/1.0" and "keep-alive" not in said)
