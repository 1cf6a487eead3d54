"""Parts of the job in Kafka mode, without Kafka."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sinks.kafka import clients, contract
from store.records import ROW
from store.redo_log import Marker
from store.shard import Undeliverable
from streaming import kafka_service
from streaming.errors import JobError


# --- undeliverable messages ---------------------------------------------------------------------------------------------
def rows_of(size_bytes: int) -> Any:
    """A table whose rows all have one size."""
    return SimpleNamespace(get=lambda half_offsets: np.full(len(half_offsets), np.array((0, size_bytes, 0, 0, 0), ROW)))


def test_everybody_on_the_undeliverable_list_has_a_turn(monkeypatch):
    monkeypatch.setattr(kafka_service, "RETRY_MESSAGES_MAX", 10)
    undeliverable = {at: Undeliverable("too large", 0) for at in range(25)}
    tried: list[int] = []
    for _ in range(3):
        turn = kafka_service.next_tries(undeliverable, rows_of(100)).tolist()
        assert turn == sorted(turn)
        tried += turn
        for at in turn:
            undeliverable[at].attempts += 1
    assert sorted(tried) == sorted([*range(25), *range(5)])


def test_large_undeliverable_messages_are_tried_a_few_at_a_time_and_one_at_least():
    undeliverable = {at: Undeliverable("too large", 0) for at in range(100)}
    assert kafka_service.next_tries(undeliverable, rows_of(kafka_service.RELEASE_BYTES_MAX // 4)).tolist() == [0, 1, 2, 3]
    assert kafka_service.next_tries(undeliverable, rows_of(kafka_service.RELEASE_BYTES_MAX + 1)).tolist() == [0]


# --- the lease ----------------------------------------------------------------------------------------------------------
@pytest.fixture
def standby(monkeypatch):
    """A driver that was opened when there were two shards; those that it has claimed are in `claimed`."""
    made: Any = kafka_service.KafkaJobService.__new__(kafka_service.KafkaJobService)
    made.settings = SimpleNamespace(kafka_bootstrap_servers="")
    made.topics, made.connection = contract.Topics("half", "op", "redo", "check", "discard", "lease"), None
    made._lease = SimpleNamespace(held=threading.Event(), lost=threading.Event())
    made._opening, made._ends, made.claimed = threading.Lock(), {}, []

    def opened(number: int) -> Any:
        return SimpleNamespace(shard=SimpleNamespace(partition=number, catch_up=lambda: None, follow=lambda _: None))

    made.parts = {number: opened(number) for number in range(2)}
    made._open_part, made._claim = opened, lambda part: made.claimed.append(part.shard.partition)
    monkeypatch.setattr(made, "_half_partitions", lambda: 4)
    monkeypatch.setattr(clients, "add_partitions", lambda *_: None)
    return made


def test_a_standby_takes_over_the_partitions_that_were_added_while_it_waited(standby):
    standby._lease.held.set()
    assert standby.take_over()
    assert standby.claimed == [0, 1, 2, 3]
    assert sorted(standby.parts) == [0, 1, 2, 3]


def test_a_driver_that_lost_the_lease_before_it_claimed_anything_says_so_and_ends(standby):
    standby._lease.lost.set()
    with pytest.raises(JobError, match="another driver is the master"):
        standby.take_over(timeout_s=5)
    assert standby.claimed == []


# --- ticks --------------------------------------------------------------------------------------------------------------
def test_an_idle_shard_writes_a_marker_soon_and_again_before_it_could_age_out():
    made: Any = kafka_service.KafkaJobService.__new__(kafka_service.KafkaJobService)
    now_ms, written = 1_900_000_000_000, list[int]()
    made.clock, made._stopping = SimpleNamespace(now_ms=lambda: now_ms), threading.Event()
    made.settings = SimpleNamespace(retention_ms=1000)
    shard = SimpleNamespace(lock=threading.Lock(), store=SimpleNamespace(undeliverable={}, retain=lambda *_: 0), marker=Marker())
    shard.batch = lambda **place: Marker(sequence=shard.marker.sequence + 1, **place)

    def commit(batch: Marker) -> None:
        shard.marker = batch
        written.append(now_ms)

    shard.commit = commit
    part: Any = SimpleNamespace(shard=shard, rounds=SimpleNamespace(wanted=lambda _: False), claimed_ms=now_ms)
    start_ms = now_ms + kafka_service.FIRST_MARKER_MS
    while now_ms < start_ms + 1000:
        made._tick(part)
        now_ms += 50
    assert [at - start_ms for at in written] == [50, 350, 650, 950]
    assert (shard.marker.half_cursor, shard.marker.op_cursor) == (0, 0)
