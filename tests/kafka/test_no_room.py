"""A full disk under the driver in Kafka mode: shards wait, say why, and go on by themselves; nothing is lost or released twice."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from store.io import disk
from store.records import State, state_of
from streaming.kafka.room import RoomForShards
from streaming.settlement.disk_room import Room
from tests.support.endpoint import until
from tests.support.one_shard import OneShard


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    disk.arm(None)


class Told:
    """What an operator hears, and a driver whose rows need a new file after each 64 halves."""

    def __init__(self, shard: OneShard) -> None:
        self.notices: list[tuple[str, bool]] = []
        self.stopping = threading.Event()
        self.room = RoomForShards(Room(shard.root, self.stopping, lambda text, waiting: self.notices.append((text, waiting))))
        self.driver = shard.driver(rows_per_file=64)
        store = self.driver.store
        store.no_room, store.has_room = partial(self.room.wait, 0), partial(self.room.found, 0)


def test_a_shard_that_finds_no_room_waits_and_goes_on_in_the_same_process(shard: OneShard) -> None:
    told = Told(shard)
    shard.commit(told.driver, shard.halves(b"before"))
    disk.arm("state.create", "ENOSPC", disk.EVERY_PASS)
    places = shard.halves(*(b"%d" % number for number in range(150)))
    settling = threading.Thread(target=shard.commit, args=(told.driver, places))
    settling.start()
    until(lambda: told.room.lacks)
    assert told.notices[0][1]
    assert "No space left on device" in told.notices[0][0]
    disk.arm(None)
    settling.join(60)
    assert not settling.is_alive()
    assert not told.room.lacks
    assert [waiting for _, waiting in told.notices] == [True, False]
    assert shard.bodies() == Counter([b"before", *(b"%d" % number for number in range(150))])
    assert set(state_of(told.driver.table.get(np.array(places))["word"]).tolist()) == {State.COMMITTED}
    assert told.driver.store.sound


def test_a_checkpoint_that_finds_no_room_is_written_later(shard: OneShard) -> None:
    told = Told(shard)
    told.driver.store._checkpoint_entries = 1
    disk.arm("shard.checkpoint.replace", "ENOSPC", disk.EVERY_PASS)
    shard.commit(told.driver, shard.halves(b"a"))
    assert not (told.driver.store.root / "shard.checkpoint").exists()
    disk.arm(None)
    shard.commit(told.driver, shard.halves(b"b"))
    shard.commit(told.driver, shard.halves(b"c"))
    assert (told.driver.store.root / "shard.checkpoint").exists()


def test_a_shard_that_waits_for_room_stops_when_asked(shard: OneShard) -> None:
    told = Told(shard)
    disk.arm("state.create", "ENOSPC", disk.EVERY_PASS)
    failures: list[BaseException] = []

    def commit() -> None:
        try:
            shard.commit(told.driver, shard.halves(b"a"))
        except BaseException as error:
            failures.append(error)

    settling = threading.Thread(target=commit)
    settling.start()
    until(lambda: told.room.lacks)
    told.stopping.set()
    settling.join(60)
    assert "No space left on device" in str(failures)
