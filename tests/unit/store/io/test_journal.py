"""Journals: small records of any length, valid only whole and only where they were written."""

from __future__ import annotations

import errno
import os

import pytest

from store.errors import Corrupt, FlushFailed, StoreUnusable
from store.io import disk
from store.io.journal import Journal, survey


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


def flipped(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 0x40
    path.write_bytes(content)


def test_damage_before_a_valid_record_is_refused_and_nothing_is_cut(path):
    written(path, b"first", b"second")
    whole = written(path, b"third")
    for at in range(len(whole) - 8 - len(b"third")):
        flipped(path, at)
        damaged = path.read_bytes()
        journal = Journal(path, "journal", writable=True)
        with pytest.raises(Corrupt, match="escrow store repair"):
            journal.recover()
        journal.close()
        assert path.read_bytes() == damaged
        assert survey(path).payloads[-1] == b"third"
        path.write_bytes(whole)


def test_what_is_known_to_be_flushed_is_never_a_torn_tail(path):
    whole = written(path, b"first", b"second")
    flipped(path, len(whole) - 1)
    assert not survey(path).damaged  # for all anybody knows, its writer died
    assert survey(path, len(whole)).damaged
    path.write_bytes(whole[:13])
    assert survey(path, len(whole)).damaged
    path.write_bytes(b"")
    assert survey(path, len(whole)).damaged


@pytest.mark.parametrize("flushed", [1, 12, 100])
def test_a_sector_that_a_power_failure_took_is_a_torn_tail(path, flushed):
    """The first sector that was written to keeps what was flushed, and the rest of it reads as zeros; later ones are there."""
    journal = Journal(path, "audit", writable=True)
    journal.append([b"f" * 32] * flushed)
    end = journal.end
    journal.write([b"u" * 32] * 100)
    journal.close()
    content = bytearray(path.read_bytes())
    content[end : (end // 512 + 1) * 512] = bytes((end // 512 + 1) * 512 - end)
    path.write_bytes(content)
    again = Journal(path, "audit", writable=True)
    assert again.recover() == [b"f" * 32] * flushed
    again.close()


def test_a_page_that_a_power_failure_took_is_a_torn_tail(path):
    """Written without a flush, a later page may reach the disk and an earlier one not: it reads as zeros."""
    whole = written(path, b"a" * 100)
    written(path, *[b"b" * 1000] * 12)
    content = bytearray(path.read_bytes())
    content[4096:8192] = bytes(4096)
    path.write_bytes(content)
    journal = Journal(path, "journal", writable=True)
    assert journal.recover() == [b"a" * 100, *[b"b" * 1000] * 3]
    assert len(whole) < path.stat().st_size < 4096


def test_a_write_that_was_cut_short_leaves_no_record_behind_the_end(path, monkeypatch):
    journal = Journal(path, "journal", writable=True)
    journal.append([b"kept"])
    pwrite, passes = os.pwrite, []

    def short(fd, data, offset):
        passes.append(offset)
        if len(passes) > 1:
            raise OSError(errno.ENOSPC, "no space")
        return pwrite(fd, bytes(data)[:30], offset)

    monkeypatch.setattr(os, "pwrite", short)
    with pytest.raises(StoreUnusable):
        journal.append([b"1234567", b"7654321", b"x" * 100])
    monkeypatch.setattr(os, "pwrite", pwrite)
    journal.append([b"abcdefg"])  # as long as the first of those that failed
    journal.close()
    assert Journal(path, "journal", writable=True).recover() == [b"kept", b"abcdefg"]


def test_where_a_short_write_cannot_be_taken_back_nothing_more_is_written(path):
    journal = Journal(path, "journal", writable=True)
    journal.append([b"kept"])
    disk.arm("journal.write", "ENOSPC")
    real, journal._fd = journal._fd, os.open(path, os.O_RDONLY)  # cannot be shortened
    with pytest.raises(FlushFailed):
        journal.append([b"lost"])
    os.close(journal._fd)
    journal._fd = real
    with pytest.raises(FlushFailed, match="earlier failure"):
        journal.append([b"refused"])
    assert Journal(path, "journal").read_new() == [b"kept"]


def test_after_a_failed_flush_nothing_is_written_any_more(path):
    journal = Journal(path, "journal", writable=True)
    disk.arm("journal.flush", "EIO")
    with pytest.raises(FlushFailed):
        journal.append([b"doubtful"])
    disk.arm(None)
    with pytest.raises(FlushFailed, match="earlier failure"):
        journal.append([b"refused"])
