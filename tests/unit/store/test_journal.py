"""Journals: small records of any length, valid only whole and only where they were written."""

from __future__ import annotations

import pytest

from store import disk
from store.errors import Corrupt, FlushFailed
from store.journal import Journal, check_whole


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal"


def written(path, *payloads):
    journal = Journal(path, "journal", writable=True)
    journal.recover()
    journal.append(payloads)
    journal.close()
    return path.read_bytes()


def test_records_come_back_in_order(path):
    payloads = [b"a", b"bc" * 1000, b"\0"]
    written(path, *payloads)
    written(path, b"later")
    assert Journal(path, "journal").read_new() == [*payloads, b"later"]
    check_whole(path)


def test_a_reader_sees_only_what_is_new(path):
    writer = Journal(path, "journal", writable=True)
    reader = Journal(path, "journal")
    writer.append([b"a", b"b"])
    assert (reader.read_new(), reader.read_new()) == ([b"a", b"b"], [])
    writer.append([b"c"])
    assert reader.read_new() == [b"c"]


def test_a_missing_journal_is_empty_for_a_reader(path):
    assert Journal(path, "journal").read_new() == []
    assert not path.exists()


def test_a_torn_tail_of_any_length_is_cut_by_the_writer_and_passed_over_by_a_reader(path):
    whole = written(path, b"first")
    content = written(path, b"second record")
    for size in range(len(whole), len(content)):
        path.write_bytes(content[:size])
        assert Journal(path, "journal").read_new() == [b"first"]
        journal = Journal(path, "journal", writable=True)
        assert journal.recover() == [b"first"]
        assert path.read_bytes() == whole
        journal.close()


def test_every_flipped_byte_ends_the_journal_there(path):
    content = written(path, b"first", b"second")
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 0x40
        path.write_bytes(damaged)
        assert Journal(path, "journal").read_new() in ([], [b"first"])
        with pytest.raises(Corrupt):
            check_whole(path)


@pytest.mark.parametrize("zeros", [1, 8, 16, 4096])
def test_zeros_are_no_records(path, zeros):
    """What a power failure leaves of a file whose size was written and whose content was not."""
    path.write_bytes(bytes(zeros))
    journal = Journal(path, "journal", writable=True)
    assert journal.recover() == []
    journal.append([b"x"])
    assert Journal(path, "journal").read_new() == [b"x"]


def test_a_record_is_valid_only_where_it_was_written(path):
    content = written(path, b"same", b"same")
    path.write_bytes(content[: len(content) // 2] * 3)
    assert Journal(path, "journal").read_new() == [b"same"]


def test_an_append_that_failed_is_not_read_and_is_written_over(path):
    journal = Journal(path, "journal", writable=True)
    journal.append([b"a"])
    disk.arm("journal.flush", "EIO")
    with pytest.raises(FlushFailed):
        journal.append([b"doubtful"])
    disk.arm(None)


def test_replace_writes_it_anew(path):
    journal = Journal(path, "journal", writable=True)
    journal.append([b"a", b"b", b"c"])
    journal.replace([b"b"])
    journal.append([b"d"])
    assert Journal(path, "journal").read_new() == [b"b", b"d"]
