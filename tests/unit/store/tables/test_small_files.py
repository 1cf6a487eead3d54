"""The edge's small files: dedup, presence, cursors, audit, consumers, wake."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from store.errors import Corrupt, FlushFailed, StoreUnusable
from store.io import disk
from store.io.wakeup import Sleeper, Waker
from store.tables import dedup as dedup_module
from store.tables.dedup import SLOTS_MIN, Dedup, Known, digest_of
from store.tables.delivery_cursors import CHECK, PROPOSAL, QUARANTINE, Cursors
from store.tables.journals.audit import Audit, AuditRecord
from store.tables.journals.consumers import COMPACT_FROM, ConsumerKind, ConsumerRecord, Consumers
from store.tables.presence import SEGMENT_BYTES, Presence


# --- dedup --------------------------------------------------------------------------------------------------------------
@pytest.fixture
def dedup(tmp_path):
    return Dedup(tmp_path / "dedup", 3600, writable=True)


def put(dedup, group_no, key, known):
    """As the edge does it: room first."""
    dedup.ensure(1, known.stored_at_s)
    dedup.put_all({digest_of(group_no, key): known})


def test_a_key_belongs_to_its_group(dedup):
    put(dedup, 1, "k", Known(5, 100, 7))
    put(dedup, 2, "k", Known(6, 100, 8))
    assert dedup.get(digest_of(1, "k"), 100) == Known(5, 100, 7)
    assert dedup.get(digest_of(2, "k"), 100) == Known(6, 100, 8)
    assert dedup.get(digest_of(3, "k"), 100) is None
    assert dedup.get(digest_of(1, "K"), 100) is None


def test_half_0_is_known_too_and_the_newest_half_of_a_key_counts(dedup):
    put(dedup, 0, "", Known(0, 100, 0))
    assert dedup.get(digest_of(0, ""), 100) == Known(0, 100, 0)
    put(dedup, 0, "", Known(9, 200, 1))
    assert dedup.get(digest_of(0, ""), 200) == Known(9, 200, 1)


def test_the_window_includes_its_last_second(dedup):
    put(dedup, 0, "k", Known(1, 1000, 0))
    assert dedup.get(digest_of(0, "k"), 1000 + 3600) is not None
    assert dedup.get(digest_of(0, "k"), 1000 + 3601) is None


def test_keys_survive_reopening_over_several_files(dedup, tmp_path):
    for number in range(10):
        put(dedup, 0, f"k{number}", Known(number, number * 500, 0))
    dedup.flush()
    dedup.close()
    again = Dedup(tmp_path / "dedup", 10_000, writable=True)
    found = [again.get(digest_of(0, f"k{number}"), 5000) for number in range(10)]
    assert found == [Known(number, number * 500, 0) for number in range(10)]
    assert len(os.listdir(tmp_path / "dedup")) > 1


def test_files_whose_keys_are_all_older_than_the_window_go(dedup, tmp_path):
    for hour in range(100):
        put(dedup, 0, f"k{hour}", Known(hour, hour * 3600, 0))
    assert len(os.listdir(tmp_path / "dedup")) <= 6
    assert dedup.get(digest_of(0, "k99"), 99 * 3600) == Known(99, 99 * 3600, 0)


def test_a_table_is_never_more_than_half_full_and_grows(tmp_path, monkeypatch):
    monkeypatch.setattr(dedup_module, "SLOTS_MIN", 16)
    dedup = Dedup(tmp_path / "dedup", 3600, writable=True)
    for number in range(200):
        put(dedup, 7, f"k{number}", Known(number, 50, number))
    assert [dedup.get(digest_of(7, f"k{number}"), 50) for number in range(200)] == [
        Known(number, 50, number) for number in range(200)
    ]
    sizes = [path.stat().st_size // 32 for path in sorted((tmp_path / "dedup").iterdir())]
    assert sizes == [16, 128, 1024]


def test_room_is_made_for_as_many_keys_as_are_coming(tmp_path, monkeypatch):
    monkeypatch.setattr(dedup_module, "SLOTS_MIN", 16)
    dedup = Dedup(tmp_path / "dedup", 3600, writable=True)
    dedup.ensure(0, 50)
    assert os.listdir(tmp_path / "dedup") == []
    dedup.ensure(100, 50)
    for number in range(100):
        dedup.put_all({digest_of(7, f"k{number}"): Known(number, 50, number)})
    assert [path.stat().st_size // 32 for path in (tmp_path / "dedup").iterdir()] == [256]


def test_the_first_file_has_room_for_some_thousand_keys(dedup, tmp_path):
    put(dedup, 0, "k", Known(0, 0, 0))
    assert [path.stat().st_size for path in (tmp_path / "dedup").iterdir()] == [SLOTS_MIN * 32]


def test_what_a_crash_left_half_made_is_swept_away(tmp_path):
    (tmp_path / "dedup").mkdir()
    leftover = tmp_path / "dedup" / ("0" * 20 + disk.TEMPORARY_SUFFIX)
    leftover.write_bytes(b"")
    Dedup(tmp_path / "dedup", 60, writable=True)
    assert not leftover.exists()


# --- presence -----------------------------------------------------------------------------------------------------------
def test_presence_is_seen_by_another_reader_at_once(tmp_path):
    writer, reader = Presence(tmp_path / "presence", writable=True), Presence(tmp_path / "presence")
    assert reader.live(1000, 10, 3).tolist() == [False] * 3
    writer.seen(1, 1000)
    assert reader.live(1000, 10, 3).tolist() == [False, True, False]
    assert reader.live(1010, 10, 3).tolist() == [False, True, False]
    assert reader.live(1011, 10, 3).tolist() == [False, False, False]
    assert reader.live(995, 10, 3).tolist() == [False, True, False]  # who looks at the clock first?
    assert reader.live(989, 10, 3).tolist() == [False, False, False], "written by a clock that was ahead"


def test_presence_of_more_groups_than_one_file_holds(tmp_path):
    writer = Presence(tmp_path / "presence", writable=True)
    groups = SEGMENT_BYTES // 8
    for group_no in (0, groups - 1, groups, 2 * groups + 5):
        writer.seen(group_no, 77)
    found = Presence(tmp_path / "presence").last_seen(2 * groups + 6)
    assert [int(number) for number in found.nonzero()[0]] == [0, groups - 1, groups, 2 * groups + 5]
    assert len(os.listdir(tmp_path / "presence")) == 3


def test_nobody_was_ever_there(tmp_path):
    presence = Presence(tmp_path / "nowhere")
    assert presence.live(1, 1, 2).tolist() == [False, False]
    assert presence.last_seen(0).tolist() == []


# --- cursors ------------------------------------------------------------------------------------------------------------
def test_cursors_survive(tmp_path):
    cursors = Cursors(tmp_path / "edge.cursors", writable=True)
    cursors[CHECK], cursors[PROPOSAL], cursors[QUARANTINE] = 5, 6, 7
    again = Cursors(tmp_path / "edge.cursors", writable=True)
    assert [again[slot] for slot in (CHECK, PROPOSAL, QUARANTINE)] == [5, 6, 7]
    (tmp_path / "other").write_bytes(bytes(4096))
    with pytest.raises(Corrupt):
        Cursors(tmp_path / "other")


# --- audit --------------------------------------------------------------------------------------------------------------
def test_the_audit_keeps_everything_in_order_and_is_durable_before_it_answers(tmp_path):
    first, second = AuditRecord(1, "ada", "resume", "5", "ticket 7", "accepted"), AuditRecord(2, "ü", "x", "", "", "")
    audit = Audit(tmp_path / "audit", writable=True)
    with disk.recording() as passed:
        audit.append(first)
    assert passed == {"audit.write": 1, "audit.flush": 1}
    reader = Audit(tmp_path / "audit")
    audit.append(second)
    assert reader.records() == audit.records()
    assert [replace(each, prev="") for each in audit.records()] == [first, second]
    audit.close()
    assert Audit(tmp_path / "audit", writable=True).records() == reader.records()


def test_an_audit_record_that_could_not_be_stored_is_not_listed(tmp_path):
    audit = Audit(tmp_path / "audit", writable=True)
    disk.arm("audit.write", "ENOSPC")
    with pytest.raises(StoreUnusable):
        audit.append(AuditRecord(1, "a", "b", "c", "d", "e"))
    disk.arm(None)
    assert audit.records() == []


# --- consumers ----------------------------------------------------------------------------------------------------------
def record(kind, queue_offset, group_no=1, queue_key=9, **rest):
    return ConsumerRecord(kind, group_no, queue_key, queue_offset, **rest)


def test_progress_of_each_group_in_each_queue_survives(tmp_path):
    consumers = Consumers(tmp_path / "consumers", writable=True)
    receipt = record(ConsumerKind.RECEIPT, 12, attempts=2, visible_at_ms=1 << 40)
    consumers.append([record(ConsumerKind.OFFSET, 10), receipt, record(ConsumerKind.DONE, 13)])
    consumers.append([record(ConsumerKind.OFFSET, 3, group_no=2)])
    for found in (consumers, Consumers(tmp_path / "consumers"), Consumers(tmp_path / "consumers", writable=True)):
        assert found.progress[1, 9].offset == 10
        assert found.progress[1, 9].ahead == {12: receipt, 13: record(ConsumerKind.DONE, 13)}
        assert found.progress[2, 9].offset == 3


def test_an_offset_ends_all_records_before_it(tmp_path):
    consumers = Consumers(tmp_path / "consumers", writable=True)
    consumers.append([record(ConsumerKind.RECEIPT, at) for at in (3, 4, 5)])
    consumers.append([record(ConsumerKind.OFFSET, 5)])
    assert list(consumers.progress[1, 9].ahead) == [5]
    assert consumers.in_force() == [record(ConsumerKind.OFFSET, 5), record(ConsumerKind.RECEIPT, 5)]


def test_a_seek_ends_all_records_about_its_queue(tmp_path):
    consumers = Consumers(tmp_path / "consumers", writable=True)
    consumers.append([record(ConsumerKind.OFFSET, 9), record(ConsumerKind.DONE, 12), record(ConsumerKind.RECEIPT, 13)])
    consumers.append([record(ConsumerKind.OFFSET, 4, queue_key=10), record(ConsumerKind.SEEK, 3)])
    for found in (consumers, Consumers(tmp_path / "consumers")):
        assert (found.progress[1, 9].offset, found.progress[1, 9].ahead) == (3, {})
        assert found.progress[1, 10].offset == 4
        assert found.in_force()[0] == record(ConsumerKind.OFFSET, 3)


def test_what_was_written_without_a_flush_is_read_by_the_next_process(tmp_path):
    consumers = Consumers(tmp_path / "consumers", writable=True)
    disk.arm("consumers.flush", "EIO")
    consumers.write([record(ConsumerKind.RECEIPT, at, attempts=1) for at in (3, 4)])
    disk.arm(None)
    assert list(Consumers(tmp_path / "consumers").progress[1, 9].ahead) == [3, 4]
    consumers.flush()


def test_a_replacement_that_failed_leaves_the_journal_in_use(tmp_path):
    consumers = Consumers(tmp_path / "consumers", writable=True)
    consumers.append([record(ConsumerKind.OFFSET, 5)])
    disk.arm("consumers.replace", "ENOSPC")
    with pytest.raises(StoreUnusable) as caught:
        consumers.compact()
    assert not isinstance(caught.value, FlushFailed)
    disk.arm("consumers.flush_directory", "EIO")
    with pytest.raises(FlushFailed):
        consumers.compact()
    disk.arm(None)


def test_the_last_record_about_an_entry_counts(tmp_path):
    consumers = Consumers(tmp_path / "consumers", writable=True)
    consumers.append([record(ConsumerKind.RECEIPT, 3, attempts=1), record(ConsumerKind.DONE, 3)])
    consumers.append([record(ConsumerKind.RECEIPT, 3, attempts=2)])
    assert consumers.progress[1, 9].ahead[3].attempts == 2


def test_a_journal_with_far_more_records_than_are_in_force_is_written_anew(tmp_path):
    consumers = Consumers(tmp_path / "consumers", writable=True)
    for start in range(0, COMPACT_FROM + 1000, 1000):
        consumers.append([record(ConsumerKind.OFFSET, start + at) for at in range(1000)])
    last = consumers.progress[1, 9].offset
    assert (tmp_path / "consumers").stat().st_size < 2000 * 40
    assert Consumers(tmp_path / "consumers").progress[1, 9].offset == last


def test_a_record_that_could_not_be_stored_does_not_count(tmp_path):
    consumers = Consumers(tmp_path / "consumers", writable=True)
    disk.arm("consumers.flush", "EIO")
    with pytest.raises(StoreUnusable):
        consumers.append([record(ConsumerKind.OFFSET, 10)])
    disk.arm(None)
    assert consumers.progress == {}


# --- wake ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("depth", [0, 5], ids=["short path", "path longer than a socket's name"])
def test_whoever_waits_is_woken_and_all_wakes_are_taken_together(tmp_path, depth):
    directory = tmp_path.joinpath(*["d" * 40] * depth)
    directory.mkdir(parents=True, exist_ok=True)
    sleeper, waker = Sleeper(directory / "job.wake"), Waker(directory / "job.wake")
    assert sleeper.wait(0) is False
    for _ in range(3):
        waker.wake()
    assert (sleeper.wait(0), sleeper.wait(0)) == (True, False)
    sleeper.close()
    waker.close()


def test_waking_nobody_or_somebody_too_slow_is_no_error(tmp_path):
    waker = Waker(tmp_path / "job.wake")
    waker.wake()
    sleeper = Sleeper(tmp_path / "job.wake")
    for _ in range(10_000):
        waker.wake()
    assert (sleeper.wait(0), sleeper.wait(0)) == (True, False)
    again = Sleeper(tmp_path / "job.wake")  # takes the place over
    waker.wake()
    assert (again.wait(0), sleeper.wait(0)) == (True, False)
    for part in (sleeper, again, waker):
        part.close()
