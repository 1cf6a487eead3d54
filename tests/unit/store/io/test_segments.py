"""Segments: one address space over fixed-size files."""

from __future__ import annotations

import os

import pytest

from store.errors import Corrupt, FlushFailed, ForeignFile, SegmentGone, StoreUnusable
from store.io import disk
from store.io.segments import SegmentedFile, segment_name


@pytest.fixture
def file(tmp_path):
    return SegmentedFile(tmp_path / "log", 64, "test", writable=True)


def names(file):
    return sorted(os.listdir(file.directory))


def test_a_segment_is_named_by_its_first_offset_in_20_digits():
    assert segment_name(0) == "0" * 20
    assert segment_name(48_000_000) == "00000000000048000000"


def test_writes_roll_over_files_and_read_back_as_one(file):
    file.write(0, bytes(range(200)))
    assert names(file) == [segment_name(start) for start in (0, 64, 128, 192)]
    assert (file.begin, file.end) == (0, 256)
    assert bytes(file.view(0, 200)) == bytes(range(200))
    assert bytes(file.view(60, 10)) == bytes(range(60, 70))
    assert bytes(file.view(190, 60)) == bytes(range(190, 200)) + bytes(50)


def test_every_file_is_allocated_whole_when_it_is_made(file):
    file.write(70, b"x") if file.starts() else file.write(0, b"x")
    found = (file.directory / segment_name(0)).stat()
    assert found.st_size == 64
    assert found.st_blocks > 0


def test_a_view_within_one_file_is_not_a_copy(file):
    file.write(0, b"before")
    view = file.view(0, 6)
    file.write(0, b"behind")
    assert bytes(view) == b"behind"


def test_a_reader_finds_segments_that_were_made_later(file):
    file.write(0, b"x")
    reader = SegmentedFile(file.directory, 64, "test")
    file.write(64, b"y")
    assert bytes(reader.view(64, 1)) == b"y"
    with pytest.raises(IndexError, match="does not exist"):
        reader.view(128, 1)


def test_a_segment_that_went_after_the_reader_looked_is_gone_like_one_that_it_never_saw(file):
    file.write(0, bytes(200))
    reader = SegmentedFile(file.directory, 64, "test")
    file.remove_before(128)
    for start in (0, 64, 0):
        with pytest.raises(SegmentGone, match="does not exist"):
            reader.view(start, 1)
    assert (reader.begin, bytes(reader.view(128, 1))) == (128, b"\0")
    with pytest.raises(IndexError):
        file.view(0, 1)


def test_a_listing_during_which_retention_removed_files_is_no_gap(file, monkeypatch):
    """The system lists a long directory in several calls, in any order."""
    file.write(0, bytes(300))
    reader = SegmentedFile(file.directory, 64, "test")
    really = os.listdir
    seen = [segment_name(start) for start in (0, 192, 256)]

    def listed(directory):
        if not seen:
            return really(directory)
        found = list(seen)
        seen.clear()
        file.remove_before(192)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", listed)
        reader.refresh()
    assert reader.starts() == [192, 256]


def test_a_reader_of_a_missing_directory_sees_nothing(tmp_path):
    reader = SegmentedFile(tmp_path / "nowhere", 64, "test")
    assert (reader.starts(), reader.begin, reader.end) == ([], 0, 0)
    assert not (tmp_path / "nowhere").exists()


def test_a_file_missing_between_its_neighbours_is_named(file):
    file.write(0, bytes(200))
    (file.directory / segment_name(64)).unlink()
    with pytest.raises(Corrupt, match=r"00000000000000000064 at 0: segment missing between its neighbours"):
        SegmentedFile(file.directory, 64, "test")


@pytest.mark.parametrize("name", ["notes.txt", "64", "00000000000000000001", "0000000000000000006x", "٠" * 20])
def test_a_foreign_file_is_refused_by_its_name_and_left_alone(file, name):
    file.write(0, b"x")
    stranger = file.directory / name
    stranger.write_text("mine")
    with pytest.raises(ForeignFile, match="move it elsewhere"):
        SegmentedFile(file.directory, 64, "test", writable=True)
    assert stranger.read_text() == "mine"


def test_what_a_crash_left_half_made_is_swept_away_by_the_writer_only(file):
    leftover = file.directory / (segment_name(0) + disk.TEMPORARY_SUFFIX)
    leftover.write_bytes(b"half made")
    assert SegmentedFile(file.directory, 64, "test").starts() == []
    assert leftover.exists()
    SegmentedFile(file.directory, 64, "test", writable=True)
    assert not leftover.exists()


def test_a_segment_that_would_leave_a_gap_is_refused(file):
    file.write(0, b"x")
    with pytest.raises(StoreUnusable, match="would leave a gap"):
        file.write(128, b"y")
    assert names(file) == [segment_name(0)]


def test_the_first_segment_need_not_be_number_0(file):
    file.segment(640, create=True)
    assert (file.begin, file.end) == (640, 704)


@pytest.mark.parametrize(("offset", "left"), [(0, 1), (1, 1), (63, 1), (64, 1), (65, 2), (128, 2), (150, 3), (400, 4)])
def test_cut_forgets_everything_from_an_offset_on(file, offset, left):
    file.write(0, b"\xff" * 256)
    file.cut(offset)
    assert len(names(file)) == left
    content = b"".join((file.directory / name).read_bytes() for name in names(file))
    assert content == (b"\xff" * offset)[:256] + bytes(max(0, left * 64 - offset))


def test_remove_before_takes_whole_files_from_the_front_and_never_the_last(file):
    file.write(0, bytes(256))
    assert [file.remove_before(offset) for offset in (0, 63, 64, 127, 130)] == [0, 0, 1, 0, 1]
    assert (file.begin, len(names(file))) == (128, 2)
    assert file.remove_before(10_000) == 1
    assert (file.begin, file.end, len(names(file))) == (192, 256, 1)


def test_a_view_outlives_the_removal_of_its_file(file):
    file.write(0, b"kept" + bytes(124))
    view = file.view(0, 4)
    file.remove_before(64)
    assert bytes(view) == b"kept"


def test_a_writer_completes_a_file_that_a_crash_left_short_and_a_reader_reports_it(file):
    file.write(0, b"x" * 64)
    file.close()
    os.truncate(file.directory / segment_name(0), 10)
    with pytest.raises(Corrupt, match="10 bytes, a segment here has 64"):
        SegmentedFile(file.directory, 64, "test").view(0, 1)
    assert bytes(SegmentedFile(file.directory, 64, "test", writable=True).view(0, 64)) == b"x" * 10 + bytes(54)


def test_a_file_that_is_too_long_is_corrupt_even_for_the_writer(file):
    file.write(0, b"x")
    os.truncate(file.directory / segment_name(0), 65)
    with pytest.raises(Corrupt, match="65 bytes"):
        SegmentedFile(file.directory, 64, "test", writable=True).view(0, 1)


def test_flush_flushes_what_was_written_and_only_that(file):
    file.write(0, bytes(192))
    with disk.recording() as passed:
        file.flush()
        assert passed["test.flush"] == 3
        file.write(70, b"x")
        file.flush()
        assert passed["test.flush"] == 4
        file.flush()
        assert passed["test.flush"] == 4


def test_a_failing_flush_is_an_error_of_its_own(file):
    file.write(0, b"x")
    disk.arm("test.flush", "EIO")
    with pytest.raises(FlushFailed, match="the device failed"):
        file.flush()
    disk.arm(None)


def test_no_space_for_a_new_segment_is_explained_and_leaves_nothing_behind(file):
    file.write(0, bytes(64))
    disk.arm("test.create", "ENOSPC")
    with pytest.raises(StoreUnusable, match="disk is full"):
        file.write(64, b"x")
    disk.arm(None)
    assert names(file) == [segment_name(0)]
    file.write(64, b"x")
    assert bytes(file.view(64, 1)) == b"x"
