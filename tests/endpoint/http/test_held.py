"""What is held for one token, over a real edge: bodies on the way, polls, answers that are not read. Another token is not hurt."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from ingest.auth import token_file
from ingest.auth.shares import REQUEST_BYTES
from tests.support.edge_client import EdgeClient, RemoteError
from tests.support.edge_world import SMALL
from tests.support.endpoint import Endpoint, figures, until

MIB = 1 << 20
MADE_AT = "2026-01-02T03:04:05Z"


class Tenants:
    """An edge with a hostile token, a good one and an operator's."""

    def __init__(self, data, *flags):
        file = data / "keys" / "tokens.toml"
        self.evil = token_file.add(file, "evil", ["g:*"], ["t:*"], operator=False, metrics=False, made_at=MADE_AT)
        self.good = token_file.add(file, "good", ["g:*"], ["t:*"], operator=False, metrics=False, made_at=MADE_AT)
        self.ops = token_file.add(file, "ops", [], [], operator=True, metrics=True, made_at=MADE_AT)
        flags = (*SMALL, "maxRequestSize=4MiB", "commitLogSegmentSize=64MiB", "maxBodySize=2MiB", *flags)
        self.endpoint = Endpoint(data, *flags, "requestTimeout=60s")
        self._stack = ExitStack()

    def __enter__(self):
        self._stack.enter_context(self.endpoint)
        return self

    def __exit__(self, *_):
        self._stack.close()

    def client(self, token):
        return self._stack.enter_context(EdgeClient(self.endpoint.port, token=token))

    def connect(self, head, content=b"", *, buffer_bytes=0):
        """A connection of the hostile token that has sent this; what comes back stays there."""
        made = socket.socket()
        if buffer_bytes:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        made.settimeout(30)
        made.connect(("127.0.0.1", self.endpoint.port))
        self._stack.enter_context(made)
        lines = [head, "Host: 127.0.0.1", f"Authorization: Bearer {self.evil}", "Content-Type: application/json", "", ""]
        made.sendall("\r\n".join(lines).encode() + content)
        return made


def refused(call):
    with pytest.raises(RemoteError) as caught:
        call()
    assert (caught.value.status, caught.value.code) == (429, "overloaded")
    assert "tokenHeldBytesMax" in str(caught.value)


def message(size=10):
    return {"group": "g", "topic": "t", "text": "x" * size}


def test_bodies_on_the_way_are_bounded_for_a_token(tmp_path):
    with Tenants(tmp_path, "tokenHeldBytesMax=9420KiB") as tenants:
        evil, good, ops = tenants.client(tenants.evil), tenants.client(tenants.good), tenants.client(tenants.ops)
        evil.send([message()])
        slow = [
            tenants.connect(f"POST /v1/messages HTTP/1.1\r\nContent-Length: {4 * MIB - REQUEST_BYTES}", b"[" * 1000)
            for _ in range(2)
        ]
        until(lambda: figures(ops)["escrow_requests_running"] == 3)
        refused(lambda: evil.send([message(60_000)]))
        assert evil.end("g", "none", "commit")["verdict"] != "accepted", "ends have a part for themselves"
        good.send([message(60_000)])
        for connection in slow:
            connection.close()
        until_idle_with(ops, 3)
        evil.send([message(60_000)])


def test_bodies_without_a_length_are_counted_as_they_come(tmp_path):
    with Tenants(tmp_path, "tokenHeldBytesMax=4MiB") as tenants:
        good, ops = tenants.client(tenants.good), tenants.client(tenants.ops)
        tenants.connect(f"POST /v1/messages HTTP/1.1\r\nContent-Length: {3 * MIB}")
        until(lambda: figures(ops)["escrow_requests_running"] == 2)
        endless = tenants.connect("POST /v1/messages HTTP/1.1\r\nTransfer-Encoding: chunked")
        chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
        for _ in range(15):
            endless.sendall(chunk)
        answer = endless.recv(4096)
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert b"tokenHeldBytesMax" in answer
        good.send([message()])


def test_polls_are_counted(tmp_path):
    with Tenants(tmp_path, "tokenHeldBytesMax=1MiB") as tenants:
        evil, good, ops = tenants.client(tenants.evil), tenants.client(tenants.good), tenants.client(tenants.ops)
        polls = 28
        for number in range(polls):
            tenants.connect(f"GET /v1/topics/t/messages?group=c{number}&consumer=c&wait_s=30 HTTP/1.1")
        until(lambda: ops.status()["consumption"]["polls_waiting"] == polls)
        refused(lambda: evil.consume("t", "another", wait_s=30))
        assert good.consume("t", "good") == []


def test_answers_that_nobody_reads_are_held_and_bounded(tmp_path):
    with Tenants(tmp_path, "maxRequestSize=16MiB", "tokenHeldBytesMax=64MiB") as tenants:
        evil, good, ops = tenants.client(tenants.evil), tenants.client(tenants.good), tenants.client(tenants.ops)
        good.send([message(2 * MIB - 100)] * 3)
        before = tenants.endpoint.private_bytes()
        unread = [
            tenants.connect(f"GET /v1/topics/t/messages?group=c{number}&consumer=c HTTP/1.1", buffer_bytes=4096)
            for number in range(10)
        ]
        until(lambda: figures(ops)["escrow_requests_over_share_total"] >= 7)
        refused(lambda: evil.consume("t", "another"))
        assert len(good.consume("t", "good")) == 3
        assert tenants.endpoint.private_bytes() - before < 128 * MIB
        for connection in unread:
            connection.close()
        until_idle_with(ops, 3)
        groups = ("another", *(f"c{number}" for number in range(10)))
        assert {len(evil.consume("t", group)) for group in groups} == {3}, "nothing was handed out before"


def test_an_answer_about_what_was_stored_is_not_refused(tmp_path):
    with Tenants(tmp_path, "tokenHeldBytesMax=640KiB") as tenants:
        evil, ops = tenants.client(tenants.evil), tenants.client(tenants.ops)
        polls = 9
        for number in range(polls):
            tenants.connect(f"GET /v1/topics/t/messages?group=c{number}&consumer=c&wait_s=30 HTTP/1.1")
        until(lambda: ops.status()["consumption"]["polls_waiting"] == polls)
        evil.send([{**message(), "topic": "u"}] * 4096)


def until_idle_with(ops, connections):
    until(lambda: figures(ops)["escrow_connections"] == connections and figures(ops)["escrow_requests_running"] == 1)
