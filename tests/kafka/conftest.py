"""One broker for all tests of a process, and one for those that kill or stop it: each test has topics of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sinks.kafka import release
from tests.support.kafka import FIRST_COMPILER, Cluster, kafka_cluster
from tests.support.one_shard import OneShard


@pytest.fixture(scope="module", autouse=True)
def first_compiler() -> Iterator[None]:
    """Every Java that a test starts, jobs, executors and workers too: none lives long enough for the second compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", FIRST_COMPILER)
        yield


@pytest.fixture(scope="session")
def kafka() -> Iterator[Cluster]:
    with kafka_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def breakable_kafka() -> Iterator[Cluster]:
    with kafka_cluster() as cluster:
        yield cluster


@pytest.fixture
def shard(kafka: Cluster, tmp_path: Path) -> Iterator[OneShard]:
    made = OneShard(kafka, tmp_path)
    yield made
    made.close()
    release._owners.clear()
