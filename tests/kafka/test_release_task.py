"""Release tasks against a real broker, without Spark: fencing, lost answers, claims, refusals. A task is what an executor runs."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka import KafkaError, KafkaException

from checker.decisions import Decision, Tick
from checker.policy import Policy
from sinks.kafka import bodies, contract, ownership, redo, release
from sinks.kafka.task import Done, Superseded, Task
from sinks.kafka.transaction import Attempt
from store.records import OpKind, State, state_of
from streaming.errors import JobCannotStart
from streaming.settlement.settle import Feed, Settler
from tests.support.kafka import Cluster
from tests.support.one_shard import NOW_MS, OneShard


def another_process() -> dict[str, Any]:
    """From here on tasks run in a process that holds no transactional id; what the old one held."""
    held = dict(release._owners)
    release._owners.clear()
    return held


def test_a_batch_whose_answer_was_lost_is_not_written_again_53(shard: OneShard) -> None:
    driver = shard.driver()
    places = shard.halves(b"a", b"b")
    batches: list[Task] = []
    run = driver._run_task

    def lose_the_answer(task: Task) -> Done | str:
        batches.append(task)
        done = run(task)
        assert isinstance(done, Done)
        if len(batches) == 1:
            assert done.written
            another_process()
            return "the executor died after its commit"
        assert not done.written
        return done

    driver._run_task = lose_the_answer
    shard.commit(driver, places)
    assert len(batches) == 2
    assert shard.bodies() == Counter([b"a", b"b"])
    assert state_of(driver.table.get(np.array(places))["word"]).tolist() == [State.COMMITTED] * 2


def test_a_task_that_died_in_the_middle_leaves_nothing_visible(shard: OneShard, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = shard.driver()
    places = shard.halves(b"a", b"b", b"c")
    redo, deaths = Attempt.redo, itertools.count()

    def die_once(attempt: Any, entries: Any) -> None:
        if next(deaths) == 0:
            attempt.owner.producer.flush(60)  # the bodies are in Kafka, uncommitted
            raise RuntimeError("killed")
        redo(attempt, entries)

    monkeypatch.setattr(Attempt, "redo", die_once)

    def as_spark_would(task: Task) -> Done | str:
        try:
            return release.attempt(task)
        except RuntimeError as error:
            return str(error)

    driver._run_task = as_spark_would
    shard.commit(driver, places)
    assert shard.bodies() == Counter([b"a", b"b", b"c"])
    assert len(shard.cluster.read_all(shard.real, isolation="read_uncommitted")) == 6, "the first three were aborted"


def test_two_processes_of_one_driver_take_turns(shard: OneShard) -> None:
    driver = shard.driver()
    places = shard.halves(*(b"%d" % number for number in range(6)))
    held: dict[str, Any] = {}
    for place in places:
        shard.commit(driver, [place])
        mine = another_process()
        release._owners.update(held)
        held = mine
    assert shard.bodies() == Counter(b"%d" % number for number in range(6))


def test_a_driver_that_was_superseded_can_write_nothing_67(shard: OneShard) -> None:
    old = shard.driver("old")
    shard.commit(old, shard.halves(b"before"))
    held = another_process()
    new = shard.driver("new")
    late, after = shard.halves(b"late"), shard.halves(b"after")
    for owners in (held, {}):  # the process that held the id, and a fresh one
        release._owners.clear()
        release._owners.update(owners)
        with pytest.raises(Superseded):
            shard.commit(old, late)
    assert shard.bodies() == Counter([b"before"])
    another_process()
    shard.commit(new, [*late, *after])
    assert shard.bodies() == Counter([b"before", b"late", b"after"])


def test_a_store_of_an_empty_directory_is_the_same_as_the_lost_one(shard: OneShard) -> None:
    driver = shard.driver("lost")
    places = shard.halves(*(b"%d" % number for number in range(8)))
    shard.commit(driver, places[:4])
    Settler(driver, Policy()).settle(shard.feed(driver, places[4:6], OpKind.ROLLBACK), NOW_MS)
    Settler(driver, Policy()).settle(shard.feed(driver, places[6:], OpKind.UNKNOWN), NOW_MS)
    rebuilt = shard.driver("fresh")
    numbers = np.array(places)
    assert np.array_equal(rebuilt.table.get(numbers), driver.table.get(numbers))
    assert rebuilt.marker == driver.marker
    assert rebuilt.store.groups == ["g"]
    shard.commit(rebuilt, [])
    assert shard.bodies() == Counter(b"%d" % number for number in range(4))


def test_when_retention_has_taken_all_markers_the_directory_decides_and_without_it_nobody(shard: OneShard) -> None:
    driver = shard.driver("kept")
    places = shard.halves(b"a", b"b")
    shard.commit(driver, places[:1])
    driver.close(clean=True)
    shard.drivers.clear()
    begin = shard.retention_takes_the_redo_partition(before=-1)
    with pytest.raises(JobCannotStart, match="released a second time"):
        shard.driver("empty")
    kept = shard.driver("kept")
    assert (kept.marker.sequence, kept.term) == (1, 2), "no claim is left in Kafka, and the term goes up all the same"
    shard.commit(kept, places)
    assert shard.bodies() == Counter([b"a", b"b"])
    assert kept.store.redo_offset > begin


def test_a_directory_that_retention_has_overtaken_is_rebuilt_from_what_is_left(shard: OneShard) -> None:
    driver = shard.driver("behind")
    places = shard.halves(b"a", b"b", b"c", b"d")
    shard.commit(driver, places[:1])
    driver.close(clean=True)
    shard.drivers.clear()
    ahead = shard.driver("ahead")
    for place in places[1:]:
        shard.commit(ahead, [place])
    # Each of the four batches has two records, behind a claim or two: what is left of the third is its marker.
    (_, second, third, _) = (at for at, kind in shard.redo_records() if kind == redo.MARK)
    assert second < third - 1
    shard.retention_takes_the_redo_partition(before=third)
    behind = shard.driver("behind")
    assert behind.marker == ahead.marker
    assert state_of(behind.table.get(np.array(places))["word"]).tolist() == [State.NONE] * 3 + [State.COMMITTED]


def test_what_kafka_refuses_is_kept_and_tried_again_and_the_rest_goes_out(shard: OneShard) -> None:
    driver = shard.driver()
    fine = [b"fine %d" % number for number in range(30)]
    places = shard.halves(os.urandom(5000), *fine[:20], os.urandom(6000), *fine[20:])
    missing, partition = shard.halves(b"m", topic=f"{shard.name}.later"), shard.halves(b"p", escrow_partition="2")
    shard.commit(driver, [*places, *missing, *partition])
    assert shard.bodies() == Counter(fine)
    large = [places[0], places[21]]
    assert set(driver.store.undeliverable) == {*large, *missing, *partition}
    assert state_of(driver.table.get(np.array(sorted(driver.store.undeliverable)))["word"]).tolist() == [State.COMMITTED] * 4
    shard.cluster.create_topic(f"{shard.name}.later")
    release._owners.clear()
    for topic in sorted(driver.store.undeliverable.topics()):
        driver.try_again(topic, NOW_MS, 1 << 27)
    assert shard.bodies(f"{shard.name}.later") == Counter([b"m"])
    assert set(driver.store.undeliverable) == {*large, *partition}
    assert shard.bodies() == Counter(fine)
    assert driver.marker.totals["commits"] == 34


def test_what_fits_its_topic_only_compressed_is_released_compressed(shard: OneShard) -> None:
    """A producer that compresses can store a half that is larger than any topic takes as it is."""
    driver, large = shard.driver(), b"0" * 100_000
    places = shard.halves(b"first", large, os.urandom(5000), large, b"last")
    shard.commit(driver, places)
    assert shard.bodies() == Counter([b"first", large, large, b"last"])
    assert list(driver.store.undeliverable) == [places[2]]
    more = shard.halves(large, b"more")
    shard.commit(driver, more)
    assert shard.bodies() == Counter([b"first", large, large, b"last", large, b"more"])


def test_many_refusals_for_one_reason_cost_few_transactions(shard: OneShard, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, compacted = shard.driver(), f"{shard.name}.compacted"
    shard.cluster.create_topic(compacted, cleanup_policy="compact")
    late = shard.halves(*[b"late"] * 20, escrow_born_time=f"{NOW_MS}000")
    keyless = shard.halves(*[b"keyless"] * 20, topic=compacted)
    fine = shard.halves(*(b"%d" % number for number in range(20)))
    fence, fences = ownership.fence, itertools.count()

    def counted(task: Task, **more: bool) -> Any:
        next(fences)
        return fence(task, **more)

    monkeypatch.setattr(ownership, "fence", counted)
    shard.commit(driver, [place for three in zip(late, keyless, fine, strict=True) for place in three])
    assert set(driver.store.undeliverable) == {*late, *keyless}
    assert shard.bodies() == Counter(b"%d" % number for number in range(20))
    assert shard.bodies(compacted) == Counter()
    assert next(fences) <= 6, "one to begin with; for each reason one in company and one alone, and one where they were told apart"


def test_bodies_of_earlier_batches_are_found_wherever_they_lie(shard: OneShard) -> None:
    driver = shard.driver()
    places = shard.halves(*(b"%d" % number for number in range(2000)))
    Settler(driver, Policy()).settle(shard.feed(driver, places, OpKind.UNKNOWN), NOW_MS)
    chosen = [places[number] for number in (1999, 0, 1000, 1001, 5, 700, 300, 1)]
    ops = shard.feed(driver, chosen)
    settler = Settler(driver, Policy())
    settler.settle(Feed(ops.half_stop, ops.half_stop, ops.op_start, ops.op_stop, ops.halves[:0], ops.ops), NOW_MS)
    arrived = [int(message.value()) for message in shard.cluster.read_all(shard.real)]
    assert sorted(arrived) == [0, 1, 5, 300, 700, 1000, 1001, 1999]


def test_no_client_reads_ahead_for_nobody(shard: OneShard, kafka: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle shard, or one whose tasks another process runs now, must not ask its broker again and again."""
    monkeypatch.setattr(bodies, "AHEAD_MIN", 2)
    driver = shard.driver()
    places = shard.halves(*(b"%d" % number for number in range(6)))
    shard.commit(driver, places[:2])
    (owner,) = release._owners.values()
    reader = owner.bodies.consumer
    assert reader is not None
    assert reader.assignment(), "the next batch is there to be read"
    other = OneShard(kafka, tmp_path / "other")
    try:
        owner.used_s -= 2 * release.REST_AFTER_S
        other.commit(other.driver(), other.halves(b"x"))
    finally:
        other.close()
    assert [held.bodies.consumer.assignment() for held in release._owners.values() if held.bodies.consumer] == [[], []]
    shard.commit(driver, places[2:5])
    assert reader.assignment() == [], "what is left is not worth it"
    shard.roll_back(driver, places[5:])
    assert owner in release._owners.values(), "a batch without bodies needs no client of bodies"
    shard.commit(driver, shard.halves(b"6"))
    assert shard.bodies() == Counter(b"%d" % number for number in (0, 1, 2, 3, 4, 6))


def test_a_client_that_cannot_be_told_to_rest_is_thrown_away_and_the_batch_is_written(
    shard: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_bodies: bodies.Bodies) -> None:
        raise KafkaException(KafkaError(KafkaError._STATE))

    monkeypatch.setattr(bodies.Bodies, "rest", refuse)
    driver = shard.driver()
    shard.commit(driver, shard.halves(b"0"))
    assert (driver.traffic.messages, release._owners) == (1, {})
    shard.commit(driver, shard.halves(b"1"))
    assert shard.bodies() == Counter([b"0", b"1"])


def test_a_round_over_a_million_pending_writes_no_half_again_and_is_bounded_58(shard: OneShard) -> None:
    """Requests go out for as many as the group may have outstanding; of the others nothing is written but rows."""
    count, asked, now_ms = 10**6, 1000, NOW_MS + 60_000
    driver = shard.driver(rows_per_file=1 << 19)
    shard.fill(count)
    settler = Settler(driver, Policy(outstanding_per_group_max=asked))
    for first in range(0, count, 1 << 17):
        feed = shard.feed(driver, list(range(first, min(first + (1 << 17), count))))
        settler.settle(Feed(feed.half_start, feed.half_stop, feed.op_start, feed.op_start, feed.halves, feed.ops[:0]), NOW_MS)
    assert driver.marker.pending == count
    before = {topic: shard.end_of(topic) for topic in (shard.topics.half, shard.topics.redo, shard.topics.check)}
    tick = Tick(now_ms, 1, now_ms, ops_caught_up=True, discards_allowed=True)
    counts: Counter[Decision] = Counter()
    for part in settler.check_round(tick, np.ones(1, np.bool_)):
        counts.update(part)
    assert (counts[Decision.CHECK], counts.total()) == (asked, count)
    assert shard.end_of(shard.topics.half) == before[shard.topics.half] == count
    assert len(shard.cluster.read_all(shard.topics.check)) == asked
    assert shard.end_of(shard.topics.redo) - before[shard.topics.redo] < 100, "a few records a part, whatever is pending"


def test_very_many_new_groups_in_one_batch_are_told_and_known_to_who_comes_after(shard: OneShard) -> None:
    """As JSON their names are several times what Kafka takes as one record."""
    names = [f"group-{number}".ljust(contract.GROUP_MAX_BYTES, "-") for number in range(50_000)]
    driver = shard.driver("first")
    feed = shard.feed(driver, shard.halves(b"a"))
    for name in names:
        driver.store.group_no(name)
    Settler(driver, Policy()).settle(feed, NOW_MS)
    assert shard.driver("second").store.groups == driver.store.groups == ["g", *names]
    assert shard.bodies() == Counter([b"a"])


def test_a_time_that_is_none_is_not_taken(shard: OneShard) -> None:
    driver = shard.driver()
    places = shard.halves(b"a", escrow_born_time="9" * 30) + shard.halves(b"b", escrow_born_time="soon")
    shard.commit(driver, places)
    arrived = {message.value(): message.timestamp()[1] for message in shard.cluster.read_all(shard.real)}
    stored = {message.value(): message.timestamp()[1] for message in shard.cluster.read_all(shard.topics.half)}
    assert arrived == stored
