"""Transactions of many messages, names and joint ends, rule by rule; tests/property/store holds them against a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from store.directory import TRANSACTIONS, StoreDirectory
from store.edge.removal import remove_topics
from store.edge.store import EdgeStore, Head, Limits
from store.errors import (
    FormatTooNew,
    InvalidRecord,
    JobTooOld,
    NotAdded,
    NoTransaction,
    OrdinalTaken,
    TransactionEnded,
    TransactionTooLarge,
)
from store.inspect.verify.store import verify
from store.io.pages import JobSlot
from store.messages import Membership, Message
from store.read.readers import LogReader
from store.records import OpKind, State, Via, state_of
from store.tables.ends import Verdict
from tests.support.service import Service, read_topic

HOUR_S = 3600


@pytest.fixture
def service(tmp_path: Path):
    options = {"default_queues": 1, "transaction_limits": Limits(4, 40), "name_window_s": HOUR_S}
    with Service(tmp_path / "store", edge_options=options) as made:
        yield made
    assert verify(tmp_path / "store").problems == []


def begin(service: Service, *bodies: bytes, name: str = "", group: str = "orders", topic: str = "paid") -> list[int]:
    head, *members = bodies
    messages = [Message(group, topic, head, name=name)]
    messages += [Message(group, topic, body, member=Membership(-at, at)) for at, body in enumerate(members, 1)]
    return list(service.edge.prepare(messages, service.now_ms))


def add(service: Service, head: int, ordinal: int, body: bytes, group: str = "orders", **rest) -> int:
    member = Message(group, "paid", body, member=Membership(head, ordinal), **rest)
    (offset,) = service.edge.prepare([member], service.now_ms)
    return offset


def bodies(service: Service, topic: str = "paid") -> list[bytes]:
    service.settle()
    return [each.body for each in read_topic(service.root, topic)]


def needs(service: Service) -> set[str]:
    return set(StoreDirectory(service.root).needs)


def test_all_of_them_in_the_order_they_were_added(service: Service):
    head, *_ = begin(service, b"0", b"1")
    add(service, head, 3, b"3")
    add(service, head, 2, b"2")
    assert service.end(head, OpKind.COMMIT, members=3).verdict is Verdict.ACCEPTED
    assert bodies(service) == [b"0", b"1", b"2", b"3"]
    assert (service.edge.op_end, service.job.marker.pending, service.job.marker.totals["commits"]) == (4, 0, 1)


def test_none_of_them(service: Service):
    head, *_ = begin(service, b"0", b"1")
    assert service.end(head, OpKind.ROLLBACK).verdict is Verdict.ACCEPTED
    assert bodies(service) == []
    assert service.job.marker.pending == 0


def test_only_those_that_the_commit_lists(service: Service):
    head, *_ = begin(service, b"0", b"1", b"2")
    assert service.end(head, OpKind.COMMIT, members=1).verdict is Verdict.ACCEPTED
    assert bodies(service) == [b"0", b"1"]


def test_a_store_that_uses_none_of_it_stays_of_format_1(service: Service):
    service.commit(*service.send(b"1", b"2"))
    assert bodies(service) == [b"1", b"2"]
    assert needs(service) == set()
    assert not (service.root / "names").exists()


@pytest.mark.parametrize("what", ["member", "name", "joint"])
def test_the_first_use_raises_the_format(service: Service, what: str):
    if what == "member":
        begin(service, b"0", b"1")
    elif what == "name":
        begin(service, b"0", name="daily")
    else:
        first, second = service.send(b"1", b"2")
        service.end(first, OpKind.COMMIT, joint=(Head(second),))
    assert needs(service) == {TRANSACTIONS}


def test_a_release_that_does_not_know_it_refuses_by_its_name(service: Service, monkeypatch: pytest.MonkeyPatch):
    begin(service, b"0", b"1")
    with monkeypatch.context() as older:
        older.setattr("store.directory.FEATURES", frozenset())
        with pytest.raises(FormatTooNew, match="needs transactions"):
            StoreDirectory(service.root)


def test_an_older_job_that_runs_is_in_the_way(service: Service):
    service.job.page[JobSlot.FEATURES] = 0
    first, second = service.send(b"1", b"2")
    with pytest.raises(JobTooOld, match="start the job of this release"):
        add(service, first, 1, b"x")
    answer = service.end(first, OpKind.COMMIT, joint=(Head(second),))
    assert (answer.verdict, needs(service)) == (Verdict.REFUSED, set())
    service.job.page[JobSlot.FEATURES] = 1
    add(service, first, 1, b"x")
    assert needs(service) == {TRANSACTIONS}


def test_the_same_ordinal_again_is_the_same_message(service: Service):
    head, member = begin(service, b"0", b"1")
    assert add(service, head, 1, b"1") == member
    with pytest.raises(OrdinalTaken, match="1 is taken"):
        add(service, head, 1, b"other")
    with pytest.raises(OrdinalTaken):
        add(service, head, 1, b"1", properties={"KEYS": "k"})
    assert service.edge.half_end == 2


def test_a_request_repeated_whole_leads_to_the_same_halves(service: Service):
    batch = [Message("orders", "paid", b"0", dedup_key="k"), Message("orders", "paid", b"1", member=Membership(-1, 1))]
    first = list(service.edge.prepare(batch, service.now_ms))
    assert list(service.edge.prepare(batch, service.now_ms)) == first


def test_what_is_not_added(service: Service):
    head, member = begin(service, b"0", b"1")
    for wrong, error in (
        (lambda: add(service, 99, 1, b"x"), NoTransaction),
        (lambda: add(service, head, 2, b"x", group="others"), NoTransaction),
        (lambda: add(service, member, 1, b"x"), NoTransaction),
        (lambda: add(service, head, 0, b"x"), InvalidRecord),
        (lambda: add(service, head, 2, b"x", name="n"), InvalidRecord),
        (lambda: add(service, head, 2, b"x", dedup_key="k"), InvalidRecord),
        (lambda: add(service, head, 2, b"x" * 39), TransactionTooLarge),
    ):
        with pytest.raises(error):
            wrong()
    add(service, head, 2, b"2")
    add(service, head, 3, b"3")
    with pytest.raises(TransactionTooLarge, match="transactionMessagesMax"):
        add(service, head, 4, b"4")
    service.end(head, OpKind.COMMIT, members=3)
    with pytest.raises(TransactionEnded, match="committed"):
        add(service, head, 3, b"3")
    assert issubclass(TransactionEnded, NotAdded)


def test_an_ordinary_message_belongs_to_no_transaction(service: Service):
    head, *_ = service.send(b"0")
    with pytest.raises(InvalidRecord, match="an ordinary message has none"):
        service.edge.append_messages([Message("orders", "paid", b"x", member=Membership(head, 1))], service.now_ms)


def test_the_limits_hold_after_a_restart(service: Service):
    head, *_ = begin(service, b"0", b"1", b"2", b"3")
    service.restart(clean=True)
    with pytest.raises(TransactionTooLarge):
        add(service, head, 4, b"4")
    assert service.edge.members_of(head) == [(1, head + 1), (2, head + 2), (3, head + 3)]


def test_a_commit_has_to_count_its_members(service: Service):
    head, *_ = begin(service, b"0", b"1")
    add(service, head, 3, b"3")
    for count, reason in ((None, "it has 2 members"), (2, "none with ordinal 2"), (3, "none with ordinal 2")):
        answer = service.end(head, OpKind.COMMIT, members=count)
        assert (answer.verdict, reason in answer.reason) == (Verdict.REFUSED, True)
    answer = service.end(head, OpKind.COMMIT, group=None, via=Via.OPERATOR)
    assert (answer.verdict, bodies(service)) == (Verdict.ACCEPTED, [b"0", b"1", b"3"])


def test_a_member_does_not_end_alone(service: Service):
    head, member = begin(service, b"0", b"1")
    for kind in (OpKind.COMMIT, OpKind.ROLLBACK, OpKind.UNKNOWN, OpKind.RESUME):
        answer = service.end(member, kind)
        assert (answer.verdict, answer.reason, answer.other) == (Verdict.REFUSED, "member", head)


def test_many_plain_ends_beside_a_head_with_members(service: Service):
    head, *_ = begin(service, b"0", b"1")
    plain = service.send(*[b"p"] * 9)
    answers = service.commit(head, *plain)
    assert [answer.verdict for answer in answers] == [Verdict.REFUSED, *[Verdict.ACCEPTED] * 9]


def test_a_discarded_transaction_is_resumed_whole(service: Service):
    head, *_ = begin(service, b"0", b"1")
    service.end(head, OpKind.DISCARD_MAX, group=None, via=Via.CHECKER)
    service.settle()
    service.restart(clean=False)
    service.operate(head, OpKind.RESUME)
    assert service.end(head, OpKind.COMMIT, members=1).verdict is Verdict.ACCEPTED
    assert bodies(service) == [b"0", b"1"]


def test_jointly_all_or_none(service: Service):
    first, *_ = begin(service, b"a0", b"a1")
    (second,) = begin(service, b"b0")
    (third,) = begin(service, b"c0", group="others")
    answer = service.end(first, OpKind.COMMIT, members=1, joint=(Head(second), Head(third)))
    assert (answer.verdict, answer.reason, answer.other) == (Verdict.REFUSED, "wrong group", third)
    answer = service.end(first, OpKind.COMMIT, members=1, joint=(Head(second), Head(99)))
    assert (answer.verdict, answer.other) == (Verdict.REFUSED, 99)
    assert service.end(first, OpKind.COMMIT, members=1, joint=(Head(first, 1),)).reason == "one of them is named twice"
    assert bodies(service) == []
    assert service.end(first, OpKind.COMMIT, members=1, joint=(Head(second),)).verdict is Verdict.ACCEPTED
    assert service.end(first, OpKind.COMMIT, members=1, joint=(Head(second),)).verdict is Verdict.ALREADY
    (fourth,) = begin(service, b"d0")
    answer = service.end(fourth, OpKind.ROLLBACK, joint=(Head(second),))
    assert (answer.verdict, answer.reason, answer.other) == (Verdict.CONFLICT, "already committed", second)
    assert bodies(service) == [b"a0", b"a1", b"b0"]


def test_one_of_a_name_is_committed(service: Service):
    (first,) = begin(service, b"1", name="daily")
    (second, *_) = begin(service, b"2", b"3", name="daily")
    (third,) = begin(service, b"4", name="daily", group="others")
    assert service.end(first, OpKind.COMMIT).verdict is Verdict.ACCEPTED
    for _ in range(2):
        answer = service.end(second, OpKind.COMMIT, members=1)
        assert (answer.verdict, answer.reason, answer.other) == (Verdict.ALREADY, "name_taken", first)
        service.restart(clean=False)
    assert service.edge.end_of(second) == State.ROLLED_BACK
    assert service.end(third, OpKind.COMMIT, group="others").verdict is Verdict.ACCEPTED
    assert bodies(service) == [b"1", b"4"]
    log = LogReader(service.edge.directory)
    assert log.history(second)[-1].detail == {"remark": "name_taken", "winner": first}
    log.close()


def test_two_of_a_name_in_one_batch_of_ends(service: Service):
    (first,), (second,) = begin(service, b"1", name="n"), begin(service, b"2", name="n")
    accepted, already = service.commit(first, second)
    assert (accepted.verdict, already.verdict, already.other) == (Verdict.ACCEPTED, Verdict.ALREADY, first)


def test_jointly_under_a_taken_name_all_are_rolled_back(service: Service):
    (winner,), (named,), (other,) = begin(service, b"1", name="n"), begin(service, b"2", name="n"), begin(service, b"3")
    service.commit(winner)
    answer = service.end(other, OpKind.COMMIT, joint=(Head(named),))
    assert (answer.verdict, answer.other) == (Verdict.ALREADY, winner)
    assert bodies(service) == [b"1"]
    assert service.job.marker.totals["rollbacks"] == 2


def test_a_name_is_free_again_when_its_window_is_over(service: Service):
    (first,) = begin(service, b"1", name="n")
    service.commit(first)
    service.sleep(HOUR_S + 1)
    (second,) = begin(service, b"2", name="n")
    assert service.commit(second)[0].verdict is Verdict.ACCEPTED


def test_names_are_found_again_without_their_table(service: Service):
    (first,) = begin(service, b"1", name="n")
    service.commit(first)
    service.edge.close()
    for path in (service.root / "names").iterdir():
        path.unlink()
    service.edge = EdgeStore(service.root, default_queues=1)
    (second,) = begin(service, b"2", name="n")
    assert service.commit(second)[0].other == first


def test_a_corrupt_member_keeps_all_back(service: Service):
    head, member = begin(service, b"0", b"1")
    offset, size, _ = service.edge.half_queue.entry(member)
    (whole,) = bytes(service.edge.log.frame_bytes(offset, size)[-1:])
    service.edge.log.file.write(offset + size - 1, bytes([whole ^ 1]))
    answer = service.end(head, OpKind.COMMIT, members=1)
    assert (answer.verdict, answer.reason) == (Verdict.REFUSED, "quarantined")
    service.edge.log.file.write(offset + size - 1, bytes([whole]))  # before the job has seen it
    assert service.end(head, OpKind.COMMIT, members=1).verdict is Verdict.ACCEPTED
    assert bodies(service) == [b"0", b"1"]


def test_rows_of_members_lead_to_their_heads(service: Service):
    head, member = begin(service, b"0", b"1")
    service.settle()
    rows = service.job.table.rows_of(0)
    assert state_of(int(rows["word"][member])) == State.MEMBER
    assert int(rows["word"][member]) >> 3 == member - head
    assert (service.job.marker.totals["prepares"], service.job.marker.half_cursor) == (1, 2)


def test_an_op_with_items_is_one_frame_with_an_entry_for_each(service: Service):
    head, member = begin(service, b"0", b"1")
    service.end(head, OpKind.COMMIT, members=1)
    first, second = (service.edge.op_queue.entry(number) for number in (0, 1))
    assert (first[:2], first[2], second[2]) == (second[:2], head, member)
    frame = service.edge.log.read(*first[:2])
    assert [(item.half_offset, item.member) for item in frame.items] == [(head, False), (member, True)]
    assert (frame.queue_offset, frame.numbers, frame.joint) == (0, 2, False)


def test_members_keep_their_topic_from_being_removed(service: Service):
    (head,) = begin(service, b"0")
    service.edge.prepare([Message("orders", "else", b"1", member=Membership(head, 1))], service.now_ms)
    service.settle()
    kept = remove_topics(service.edge, ["else"]).kept["else"]
    assert "1 halves for it are in doubt" in kept
    service.end(head, OpKind.ROLLBACK)
    service.settle()
    assert remove_topics(service.edge, ["else"]).removed == ["else"]
