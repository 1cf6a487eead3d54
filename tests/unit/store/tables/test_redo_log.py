"""The redo log: batches closed by a marker, over as many files as they need."""

from __future__ import annotations

import numpy as np
import pytest

from store.errors import FlushFailed
from store.io import disk
from store.records import ROW, State, pack_word
from store.tables import redo_log
from store.tables.redo_log import MARKER_ENTRIES, REDO, TOTALS, Marker, RedoKind, RedoLog, kinds_of, make_entries, numbers_of

FILE = 64 * 20


@pytest.fixture
def log(tmp_path):
    return RedoLog(tmp_path / "redo", 64, writable=True)


def marker(sequence, **values):
    found = Marker(sequence=sequence, **values)
    found.totals = {name: sequence * 100 + number for number, name in enumerate(TOTALS)}
    return found


def fill(log, *sizes, first=1):
    """Batches of so many entries; the entries of batch n have numbers n·1000 and up."""
    batches = []
    for sequence, size in enumerate(sizes, first):
        numbers = np.arange(size) + sequence * 1000
        entries = make_entries(RedoKind.ROW, numbers, numbers % 7, -1)
        log.append(entries, marker(sequence, half_cursor=sequence, op_cursor=-1, now_ms=1 << 40))
        batches.append(entries.tolist())
    return batches


def read(log, start=0, sequence=0):
    return [batch.entries.tolist() for batch in log.batches(start, sequence)]


def test_widths():
    assert (REDO.itemsize, redo_log.MARKER.itemsize, MARKER_ENTRIES) == (20, 160, 8)


def test_entries_hold_kind_number_word_and_position():
    entries = make_entries(RedoKind.RELEASE, [0, (1 << 56) - 1], [5, 0xFFFFFFFF], [-1, 1 << 62])
    assert kinds_of(entries).tolist() == [RedoKind.RELEASE] * 2
    assert numbers_of(entries).tolist() == [0, (1 << 56) - 1]
    assert (entries["word"].tolist(), entries["position"].tolist()) == ([5, 0xFFFFFFFF], [-1, 1 << 62])


def test_an_image_holds_a_whole_row():
    rows = np.zeros(2, ROW)
    rows[0] = (1 << 50, 7, 0xFFFFFFFF, -1, pack_word(State.QUARANTINED))
    rows[1] = (0, 0x7FFFFFFF, 0, 0x7FFFFFFF, pack_word(State.PREPARED, 9))
    images = redo_log.make_images([3, 9], rows)
    assert kinds_of(images).tolist() == [RedoKind.IMAGE, RedoKind.IMAGE_REST] * 2
    assert numbers_of(images).tolist() == [3, 3, 9, 9]


def test_a_marker_comes_back_as_it_was(log):
    given = Marker(1, 2, 3, 4, 5, 6, 7, 8, 9, 1, dict(zip(TOTALS, range(8), strict=True)))
    log.append(np.empty(0, REDO), given)
    (batch,) = log.batches(0, 0)
    assert batch.marker == given
    assert (len(batch.entries), batch.end) == (0, 160)
    assert redo_log.marker_from_dict(redo_log.marker_to_dict(given)) == given
    assert given.copy() == given
    assert given.copy().totals is not given.totals


def test_pending_is_prepares_and_resumes_less_all_ends():
    totals = dict(zip(TOTALS, (100, 5, 20, 10, 3, 2, 1, 999), strict=True))
    assert Marker(totals=totals).pending == 100 + 5 - 20 - 10 - 3 - 2 - 1


@pytest.mark.parametrize("sizes", [(0,), (1,), (56,), (57,), (64,), (0, 0, 0), (10, 200, 3), (1000,), (55, 1, 56, 57)], ids=str)
def test_case_63_batches_of_any_size_over_any_number_of_files_read_back(log, sizes):
    batches = fill(log, *sizes)
    assert read(log) == batches
    again = RedoLog(log.file.directory, 64)
    assert read(again) == batches
    assert again.stop_reason == "end of the log"
    assert len(again.file.starts()) == max(1, -(-(sum(sizes) + 8 * len(sizes)) // 64))


def test_a_batch_is_one_write_and_one_flush_where_it_fits_and_one_of_each_for_every_file_otherwise(log):
    fill(log, 1)
    with disk.recording() as passed:
        fill(log, 30, first=2)
        assert (passed["redo.write"], passed["redo.flush"]) == (1, 1)
        fill(log, 150, first=3)
        assert (passed["redo.write"], passed["redo.flush"]) == (1 + 4, 1 + 4)


def test_a_batch_that_was_torn_at_any_entry_does_not_count(log):
    batches = fill(log, 20, 30)
    begin, end = (20 + 8) * 20, (20 + 8 + 30 + 8) * 20
    log.file.flush()
    content = bytes(log.file.view(0, end))
    for keep in range(begin, end, 20):
        log.file.write(keep, bytes(end - keep))
        assert read(log) == batches[:1]
        log.file.write(keep, content[keep:])
    assert read(log) == batches


def test_every_flipped_byte_of_a_batch_is_found(log):
    batches = fill(log, 3, 4)
    begin, end = (3 + 8) * 20, (3 + 8 + 4 + 8) * 20
    content = bytes(log.file.view(begin, end - begin))
    for at, byte in enumerate(content):
        log.file.write(begin + at, bytes([byte ^ 0x20]))
        assert read(log) == batches[:1]
        log.file.write(begin + at, bytes([byte]))
    assert read(log) == batches


def test_a_batch_is_valid_only_where_it_was_written(log, tmp_path):
    fill(log, 3, 3)
    size = 11 * 20
    other = RedoLog(tmp_path / "other", 64, writable=True)
    other.file.write(0, bytes(log.file.view(size, size)))
    assert read(other, 0, None) == []
    assert other.stop_reason == "a batch whose CRC does not match"


def test_the_sequence_must_follow(log):
    fill(log, 2)
    fill(log, 2, first=3)
    assert len(read(log)) == 1
    assert log.stop_reason == "batch 3 where 2 belongs"
    assert len(read(log, sequence=None)) == 1


def test_entries_without_a_marker_are_named(log):
    fill(log, 2)
    log.file.write(10 * 20, make_entries(RedoKind.ROW, [1, 2], 0, 0).tobytes())
    assert len(read(log)) == 1
    assert log.stop_reason == "entries without a marker"


def test_cut_takes_the_torn_rest_and_the_next_batch_takes_its_place(log):
    batches = fill(log, 5, 60)
    end = 13 * 20
    log.cut(end)
    assert read(log) == batches[:1]
    assert log.end == end
    fill(log, 2, first=2)
    assert [len(batch) for batch in read(log)] == [5, 2]


@pytest.mark.parametrize("sizes", [(5, 5, 5, 5, 5, 5), (50, 50, 50), (100, 3, 3), (300, 300), (56, 56, 56)], ids=str)
def test_the_first_whole_batch_is_found_after_files_at_the_front_went(log, sizes):
    fill(log, *sizes)
    starts = np.cumsum([0, *[(size + 8) * 20 for size in sizes]])[:-1]
    for gone in range(1, len(log.file.starts())):
        log.file.remove_before(gone * FILE)
        expected = [int(start) for start in starts if start >= gone * FILE]
        if expected:
            assert log.first_batch() == expected[0]
            assert len(read(log, expected[0], None)) == len(expected)


def test_a_failing_flush_leaves_the_end_where_it_was(log):
    fill(log, 1)
    end = log.end
    disk.arm("redo.flush", "EIO")
    with pytest.raises(FlushFailed):
        fill(log, 1, first=2)
    disk.arm(None)
    assert log.end == end


def test_what_entries_speak_of():
    rows = make_entries(RedoKind.ROW, [5, 6], 0, -1)
    messages = make_entries(RedoKind.MESSAGE, [100], 0, 0)
    assert redo_log.speaks_of(rows, 6, 0)
    assert not redo_log.speaks_of(rows, 7, 0)
    assert redo_log.speaks_of(messages, 1000, 100)
    assert not redo_log.speaks_of(messages, 0, 101)
    assert not redo_log.speaks_of(np.empty(0, REDO), 0, 0)
