"""Settlement: feeds, effects, rounds in parts. (test_cases.py plays whole stories.)"""

from __future__ import annotations

import numpy as np
import pytest

import streaming.settlement.settle
from checker.decisions import Decision, Tick
from store.edge.store import End
from store.errors import BatchBeyondCursor
from store.messages import Message
from store.records import OpKind, State, Via, outstanding_of
from store.transitions import Effect
from streaming.settlement.settle import Feed, Settler, read_feed
from tests.support.service import Service


# --- feeds --------------------------------------------------------------------------------------------------------------
def test_a_feed_holds_both_queues_from_the_cursor_to_the_flushed_end(service):
    halves = service.send(b"a", b"b", b"c")
    service.commit(*halves[:2])
    feed = service.feed()
    assert (feed.half_start, feed.half_stop, feed.op_start, feed.op_stop) == (0, 3, 0, 2)
    assert feed.halves["half_offset"].tolist() == [0, 1, 2]
    assert feed.ops["op_offset"].tolist() == [0, 1]


def test_what_is_not_flushed_is_not_in_a_feed(service):
    service.send_one()
    service.edge.append_halves([Message("orders", "paid", b"x")], service.now_ms)
    service.edge.append_ends([End(0, OpKind.COMMIT, "orders")], service.now_ms)
    feed = service.feed()
    assert (feed.half_stop, feed.op_stop) == (1, 0)


@pytest.mark.parametrize("order", [[5, 0, 1], [0, 5, 1], [0, 1, 5], [4, 0], [3, 2, 1, 0]], ids=str)
@pytest.mark.parametrize("records_max", [1, 2, 4])
def test_the_ops_of_a_feed_stop_before_the_first_about_a_half_beyond_it(service, order, records_max):
    service.send(*[b"x"] * 6)
    for half in order:
        service.commit(half)
    half_stop = min(6, records_max)
    feed = read_feed(service.job.log, 0, 0, records_max)
    expected = []
    for half in order[:records_max]:
        if half >= half_stop:
            break
        expected.append(half)
    assert feed.half_stop == half_stop
    assert feed.ops["half_offset"].tolist() == expected
    assert feed.op_stop == len(expected)


def test_a_feed_of_nothing_settles_nothing_and_writes_nothing(service):
    service.commit(service.send_one())
    service.settle()
    redo_end = service.job.redo.end
    done = service.settler.settle(service.feed(), service.now_ms)
    assert (done.prepared, done.effects, service.job.redo.end) == (0, {}, redo_end)


def test_a_feed_beyond_the_cursor_is_refused_by_name(service):
    service.send(b"a", b"b")
    with pytest.raises(BatchBeyondCursor, match="begins at half 1 and op 0, the cursor stands at 0 and 0"):
        service.settler.settle(Feed(1, 2, 0, 0, service.job.log.halves(1, 2)), service.now_ms)


# --- effects ------------------------------------------------------------------------------------------------------------
def test_a_batch_counts_what_it_did(service):
    halves = service.send(*[b"x"] * 8)
    service.commit(*halves[:3])
    service.roll_back(halves[3])
    service.operate(halves[4], OpKind.DISCARD_MAX)
    service.operate(halves[5], OpKind.DISCARD_EXPIRED, OpKind.RESUME)
    service.end(halves[6], OpKind.UNKNOWN, via=Via.CHECK)
    service.operate(halves[7], OpKind.RESUME)
    service.edge.append_asked([halves[6], halves[7]], "m", service.now_ms)
    service.edge.wait(service.edge.append_messages([Message("orders", "paid", b"m")], service.now_ms).ticket)
    done = service.settler.settle(service.feed(), service.now_ms)
    counts = {effect: count for effect, count in done.effects.items() if count}
    assert counts == {
        Effect.RELEASE: 3,
        Effect.ROLLBACK: 1,
        Effect.DISCARD_MAX: 1,
        Effect.DISCARD_EXPIRED: 1,
        Effect.RESUME: 1,
        Effect.RECOUNT: 1,
        Effect.ASKED: 2,
        Effect.ANSWERED: 1,
        Effect.MESSAGE: 1,
    }
    assert (done.prepared, done.quarantined) == (8, 0)
    assert service.pending == 3


def test_one_half_asked_and_answered_many_times_in_one_batch_is_counted_each_time(service):
    half = service.send_one()
    for _ in range(40):
        service.edge.append_asked([half], "m", service.now_ms)
        service.end(half, OpKind.UNKNOWN, via=Via.CHECK)
    service.settle()
    assert service.check_count(half) == 40
    service.restart(rebuild=True)
    assert service.check_count(half) == 40


def test_an_asked_op_after_the_end_changes_nothing(service):
    half = service.send_one()
    service.edge.append_asked([half], "m", service.now_ms)
    service.commit(half)
    feed = service.feed()
    # As if the hand-over had been recorded after the commit: op order decides.
    ops = feed.ops[[1, 0]].copy()
    ops["op_offset"] = [0, 1]
    done = service.settler.settle(Feed(0, 1, 0, 2, feed.halves, ops), service.now_ms)
    assert (done.effects[Effect.RELEASE], done.effects[Effect.LATE]) == (1, 1)
    assert (service.check_count(half), service.bodies()) == (0, [b"body"])


def test_an_op_that_states_another_group_changes_nothing(service):
    """The edge refuses it; an op log written by others (Kafka) may hold it all the same."""
    service.commit(*service.send(b"a", b"b"))
    feed = service.feed()
    ops = feed.ops.copy()
    ops["group_no"][0] = 7
    done = service.settler.settle(Feed(0, 2, 0, 2, feed.halves, ops), service.now_ms)
    assert (done.effects[Effect.WRONG_GROUP], done.effects[Effect.RELEASE]) == (1, 1)
    assert (service.state(0), service.bodies()) == (State.PREPARED, [b"b"])


def test_an_op_about_a_half_that_is_gone_is_counted_and_passed_over(service):
    service.commit(*service.send(b"a", b"b"))
    feed = service.feed()
    ops = feed.ops.copy()
    ops["half_offset"][0] = 10_000
    done = service.settler.settle(Feed(0, 2, 0, 2, feed.halves, ops), service.now_ms)
    assert (done.effects[Effect.UNKNOWN_HALF], done.effects[Effect.RELEASE]) == (1, 1)
    assert service.pending == 1


def test_batch_boundaries_change_neither_outcomes_nor_places(tmp_path):
    seen = []
    for records_max in (1, 3, 1000):
        with Service(tmp_path / str(records_max)) as service:
            halves = service.send(*[b"%02d" % number for number in range(30)])
            for number in range(0, 30, 3):
                service.commit(halves[29 - number])
                service.operate(halves[number // 3], OpKind.DISCARD_EXPIRED if number % 2 else OpKind.DISCARD_MAX)
                service.roll_back(halves[number])
            service.settle(records_max)
            places = [(message.queue_id, message.queue_offset, message.body) for message in service.consume()]
            seen.append((places, [service.row(half).tolist() for half in halves], service.discards(), service.job.marker.totals))
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0][0]) == 8


# --- rounds -------------------------------------------------------------------------------------------------------------
def test_a_round_goes_in_parts_and_releases_come_between(service, monkeypatch):
    monkeypatch.setattr(streaming.settlement.settle, "ROUND_PART_ROWS", 16)
    service.members["orders"] = lambda half: None
    halves = service.send(*[b"x"] * 64)
    service.settle()
    service.sleep(30)
    parts = service.settler.check_round(Tick(service.now_ms, 1, service.now_ms, True), service.live())
    assert next(parts)[Decision.CHECK] == 16
    service.commit(halves[20], halves[5])
    service.settle()
    assert len(service.bodies()) == 2
    assert [part[Decision.CHECK] for part in parts] == [15, 16, 16]
    asked = service.queue("check", 0, service.job.marker.check_end)["tags_code"].tolist()
    assert asked == [half for half in halves if half != 20]


def test_a_part_of_a_round_has_no_more_bytes_than_a_transaction_may_take_along(service):
    service.members["orders"] = lambda half: None
    halves = service.send(*[b"x"] * 3, b"x" * 2000, *[b"x"] * 12)
    service.settle()
    service.commit(*halves[10:])
    service.settle()
    size = int(service.job.table.get(np.array(halves[:1]))["size_bytes"][0])
    service.sleep(30)
    settler = Settler(service.job, service.policy, part_bytes_max=4 * size)
    parts = settler.check_round(Tick(service.now_ms, 1, service.now_ms, True), service.live())
    asked, checked = [0], []
    for part in parts:
        checked.append(part[Decision.CHECK])
        asked.append(service.job.marker.check_end)
    # Three small ones, the large one alone, four and the rest; those that have ended weigh nothing.
    assert [count for count in checked if count] == [3, 1, 4, 2]
    assert np.diff(asked).tolist() == checked
    assert service.queue("check", 0, asked[-1])["tags_code"].tolist() == halves[:10]


def test_a_round_begins_where_its_requests_begin(service):
    service.members["orders"] = lambda half: None
    service.send(b"a", b"b")
    service.beat()
    assert (service.job.marker.round_no, service.job.marker.round_check_start, service.job.marker.check_end) == (1, 0, 2)
    service.beat()
    assert (service.job.marker.round_no, service.job.marker.round_check_start, service.job.marker.check_end) == (2, 2, 4)


def test_a_request_is_marked_outstanding_until_it_is_answered(service):
    service.members["orders"] = lambda half: OpKind.UNKNOWN if half == 0 else None
    service.send(b"a", b"b")
    service.beat()
    assert [int(outstanding_of(service.row(half)["word"])) for half in (0, 1)] == [0, 1]
    assert [service.check_count(half) for half in (0, 1)] == [1, 1]


def test_requests_that_lapsed_are_not_handed_over(service):
    service.members["orders"] = lambda half: OpKind.COMMIT
    service.send(b"a", b"b")
    service.sleep(30)
    service.settle()
    service.round()
    service.sleep(30)
    service.round()
    assert service.deliver() == [0, 1]  # of the second round only
    assert service.job.marker.check_end == 4


def test_files_with_nothing_pending_are_not_looked_at(service, monkeypatch):
    halves = service.send(*[b"x"] * 200)
    service.commit(*halves[:64], *halves[128:])
    service.settle()
    looked = []
    real = type(service.job.table).rows_of

    def rows_of(table, file_no):
        looked.append(file_no)
        return real(table, file_no)

    monkeypatch.setattr(type(service.job.table), "rows_of", rows_of)
    service.sleep(30)
    service.round()
    assert set(looked) == {1}


def test_a_round_stopped_by_the_clock_guard_checks_but_does_not_discard(service):
    service.use(retention_s=3600)
    service.members["orders"] = lambda half: None
    service.send_one()
    service.settle()
    service.sleep(4000)
    assert service.round(discards_allowed=False)[Decision.DISCARD_EXPIRED] == 0
    assert service.round()[Decision.DISCARD_EXPIRED] == 1


def test_a_state_file_over_several_parts_and_files_is_decided_whole(service, monkeypatch):
    monkeypatch.setattr(streaming.settlement.settle, "ROUND_PART_ROWS", 10)
    service.members["orders"] = lambda half: OpKind.COMMIT
    halves = service.send(*[b"%03d" % number for number in range(150)])
    service.roll_back(*halves[::7])
    service.beat()
    assert service.asked == [half for half in halves if half % 7]
    assert service.pending == 0
    assert np.array_equal(service.job.table.get(np.arange(150))["word"] & 7 == State.ROLLED_BACK, np.arange(150) % 7 == 0)
