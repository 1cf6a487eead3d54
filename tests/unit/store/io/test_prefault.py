"""The next stretch of the log lies ready, and nothing is any different for it."""

from __future__ import annotations

import os

import pytest

from store.io import disk, prefault
from store.io.prefault import Runway
from store.io.segments import segment_name

SEGMENT = 1 << 20


@pytest.fixture
def short(tmp_path, monkeypatch):
    """A runway of 256 KiB over two segments of 1 MiB, of which the second is not there yet."""
    monkeypatch.setattr(prefault, "AHEAD_BYTES", 256 << 10)
    monkeypatch.setattr(prefault, "STEP_BYTES", 128 << 10)
    (tmp_path / segment_name(0)).write_bytes(os.urandom(SEGMENT))
    return Runway(tmp_path, SEGMENT)


def test_it_is_filled_up_when_half_of_it_is_used(short):
    assert short.is_short(0)
    short.extend(lambda: 0)
    assert short.ready == 256 << 10
    assert not short.is_short(128 << 10)
    assert short.is_short((128 << 10) + 1)
    short.extend(lambda: 200 << 10)
    assert short.ready == 512 << 10, "in steps"


def test_it_grows_with_a_log_that_grows_meanwhile(short):
    ends = iter([0, 0, 0, *[300 << 10] * 9])
    short.extend(lambda: next(ends))
    assert short.ready >= (300 + 256) << 10


def test_it_ends_with_the_segment(short):
    short.extend(lambda: 900 << 10)
    assert short.ready == SEGMENT
    assert not short.is_short(900 << 10)
    assert not short.is_short(SEGMENT - 1)
    assert short.is_short(SEGMENT)


def test_a_segment_that_is_not_there_is_left_out(short, tmp_path):
    short.extend(lambda: SEGMENT)
    assert short.is_short(SEGMENT)
    (tmp_path / segment_name(SEGMENT)).write_bytes(bytes(SEGMENT))
    short.extend(lambda: SEGMENT)
    assert short.ready == SEGMENT + (256 << 10)


def test_a_segment_that_is_shorter_than_it_should_be_is_no_endless_task(short, tmp_path):
    os.truncate(tmp_path / segment_name(0), 1000)
    short.extend(lambda: 0)
    assert not short.is_short(0)


def test_who_stops_it_is_not_waited_for(short):
    short.stop()
    short.extend(lambda: 0)
    assert short.ready == 0


def test_recovery_writes_nothing_over_what_was_only_made_ready(tmp_path, monkeypatch):
    """Pages of zeros look like data to the file system."""
    path, written = tmp_path / segment_name(0), []
    monkeypatch.setattr(disk, "_write_all", lambda fd, data, offset: written.append((offset, len(data))))
    disk.create_segment(path, 8 << 20, "commitlog")
    fd = os.open(path, os.O_RDWR)
    try:
        Runway(tmp_path, 8 << 20).extend(lambda: 0)
        disk.cut(fd, 1000, 8 << 20, "commitlog", path)
        assert written == []
        os.pwrite(fd, b"stale", 5 << 20)
        disk.cut(fd, 1000, 8 << 20, "commitlog", path)
        assert [(offset, size) for offset, size in written if offset <= 5 << 20 < offset + size]
        assert sum(size for _, size in written) <= 1 << 20
    finally:
        os.close(fd)


def test_nothing_is_written(short, tmp_path):
    before = (tmp_path / segment_name(0)).read_bytes()
    short.extend(lambda: 0)
    assert (tmp_path / segment_name(0)).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [segment_name(0)]
