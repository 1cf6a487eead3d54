"""The endpoint as a real process: operations, refusals, bounds, clients without manners, start and stop."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from ingest.http.connections.protocol import PIPELINED_MAX
from store.directory import Lock
from tests.support.edge_client import EdgeClient, RemoteError, body_of
from tests.support.edge_world import SMALL

ROOT = Path(__file__).parents[4]
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
    with edge(
        tmp_path_factory.mktemp("edge") / "data", "maxRequestSize=64KiB", "maxBodySize=16KiB", "maxMessagesPerRequest=256"
    ) as (process, port):
        yield port
        assert process.poll() is None


@pytest.fixture
def client(running):
    with EdgeClient(running) as made:
        yield made


def refused(client, method, path, content=None, **query):
    with pytest.raises(RemoteError) as caught:
        client.call(method, path, content, **query)
    return caught.value


def refused_half(client, *messages):
    return refused(client, "POST", "/v1/halves", {"messages": list(messages)})


# --- operations ---
def test_the_life_of_a_transaction(client):
    binary = {"group": "g", "topic": "t", "body": body_of(b"\x00\xff"), "key": "k", "tags": "x", "properties": {"a": "b"}}
    first, second = client.prepare([HALF, {**binary, "check_immunity_s": 60, "born_at_ms": 5, "flag": 7}])
    assert client.end("g", first, "commit") == {"verdict": "accepted", "reason": "", "state": "COMMITTED"}
    assert client.end("g", first, "commit")["verdict"] == "already"
    assert client.end("g", first, "rollback") == {"verdict": "conflict", "reason": "already committed", "state": "COMMITTED"}
    assert client.end("other", second, "commit")["reason"] == "wrong group"
    assert client.end("g", first[:-1] + ("A" if first[-1] != "A" else "B"), "commit")["reason"].startswith("unknown id")
    assert client.transaction(second)["state"] == "PREPARED"
    assert client.act("resume", [second])[0]["result"] == "accepted"
    assert client.poll_checks("g", "me") == []
    status = client.status()
    assert status["half_end"] >= 2
    assert status["log_flushed"] == status["log_end"]


def test_halves_are_answered_in_order_with_their_offsets(client):
    found = client.call("POST", "/v1/halves", {"messages": [{**HALF, "text": str(n)} for n in range(5)]})["halves"]
    assert len({half["id"] for half in found}) == 5
    offsets = [half["half_offset"] for half in found]
    assert offsets == list(range(offsets[0], offsets[0] + 5))
    assert [client.transaction(half["id"])["half_offset"] for half in found] == offsets


def test_ordinary_messages_are_answered_with_their_places(client):
    messages = [{"group": "g", "topic": "plain", "text": "x", "queue_id": 1}] * 3
    assert client.call("POST", "/v1/messages", {"messages": messages}) == {
        "messages": [{"queue_id": 1, "queue_offset": n} for n in range(3)]
    }


def test_the_history_of_a_transaction(client):
    (id,) = client.prepare([{**HALF, "key": "k", "born_at_ms": 5}])
    client.end("g", id, "unknown", remark="not yet")
    client.end("g", id, "commit", from_check=True)
    found = client.transaction(id)
    assert (found["state"], found["outcome"], found["group"], found["topic"], found["key"]) == (
        "COMMITTED",
        "commit",
        "g",
        "t",
        "k",
    )
    assert (found["born_at_ms"], found["settled"], found["attempts"]) == (5, False, 0)
    assert found["queue_offset"] >= 0
    assert [(event["event"], event.get("by"), event.get("remark")) for event in found["history"]] == [
        ("prepared", "producer", None),
        ("unknown", "producer", "not yet"),
        ("committed", "check", None),
    ]
    assert found["history"][0]["at_ms"] == found["stored_at_ms"]


def test_a_batch_of_halves_is_all_or_none(client):
    before = client.status()["half_end"]
    error = refused_half(client, HALF, HALF, {**HALF, "topic": "not a name"})
    assert (error.status, error.code, error.field) == (400, "invalid", "messages[2].topic")
    assert client.status()["half_end"] == before


def test_a_dedup_key_makes_a_repeated_send_one_half(client):
    keyed = {**HALF, "dedup_key": "order 7"}
    first = client.prepare([keyed])
    assert client.prepare([keyed]) == first
    error = refused_half(client, HALF, {**keyed, "text": "another body"})
    assert (error.status, error.code, error.field) == (409, "duplicate_key", "messages[1].dedup_key")


def test_msgpack_both_ways(client):
    message = {"group": "g", "topic": "t", "body": b"\x00\xff", "queue_id": 2}
    headers = {"Content-Type": "application/msgpack"}
    status, told, answer = client.raw("POST", "/v1/halves", msgspec.msgpack.encode({"messages": [message]}), headers)
    assert (status, told["content-type"]) == (200, "application/msgpack")
    (half,) = msgspec.msgpack.decode(answer)["halves"]
    ends = {"ends": [{"group": "g", "id": half["id"], "outcome": "rollback"}]}
    both = {**headers, "Accept": "application/json"}
    status, told, answer = client.raw("POST", "/v1/ends", msgspec.msgpack.encode(ends), both)
    assert (status, told["content-type"]) == (200, "application/json")
    assert json.loads(answer)["answers"][0]["verdict"] == "accepted"
    status, told, answer = client.raw("POST", "/v1/halves", b"\xc1", headers)
    assert (status, told["content-type"]) == (400, "application/problem+json")
    assert json.loads(answer)["detail"].startswith("the body is not msgpack")


def test_liveness_readiness_and_metrics(client):
    assert client.call("GET", "/livez") == {"status": "ok"}
    ready = client.call("GET", "/readyz")
    assert (ready["status"], ready["role"], ready["job"]["state"]) == ("ok", "master", "absent"), (
        "the edge accepts before Spark is up"
    )
    client.prepare([HALF])
    status, headers, content = client.raw("GET", "/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain")
    lines = content.decode().splitlines()
    assert [line for line in lines if line.startswith("escrow_halves_stored_total ")]
    assert [line for line in lines if line.startswith('escrow_http_requests_total{operation="POST /v1/halves",status="2xx"}')]


def test_the_openapi_document_is_served(client):
    assert client.call("GET", "/openapi.json") == json.loads((ROOT / "docs" / "openapi.json").read_text())


# --- refusals ---
@pytest.mark.parametrize(
    ("content", "field", "says"),
    [
        ({}, "messages", "messages: is missing"),
        ({"messages": {}}, "messages", "expected `array`"),
        ({"messages": []}, "messages", "length >= 1"),
        ({"messages": [5]}, "messages[0]", "expected `object`"),
        ({"messages": [HALF, {**HALF, "colour": 1}]}, "messages[1].colour", "there is no such field"),
        ({"messages": [{"group": "g", "topic": "t"}]}, "messages[0].body", "is missing; give body"),
        ({"messages": [{**HALF, "body": ""}]}, "messages[0].text", "not both"),
        ({"messages": [{"group": "g", "topic": "t", "body": "%%"}]}, "messages[0].body", "base64"),
        ({"messages": [{"group": "g", "topic": "t", "body": 5}]}, "messages[0].body", "expected `bytes`"),
        ({"messages": [{**HALF, "group": ""}]}, "messages[0].group", "length >= 1"),
        ({"messages": [{"topic": "t", "text": "x"}]}, "messages[0].group", "is missing"),
        ({"messages": [{**HALF, "group": 5}]}, "messages[0].group", "expected `str`"),
        ({"messages": [{**HALF, "topic": "a b"}]}, "messages[0].topic", "characters other than"),
        ({"messages": [{**HALF, "topic": "TRANS_CHECK_MAX_TIME_TOPIC"}]}, "messages[0].topic", "Escrow's own"),
        ({"messages": [{**HALF, "flag": -1}]}, "messages[0].flag", ">= 0"),
        ({"messages": [{**HALF, "born_at_ms": 1.5}]}, "messages[0].born_at_ms", "expected `int`"),
        ({"messages": [{**HALF, "queue_id": 63}]}, "messages[0].queue_id", "has queues 0 to"),
        ({"messages": [{**HALF, "check_immunity_s": "soon"}]}, "messages[0].check_immunity_s", "expected `int | null`"),
        ({"messages": [{**HALF, "properties": {"a": 1}}]}, "messages[0].properties", "expected `str`"),
        ({"messages": [{**HALF, "properties": {"DELAY": "3"}}]}, "messages[0].properties", "cannot be delayed"),
        ({"messages": [{**HALF, "properties": {"PGROUP": "x"}}]}, "messages[0].properties", "set by Escrow"),
    ],
)
def test_wrong_halves_name_the_field(client, content, field, says):
    error = refused(client, "POST", "/v1/halves", content)
    assert (error.status, error.code, error.field) == (400, "invalid", field)
    assert says in str(error)
    assert client.status()["failed"] == ""


@pytest.mark.parametrize(
    ("request_line", "content", "told"),
    [
        ("POST /v1/ends", {"ends": [{"group": "g", "id": "x", "outcome": "perhaps"}]}, (400, "ends[0].outcome")),
        ("POST /v1/ends", {"ends": [{"group": "g", "id": "x", "outcome": "commit", "from_check": 1}]}, (400, "ends[0].from_check")),
        ("GET /v1/groups/g/checks", None, (400, "member")),
        ("GET /v1/groups/g/checks?member=m&max=x", None, (400, "max")),
        ("GET /v1/groups/g/checks?member=m&wait_s=nan", None, (400, "wait_s")),
        ("GET /v1/groups/g/checks?member=m&colour=x", None, (400, "colour")),
        ("GET /v1/groups/g/checks?member=%ff", None, (400, "query")),
        ("POST /v1/operator/actions", {"action": "resume", "ids": "x", "reason": "r"}, (400, "ids")),
        ("POST /v1/operator/actions", {"action": "resume", "ids": ["x"]}, (400, "reason")),
        ("POST /v1/operator/actions", {"action": "resume", "ids": ["x"], "reason": ""}, (400, "reason")),
        ("POST /v1/operator/actions", {"action": "forget", "ids": ["x"], "reason": "r"}, (400, "action")),
        ("POST /v1/operator/actions", {"action": "resume", "reason": "r"}, (400, "ids")),
        ("POST /v1/operator/actions", {"action": "resume", "ids": ["x"], "filter": {}, "reason": "r"}, (400, "ids")),
        ("POST /v1/operator/actions", {"action": "commit", "filter": {}, "reason": "r"}, (400, "expect")),
        ("POST /v1/operator/actions", {"action": "commit", "filter": {"state": "any"}, "reason": "r"}, (400, "filter.state")),
        ("POST /v1/operator/actions", {"action": "commit", "filter": {"age": 1}, "reason": "r"}, (400, "filter.age")),
        ("GET /v1/operator/transactions?state=lost", None, (400, "state")),
        ("GET /v1/operator/transactions?limit=1001", None, (400, "limit")),
        ("GET /v1/operator/transactions?cursor=x", None, (400, "cursor")),
        ("GET /v1/operator/transactions?attempts_min=-1", None, (400, "attempts_min")),
        ("GET /v1/operator/transactions/x", None, (404, "id")),
        ("GET /v1/operator/audit?before=x", None, (400, "before")),
        ("GET /v1/transactions/x", None, (404, "id")),
        ("GET /v1/nonsense", None, (404, "")),
        ("DELETE /v1/halves", None, (405, "")),
    ],
)
def test_wrong_requests_name_the_field(client, request_line, content, told):
    method, path = request_line.split()
    error = refused(client, method, path, content)
    assert (error.status, error.field) == told
    if error.status == 405:
        assert error.headers["allow"] == "POST"


@pytest.mark.parametrize("immunity", [None, -1, 10**30, 7])
def test_any_immunity_is_taken(client, immunity):
    assert client.prepare([{**HALF, "check_immunity_s": immunity}])


@pytest.mark.parametrize("immunity", ["", "abc", "-1", "100.5", "9" * 40])
def test_any_immunity_property_is_taken(client, immunity):
    assert client.prepare([{**HALF, "properties": {"CHECK_IMMUNITY_TIME_IN_SECONDS": immunity}}])


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b"[]", b"5", b"{", b'{"messages":[{"group":"\\ud800"}]}', b'{"messages":[{"group":"\xff"}]}', b"[" * 10_000],
)
def test_junk_is_a_400(client, content):
    status, headers, answer = client.raw("POST", "/v1/halves", content)
    assert (status, headers["content-type"]) == (400, "application/problem+json")
    assert json.loads(answer)["field"]
    assert client.call("GET", "/livez") == {"status": "ok"}, "the connection goes on"


def test_other_media_are_refused(client):
    status, _, answer = client.raw("POST", "/v1/halves", b"<a/>", {"Content-Type": "text/xml"})
    assert status == 415
    assert "application/msgpack" in json.loads(answer)["detail"]


def test_too_many_messages_in_one_request(client):
    error = refused_half(client, *[{"group": "g", "topic": "t", "text": ""}] * 300)
    assert (error.status, error.code, error.field) == (413, "too_large", "messages")
    assert "maxMessagesPerRequest" in str(error)


def test_a_body_that_is_too_large(client):
    error = refused_half(client, HALF, {**HALF, "text": "x" * 20_000})
    assert (error.status, error.field) == (413, "messages[1].body")
    assert "maxBodySize" in str(error)


# --- clients without manners ---
def talk(port, *pieces, timeout_s=20.0):
    """Send pieces; everything that comes back until the other side hangs up."""
    with socket.create_connection(("127.0.0.1", port), timeout_s) as connection:
        for piece in pieces:
            connection.sendall(piece)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
        return answer


def problem_in(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head.lower()
    return json.loads(body.partition(b"HTTP/1.1")[0])


def served(port):
    with EdgeClient(port) as client:
        return client.call("GET", "/livez") == {"status": "ok"}


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


def post(path, content, *more):
    head = [b"POST %s HTTP/1.1" % path, b"host: localhost", b"content-length: %d" % len(content), *more]
    return b"\r\n".join([*head, b"", content])


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


def figure(client, name):
    """A metric's value."""
    lines = client.raw("GET", "/metrics")[2].decode().splitlines()
    return float(next((line for line in lines if line.startswith(name + " ")), "none 0").rsplit(" ", 1)[1])


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
