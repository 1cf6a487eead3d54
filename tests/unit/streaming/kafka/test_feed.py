"""What of the records that were read is settled now, without Kafka: an op never overtakes its half."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from sinks.kafka import contract
from store.job.shard import ShardStore
from store.records import HALF, OP, OpKind
from store.tables.redo_log import Marker
from streaming.kafka.reading.feeds import Feeds
from streaming.kafka.reading.records import Piece

TOPICS = contract.Topics("half", "op", "redo", "check", "discard", "lease", "ends", "keys")


@pytest.fixture
def shard(tmp_path):
    store = ShardStore(tmp_path / "shard", 1000)
    yield SimpleNamespace(marker=Marker(), partition=0, store=store, deferred=[], unkept=None, waits=False)
    store.close(clean=False)


@pytest.fixture
def feeds():
    """Of a half partition that has ten records."""
    return Feeds(
        TOPICS,
        half_end=lambda _: 10,
        read_ops=lambda *_: [],
        shard_count=lambda: 1,
        batch_records_max=1_000,
        undeliverable_max=1_000,
        stopping=threading.Event(),
    )


def halves(group: str, *offsets: int) -> Piece:
    records = np.zeros(len(offsets), HALF)
    records["half_offset"] = offsets
    return Piece([group], records)


def commits(group: str, *pairs: tuple[int, int]) -> Piece:
    records = np.zeros(len(pairs), OP)
    records["op_offset"], records["half_offset"] = zip(*pairs, strict=True)
    records["kind"] = int(OpKind.COMMIT)
    return Piece([group], records)


def test_an_op_before_the_first_half_of_its_group_is_of_that_group_later(feeds, shard):
    first = feeds.feed(shard, [], [commits("new", (0, 3), (1, 4))], {"half": {0: 3}, "op": {0: 2}})
    assert (len(first.ops), first.op_stop) == (0, 0)
    shard.marker.half_cursor = 3
    then = feeds.feed(shard, [halves("new", 3, 4)], [], {"half": {0: 5}, "op": {0: 2}})
    assert then.op_stop == 2
    assert then.ops["half_offset"].tolist() == [3, 4]
    assert set(then.ops["group_no"].tolist()) == set(then.halves["group_no"].tolist())
    assert shard.deferred == []


def test_an_op_about_an_offset_that_kafka_does_not_have_holds_nobody_up(feeds, shard):
    feed = feeds.feed(shard, [], [commits("new", (0, 10))], {"half": {0: 3}, "op": {0: 1}})
    assert (feed.op_stop, len(feed.ops)) == (1, 1)


def test_what_waits_keeps_its_order_with_what_comes(feeds, shard):
    feeds.feed(shard, [], [commits("a", (0, 5), (1, 2))], {"half": {0: 3}, "op": {0: 2}})
    feed = feeds.feed(shard, [halves("a", 3, 4, 5)], [commits("a", (2, 4))], {"half": {0: 6}, "op": {0: 3}})
    assert feed.ops["op_offset"].tolist() == [0, 1, 2]
