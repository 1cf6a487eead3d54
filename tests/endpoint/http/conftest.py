"""An endpoint that the tests of a module share."""

from __future__ import annotations

import pytest

from tests.support.edge_client import EdgeClient
from tests.support.edge_process import edge


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with edge(
        tmp_path_factory.mktemp("edge") / "data", "maxRequestSize=64KiB", "maxBodySize=16KiB", "maxMessagesPerRequest=256"
    ) as (process, port):
        yield port
        assert process.poll() is None


@pytest.fixture
def client(running):
    with EdgeClient(running) as made:
        yield made
