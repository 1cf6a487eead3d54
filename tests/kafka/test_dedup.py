"""A dedup key is one half at all endpoints, whoever is killed and whatever directory is lost. No driver lives in these tests."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.support.edge_client import EdgeClient, RemoteError
from tests.support.endpoint import Endpoint, until
from tests.support.kafka import Cluster
from tests.support.kafka_world import KafkaWorld

GROUP = "orders"
_NUMBERS = itertools.count(1)


@pytest.fixture
def world(kafka: Cluster) -> Iterator[KafkaWorld]:
    with KafkaWorld(kafka, partitions=2, flags=[f"idKeys={'5e' * 32}"]) as made:
        kafka.create_topic(f"{made.name}.paid", 1)
        yield made


@contextmanager
def endpoint(world: KafkaWorld, *flags: str) -> Iterator[tuple[Endpoint, EdgeClient]]:
    """In a directory of its own: nothing is left of an earlier one but what Kafka has."""
    with Endpoint(world.root / f"edge{next(_NUMBERS)}", *world.flags, *flags) as made, EdgeClient(made.port) as client:
        yield made, client


def prepare(client: EdgeClient, world: KafkaWorld, *keys: str, text: str = "once") -> list[str]:
    halves = [{"group": GROUP, "topic": f"{world.name}.paid", "text": text, "key": "k", "dedup_key": key} for key in keys]
    return client.prepare(halves)


def halves(world: KafkaWorld) -> list[Any]:
    return world.cluster.read_all(world.half)


def outcomes(world: KafkaWorld) -> Counter[bytes]:
    return Counter(dict(op.headers())["escrow-op"] for op in world.cluster.read_all(world.op))


def test_a_key_is_the_same_half_at_another_endpoint_after_the_first_was_killed(world: KafkaWorld) -> None:
    with endpoint(world) as (first, client):
        ids = prepare(client, world, "a", "b", "a")
        assert ids[0] == ids[2] != ids[1]
        assert client.status()["halves"] == 2
        first.kill()
    with endpoint(world) as (_, client):
        assert prepare(client, world, "b", "a") == [ids[1], ids[0]]
        with pytest.raises(RemoteError) as refused:
            prepare(client, world, "a", text="another body")
        assert (refused.value.status, refused.value.code) == (409, "duplicate_key")
        assert client.end(GROUP, ids[0], "commit")["verdict"] == "accepted"
        assert prepare(client, world, "a") == [ids[0]], "whatever became of it"
    assert len(halves(world)) == 2


def test_an_endpoint_learns_the_keys_of_another_that_runs_beside_it(world: KafkaWorld) -> None:
    with endpoint(world) as (_, one), endpoint(world) as (_, other):
        for number in range(10):
            assert prepare(one, world, f"k{number}") == prepare(other, world, f"k{number}")
    assert len(halves(world)) - outcomes(world)[b"ROLLBACK"] == 10, "one that was written before it was known is rolled back"


def test_of_two_endpoints_that_store_one_key_at_once_one_wins_and_the_others_half_is_rolled_back(world: KafkaWorld) -> None:
    with endpoint(world) as (_, one), endpoint(world) as (_, other), ThreadPoolExecutor(2) as threads:
        for number in range(15):
            keys = [f"r{number}"]
            ids = {
                id for found in threads.map(lambda client, keys=keys: prepare(client, world, *keys), (one, other)) for id in found
            }
            assert len(ids) == 1, "both are told the same"
            assert one.end(GROUP, ids.pop(), "commit")["verdict"] == "accepted"
    found = outcomes(world)
    assert found[b"COMMIT"] == 15
    assert found[b"ROLLBACK"] == len(halves(world)) - 15, "every half has ended, but one a key was rolled back"


def test_a_half_whose_endpoint_died_before_its_transaction_ended_does_not_exist(world: KafkaWorld, kafka: Cluster) -> None:
    """A retry writes it anew, once Kafka has aborted the old one."""
    with endpoint(world) as (_, client):
        broken_off = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "died", "transaction.timeout.ms": 5_000})
        broken_off.init_transactions(60)
        broken_off.begin_transaction()
        broken_off.produce(world.half, b"once", partition=0)
        for partition in (0, 1):
            broken_off.produce(world.keys, b"half of it", b"0123456789abcdef", partition)
        assert broken_off.flush(60) == 0
        [id] = prepare(client, world, "x")
        assert prepare(client, world, "x") == [id]
    assert [message.value() for message in halves(world)] == [b"once"]


def test_halves_that_were_answered_with_a_timeout_are_rolled_back_if_another_counts(world: KafkaWorld, kafka: Cluster) -> None:
    """A transaction of a killed endpoint hides the keys behind it. Each retry meanwhile writes another half."""
    with endpoint(world, "requestTimeout=1s") as (_, client):
        broken_off = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "killed"})
        broken_off.init_transactions(60)
        broken_off.begin_transaction()
        for partition in (0, 1):
            broken_off.produce(world.keys, b"half of it", b"0123456789abcdef", partition)
        assert broken_off.flush(60) == 0
        for _ in range(2):
            with pytest.raises(RemoteError) as refused:
                prepare(client, world, "x")
            assert refused.value.status == 503
        broken_off.abort_transaction(60)
        [id] = prepare(client, world, "x")
        until(lambda: outcomes(world)[b"ROLLBACK"] == len(halves(world)) - 1)
        assert len(halves(world)) >= 2
        assert client.end(GROUP, id, "commit")["verdict"] == "accepted"


def test_a_key_is_forgotten_after_its_window(world: KafkaWorld) -> None:
    with endpoint(world, "dedupWindow=1s") as (_, client):
        ids = set(prepare(client, world, "x"))
        while len(ids) == 1:
            ids.update(prepare(client, world, "x"))
    assert len(halves(world)) == 2
