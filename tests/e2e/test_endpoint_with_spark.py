"""Every answer of the HTTP API that depends on the streaming job, over real HTTP with real Spark settling behind it."""

from __future__ import annotations

import pytest

from tests.support.edge_client import EdgeClient

GROUP = "e2e"


@pytest.fixture
def client(run):
    with EdgeClient(run.port) as made:
        yield made


def half(client, topic, text, **rest):
    (id,) = client.prepare([{"group": GROUP, "topic": topic, "text": text, **rest}])
    return id


def events(client, id):
    return [event["event"] for event in client.transaction(id)["history"]]


def test_commit_is_settled_where_it_was_served(run, client):
    id = half(client, "settled", "one", key="k")
    assert client.end(GROUP, id, "commit")["verdict"] == "accepted"
    (message,) = client.consume("settled", wait_s=10)
    assert (message["body"], message["transaction_id"]) == (b"one", id)
    found = run.until(lambda: (tx := client.transaction(id))["settled"] and tx)
    assert (found["queue_id"], found["queue_offset"]) == (message["queue_id"], message["queue_offset"])
    (again,) = client.consume("settled", group="others")
    assert (again["body"], again["queue_offset"]) == (b"one", message["queue_offset"]), "the settled queue has it at the same place"
    assert client.ack("settled", [message["receipt"]]) == ["done"]


def test_check_answer_and_history(run, client):
    id = half(client, "checked", "silent", properties={"colour": "blue"})
    (check,) = run.until(lambda: [c for c in client.poll_checks(GROUP, "member-1", wait_s=5) if c["id"] == id])
    assert (check["topic"], check["body"], check["attempt"], check["properties"]["colour"]) == ("checked", b"silent", 1, "blue")
    assert client.end(GROUP, id, "unknown", from_check=True, remark="still running")["verdict"] == "accepted"
    (check,) = run.until(lambda: [c for c in client.poll_checks(GROUP, "member-2", wait_s=5) if c["id"] == id])
    assert check["attempt"] == 2
    assert client.end(GROUP, id, "rollback", from_check=True)["verdict"] == "accepted"
    found = run.until(lambda: (tx := client.transaction(id))["settled"] and tx)
    assert (found["state"], found["outcome"], found["attempts"]) == ("ROLLED_BACK", "rollback", 2)
    told = [(event["event"], event.get("actor", ""), event.get("remark", "")) for event in found["history"]]
    assert told == [
        ("prepared", "", ""),
        ("asked", "member-1", ""),
        ("unknown", "", "still running"),
        ("asked", "member-2", ""),
        ("rolled_back", "", ""),
    ]


def test_discard_refusal_and_resume(run, client):
    id = half(client, "discarded", "never answered")
    run.until(
        lambda: client.poll_checks(GROUP, "deaf", wait_s=1) is not None and client.transaction(id)["state"] == "DISCARDED_MAX"
    )
    assert client.end(GROUP, id, "commit") == {"verdict": "refused", "reason": "discarded", "state": "DISCARDED_MAX"}
    assert client.act("resume", [id], "the database was down")[0]["result"] == "accepted"
    assert client.end(GROUP, id, "commit")["verdict"] == "accepted"
    assert events(client, id) == ["prepared", "asked", "asked", "discarded", "refused", "resumed", "committed"]
    assert [message["body"] for message in client.consume("discarded", wait_s=10)] == [b"never answered"]


def test_the_job_is_seen_from_the_endpoint(run, client):
    ready = run.until(lambda: (found := client.call("GET", "/readyz"))["job"]["state"] == "running" and found)
    assert ready["status"] == "ok"
    status = run.until(lambda: (found := client.status())["job"]["ops_behind"] == 0 and found)
    assert status["job"]["round_no"] > 0
    assert status["failed"] == ""
