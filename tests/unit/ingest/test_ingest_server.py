"""The socket server as a real process: wire, bounds, refusals, start and stop."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from ingest.client import EdgeClient, RemoteError, body_of
from store.directory import Lock
from tests.support.edge_world import SMALL

ROOT = Path(__file__).parents[3]
HALF = {"group": "g", "topic": "t", "text": "hello"}


def start(data, *flags, **environ):
    sets = [word for flag in (*SMALL, "listenPort=0", *flags) for word in ("--set", flag)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ESCROW_")}
    return subprocess.Popen(
        [sys.executable, "-m", "ingest.server", "--data", str(data), *sets],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env={**environment, **environ},
    )  # fmt: skip


def ready(process):
    for line in process.stdout:
        told = json.loads(line)
        if told.get("ready"):
            return told["port"]
    raise AssertionError(process.stderr.read())


def finish(process):
    with process:
        process.kill()


@contextmanager
def edge(data, *flags):
    process = start(data, *flags)
    try:
        yield process, ready(process)
    finally:
        finish(process)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with edge(tmp_path_factory.mktemp("edge") / "data", "maxRequestSize=64KiB") as (process, port):
        yield port
        assert process.poll() is None


@pytest.fixture
def client(running):
    with EdgeClient(running) as made:
        yield made


def refused(client, method, **params):
    with pytest.raises(RemoteError) as caught:
        client.call(method, **params)
    return caught.value.code, str(caught.value)


# --- operations ---
def test_the_life_of_a_transaction(client):
    binary = {"group": "g", "topic": "t", "body": body_of(b"\x00\xff"), "key": "k", "tags": "x", "properties": {"a": "b"}}
    first, second = client.prepare([HALF, {**binary, "check_immunity_s": 60, "born_at_ms": 5, "flag": 7}])
    assert client.end("g", first, "commit") == {"verdict": "accepted", "reason": "", "state": "COMMITTED"}
    assert client.end("g", first, "rollback")["verdict"] == "conflict"
    assert client.end("other", second, "commit")["reason"] == "wrong group"
    assert client.transaction(second)["state"] == "PREPARED"
    assert client.resume([second], "me")[0]["verdict"] == "accepted"
    assert client.send([HALF]) == 1
    assert client.poll_checks("g", "me") == []
    status = client.status()
    assert status["half_end"] == 2
    assert status["log_flushed"] == status["log_end"]


@pytest.mark.parametrize(
    ("method", "params", "says"),
    [
        ("prepare", {}, "messages: must be a list"),
        ("prepare", {"messages": {}}, "messages: must be a list"),
        ("prepare", {"messages": []}, "messages: is empty"),
        ("prepare", {"messages": [5]}, r"messages\[0\]: must be an object"),
        ("prepare", {"messages": [HALF, {**HALF, "colour": 1}]}, r"messages\[1\].colour: no such field"),
        ("prepare", {"messages": [{"group": "g", "topic": "t"}]}, r"messages\[0\].body: give either"),
        ("prepare", {"messages": [{**HALF, "body": ""}]}, "give either"),
        ("prepare", {"messages": [{"group": "g", "topic": "t", "body": "%%"}]}, "not base64"),
        ("prepare", {"messages": [{"group": "g", "topic": "t", "body": 5}]}, "not base64"),
        ("prepare", {"messages": [{**HALF, "text": "\ud800"}]}, "not valid Unicode"),
        ("prepare", {"messages": [{**HALF, "key": "\ud800"}]}, r"key: is not valid Unicode"),
        ("prepare", {"messages": [{**HALF, "group": ""}]}, "group: is missing"),
        ("prepare", {"messages": [{**HALF, "group": 5}]}, "group: must be text"),
        ("prepare", {"messages": [{**HALF, "topic": "a b"}]}, "topic: "),
        ("prepare", {"messages": [{**HALF, "topic": "TRANS_CHECK_MAX_TIME_TOPIC"}]}, "Escrow's own"),
        ("prepare", {"messages": [{**HALF, "flag": -1}]}, "flag: must be a whole number"),
        ("prepare", {"messages": [{**HALF, "flag": 1 << 40}]}, "flag: must be a whole number"),
        ("prepare", {"messages": [{**HALF, "born_at_ms": 1.5}]}, "born_at_ms: must be"),
        ("prepare", {"messages": [{**HALF, "queue_id": 99}]}, "queue_id: 99"),
        ("prepare", {"messages": [{**HALF, "properties": {"a": 1}}]}, r"properties.a: must be text"),
        ("prepare", {"messages": [{**HALF, "properties": {"DELAY": "3"}}]}, "cannot be delayed"),
        ("prepare", {"messages": [{**HALF, "properties": {"PGROUP": "x"}}]}, "set by Escrow"),
        ("end", {"ends": [{"group": "g", "id": "x", "outcome": "perhaps"}]}, "outcome: 'perhaps'"),
        ("end", {"ends": [{"group": "g", "id": "x", "outcome": "commit", "from_check": 1}]}, "from_check: must be"),
        ("poll_checks", {"group": "g"}, "member: is missing"),
        ("poll_checks", {"group": "g", "member": "m", "max": "x"}, "max: must be a number"),
        ("resume", {"ids": "x"}, "ids: must be a list"),
        ("status", {"id": "x"}, "not an id of ours"),
    ],
)
def test_wrong_requests_name_the_field(client, method, params, says):
    import re

    code, text = refused(client, method, **params)
    assert code in ("invalid", "bad_id")
    assert re.search(says, text), text
    assert client.status()["failed"] == ""


@pytest.mark.parametrize("immunity", [None, -1, "", "abc", "100.5", 10**30, True, 7])
def test_any_immunity_is_taken(client, immunity):
    assert client.prepare([{**HALF, "check_immunity_s": immunity}])
    if isinstance(immunity, str):
        assert client.prepare([{**HALF, "properties": {"CHECK_IMMUNITY_TIME_IN_SECONDS": immunity}}])


def test_unknown_methods_and_junk(client):
    assert refused(client, "nonsense")[0] == "unknown_method"
    for content in (b"", b"\xff\xfe", b"[]", b"5", b"{", b'{"method":5}', b'{"method":"status","params":[]}', b"[" * 10_000):
        client.write(content)
        assert client.read()["error"]["code"] in ("invalid", "unknown_method")
    assert client.status()["failed"] == ""


def test_an_oversized_request_is_refused_unread(running):
    with EdgeClient(running) as client:
        client._socket.sendall((1 << 31).to_bytes(4, "big") + b"x" * 1000)
        error = client.read()["error"]
        assert error["code"] == "too_large"
        assert "maxRequestSize" in error["message"]
        assert client._socket.recv(1) == b"", "and the connection is closed"
    with EdgeClient(running) as client:
        client.status()


def test_a_client_that_sends_half_a_request_and_goes(running):
    for content in (b"\x00", b"\x00\x00\x00\x64", b"\x00\x00\x00\x64{"):
        with socket.create_connection(("127.0.0.1", running)) as half:
            half.sendall(content)
    with EdgeClient(running) as client:
        client.status()


def test_requests_of_one_connection_are_served_side_by_side(client):
    client.write(
        json.dumps({"id": "slow", "method": "poll_checks", "params": {"group": "q", "member": "m", "wait_s": 0.3}}).encode()
    )
    client.write(json.dumps({"id": "fast", "method": "status"}).encode())
    assert [client.read()["id"] for _ in range(2)] == ["fast", "slow"]


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


# --- start and stop ---
def test_sigterm_finishes_what_was_accepted(tmp_path):
    with edge(tmp_path / "data") as (process, port), EdgeClient(port) as client, EdgeClient(port) as poller:
        (id,) = client.prepare([HALF])
        poller.write(json.dumps({"id": 1, "method": "poll_checks", "params": {"group": "g", "member": "m", "wait_s": 30}}).encode())
        while client.status()["checks"]["polls_waiting"] == 0:
            pass
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert poller.read()["result"] == {"checks": []}, "a poll that waits is answered"
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


def cannot_start(data, *flags, **environ):
    process = start(data, *flags, **environ)
    out, err = process.communicate(timeout=30)
    assert "ready" not in out
    assert err.count("\n") == 1, err
    assert err.startswith("escrow edge: ")
    return process.returncode, err


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
            assert refused(client, "prepare", messages=[HALF])[0] == "store_failed"
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
        gone.write(
            json.dumps({"id": 1, "method": "poll_checks", "params": {"group": "g", "member": "gone", "wait_s": 30}}).encode()
        )
        while client.status()["checks"]["polls_waiting"] == 0:
            pass
        gone.close()
        checks: list[dict] = []
        while not checks:
            checks = client.poll_checks("g", "stays", wait_s=5)
        assert [(check["id"], check["attempt"]) for check in checks] == [(id, 1)]


def test_connections_are_bounded(tmp_path):
    with edge(tmp_path / "data", "maxConnections=2") as (_, port), EdgeClient(port) as first, EdgeClient(port) as second:
        first.status()
        second.status()
        with EdgeClient(port) as third:
            assert third.read()["error"]["code"] == "overloaded"
        first.status()
