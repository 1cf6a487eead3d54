"""The source hands out what is there at once; where much comes it gathers, unless a tick or a backlog is waiting."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from store.edge.store import EdgeStore
from store.io.pages import JobSlot
from store.job.store import JobStore
from store.messages import Message
from streaming.spark import source
from streaming.spark.source import EscrowReader

NOW_MS = 1_750_000_000_000


@pytest.fixture
def edge(tmp_path):
    with EdgeStore(tmp_path / "store", default_queues=1) as made:
        yield made


@pytest.fixture
def job(edge):
    made = JobStore(edge.directory.root)
    yield made
    made.close()


@pytest.fixture
def reader(edge, job):
    return made_reader(edge, 3600.0)


def made_reader(edge, settle_interval_s):
    options = {"root": str(edge.directory.root), "half": "0", "op": "0", "records_max": "1000000"}
    return EscrowReader({**options, "settle_interval_s": str(settle_interval_s)})


def come(edge, count):
    edge.prepare([Message("orders", "paid", b"x")] * count, NOW_MS)


@pytest.fixture
def busy(edge, reader):
    """A batch was handed out: the place behind it. The next one would wait for an hour; `slept` tells that it does."""
    come(edge, 100)
    _, place = reader.read(reader.initialOffset())
    assert place["half"] == 100
    return place


def test_what_comes_first_is_handed_out_at_once(edge, reader):
    come(edge, 3)
    rows, place = reader.read(reader.initialOffset())
    assert (place["half"], place["op"]) == (3, 0)
    assert list(rows)


def test_a_batch_gathers_until_the_driver_wants_one(edge, job, reader, busy, monkeypatch):
    slept, sleep = threading.Event(), time.sleep

    def noted(seconds):
        slept.set()
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", noted)
    come(edge, 1)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(reader.read, busy)
        assert slept.wait(60)
        assert not reading.done()
        come(edge, 4)
        job.page[JobSlot.TICK] += 1
        _, place = reading.result(60)
    assert place["half"] == 105
    assert place["tick"] == busy["tick"] + 1


def test_a_backlog_does_not_wait(edge, reader, busy, monkeypatch):
    monkeypatch.setattr(source, "CHUNK_RECORDS", 10)
    come(edge, 10)
    assert reader.read(busy)[1]["half"] == 110


def test_without_an_interval_nothing_waits(edge, job):
    reader = made_reader(edge, 0.0)
    place = reader.initialOffset()
    for number in range(1, 4):
        come(edge, 1)
        _, place = reader.read(place)
        assert place["half"] == number


def test_what_comes_after_a_pause_does_not_wait(edge, reader, busy, monkeypatch):
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + 3601.0)
    come(edge, 1)
    assert reader.read(busy)[1]["half"] == 101
