"""The same history through an embedded store and a shard of Kafka mode, whose offsets have holes: the same rows after every step.

Ends, asks, discards, resumes, rounds with their bounds and presence, batches cut anywhere: everything that decides. What a real
broker adds is in tests/kafka.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from checker.decisions import Tick
from store.job.batch import Batch
from store.job.shard import ShardStore
from store.records import OpKind
from store.tables.redo_log import Marker, marker_to_dict
from store.tables.state_table import StateTable
from streaming.settlement.settle import Feed, Settler
from tests.support.history import Checkpoint, History, Reopen, Retain, Round, Settle
from tests.support.world import GROUPS, POLICY, World

STEPS = 150


def spread(half_offsets):
    """Offsets with holes, as transactions leave them in Kafka."""
    return half_offsets * 3 + 1 + half_offsets // 5


class DirectShard:
    """A shard whose batches are applied at once, as if they had come back from the redo topic."""

    def __init__(self, store: ShardStore) -> None:
        self.store = store

    @property
    def marker(self) -> Marker:
        return self.store.marker

    @property
    def table(self) -> StateTable:
        return self.store.table

    def batch(self, **cursors: int) -> Batch:
        return self.store.batch(**cursors)

    def commit(self, batch: Batch) -> None:
        self.store.apply(batch.entries, batch.marker, (), (), batch.marker.sequence)


class Both:
    def __init__(self, world: World, shard: DirectShard) -> None:
        self.world, self.shard, self.settler = world, shard, Settler(shard, POLICY)
        self._half = self._op = 0

    def follow(self, now_ms: int) -> None:
        """Settle what the embedded job has settled."""
        marker, log = self.world.job.marker, self.world.job.log
        halves, ops = log.halves(self._half, marker.half_cursor), log.ops(self._op, marker.op_cursor)
        for name in ("half_offset", "commit_log_offset"):
            halves[name] = spread(halves["half_offset"]) if name == "half_offset" else halves["half_offset"]
        ops = ops[ops["kind"] != int(OpKind.MESSAGE)]
        ops["half_offset"] = np.where(ops["half_offset"] < 0, ops["half_offset"], spread(ops["half_offset"]))
        half_stop, before = int(spread(np.int64(marker.half_cursor))), self.shard.marker
        self.settler.settle(Feed(before.half_cursor, half_stop, before.op_cursor, marker.op_cursor, halves, ops), now_ms)
        self._half, self._op = marker.half_cursor, marker.op_cursor

    def round(self, action: Round) -> None:
        tick = Tick(action.now_ms, action.round_no, action.start_ms, ops_caught_up=True)
        live = np.array([name != action.nobody for name in GROUPS], bool)
        for _ in self.settler.check_round(tick, live):
            pass

    def compare(self) -> None:
        numbers = np.arange(self.world.job.marker.half_cursor)
        mine, theirs = self.world.job.table.get(numbers), self.shard.table.get(spread(numbers))
        for name in ("word", "stored_at_s", "group_no", "size_bytes"):
            assert np.array_equal(mine[name], theirs[name]), name
        ours, its = marker_to_dict(self.world.job.marker), marker_to_dict(self.shard.marker)
        for name in ("round_no", "check_end", "proposal_end", "discard_end", "op_cursor"):
            assert ours[name] == its[name], name
        assert {**ours["totals"], "messages": 0} == its["totals"]
        assert self.shard.store.sound


@pytest.mark.parametrize("number", range(12))
def test_the_same_history_gives_the_same_rows(tmp_path, number):
    seed = number * 7919 + 17
    print(f"SEED={seed}")
    rng, history, world = random.Random(seed), History(), World(tmp_path / "embedded")
    store = ShardStore(tmp_path / "shard", 64)
    both = Both(world, DirectShard(store))
    try:
        for _ in range(STEPS):
            action = world.choose(rng, history)
            if action is None or isinstance(action, Retain | Reopen | Checkpoint):
                continue
            history.intend(action)
            history.acknowledge(action, world.perform(action))
            if isinstance(action, Settle | Round):
                both.follow(action.now_ms)
                if isinstance(action, Round):
                    both.round(action)
                both.compare()
        assert store.marker.sequence > 5
    finally:
        store.close()
        world.close()
