"""RocketMQ's protocol in Kafka mode: producers and check-back as in embedded mode; consuming is refused in words."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ingest.rocketmq import messaging_pb2 as pb
from tests.support.endpoint import Endpoint, until
from tests.support.grpc_caller import ID, PREFIX, Caller
from tests.support.kafka import Cluster
from tests.support.kafka_world import KafkaWorld
from tests.support.players import KINDS, player

TOPIC = "paid-by-rocketmq"
ENDPOINTS: Any = {"scheme": pb.IPv4, "addresses": [{"host": "127.0.0.1", "port": 1}]}


@pytest.fixture(scope="module")
def world(kafka: Cluster) -> Iterator[KafkaWorld]:
    with KafkaWorld(kafka, partitions=2, flags=[f"idKeys={'5e' * 32}"]) as made:
        kafka.create_topic(TOPIC, 1)
        yield made


@pytest.fixture(scope="module")
def port(world: KafkaWorld) -> Iterator[int]:
    with Endpoint(world.root / "edge", *world.flags, "grpcPort=0") as endpoint:
        yield endpoint.said[-1]["grpc_port"]


@pytest.fixture(scope="module")
def call(port: int) -> Iterator[Caller]:
    made = Caller(port)
    yield made
    made.channel.close()


def half(body: bytes = b"body") -> Any:
    system = pb.SystemProperties(message_id=uuid.uuid4().hex, message_type=pb.TRANSACTION, body_encoding=pb.IDENTITY)
    return pb.Message(topic={"name": TOPIC}, body=body, system_properties=system)


def send(call: Caller, message: Any) -> str:
    answer = call("SendMessage", pb.SendMessageRequest(messages=[message]))
    assert answer.status.code == pb.OK, answer
    return str(answer.entries[0].transaction_id)


def end(call: Caller, id: str, resolution: Any, *, topic: str = TOPIC, source: Any = pb.SOURCE_CLIENT) -> Any:
    request = pb.EndTransactionRequest(topic={"name": topic}, transaction_id=id, resolution=resolution, source=source)
    return call("EndTransaction", request).status


def ops(world: KafkaWorld, id: str) -> list[tuple[bytes, bytes]]:
    """What was said of a half, and by whom."""
    found = [dict(op.headers()) for op in world.cluster.read_all(world.op)]
    return [(each["escrow-op"], each["escrow-via"]) for each in found if each.get("escrow-transaction-id") == id.encode()]


def test_a_route_is_told_that_can_be_written_to(call: Caller) -> None:
    answer = call("QueryRoute", pb.QueryRouteRequest(topic={"name": TOPIC}, endpoints=ENDPOINTS))
    assert answer.status.code == pb.OK
    [queue] = answer.message_queues
    assert (queue.permission, list(queue.accept_message_types)) == (pb.WRITE, [pb.NORMAL, pb.TRANSACTION])


def test_a_half_is_stored_once_and_ended_by_commit_or_rollback(call: Caller, world: KafkaWorld) -> None:
    message = half()
    id = send(call, message)
    assert send(call, message) == id, "the same message id is the same half"
    assert end(call, id, pb.COMMIT).code == pb.OK
    assert end(call, id, pb.COMMIT).code == pb.OK, "again"
    assert end(call, id, pb.ROLLBACK).code != pb.OK
    other = send(call, half(b"other"))
    assert end(call, other, pb.COMMIT, topic="another-topic").code != pb.OK, "the id was not given to that group"
    assert end(call, other, pb.ROLLBACK).code == pb.OK
    assert ops(world, id) == [(b"COMMIT", b"producer")]
    assert ops(world, other) == [(b"ROLLBACK", b"producer")]


def test_an_ordinary_message_goes_to_its_topic(call: Caller, world: KafkaWorld) -> None:
    message = half(b"ordinary")
    message.system_properties.message_type = pb.NORMAL
    send(call, message)
    assert b"ordinary" in {found.value() for found in world.cluster.read_all(TOPIC)}


def test_a_check_comes_down_the_stream_and_its_answer_is_an_op(call: Caller, world: KafkaWorld) -> None:
    id, over = send(call, half(b"asked about")), threading.Event()
    settings = pb.TelemetryCommand(settings={"client_type": pb.PRODUCER, "publishing": {"topics": [{"name": TOPIC}]}})

    def commands() -> Iterator[Any]:
        yield settings
        over.wait(60)

    opened = call.channel.stream_stream(PREFIX + "Telemetry", pb.TelemetryCommand.SerializeToString, pb.TelemetryCommand.FromString)
    answers = opened(commands(), metadata=ID, timeout=120)
    try:
        assert next(answers).status.code == pb.OK
        until_live(world)
        ask(world, *(int(number) for number in id.split("-", 2)[:2]))
        command = next(answer for answer in answers if answer.HasField("recover_orphaned_transaction_command"))
        asked = command.recover_orphaned_transaction_command
        assert (asked.transaction_id, asked.message.body) == (id, b"asked about")
        assert end(call, id, pb.COMMIT, source=pb.SOURCE_SERVER_CHECK).code == pb.OK
        assert ops(world, id) == [(b"COMMIT", b"check")]
    finally:
        over.set()
        answers.cancel()


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_of_rocketmq_commits_rolls_back_and_answers_a_check(
    kind: str, port: int, world: KafkaWorld, tmp_path: Path
) -> None:
    said = {f"{kind} {word}": word for word in ("commit", "rollback", "silent")}
    with player(kind, f"127.0.0.1:{port}", tmp_path) as client:
        client.do("producer", TOPIC)
        for body, at_once in said.items():
            client.do("half", TOPIC, body, "commit", at_once)
        found = {(message.value() or b"").decode(): message for message in world.cluster.read_all(world.half)}
        silent = found[f"{kind} silent"]
        until_live(world)
        ask(world, silent.partition(), silent.offset())
        client.until("check", f"{kind} silent", "commit")
        places = {(found[body].partition(), found[body].offset()): body for body in said}
        until(lambda: len(told(world, places)) == len(said), lambda: told(world, places))
    assert told(world, places) == {
        f"{kind} commit": (b"COMMIT", b"producer"),
        f"{kind} rollback": (b"ROLLBACK", b"producer"),
        f"{kind} silent": (b"COMMIT", b"check"),
    }


def told(world: KafkaWorld, places: dict[tuple[int, int], str]) -> dict[str, tuple[bytes, bytes]]:
    """By body: what was said of these halves, and by whom."""
    found = [(op.partition(), dict(op.headers())) for op in world.cluster.read_all(world.op)]
    return {
        places[place]: (each["escrow-op"], each["escrow-via"])
        for partition, each in found
        if (place := (partition, int(each["escrow-half-offset"]))) in places
    }


def until_live(world: KafkaWorld) -> None:
    """Until the producer group has a member to be asked."""
    name, admin = world.check_prefix + TOPIC, world.cluster.admin()
    until(lambda: bool(admin.describe_consumer_groups([name])[name].result(30).members))


def ask(world: KafkaWorld, partition: int, half_offset: int) -> None:
    """As the job does (docs/kafka.md)."""
    [message] = [
        each for each in world.cluster.read_all(world.half) if (each.partition(), each.offset()) == (partition, half_offset)
    ]
    more = {"escrow-half-partition": partition, "escrow-half-offset": half_offset, "escrow-check-count": 0}
    headers = [*message.headers(), *((name, str(value).encode()) for name, value in more.items())]
    world.producer.send(world.check, key=TOPIC.encode(), value=message.value(), headers=headers).get(60)


@pytest.mark.parametrize("name", ["QueryAssignment", "AckMessage", "ChangeInvisibleDuration"])
def test_consuming_is_refused_in_words(call: Caller, name: str) -> None:
    requests = {
        "QueryAssignment": pb.QueryAssignmentRequest(topic={"name": TOPIC}, group={"name": "g"}, endpoints=ENDPOINTS),
        "AckMessage": pb.AckMessageRequest(topic={"name": TOPIC}, group={"name": "g"}, entries=[{"receipt_handle": "r"}]),
        "ChangeInvisibleDuration": pb.ChangeInvisibleDurationRequest(
            topic={"name": TOPIC}, group={"name": "g"}, receipt_handle="r", invisible_duration={"seconds": 10}
        ),
    }
    status = call(name, requests[name]).status
    assert (status.code, "from Kafka" in status.message) == (pb.UNSUPPORTED, True), status


def test_receiving_is_refused_in_words(call: Caller) -> None:
    [answer] = itertools.islice(call.receive(TOPIC), 1)
    assert (answer.status.code, "from Kafka" in answer.status.message) == (pb.UNSUPPORTED, True)
