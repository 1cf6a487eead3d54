"""Consume queues: 20-byte entries at fixed places."""

from __future__ import annotations

import os

import numpy as np
import pytest

from store.tables.consume_queue import ConsumeQueue, make_entries


@pytest.fixture
def queue(tmp_path):
    return ConsumeQueue(tmp_path / "queue", 64, "queue", writable=True)


def entries(first, count):
    numbers = np.arange(first, first + count)
    return make_entries(numbers * 100, np.full(count, 7), numbers)


def test_entries_are_20_bytes_in_files_of_their_own(queue):
    queue.put(0, entries(0, 130))
    assert sorted(os.listdir(queue.file.directory)) == [f"{start:020d}" for start in (0, 1280, 2560)]
    raw = (queue.file.directory / f"{0:020d}").read_bytes()
    assert raw[20:40] == (100).to_bytes(8, "little") + (7).to_bytes(4, "little") + (1).to_bytes(8, "little")


@pytest.mark.parametrize(("first", "stop"), [(0, 0), (0, 1), (60, 70), (0, 130), (63, 64), (64, 65), (5, 3)])
def test_any_range_reads_back(queue, first, stop):
    queue.put(0, entries(0, 130))
    assert queue.read(first, stop).tolist() == entries(first, max(0, stop - first)).tolist()


def test_writing_the_same_again_changes_nothing(queue):
    queue.put(0, entries(0, 100))
    queue.put(30, entries(30, 40))
    assert queue.read(0, 100).tolist() == entries(0, 100).tolist()


def test_a_queue_may_begin_anywhere(queue):
    queue.put(1000, entries(1000, 3))
    assert queue.begin == 960
    assert queue.read(1000, 1003)["tags_code"].tolist() == [1000, 1001, 1002]


def test_scatter_writes_runs_and_leaves_holes(queue):
    numbers = np.array([0, 1, 5, 70, 71])
    queue.scatter(numbers, make_entries(numbers, np.ones(5), numbers))
    found = queue.read(0, 72)
    assert np.flatnonzero(found["size_bytes"]).tolist() == numbers.tolist()
    assert found["tags_code"][numbers].tolist() == numbers.tolist()


def test_scatter_of_nothing_makes_nothing(queue):
    queue.scatter(np.empty(0, np.int64), entries(0, 0))
    queue.put(5, entries(5, 0))
    assert os.listdir(queue.file.directory) == []


def test_cut_and_remove_before_count_entries(queue):
    queue.put(0, entries(0, 200))
    queue.cut(150)
    assert queue.read(149, 151)["size_bytes"].tolist() == [7, 0]
    assert (queue.remove_before(128), queue.begin) == (2, 128)


def test_a_reader_follows_the_writer(queue):
    queue.put(0, entries(0, 1))
    reader = ConsumeQueue(queue.file.directory, 64, "queue")
    queue.put(1, entries(1, 99))
    assert reader.read(0, 100)["tags_code"].tolist() == list(range(100))
