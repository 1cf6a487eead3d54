"""Kafka out of reach: the endpoint says 503 and when to try again, loses nothing that it acknowledged, and recovers by itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.edge_client import EdgeClient, RemoteError
from tests.support.endpoint import Endpoint, figures, until
from tests.support.kafka import Cluster
from tests.support.kafka_world import KafkaWorld

GROUP = "orders"
HALF = {"group": GROUP, "topic": "paid", "text": "x"}


@pytest.fixture(scope="module")
def cluster(breakable_kafka: Cluster) -> Cluster:
    breakable_kafka.create_topic("paid", 1)
    return breakable_kafka


@pytest.fixture
def world(cluster: Cluster) -> Iterator[KafkaWorld]:
    with KafkaWorld(cluster, partitions=2, flags=[f"idKeys={'5e' * 32}"]) as made:
        yield made


@pytest.fixture
def endpoint(world: KafkaWorld) -> Iterator[Endpoint]:
    with Endpoint(world.root / "edge", *world.flags) as made:
        yield made


class Load:
    """Producers that go on whatever they are answered, and remember what they were promised."""

    def __init__(self, port: int, producers: int = 3) -> None:
        self._port, self._stopping = port, threading.Event()
        self.acknowledged: dict[str, str] = {}
        self.ended: dict[str, str] = {}
        self.refused: list[RemoteError] = []
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(producers)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        count = 0
        with EdgeClient(self._port) as client:
            while not self._stopping.is_set():
                count += 1
                body = f"{number}/{count}"
                try:
                    [id] = client.prepare([{**HALF, "text": body}])
                    self.acknowledged[id] = body
                    outcome = "rollback" if count % 3 == 0 else "commit"
                    answer = client.end(GROUP, id, outcome)
                    assert answer["verdict"] == "accepted", answer
                    self.ended[id] = answer["state"]
                except RemoteError as refused:
                    self.refused.append(refused)
                    self._stopping.wait(0.1)


def place_of(id: str) -> tuple[int, int]:
    partition, half_offset, _ = id.split("-", 2)
    return int(partition), int(half_offset)


def assert_kept(load: Load, world: KafkaWorld, client: EdgeClient) -> None:
    """Every acknowledged half is in Kafka at the place of its id, and every end that was accepted still is what it was."""
    stored = {(message.partition(), message.offset()): message.value() for message in world.cluster.read_all(world.half)}
    assert {id: stored.get(place_of(id)) for id in load.acknowledged} == {
        id: body.encode() for id, body in load.acknowledged.items()
    }
    outcome_of = {"COMMITTED": "commit", "ROLLED_BACK": "rollback"}
    said = [{"group": GROUP, "id": id, "outcome": outcome_of[state]} for id, state in load.ended.items()]
    answers = [answer for at in range(0, len(said), 500) for answer in client.ends(said[at : at + 500])]
    assert {answer["verdict"] for answer in answers} == {"already"}


def answered(load: Load) -> Any:
    """Something was acknowledged after now."""
    before = len(load.ended)
    return lambda: len(load.ended) > before + 5


def test_the_broker_is_killed_and_comes_back(cluster: Cluster, world: KafkaWorld, endpoint: Endpoint) -> None:
    with EdgeClient(endpoint.port) as client, Load(endpoint.port) as load:
        for _ in range(1):
            until(answered(load))
            cluster.brokers[0].kill()
            until(lambda: client.status()["healthy"] is False)
            cluster.brokers[0].start()
            cluster.wait()
            until(answered(load), lambda: client.status()["trouble"])
    with EdgeClient(endpoint.port) as client:
        until(lambda: client.status()["healthy"], client.status)
        assert_kept(load, world, client)
    for refused in load.refused:
        assert (refused.status, refused.code) == (503, "kafka_unreachable")
        assert int(refused.headers["retry-after"]) >= 1


def test_the_broker_does_not_answer_for_a_while(cluster: Cluster, world: KafkaWorld, endpoint: Endpoint) -> None:
    with EdgeClient(endpoint.port) as client, Load(endpoint.port) as load:
        until(answered(load))
        [open_] = client.prepare([HALF])
        cluster.brokers[0].pause()
        try:
            until(lambda: client.status()["kafka"]["reachable"] is False and load.refused)
            assert figures(client)["escrow_kafka_reachable"] == 0
            # Once it is known, nobody waits: the refusal comes at once, and tells when to try again.
            for call in (
                lambda: client.prepare([HALF]),
                lambda: client.send([HALF]),
                lambda: client.end(GROUP, open_, "commit"),
            ):
                with pytest.raises(RemoteError) as refused:
                    call()
                assert (refused.value.status, refused.value.code) == (503, "kafka_unreachable")
                assert int(refused.value.headers["retry-after"]) >= 1
            assert client.call("GET", "/livez") == {"status": "ok"}
        finally:
            cluster.brokers[0].resume()
        until(answered(load), lambda: client.status()["trouble"])
    with EdgeClient(endpoint.port) as client:
        assert_kept(load, world, client)


def test_the_endpoint_is_killed_and_starts_again_in_an_empty_directory(world: KafkaWorld, endpoint: Endpoint) -> None:
    with Load(endpoint.port) as load, EdgeClient(endpoint.port) as client:
        until(answered(load))
        open_ = client.prepare([HALF] * 3)
        assert client.end(GROUP, open_[0], "commit")["verdict"] == "accepted"
    endpoint.kill()
    with Endpoint(world.root / "fresh", *world.flags) as fresh, EdgeClient(fresh.port) as client:
        assert_kept(load, world, client)
        assert [client.end(GROUP, id, "rollback")["verdict"] for id in open_] == ["conflict", "accepted", "accepted"]


def test_an_endpoint_that_is_started_before_kafka_waits_for_it(cluster: Cluster, world: KafkaWorld) -> None:
    cluster.brokers[0].kill()
    started: list[Endpoint] = []
    thread = threading.Thread(target=lambda: started.append(Endpoint(world.root / "early", *world.flags)))
    thread.start()
    try:
        cluster.brokers[0].start()
        cluster.wait()
    finally:
        thread.join(120)
    with started[0] as endpoint, EdgeClient(endpoint.port) as client:
        assert len(client.prepare([HALF])) == 1
