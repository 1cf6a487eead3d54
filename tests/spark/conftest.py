"""A running service and one Spark session of a user, for all tests here. The job is a stand-in: the only Spark is the user's."""

from __future__ import annotations

import pytest

import escrow.spark
from tests.support.edge_client import EdgeClient
from tests.support.live import live
from tests.support.spark import user_spark


@pytest.fixture(scope="package")
def service(tmp_path_factory):
    # Checks come when a test asks for them, not while it counts.
    with live(tmp_path_factory.mktemp("spark") / "data") as running:
        yield running


@pytest.fixture
def client(service):
    with EdgeClient(service.port) as made:
        yield made


@pytest.fixture(scope="package")
def spark(service, tmp_path_factory):
    with user_spark(tmp_path_factory.mktemp("user")) as session:
        escrow.spark.register(session)
        yield session
