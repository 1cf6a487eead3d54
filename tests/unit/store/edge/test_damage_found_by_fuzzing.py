"""Damage that `make fuzz-store` found untold, each as small as it can be: no number and no place is given a second time, every
message stays where it was, and every refusal is a typed error."""

from __future__ import annotations

import os
import struct

import numpy as np
import pytest

from store.admin.backup import backup
from store.errors import Corrupt
from store.inspect.verify.store import verify
from store.io import journal
from store.io.pages import EDGE_MAGIC, EdgeSlot, PublishedPage
from store.messages import Message
from store.records import queue_key_of, queue_offset_of
from store.tables.journals.names import Dictionary
from tests.support.service import SMALLEST, Service

OPTIONS = {"default_queues": 2}


@pytest.fixture
def service(tmp_path):
    return Service(tmp_path / "store", SMALLEST, edge_options=OPTIONS)


def places_of(service: Service, *topics: str) -> set[tuple[int, int]]:
    messages = [Message("g", topic, topic.encode()) for topic in topics]
    appended = service.edge.append_messages(messages, service.now_ms)
    service.edge.wait(appended.ticket)
    return {(int(queue_key_of(each)), int(queue_offset_of(each))) for each in appended.positions}


def set_slot(root, slot: int, value: int) -> None:
    with (root / "edge.published").open("r+b") as file:
        file.seek(slot * 8)
        file.write(struct.pack("<q", value))


def test_an_end_of_the_page_that_lies_inside_a_frame_cuts_nothing(service):
    halves = [half for body in (b"one", b"two", b"three") for half in service.send(body)]
    end = service.edge.page[EdgeSlot.LOG_END]
    service.crash()
    set_slot(service.root, EdgeSlot.LOG_END, end - 7)
    service.open()
    assert [service.edge.read_half(half).body for half in halves] == [b"one", b"two", b"three"]
    assert service.edge.recovery.damage == []
    service.close()


def test_a_page_of_another_kind_tells_no_ends(tmp_path):
    np.full(512, 77, "<i8").tofile(tmp_path / "edge.published")
    page = PublishedPage(tmp_path / "edge.published", EDGE_MAGIC, writable=True)
    assert [page[slot] for slot in range(512)] == [EDGE_MAGIC] + [0] * 511


def test_swapped_half_and_op_queues_are_noticed(service):
    service.commit(*service.send(b"one", b"two"))
    places_of(service, "t", "t")
    service.close()
    half, op = (service.root / name / "0" / f"{0:020d}" for name in ("half", "op"))
    os.rename(half, half.with_name("x"))
    os.rename(op, half)
    os.rename(half.with_name("x"), op)
    service.open(rebuild=True)
    assert service.edge.read_half(1).body == b"two"
    assert len([reason for *_, reason in service.edge.recovery.damage if "leads to the frame of another" in reason]) == 2
    service.close()


def test_places_in_a_queue_of_which_nothing_is_left_are_not_given_again(service):
    service.edge.prepare([Message("g", "t", b"x")], service.now_ms)
    before = {place for _ in range(4) for place in places_of(service, "t", "u")}
    service.crash()
    with (service.root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.truncate(200)
    (service.root / "edge.checkpoint").unlink()
    service.open()
    after = {place for _ in range(4) for place in places_of(service, "t", "u")}
    assert not before & after
    service.close()


def test_a_catalogue_that_ends_a_queue_beyond_all_ops_is_passed_over(service):
    service.commit(*service.send(b"one"))
    service.settle()
    service.crash()
    (path,) = service.root.glob("transaction/generation-*/catalogue/*")
    with path.open("r+b") as file:
        file.seek(20)
        file.write(b"\x01")
    backup(service.root, service.root.with_name("backup"))
    service.open()
    assert all(offset < 10 for _, offset in places_of(service, "t"))
    assert "a catalogue ends queue" in " ".join(reason for *_, reason in service.edge.recovery.damage)
    service.close()


def test_verify_misses_ends_though_no_half_has_ended(service):
    service.send(b"one")
    service.close()
    assert verify(service.root).problems == []
    for path in (service.root / "ends" / "0").iterdir():
        path.unlink()
    assert "no file of their ends" in str(verify(service.root).problems)


@pytest.mark.parametrize("payload", [b"\x02" + bytes(7) + b"\x80" * 24, b"\x02"])
def test_another_file_in_the_place_of_the_dictionary_is_a_typed_error(service, payload):
    service.commit(*service.send(b"one"))
    service.close()
    (service.root / "dictionary").write_bytes(journal.encode_all([payload]))
    with pytest.raises(Corrupt, match="not a record of a name"):
        Dictionary(service.root / "dictionary")
    (service.root / "edge.checkpoint").unlink()
    service.open()
    assert service.edge.dictionary.topics == ["paid"]
    service.close()
