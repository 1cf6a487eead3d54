"""Names of producer groups when retention has taken the beginning of the redo partition: a row's group is never another one's."""

from __future__ import annotations

import threading
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sinks.kafka import redo
from store.records import State, state_of
from streaming.errors import JobCannotStart
from streaming.kafka.shard import Shard
from streaming.kafka.upkeep import Upkeep
from tests.support.one_shard import NOW_MS, OneShard

GROUPS = [f"group-{number}" for number in range(40)]


def age(shard: OneShard, *, batches_kept: int) -> None:
    """Retention takes everything but the last batches."""
    markers = [at for at, kind in shard.redo_records() if kind == redo.MARK]
    shard.retention_takes_the_redo_partition(before=markers[-batches_kept - 1] + 1)


def lose_everything(shard: OneShard) -> None:
    for driver in shard.drivers:
        driver.close(clean=False)
    shard.drivers.clear()


def settled_in_turn(shard: OneShard, driver: Shard) -> dict[str, int]:
    """A half of every group, a batch each; by group."""
    places = {group: shard.halves(group.encode(), group=group)[0] for group in GROUPS}
    for group, half_offset in places.items():
        shard.prepare(driver, half_offset, group)
    return places


def test_a_rebuilt_shard_knows_whose_halves_are_pending_whatever_retention_took(shard: OneShard) -> None:
    driver = shard.driver("lost")
    early = settled_in_turn(shard, driver)
    for group in GROUPS[:-1]:
        shard.say_commit(driver, early[group], group)
    places = {group: shard.halves(b"paid by " + group.encode(), group=group)[0] for group in GROUPS[30:]}
    for group, half_offset in places.items():
        shard.prepare(driver, half_offset, group)
    # The batch of the last early half stays, and with it everything that is pending.
    age(shard, batches_kept=len(GROUPS) + len(places))
    lose_everything(shard)
    rebuilt = shard.driver("fresh")
    assert shard.drivers == [rebuilt]
    newcomers = {group: shard.halves(group.encode(), group=group)[0] for group in ("mallory", *GROUPS[:5])}
    for group, half_offset in newcomers.items():
        shard.prepare(rebuilt, half_offset, group)
    for thief in newcomers:
        for half_offset in places.values():
            shard.say_commit(rebuilt, half_offset, thief)
    pending = state_of(rebuilt.table.get(np.array([*places.values()]))["word"]).tolist()
    assert pending == [State.PREPARED] * len(places), "ended by a group that has no part in it"
    for group, half_offset in places.items():
        shard.say_commit(rebuilt, half_offset, group)
    wanted = Counter(group.encode() for group in GROUPS[:-1]) + Counter(b"paid by " + group.encode() for group in places)
    assert shard.bodies() == wanted


def write_marker(driver: Shard) -> None:
    marker = driver.marker
    driver.commit(driver.batch(half_cursor=marker.half_cursor, op_cursor=marker.op_cursor, now_ms=NOW_MS))


def test_a_number_that_nobody_can_name_stops_the_shard_and_the_directory_that_knows_it_heals_it(shard: OneShard) -> None:
    driver = shard.driver("kept")
    early, paid = shard.halves(b"early", group="early")[0], shard.halves(b"paid", group="payments")[0]
    shard.prepare(driver, early, "early")
    shard.say_commit(driver, early, "early")
    driver.store.group_no("payments")
    write_marker(driver)
    with pytest.MonkeyPatch.context() as patch:  # an earlier version told a name once
        patch.setattr(driver.store, "names_for", lambda _: [])
        shard.prepare(driver, paid, "payments")
    age(shard, batches_kept=1)
    driver.close(clean=True)
    shard.drivers.clear()
    with pytest.raises(JobCannotStart, match=rf"half {paid} of partition 0 belongs to producer group number 1.*Start the job"):
        shard.driver("fresh")
    lose_everything(shard)
    write_marker(shard.driver("kept"))
    lose_everything(shard)
    fresh = shard.driver("fresh")
    shard.say_commit(fresh, paid, "early")
    assert shard.bodies() == Counter([b"early"])
    shard.say_commit(fresh, paid, "payments")
    assert shard.bodies() == Counter([b"early", b"paid"])


def test_a_row_that_stays_pending_is_told_again_and_outlives_the_batch_that_brought_it(shard: OneShard) -> None:
    driver = shard.driver("lost")
    old, young = shard.halves(b"old", group="old")[0], shard.halves(b"young", group="young")[0]
    shard.prepare(driver, old, "old", stored_at_s=NOW_MS // 1000 - 1000)
    shard.prepare(driver, young, "young")
    unused: Any = None
    upkeep = Upkeep(unused, unused, unused, unused, retention_ms=100_000, stopping=threading.Event())
    part: Any = SimpleNamespace(shard=driver, tell_again_ms=0)
    upkeep.tell_again(part, NOW_MS)
    sequence = driver.marker.sequence
    upkeep.tell_again(part, NOW_MS + 1)
    assert driver.marker.sequence == sequence, "not before a quarter of fileReservedTime has passed"
    age(shard, batches_kept=2)
    before = driver.table.get(np.array([old, young]))
    lose_everything(shard)
    rebuilt = shard.driver("fresh")
    assert np.array_equal(rebuilt.table.get(np.array([old, young])), before)
    shard.say_commit(rebuilt, old, "young")
    shard.say_commit(rebuilt, old, "old")
    assert shard.bodies() == Counter([b"old"])
