"""The endpoint in Kafka mode against a real broker. What it writes, clients that nobody here wrote read; and the other way."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException

from tests.support.edge_client import EdgeClient, RemoteError
from tests.support.endpoint import Endpoint, figures, until
from tests.support.kafka import Cluster
from tests.support.kafka_world import KafkaWorld
from tests.support.tools import require_tool

KEYS = f"idKeys={'5e' * 32}"
GROUP = "orders"


@pytest.fixture(scope="module")
def world(kafka: Cluster) -> Iterator[KafkaWorld]:
    with KafkaWorld(kafka, partitions=2, flags=[KEYS, "presenceTtl=2s"]) as made:
        kafka.create_topic("paid", 3)
        yield made


@pytest.fixture(scope="module")
def endpoint(world: KafkaWorld) -> Iterator[Endpoint]:
    with Endpoint(world.root / "edge", *world.flags) as made:
        yield made


@pytest.fixture
def client(endpoint: Endpoint) -> Iterator[EdgeClient]:
    with EdgeClient(endpoint.port) as made:
        yield made


def half(text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"group": GROUP, "topic": "paid", "text": text, **more}


def place_of(id: str) -> tuple[int, int]:
    partition, half_offset, _ = id.split("-", 2)
    return int(partition), int(half_offset)


def kcat(kafka: Cluster, topic: str) -> list[dict[str, Any]]:
    """Every record of a topic, as a foreign client reads it."""
    command = [
        require_tool("kcat"),
        "-b",
        kafka.bootstrap,
        "-C",
        "-t",
        topic,
        "-e",
        "-q",
        "-J",
        "-X",
        "isolation.level=read_committed",
    ]
    told = subprocess.run(command, capture_output=True, timeout=60, check=True)
    records = [json.loads(line) for line in told.stdout.decode(errors="replace").splitlines()]
    for record in records:
        names = record.get("headers", [])
        record["headers"] = dict(zip(names[::2], names[1::2], strict=True))
    return records


def record_at(kafka: Cluster, topic: str, place: tuple[int, int]) -> dict[str, Any]:
    return next(record for record in kcat(kafka, topic) if (record["partition"], record["offset"]) == place)


def refusal(client: EdgeClient, method: str, path: str, content: Any = None) -> dict[str, Any]:
    with pytest.raises(RemoteError) as refused:
        client.call(method, path, content)
    problem: dict[str, Any] = refused.value.problem
    return problem


# --- halves and messages ----------------------------------------------------------------------------------------------------
def test_a_half_is_in_kafka_with_the_documented_headers_when_it_is_acknowledged(
    client: EdgeClient, world: KafkaWorld, kafka: Cluster
) -> None:
    [id] = client.prepare(
        [half("body", key="k1", tags="new", properties={"trace": "ü"}, queue_id=2, born_at_ms=1234, check_immunity_s=9)]
    )
    found = record_at(kafka, world.half, place_of(id))
    assert found["payload"] == "body"
    assert found["key"] == "k1"
    assert found["headers"] == {
        "escrow-group": GROUP, "escrow-topic": "paid", "escrow-partition": "2", "escrow-born-time": "1234", "escrow-immunity": "9",
        "TAGS": "new", "trace": "ü",
    }  # fmt: skip


def test_halves_of_a_key_stay_in_one_partition_and_a_batch_keeps_its_order(client: EdgeClient) -> None:
    ids = client.prepare([half(str(number), key="same") for number in range(20)])
    places = [place_of(id) for id in ids]
    assert places == sorted(places)
    assert len({partition for partition, _ in places}) == 1


def test_an_ordinary_message_goes_straight_to_its_topic(client: EdgeClient, kafka: Cluster) -> None:
    kafka.create_topic("plain", 2)
    message = {
        "group": GROUP,
        "topic": "plain",
        "text": "now",
        "key": "k",
        "properties": {"a": "b"},
        "queue_id": 1,
        "born_at_ms": 99,
    }
    [place] = client.call("POST", "/v1/messages", {"messages": [message]})["messages"]
    [found] = kcat(kafka, "plain")
    assert (found["partition"], found["offset"]) == (place["queue_id"], place["queue_offset"]) == (1, 0)
    assert (found["key"], found["payload"], found["headers"], found["ts"]) == ("k", "now", {"a": "b"}, 99)


@pytest.mark.parametrize(
    ("more", "status", "field"),
    [
        ({"topic": "nowhere"}, 400, "topic"),
        ({"topic": "a%b"}, 400, "topic"),
        ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, 400, "topic"),
        ({"queue_id": 3}, 400, "queue_id"),
        ({"flag": 1}, 400, "flag"),
        ({"properties": {"escrow-group": "mine"}}, 400, "properties"),
        ({"properties": {"DELAY": "1"}}, 400, "properties"),
        ({"text": "x" * 1_100_000}, 413, "body"),
    ],
)
def test_what_could_not_be_released_is_refused_when_it_comes(
    client: EdgeClient, more: dict[str, Any], status: int, field: str
) -> None:
    problem = refusal(client, "POST", "/v1/halves", {"messages": [half("good"), {**half(), **more}]})
    assert (problem["status"], problem["field"]) == (status, f"messages[1].{field}")


def test_escrows_own_topics_are_refused_by_the_names_they_have_here(client: EdgeClient, world: KafkaWorld) -> None:
    assert "Escrow's own" in refusal(client, "POST", "/v1/messages", {"messages": [{**half(), "topic": world.op}]})["detail"]


def test_a_dedup_key_is_the_same_half_after_a_restart_too(client: EdgeClient, endpoint: Endpoint, world: KafkaWorld) -> None:
    [first] = client.prepare([half("once", dedup_key="d1")])
    twice = [half("once", dedup_key="d1"), half("new", dedup_key="d2"), half("new", dedup_key="d2")]
    again, new, same = client.prepare(twice)
    assert again == first
    assert new == same != first
    problem = refusal(client, "POST", "/v1/halves", {"messages": [half("other", dedup_key="d1")]})
    assert (problem["status"], problem["code"]) == (409, "duplicate_key")
    assert endpoint.stop()[0] == 0
    endpoint.start()
    with EdgeClient(endpoint.port) as restarted:
        assert restarted.prepare([half("once", dedup_key="d1")]) == [first]


# --- ends --------------------------------------------------------------------------------------------------------------------
def test_the_first_end_wins_and_an_answer_stays_the_same(client: EdgeClient, world: KafkaWorld, kafka: Cluster) -> None:
    [id] = client.prepare([half()])
    assert client.end(GROUP, id, "unknown") == {"verdict": "accepted", "reason": "", "state": "PREPARED"}
    assert client.end(GROUP, id, "commit", remark="ok") == {"verdict": "accepted", "reason": "", "state": "COMMITTED"}
    assert client.end(GROUP, id, "commit")["verdict"] == "already"
    assert client.end(GROUP, id, "rollback") == {"verdict": "conflict", "reason": "already committed", "state": "COMMITTED"}
    partition, half_offset = place_of(id)
    about = [
        op
        for op in kcat(kafka, world.op)
        if (op["partition"], op["headers"].get("escrow-half-offset")) == (partition, str(half_offset))
    ]
    assert [op["headers"] for op in about] == [
        {
            "escrow-op": "COMMIT", "escrow-half-offset": str(half_offset), "escrow-group": GROUP, "escrow-via": "producer",
            "escrow-remark": "ok", "escrow-transaction-id": id,
        },
    ]  # fmt: skip


def test_a_batch_of_ends_is_judged_in_its_order(client: EdgeClient) -> None:
    [id] = client.prepare([half()])
    said = [{"group": GROUP, "id": id, "outcome": outcome} for outcome in ("rollback", "commit", "rollback")]
    assert [answer["verdict"] for answer in client.ends(said)] == ["accepted", "conflict", "already"]


@pytest.mark.parametrize("group", ["Aa", "BB", "order", "orders "])
def test_another_group_cannot_end_it(client: EdgeClient, group: str) -> None:
    [id] = client.prepare([half()])
    assert client.end(group.strip() + "x", id, "commit")["verdict"] == "refused"
    assert client.transaction(id)["state"] == "PREPARED"


def test_an_id_that_was_never_given_is_refused(client: EdgeClient) -> None:
    [id] = client.prepare([half()])
    place, _, seal = id.rpartition("-")
    partition, half_offset = place_of(id)
    for forged in (f"{partition}-{half_offset + 1}-{seal}", f"{place}-{'A' * 22}", f"0{id}", f"{id} ", "", "99999-1-" + seal, "é"):
        assert client.end(GROUP, forged, "commit")["verdict"] == "refused"
    assert refusal(client, "GET", f"/v1/transactions/{place}-{'A' * 22}")["code"] == "unknown_id"
    assert refusal(client, "GET", f"/v1/transactions/7-0-{seal}")["code"] == "unknown_id"


def test_an_op_that_was_written_straight_to_kafka_counts_if_its_group_is_the_halfs(client: EdgeClient, world: KafkaWorld) -> None:
    mine, other = client.prepare([half("a"), half("b")])
    world.say(place_of(mine), "ROLLBACK", group=GROUP)
    world.say(place_of(other), "ROLLBACK", group="somebody")
    assert client.end(GROUP, mine, "commit")["verdict"] == "conflict"
    assert client.end(GROUP, other, "commit")["verdict"] == "accepted"


def test_a_half_that_was_written_straight_to_kafka_is_decided_by_the_same_order(client: EdgeClient, world: KafkaWorld) -> None:
    place = world.prepare(b"direct", "paid")
    world.say(place, "COMMIT")
    [id] = client.prepare([half(key="sync")])
    assert client.end(GROUP, id, "rollback")["verdict"] == "accepted"
    until(lambda: client.status()["kafka"]["ops_read"].get("accepted", 0) >= 2)


def test_records_that_are_no_ops_are_passed_over(client: EdgeClient, world: KafkaWorld) -> None:
    [id] = client.prepare([half()])
    partition, half_offset = place_of(id)
    for headers in (
        [], [("escrow-op", b"EXPLODE")], [("escrow-op", b"COMMIT")], [("escrow-op", b"COMMIT"), ("escrow-half-offset", b"1e9")],
        [("escrow-op", b"COMMIT"), ("escrow-half-offset", str(1 << 46).encode())],
        [("escrow-op", b"DISCARD_MAX"), ("escrow-half-offset", str(1 << 46).encode())],
        [("escrow-op", b"COMMIT"), ("escrow-half-offset", str(half_offset).encode()), ("escrow-group", b"\xff\xfe")],
        [("escrow-op", b"ASKED")],
    ):  # fmt: skip
        world.producer.send(world.op, value=b"\x01\x02\x03", partition=partition, headers=headers).get(60)
    assert client.end(GROUP, id, "rollback")["verdict"] == "accepted"


def test_an_operator_ends_and_resumes_by_id(client: EdgeClient, world: KafkaWorld) -> None:
    committed, discarded = client.prepare([half("a"), half("b")])
    [done] = client.act("commit", [committed], "ticket 7")
    assert done["result"] == "accepted"
    world.say(place_of(discarded), "DISCARD_MAX", group=None, via="checker")
    assert client.end(GROUP, discarded, "commit") == {"verdict": "refused", "reason": "discarded", "state": "DISCARDED_MAX"}
    assert client.act("resume", [discarded])[0]["result"] == "accepted"
    assert client.end(GROUP, discarded, "rollback")["verdict"] == "accepted"
    assert [event["event"] for event in client.transaction(discarded)["history"]] == [
        "prepared",
        "discarded",
        "resumed",
        "rolled_back",
    ]
    assert client.transaction(committed)["history"][1] == {
        "event": "committed", "at_ms": client.transaction(committed)["history"][1]["at_ms"], "by": "operator",
        "remark": "anonymous: ticket 7",
    }  # fmt: skip


def test_a_transaction_tells_its_history_without_what_lost(client: EdgeClient, world: KafkaWorld) -> None:
    [id] = client.prepare([half("a", key="k")])
    partition, half_offset = place_of(id)
    asked = [("escrow-op", b"ASKED"), ("escrow-via", b"checker")]
    world.producer.send(world.op, value=half_offset.to_bytes(8, "little"), partition=partition, headers=asked).get(60)
    client.end(GROUP, id, "unknown", from_check=True, remark="not yet")
    client.end(GROUP, id, "commit", from_check=True)
    world.say(place_of(id), "ROLLBACK")
    found = client.transaction(id)
    assert (found["state"], found["group"], found["topic"], found["key"], found["attempts"]) == ("COMMITTED", GROUP, "paid", "k", 1)
    assert [(event["event"], event["by"]) for event in found["history"]] == [
        ("prepared", "producer"), ("asked", "checker"), ("unknown", "check"), ("committed", "check"),
    ]  # fmt: skip


# --- several endpoints -------------------------------------------------------------------------------------------------------
def test_two_endpoints_race_and_a_third_with_nothing_but_the_keys_says_the_same(
    client: EdgeClient, endpoint: Endpoint, world: KafkaWorld
) -> None:
    ids = client.prepare([half(str(number)) for number in range(60)])
    with Endpoint(world.root / "second", *world.flags) as second:
        barrier = threading.Barrier(2)

        def say(port: int, outcome: str) -> list[str]:
            with EdgeClient(port) as each:
                barrier.wait(30)
                return [each.end(GROUP, id, outcome)["verdict"] for id in ids]

        with ThreadPoolExecutor(2) as threads:
            commits, rollbacks = threads.map(say, (endpoint.port, second.port), ("commit", "rollback"))
    assert {frozenset(pair) for pair in zip(commits, rollbacks, strict=True)} == {frozenset({"accepted", "conflict"})}
    with Endpoint(world.root / "third", *world.flags) as third, EdgeClient(third.port) as fresh:
        wanted = ["already" if verdict == "accepted" else "conflict" for verdict in commits]
        assert [fresh.end(GROUP, id, "commit")["verdict"] for id in ids] == wanted
        assert [client.end(GROUP, id, "commit")["verdict"] for id in ids] == wanted


def test_an_endpoint_starts_while_others_write_ops_all_the_time(world: KafkaWorld) -> None:
    """A partition that is written to all the time never tells a reader of its end."""
    stopping = threading.Event()

    def write() -> None:
        while not stopping.wait(0.02):
            for partition in range(2):
                world.send_op((partition, 10**9), "COMMIT")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        with Endpoint(world.root / "busy", *world.flags, "startTimeout=30s") as busy, EdgeClient(busy.port) as client:
            [id] = client.prepare([half()])
            assert client.end(GROUP, id, "commit")["verdict"] == "accepted"
            assert client.transaction(id)["state"] == "COMMITTED"
    finally:
        stopping.set()
        thread.join()


def test_without_the_key_ids_do_not_open(client: EdgeClient, world: KafkaWorld) -> None:
    [id] = client.prepare([half()])
    flags = [flag for flag in world.flags if flag != KEYS]
    with Endpoint(world.root / "stranger", *flags) as stranger, EdgeClient(stranger.port) as other:
        assert other.end(GROUP, id, "commit")["verdict"] == "refused"


# --- checks ------------------------------------------------------------------------------------------------------------------
def ask(world: KafkaWorld, id: str, group: str, count: int = 0, body: bytes = b"hello") -> None:
    """As the job does (docs/kafka.md)."""
    partition, half_offset = place_of(id)
    headers = {
        "escrow-group": group, "escrow-topic": "paid", "escrow-key": "k", "escrow-transaction-id": f"{partition}-{half_offset}",
        "escrow-half-partition": str(partition), "escrow-half-offset": str(half_offset), "escrow-check-count": str(count),
        "escrow-born-time": "77", "own": "yes",
    }  # fmt: skip
    encoded = [(name, value.encode()) for name, value in headers.items()]
    world.producer.send(world.check, key=group.encode(), value=body, headers=encoded).get(60)


def ask_without_body(world: KafkaWorld, id: str, group: str) -> None:
    """As the job does with kafkaCheckBodies = false."""
    partition, half_offset = place_of(id)
    headers = {
        "escrow-group": group, "escrow-topic": "paid", "escrow-half-partition": str(partition),
        "escrow-half-offset": str(half_offset), "escrow-check-count": "0", "escrow-body": "in-half-topic",
    }  # fmt: skip
    encoded = [(name, value.encode()) for name, value in headers.items()]
    world.producer.send(world.check, key=group.encode(), value=None, headers=encoded).get(60)


def members(world: KafkaWorld, kafka: Cluster, group: str) -> int:
    """Of a producer group's consumer group: what the job takes for live."""
    name, admin = world.check_prefix + group, kafka.admin()
    try:
        return len(admin.describe_consumer_groups([name])[name].result(30).members)
    except KafkaException:  # no such group yet
        return 0


def test_requests_that_come_without_a_body_are_handed_over_with_it(
    client: EdgeClient, endpoint: Endpoint, world: KafkaWorld, kafka: Cluster
) -> None:
    group = "bodiless"
    ids = client.prepare([{**half(), "group": group, "text": f"body {n}", "properties": {"n": str(n)}} for n in range(3)])

    def poll() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        with EdgeClient(endpoint.port) as member:
            while len(found) < len(ids):
                found += member.poll_checks(group, "m1", wait_s=30)
        return found

    with ThreadPoolExecutor(1) as threads:
        polled = threads.submit(poll)
        until(lambda: members(world, kafka, group) == 1)
        for id in ids:
            ask_without_body(world, id, group)
        found = {check["id"]: (check["body"], check["properties"]["n"]) for check in polled.result(60)}
    assert found == {id: (b"body %d" % n, str(n)) for n, id in enumerate(ids)}


def test_a_poll_makes_the_group_live_and_gets_its_requests(
    client: EdgeClient, endpoint: Endpoint, world: KafkaWorld, kafka: Cluster
) -> None:
    group = "asked"
    [id] = client.prepare([{**half(), "group": group}])

    def poll() -> list[dict[str, Any]]:
        with EdgeClient(endpoint.port) as member:
            return member.poll_checks(group, "m1", wait_s=30)

    with ThreadPoolExecutor(1) as threads:
        polled = threads.submit(poll)
        until(lambda: members(world, kafka, group) == 1)
        ask(world, id, "somebody-else")
        ask(world, id, group, count=2)
        [check] = polled.result(60)
    stored_at_ms = check.pop("stored_at_ms")
    assert stored_at_ms > 0
    assert check == {
        "id": id, "topic": "paid", "key": "k", "tags": "", "body": b"hello", "properties": {"own": "yes"}, "attempt": 3,
        "born_at_ms": 77,
    }  # fmt: skip
    assert client.end(group, check["id"], "commit", from_check=True)["verdict"] == "accepted"
    assert client.transaction(id)["history"][-1]["by"] == "check"
    until(lambda: members(world, kafka, group) == 0)  # presenceTtl after the last poll


def test_a_request_that_was_not_handed_over_is_handed_over_after_a_restart(world: KafkaWorld, kafka: Cluster) -> None:
    group, data = "slow", world.root / "slow"
    with Endpoint(data, *world.flags, "presenceTtl=60s") as first, EdgeClient(first.port) as client:
        one, two = client.prepare([{**half(), "group": group}, {**half(), "group": group}])
        assert client.poll_checks(group, "m") == []
        until(lambda: members(world, kafka, group) == 1)
        ask(world, one, group)
        until(lambda: client.status()["checks"]["requests_waiting"] == 1)
        assert [check["id"] for check in client.poll_checks(group, "m")] == [one]
        ask(world, two, group)
        until(lambda: client.status()["checks"]["requests_waiting"] == 1)
        assert first.stop()[0] == 0
    with Endpoint(data, *world.flags) as again, EdgeClient(again.port) as client:
        assert [check["id"] for check in client.poll_checks(group, "m", wait_s=30)] == [two]
        ask(world, one, group)
        assert [check["id"] for check in client.poll_checks(group, "m", wait_s=30)] == [one]
        client.end(group, two, "rollback")
        ask(world, two, group)
        ask(world, one, group, count=1)
        assert [(check["id"], check["attempt"]) for check in client.poll_checks(group, "m", wait_s=30)] == [(one, 2)]


# --- what Kafka mode has not ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("method", "path", "content"),
    [
        ("GET", "/v1/topics/paid/messages?group=g&consumer=c", None),
        ("POST", "/v1/topics/paid/acks", {"group": "g", "receipts": ["r"]}),
        ("POST", "/v1/topics/paid/visibility", {"group": "g", "receipts": ["r"], "visibility_s": 1}),
        ("POST", "/v1/topics/paid/seek", {"group": "g", "to": "earliest"}),
        ("GET", "/v1/groups/g/dead-letters", None),
        ("POST", "/v1/groups/g/dead-letters/replay", {"ids": ["a"]}),
        ("GET", "/v1/operator/overview", None),
        ("GET", "/v1/operator/transactions", None),
        ("GET", "/v1/operator/audit", None),
        ("GET", "/v1/operator/groups", None),
        ("GET", "/v1/operator/topics", None),
    ],
)
def test_what_needs_the_embedded_store_says_so(client: EdgeClient, method: str, path: str, content: Any) -> None:
    problem = refusal(client, method, path, content)
    assert (problem["status"], problem["code"]) == (501, "kafka_mode")
    if "/topics/paid" in path or "dead-letters" in path:
        assert "consume the topic from Kafka" in problem["detail"]


def test_status_metrics_and_readiness(client: EdgeClient) -> None:
    client.prepare([half()])
    status, page = client.status(), figures(client)
    assert status["mode"] == "kafka"
    assert status["healthy"] is True
    assert page["escrow_halves_stored_total"] == status["halves"] > 0
    assert page["escrow_kafka_reachable"] == page["escrow_edge_healthy"] == 1
    assert client.call("GET", "/readyz")["job"]["state"] == "absent"


def test_an_endpoint_that_finds_topics_with_producers_time_says_what_to_do(kafka: Cluster, tmp_path: Path) -> None:
    with KafkaWorld(kafka, flags=[KEYS]) as other:
        kafka.create_topic(other.half, 1)
        sets = [word for flag in [*other.flags, "listenPort=0"] for word in ("--set", flag)]
        command = [sys.executable, "-m", "ingest.server", "--data", str(tmp_path), *sets]
        told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert told.returncode == 2
        assert re.search(r"kafka-configs.*LogAppendTime", told.stderr)


def test_time_is_kafkas(client: EdgeClient) -> None:
    before_ms = int(time.time() * 1000)
    [id] = client.prepare([half(born_at_ms=1)])
    found = client.transaction(id)
    assert found["born_at_ms"] == 1
    assert found["stored_at_ms"] >= before_ms - 1000
