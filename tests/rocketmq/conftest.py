"""RocketMQ's own clients against a real edge with the stand-in job beside it: check-backs come within a second or two.

tests/e2e plays them against the whole service with Spark.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.edge_client import EdgeClient
from tests.support.endpoint import quiet_port
from tests.support.live import Live, live
from tests.support.players import KINDS, Player, player


@dataclass
class World:
    """An Escrow, and its address as RocketMQ's clients want it."""

    escrow: Live
    endpoints: str

    def http(self, token: str = "") -> EdgeClient:
        return EdgeClient(self.escrow.port, token=token)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    port = quiet_port()
    with live(tmp_path_factory.mktemp("escrow"), f"grpcPort={port}") as escrow:
        yield World(escrow, f"127.0.0.1:{port}")


@pytest.fixture(scope="session", params=KINDS)
def client(request: pytest.FixtureRequest, world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    """A client process for all tests of its kind; each test starts its own producers and consumers in it."""
    with player(request.param, world.endpoints, tmp_path_factory.mktemp(request.param)) as made:
        yield made


_numbers = itertools.count()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of this test's own."""
    return f"t{next(_numbers)}-{request.node.originalname}"[:100]


@pytest.fixture
def start(world: World, tmp_path: Path) -> Iterator[Callable[..., Player]]:
    """More clients, with a process of their own: ended with the test."""
    started: list[Player] = []

    def begin(kind: str, endpoints: str = "", **rest: object) -> Player:
        home = tmp_path / f"{kind}{len(started)}"
        home.mkdir()
        started.append(Player(kind, endpoints or world.endpoints, home, **rest))  # type: ignore[arg-type]
        return started[-1]

    yield begin
    for each in started:
        each.__exit__()
