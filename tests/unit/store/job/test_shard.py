"""A shard's store: twice equals once, holes stay, groups and undeliverable messages survive, an unclean exit loses nothing."""

from __future__ import annotations

import numpy as np
import pytest

from store.errors import Corrupt, StoreLocked
from store.job.shard import ShardStore
from store.job.undeliverable import Refusal, Undeliverables
from store.records import HALF, State, pack_word, state_of

ROWS = 100


def halves(*half_offsets, group_no=0):
    made = np.zeros(len(half_offsets), HALF)
    made["half_offset"] = made["commit_log_offset"] = half_offsets
    made["size_bytes"], made["stored_at_s"], made["group_no"] = 10, 1_000, group_no
    return made


def prepared(store, *half_offsets, half_cursor=None, group="orders"):
    batch = store.batch(half_cursor=half_cursor or max(half_offsets) + 1, op_cursor=0, now_ms=2_000_000)
    batch.prepare(halves(*half_offsets, group_no=store.group_no(group)))
    return batch


def apply(store, batch, refused=(), redo_offset=1):
    store.apply(batch.entries, batch.marker, store.names_for(batch.entries), refused, redo_offset, next_group=store.next_group)


def states(store, *half_offsets):
    return state_of(store.table.get(np.array(half_offsets))["word"]).tolist()


@pytest.fixture
def store(tmp_path):
    store = ShardStore(tmp_path, ROWS)
    yield store
    store.close(clean=False)


def test_offsets_with_holes_make_rows_with_holes(store):
    apply(store, prepared(store, 3, 7, 250, half_cursor=260))
    assert states(store, 3, 5, 7, 250, 251) == [State.PREPARED, State.NONE, State.PREPARED, State.PREPARED, State.NONE]
    assert store.table.pending == 3 == store.marker.pending
    assert store.sound


def test_a_batch_that_is_read_again_changes_nothing(store):
    batch = prepared(store, 1)
    apply(store, batch)
    ended = store.batch(half_cursor=2, op_cursor=1, now_ms=2_000_000)
    ended.roll_back([1], [pack_word(State.ROLLED_BACK)])
    apply(store, ended, redo_offset=9)
    apply(store, batch, redo_offset=5)
    assert states(store, 1) == [State.ROLLED_BACK]
    assert store.redo_offset == 9


def test_a_gap_in_the_sequence_is_refused_but_for_the_first_batch(store):
    batch = prepared(store, 1)
    batch.marker.sequence = 41  # retention took the batches before it
    apply(store, batch)
    later = prepared(store, 2)
    later.marker.sequence = 43
    with pytest.raises(Corrupt, match="batch 43 of the redo partition follows 41"):
        apply(store, later)


def test_everything_survives_a_clean_exit(tmp_path):
    store = ShardStore(tmp_path, ROWS)
    store.term = 4
    apply(store, prepared(store, 1, 2, group="Aa"))
    ended = store.batch(half_cursor=3, op_cursor=1, now_ms=2_000_000)
    ended.release([1], [pack_word(State.COMMITTED)], -1)
    apply(store, ended, [(1, Refusal("too large", 7, "real", 5))], redo_offset=7)
    store.close()
    again = ShardStore(tmp_path, ROWS)
    assert (again.redo_offset, again.term, again.groups) == (7, 4, ["Aa"])
    assert again.group_no("BB") == 1
    assert again.undeliverable[1].refusal == Refusal("too large", 7, "real", 5)
    assert states(again, 1, 2) == [State.COMMITTED, State.PREPARED]
    assert again.sound
    again.close()


def test_after_an_unclean_exit_the_batches_behind_the_checkpoint_are_applied_again(tmp_path):
    store = ShardStore(tmp_path, ROWS)
    apply(store, prepared(store, 1), redo_offset=3)
    store.checkpoint()
    second = prepared(store, 2)
    apply(store, second, redo_offset=5)
    store.close(clean=False)
    again = ShardStore(tmp_path, ROWS)
    assert (again.redo_offset, again.marker.sequence) == (3, 1)
    apply(again, second, redo_offset=5)
    assert again.sound
    assert again.table.pending == 2
    again.close()


def test_rows_without_a_checkpoint_are_worth_nothing(tmp_path):
    store = ShardStore(tmp_path, ROWS)
    apply(store, prepared(store, 1))
    store.close(clean=False)
    again = ShardStore(tmp_path, ROWS)
    assert (again.table.pending, again.marker.sequence, states(again, 1)) == (0, 0, [State.NONE])
    again.close()


def test_an_undeliverable_message_leaves_the_list_when_it_is_released_or_resumed(store):
    apply(store, prepared(store, 1, 2))
    words = np.array([pack_word(State.COMMITTED), pack_word(State.DISCARDED_MAX)], np.uint32)
    ended = store.batch(half_cursor=3, op_cursor=2, now_ms=2_000_000)
    ended.release([1], words[:1], -1)
    ended.discard([2], words[1:], np.array([int(State.DISCARDED_MAX)]))
    apply(store, ended, [(1, Refusal("no such topic")), (2, Refusal("not authorised"))])
    again = store.batch(half_cursor=3, op_cursor=2, now_ms=3_000_000)
    again.release_again(np.array([1, 2]), words)
    apply(store, again, [(2, Refusal("not authorised"))])
    assert list(store.undeliverable) == [2]
    assert (store.undeliverable[2].since_ms, store.undeliverable[2].attempts) == (2_000_000, 2)
    assert store.marker.totals["commits"] == 1, "counted once"
    resumed = store.batch(half_cursor=3, op_cursor=3, now_ms=4_000_000)
    rows = store.table.get(np.array([2]))
    rows["word"] = pack_word(State.PREPARED)
    resumed.resume([2], rows, reopened=1)
    apply(store, resumed)
    assert not store.undeliverable


def test_a_second_driver_on_the_same_directory_is_told_so(store):
    with pytest.raises(StoreLocked, match="the settling job of this shard"):
        ShardStore(store.root, ROWS)


def test_state_files_go_when_nothing_in_them_is_needed(store):
    apply(store, prepared(store, *range(250), half_cursor=250))
    ended = store.batch(half_cursor=250, op_cursor=1, now_ms=2_000_000)
    ended.roll_back(np.arange(150), np.full(150, pack_word(State.ROLLED_BACK), np.uint32))
    apply(store, ended)
    assert store.retain(2_000_000 + 5_000, 10_000) == 0
    assert store.retain(2_000_000 + 20_000, 10_000) == 1, "the second file has pending rows"
    assert states(store, 5, 105, 205) == [State.NONE, State.ROLLED_BACK, State.PREPARED]


# --- groups ----------------------------------------------------------------------------------------------------------
def test_a_batch_tells_the_names_of_all_groups_whose_rows_it_brings(store):
    apply(store, prepared(store, 1, group="Aa"))
    apply(store, prepared(store, 2, group="BB"))
    again = prepared(store, 3, group="Aa")
    assert store.names_for(again.entries) == [(0, "Aa")]
    store.group_no("new")
    assert store.names_for(again.entries) == [(0, "Aa"), (2, "new")]
    assert store.all_names() == [(0, "Aa"), (1, "BB"), (2, "new")]


def test_names_are_placed_by_number_and_a_number_is_never_given_twice(tmp_path):
    store = ShardStore(tmp_path, ROWS)
    batch = store.batch(half_cursor=2, op_cursor=0, now_ms=2_000_000)
    batch.prepare(halves(1, group_no=3))
    store.apply(batch.entries, batch.marker, [(3, "payments")], (), 1, next_group=7)
    assert (store.groups, store.known_group("payments")) == (["", "", "", "payments"], 3)
    assert store.group_no("mallory") == 7
    store.close()
    again = ShardStore(tmp_path, ROWS)
    assert (again.known_group("payments"), again.group_no("newcomer")) == (3, 7), "mallory was never told"
    assert again.nameless() is None
    again.close()


def test_a_row_whose_group_nobody_has_named_is_found(store):
    batch = store.batch(half_cursor=9, op_cursor=0, now_ms=2_000_000)
    batch.prepare(halves(4, group_no=0))
    batch.prepare(halves(8, group_no=5))
    store.apply(batch.entries, batch.marker, [(0, "orders")], (), 1)
    assert store.nameless() == (8, 5)
    with pytest.raises(Corrupt, match="the name of producer group number 5 is not known"):
        store.names_for(batch.entries)
    ended = store.batch(half_cursor=9, op_cursor=1, now_ms=2_000_000)
    ended.roll_back([8], [pack_word(State.ROLLED_BACK)])
    apply(store, ended)
    assert store.nameless() is None, "its group decides nothing any more"


def test_a_number_that_has_two_names_is_refused(store):
    apply(store, prepared(store, 1, group="early"))
    batch = store.batch(half_cursor=2, op_cursor=0, now_ms=2_000_000)
    with pytest.raises(Corrupt, match=r"number 0 is 'early' here and 'newcomer' in the redo partition.*Empty this directory"):
        store.apply(batch.entries, batch.marker, [(0, "newcomer")], (), 9)


# --- undeliverable messages -------------------------------------------------------------------------------------------------
def test_the_list_keeps_the_order_of_the_ends_through_refusals_and_a_checkpoint():
    listed = Undeliverables()
    listed.note([9, 3, 5], {9: Refusal("a", 1, "t"), 3: Refusal("a", 1, "t"), 5: Refusal("a", 2, "u")}, 1000)
    listed.note([9, 3], {9: Refusal("b", 1, "t"), 3: Refusal("b", 1, "t")}, 2000)
    listed.note([4], {4: Refusal("b", 1, "t", 7)}, 2000)
    again = Undeliverables.from_rows(listed.to_rows())
    for each in (listed, again):
        assert list(each) == [9, 3, 5, 4]
        assert (each[9].refusal.reason, each[9].since_ms, each[9].attempts) == ("b", 1000, 2)
        assert (each.lanes().tolist(), each.topics(), each.oldest_stored_ms()) == ([1, 2], {"t", "u"}, 7)


def test_a_list_of_an_earlier_version_is_read():
    (row,) = Undeliverables.from_rows([[7, "too large", 1000, 3]]).items()
    assert (row[0], row[1].refusal, row[1].attempts) == (7, Refusal("too large"), 3)


def test_pending_halves_are_counted_by_group_with_the_oldest_of_each(store):
    batch = store.batch(half_cursor=300, op_cursor=0, now_ms=2_000_000)
    rows = halves(1, 2, 150, 299)
    rows["group_no"] = [store.group_no("a"), store.group_no("b"), store.group_no("a"), store.group_no("a")]
    rows["stored_at_s"] = [50, 20, 40, 90]
    batch.prepare(rows)
    apply(store, batch)
    assert store.pending_by_group() == {"a": (3, 40), "b": (1, 20)}
    ended = store.batch(half_cursor=300, op_cursor=1, now_ms=2_000_000)
    ended.roll_back([2], [pack_word(State.ROLLED_BACK)])
    apply(store, ended, redo_offset=9)
    assert store.pending_by_group() == {"a": (3, 40)}
