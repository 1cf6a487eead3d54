"""The edge's side of the store: what it takes, what it refuses, what it answers, which places it gives."""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any
from zlib import crc32

import pytest

from store.edge.append.encode import MAX_BODY_BYTES, PROPERTIES_MAX_BYTES
from store.edge.store import EdgeStore, End
from store.errors import (
    BatchTooLarge,
    BodyTooLarge,
    DelayedHalf,
    DuplicateKey,
    IllegalName,
    IllegalProperty,
    InvalidRecord,
    StoreUnusable,
)
from store.io import disk
from store.io.pages import EdgeSlot
from store.messages import AlikeMessages, Message, joined
from store.properties import tags_code
from store.records import IMMUNITY_MAX_S, OpKind, State, Via
from store.tables import dedup as dedup_module
from store.tables import frames
from store.tables.ends import Verdict
from store.tables.frames import FrameKind
from tests.support.service import SMALLEST, T0_MS, Service, place, verdicts


def nothing_stored(service):
    return (service.edge.half_end, service.edge.op_end, service.edge.log.end) == (0, 0, 0)


# --- what is taken ------------------------------------------------------------------------------------------------------
def test_a_half_carries_everything_that_was_given(service):
    message = Message(
        "orders",
        "paid",
        b"\0body\xff",
        {"KEYS": "k1 k2", "TAGS": "eu", "UNIQ_KEY": "u", "own": "ü"},
        queue_id=3,
        born_at_ms=T0_MS - 9,
        born_host=bytes(range(16)),
        born_port=65535,
        immunity_s=77,
        flag=0xFFFFFFFF,
    )
    (half,) = service.edge.prepare([message], service.now_ms)
    frame = service.edge.read_half(half)
    assert (frame.kind, frame.queue_offset, frame.stored_at_ms, frame.body) == (FrameKind.HALF, 0, T0_MS, b"\0body\xff")
    assert frame.properties == {"PGROUP": "orders", "REAL_TOPIC": "paid", **message.properties}
    wanted = {"queue_id": 3, "born_at_ms": T0_MS - 9, "born_port": 65535, "immunity_s": 77, "flag": 0xFFFFFFFF}
    assert wanted.items() <= frame.fields.items()
    assert frame.fields["tags_code"] == tags_code("eu")


def test_without_a_born_time_the_stored_time_is_taken(service):
    assert service.edge.read_half(service.send_one()).fields["born_at_ms"] == T0_MS


def test_a_batch_gets_consecutive_numbers_and_lies_in_one_write(service):
    service.send_one(b"first")
    with disk.recording() as passed:
        assert service.send(*[b"%d" % number for number in range(10)]) == list(range(1, 11))
    assert (passed["commitlog.write"], passed["commitlog.flush"]) == (1, 1)
    frame = service.edge.read_half(5)
    assert (frame.batch_length, frame.batch_index, frame.body) == (10, 4, b"4")


def test_nothing_is_visible_to_readers_before_the_flush(service):
    appended = service.edge.append_halves([Message("orders", "paid", b"x")], service.now_ms)
    assert service.job.log.ends() == (0, 0)
    service.edge.wait(appended.ticket)
    assert service.job.log.ends() == (1, 0)
    answers, ticket = service.edge.append_ends([End(0, OpKind.COMMIT, "orders")], service.now_ms)
    assert service.job.log.ends() == (1, 0)
    service.edge.wait(ticket)
    assert (service.job.log.ends(), verdicts(answers)) == ((1, 1), [Verdict.ACCEPTED])


def test_an_end_is_remembered_only_when_its_op_is_durable_but_answered_by_it_at_once(service):
    half = service.send_one()
    _, ticket = service.edge.append_ends([End(half, OpKind.COMMIT, "orders")], service.now_ms)
    assert (service.edge.ends_table[half], service.edge.end_of(half)) == (0, State.COMMITTED)
    again, _ = service.edge.append_ends([End(half, OpKind.ROLLBACK, "orders")], service.now_ms)
    assert verdicts(again) == [Verdict.CONFLICT]
    service.edge.wait(ticket)
    assert service.edge.ends_table[half] == State.COMMITTED


def test_whoever_wants_to_know_is_told_after_each_publication(tmp_path):
    seen = []
    with Service(tmp_path / "store", edge_options={"on_publish": lambda: seen.append(1)}) as service:
        before = len(seen)
        service.send_one()
        service.commit(0)
        assert len(seen) == before + 2


# --- what is refused ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("over", [0, 1])
def test_the_largest_body_fits_and_one_byte_more_is_refused(tmp_path, over):
    with Service(tmp_path / "store", edge_options={"max_body_bytes": 5000}) as service:
        if over:
            with pytest.raises(BodyTooLarge, match="5001 bytes; at most 5000"):
                service.send(b"fine", b"x" * 5001)
            assert nothing_stored(service)
        else:
            assert service.edge.read_half(service.send_one(b"x" * 5000)).body == b"x" * 5000


def test_the_largest_body_of_the_default_size_fits_with_room_for_properties(service):
    most = service.edge.max_body_bytes
    half = service.send_one(b"x" * most, properties={"a": "y" * 30_000})
    assert len(service.edge.read_half(half).body) == most


def test_a_body_size_that_no_segment_could_hold_is_refused_when_opening(tmp_path):
    with pytest.raises(InvalidRecord, match="maxBodySize"):
        EdgeStore(tmp_path / "store", geometry=SMALLEST, max_body_bytes=60_000)
    EdgeStore(tmp_path / "store", geometry=SMALLEST).close()


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"topic": ""}, IllegalName),
        ({"topic": "a b"}, IllegalName),
        ({"topic": "x" * 128}, IllegalName),
        ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, IllegalName),
        ({"topic": "RMQ_SYS_TRANS_OP_HALF_TOPIC"}, IllegalName),
        ({"topic": "TRANS_CHECK_MAX_TIME_TOPIC"}, IllegalName),
        ({"group": ""}, IllegalName),
        ({"group": "\ud800"}, IllegalName),
        ({"properties": {"REAL_TOPIC": "x"}}, IllegalProperty),
        ({"properties": {"": "x"}}, IllegalProperty),
        ({"properties": {"a": "\x01"}}, IllegalProperty),
        ({"properties": {"a": "\ud800"}}, IllegalProperty),
        ({"properties": {"KEYS": "\ud800"}}, IllegalProperty),
        ({"properties": {"DELAY": "1"}}, DelayedHalf),
        ({"properties": {"TIMER_DELIVER_MS": "1"}}, DelayedHalf),
        ({"dedup_key": "\x02"}, IllegalProperty),
        ({"queue_id": 4}, InvalidRecord),
        ({"queue_id": -1}, InvalidRecord),
        ({"born_port": 65_536}, InvalidRecord),
        ({"born_port": -1}, InvalidRecord),
        ({"flag": 1 << 32}, InvalidRecord),
        ({"born_at_ms": 1 << 63}, InvalidRecord),
        ({"properties": {"a": "x" * 70_000}}, IllegalProperty),
    ],
    ids=str,
)
def test_a_record_that_breaks_a_rule_is_refused_whole_with_its_type(service, fields, error):
    bad = Message(**{"group": "g", "topic": "t", "body": b"", **fields})
    with pytest.raises(error):
        service.edge.prepare([Message("orders", "paid", b"fine"), bad], service.now_ms)
    assert nothing_stored(service)
    assert service.send_one(b"next") == 0


def test_an_empty_batch_is_refused(service):
    for append in (service.edge.append_halves, service.edge.append_messages):
        with pytest.raises(InvalidRecord, match="at least one"):
            append([], 1)


def test_a_batch_that_no_segment_holds_is_refused_whole(service):
    with pytest.raises(BatchTooLarge, match="send smaller batches"):
        service.send(*[b"x" * 1000] * 80)
    assert nothing_stored(service)


def test_an_empty_body_is_fine(service):
    assert service.edge.read_half(service.send_one(b"")).body == b""


@pytest.mark.parametrize(("given", "stored"), [(-5, 0), (0, 0), (7, 7), (IMMUNITY_MAX_S + 1, IMMUNITY_MAX_S)])
def test_an_immunity_out_of_range_is_cut_never_refused(service, given, stored):
    assert service.edge.read_half(service.send_one(immunity_s=given)).fields["immunity_s"] == stored


@pytest.mark.parametrize(("text", "stored"), [("600", 600), ("", 0), ("abc", 0), ("-1", 0), ("9" * 30, IMMUNITY_MAX_S)])
def test_an_immunity_given_as_a_property_is_parsed(service, text, stored):
    half = service.send_one(properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": text})
    frame = service.edge.read_half(half)
    assert frame.fields["immunity_s"] == stored
    assert frame.properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] == text


# --- queues and places --------------------------------------------------------------------------------------------------
def test_the_same_key_always_goes_to_the_same_queue(service):
    keys = [f"order-{number}" for number in range(40)]
    halves = [service.send_one(properties={"KEYS": key}) for key in keys for _ in range(2)]
    queues = [service.edge.read_half(half).fields["queue_id"] for half in halves]
    assert queues[::2] == queues[1::2] == [crc32(key.encode()) % 4 for key in keys]
    assert len(set(queues)) == 4


def test_without_a_key_messages_go_round_the_queues(service):
    halves = service.send(*[b"x"] * 10)
    assert [service.edge.read_half(half).fields["queue_id"] for half in halves] == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]


def test_a_queue_that_was_asked_for_wins_over_the_key(service):
    half = service.send_one(properties={"KEYS": "k"}, queue_id=1)
    assert service.edge.read_half(half).fields["queue_id"] == 1


def test_places_are_given_in_the_order_of_commits_and_stay_over_restarts(service):
    halves = service.send(*[b"%d" % number for number in range(4)], queue_id=2)
    first = service.commit(halves[3], halves[0])
    service.restart(clean=False)
    second = service.commit(halves[2], halves[3], halves[1])
    assert [place(answer.position) for answer in first] == [(0, 2, 0), (0, 2, 1)]
    assert [place(answer.position) for answer in (second[0], second[2])] == [(0, 2, 2), (0, 2, 3)]
    assert (second[1].verdict, second[1].position) == (Verdict.ALREADY, -1)
    service.settle()
    assert [message.body for message in service.consume()] == [b"3", b"0", b"2", b"1"]


def test_ordinary_messages_and_commits_share_the_places_of_a_queue(service):
    half = service.send_one(b"half", queue_id=0)
    service.edge.append_messages([Message("orders", "paid", b"plain 1", queue_id=0)], service.now_ms)
    service.commit(half)
    service.edge.wait(service.edge.append_messages([Message("orders", "paid", b"plain 2", queue_id=0)], service.now_ms).ticket)
    service.settle()
    assert [message.body for message in service.consume()] == [b"plain 1", b"half", b"plain 2"]


def test_a_refused_batch_takes_no_place(service):
    halves = service.send(b"a", b"b", queue_id=0)
    disk.arm("commitlog.write", "ENOSPC")
    with pytest.raises(StoreUnusable):
        service.commit(*halves)
    disk.arm(None)
    answers = service.commit(*halves)
    assert verdicts(answers) == [Verdict.ACCEPTED] * 2
    assert [place(answer.position) for answer in answers] == [(0, 0, 0), (0, 0, 1)]


# --- ends ---------------------------------------------------------------------------------------------------------------
def test_case_32_33_ends_of_one_batch_are_judged_one_after_another(service):
    half, other = service.send(b"a", b"b")
    kinds = [OpKind.UNKNOWN, OpKind.ROLLBACK, OpKind.ROLLBACK, OpKind.COMMIT, OpKind.DISCARD_MAX]
    ends = [End(half, kind, "orders", Via.CHECK) for kind in kinds]
    answers = service.edge.end([*ends[:2], End(other, OpKind.COMMIT, "orders"), *ends[2:]], service.now_ms)
    assert verdicts(answers) == [
        Verdict.ACCEPTED,
        Verdict.ACCEPTED,
        Verdict.ACCEPTED,
        Verdict.ALREADY,
        Verdict.CONFLICT,
        Verdict.CONFLICT,
    ]
    assert service.edge.op_end == 3


@pytest.fixture
def chance():
    seed = random.randrange(1 << 32)
    print(f"SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def twins(tmp_path):
    """Two services to which the same happens: to one many at a time, to the other one by one."""
    with Service(tmp_path / "together", SMALLEST) as together, Service(tmp_path / "alone", SMALLEST) as alone:
        yield together, alone


@pytest.mark.parametrize("oddity", [0.0, 0.02, 0.3])
def test_ends_that_come_many_at_a_time_are_judged_as_one_by_one(twins, chance, oddity):
    together, alone = twins
    batches = Counter[bool]()
    for number in range(30):
        for service in twins:
            service.send(*[b"x"] * 30, group=GROUPS[number % 2])
        open_still = [
            half for half in range(together.edge.half_end) if not together.edge.end_of(half) and half // 30 % 2 == number % 2
        ]
        ends = [some_end(chance, half, oddity) for half in chance.sample(open_still[-60:], chance.randrange(8, 30))]
        ends += [chance.choice(ends) for _ in ends if chance.random() < oddity]
        ops_before, batched = together.edge.op_end, together.edge._ends.append_alike(ends, together.now_ms)
        batches[batched is not None] += 1
        if batched is None:  # and nothing is done
            assert together.edge.op_end == ops_before
            batched = together.edge.end(ends, together.now_ms)
        together.edge.wait(together.edge.log.end)
        assert batched == [alone.edge.end([end], alone.now_ms)[0] for end in ends]
        assert kept(together) == kept(alone)
    assert batches[True] == {0.0: 30, 0.3: 0}.get(oddity, batches[True])
    assert batches[True] > 0 or oddity == 0.3


@pytest.mark.parametrize(
    "change",
    [{"remark": "why"}, {"actor": "ada"}, {"group": None}, {"kind": OpKind.UNKNOWN}, {"half_offset": 3}, {"group": "shop"}],
)
def test_one_odd_end_among_many_is_judged_as_it_would_be_alone(twins, change):
    together, alone = twins
    for service in twins:
        service.send(*[b"x"] * 20)
        service.send(b"x", group="shop")
    plain = [End(half, OpKind.COMMIT, "orders") for half in range(20)]
    # The second time only the odd one is left to say anything new; the third time all say the same.
    for ends in ([*plain[:9], plain[9]._replace(**change), *plain[10:]], plain, [end._replace(**change) for end in plain]):
        answers, ticket = together.edge.append_ends(ends, together.now_ms)  # what is not flushed yet counts, too
        assert answers == [alone.edge.end([end], alone.now_ms)[0] for end in ends]
    together.edge.wait(ticket)
    assert kept(together) == kept(alone)


def test_ends_of_another_group_are_refused_all_together(twins):
    together, alone = twins
    for service in twins:
        service.send(*[b"x"] * 20)
        service.send(b"x", group="shop")
    ends = [End(half, OpKind.COMMIT, "shop") for half in range(20)]
    answers = together.edge.end(ends, together.now_ms)
    assert answers == [alone.edge.end([end], alone.now_ms)[0] for end in ends]
    assert {answer.reason for answer in answers} == {"wrong group"}


GROUPS = ("orders", "shop")


def some_end(chance, half, oddity):
    kind = chance.choice((OpKind.COMMIT, OpKind.COMMIT, OpKind.ROLLBACK))
    end = End(half, kind, GROUPS[half // 30 % 2], chance.choice((Via.PRODUCER, Via.CHECK)))
    changes: list[dict[str, Any]] = [
        {"kind": OpKind.UNKNOWN}, {"kind": OpKind.DISCARD_MAX}, {"kind": OpKind.RESUME}, {"group": None}, {"group": "others"},
        {"remark": "why"}, {"actor": "ada"}, {"half_offset": 0}, {"half_offset": -1}, {"half_offset": 1 << 40},
    ]  # fmt: skip
    return end._replace(**chance.choice(changes)) if chance.random() < oddity else end


def kept(service):
    """Everything that the edge keeps of ends."""
    edge = service.edge
    entries = edge.op_queue.read(0, edge.op_end)
    ops = [edge.log.read(int(entry["commit_log_offset"]), int(entry["size_bytes"])) for entry in entries]
    return (
        [(op.queue_offset, op.stored_at_ms, op.detail, op.fields) for op in ops],
        entries["tags_code"].tolist(),
        [edge.ends_table[half] for half in range(edge.half_end)],
        (edge.next_offset, edge.pending.counts, edge.pending.ended, edge.ended),
    )


def test_a_half_that_went_bad_is_not_ended_among_many(service):
    halves = service.send(*[b"x"] * 20)
    frame = service.edge.read_half(halves[7])
    service.edge.log.file.write(frame.commit_log_offset + 130, b"\xff")
    answers = service.commit(*halves)
    assert [answer.verdict for answer in answers] == [Verdict.ACCEPTED] * 7 + [Verdict.REFUSED] + [Verdict.ACCEPTED] * 12
    assert answers[7].reason == "quarantined"


def test_keys_that_come_many_at_a_time_are_looked_for_as_one_by_one(twins, chance, monkeypatch):
    monkeypatch.setattr(dedup_module, "SLOTS_MIN", 64)  # several tables, and many keys that begin at one slot
    together, alone = twins
    for _ in range(40):
        keys = [chance.choice(("", *map(str, range(400)))) for _ in range(chance.randrange(8, 40))]
        if chance.random() < 0.5:
            keys = [str(chance.randrange(1 << 40)) for _ in keys]
        group = chance.choice(GROUPS)
        found = together.edge.prepare([Message(group, "paid", b"x", dedup_key=key) for key in keys], together.now_ms)
        assert list(found) == [alone.send_one(b"x", group=group, dedup_key=key) for key in keys]
        for service in twins:
            service.sleep(100)
    for known in (together.edge.dedup, alone.edge.dedup):
        assert len(known._tables) > 1


def test_discard_resume_and_commit_in_one_batch(service):
    half = service.send_one(b"x")
    answers = service.operate(half, OpKind.DISCARD_MAX, OpKind.COMMIT, OpKind.RESUME, OpKind.COMMIT, OpKind.RESUME)
    assert verdicts(answers) == [
        Verdict.ACCEPTED,
        Verdict.REFUSED,
        Verdict.ACCEPTED,
        Verdict.ACCEPTED,
        Verdict.CONFLICT,
    ]
    service.settle()
    assert (service.bodies(), service.discards(), service.state(half)) == (
        [b"x"],
        [(half, State.DISCARDED_MAX)],
        State.COMMITTED,
    )


def test_the_op_log_keeps_who_said_it_and_why(service):
    half = service.send_one()
    service.end(half, OpKind.UNKNOWN, via=Via.CHECK, actor="member-1", remark="db is down")
    service.end(half, OpKind.ROLLBACK, group=None, via=Via.OPERATOR, actor="ada")
    history = service.job.log.history(half)
    assert [(op.fields["op_kind"], op.fields["via"], op.detail) for op in history] == [
        (OpKind.UNKNOWN, Via.CHECK, {"actor": "member-1", "remark": "db is down"}),
        (OpKind.ROLLBACK, Via.OPERATOR, {"actor": "ada"}),
    ]


def test_asked_halves_are_recorded_in_frames_of_bounded_size(service, monkeypatch):
    monkeypatch.setattr(frames, "ASKED_MAX", 10)
    halves = service.send(*[b"x"] * 25)
    service.commit(halves[3])
    service.edge.wait(service.edge.append_asked([*halves, 999, -1], "member-1", service.now_ms))
    sizes = [len(service.job.log.frame(entry).asked) for entry in service.edge.op_queue.read(1, service.edge.op_end)]
    assert sizes == [10, 10, 4]
    service.settle()
    assert [service.check_count(half) for half in halves[:5]] == [1, 1, 1, 0, 1]


def test_reopening_a_half_whose_end_was_lost_and_doing_it_again(service):
    half, other = service.send(b"a", b"b")
    service.commit(half)
    service.commit(other)
    offset = service.edge.op_queue.entry(0)[0]
    service.edge.log.file.write(offset + 40, b"!")
    assert [service.edge.reopen(0) for _ in range(2)] == [half, half]
    assert service.edge.end_of(half) == 0
    assert service.edge.reopen(1) == other  # its op can be read: nothing changes
    assert service.edge.end_of(other) == State.COMMITTED
    assert service.roll_back(half)[0].verdict is Verdict.ACCEPTED


# --- dedup --------------------------------------------------------------------------------------------------------------
def test_a_dedup_key_leads_to_the_first_half(service):
    first = service.send_one(b"x", dedup_key="k")
    assert service.send_one(b"x", dedup_key="k") == first
    assert service.send_one(b"x", dedup_key="k", group="others") == 1
    assert service.edge.half_end == 2


def test_a_batch_may_hold_known_new_and_repeated_keys(service):
    (known,) = service.send(b"0", dedup_key="known")
    bodies = {"new": b"1", "known": b"0", "": b"2", "newer": b"3"}
    messages = [Message("orders", "paid", bodies[key], dedup_key=key) for key in ("new", "known", "", "new", "newer", "newer")]
    offsets = list(service.edge.prepare(messages, service.now_ms))
    assert offsets == [1, known, 2, 1, 3, 3]
    assert [service.edge.read_half(half).body for half in range(4)] == [b"0", b"1", b"2", b"3"]


def test_the_same_key_with_another_body_is_an_error_and_nothing_is_stored(service):
    service.send_one(b"x", dedup_key="k")
    with pytest.raises(DuplicateKey, match="another body"):
        service.edge.prepare([Message("orders", "paid", b"new"), Message("orders", "paid", b"y", dedup_key="k")], service.now_ms)
    assert service.edge.half_end == 1


def test_a_key_is_known_before_its_flush_and_its_ticket_waits_for_it(service):
    message = [Message("orders", "paid", b"x", dedup_key="k")]
    first = service.edge.append_halves(message, service.now_ms)
    again = service.edge.append_halves(message, service.now_ms)
    assert (list(again.offsets), again.ticket >= first.ticket) == ([0], True)
    service.edge.wait(again.ticket)
    assert service.edge.page[EdgeSlot.HALF_END] == 1


def test_more_keys_than_a_table_holds_may_wait_for_one_flush(tmp_path, monkeypatch):
    monkeypatch.setattr(dedup_module, "SLOTS_MIN", 64)
    with Service(tmp_path / "store") as service:
        for number in range(50):
            messages = [Message("orders", "paid", b"x", dedup_key=f"{number}-{at}") for at in range(4)]
            service.edge.append_halves(messages, service.now_ms)
        service.edge.wait(service.edge.log.end)
        assert service.send_one(b"x", dedup_key="49-3") == 199


def test_a_full_disk_refuses_a_key_before_anything_is_stored(service):
    disk.arm("dedup.create", "ENOSPC")
    with pytest.raises(StoreUnusable, match="disk is full"):
        service.send_one(b"x", dedup_key="k")
    disk.arm(None)
    assert service.send_one(b"x", dedup_key="k") == 0


@pytest.mark.parametrize("kind", [FrameKind.HALF, FrameKind.MESSAGE])
def test_messages_that_are_alike_are_encoded_as_they_would_be_one_by_one(service, kind):
    edge = service.edge
    alike = [Message("orders", "paid", b"x" * n, born_at_ms=n % 3, dedup_key="" if n % 2 else f"kéy {n}") for n in range(20)]
    columns = AlikeMessages.of(alike)
    assert columns is not None
    assert list(columns) == alike
    assert columns[3:7] == alike[3:7]
    edge._routes.make(columns)
    assert edge._encoder.encode_alike(columns, kind, 5000) is not None
    others: dict[str, Any] = {
        "group": "billing", "topic": "sent", "properties": {"KEYS": "k"}, "queue_id": 1, "born_host": b"1" * 16, "born_port": 1,
        "immunity_s": 7, "flag": 1, "own": {"__DEAD__": "x"},
    }  # fmt: skip
    for name, value in others.items():
        odd = [*alike[:9], alike[9]._replace(**{name: value}), *alike[10:]]
        assert AlikeMessages.of(odd) is None, name
    heads, tails = edge._encoder.encode(columns, kind, 5000)
    one_by_one = [edge._encoder.encode_one(message, kind, 5000) for message in alike]
    assert heads.tobytes() == b"".join([head for head, _ in one_by_one])
    assert list(zip(*tails, strict=True)) == [tail for _, tail in one_by_one]


def test_what_several_sent_is_joined_in_columns_where_it_is_alike():
    first, second = (
        [Message("orders", "paid", b"%d" % n, born_at_ms=n, dedup_key=f"{n}") for n in some] for some in ((1, 2), (3, 4, 5))
    )
    columns, more = AlikeMessages.of(first), AlikeMessages.of(second)
    assert columns is not None
    assert more is not None
    together = joined([columns, more, columns])
    assert isinstance(together, AlikeMessages)
    assert list(together) == [*first, *second, *first]
    for other in (
        second,
        AlikeMessages.of([second[0]._replace(topic="sent")]),
        AlikeMessages.of([second[0]._replace(group="shop")]),
    ):
        assert other is not None
        mixed = joined([columns, other])
        assert not isinstance(mixed, AlikeMessages)
        assert mixed == [*first, *other]
    assert joined([columns]) is columns


@pytest.mark.parametrize(
    "bad",
    [
        {"body": bytes(MAX_BODY_BYTES + 1)},
        {"dedup_key": "a\x01b"},
        {"dedup_key": "a\x02b"},
        {"dedup_key": "\ud800"},
        {"dedup_key": "k" * PROPERTIES_MAX_BYTES},
        {"born_at_ms": 1 << 63},
    ],
)
@pytest.mark.parametrize("of", [list, AlikeMessages.of])
def test_of_many_that_are_alike_the_one_that_is_not_taken_is_named(service, of, bad):
    good = Message("orders", "paid", b"x")
    with pytest.raises(InvalidRecord) as refused:
        service.edge.append_halves(of([*[good] * 11, good._replace(**bad), *[good] * 11]), service.now_ms)
    assert refused.value.number == 11
    assert service.edge.half_end == 0


def test_a_key_counts_for_the_window_only(tmp_path):
    with Service(tmp_path / "store", edge_options={"dedup_window_s": 60}) as service:
        service.send_one(b"x", dedup_key="k")
        service.sleep(60)
        assert service.send_one(b"x", dedup_key="k") == 0
        service.sleep(1)
        assert service.send_one(b"x", dedup_key="k") == 1
        service.sleep(30)
        assert service.send_one(b"x", dedup_key="k") == 1


@pytest.mark.parametrize("clean", [True, False])
def test_a_key_survives_a_restart(service, clean):
    service.send_one(b"x", dedup_key="k")
    service.restart(clean=clean)
    assert service.send_one(b"x", dedup_key="k") == 0


def test_a_key_whose_half_was_torn_off_is_forgotten(service):
    service.send_one(b"kept")
    end = service.edge.log.end
    service.edge.append_halves([Message("orders", "paid", b"torn", dedup_key="k")], service.now_ms)
    service.crash()
    os.truncate(service.edge.directory.commit_log / f"{0:020d}", end + 10)
    service.open()
    assert service.send_one(b"other") == 1
    assert service.send_one(b"torn", dedup_key="k") == 2


# --- files --------------------------------------------------------------------------------------------------------------
def test_every_kind_of_file_rolls(service):
    for number in range(8):
        halves = service.send(*[b"%d" % number * 300] * 20)
        service.commit(*halves)
    assert len(service.edge.log.file.starts()) > 1
    assert len(service.edge.half_queue.file.starts()) == 3
    assert len(service.edge.op_queue.file.starts()) == 3
    service.settle(records_max=50)
    assert len(service.consume()) == 160


def test_a_checkpoint_is_written_every_so_many_bytes(tmp_path):
    with Service(tmp_path / "store", edge_options={"checkpoint_bytes": 2000}) as service:
        with disk.recording() as passed:
            for _ in range(40):
                service.send_one(b"x" * 80)
        assert passed["edge.checkpoint.replace"] == 4  # 40 frames of 230 bytes: after every ninth
        service.crash()
        service.open()
        assert service.edge.recovery.frames_replayed == 40 - 4 * 9


def test_a_full_disk_refuses_new_segments_and_nothing_else(service):
    halves = service.send(*[b"x" * 600] * 80)
    disk.arm("commitlog.create", "ENOSPC")
    with pytest.raises(StoreUnusable, match="disk is full"):
        service.send(*[b"y" * 1000] * 40)
    disk.arm(None)
    assert service.commit(halves[0])[0].verdict is Verdict.ACCEPTED
    assert service.send(*[b"y" * 1000] * 40) == list(range(80, 120))
    service.settle()
    assert (service.bodies(), service.pending) == ([b"x" * 600], 119)
    service.restart(clean=False)
    assert (service.edge.half_end, service.edge.recovery.damage) == (120, [])


@pytest.mark.parametrize("point", ["commitlog.write", "half.write", "op.write"])
def test_an_input_output_error_refuses_everything_until_the_edge_is_reopened(service, point):
    half = service.send_one(b"kept")
    disk.arm(point, "EIO")
    attempt = service.commit if point == "op.write" else lambda _half: service.send_one(b"lost?")
    with pytest.raises(StoreUnusable):
        attempt(half)
    disk.arm(None)
    with pytest.raises(StoreUnusable, match="earlier failure"):
        service.commit(half)
    service.crash()
    service.open()
    assert service.commit(half)[0].verdict in (Verdict.ACCEPTED, Verdict.ALREADY)
    service.settle()
    assert service.bodies() == [b"kept"]
