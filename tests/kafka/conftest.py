"""One broker for all tests of a run: each test has topics of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kafka import Cluster, kafka_cluster


@pytest.fixture(scope="session")
def kafka() -> Iterator[Cluster]:
    with kafka_cluster() as cluster:
        yield cluster
