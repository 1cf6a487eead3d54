"""Jumps of the wall clock, through the real job (its batches are fed without Spark) over a real store: nothing is deleted or
discarded because of one, and everything goes on afterwards, without a restart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from escrow.cli import main
from runtime.settings import load
from store.directory import Geometry
from store.edge.store import EdgeStore, End
from store.errors import StoreError
from store.guarded_clock import STATE_FILE
from store.io.pages import JobSlot
from store.messages import Message
from store.read.readers import LogReader
from store.records import OpKind, State, state_of
from store.tables.queue_files import topic_queue_name
from streaming import service as module
from streaming.settlement.settle import read_feed
from streaming.spark.packed_rows import Delivery
from tests.support.hand_clock import HandClock

HOUR_S, DAY_S = 3_600, 86_400
#: The segment that the log ends in stays, with the messages in it.
LAST = 30
FLAGS = (
    "commitLogSegmentSize=64KiB", "maxBodySize=16KiB", "tranStateTableMapedFileSize=1536", "tranRedoLogMapedFileSize=1280",
    "logQueueEntriesPerFile=64", "topicQueueEntriesPerFile=64", "queuesPerTopic=1", "retentionInterval=10m",
    "transactionCheckInterval=30s", "transactionTimeOut=60s", "metricsEnable=false",
)  # fmt: skip


class World:
    """Producer, edge and job; the wall clock may jump, and the edge stamps what the job takes for the time."""

    def __init__(self, root, monkeypatch):
        self.settings = load(None, [f"dataDir={root}", *FLAGS], {})
        self.source = HandClock()
        self.edge = EdgeStore(self.settings.store_dir, geometry=Geometry(**self.settings.geometry_values()), default_queues=1)
        monkeypatch.setattr(module, "collect", lambda rows: self.delivery())
        self.start()
        self.log = LogReader(self.job.store.directory)

    def start(self):
        self.job = module.JobService(self.settings, self.source)

    def restart(self):
        self.job.stop()
        self.start()

    def delivery(self):
        store = self.job.store
        return Delivery(read_feed(self.log, store.marker.half_cursor, store.marker.op_cursor), store.page[JobSlot.TICK])

    def batch(self):
        rows: Any = None
        self.job._batch(rows)

    def minutes(self, count, step=1):
        """Time passes, batch by batch; the edge deletes what the job says it may."""
        for minute in range(0, count, step):
            self.source.advance(60 * step)
            self.job.clock.look()
            self.batch()
            if minute % 10 == 0:
                self.edge.retain()
                for part in (self.log.log.file, self.log.half_queue.file, self.log.op_queue.file):
                    part.refresh()

    def half(self, body=b"in doubt"):
        (offset,) = self.edge.prepare([Message("g", "t", body)], self.job.clock.now_ms())
        return offset

    def release(self, count):
        for _ in range(count // 20):
            now_ms = self.job.clock.now_ms()
            halves = self.edge.prepare([Message("g", "t", b"m" * 2000)] * 20, now_ms)
            self.edge.end([End(half, OpKind.COMMIT, "g") for half in halves], now_ms)
            self.batch()

    def readable(self):
        """How many messages of the topic can be read."""
        store, found = self.job.store, 0
        begin, end = store.catalogue.extent(0)
        for offset, size_bytes, _ in store._files.queue(topic_queue_name(0, 0)).read(begin, end).tolist():
            try:
                found += store.log.log.read(offset, size_bytes).body == b"m" * 2000
            except (StoreError, IndexError):
                continue
        return found

    def state(self, half_offset):
        return State(int(state_of(self.job.store.table.get(np.array([half_offset]))["word"][0])))

    def confirm(self):
        assert main(["clock", "confirm", "--data", str(self.settings.data_dir)]) == 0

    @property
    def marker(self):
        return self.job.store.marker

    def close(self):
        self.job.stop()
        self.log.close()
        self.edge.close()


@pytest.fixture
def world(tmp_path, monkeypatch):
    made = World(tmp_path, monkeypatch)
    yield made
    made.close()


@pytest.mark.parametrize("jump_s", [4 * DAY_S, -365 * DAY_S])
def test_a_jump_deletes_nothing_and_the_rest_goes_on_when_the_clock_is_back(world, jump_s):
    world.release(200)
    pending = world.half()
    world.minutes(2)
    world.source.jump(jump_s)
    world.minutes(30)
    assert world.job.clock.alert
    assert world.readable() == 200
    assert world.state(pending) is State.PREPARED
    assert world.marker.proposal_end == 0
    rounds = world.marker.round_no
    assert rounds > 20, "rounds go on meanwhile"
    world.source.jump(-jump_s)
    world.minutes(71 * 60, step=10)
    assert not world.job.clock.alert
    assert world.readable() == 200, "less than fileReservedTime in truth"
    assert world.marker.round_no > rounds + 400
    world.minutes(4 * 60, step=10)
    assert world.readable() <= LAST, "their time has come"


@pytest.mark.parametrize("jump_s", [365 * DAY_S])
def test_a_jump_forth_that_is_confirmed_makes_nothing_older(world, jump_s):
    world.release(200)
    pending = world.half()
    world.minutes(2)
    world.source.jump(jump_s)
    world.minutes(30)
    world.confirm()
    world.minutes(71 * 60, step=10)
    assert world.readable() == 200
    assert (world.state(pending), world.marker.proposal_end) == (State.PREPARED, 0)
    later = world.half()
    world.minutes(4 * 60, step=10)
    assert world.readable() <= LAST
    assert world.marker.proposal_end > 0, "and what is in doubt is expired"
    world.minutes(60 * 60, step=10)
    assert world.state(later) is State.PREPARED


@pytest.mark.parametrize("restart", [False, True])
def test_a_clock_that_was_wrong_for_a_year_is_confirmed_back(world, restart):
    """Everything was stored by the wrong time, and lies ahead now."""
    world.source.jump(365 * DAY_S)
    world.job.clock.look()
    world.confirm()
    world.job.clock.look()
    world.release(200)
    pending = world.half()
    world.minutes(30)
    world.source.jump(-365 * DAY_S)
    world.minutes(2)
    world.confirm()
    if restart:
        world.restart()
    rounds, checks = world.marker.round_no, world.marker.check_end
    world.minutes(60, step=10)
    assert world.marker.round_no > rounds
    assert world.readable() == 200
    world.minutes(74 * 60, step=10)
    assert world.readable() <= LAST
    assert world.marker.proposal_end > 0
    assert world.state(pending) is State.PREPARED, "the edge decides about proposals"
    assert checks == world.marker.check_end, "nobody is there to be asked"


def test_the_job_may_be_restarted_at_any_time(world):
    world.release(100)
    for jump_s in (4 * DAY_S, 0, -8 * DAY_S, 4 * DAY_S):
        world.source.jump(jump_s)
        world.minutes(20)
        world.restart()
        world.minutes(20)
        assert world.readable() == 100
    assert not world.job.clock.alert
    world.minutes(73 * 60, step=10)
    assert world.readable() <= LAST


def test_nothing_is_deleted_while_the_clock_is_not_believed(world):
    """Nobody knows how much time has passed since the last time known: the wall clock is followed, and waited for."""
    world.release(200)
    pending = world.half()
    world.minutes(2)
    world.job.stop()
    (world.settings.data_dir / STATE_FILE).unlink()
    world.source.jump(4 * DAY_S)
    world.start()
    assert (world.job.clock.alert, world.job.clock.held_s > 0) == (False, True)
    world.minutes(50)
    assert world.job.clock.now_ms() == world.source.now_ms()
    assert (world.readable(), world.marker.proposal_end, world.state(pending)) == (200, 0, State.PREPARED)
    world.minutes(40)
    assert world.job.clock.held_s == 0
    assert world.readable() <= LAST
    assert world.marker.proposal_end > 0
