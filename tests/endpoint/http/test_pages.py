"""Reading a topic by place over HTTP, against the endpoint as a process. No job runs: all of it is the unsettled tail."""

from __future__ import annotations

import time

import pytest

from tests.support.edge_client import EdgeClient, RemoteError
from tests.support.edge_process import edge


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with edge(tmp_path_factory.mktemp("pages") / "data", "maxDeliveries=1") as (process, port):
        yield port
        assert process.poll() is None


@pytest.fixture
def client(running):
    with EdgeClient(running) as made:
        yield made


def send(client, topic, *texts, **rest):
    client.send([{"group": "g", "topic": topic, "text": text, "queue_id": 0, **rest} for text in texts])


def places(client, topic, at="latest"):
    return client.call("GET", f"/v1/topics/{topic}/queues?at={at}")


def page(client, topic, queue_id=0, **rest):
    query = "&".join(f"{name}={value}" for name, value in rest.items())
    return client.call("GET", f"/v1/topics/{topic}/queues/{queue_id}/messages?{query}")


def test_a_page_has_everything_of_its_messages(client):
    (id,) = client.prepare(
        [{"group": "g", "topic": "paid", "text": "one", "key": "k", "tags": "x", "properties": {"a": "b"}, "queue_id": 0}]
    )
    client.end("g", id, "commit")
    send(client, "paid", "two")
    found = page(client, "paid")
    told = client.transaction(id)
    assert (found["begin"], found["next"], found["end"], found["queue_offsets"]) == (0, 2, 2, [0, 1])
    assert (found["keys"], found["tags"], found["properties"]) == (["k", ""], ["x", ""], [{"a": "b"}, {}])
    assert found["transaction_ids"] == [id, None]
    committed_ms = next(event["at_ms"] for event in told["history"] if event["event"] == "committed")
    assert found["released_at_ms"] == [committed_ms, found["stored_at_ms"][1]]
    assert found["stored_at_ms"][0] == told["stored_at_ms"]
    assert client.consume("paid", group="any", max=5)[0]["body"] == b"one", "no group was disturbed"


def test_pages_are_bounded_in_messages_and_bytes(client):
    send(client, "many", *("x" * 1000 for _ in range(10)))
    assert page(client, "many", max=3)["queue_offsets"] == [0, 1, 2]
    following = page(client, "many", queue_offset=3, max_bytes=2500)
    assert following["queue_offsets"] == [3, 4]
    assert following["next"] == 5
    assert page(client, "many", queue_offset=9, max_bytes=1)["queue_offsets"] == [9], "one at least"
    behind = page(client, "many", queue_offset=10)
    assert (behind["queue_offsets"], behind["next"]) == ([], 10)


def test_the_release_time_of_a_late_commit_and_of_pages_read_backwards(client):
    ids = client.prepare([{"group": "g", "topic": "late", "text": str(n), "queue_id": 0} for n in range(3)])
    send(client, "other", *("noise" for _ in range(50)))
    for id in reversed(ids):
        client.end("g", id, "commit")
    expected = [
        next(event["at_ms"] for event in client.transaction(id)["history"] if event["event"] == "committed") for id in reversed(ids)
    ]
    assert page(client, "late")["released_at_ms"] == expected
    for number in (2, 0, 1):
        assert page(client, "late", queue_offset=number, max=1)["released_at_ms"] == [expected[number]]


def test_places_of_a_topic(client):
    send(client, "placed", "a", "b")
    time.sleep(0.01)
    between_ms = int(time.time() * 1000)
    while int(time.time() * 1000) <= between_ms + 1:
        pass
    send(client, "placed", "c")
    found = places(client, "placed", at=between_ms)
    assert found["queues"][0] == {"queue_id": 0, "begin": 0, "end": 3, "at": 2}
    assert places(client, "placed", "earliest")["queues"][0]["at"] == 0
    assert places(client, "placed")["queues"][0]["at"] == 3
    assert places(client, "placed")["identity"] == page(client, "placed")["identity"]
    assert set(found["identity"]) == {"store_id", "incarnation", "topic_id"}


def test_a_replayed_dead_letter_belongs_to_its_group_and_is_passed_over(client):
    send(client, "dying", "poison")
    (message,) = client.consume("dying", group="weak", visibility_s=0.01)
    deadline = time.monotonic() + 20
    letters: list[dict] = []
    while not letters and time.monotonic() < deadline:
        client.consume("dying", group="weak", wait_s=0.1)
        letters = client.call("GET", "/v1/groups/weak/dead-letters")["dead_letters"]
    client.call("POST", "/v1/groups/weak/dead-letters/replay", {"ids": [letters[0]["id"]]})
    queues = places(client, "dying")["queues"]
    assert sum(queue["end"] for queue in queues) == 2, "the replay has a place"
    seen = [offset for queue in queues for offset in page(client, "dying", queue["queue_id"])["queue_offsets"]]
    assert seen == [0]
    assert message["body"] == b"poison"


def test_refusals_name_what_is_wrong(client):
    send(client, "refused", "x")
    for path, field, status in (
        ("/v1/topics/nowhere/queues", "topic", 404),
        ("/v1/topics/nowhere/queues/0/messages", "topic", 404),
        ("/v1/topics/RMQ_SYS_TRANS_HALF_TOPIC/queues", "topic", 400),
        ("/v1/topics/refused/queues?at=yesterday", "at", 400),
        ("/v1/topics/refused/queues/99/messages", "queue", 400),
        ("/v1/topics/refused/queues/x/messages", "queue", 400),
        ("/v1/topics/refused/queues/0/messages?queue_offset=-1", "queue_offset", 400),
        ("/v1/topics/refused/queues/0/messages?max=0", "max", 400),
    ):
        with pytest.raises(RemoteError) as caught:
            client.call("GET", path)
        assert (caught.value.field, caught.value.status) == (field, status), path
