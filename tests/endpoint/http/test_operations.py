"""Operations of the endpoint, and what it refuses."""

from __future__ import annotations

import json

import msgspec
import pytest

from tests.support.edge_client import body_of
from tests.support.edge_process import (
    HALF,
    ROOT,
    refused,
    refused_half,
)


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
