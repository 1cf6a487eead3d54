"""The endpoint as a process: how it ends, why it does not start, who gets a connection."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from contextlib import ExitStack

import pytest

from store.directory import Lock
from tests.support.edge_client import EdgeClient
from tests.support.edge_process import (
    HALF,
    cannot_start,
    edge,
    figure,
    finish,
    problem_in,
    ready,
    refused_half,
    start,
    talk,
)


# --- start and stop ---
def test_sigterm_finishes_what_was_accepted(tmp_path):
    with edge(tmp_path / "data") as (process, port), EdgeClient(port) as client, EdgeClient(port) as poller:
        (id,) = client.prepare([HALF])
        poller.connection.request("GET", "/v1/groups/g/checks?member=m&wait_s=30")
        while client.status()["checks"]["polls_waiting"] == 0:
            pass
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert json.loads(poller.connection.getresponse().read()) == {"checks": []}, "a poll that waits is answered"
        assert process.wait(10) == 0
        assert time.monotonic() - began < 10
        assert process.stderr.read() == ""
    with edge(tmp_path / "data") as (_, port), EdgeClient(port) as client:
        assert client.end("g", id, "commit")["verdict"] == "accepted"


def test_kill_9_loses_nothing_acknowledged(tmp_path):
    with edge(tmp_path / "data") as (process, port), EdgeClient(port) as client:
        ids = [client.prepare([HALF])[0] for _ in range(20)]
        for id in ids[:10]:
            client.end("g", id, "commit")
        process.kill()
        process.wait()
    with edge(tmp_path / "data") as (_, port), EdgeClient(port) as client:
        assert [client.end("g", id, "commit")["verdict"] for id in ids] == ["already"] * 10 + ["accepted"] * 10


def test_port_in_use(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, said = cannot_start(tmp_path / "data", f"listenPort={port}")
    assert code == 2
    assert f"127.0.0.1:{port}: Address already in use" in said
    assert "listenPort" in said
    assert not (tmp_path / "data" / "store").exists(), "nothing was touched"


def test_data_directory_locked(tmp_path):
    with edge(tmp_path / "data"):
        code, said = cannot_start(tmp_path / "data")
        assert code == 2
        assert "is the edge of this store; stop it first" in said


def test_other_file_sizes_than_the_store_has(tmp_path):
    with edge(tmp_path / "data") as (process, _):
        process.terminate()
        process.wait(10)
    code, said = cannot_start(tmp_path / "data", "commitLogSegmentSize=2MiB")
    assert code == 2
    assert "commitLogSegmentSize is 1048576, not 2097152" in said


def test_bad_settings(tmp_path):
    code, said = cannot_start(tmp_path / "data", "transactionCheckMax=0")
    assert code == 2
    assert "flag --set: transactionCheckMax" in said
    assert cannot_start(tmp_path / "data", ESCROW_ROLE="slave")[0] == 2


def test_addresses_beyond_loopback_are_refused(tmp_path):
    code, said = cannot_start(tmp_path / "data", "listenAddress=0.0.0.0")
    assert code == 2
    assert "reachable from elsewhere" in said
    assert cannot_start(tmp_path / "data", "listenAddress=example.com")[0] == 2


def test_a_foreign_directory_and_broken_keys(tmp_path):
    (tmp_path / "data" / "store").mkdir(parents=True)
    (tmp_path / "data" / "store" / "family.jpg").touch()
    assert "choose an empty directory" in cannot_start(tmp_path / "data")[1]
    (tmp_path / "other" / "keys").mkdir(parents=True)
    (tmp_path / "other" / "keys" / "ids.keys").write_text("junk")
    assert "restore it from its backup" in cannot_start(tmp_path / "other")[1]


def test_a_failed_flush_ends_the_process_with_one_line(tmp_path):
    process = start(tmp_path / "data", ESCROW_FAILPOINT="commitlog.flush=EIO@2")
    try:
        with EdgeClient(ready(process)) as client:
            client.prepare([HALF])
            assert refused_half(client, HALF).code == "store_failed"
        assert process.wait(10) == 1
        said = process.stderr.read()
        assert said.count("\n") == 1
        assert "the store failed" in said
    finally:
        finish(process)


def test_a_lock_of_our_own_process_is_seen(tmp_path):
    (tmp_path / "data" / "store").mkdir(parents=True)
    with edge(tmp_path / "data") as (process, _):
        process.terminate()
        process.wait(10)
    with Lock(tmp_path / "data" / "store" / "edge.lock", "somebody"):
        assert str(os.getpid()) in cannot_start(tmp_path / "data")[1]


def test_requests_of_a_member_that_hangs_up_go_to_another(tmp_path):
    """Over real sockets: who is handed a request and cannot take it has not been asked."""
    from tests.support.standin import Standin

    flags = ("transactionTimeOut=1s", "transactionCheckInterval=1s")
    with edge(tmp_path / "data", *flags) as (_, port), Standin(tmp_path / "data", *flags), EdgeClient(port) as client:
        (id,) = client.prepare([HALF])
        gone = EdgeClient(port)
        gone.connection.request("GET", "/v1/groups/g/checks?member=gone&wait_s=30")
        while client.status()["checks"]["polls_waiting"] == 0:
            pass
        gone.close()
        checks: list[dict] = []
        while not checks:
            checks = client.poll_checks("g", "stays", wait_s=5)
        assert [(check["id"], check["attempt"]) for check in checks] == [(id, 1)]


def long_poll(member):
    return b"GET /v1/groups/q/checks?member=%b&wait_s=60 HTTP/1.1\r\nhost: localhost\r\n\r\n" % member


def test_connections_are_bounded(tmp_path):
    """Those that have a request under way are never ended for a new one: that is refused."""
    flags = ("maxConnections=3", "pollWaitMax=60s")
    with edge(tmp_path / "data", *flags) as (_, port), ExitStack() as stack:
        polling = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 20)) for _ in range(3)]
        for connection in polling[:2]:
            connection.sendall(long_poll(b"m"))
        with EdgeClient(port) as watching:  # the third, which is idle, made room for it
            while figure(watching, "escrow_check_polls_waiting") < 2:
                pass
            assert polling[2].recv(1) == b""
            watching.connection.sock.sendall(long_poll(b"m"))
            answer = b""
            while b" 503 " not in answer:  # until the poll is read, its connection counts as idle
                answer = talk(port, b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                assert answer
            told = problem_in(answer)
            assert (told["status"], told["code"]) == (503, "overloaded")
            for connection in (*polling[:2], watching.connection.sock):
                connection.setblocking(False)
                with pytest.raises(BlockingIOError):
                    connection.recv(1)


def test_the_connection_that_was_idle_longest_makes_room(tmp_path):
    """Idle clients cannot lock others out."""
    flags = ("maxConnections=3", "keepAliveTimeout=10m", "headerTimeout=10m", "pollWaitMax=60s")
    with edge(tmp_path / "data", *flags) as (_, port), ExitStack() as stack:
        other, longest = (stack.enter_context(EdgeClient(port)) for _ in range(2))
        active = stack.enter_context(socket.create_connection(("127.0.0.1", port), 20))
        other.status()
        longest.status()
        active.sendall(long_poll(b"m"))
        while figure(other, "escrow_check_polls_waiting") < 1:
            pass
        new = stack.enter_context(EdgeClient(port))
        assert new.call("GET", "/livez") == {"status": "ok"}
        assert longest.connection.sock.recv(1) == b"", "it was idle longest"
        kept = other.connection.sock
        assert other.call("GET", "/livez") == {"status": "ok"}
        assert other.connection.sock is kept
        assert figure(new, "escrow_connections_refused_total") == 1
        assert figure(new, "escrow_check_polls_waiting") == 1


def test_silent_clients_and_incomplete_heads_make_room(tmp_path):
    with edge(tmp_path / "data", "maxConnections=4", "headerTimeout=10m") as (_, port), ExitStack() as stack:
        crowd = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 20)) for _ in range(4)]
        for connection in crowd[:3]:
            connection.sendall(b"GET /livez HT")
        clients = [stack.enter_context(EdgeClient(port)) for _ in range(4)]
        for client in clients:
            assert client.call("GET", "/livez") == {"status": "ok"}
        for connection in crowd:
            assert connection.recv(1) == b""
        assert figure(clients[0], "escrow_connections_refused_total") == 4
