"""The unsettled tail, case by case; tests/property/ingest holds it against the settled queues over random histories."""

from __future__ import annotations

import pytest

from ingest.consuming.reading import tail as tail_module
from ingest.consuming.reading.settled_queues import Settled
from ingest.consuming.reading.tail import Tail
from runtime.clock import this_boot
from store.edge.store import EdgeStore, Head
from store.job.store import JobStore
from store.messages import Membership, Message
from store.read.readers import LogReader
from store.records import OpKind
from store.tables import delivery_cursors
from store.tables.delivery_cursors import Cursors
from store.tables.ends import Verdict
from tests.support.service import Service

BOOT = 7


@pytest.fixture
def service(tmp_path):
    with Service(tmp_path / "store", edge_options={"default_queues": 1}) as made:
        yield made


def open_tail(service, boot=BOOT):
    cursors = Cursors(service.root / "edge.cursors", writable=True)
    return Tail(LogReader(service.edge.directory), Settled(service.edge.directory, cursors, boot))


def known_boot(service):
    Cursors(service.root / "edge.cursors", writable=True)[delivery_cursors.BOOT] = BOOT
    return open_tail(service)


def look(tail):
    tail.look_at_job()
    grown, more = tail.look_at_ops()
    while more:
        again, more = tail.look_at_ops()
        grown |= again
    return grown


def bodies(tail, key=0):
    begin, end = tail.extent(key)
    found, at = [], begin
    while at < end:
        entries = tail.entries(key, at, end)
        found += [tail.frame(key, *entry[:2]).body for entry in entries]
        at += len(entries)
    return found


def send(service, *each, topic="paid"):
    appended = service.edge.append_messages([Message("orders", topic, body) for body in each], service.now_ms)
    service.edge.wait(appended.ticket)


def test_halves_and_messages_in_the_order_of_their_ops(service):
    tail = known_boot(service)
    first, second, third = service.send(b"1", b"2", b"3")
    service.commit(third)
    send(service, b"m")
    service.roll_back(second)
    service.commit(first)
    assert look(tail) == {0}
    assert bodies(tail) == [b"3", b"m", b"1"]
    assert tail.held_ops == 4
    service.settle()
    look(tail)
    assert tail.held_ops == 0
    assert bodies(tail) == [b"3", b"m", b"1"]


def test_tags_are_those_of_the_message(service):
    tail = known_boot(service)
    service.commit(*service.send(b"1", properties={"TAGS": "a"}))
    appended = service.edge.append_messages([Message("orders", "paid", b"2", {"TAGS": "b"})], service.now_ms)
    service.edge.wait(appended.ticket)
    look(tail)
    unsettled = tail.entries(0, 0, 2)
    assert [tags for *_, tags in unsettled] == [ord("a"), ord("b")]
    service.settle()
    look(tail)
    assert tail.entries(0, 0, 2) == unsettled


def test_what_is_not_flushed_is_not_there(service):
    tail = known_boot(service)
    appended = service.edge.append_messages([Message("orders", "paid", b"1")], service.now_ms)
    look(tail)
    assert bodies(tail) == []
    service.edge.wait(appended.ticket)
    look(tail)
    assert bodies(tail) == [b"1"]


def test_it_holds_no_more_than_it_may(service, monkeypatch):
    monkeypatch.setattr(tail_module, "OPS_MAX", 5)
    tail = known_boot(service)
    send(service, *[b"%d" % n for n in range(8)])
    look(tail)
    assert bodies(tail) == [b"0", b"1", b"2", b"3", b"4"]
    service.settler.settle(service.feed(2), service.now_ms)
    look(tail)
    assert bodies(tail) == [b"%d" % n for n in range(7)]
    service.settle()
    look(tail)
    assert bodies(tail) == [b"%d" % n for n in range(8)]


def damage(service, op_offset):
    at, _, _ = service.edge.op_queue.entry(op_offset)
    with (service.root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(at + 20)
        file.write(b"\xff\xff")


def test_a_corrupt_op_ends_what_may_be_served_until_it_is_settled(service):
    tail = known_boot(service)
    send(service, b"0", b"1", b"2")
    damage(service, 1)
    look(tail)
    assert bodies(tail) == [b"0"]
    send(service, b"3")
    service.settler.settle(service.feed(3), service.now_ms)
    look(tail)
    assert tail.extent(0) == (0, 4)
    assert tail.entries(0, 1, 2) == [(0, 0, 0)]
    assert [tail.frame(0, *tail.entries(0, at, at + 1)[0][:2]).body for at in (0, 2, 3)] == [b"0", b"2", b"3"]


def test_a_commit_that_the_job_will_not_take_is_not_served(service):
    """The roll-back was settled; then its op was lost, and the edge, which knows only what can be read, accepts a commit."""
    half = service.send_one(b"1")
    service.roll_back(half)
    service.settle()
    damage(service, 0)
    service.edge.reopen(0)
    (answer,) = service.commit(half)
    assert answer.verdict is Verdict.ACCEPTED
    tail = known_boot(service)
    look(tail)
    assert bodies(tail) == []
    assert tail.gaps == 1
    send(service, b"2")
    service.settle()
    look(tail)
    assert [size for _, size, _ in tail.entries(0, tail.extent(0)[0], tail.extent(0)[1])][-1] > 0


def test_discarded_resumed_and_committed_at_once(service):
    tail = known_boot(service)
    half = service.send_one(b"1")
    from store.records import OpKind

    service.operate(half, OpKind.DISCARD_MAX)
    service.settle()
    service.operate(half, OpKind.RESUME, OpKind.COMMIT)
    look(tail)
    assert bodies(tail) == [b"1"]


def test_without_a_job_everything_is_tail(tmp_path):
    with EdgeStore(tmp_path / "store", geometry=None, default_queues=1) as edge:
        cursors = Cursors(tmp_path / "store" / "edge.cursors", writable=True)
        tail = Tail(LogReader(edge.directory), Settled(edge.directory, cursors, BOOT))
        edge.wait(edge.append_messages([Message("orders", "paid", b"1")], 1).ticket)
        look(tail)
        assert bodies(tail) == [b"1"]
        assert cursors[delivery_cursors.BOOT] == BOOT  # whatever a job makes now is of this boot
        tail.close()


def test_after_another_boot_nothing_is_served_before_the_job_gives_a_sign(service):
    send(service, b"1")
    service.settle()
    tail = open_tail(service, boot=BOOT + 1)
    look(tail)
    assert bodies(tail) == []
    look(tail)
    assert bodies(tail) == []
    service.job.heartbeat(5)
    look(tail)
    assert bodies(tail) == [b"1"]
    again = open_tail(service, boot=BOOT + 1)
    look(again)
    assert bodies(again) == [b"1"]


def test_the_system_tells_its_boot():
    assert this_boot() == this_boot() > 0


def test_a_rebuilt_job_is_followed(service):
    tail = known_boot(service)
    send(service, *[b"%d" % n for n in range(100)])
    service.settler.settle(service.feed(70), service.now_ms)
    look(tail)
    service.job.close()
    service.job = JobStore(service.root, rebuild=True)
    look(tail)
    assert bodies(tail) == [b"%d" % n for n in range(100)]


def test_a_job_that_begins_further_back_is_followed(service):
    tail = known_boot(service)
    send(service, *[b"%d" % n for n in range(10)])
    service.settle()
    look(tail)
    from store.io.pages import JOB_MAGIC, JobSlot, PublishedPage

    PublishedPage(service.root / "job.published", JOB_MAGIC, writable=True)[JobSlot.OP_CURSOR] = 3
    look(tail)
    assert tail.held_ops == 7
    assert bodies(tail) == [b"%d" % n for n in range(10)]


def test_a_message_whose_file_retention_took_since_is_passed_over_for_good(service):
    """Unlike one that cannot be read just now, for which `frame` raises."""
    send(service, *[b"x" * 1000] * 40)
    send(service, *[b"x" * 1000] * 40)
    service.settle()
    tail = known_boot(service)
    look(tail)
    old = tail.entries(0, 0, 1)[0]
    service.sleep(2 * 86_400)
    send(service, *[b"x" * 1000] * 40)
    service.settle()
    assert sum(service.retain(86_400)["commitlog"] for _ in range(2)) > 0
    assert tail.frame(0, *old[:2]) is None


def transaction(service, *each):
    """A head and its members; the head's half_offset."""
    messages = [Message("orders", "paid", each[0])]
    messages += [Message("orders", "paid", body, member=Membership(-at, at)) for at, body in enumerate(each[1:], 1)]
    return service.edge.prepare(messages, service.now_ms)[0]


@pytest.mark.parametrize("ops_at_once", [1, 2, 1024])
@pytest.mark.parametrize("settled", [False, True])
def test_members_are_served_with_their_head(service, monkeypatch, ops_at_once, settled):
    monkeypatch.setattr(tail_module, "OPS_AT_ONCE", ops_at_once)
    first, second = transaction(service, b"1", b"2", b"3"), transaction(service, b"4", b"5")
    if settled:
        service.settle()  # the rows are there, and say MEMBER
    tail = known_boot(service)
    service.end(first, OpKind.COMMIT, members=2, joint=(Head(second, 1),))
    look(tail)
    assert bodies(tail) == [b"1", b"2", b"3", b"4", b"5"]
    service.settle()
    look(tail)
    assert (bodies(tail), tail.gaps) == ([b"1", b"2", b"3", b"4", b"5"], 0)
