"""Answers in every framing that a server or a proxy may choose, and broken ones: read by a thread, and by an event loop."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import pytest

from escrow._http1 import Answer, Broken, Connection, authority
from escrow._loop import LoopConnection
from escrow._transport import Server

OK = b"HTTP/1.1 200 OK\r\n"


class AnyConnection(Protocol):
    @property
    def is_open(self) -> bool: ...
    def exchange(self, method: str, target: str, headers: dict[str, str], body: bytes | None) -> Answer: ...
    def close(self) -> None: ...


class InLoop:
    """A `LoopConnection` for tests that wait."""

    def __init__(self, port: int) -> None:
        self._server = Server(f"http://127.0.0.1:{port}/prefix")
        self._loop = asyncio.new_event_loop()
        self._connection = self._loop.run_until_complete(LoopConnection.open(self._server))

    @property
    def is_open(self) -> bool:
        return self._connection.is_open

    def exchange(self, method: str, target: str, headers: dict[str, str], body: bytes | None) -> Answer:
        return self._loop.run_until_complete(self._connection.exchange(method, target, headers, body))

    def close(self) -> None:
        self._connection.close()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()


@pytest.fixture(params=["thread", "loop"])
def answering(request: pytest.FixtureRequest):
    """A connection to a server that answers each request with the next of these, byte for byte."""

    @contextmanager
    def start(*answers: bytes, close: bool = False) -> Iterator[tuple[AnyConnection, list[bytes]]]:
        requests: list[bytes] = []
        with socket.create_server(("127.0.0.1", 0)) as listening:

            def serve() -> None:
                with listening.accept()[0] as client:
                    for answer in answers:
                        requests.append(client.recv(1 << 16))
                        client.sendall(answer)
                    if not close:
                        client.recv(1)  # until the other side closes

            thread = threading.Thread(target=serve)
            thread.start()
            port = listening.getsockname()[1]
            connection: AnyConnection = (
                Connection("127.0.0.1", port, None, f"127.0.0.1:{port}", 10.0) if request.param == "thread" else InLoop(port)
            )
            try:
                yield connection, requests
            finally:
                connection.close()
                thread.join()

    return start


def exchange(connection: AnyConnection, body: bytes | None = None) -> tuple[int, dict[str, str], bytes]:
    answer = connection.exchange("POST", "/v1/halves?a=b", {"Accept": "application/json"}, body)
    assert answer.keeps == connection.is_open
    return answer.status, dict(answer.headers), answer.body


def test_a_request_is_one_whole_write(answering):
    with answering(OK + b"Content-Length: 2\r\n\r\nhi") as (connection, requests):
        assert exchange(connection, b"{}")[2] == b"hi"
    [request] = requests
    head, _, body = request.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /v1/halves?a=b HTTP/1.1"
    assert {b"Accept: application/json", b"Content-Length: 2"} < set(lines)
    assert any(line.startswith(b"Host: 127.0.0.1:") for line in lines)
    assert body == b"{}"


def test_a_connection_is_kept_after_an_answer_with_a_length(answering):
    answer = OK + b"Retry-After:  7 \r\ncontent-length: 2\r\n\r\n"
    with answering(answer + b"aa", answer + b"bb") as (connection, _):
        assert exchange(connection) == (200, {"retry-after": "7", "content-length": "2"}, b"aa")
        assert exchange(connection)[2] == b"bb"
        assert connection.is_open


@pytest.mark.parametrize("trailer", [b"", b"X-Checked: yes\r\n"])
def test_chunks_are_put_together(answering, trailer: bytes):
    chunked = b"5;name=value\r\nhello\r\nA\r\n, chunked!\r\n0\r\n" + trailer + b"\r\n"
    with answering(OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunked) as (connection, _):
        assert exchange(connection)[2] == b"hello, chunked!"
        assert connection.is_open


def test_an_answer_without_a_length_ends_with_the_connection(answering):
    with answering(OK + b"\r\nall of it", close=True) as (connection, _):
        assert exchange(connection)[2] == b"all of it"
        assert not connection.is_open


def test_what_comes_before_the_answer_is_passed_over(answering):
    with answering(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\n!"
    ) as (
        connection,
        _,
    ):
        assert exchange(connection)[0::2] == (200, b"!")


def test_no_content_has_no_body(answering):
    with answering(b"HTTP/1.1 204 No Content\r\n\r\n") as (connection, _):
        assert exchange(connection) == (204, {}, b"")
        assert connection.is_open


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Connection: close\r\nContent-Length: 1\r\n\r\n!",
        b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n!",
        OK + b"Content-Length: 1\r\n\r\n!HTTP/1.1 200 OK\r\n",  # somebody else's answer, or a split one
    ],
)
def test_a_connection_that_cannot_be_trusted_again_is_closed(answering, answer: bytes):
    with answering(answer) as (connection, _):
        assert exchange(connection)[2] == b"!"
        assert not connection.is_open


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        OK + b"Content-Length: 10\r\n\r\nshort",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhel",
        OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nhello\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n-5\r\n",
        OK + b"Content-Length: +1\r\n\r\n!",
        OK + b"Content-Length: many\r\n\r\n!",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        OK + b"X: " + b"y" * (70 << 10),
    ],
)
def test_what_is_no_whole_answer_is_an_error(answering, answer: bytes):
    with answering(answer, close=True) as (connection, _), pytest.raises((Broken, ConnectionResetError)):
        exchange(connection)


@pytest.mark.parametrize(
    ("method", "target", "headers"), [("GET", "/a\r\nX: y", {}), ("GET", "/", {"Authorization": "Bearer a\nb"})]
)
def test_a_line_break_never_reaches_the_wire(answering, method: str, target: str, headers: dict[str, str]):
    with answering() as (connection, requests):
        with pytest.raises(ValueError, match="line break"):
            connection.exchange(method, target, headers, None)
        assert requests == []


@pytest.mark.parametrize(
    ("host", "port", "said"),
    [("escrow.example", None, "escrow.example"), ("escrow.example", 443, "escrow.example"), ("::1", 7480, "[::1]:7480")],
)
def test_the_host_header_has_the_port_where_it_is_not_the_usual_one(host: str, port: int | None, said: str):
    assert authority(host, port, 443) == said
