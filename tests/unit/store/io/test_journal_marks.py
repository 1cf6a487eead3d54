"""Marks of journals: what was flushed is known after a kill, nothing that was not flushed is ever claimed."""

from __future__ import annotations

import pytest

from store.admin.repair import repair
from store.directory import StoreDirectory
from store.errors import Corrupt, StoreUnusable
from store.io import disk, journal, journal_marks
from store.io.journal import Journal
from store.io.journal_marks import Mark, MarkWriter
from store.io.pages import EDGE_MAGIC, EdgeSlot, PublishedPage
from store.tables.journals.consumers import ConsumerKind, ConsumerRecord, Consumers

SLOT = EdgeSlot.CONSUMERS_END


@pytest.fixture
def root(tmp_path):
    StoreDirectory(tmp_path, create=True)
    PublishedPage(tmp_path / "edge.published", EDGE_MAGIC, writable=True)
    return tmp_path


def open_journal(root) -> Journal:
    return Journal(root / "consumers", "consumers", writable=True, mark_slot=SLOT)


def written(root, *payloads: bytes) -> Journal:
    made = open_journal(root)
    made.recover()
    for payload in payloads:
        made.append([payload])
    return made


def test_a_flush_is_marked_and_a_write_is_not(root):
    made = written(root, b"one")
    flushed = Mark(made.end, made.crc)
    made.write([b"two"])
    assert journal_marks.read(root, SLOT) == flushed
    made.flush()
    assert journal_marks.read(root, SLOT) == Mark(made.end, made.crc)


def test_what_is_written_during_a_flush_is_not_marked(root, monkeypatch):
    made = written(root, b"one")
    made.write([b"two"])
    covered, flush = Mark(made.end, made.crc), disk.flush

    def slow(*arguments) -> None:
        flush(*arguments)
        made.write([b"three"])

    monkeypatch.setattr(disk, "flush", slow)
    made.flush()
    assert journal_marks.read(root, SLOT) == covered != Mark(made.end, made.crc)


@pytest.mark.parametrize("keep", [0, 5, 11, 16, 21])
def test_a_journal_shorter_than_its_mark_is_refused_and_not_cut(root, keep):
    written(root, b"one", b"two").close()
    content = (root / "consumers").read_bytes()
    (root / "consumers").write_bytes(content[:keep])
    with pytest.raises(Corrupt, match=r"consumers.*flushed \(edge.published\).*escrow store repair"):
        open_journal(root).recover()
    assert (root / "consumers").read_bytes() == content[:keep]


def test_another_journal_of_valid_records_is_refused(root):
    written(root, b"one", b"two").close()
    (root / "consumers").write_bytes(journal.encode_all([b"one", b"six", b"ten"]))
    with pytest.raises(Corrupt, match="not those that were flushed"):
        open_journal(root).recover()


def test_what_was_not_flushed_is_still_a_torn_tail(root):
    made = written(root, b"one")
    made.write([b"two"])
    made.close()
    content = (root / "consumers").read_bytes()
    (root / "consumers").write_bytes(content[:-1])
    assert open_journal(root).recover() == [b"one"]


@pytest.mark.parametrize("point", ["consumers.replace", "consumers.flush_directory", "published.flush"])
def test_a_failed_compaction_leaves_no_mark_of_another_file(root, point):
    made = written(root, b"one", b"two")
    disk.arm(point, "EIO")
    try:
        with pytest.raises(StoreUnusable):
            made.replace([b"two"])
    finally:
        disk.arm(None)
    assert journal_marks.read(root, SLOT) is None
    assert open_journal(root).recover()[-1] == b"two"


def test_a_compaction_is_marked(root):
    made = written(root, b"one", b"two")
    made.replace([b"two"])
    assert journal_marks.read(root, SLOT) == Mark(11, made.crc)
    made.append([b"three"])
    assert open_journal(root).recover() == [b"two", b"three"]


@pytest.mark.parametrize("bit", range(0, 128, 7))
def test_a_damaged_mark_says_nothing(root, bit):
    """The page is volatile: damage of it refuses no sound journal."""
    written(root, b"one", b"two").close()
    content = bytearray((root / "edge.published").read_bytes())
    content[SLOT * 8 + bit // 8] ^= 1 << bit % 8
    (root / "edge.published").write_bytes(content)
    assert journal_marks.read(root, SLOT) is None
    assert open_journal(root).recover() == [b"one", b"two"]


def test_an_older_mark_is_still_true(root):
    made = written(root, b"one")
    older = (root / "edge.published").read_bytes()
    made.append([b"two"])
    (root / "edge.published").write_bytes(older)
    assert open_journal(root).recover() == [b"one", b"two"]


def test_a_store_without_a_page_has_no_marks(tmp_path):
    made = Journal(tmp_path / "consumers", "consumers", writable=True, mark_slot=SLOT)
    made.append([b"one"])
    made.replace([b"two"])
    MarkWriter(tmp_path, SLOT).clear()
    assert journal_marks.read(tmp_path, SLOT) is None


def test_the_edge_keeps_marks_when_it_opens(root):
    written(root, b"one").close()
    before = journal_marks.read(root, SLOT)
    PublishedPage(root / "edge.published", EDGE_MAGIC, writable=True)
    assert journal_marks.read(root, SLOT) == before is not None


def test_repair_takes_what_is_left_and_marks_it_anew(root):
    consumers = Consumers(root / "consumers", writable=True)
    for number in range(3):
        consumers.append([ConsumerRecord(ConsumerKind.OFFSET, number, 64, 1)])
    consumers.close()
    content = (root / "consumers").read_bytes()
    (root / "consumers").write_bytes(content[:-1])
    told = repair(root)["consumers"]
    assert (told["records_left"], told["damaged_at"]) == (2, 80)
    assert "120 bytes were flushed" in told["problem"]
    assert len(Consumers(root / "consumers", writable=True).progress) == 2
    assert repair(root) == {}
