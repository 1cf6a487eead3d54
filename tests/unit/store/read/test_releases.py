"""Release times out of the op log: forwards, elsewhere, and in bounded steps."""

from __future__ import annotations

import numpy as np
import pytest

from store.edge.store import EdgeStore, End
from store.messages import Message
from store.read import releases
from store.read.readers import LogReader
from store.read.releases import NotFoundYet, Range, ReleaseTimes
from store.records import OpKind, queue_key_of
from tests.support.service import ROOMY, T0_MS


@pytest.fixture
def log(tmp_path):
    """100 halves of two topics, committed backwards, a second apart; every third is rolled back."""
    store = EdgeStore(tmp_path, geometry=ROOMY)
    store.prepare([Message("g", ("even", "odd")[n % 2], b"x", queue_id=0) for n in range(100)], T0_MS)
    for n in reversed(range(100)):
        kind = OpKind.ROLLBACK if n % 3 == 0 else OpKind.COMMIT
        store.end([End(n, kind, "g")], T0_MS + (100 - n) * 1000)
    store.close()
    reader = LogReader(store.directory)
    yield reader
    reader.close()


def committed(topic_rest):
    """Halves of a topic by their place in its queue."""
    return [n for n in reversed(range(100)) if n % 2 == topic_rest and n % 3]


def expected(halves):
    return {n: T0_MS + (100 - n) * 1000 for n in halves}


def key_of(log, half_offset):
    ops = log.ops(0, log.ends()[1])
    return int(queue_key_of(ops["position"][ops["half_offset"] == half_offset][0]))


@pytest.mark.parametrize("at_once", [3, 1 << 18])
def test_pages_forwards_backwards_and_anywhere(log, monkeypatch, at_once):
    monkeypatch.setattr(releases, "_AT_ONCE", at_once)
    times = ReleaseTimes()
    for rest in (0, 1):
        halves, key = committed(rest), key_of(log, committed(rest)[0])
        for first in (*range(0, len(halves), 7), 3, 0, 14, len(halves) - 1):
            page = halves[first : first + 7]
            found = times.times(log, Range(key, first, first + len(page)), np.array(page), T0_MS)
            assert found == expected(page), first


def test_a_search_that_is_given_up_goes_on_at_the_next_call(log, monkeypatch):
    monkeypatch.setattr(releases, "_AT_ONCE", 2)
    times, page, key = ReleaseTimes(ops_max=10), committed(0), key_of(log, 98)
    places, calls = Range(key, 0, len(page)), 0
    while True:
        calls += 1
        try:
            found = times.times(log, places, np.array(page), T0_MS)
            break
        except NotFoundYet:
            assert calls < 100
    assert calls > 2
    assert found == expected(page)


def test_a_half_without_a_commit_has_no_release_time(log):
    assert ReleaseTimes().times(log, Range(0, 0, 2), np.array([0, 3]), T0_MS) == {}
    assert ReleaseTimes().times(log, Range(0, 0, 0), np.array([], np.int64), T0_MS) == {}
