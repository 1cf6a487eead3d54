"""Clients without manners, part two: what the fuzzer (tests/campaigns/fuzz) and reading the code found: each of these hung or
grew once."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import pytest

from ingest.http.connections.protocol import PIPELINED_MAX
from ingest.http.connections.reading import HEAD_MAX_BYTES
from tests.support.certificates import Authority
from tests.support.edge_client import EdgeClient
from tests.support.edge_process import HALF, ROOT, edge, figure, problem_in, refused_half, served, talk
from tests.support.edge_world import SMALL

HALVES = json.dumps({"messages": [HALF]}).encode()
POST = b"POST /v1/halves HTTP/1.1\r\nhost: localhost\r\n"
CLOSE = b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with edge(tmp_path_factory.mktemp("manners") / "data") as (process, port):
        yield port
        assert process.poll() is None


@pytest.fixture(scope="module")
def impatient(tmp_path_factory):
    with edge(tmp_path_factory.mktemp("impatient") / "data", "requestTimeout=300ms", "keepAliveTimeout=1s") as (process, port):
        yield port
        assert process.poll() is None


def framed(length):
    return b"content-length: %d\r\n\r\n" % length


# --- bodies that do not come ---
def test_a_head_without_any_of_its_body_is_given_up(impatient):
    told = problem_in(talk(impatient, POST + framed(100)))
    assert (told["status"], told["code"], told["field"]) == (408, "too_slow", "body")
    assert "requestTimeout" in told["detail"]
    with EdgeClient(impatient) as client:
        assert figure(client, 'escrow_receiving_bytes{share="halves"}') == 0


def test_the_rest_of_a_refused_body_must_come_in_time(impatient):
    """It has had its answer; then a byte now and then must not keep the connection for ever."""
    with socket.create_connection(("127.0.0.1", impatient), 20) as connection:
        connection.sendall(b"POST /v1/nonsense HTTP/1.1\r\nhost: localhost\r\n" + framed(1_000_000))
        assert b"404" in connection.recv(65_536)
        with suppress(ConnectionResetError, BrokenPipeError):
            while connection.send(b"x"):
                time.sleep(0.02)  # the clock of the dribble itself
    assert served(impatient)


def test_a_connection_is_idle_once_its_refused_body_is_there(impatient):
    with socket.create_connection(("127.0.0.1", impatient), 20) as connection:
        connection.sendall(b"POST /v1/nonsense HTTP/1.1\r\nhost: localhost\r\n" + framed(1))
        assert b"404" in connection.recv(65_536)
        connection.sendall(b"x")
        assert connection.recv(65_536) == b"", "keepAliveTimeout ends it"


# --- heads ---
@pytest.mark.parametrize(
    "more", [b"x: " + b"a" * 65_536 + b"\r\n", b"a:b\r\n" * 10_000, b"a:b\r\n" * 300], ids=["one", "many bytes", "many"]
)
def test_a_head_in_one_piece_has_the_same_limit(running, more):
    """The limit was looked at between two pieces only."""
    told = problem_in(talk(running, b"GET /livez HTTP/1.1\r\nhost: localhost\r\n" + more + b"\r\n"))
    assert (told["status"], told["code"], told["field"]) == (431, "too_large", "headers")
    assert served(running)


@pytest.mark.parametrize("hosts", [b"", b"host: localhost\r\nHost: evil.example\r\n", b"host: localhost\r\nhost: localhost\r\n"])
def test_a_request_has_one_host(running, hosts):
    told = problem_in(talk(running, b"GET /v1/status HTTP/1.1\r\n" + hosts + b"connection: close\r\n\r\n"))
    assert (told["status"], told["code"], told["field"]) == (400, "bad_http", "host")


def test_http_1_0_needs_no_host_to_ask_whether_it_lives(running):
    assert talk(running, b"GET /livez HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200")
    assert b" 403 " in talk(running, b"GET /v1/status HTTP/1.0\r\n\r\n").partition(b"\r\n")[0]


# --- what is around a body ---
def test_trailers_are_no_headers(running):
    body = b"%x\r\n%s\r\n0\r\n" % (len(HALVES), HALVES)
    trailers = b"content-type: text/xml\r\nhost: evil.example\r\n\r\n"
    answer = talk(running, POST + b"transfer-encoding: chunked\r\n\r\n" + body + trailers + CLOSE)
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.count(b"HTTP/1.1 200") == 2


@pytest.mark.parametrize("line", [b"x: " + b"y" * 1000 + b"\r\n", b"y" * 1000], ids=["trailers", "chunk extension"])
def test_endless_trailers_and_extensions_are_refused(running, line):
    begin = b"0\r\n" if line.startswith(b"x") else b"1;"
    poll = b"GET /v1/groups/q/checks?member=m&wait_s=30 HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n"
    told = problem_in(talk(running, poll + begin, *[line * (HEAD_MAX_BYTES // 1000 + 2)] * 20))
    assert (told["status"], told["code"], told["field"]) == (431, "too_large", "body")
    with EdgeClient(running) as client:
        while figure(client, "escrow_check_polls_waiting"):
            pass


def test_a_body_in_chunks_of_one_byte_is_taken(running):
    body = b"".join(b"1\r\n%c\r\n" % byte for byte in HALVES) + b"0\r\n\r\n"
    assert talk(running, POST + b"transfer-encoding: chunked\r\n\r\n" + body, CLOSE).count(b"HTTP/1.1 200") == 2


@pytest.mark.parametrize("broken", [b"ZZ\r\n", b"-1\r\n", b"ffffffffffffffffff\r\n", b"1\r\nabc"])
def test_a_body_in_broken_chunks_is_a_400(running, broken):
    told = problem_in(talk(running, POST + b"transfer-encoding: chunked\r\n\r\n" + broken))
    assert (told["status"], told["code"]) == (400, "bad_http")
    assert served(running)


def test_nobody_is_told_to_continue_what_was_refused(tmp_path):
    """Found by the fuzzer: the application asked for the body of a request that the door had refused just before."""
    with edge(tmp_path / "data") as (_, port):
        told = problem_in(talk(port, POST + b"expect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n"))
        assert (told["status"], told["code"]) == (400, "bad_http")
        assert served(port)
        assert not (tmp_path / "data" / "logs" / "edge-events.log").exists()


# --- upgrades ---
OFFER = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAAA\r\n"


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("chunked", [False, True])
def test_an_upgrade_is_declined_and_the_body_read(running, chunked, apart):
    """Java's own HTTP client offers h2c with its first request."""
    framing = b"transfer-encoding: chunked\r\n\r\n" if chunked else framed(len(HALVES))
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(HALVES), HALVES) if chunked else HALVES
    pieces = (POST + OFFER + framing, body, CLOSE) if apart else (POST + OFFER + framing + body + CLOSE,)
    answers = talk(running, *pieces)
    assert answers.count(b"HTTP/1.1 200") == 2
    assert b'"half_offset"' in answers


def test_upgrades_one_behind_the_other(running):
    offers = b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    assert talk(running, offers * 20 + CLOSE).count(b'{"status":"ok"}') == 21
    with suppress(ConnectionResetError):
        talk(running, offers * 4000)
    assert served(running)


# --- gone ---
def test_polls_of_a_connection_that_was_hung_up_on_end_at_once(tmp_path):
    poll = b"GET /v1/groups/q/checks?member=m&wait_s=600 HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with edge(tmp_path / "data", "pollWaitMax=600s") as (_, port), EdgeClient(port) as client:
        with suppress(ConnectionResetError):
            talk(port, poll * (PIPELINED_MAX + 2))
        while figure(client, "escrow_check_polls_waiting"):
            pass


# --- forms and sizes ---
@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text; version=abc",
        "text/plain; version=²",
        "application/openmetrics-text; version=1.0.0.é",
        "*/*;q=x",
    ],
)
def test_metrics_in_a_form_that_nobody_knows(running, accept):
    answer = talk(
        running,
        b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\naccept: " + accept.encode("latin-1") + b"\r\n\r\n",
    )
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"escrow_connections " in answer


def test_properties_are_bounded(running):
    with EdgeClient(running) as client:
        error = refused_half(client, HALF, {**HALF, "properties": {"a": "x" * 32_000}})
        assert (error.status, error.code, error.field) == (400, "invalid", "messages[1].properties")
        assert "30720" in str(error)
        assert client.prepare([{**HALF, "properties": {"a": "x" * 30_000}}])


# --- files ---
@contextmanager
def limited(data, limits, *flags):
    """An edge with limits of open files, as the shell's ulimit has them; (process, what it said until it was ready)."""
    sets = [word for flag in (*SMALL, "listenPort=0", *flags) for word in ("--set", flag)]
    command = [sys.executable, "-m", "ingest.server", "--data", str(data), *sets]
    process = subprocess.Popen(
        ["sh", "-c", f'{limits} exec "$@"', "sh", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert process.stdout is not None
        said: list[dict] = []
        while not (said and said[-1].get("ready")):
            said.append(json.loads(process.stdout.readline()))
        yield process, said
    finally:
        with process:
            process.kill()


def test_the_limit_of_open_files_is_raised(tmp_path):
    with limited(tmp_path / "data", "ulimit -S -n 256;", "maxConnections=1000") as (process, said):
        assert not [line for line in said if "maxConnections" in line.get("notice", "")]
        with open(f"/proc/{process.pid}/limits") as limits:
            (files,) = [line.split() for line in limits if line.startswith("Max open files")]
        assert files[3] == files[4] != "256"


def test_connections_leave_the_store_its_files(tmp_path):
    with limited(tmp_path / "data", "ulimit -n 256;") as (process, said):
        (notice,) = [line["notice"] for line in said if "maxConnections" in line.get("notice", "")]
        assert "this process may have 256: 112 are taken" in notice
        port = said[-1]["port"]
        with EdgeClient(port) as client:
            client.status()
            crowd = [socket.create_connection(("127.0.0.1", port), 20) for _ in range(400)]
            with EdgeClient(port) as late:  # ours is one of those that made room
                while figure(late, "escrow_connections_refused_total") < 1:
                    pass
                assert late.prepare([HALF]), "the first half needs new files"
            for connection in crowd:
                connection.close()
        with EdgeClient(port) as client:
            while figure(client, "escrow_connections") > 1:
                pass
        assert process.poll() is None


def sockets_of(process):
    names = []
    for name in os.listdir(f"/proc/{process.pid}/fd"):
        with suppress(FileNotFoundError):
            names.append(os.readlink(f"/proc/{process.pid}/fd/{name}"))
    return sum(name.startswith("socket:") for name in names)


def is_hung_up_on(connection):
    connection.settimeout(0)
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


def test_idle_connections_of_grpc_leave_the_store_its_files(tmp_path):
    """Each port has its share, and the rest is hung up on."""
    with limited(tmp_path / "data", "ulimit -n 256;", "grpcPort=0") as (process, said):
        (notice,) = [line["notice"] for line in said if "grpcMaxCalls" in line.get("notice", "")]
        assert "63 of RocketMQ's clients to each port" in notice
        with EdgeClient(said[-1]["port"]) as client:
            client.status()
            crowd = [socket.create_connection(("127.0.0.1", said[-1]["grpc_port"]), 20) for _ in range(300)]
            hung_up: set[int] = set()
            while len(hung_up) < 300 - 63:
                hung_up |= {number for number, each in enumerate(crowd) if number not in hung_up and is_hung_up_on(each)}
            assert sockets_of(process) < 128
            assert client.prepare([HALF]), "the first half needs new files"
            for connection in crowd:
                connection.close()
        assert process.poll() is None


def test_connections_without_a_handshake_are_counted_and_make_room(tmp_path):
    """Silent ones cannot keep others out, nor the store from its files."""
    authority = Authority(tmp_path)
    pair = authority.issue("localhost")
    flags = (f"tlsCertFile={pair.cert}", f"tlsKeyFile={pair.key}", "headerTimeout=10m")
    with limited(tmp_path / "data", "ulimit -n 256;", *flags) as (process, said):
        crowd = [socket.create_connection(("127.0.0.1", said[-1]["port"]), 20) for _ in range(400)]
        with EdgeClient(said[-1]["port"], tls=ssl.create_default_context(cafile=str(authority.cert))) as client:
            assert client.prepare([HALF])
            assert figure(client, "escrow_connections_refused_total") >= 400 - 128
            assert sockets_of(process) < 160
        for connection in crowd:
            connection.close()
        assert process.poll() is None
