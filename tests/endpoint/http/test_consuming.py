"""Consuming over HTTP, against the endpoint as a process. What is handed out comes from the unsettled tail: no job runs here."""

from __future__ import annotations

import json
import time

import pytest

from tests.support.edge_client import EdgeClient, RemoteError
from tests.support.edge_process import edge, figure


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with edge(tmp_path_factory.mktemp("consuming") / "data", "maxDeliveries=2") as (process, port):
        yield port
        assert process.poll() is None


@pytest.fixture
def client(running):
    with EdgeClient(running) as made:
        yield made


def send(client, topic, *texts, **rest):
    client.send([{"group": "g", "topic": topic, "text": text, **rest} for text in texts])


def test_a_committed_half_is_handed_out_and_done(client):
    (id, other) = client.prepare(
        [{"group": "g", "topic": "paid", "text": text, "key": "k", "tags": "x"} for text in ("one", "two")]
    )
    assert client.consume("paid") == [], "halves are invisible"
    client.end("g", id, "commit")
    client.end("g", other, "rollback")
    (message,) = client.consume("paid", wait_s=5)
    assert (message["body"], message["key"], message["tags"], message["attempt"]) == (b"one", "k", "x", 1)
    assert message["transaction_id"] == id
    assert client.transaction(id)["queue_offset"] == message["queue_offset"]
    assert client.consume("paid") == [], "it is in hand"
    assert client.ack("paid", [message["receipt"]]) == ["done"]
    assert client.ack("paid", [message["receipt"]]) == ["done"], "saying it again changes nothing"


def test_a_long_poll_is_woken_by_a_commit(client, running):
    (id,) = client.prepare([{"group": "g", "topic": "woken", "text": "x"}])
    with EdgeClient(running) as consumer:
        consumer.connection.request("GET", "/v1/topics/woken/messages?group=r&consumer=c&wait_s=30")
        while not figure(client, "escrow_consumer_polls_total"):
            time.sleep(0.005)
        client.end("g", id, "commit")
        answer = json.loads(consumer.connection.getresponse().read())
    assert len(answer["messages"]) == 1


def test_order_by_key_tags_and_groups(client):
    for number in range(3):
        send(client, "keyed", f"a{number}", key="a", tags="even" if number % 2 == 0 else "odd")
    assert [message["body"] for message in client.consume("keyed", max=2)] == [b"a0", b"a1"]
    assert client.consume("keyed") == [], "the third waits behind the two that are in hand"
    assert [message["body"] for message in client.consume("keyed", group="others", tags="even")] == [b"a0", b"a2"]
    with pytest.raises(RemoteError, match="tags") as caught:
        client.consume("keyed", group="others", tags="odd", consumer="another")
    assert caught.value.field == "tags"


def test_giving_back_seeking_and_starting_late(client):
    send(client, "sought", "old", queue_id=0)
    (message,) = client.consume("sought")
    (receipt,) = client.call(
        "POST", "/v1/topics/sought/visibility", {"group": "readers", "receipts": [message["receipt"]], "visibility_s": 0}
    )["receipts"]
    assert receipt != message["receipt"]
    (again,) = client.consume("sought")
    assert (again["body"], again["attempt"]) == (b"old", 2)
    assert client.ack("sought", [again["receipt"]]) == ["done"]
    assert client.consume("sought", group="late", **{"from": "latest"}) == []
    send(client, "sought", "new", queue_id=0)
    assert [message["body"] for message in client.consume("sought", group="late")] == [b"new"]
    found = client.call("POST", "/v1/topics/sought/seek", {"group": "late", "to": "earliest"})
    assert found["queues"][0] == {"queue_id": 0, "queue_offset": 0}
    assert [message["body"] for message in client.consume("sought", group="late")] == [b"old", b"new"]


def test_dead_letters_are_listed_and_replayed(client):
    send(client, "deadly", "poison", "fine", queue_id=1)
    for attempt in (1, 2):
        found = client.consume("deadly", group="weak", visibility_s=0.05)
        assert {(message["body"], message["attempt"]) for message in found} >= {(b"poison", attempt)}
        for message in found:
            if message["body"] == b"fine":
                client.ack("deadly", [message["receipt"]], group="weak")
        time.sleep(0.06)  # the visibility time of a real clock
    assert client.consume("deadly", group="weak") == []
    letters: list[dict] = []
    while not letters:
        letters = client.call("GET", "/v1/groups/weak/dead-letters")["dead_letters"]
    (letter,) = letters
    assert (letter["topic"], letter["attempts"]) == ("deadly", 2)
    assert client.call("POST", "/v1/groups/weak/dead-letters/replay", {"ids": [letter["id"]]}) == {"replayed": 1}
    assert client.call("GET", "/v1/groups/weak/dead-letters") == {"dead_letters": [], "next": None}
    (message,) = client.consume("deadly", group="weak", wait_s=5)
    assert (message["body"], message["attempt"]) == (b"poison", 1)
    assert b"poison" not in {message["body"] for message in client.consume("deadly", group="strangers")[2:]}


def test_a_consumer_that_hangs_up_leaves_its_messages_to_others(client, running):
    with EdgeClient(running) as gone:
        before = figure(client, "escrow_consumer_polls_total")
        gone.connection.request("GET", "/v1/topics/left/messages?group=r&consumer=gone&wait_s=30&visibility_s=600")
        while figure(client, "escrow_consumer_polls_total") == before:
            time.sleep(0.005)
    while figure(client, "escrow_connections") > 1:
        time.sleep(0.005)
    send(client, "left", "x")
    assert [message["body"] for message in client.consume("left", group="r", wait_s=5)] == [b"x"]


@pytest.mark.parametrize(
    ("request_line", "content", "told"),
    [
        ("GET /v1/topics/t/messages", None, (400, "group")),
        ("GET /v1/topics/t/messages?group=g&consumer=c&max=0", None, (400, "max")),
        ("GET /v1/topics/t/messages?group=g&consumer=c&from=soon", None, (400, "from")),
        ("GET /v1/topics/t/messages?group=g&consumer=c&visibility_s=1e9", None, (400, "visibility_s")),
        ("GET /v1/topics/TRANS_CHECK_MAX_TIME_TOPIC/messages?group=g&consumer=c", None, (400, "topic")),
        ("POST /v1/topics/t/acks", {"group": "g", "receipts": ["junk"]}, (400, "receipts[0]")),
        ("POST /v1/topics/t/seek", {"group": "g", "to": "there"}, (400, "to")),
    ],
)
def test_wrong_requests_name_the_field(client, request_line, content, told):
    method, path = request_line.split()
    with pytest.raises(RemoteError) as caught:
        client.call(method, path, content)
    assert (caught.value.status, caught.value.field) == told
