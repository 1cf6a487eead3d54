"""The state table: 24-byte rows, row number = half offset, and which files are still worth a scan."""

from __future__ import annotations

import os

import numpy as np
import pytest

from store.directory import Geometry
from store.io import disk
from store.records import ROW, State, pack_word
from store.tables.state_table import StateTable


def rows(count):
    found = np.zeros(count, ROW)
    found["commit_log_offset"], found["size_bytes"] = np.arange(count) * 10, 10
    found["stored_at_s"], found["group_no"], found["word"] = 1, 2, pack_word(State.PREPARED)
    return found


@pytest.fixture
def table(tmp_path):
    table = StateTable(tmp_path / "table", 64, writable=True)
    table.ensure(0, 200)
    table.put(np.arange(200), rows(200))
    return table


def test_the_default_files_have_two_million_rows_of_24_bytes(tmp_path):
    table = StateTable(tmp_path / "table", Geometry().state_rows_per_file, writable=True)
    table.ensure(0, 2_000_001)
    found = {path.name: path.stat().st_size for path in (tmp_path / "table").iterdir()}
    assert found == {"00000000000000000000": 48_000_000, "00000000000048000000": 48_000_000}
    table.put(np.array([1_999_999, 2_000_000]), rows(2))
    assert table.rows_of(0)[1_999_999]["commit_log_offset"] == 0
    assert table.rows_of(1)[0]["commit_log_offset"] == 10
    table.close()


def test_a_row_lies_at_24_times_its_number(table):
    table.flush()
    raw = (table.file.directory / f"{64 * 24:020d}").read_bytes()
    assert np.frombuffer(raw, ROW)[3].tolist() == (670, 10, 1, 2, pack_word(State.PREPARED))


@pytest.mark.parametrize(
    "half_offsets",
    [[], [0], [199], [63, 64], [0, 199], [199, 0, 64], list(range(200)), list(range(50, 150)), [5, 4, 3], [10, 12, 11]],
    ids=str,
)
def test_any_rows_in_any_order_read_back_and_are_written(table, half_offsets):
    numbers = np.array(half_offsets, np.int64)
    assert table.get(numbers)["commit_log_offset"].tolist() == (numbers * 10).tolist()
    words = np.array([pack_word(State.COMMITTED, int(number) % 200) for number in numbers], np.uint32)
    table.set_words(numbers, words)
    assert table.get(numbers)["word"].tolist() == words.tolist()
    untouched = np.setdiff1d(np.arange(200), numbers)
    assert set(table.get(untouched)["word"].tolist()) <= {pack_word(State.PREPARED)}
    assert table.pending == 200 - len(half_offsets)


def test_rows_the_table_does_not_have_are_none(table):
    assert table.get(np.array([1000, 5]))["word"].tolist() == [0, pack_word(State.PREPARED)]


def test_a_file_with_nothing_pending_is_not_scanned(table):
    assert table.scannable() == [0, 1, 2, 3]
    table.set_words(np.arange(64, 128), np.full(64, pack_word(State.ROLLED_BACK), np.uint32))
    assert table.scannable() == [0, 2, 3]
    table.set_words(np.array([100]), np.array([pack_word(State.PREPARED)], np.uint32))
    assert table.scannable() == [0, 1, 2, 3]
    assert table.pending_by_file == {0: 64, 1: 1, 2: 64, 3: 8}


def test_counting_anew_gives_what_was_kept(table):
    table.set_words(np.arange(10, 80), np.full(70, pack_word(State.COMMITTED), np.uint32))
    kept = dict(table.pending_by_file)
    assert table.count_pending() == 130
    assert table.pending_by_file == kept


def test_writing_the_same_row_again_does_not_count_it_again(table):
    table.put(np.arange(5), rows(5))
    table.set_words(np.arange(5), np.full(5, pack_word(State.COMMITTED), np.uint32))
    table.set_words(np.arange(5), np.full(5, pack_word(State.COMMITTED), np.uint32))
    assert table.pending == 195


def test_rows_of_a_removed_file_are_left_alone(table):
    assert table.remove_before(130) == 2
    assert (table.begin, table.file_numbers(), table.pending) == (128, [2, 3], 72)
    table.set_words(np.array([5, 130]), np.full(2, pack_word(State.COMMITTED), np.uint32))
    table.put(np.array([6]), rows(1))
    assert (table.begin, table.pending) == (128, 71)
    assert table.get(np.array([5]))["word"].tolist() == [0]
    assert sorted(os.listdir(table.file.directory)) == [f"{number * 64 * 24:020d}" for number in (2, 3)]


def test_only_touched_files_are_flushed(table):
    table.flush()
    table.set_words(np.array([70]), np.array([0], np.uint32))
    with disk.recording() as passed:
        table.flush()
    assert passed == {"state.flush": 1}


def test_a_reader_sees_rows_as_they_change(table):
    reader = StateTable(table.file.directory, 64)
    before = reader.rows_of(0)
    table.set_words(np.array([3]), np.array([pack_word(State.COMMITTED)], np.uint32))
    assert before[3]["word"] == pack_word(State.COMMITTED)
