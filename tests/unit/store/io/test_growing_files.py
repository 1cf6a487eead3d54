"""Files that grow, and many of them under few descriptors."""

from __future__ import annotations

import os

import pytest

from store.errors import Corrupt, ForeignFile, NoRoom, SegmentGone
from store.io import disk
from store.io import handles as handles_module
from store.io.descriptors import descriptors_allowed
from store.io.growing_files import GrowingFile
from store.io.handles import Handles
from store.io.segments import segment_name


@pytest.fixture
def writer():
    made = Handles(writable=True, descriptors_max=4)
    yield made
    made.close()


@pytest.fixture
def reader():
    made = Handles(descriptors_max=4)
    yield made
    made.close()


def sizes(directory):
    return {int(name): os.path.getsize(directory / name) for name in sorted(os.listdir(directory))}


def test_a_file_is_as_long_as_what_was_written(tmp_path, writer):
    file = GrowingFile(tmp_path / "q", 64, "test", writer)
    file.write(0, b"x" * 20)
    assert sizes(tmp_path / "q") == {0: 20}
    file.write(20, b"y" * 60)
    assert sizes(tmp_path / "q") == {0: 64, 64: 16}
    assert bytes(file.view(10, 70)) == b"x" * 10 + b"y" * 60


def test_a_reader_sees_a_file_grow(tmp_path, writer, reader):
    file = GrowingFile(tmp_path / "q", 64, "test", writer)
    file.write(0, b"x")
    other = GrowingFile(tmp_path / "q", 64, "test", reader)
    assert bytes(other.view(0, 1)) == b"x"
    for offset in range(1, 200):
        file.write(offset, bytes([offset]))
        assert bytes(other.view(offset - 1, 2))[1] == offset


def test_a_file_that_ends_before_what_is_asked_for_is_damage(tmp_path, writer):
    file = GrowingFile(tmp_path / "q", 64, "test", writer)
    file.write(0, b"x" * 40)
    with pytest.raises(Corrupt, match="ends here"):
        file.view(30, 20)
    with pytest.raises(SegmentGone):
        file.view(64, 1)


def test_places_that_nobody_wrote_are_zero_and_there(tmp_path, writer):
    file = GrowingFile(tmp_path / "q", 64, "test", writer)
    file.write(10, b"x")
    file.write(150, b"y")
    assert sizes(tmp_path / "q") == {0: 64, 64: 64, 128: 23}
    assert bytes(file.view(0, 151)) == bytes(10) + b"x" + bytes(139) + b"y"


def test_ensure_makes_what_lies_before_and_begin_at_the_first_file(tmp_path, writer):
    file = GrowingFile(tmp_path / "q", 64, "test", writer)
    file.ensure(500)
    assert file.starts() == []
    file.begin_at(150)
    file.ensure(260)
    assert sizes(tmp_path / "q") == {128: 64, 192: 64, 256: 4}
    file.ensure(200)
    assert (file.begin, file.end) == (128, 320)


def test_a_file_that_could_not_be_extended_is_extended_the_next_time(tmp_path, writer):
    file = GrowingFile(tmp_path / "q", 64, "test", writer)
    file.write(0, b"x")
    disk.arm("test.extend", "ENOSPC")
    with pytest.raises(NoRoom):
        file.ensure(40)
    disk.arm(None)
    file.ensure(40)
    assert sizes(tmp_path / "q") == {0: 40}
    assert bytes(file.view(0, 40)) == b"x" + bytes(39)


def test_full_size_files_of_earlier_releases_are_read_and_written(tmp_path, writer):
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / segment_name(0)).write_bytes(b"x" * 30 + bytes(34))
    file = GrowingFile(tmp_path / "q", 64, "test", writer)
    file.write(30, b"y" * 40)
    assert bytes(file.view(0, 70)) == b"x" * 30 + b"y" * 40
    assert sizes(tmp_path / "q") == {0: 64, 64: 6}


def test_retention_removes_from_the_front_and_readers_let_go(tmp_path, writer, reader):
    file = GrowingFile(tmp_path / "q", 64, "test", writer)
    file.write(0, bytes(range(200)))
    other = GrowingFile(tmp_path / "q", 64, "test", reader)
    other.view(0, 200)
    assert (file.remove_before(130), file.starts()) == (2, [128, 192])
    assert file.remove_before(10_000) == 1
    other.refresh()
    assert other.starts() == [192]
    with pytest.raises(SegmentGone):
        other.view(0, 1)
    assert len(reader) == 1


def test_foreign_names_and_gaps_are_refused(tmp_path, writer):
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "notes").write_text("x")
    with pytest.raises(ForeignFile):
        GrowingFile(tmp_path / "q", 64, "test", writer)
    (tmp_path / "q" / "notes").unlink()
    for start in (0, 128):
        (tmp_path / "q" / segment_name(start)).write_bytes(bytes(64))
    with pytest.raises(Corrupt, match="missing"):
        GrowingFile(tmp_path / "q", 64, "test", writer)


def test_descriptors_stay_within_their_bound(tmp_path, writer, reader):
    before = len(os.listdir("/proc/self/fd"))
    files = [GrowingFile(tmp_path / str(number), 64, "test", writer) for number in range(50)]
    for number, file in enumerate(files):
        file.write(0, bytes([number]))
    others = [GrowingFile(tmp_path / str(number), 64, "test", reader) for number in range(50)]
    assert [bytes(other.view(0, 1))[0] for other in others] == list(range(50))
    assert len(os.listdir("/proc/self/fd")) <= before + 8
    assert (len(writer), len(reader)) == (4, 4)


@pytest.mark.parametrize("one_by_one", [True, False])
def test_flush_covers_files_whose_descriptor_was_closed(tmp_path, writer, monkeypatch, one_by_one):
    flushed, real = [], os.fdatasync

    def fdatasync(fd):
        flushed.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    monkeypatch.setattr(handles_module, "ONE_BY_ONE_MAX", 1000 if one_by_one else 0)
    for number in range(10):
        GrowingFile(tmp_path / str(number), 64, "test", writer).write(0, b"x")
    writer.flush("test", tmp_path)
    assert len(set(flushed)) == (10 if one_by_one else 0)
    flushed.clear()
    monkeypatch.setattr(handles_module, "ONE_BY_ONE_MAX", 1000)
    writer.flush("test", tmp_path)
    assert flushed == []


def test_a_removed_file_is_closed_when_the_reader_lets_go(tmp_path, writer, reader):
    GrowingFile(tmp_path / "q", 64, "test", writer).write(0, b"x")
    GrowingFile(tmp_path / "q", 64, "test", reader).view(0, 1)
    os.unlink(tmp_path / "q" / segment_name(0))
    assert len(reader) == 1
    reader.drop_removed()
    assert len(reader) == 0


def test_the_bound_is_a_share_of_the_limit():
    assert 16 <= descriptors_allowed() <= 256
