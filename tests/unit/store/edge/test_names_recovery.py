"""The dictionary and the ends table, lost or damaged in every way: made anew exactly, or refused by name."""

from __future__ import annotations

import shutil

import pytest

from checker.policy import Policy
from store.admin.repair import repair
from store.directory import Geometry, StoreDirectory
from store.edge.recovery import names
from store.edge.store import EdgeStore, End
from store.errors import Corrupt, IllegalName, NamesLost, StoreError
from store.inspect.verify.store import verify
from store.job.store import JobStore
from store.messages import Message
from store.records import OpKind
from store.tables.ends import Verdict
from store.tables.journals.audit import Audit, AuditRecord
from store.tables.journals.consumers import ConsumerKind, ConsumerRecord, Consumers
from store.tables.journals.names import Dictionary, NameKind
from streaming.settlement.settle import Settler, read_feed
from tests.support.service import SMALLEST, Service

SMALL = Geometry(64 * 1024, 64, 64, 64, 64)
NOW_MS = 1_700_000_000_000
NAMES = (["ga", "gb", "gsecret"], ["ta", "tb", "salaries"], [1, 1, 1])


def settle(job):
    Settler(job, Policy()).settle(read_feed(job.log, job.marker.half_cursor, job.marker.op_cursor), NOW_MS)


def fill(path, *, crash=False):
    edge, job = EdgeStore(path, geometry=SMALL, default_queues=1), JobStore(path)
    for group, topic in (("ga", "ta"), ("gb", "tb"), ("gsecret", "salaries")):
        halves = edge.prepare([Message(group, topic, b"%d" % n) for n in range(4)], NOW_MS)
        edge.end([End(halves[0], OpKind.COMMIT, group), End(halves[1], OpKind.ROLLBACK, group)], NOW_MS)
    settle(job)
    job.close()
    if crash:
        edge._release()
    else:
        edge.close()


def marks(edge):
    return [edge.end_of(half) for half in range(edge.half_begin, edge.half_end)]


MARKS = [2, 3, 0, 0] * 3


@pytest.fixture(params=[False, True], ids=["closed", "killed"])
def store(tmp_path, request):
    fill(tmp_path, crash=request.param)
    return tmp_path


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def assert_whole(path):
    with EdgeStore(path, default_queues=1) as edge, JobStore(path) as job:
        known = edge.dictionary
        assert (known.groups, known.topics, known.queues) == NAMES
        assert marks(edge) == MARKS
        assert edge.end([End(3, OpKind.COMMIT, "gb"), End(0, OpKind.ROLLBACK, "ga")], NOW_MS)[0].reason == "wrong group"
        assert edge.end([End(1, OpKind.COMMIT, "ga")], NOW_MS)[0].verdict is Verdict.CONFLICT
        edge.prepare([Message("new", "newer", b"x")], NOW_MS)
        assert (known.group_no("new"), known.topic_no("newer")) == (3, 3)
        settle(job)
    assert verify(path).problems == []


# --- the dictionary -------------------------------------------------------------------------------------------------------
def test_a_deleted_dictionary_is_learnt_again(store):
    (store / "dictionary").unlink()
    assert_whole(store)


def test_every_cut_dictionary_is_learnt_again(store, tmp_path_factory):
    whole = (store / "dictionary").read_bytes()
    for size in range(0, len(whole), 7):
        copy = tmp_path_factory.mktemp("copy") / "store"
        shutil.copytree(store, copy)
        (copy / "dictionary").write_bytes(whole[:size])
        assert_whole(copy)


def test_every_flipped_bit_of_the_dictionary_is_mended(store, tmp_path_factory):
    for at in range(0, (store / "dictionary").stat().st_size, 3):
        copy = tmp_path_factory.mktemp("copy") / "store"
        shutil.copytree(store, copy)
        flip(copy / "dictionary", at)
        assert_whole(copy)


def test_the_dictionary_of_another_store_is_refused(store, tmp_path_factory):
    other = tmp_path_factory.mktemp("other") / "dictionary"
    names = Dictionary(other, writable=True)
    for number in range(9):
        names.add_group(f"evil{number}")
        names.add_topic(f"public{number}")
    names.close()
    shutil.copy(other, store / "dictionary")
    with pytest.raises(NamesLost, match="another store"):
        EdgeStore(store)


def test_a_name_that_only_consumers_know_is_refused_and_an_older_copy_helps(tmp_path):
    fill(tmp_path)
    with EdgeStore(tmp_path) as edge:
        number = edge.add_group("readers")
        consumers = Consumers(tmp_path / "consumers", writable=True)
        consumers.append([ConsumerRecord(ConsumerKind.OFFSET, number, 0, 1)])
        consumers.close()
    old = (tmp_path / "dictionary").read_bytes()
    with EdgeStore(tmp_path) as edge:
        edge.prepare([Message("later", "latest", b"x")], NOW_MS)
    (tmp_path / "dictionary").unlink()
    for _ in range(2):  # a refusal changes nothing
        with pytest.raises(NamesLost, match="group 3"):
            EdgeStore(tmp_path)
    (tmp_path / "dictionary").write_bytes(old)
    with EdgeStore(tmp_path) as edge:
        assert edge.dictionary.groups == [*NAMES[0], "readers", "later"]
        assert edge.dictionary.topics == [*NAMES[1], "latest"]


def test_numbers_that_nothing_uses_are_not_given_again(tmp_path):
    fill(tmp_path)
    with EdgeStore(tmp_path, default_queues=1) as edge:
        edge.add_group("idle")
        edge.prepare([Message("last", "ta", b"x")], NOW_MS)
    (tmp_path / "dictionary").unlink()
    with EdgeStore(tmp_path, default_queues=1) as edge:
        assert edge.dictionary.groups == [*NAMES[0], "%lost-3", "last"]
        with pytest.raises(IllegalName, match="must not begin with %lost-"):
            edge.add_group("%lost-3")
        assert edge.add_group("idle") == 5


@pytest.mark.parametrize("queues", [1, 3, 7, 64])
def test_the_number_of_queues_is_found_again(tmp_path, queues):
    with EdgeStore(tmp_path, geometry=SMALL, default_queues=queues) as edge:
        for number in range(200):
            edge.prepare([Message("g", "t", b"x", {"KEYS": f"key{number}"} if number % 2 else {})], NOW_MS)
    (tmp_path / "dictionary").unlink()
    with EdgeStore(tmp_path, default_queues=4) as edge:
        assert edge.dictionary.queues == [queues]


def test_a_topic_whose_messages_are_all_gone_keeps_its_queues(tmp_path):
    service = Service(tmp_path / "store", SMALLEST, edge_options={"default_queues": 3})
    for number in range(90):
        service.commit(service.send_one(b"x" * 3000, topic="gone" if number < 9 else "stays"))
    service.settle()
    service.sleep(3 * 86_400)
    for _ in range(90):
        service.commit(service.send_one(b"y" * 3000, topic="stays"))
    service.settle()
    for _ in range(3):
        service.retain(86_400)
    assert service.edge.log.file.begin > 0
    service.close()
    (service.root / "dictionary").unlink()
    service.open()
    assert service.edge.dictionary.queues[0] == 3
    service.close()
    assert verify(service.root).problems == []


def test_names_behind_the_checkpoint_are_learnt_again(tmp_path):
    """Killed: the checkpoint knows less than the log."""
    fill(tmp_path)
    edge = EdgeStore(tmp_path, default_queues=1)
    size = (tmp_path / "dictionary").stat().st_size
    edge.prepare([Message("after", "checkpoint", b"x")], NOW_MS)
    edge._release()
    with (tmp_path / "dictionary").open("r+b") as file:
        file.truncate(size)
    with EdgeStore(tmp_path, default_queues=1) as edge:
        assert edge.dictionary.groups == [*NAMES[0], "after"]
        assert edge.dictionary.topics == [*NAMES[1], "checkpoint"]


# --- ends -----------------------------------------------------------------------------------------------------------------
def test_deleted_ends_are_worked_out(store):
    shutil.rmtree(store / "ends")
    assert_whole(store)


def test_ends_that_were_cut_off_are_worked_out(store):
    (path,) = (store / "ends/0").iterdir()
    path.write_bytes(path.read_bytes()[:5])
    assert_whole(store)


@pytest.mark.parametrize("at", range(12))
def test_a_flipped_mark_is_worked_out(tmp_path, at):
    fill(tmp_path)
    (path,) = (tmp_path / "ends/0").iterdir()
    flip(path, at)
    assert_whole(tmp_path)


def test_an_older_copy_of_ends_is_worked_out(tmp_path):
    with EdgeStore(tmp_path, geometry=SMALL, default_queues=1) as edge:
        edge.prepare([Message("g", "t", b"x")] * 4, NOW_MS)
    shutil.copytree(tmp_path / "ends", tmp_path.parent / "old-ends")
    with EdgeStore(tmp_path) as edge:
        edge.end([End(0, OpKind.COMMIT, "g"), End(1, OpKind.ROLLBACK, "g")], NOW_MS)
    shutil.rmtree(tmp_path / "ends")
    shutil.move(tmp_path.parent / "old-ends", tmp_path / "ends")
    with EdgeStore(tmp_path) as edge:
        assert marks(edge) == [2, 3, 0, 0]


# --- consumers and audit --------------------------------------------------------------------------------------------------
@pytest.fixture
def journals(tmp_path):
    fill(tmp_path)
    edge = EdgeStore(tmp_path)
    number = edge.add_group("gb")
    consumers, audit = Consumers(tmp_path / "consumers", writable=True), Audit(tmp_path / "audit", writable=True)
    for at in range(5):
        consumers.append([ConsumerRecord(ConsumerKind.OFFSET, number, 0, at)])
        audit.append(AuditRecord(NOW_MS, "ada", "resume", f"half {at}", "a test", "begun"))
    consumers.close()
    audit.close()
    edge.close()
    return tmp_path


@pytest.mark.parametrize("name", ["consumers", "audit"])
@pytest.mark.parametrize("harm", ["deleted", "emptied", "cut", "flipped", "last flipped", "older"])
def test_a_lost_or_damaged_journal_is_refused_by_name_and_left_as_it_is(journals, name, harm):
    path, whole = journals / name, (journals / name).read_bytes()
    harmed = bytearray(whole)
    harmed[{"flipped": 20, "last flipped": len(whole) - 2}.get(harm, 0)] ^= 1
    contents = {"emptied": b"", "cut": whole[: len(whole) // 2], "older": whole[: len(whole) // 5]}
    left = contents.get(harm, bytes(harmed))
    if harm == "deleted":
        path.unlink()
    else:
        path.write_bytes(left)
    for _ in range(2):
        with pytest.raises(Corrupt, match=f"/{name} at.*escrow store repair"):
            EdgeStore(journals)
    assert path.exists() == (harm != "deleted")
    assert harm == "deleted" or path.read_bytes() == left
    path.write_bytes(whole)
    EdgeStore(journals).close()


@pytest.mark.parametrize("name", ["consumers", "audit"])
def test_a_killed_edge_knows_damage_from_a_torn_tail(journals, name):
    EdgeStore(journals)._release()
    path, whole = journals / name, (journals / name).read_bytes()
    path.write_bytes(whole + whole[:11])
    EdgeStore(journals)._release()
    flip(path, 20)
    with pytest.raises(StoreError, match=name):
        EdgeStore(journals)
    path.unlink()
    with pytest.raises(StoreError, match="is missing"):
        EdgeStore(journals)


@pytest.mark.parametrize("harm", ["deleted", "flipped"])
def test_repair_goes_on_with_what_can_be_read_and_keeps_the_rest(journals, harm):
    path, whole = journals / "consumers", (journals / "consumers").read_bytes()
    if harm == "deleted":
        path.unlink()
    else:
        flip(path, 20)
    harmed = path.read_bytes() if path.exists() else b""
    told = repair(journals)
    assert list(told) == ["consumers"]
    assert told["consumers"]["records_left"] == (0 if harm == "deleted" else 4)
    if harmed:
        assert (journals / "lost+found" / "consumers.0").read_bytes() == harmed
    assert repair(journals) == {}
    with EdgeStore(journals):
        consumers = Consumers(path, writable=True)
        assert [each.offset for each in consumers.progress.values()] == ([] if harm == "deleted" else [4])
        consumers.close()
    assert len(whole) > len(path.read_bytes())


def test_a_number_that_cannot_be_makes_no_end_of_stand_ins(tmp_path):
    """Of a damaged row, say."""
    fill(tmp_path)
    gathered = names._Gathered(StoreDirectory(tmp_path), 1)
    gathered.from_records()
    gathered._see(NameKind.GROUP, 1 << 30)
    assert len(gathered.payloads()) < 2 * names.UNTOLD_MAX
