"""Fixtures of the SDK's tests: an Escrow in memory, and the rule that nothing is left behind."""

from __future__ import annotations

import threading

import pytest

from tests.support.fake_escrow import FakeEscrow


@pytest.fixture(autouse=True)
def _no_thread_is_left_behind():
    before = set(threading.enumerate())
    yield
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("escrow-") and thread not in before]
    assert left == []


@pytest.fixture
def escrow():
    with FakeEscrow() as fake:
        yield fake
