"""Parts of the job in Kafka mode, without Kafka."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from runtime.metrics import JobMetrics
from sinks.kafka import clients, contract
from store.job.undeliverable import Refusal, Undeliverables
from store.records import OP, ROW, OpKind
from store.tables.redo_log import Marker
from streaming.errors import JobError
from streaming.kafka import aside as kafka_aside
from streaming.kafka import service
from streaming.kafka.part import Part
from streaming.kafka.reading.feeds import DEFERRED_BATCHES, Feeds
from streaming.kafka.reading.records import Piece
from streaming.kafka.settling import Settling
from streaming.kafka.upkeep import FIRST_MARKER_MS, Upkeep
from streaming.lifecycle import Lifecycle


# --- undeliverable messages ---------------------------------------------------------------------------------------------
def rows_of(size_bytes: int) -> Any:
    """A table whose rows all have one size."""
    return SimpleNamespace(get=lambda half_offsets: np.full(len(half_offsets), np.array((0, size_bytes, 0, 0, 0), ROW)))


def aside(*rows: tuple[int, int, str]) -> Undeliverables:
    """(half offset, lane, topic), in the order of their ends."""
    made = Undeliverables()
    made.note((), {at: Refusal("no leader", lane, topic) for at, lane, topic in rows}, 0)
    return made


def refuse(listed: Undeliverables, half_offsets: list[int]) -> None:
    listed.note((), {at: listed[at].refusal for at in half_offsets}, 0)


def test_everybody_on_the_undeliverable_list_has_a_turn(monkeypatch):
    monkeypatch.setattr(kafka_aside, "RETRY_MESSAGES_MAX", 10)
    listed = aside(*((at, 0, "t") for at in range(25)))
    tried: list[int] = []
    for _ in range(3):
        turn = kafka_aside.next_tries(listed, "t", rows_of(100), 1 << 20).tolist()
        tried += turn
        refuse(listed, turn)
    assert sorted(tried) == sorted([*range(25), *range(5)])


def test_messages_of_a_key_are_tried_in_the_order_of_their_ends_the_first_ones_first(monkeypatch):
    monkeypatch.setattr(kafka_aside, "RETRY_MESSAGES_MAX", 5)
    listed = aside((9, 1, "t"), (7, 2, "t"), (8, 1, "t"), (2, 0, "u"), (6, 1, "t"), (5, 2, "t"))
    assert kafka_aside.next_tries(listed, "t", rows_of(1), 100).tolist() == [9, 7, 8, 6, 5]
    assert kafka_aside.next_tries(listed, "t", rows_of(1), 2).tolist() == [9, 8], "a lane is cut behind its first ones"
    refuse(listed, [9])
    assert kafka_aside.next_tries(listed, "t", rows_of(1), 2).tolist() == [7, 5]


def test_large_undeliverable_messages_are_tried_a_few_at_a_time_and_one_at_least():
    listed = aside(*((at, 0, "t") for at in range(100)))
    assert kafka_aside.next_tries(listed, "t", rows_of(25), 100).tolist() == [0, 1, 2, 3]
    assert kafka_aside.next_tries(listed, "t", rows_of(101), 100).tolist() == [0]


def test_a_topic_is_tried_after_longer_and_longer_pauses_and_without_any_once_it_takes_messages():
    listed, retries, now_ms, at = aside((1, 0, "t"), (2, 0, "t")), kafka_aside.Retries(5_000), 1_000_000, list[int]()
    retries.note(listed, {"t": "no leader"}, now_ms)
    assert retries.barred() == {"t": "no leader"}
    for now_ms in range(1_000_000, 1_020_000, 500):
        if (topic := retries.due(listed, now_ms)) is not None:
            at.append(now_ms - 1_000_000)
            retries.begin(topic)
            assert retries.barred() == {}
            retries.note(listed, {"t": "no leader"}, now_ms)
            retries.tried(topic, 0, now_ms)
    assert at == [1000, 3000, 7000, 12000, 17000]
    retries.tried("t", 1, now_ms)
    assert retries.due(listed, now_ms) == "t", "the rest at once"
    listed.note([1, 2], {}, now_ms)
    retries.note(listed, {}, now_ms)
    assert (retries.due(listed, now_ms), retries.barred()) == (None, {})


def test_everything_that_was_set_aside_is_due_after_a_restart_or_when_the_clock_went_back():
    listed, retries = aside((1, 0, "t")), kafka_aside.Retries(5_000)
    assert retries.due(listed, 7) == "t"
    retries.note(listed, {}, 10**9)
    assert (retries.due(listed, 10**9), retries.due(listed, 7)) == (None, "t")


# --- shards do not wait for each other ----------------------------------------------------------------------------------
def test_a_shard_that_waits_makes_no_other_wait_and_keeps_its_order():
    metrics = JobMetrics(CollectorRegistry())
    made: Any = Settling(cast("Any", None), metrics, cast("Any", None), Lifecycle(metrics, lambda: None), 100)
    gate, settled = threading.Event(), list[tuple[int, int]]()

    def settle(part: Any, halves: Any, _ops: Any, _ends: Any) -> None:
        assert part.shard.partition or gate.wait(60)
        settled.append((part.shard.partition, len(halves[0].records)))

    made.settle_shard, parts = settle, dict[int, Any]()
    for partition in (0, 1):
        part: Any = Part.__new__(Part)
        part.shard, part.at_work = SimpleNamespace(partition=partition, lock=threading.Lock()), []
        parts[partition] = part
    with ThreadPoolExecutor(max_workers=8) as pool:
        made._pool = pool
        for count in (1, 2, 3):
            made.wait_for_room(parts.values())
            for part in parts.values():
                made.hand_over(part, [Piece([], np.zeros(count, OP))], [], {})
        wait([done for done, _ in parts[1].at_work])
        assert settled == [(1, 1), (1, 2), (1, 3)]
        made.hand_over(parts[0], [Piece([], np.zeros(400, OP))], [], {})
        room = pool.submit(made.wait_for_room, parts.values())
        assert not wait([room], 0.2).done, "too much waits in memory"
        gate.set()
        room.result(60)
    assert settled[3:] == [(0, 1), (0, 2), (0, 3), (0, 400)]


# --- ops that wait for their halves -------------------------------------------------------------------------------------
KEPT = 8


class Waiting:
    """A shard whose op `n` is about half `of[n]`; batches bring what `batch` says. `settled`: op offsets, in their order."""

    def __init__(self, of: list[int]) -> None:
        self.of, self.op_end, self.settled = of, 0, list[int]()
        self.feeds = Feeds(
            contract.Topics("half", "op", "redo", "check", "discard", "lease", "ends", "keys"),
            half_end=lambda _: 31,
            read_ops=self.ops,
            shard_count=lambda: 1,
            batch_records_max=KEPT // DEFERRED_BATCHES,
            undeliverable_max=3,
            stopping=threading.Event(),
        )
        self.aside = Undeliverables()
        store = SimpleNamespace(group_no=lambda _: 0, known_group=lambda _: 0, undeliverable=self.aside)
        self.shard: Any = SimpleNamespace(marker=Marker(), partition=0, store=store, deferred=[], unkept=None, waits=False)
        self.shard.table = rows_of(1)

    def ops(self, _partition: int, start: int, stop: int) -> list[Piece]:
        found = np.zeros(stop - start, OP)
        found["op_offset"], found["half_offset"], found["kind"] = np.arange(start, stop), self.of[start:stop], int(OpKind.COMMIT)
        return [Piece(["g"], found)] if len(found) else []

    def batch(self, half_stop: int, op_stop: int) -> None:
        """Halves may be read up to here; ops come up to there."""
        new, self.op_end = self.ops(0, self.op_end, op_stop), op_stop
        for piece in self.feeds.pieces(self.shard, [], new, {"half": {0: half_stop}, "op": {0: op_stop}}):
            assert (piece.ops["half_offset"] < half_stop).all(), "no op overtakes its half"
            self.settled += piece.ops["op_offset"].tolist()
            self.shard.marker = Marker(half_cursor=piece.half_stop, op_cursor=piece.op_stop)
        assert sum(len(piece.records) for piece in self.shard.deferred) <= KEPT


@given(st.lists(st.integers(0, 30), max_size=60), st.lists(st.tuples(st.integers(0, 31), st.integers(0, 60)), max_size=12))
@example([20] + 40 * [1], [(5, 41), (21, 41)])
def test_ops_that_wait_are_kept_up_to_a_bound_and_settled_once_and_in_order(of: list[int], steps: list[tuple[int, int]]) -> None:
    waiting, half_stop, op_stop = Waiting(of), 0, 0
    for half, op in [*steps, (31, len(of))]:
        half_stop, op_stop = max(half_stop, half), max(op_stop, min(op, len(of)))
        waiting.batch(half_stop, op_stop)
        assert waiting.settled == list(range(len(waiting.settled)))
    assert waiting.settled == list(range(len(of)))
    assert (waiting.shard.unkept, waiting.shard.marker.op_cursor) == (None, len(of))


def test_a_shard_that_has_set_aside_as_much_as_it_may_settles_no_op_until_some_went_out():
    waiting = Waiting(list(range(20)))
    waiting.batch(10, 10)
    waiting.aside.note((), {at: Refusal("no leader") for at in range(3)}, 0)
    waiting.batch(20, 20)
    assert (len(waiting.settled), waiting.shard.held_back, waiting.shard.marker.half_cursor) == (10, True, 20)
    waiting.aside.note([1], {}, 0)
    waiting.batch(20, 20)
    assert (waiting.settled, waiting.shard.held_back) == (list(range(20)), False)


# --- the lease ----------------------------------------------------------------------------------------------------------
@pytest.fixture
def standby(monkeypatch):
    """A driver that was opened when there were two shards; those that it has claimed are in `claimed`."""
    made: Any = service.KafkaJobService.__new__(service.KafkaJobService)
    made.settings = SimpleNamespace(kafka_bootstrap_servers="", kafka_lease_timeout_ms=6000)
    made.topics, made.connection = contract.Topics("half", "op", "redo", "check", "discard", "lease", "ends", "keys"), None
    made._lease = SimpleNamespace(held=threading.Event(), lost=threading.Event(), elsewhere=threading.Event())
    made._brokers = made.clock = SimpleNamespace(look=lambda: None)
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
    standby._lease.why_lost = "brokers were away"
    with pytest.raises(JobError, match="the lease was lost: brokers were away"):
        standby.take_over(timeout_s=5)
    assert standby.claimed == []


def test_a_driver_stands_by_as_soon_as_kafka_says_that_another_has_the_lease_and_then_waits_for_it(standby):
    assert standby.why_waiting() == "Kafka has not said yet who has the lease"
    standby._lease.elsewhere.set()
    assert not standby.take_over(timeout_s=3600)
    assert standby.why_waiting() == "another driver has the lease, or one had it that ended less than 6 s (kafkaLeaseTimeout) ago"
    threading.Timer(0.5, standby._lease.held.set).start()
    assert standby.take_over()
    assert standby.claimed == [0, 1, 2, 3]


# --- ticks --------------------------------------------------------------------------------------------------------------
def upkeep(clock: Any) -> Upkeep:
    """Of a job that keeps its records for a second."""
    unused: Any = None
    return Upkeep(clock, unused, unused, unused, retention_ms=1000, stopping=threading.Event())


@pytest.mark.parametrize("sequence", [0, 41], ids=["new", "claimed again"])
def test_an_idle_shard_writes_a_marker_soon_and_again_before_it_could_age_out(sequence):
    now_ms, written = 1_900_000_000_000, list[int]()
    made = upkeep(SimpleNamespace(now_ms=lambda: now_ms, deletes_allowed=lambda: True, leapt_ms=lambda _: 0))
    store = SimpleNamespace(undeliverable=Undeliverables(), retain=lambda *_: 0)
    shard = SimpleNamespace(lock=threading.Lock(), store=store, marker=Marker(), retries=kafka_aside.Retries(1), held_back=False)
    shard.marker.sequence, shard.marker.now_ms = sequence, now_ms
    shard.count_taken = lambda _now_ms: 0
    shard.batch = lambda **place: Marker(sequence=shard.marker.sequence + 1, **place)

    def commit(batch: Marker) -> None:
        shard.marker, shard.names_told = batch, True
        written.append(now_ms)

    shard.commit = commit
    shard.names_told, shard.store.pending_since_before = False, lambda _: iter(())
    rounds = SimpleNamespace(wanted=lambda _: False)
    shard.store.pending_by_group = lambda: {"orders": (2, 7)}
    part: Any = SimpleNamespace(shard=shard, rounds=rounds, claimed_ms=now_ms, tell_again_ms=0, retained_ms=0, counted_s=-1e9)
    start_ms = now_ms + FIRST_MARKER_MS
    while now_ms < start_ms + 1000:
        made.work(part)
        now_ms += 50
    assert [at - start_ms for at in written] == [50, 350, 650, 950]
    assert (shard.marker.half_cursor, shard.marker.op_cursor) == (0, 0)
    assert part.counted == {"orders": (2, 7)}, "for the metrics"


def test_state_files_of_a_shard_that_is_never_idle_are_looked_through_too():
    clock, retained = SimpleNamespace(deletes_allowed=lambda: True, leapt_ms=lambda _: 0), list[int]()
    made = upkeep(clock)
    store = SimpleNamespace(retain=lambda now_ms, *_: retained.append(now_ms))
    part: Any = SimpleNamespace(shard=SimpleNamespace(store=store), retained_ms=0)
    for now_ms in range(10_000, 11_000, 50):
        made.retain(part, now_ms)
    assert retained == [10_000, 10_250, 10_500, 10_750]
    clock.deletes_allowed = lambda: False
    made.retain(part, 20_000)
    assert len(retained) == 4, "not while the clock is in doubt"
