"""An endpoint starts from a checkpoint that lies in Kafka. In these tests no driver lives, and no endpoint keeps its disk."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from tests.support.edge_client import EdgeClient, RemoteError
from tests.support.endpoint import Endpoint, until
from tests.support.kafka import Cluster
from tests.support.kafka_world import KafkaWorld

KEYS = f"idKeys={'5e' * 32}"
GROUP = "orders"
_NUMBERS = itertools.count(1)


@pytest.fixture
def world(kafka: Cluster) -> Iterator[KafkaWorld]:
    with KafkaWorld(kafka, partitions=2, flags=[KEYS, "kafkaCheckpointInterval=1s"]) as made:
        kafka.create_topic(f"{made.name}.paid", 1)
        yield made


@contextmanager
def endpoint(world: KafkaWorld, *flags: str) -> Iterator[tuple[Endpoint, EdgeClient]]:
    """In a directory of its own: nothing is left of an earlier one but what Kafka has."""
    with Endpoint(world.root / f"edge{next(_NUMBERS)}", *world.flags, *flags) as made, EdgeClient(made.port) as client:
        yield made, client


def prepare(client: EdgeClient, world: KafkaWorld, count: int) -> list[str]:
    return client.prepare([{"group": GROUP, "topic": f"{world.name}.paid", "text": str(n), "key": str(n)} for n in range(count)])


def end(client: EdgeClient, id: str, outcome: str) -> str:
    return str(client.end(GROUP, id, outcome)["verdict"])


def kafka_of(client: EdgeClient) -> dict[str, Any]:
    found: dict[str, Any] = client.status()["kafka"]
    return found


def until_all_is_kept(client: EdgeClient) -> None:
    until(lambda: (of := kafka_of(client)["checkpoints"])["written"] and not of["ops_since"], lambda: kafka_of(client))


def place_of(id: str) -> tuple[int, int]:
    partition, half_offset, _ = id.split("-", 2)
    return int(partition), int(half_offset)


def ended(client: EdgeClient, world: KafkaWorld) -> dict[str, str]:
    """Twelve halves of which eight have ended: id → outcome."""
    ids = prepare(client, world, 12)
    outcomes = dict(zip(ids, ["commit", "rollback"] * 4, strict=False))
    assert [end(client, id, outcome) for id, outcome in outcomes.items()] == ["accepted"] * 8
    return outcomes | dict.fromkeys(ids[8:], "")


def require_same_answers(client: EdgeClient, outcomes: dict[str, str]) -> None:
    for id, outcome in outcomes.items():
        if outcome:
            assert end(client, id, {"commit": "rollback", "rollback": "commit"}[outcome]) == "conflict"
            assert end(client, id, outcome) == "already"


def test_a_start_reads_the_ops_since_the_checkpoint_and_answers_as_before(world: KafkaWorld) -> None:
    with endpoint(world) as (first, client):
        outcomes = ended(client, world)
        until_all_is_kept(client)
        first.kill()
    open_ = [id for id, outcome in outcomes.items() if not outcome]
    world.say(place_of(open_[0]), "ROLLBACK", group=GROUP)
    with endpoint(world) as (_, client):
        assert sum(kafka_of(client)["ops_read"].values()) == 1, "nothing but what came after the checkpoint"
        assert end(client, open_[0], "commit") == "conflict"
        assert end(client, open_[1], "commit") == "accepted"
        require_same_answers(client, outcomes)


def test_an_endpoint_that_is_stopped_leaves_nothing_to_be_read(world: KafkaWorld) -> None:
    with endpoint(world, "kafkaCheckpointInterval=1h") as (first, client):
        outcomes = ended(client, world)
        assert kafka_of(client)["checkpoints"]["written"] == 0
        assert first.stop() == (0, "")
    with endpoint(world) as (_, client):
        assert sum(kafka_of(client)["ops_read"].values()) == 0
        require_same_answers(client, outcomes)


def test_what_a_killed_writer_had_begun_does_not_exist(world: KafkaWorld, kafka: Cluster) -> None:
    with endpoint(world) as (first, client):
        outcomes = ended(client, world)
        until_all_is_kept(client)
        first.kill()
    broken_off = Producer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "transactional.id": f"{world.name}-{world.ends}-0",
            "transaction.timeout.ms": 600_000,
        }
    )
    broken_off.init_transactions(60)
    broken_off.begin_transaction()
    for key in (b"chunk-0", b"mark"):
        broken_off.produce(world.ends, b"half of it", key, 0)
    assert broken_off.flush(60) == 0
    with endpoint(world) as (_, client):
        assert sum(kafka_of(client)["ops_read"].values()) == 0
        require_same_answers(client, outcomes)
        [id] = prepare(client, world, 1)
        assert end(client, id, "commit") == "accepted"
        until_all_is_kept(client)


@pytest.mark.parametrize("key", ["mark", "chunk-0"])
def test_a_damaged_checkpoint_is_told_all_ops_are_read_and_the_next_one_is_good(
    world: KafkaWorld, kafka: Cluster, key: str
) -> None:
    with endpoint(world) as (first, client):
        outcomes = ended(client, world)
        until_all_is_kept(client)
        first.kill()
    ops = len(kafka.read_all(world.op))
    for partition in (0, 1):
        world.producer.send(world.ends, key=key.encode(), value=b"not ours", partition=partition).get(60)
    with endpoint(world) as (second, client):
        assert sum(kafka_of(client)["ops_read"].values()) == ops
        assert "is of no use" in second.log()
        require_same_answers(client, outcomes)
        until_all_is_kept(client)
        second.kill()
    with endpoint(world) as (_, client):
        assert sum(kafka_of(client)["ops_read"].values()) == 0
        require_same_answers(client, outcomes)


def test_two_endpoints_that_write_checkpoints_in_turn_leave_a_good_one(world: KafkaWorld) -> None:
    with endpoint(world) as (first, one), endpoint(world) as (second, other):
        outcomes: dict[str, str] = {}
        for _ in range(4):
            more = ended(one, world)
            require_same_answers(other, more)
            outcomes |= more
            until_all_is_kept(one)
            until_all_is_kept(other)
        first.kill()
        second.kill()
    with endpoint(world) as (_, client):
        assert sum(kafka_of(client)["ops_read"].values()) == 0
        require_same_answers(client, outcomes)


# --- topics that are not what they were ---------------------------------------------------------------------------------------
def delete(world: KafkaWorld, *topics: str) -> None:
    admin = world.cluster.admin()
    for done in admin.delete_topics(list(topics)).values():
        done.result(60)
    until(lambda: not set(topics) & set(admin.list_topics(timeout=10).topics))


def test_topics_that_were_made_anew_owe_nothing_to_the_checkpoint_of_the_old_ones(world: KafkaWorld) -> None:
    with endpoint(world) as (first, client):
        outcomes = ended(client, world)
        until_all_is_kept(client)
        first.kill()
    delete(world, world.half, world.op)
    with endpoint(world) as (second, client):
        assert "made anew" in second.log()
        ids = prepare(client, world, 12)
        assert set(ids) == set(outcomes), "the same places: the test says something"
        assert {end(client, id, "rollback") for id in ids} == {"accepted"}


def test_an_endpoint_ends_when_its_topics_are_made_anew_under_it(world: KafkaWorld) -> None:
    with endpoint(world) as (first, client):
        ended(client, world)
        delete(world, world.half, world.op)
        for topic in (world.half, world.op):
            world.cluster.create_topic(topic, 2, message_timestamp_type="LogAppendTime")
        _, err = first.process.communicate(timeout=60)
        assert first.process.returncode == 1
        assert world.op in err or "op partition" in err


def delete_ops(world: KafkaWorld) -> None:
    """As retention does it, or somebody."""
    admin = world.cluster.admin()
    for done in admin.delete_records([TopicPartition(world.op, partition, -1) for partition in (0, 1)]).values():
        done.result(60)


def test_ops_that_are_gone_and_in_the_checkpoint_are_missed_by_nobody(world: KafkaWorld) -> None:
    with endpoint(world) as (first, client):
        outcomes = ended(client, world)
        until_all_is_kept(client)
        first.kill()
    delete_ops(world)
    with endpoint(world) as (_, client):
        require_same_answers(client, outcomes)
        assert client.call("GET", "/readyz")["status"] == "ok"


def test_ops_that_are_gone_and_in_no_checkpoint_make_it_not_ready_and_their_halves_are_not_answered(world: KafkaWorld) -> None:
    with endpoint(world, "kafkaCheckpointInterval=1h") as (first, client):
        outcomes = ended(client, world)
        first.kill()
    delete_ops(world)
    with endpoint(world) as (second, client):
        for id in outcomes:
            with pytest.raises(RemoteError) as refused:
                end(client, id, "rollback")
            assert (refused.value.status, refused.value.code) == (503, "ops_missing")
        with pytest.raises(RemoteError) as unready:
            client.call("GET", "/readyz")
        assert (unready.value.status, unready.value.code) == (503, "not_ready")
        assert "in no checkpoint" in second.log()
        ids = prepare(client, world, 12)
        assert {end(client, id, "commit") for id in ids} == {"accepted"}, "of these all ops are known"
