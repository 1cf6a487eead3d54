"""One broker for all tests of a run, and one for those that kill or stop it: each test has topics of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kafka import Cluster, kafka_cluster


@pytest.fixture(scope="session")
def kafka() -> Iterator[Cluster]:
    with kafka_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def breakable_kafka() -> Iterator[Cluster]:
    with kafka_cluster() as cluster:
        yield cluster
