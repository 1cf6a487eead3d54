"""Clients without manners: too large, too slow, too much at once. All is bounded."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import suppress

import pytest

from ingest.http.connections.protocol import PIPELINED_MAX
from tests.support.edge_client import EdgeClient
from tests.support.edge_process import (
    HALF,
    edge,
    figure,
    post,
    problem_in,
    refused_half,
    served,
    talk,
)


# --- clients without manners ---
@pytest.mark.parametrize("length", [b"999999999", b"99999999999999999999"])
def test_an_oversized_request_is_refused_unread(running, length):
    head = b"POST /v1/halves HTTP/1.1\r\nhost: localhost\r\ncontent-length: " + length + b"\r\nconnection: close\r\n\r\n"
    told = problem_in(talk(running, head + b"x" * 1000))
    assert told["status"] in (400, 413)
    if told["status"] == 413:
        assert "maxRequestSize" in told["detail"]
    assert served(running)


def test_a_chunked_body_without_end_is_refused(running):
    head = b"POST /v1/halves HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    chunk = b"1000\r\n" + b"x" * 4096 + b"\r\n"
    told = problem_in(talk(running, head, *[chunk] * 40, b"0\r\n\r\nGET /livez HTTP/1.1\r\nconnection: close\r\n\r\n"))
    assert (told["status"], told["field"]) == (413, "body")
    assert served(running)


def test_a_flood_of_headers_is_refused(running):
    flood = b"GET /livez HTTP/1.1\r\n" + b"".join(b"x-%d: %s\r\n" % (n, b"y" * 100) for n in range(1000))
    told = problem_in(talk(running, flood))
    assert (told["status"], told["field"]) == (431, "headers")
    told = problem_in(talk(running, b"GET /" + b"x" * 60_000))
    assert told["status"] == 431
    assert served(running)


def test_what_is_not_http_is_refused(running):
    assert problem_in(talk(running, b"\x16\x03\x01 hello\r\n\r\n"))["code"] == "bad_http"
    assert served(running)


def test_slow_heads_and_bodies_are_given_up(tmp_path):
    with edge(tmp_path / "data", "headerTimeout=200ms", "requestTimeout=200ms") as (_, port):
        assert problem_in(talk(port, b"GET /livez HT"))["status"] == 408
        assert problem_in(talk(port))["status"] == 408
        slow = b"POST /v1/halves HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{"
        told = problem_in(talk(port, slow))
        assert told["status"] == 408
        assert "requestTimeout" in told["detail"]
        after_one = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\nGET /liv"
        answers = talk(port, after_one)
        assert answers.startswith(b"HTTP/1.1 200")
        assert b"HTTP/1.1 408" in answers
        assert served(port)


def test_who_does_not_read_is_hung_up_on(tmp_path):
    """A client that asks and asks and never reads an answer: bounded, and others are served."""
    with edge(tmp_path / "data", "requestTimeout=500ms") as (_, port), EdgeClient(port) as client:
        with socket.create_connection(("127.0.0.1", port), 20) as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sent = 0
            while figure(client, "escrow_connections_stalled") == 0:
                if sent == 0 or figure(client, OPENAPI_ANSWERS) == sent:
                    deaf.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n" * 8)
                    sent += 8
            while figure(client, "escrow_connections") > 1:
                time.sleep(0.01)
        assert figure(client, "escrow_connections_stalled") == 0


def test_who_asks_and_asks_without_waiting_is_hung_up_on(running):
    poll = b"GET /v1/groups/q/checks?member=m&wait_s=30 HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with suppress(ConnectionResetError):
        assert talk(running, poll * (PIPELINED_MAX + 2)) == b""
    assert served(running)


def test_a_client_that_sends_half_a_request_and_goes(running):
    for content in (
        b"P",
        b"POST /v1/halves HTTP/1.1\r\n",
        b"POST /v1/halves HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{",
    ):
        with socket.create_connection(("127.0.0.1", running)) as half:
            half.sendall(content)
    assert served(running)


def test_halves_however_they_come(running):
    """In one piece they run without a task (ingest/http/fast_path.py), otherwise with one: answers and their order are the same."""
    half = json.dumps({"messages": [HALF]}).encode()
    good, last, bad = post(b"/v1/halves", half), post(b"/v1/halves", half, b"connection: close"), post(b"/v1/halves", b"{")
    end = post(b"/v1/ends", json.dumps({"ends": [{"group": "g", "id": "x", "outcome": "commit"}]}).encode())
    wanted = [b"200", b"400", b"200", b"200", b"200"]
    for pieces in (
        [good, bad, end, good, last],
        [good + bad + end + good + last],
        [good[:-3], good[-3:] + bad[:20], bad[20:] + end, good + last[:60], last[60:]],
        [bytes([byte]) for byte in good + bad + end + good + last],
    ):
        answers = talk(running, *pieces).split(b"HTTP/1.1 ")[1:]
        assert [answer[:3] for answer in answers] == wanted
        assert b"refused" in answers[2]
        assert b"connection: close" in answers[4]


def test_what_follows_a_half_is_no_http(running):
    """The half may be stored; its connection ends, and others are served."""
    half = post(b"/v1/halves", json.dumps({"messages": [HALF]}).encode())
    for pieces in ([half + b"\0\0\0"], [half[:-10] + b"\0"], [half, b"\0"]):
        with suppress(ConnectionResetError), socket.create_connection(("127.0.0.1", running), 20) as connection:
            for piece in pieces:
                connection.sendall(piece)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
    assert served(running)


def test_pipelined_requests_are_answered_in_order(running):
    first = b"GET /v1/groups/q/checks?member=m&wait_s=0.2 HTTP/1.1\r\nhost: localhost\r\n\r\n"
    second = b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    answer = talk(running, first + second)
    assert answer.index(b'{"checks":[]}') < answer.index(b'{"status":"ok"}')


def test_bodies_being_received_are_bounded_and_ends_have_their_own_share(tmp_path):
    flags = ("maxReceivingSize=1MiB", "maxRequestSize=1MiB", "maxMessagesPerRequest=4096", "requestTimeout=60s")
    with edge(tmp_path / "data", *flags) as (_, port), EdgeClient(port) as client:
        (id,) = client.prepare([HALF])
        with socket.create_connection(("127.0.0.1", port), 20) as slow:
            slow.sendall(b"POST /v1/halves HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n" + b"x" * 999_000)
            while figure(client, RECEIVING) < 999_000:
                pass
            error = refused_half(client, *[{**HALF, "text": "x" * 60_000}] * 2)
            assert (error.status, error.code, error.headers["retry-after"]) == (429, "overloaded", "1")
            assert client.end("g", id, "commit")["verdict"] == "accepted", "ends are never refused for what halves take"
        while figure(client, RECEIVING):
            pass
        client.prepare([HALF])


OPENAPI_ANSWERS = 'escrow_http_requests_total{operation="GET /openapi.json",status="2xx"}'
RECEIVING = 'escrow_receiving_bytes{share="halves"}'


def test_many_clients_at_once(running):
    ids, errors = [], []

    def send(number):
        try:
            with EdgeClient(running) as client:
                for at in range(20):
                    (id,) = client.prepare([{**HALF, "text": f"{number} {at}"}])
                    assert client.end("g", id, "commit")["verdict"] == "accepted"
                    ids.append(id)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(set(ids)) == 320
