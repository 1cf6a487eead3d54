"""Numbers of producer groups, from a shard's batches through redo records to a shard that begins anywhere in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sinks.kafka import redo
from store.job.shard import ShardStore
from store.records import HALF, State, pack_word, state_of
from tests.support.redo_records import as_read

NOW_MS = 2_000_000
NAMES = st.text("ab", min_size=1, max_size=3)
#: A batch: the group of each half that it brings, and which of the halves before it ends.
BATCHES = st.lists(st.tuples(st.lists(NAMES, max_size=4), st.sets(st.integers(0, 20))), min_size=1, max_size=12)


@contextmanager
def shard() -> Iterator[ShardStore]:
    with TemporaryDirectory() as root:
        store = ShardStore(Path(root), 100)
        try:
            yield store
        finally:
            store.close(clean=False)


def settle(store: ShardStore, groups: list[str], ended: set[int]) -> list[redo.Record]:
    """One batch, written and applied; its records."""
    first = store.marker.half_cursor
    batch = store.batch(half_cursor=first + len(groups), op_cursor=0, now_ms=NOW_MS)
    halves = np.zeros(len(groups), HALF)
    halves["half_offset"] = np.arange(first, first + len(groups))
    halves["stored_at_s"], halves["group_no"] = 1_000, [store.group_no(name) for name in groups]
    batch.prepare(halves)
    known = np.array(sorted(ended), np.int64)
    known = known[state_of(store.table.get(known)["word"]) == int(State.PREPARED)]
    batch.roll_back(known, np.full(len(known), pack_word(State.ROLLED_BACK), np.uint32))
    names = store.names_for(batch.entries)
    records = list(redo.batch_records(batch.entries, batch.marker, 1, names, {}, next_group=store.next_group))
    follow(store, records)
    return records


def follow(store: ShardStore, records: list[redo.Record], *, cut: bool = False) -> None:
    decoder = redo.Decoder(0, cut=cut)
    for record in as_read(records):
        batch = decoder.take(record)
        if isinstance(batch, redo.RedoBatch):
            store.apply(batch.entries, batch.marker, batch.groups, batch.refused, batch.redo_offset, next_group=batch.next_group)


def owners(store: ShardStore) -> dict[int, str]:
    """The group of each pending half, by name."""
    numbers = np.arange(store.marker.half_cursor)
    rows = store.table.get(numbers)
    pending = np.flatnonzero(state_of(rows["word"]) == int(State.PREPARED))
    return {at: store.groups[rows["group_no"][at]] for at in pending.tolist()}


@settings(max_examples=200, deadline=None)
@given(BATCHES, st.lists(NAMES, max_size=6), st.data())
def test_wherever_the_redo_partition_begins_no_half_changes_its_group(
    batches: list[tuple[list[str], set[int]]], later: list[str], data: Any
) -> None:
    with shard() as first, shard() as rebuilt:
        records = [record for groups, ended in batches for record in settle(first, groups, ended)]
        begin = data.draw(st.integers(0, len(records)), "begin")
        follow(rebuilt, records[begin:], cut=begin > 0)
        left, all_ = owners(rebuilt), owners(first)
        assert left.items() <= all_.items()
        assert rebuilt.nameless() is None
        if not rebuilt.marker.sequence:
            return  # nothing is left: such a shard does not start
        assert rebuilt.next_group == first.next_group
        # Both go on: the rebuilt one is the master now, the other follows it.
        more = settle(rebuilt, later, set())
        follow(first, more)
        both = {at: name for at, name in owners(first).items() if at in owners(rebuilt)}
        assert owners(rebuilt) == both
        assert [both[at] for at in sorted(both)[len(left) :]] == later
