"""The cases of docs/cases.md that concern store, checker and settlement, by number, end to end: the real edge, the real
job, the real settlement, members that answer, and a clock that moves only when a test says so.
tests/unit/checker has the pure ones.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import streaming.settlement.settle
from checker.decisions import Decision
from checker.policy import Policy
from store.directory import Geometry
from store.edge.store import End
from store.errors import Corrupt, DelayedHalf, IllegalProperty, StoreUnusable
from store.io import disk
from store.messages import Message
from store.properties import DELAY_PROPERTIES, tags_code
from store.records import OpKind, State, Via, state_of
from store.tables.ends import Verdict
from store.tables.frames import FrameKind
from store.transitions import Effect
from tests.support.service import T0_MS, Service, contents, place, verdicts


def always(kind: OpKind | None):
    return lambda _half_offset: kind


def flip(service: Service, commit_log_offset: int, at: int = 40) -> None:
    """Damage one byte of a frame, as a failing disk would."""
    size = service.geometry.commit_log_segment_bytes
    start = commit_log_offset - commit_log_offset % size
    path = service.edge.directory.commit_log / f"{start:020d}"
    with path.open("r+b") as file:
        file.seek(commit_log_offset - start + at)
        byte = file.read(1)[0]
        file.seek(commit_log_offset - start + at)
        file.write(bytes([byte ^ 0x10]))


def damage_half(service: Service, half_offset: int) -> None:
    flip(service, int(service.edge.half_queue.read(half_offset, half_offset + 1)["commit_log_offset"][0]))


def damage_op(service: Service, op_offset: int) -> None:
    flip(service, int(service.edge.op_queue.read(op_offset, op_offset + 1)["commit_log_offset"][0]))


# --- prepare and end ----------------------------------------------------------------------------------------------------
def test_case_01_a_valid_half_is_stored_and_invisible(service):
    half = service.send_one(b"secret")
    service.settle()
    assert service.edge.read_half(half).body == b"secret"
    assert service.state(half) == State.PREPARED
    assert service.consume() == []
    assert service.pending == 1


def test_case_02_a_half_goes_the_transactional_way_and_an_ordinary_message_does_not(service):
    half = service.send_one(b"half")
    service.edge.wait(service.edge.append_messages([Message("orders", "paid", b"plain")], service.now_ms).ticket)
    service.settle()
    stored = service.edge.read_half(half)
    assert stored.kind == FrameKind.HALF
    assert stored.fields["sys_flag"] == 4
    assert (stored.properties["PGROUP"], stored.properties["REAL_TOPIC"]) == ("orders", "paid")
    plain = service.consume()
    assert [message.body for message in plain] == [b"plain"]
    assert (plain[0].frame.kind, plain[0].frame.fields["sys_flag"]) == (FrameKind.MESSAGE, 0)
    assert service.pending == 1
    with pytest.raises(IllegalProperty, match="TRAN_MSG"):
        service.send_one(b"x", properties={"TRAN_MSG": "true"})


def test_case_03_a_commit_makes_it_visible_once_with_all_it_carries(service):
    half = service.send_one(b"paid 7", properties={"KEYS": "order-7", "TAGS": "eu"}, born_at_ms=T0_MS - 5, flag=9)
    answer = service.commit(half)[0]
    service.settle()
    (message,) = service.consume()
    assert answer.verdict is Verdict.ACCEPTED
    assert message.body == b"paid 7"
    assert {"KEYS": "order-7", "TAGS": "eu"}.items() <= message.frame.properties.items()
    assert (message.frame.fields["born_at_ms"], message.frame.fields["flag"]) == (T0_MS - 5, 9)
    assert place(answer.position) == (0, message.queue_id, message.queue_offset)
    assert service.state(half) == State.COMMITTED
    assert service.pending == 0


def test_case_04_a_commit_from_a_check_is_identical(tmp_path: Path):
    seen = []
    for via in (Via.PRODUCER, Via.CHECK):
        with Service(tmp_path / via.name) as service:
            half = service.send_one(b"x", properties={"TAGS": "a"})
            service.end(half, OpKind.COMMIT, via=via)
            service.settle()
            (message,) = service.consume()
            seen.append((message, service.row(half).tolist(), service.job.marker))
    assert seen[0] == seen[1]


@pytest.mark.parametrize(("via", "remark", "logged"), [(Via.PRODUCER, "", 0), (Via.PRODUCER, "no idea", 1), (Via.CHECK, "", 1)])
def test_case_05_unknown_changes_nothing_and_history_has_it_where_it_says_something(service, via, remark, logged):
    half = service.send_one()
    service.settle()
    before = service.row(half).tolist()
    answer = service.end(half, OpKind.UNKNOWN, via=via, remark=remark)
    service.settle()
    assert (answer.verdict, answer.state) == (Verdict.ACCEPTED, State.PREPARED)
    assert service.row(half).tolist() == before
    assert (service.consume(), service.pending) == ([], 1)
    history = service.job.log.history(half)
    assert [op.fields["op_kind"] for op in history] == [OpKind.UNKNOWN] * logged
    assert [op.detail.get("remark", "") for op in history] == [remark] * logged


def test_case_06_a_rollback_is_never_visible(service):
    half = service.send_one()
    assert service.roll_back(half)[0].verdict is Verdict.ACCEPTED
    service.settle()
    for _ in range(3):
        service.members["orders"] = always(OpKind.COMMIT)
        service.beat()
    assert (service.consume(), service.state(half), service.pending) == ([], State.ROLLED_BACK, 0)
    assert service.asked == []


# --- check rounds -------------------------------------------------------------------------------------------------------
def test_case_10_asked_often_enough_means_one_discard_and_no_check(service):
    service.use(check_count_max=1)
    service.members["orders"] = always(OpKind.UNKNOWN)
    half = service.send_one(b"lost")
    counts = [service.beat() for _ in range(6)]
    assert [count[Decision.CHECK] for count in counts] == [1, 0, 0, 0, 0, 0]
    assert sum(count[Decision.DISCARD_MAX] for count in counts) == 1
    assert service.discards() == [(half, State.DISCARDED_MAX)]
    assert (service.asked, service.pending) == ([half], 0)


def test_case_11_an_old_half_without_an_op_is_asked_exactly_once_a_round(service):
    service.members["orders"] = always(None)
    half = service.send_one()
    service.sleep(60)
    service.settle()
    first, again = service.round(), service.round(new=False)
    assert (first[Decision.CHECK], again[Decision.CHECK]) == (1, 0)
    assert service.queue("check", 0, service.job.marker.check_end)["tags_code"].tolist() == [half]


def test_case_15_nothing_at_all_is_no_trouble(service):
    assert service.settle() == []
    assert sum(service.round().values()) == 0
    assert service.deliver() == []
    assert service.take_proposals() == []
    assert sum(service.retain(3600).values()) == 0
    service.restart(rebuild=True)
    assert (service.pending, service.consume(), service.discards()) == (0, [], [])


def test_case_16_a_check_keeps_the_born_time(service):
    service.members["orders"] = always(OpKind.UNKNOWN)
    half = service.send_one(born_at_ms=T0_MS - 77)
    for _ in range(3):
        service.beat()
    service.commit(half)
    service.settle()
    (message,) = service.consume()
    assert (len(service.asked), message.frame.fields["born_at_ms"], message.frame.stored_at_ms) == (3, T0_MS - 77, T0_MS)


def test_case_19_the_pending_count_is_exact_at_every_step(service):
    halves = service.send(*[b"%d" % number for number in range(10)])
    service.settle()
    seen = [service.pending]
    for end, ended in ((service.commit, halves[:3]), (service.roll_back, halves[3:5]), (service.commit, halves[:5])):
        end(*ended)
        service.settle()
        seen.append(service.pending)
    assert seen == [10, 7, 5, 5]


def test_case_20_somebody_live_is_asked_and_nobody_means_no_request(service):
    service.members["live"] = always(OpKind.COMMIT)
    asked = service.send(b"a", b"b", group="live")
    held = service.send(b"c", b"d", b"e", group="silent")
    counts = service.beat()
    assert (counts[Decision.CHECK], counts[Decision.HOLD]) == (2, 3)
    assert service.asked == asked
    assert service.bodies() == [b"a", b"b"]
    assert [service.check_count(half) for half in held] == [0, 0, 0]


def test_case_22_resuming_an_unreadable_half_is_an_error(service):
    half = service.send_one()
    service.operate(half, OpKind.DISCARD_MAX)
    service.settle()
    op_end = service.edge.op_end
    damage_half(service, half)
    (answer,) = service.operate(half, OpKind.RESUME)
    assert (answer.verdict, answer.reason) == (Verdict.REFUSED, "quarantined")
    assert service.edge.op_end == op_end
    with pytest.raises(Corrupt):
        service.edge.read_half(half)


def test_case_23_of_120_messages_exactly_the_commits_arrive(service):
    outcomes = ["commit", "rollback", "commit in check", "rollback in check", "unknown"]
    expected, said = [], {}
    for number in range(120):
        outcome = outcomes[number % len(outcomes)]
        body = b"%03d" % number
        half = service.send_one(body)
        said[half] = outcome
        if outcome.startswith("commit"):
            expected.append(body)
        if outcome == "commit":
            service.commit(half)
        elif outcome == "rollback":
            service.roll_back(half)
    answers = {"commit in check": OpKind.COMMIT, "rollback in check": OpKind.ROLLBACK, "unknown": OpKind.UNKNOWN}
    service.members["orders"] = lambda half: answers[said[half]]
    for _ in range(20):
        service.beat()
    assert service.bodies() == expected
    assert sorted(set(service.asked)) == [half for half, outcome in said.items() if outcome not in ("commit", "rollback")]
    unknown = [half for half, outcome in said.items() if outcome == "unknown"]
    assert service.discards() == [(half, State.DISCARDED_MAX) for half in unknown]
    assert service.pending == 0


# --- ends that repeat, contradict or come from elsewhere ----------------------------------------------------------------
def test_case_27_a_duplicate_commit_is_one_delivery_and_answered_already(service):
    half = service.send_one(b"once")
    before = [service.commit(half)[0].verdict, service.commit(half)[0].verdict]
    service.settle()
    after = service.commit(half)[0]
    service.settle()
    assert before == [Verdict.ACCEPTED, Verdict.ALREADY]
    assert (after.verdict, after.state) == (Verdict.ALREADY, State.COMMITTED)
    assert service.bodies() == [b"once"]
    assert service.edge.op_end == 1


@pytest.mark.parametrize(
    ("first", "second", "state", "visible"),
    [
        pytest.param(OpKind.ROLLBACK, OpKind.COMMIT, State.ROLLED_BACK, [], id="case_28"),
        pytest.param(OpKind.COMMIT, OpKind.ROLLBACK, State.COMMITTED, [b"body"], id="case_29"),
    ],
)
def test_case_28_29_the_opposite_end_is_a_conflict(service, first, second, state, visible):
    half = service.send_one()
    service.end(half, first)
    for _ in range(2):
        answer = service.end(half, second)
        service.settle()
        assert (answer.verdict, answer.state) == (Verdict.CONFLICT, state)
    assert (service.state(half), service.bodies(), service.pending) == (state, visible, 0)


def test_case_30_a_commit_after_the_discard_is_refused_until_an_operator_resumes(service):
    service.use(check_count_max=1)
    service.members["orders"] = always(None)
    half = service.send_one(b"late")
    for _ in range(4):
        service.beat()
    refused = service.commit(half)[0]
    service.settle()
    assert (refused.verdict, refused.reason, refused.state) == (Verdict.REFUSED, "discarded", State.DISCARDED_MAX)
    assert (service.bodies(), service.pending) == ([], 0)
    assert verdicts(service.operate(half, OpKind.RESUME, OpKind.COMMIT)) == [Verdict.ACCEPTED] * 2
    service.settle()
    assert (service.bodies(), service.pending, service.state(half)) == ([b"late"], 0, State.COMMITTED)
    assert service.job.marker.totals["resumes"] == 1


def test_case_31_a_commit_while_a_check_is_outstanding_ends_the_checks(service):
    service.members["orders"] = always(None)
    half = service.send_one()
    service.beat()
    assert service.asked == [half]
    service.commit(half)
    for _ in range(4):
        service.beat()
    assert (service.asked, service.bodies(), service.job.marker.check_end) == ([half], [b"body"], 1)


def test_case_31_a_request_that_was_overtaken_by_the_commit_is_not_handed_over(service):
    service.members["orders"] = always(OpKind.ROLLBACK)
    half = service.send_one()
    service.sleep(30)
    service.settle()
    service.round()
    service.commit(half)
    assert service.deliver() == []
    service.settle()
    assert service.bodies() == [b"body"]


def test_case_32_check_answer_and_commit_in_one_batch_are_one_delivery(service):
    half = service.send_one(b"once")
    ends = [End(half, OpKind.COMMIT, "orders", Via.CHECK), End(half, OpKind.COMMIT, "orders")]
    answers = service.edge.end(ends, service.now_ms)
    service.settle()
    assert verdicts(answers) == [Verdict.ACCEPTED, Verdict.ALREADY]
    assert service.bodies() == [b"once"]


@pytest.mark.parametrize("kinds", [(OpKind.COMMIT, OpKind.ROLLBACK), (OpKind.ROLLBACK, OpKind.COMMIT)])
def test_case_33_of_contradictory_ends_in_one_batch_the_first_wins_and_replay_says_the_same(service, kinds):
    halves = service.send(*[b"%d" % number for number in range(5)])
    ends = [End(half, kind, "orders") for half in halves for kind in kinds]
    answers = service.edge.end(ends, service.now_ms)
    service.settle()
    visible, states = service.bodies(), [service.state(half) for half in halves]
    assert verdicts(answers) == [Verdict.ACCEPTED, Verdict.CONFLICT] * 5
    assert len(visible) == (5 if kinds[0] == OpKind.COMMIT else 0)
    service.restart(clean=False, rebuild=True)
    assert (service.bodies(), [service.state(half) for half in halves]) == (visible, states)
    assert verdicts(service.commit(*halves)) == [Verdict.ALREADY if kinds[0] == OpKind.COMMIT else Verdict.CONFLICT] * 5


def test_case_34_the_wrong_group_is_refused_and_the_half_stays_pending(service):
    half = service.send_one()
    service.send_one(group="others")
    for group in ("others", "never heard of"):
        answer = service.commit(half, group=group)[0]
        assert (answer.verdict, answer.reason) == (Verdict.REFUSED, "wrong group")
    service.settle()
    assert (service.edge.op_end, service.bodies(), service.state(half)) == (0, [], State.PREPARED)


@pytest.mark.parametrize("half_offset", [1, 64, 10**12, -1, -(10**12)], ids=lambda value: f"half {value}")
def test_case_35_36_an_unknown_or_forged_id_is_refused_and_creates_nothing(service, half_offset):
    service.send_one()
    service.settle()
    log_end, files = service.edge.log.end, sorted(contents(service.root, "half", "op", "ends"))
    for kind in (OpKind.COMMIT, OpKind.ROLLBACK, OpKind.RESUME, OpKind.DISCARD_MAX):
        answer = service.end(half_offset, kind, group=None)
        assert (answer.verdict, answer.reason) == (Verdict.REFUSED, "unknown id")
    service.edge.wait(service.edge.append_asked([half_offset], "member", service.now_ms))
    service.settle()
    assert (service.edge.log.end, service.edge.op_end, service.pending) == (log_end, 0, 1)
    assert sorted(contents(service.root, "half", "op", "ends")) == files


@pytest.mark.parametrize("records_max", [1, 2, 3, 7])
def test_case_37_an_end_never_overtakes_its_half_and_is_never_lost(service, records_max):
    halves = service.send(*[b"%02d" % number for number in range(20)])
    service.commit(*reversed(halves))
    feeds = service.settle(records_max)
    assert service.bodies() == [b"%02d" % number for number in range(20)]
    assert all(feed.ops["half_offset"].max(initial=-1) < feed.half_stop for feed in feeds)


# --- when a half is asked -------------------------------------------------------------------------------------------------
def test_case_38_age_equal_to_the_timeout_is_not_checked_and_one_second_more_is(service):
    service.members["orders"] = always(None)
    service.send_one()
    service.settle()
    service.sleep(6)
    assert service.round()[Decision.CHECK] == 0
    service.sleep(0.999)
    assert service.round()[Decision.CHECK] == 0
    service.sleep(0.001)
    assert service.round()[Decision.CHECK] == 1


def test_case_39_immunity_delays_the_first_check_and_costs_none(service):
    service.members["orders"] = always(OpKind.UNKNOWN)
    half = service.send_one(immunity_s=600)
    asked_at = []
    for _ in range(60):
        before = len(service.asked)
        service.beat(30)
        if len(service.asked) > before:
            asked_at.append((service.now_ms - T0_MS) // 1000)
    assert asked_at == [630 + 30 * number for number in range(15)]
    assert service.discards() == [(half, State.DISCARDED_MAX)]


def test_case_40_a_commit_inside_immunity_is_one_delivery_without_a_check(service):
    service.members["orders"] = always(OpKind.ROLLBACK)
    half = service.send_one(b"in time", immunity_s=600)
    for _ in range(10):
        service.beat(30)
    service.commit(half)
    for _ in range(30):
        service.beat(30)
    assert (service.bodies(), service.asked, service.job.marker.check_end) == ([b"in time"], [], 0)


@pytest.mark.parametrize("hours", [-1, 1])
def test_case_43_the_producers_clock_has_no_effect(service, hours):
    service.members["orders"] = always(None)
    half = service.send_one(born_at_ms=T0_MS + hours * 3_600_000)
    service.beat(6)
    assert service.asked == []
    service.beat(1)
    assert service.asked == [half]
    assert int(service.row(half)["stored_at_s"]) == T0_MS // 1000


def test_case_44_45_nobody_online_costs_no_attempt_and_a_member_who_returns_resolves_it(service):
    half = service.send_one(b"back")
    held = [service.beat()[Decision.HOLD] for _ in range(40)]
    assert held == [1] * 40
    assert (service.check_count(half), service.job.marker.check_end, service.discards()) == (0, 0, [])
    service.members["orders"] = always(OpKind.COMMIT)
    service.beat()
    assert (service.asked, service.bodies(), service.pending) == ([half], [b"back"], 0)


def test_case_46_a_request_that_nobody_took_is_not_counted(service):
    """The job emits it; the edge finds nobody any more. Only the hand-over counts."""
    service.members["orders"] = always(OpKind.UNKNOWN)
    half = service.send_one()
    service.sleep(30)
    service.settle()
    assert service.round()[Decision.CHECK] == 1
    del service.members["orders"]
    assert service.deliver() == []
    service.settle()
    assert service.check_count(half) == 0
    service.members["orders"] = always(OpKind.UNKNOWN)
    service.beat()
    assert (service.asked, service.check_count(half)) == ([half], 1)


def test_case_47_unknown_for_ever_is_exactly_check_max_checks_and_one_discard_record(service):
    service.members["orders"] = always(OpKind.UNKNOWN)
    half = service.send_one()
    for _ in range(25):
        service.beat()
    assert service.asked == [half] * 15
    assert service.discards() == [(half, State.DISCARDED_MAX)]
    assert service.job.marker.totals["discards_max"] == 1
    assert service.job.log.history(half)[-1].fields["op_kind"] == OpKind.DISCARD_MAX
    assert service.pending == 0


def test_case_47_no_discard_sooner_than_a_whole_interval_after_the_last_hand_over(service):
    service.use(check_count_max=2)
    service.members["orders"] = always(None)
    service.send_one()
    decided = []
    for _ in range(6):
        counts = service.beat()
        decided.append(next(decision for decision in reversed(Decision) if counts[decision]) if any(counts.values()) else None)
    assert decided == [Decision.CHECK, Decision.CHECK, Decision.WAIT, Decision.DISCARD_MAX, None, None]


def test_case_48_a_discard_that_cannot_be_stored_leaves_the_half_pending(service):
    service.use(check_count_max=1)
    service.members["orders"] = always(None)
    half = service.send_one()
    service.beat()
    service.beat()
    service.sleep(30)
    assert service.round()[Decision.DISCARD_MAX] == 1
    disk.arm("commitlog.write", "ENOSPC")
    with pytest.raises(StoreUnusable, match="disk is full"):
        service.take_proposals()
    service.settle()
    assert (service.state(half), service.pending, service.discards()) == (State.PREPARED, 1, [])
    disk.arm(None)
    assert verdicts(service.take_proposals()) == [Verdict.ACCEPTED]
    service.settle()
    assert (service.state(half), service.pending) == (State.DISCARDED_MAX, 0)


def test_case_48_a_proposal_that_was_lost_is_made_again(service):
    service.use(check_count_max=1)
    service.members["orders"] = always(None)
    half = service.send_one()
    for _ in range(3):
        service.beat()
        service.proposal_cursor = service.job.marker.proposal_end
    for _ in range(4):
        service.beat()
    assert service.discards() == [(half, State.DISCARDED_MAX)]


def test_case_49_older_than_retention_is_one_skip_record_with_its_own_reason(service):
    service.use(retention_s=3600)
    half = service.send_one()
    service.beat(3600)
    assert service.discards() == []
    service.beat(1)
    for _ in range(3):
        service.beat()
    assert service.discards() == [(half, State.DISCARDED_EXPIRED)]
    assert (service.job.marker.totals["discards_expired"], service.job.marker.totals["discards_max"]) == (1, 0)
    assert (service.state(half), service.asked, service.pending) == (State.DISCARDED_EXPIRED, [], 0)


def test_case_50_an_op_far_behind_its_half_is_found_and_no_check_goes_out(service):
    service.members.update(orders=always(OpKind.ROLLBACK), others=always(OpKind.COMMIT))
    half = service.send_one(b"far")
    for number in range(150):
        service.commit(service.send_one(b"%d" % number, group="others", topic="else"), group="others")
    service.commit(half)
    service.sleep(60)
    while not service.is_caught_up():
        assert service.round()[Decision.CHECK] == 0
        service.settler.settle(service.feed(20), service.now_ms)
    assert service.round()[Decision.CHECK] == 0
    assert (service.bodies(), service.job.marker.check_end) == ([b"far"], 0)


# --- damage ---------------------------------------------------------------------------------------------------------------
def test_case_52_a_corrupt_op_is_ignored_counted_and_settled_by_check_back(service):
    first, second = service.send(b"first", b"second")
    service.commit(first)
    service.commit(second)
    damage_op(service, 0)
    effects = service.settler.settle(service.feed(), service.now_ms).effects
    assert (effects[Effect.CORRUPT], effects[Effect.RELEASE]) == (1, 1)
    assert service.bodies() == [b"second"]
    assert service.queue("quarantine", 0, 1)["tags_code"].tolist() == [-1 - 0]
    assert service.edge.reopen(0) == first
    service.members["orders"] = always(OpKind.COMMIT)
    service.beat()
    assert (service.asked, service.bodies(), service.pending) == ([first], [b"first", b"second"], 0)


def test_case_52_duplicate_and_empty_ops_change_nothing(service):
    half = service.send_one()
    service.commit(half)
    service.settle()
    log_end = service.edge.log.end
    service.edge.wait(service.edge.append_asked([], "member", service.now_ms))
    service.edge.wait(service.edge.append_asked([half], "member", service.now_ms))
    assert service.edge.end([], service.now_ms) == []
    assert service.commit(half)[0].verdict is Verdict.ALREADY
    assert service.edge.log.end == log_end
    assert service.settle() == []


@pytest.mark.parametrize(
    ("number", "point"),
    [(53, "apply.rows"), (53, "apply.queues"), (54, "redo.write"), (54, "redo.flush")],
    ids=str,
)
def test_case_53_54_a_crash_around_the_release_is_one_delivery(service, number, point):
    half = service.send_one(b"once")
    service.settle()
    answer = service.commit(half)[0]
    disk.arm(point, "EIO")
    with pytest.raises(Exception, match="Input/output error"):
        service.settle()
    disk.arm(None)
    service.restart(clean=False)
    service.settle()
    service.settler.settle(service.feed(), service.now_ms)
    (message,) = service.consume()
    assert (message.body, place(answer.position)) == (b"once", (0, message.queue_id, message.queue_offset))
    assert (service.state(half), service.pending, service.job.marker.totals["commits"]) == (State.COMMITTED, 0, 1)


def test_case_53_a_job_that_failed_half_way_refuses_to_go_on(service):
    service.send_one()
    disk.arm("apply.queues", "EIO")
    with pytest.raises(OSError, match="Input/output"):
        service.settle()
    disk.arm(None)
    with pytest.raises(StoreUnusable, match="earlier failure"):
        service.settle()


def test_case_55_a_crash_inside_a_round_repeats_no_check_as_a_new_attempt(service, monkeypatch):
    monkeypatch.setattr(streaming.settlement.settle, "ROUND_PART_ROWS", 16)
    service.members["orders"] = always(None)
    halves = service.send(*[b"x"] * 50)
    service.settle()
    service.sleep(30)
    disk.arm("redo.write", "EIO", nth=4)  # the round's beginning, then its third part
    with pytest.raises(StoreUnusable):
        service.round()
    disk.arm(None)
    service.restart(clean=False)
    emitted = service.job.marker.check_end
    service.round(new=False)
    assert 0 < emitted < len(halves)
    assert service.queue("check", 0, service.job.marker.check_end)["tags_code"].tolist() == halves
    service.deliver()
    service.settle()
    assert [service.check_count(half) for half in halves] == [1] * 50


def test_case_56_one_poison_half_does_not_stop_the_rest(service):
    halves = service.send(*[b"%d" % number for number in range(6)])
    service.commit(*halves[:3])
    damage_half(service, halves[1])
    damage_half(service, halves[4])
    service.members["orders"] = always(OpKind.COMMIT)
    for _ in range(2):
        service.beat()
    assert service.bodies() == [b"0", b"2", b"3", b"5"]
    assert [service.state(half) for half in (halves[1], halves[4])] == [State.QUARANTINED] * 2
    assert service.queue("quarantine", 0, 2)["tags_code"].tolist() == [halves[1], halves[4]]
    totals = service.job.marker.totals
    assert (totals["quarantined"], totals["commits"], service.pending) == (2, 4, 0)


def test_case_56_the_commit_of_a_poison_half_leaves_a_hole_and_the_others_their_places(service):
    halves = service.send(b"a", b"b", b"c", queue_id=2)
    service.commit(*halves)
    damage_half(service, halves[1])
    service.settle()
    assert [(message.queue_offset, message.body) for message in service.consume()] == [(0, b"a"), (2, b"c")]
    assert service.job.catalogue.extent(0 << 6 | 2) == (0, 3)


def test_case_57_one_old_pending_head_does_not_delay_the_later_ones(service):
    service.members["orders"] = always(OpKind.COMMIT)
    head = service.send_one(b"stuck", group="gone")
    for number in range(200):
        service.send_one(b"%03d" % number)
        if number % 20 == 19:
            service.beat(30)
            assert len(service.bodies()) == number + 1
    assert (service.state(head), service.pending) == (State.PREPARED, 1)


def test_case_58_a_round_over_a_million_pending_rewrites_no_body_and_is_bounded(tmp_path: Path):
    geometry = Geometry(
        commit_log_segment_bytes=64 << 20,
        state_rows_per_file=500_000,
        redo_entries_per_file=2_000_000,
        log_queue_entries_per_file=1_000_000,
        topic_queue_entries_per_file=65_536,
    )
    policy = Policy(outstanding_per_group_max=1000)
    with Service(tmp_path / "store", geometry=geometry, policy=policy) as service:
        batch = [Message("orders", "paid", b"")] * 50_000
        for _ in range(20):
            service.edge.append_halves(batch, service.now_ms)
        service.edge.wait(service.edge.log.end)
        service.settle(records_max=1 << 18)
        assert service.job.table.pending == 10**6
        service.members["orders"] = always(None)
        service.sleep(30)
        log_end, redo_end = service.edge.log.end, service.job.redo.end
        counts = service.round()
        parts = 1 + 2 * -(-geometry.state_rows_per_file // streaming.settlement.settle.ROUND_PART_ROWS)
        assert (counts[Decision.CHECK], sum(counts.values())) == (1000, 10**6)
        assert service.edge.log.end == log_end
        # 20 bytes a request, and a marker for the round and for each of its parts.
        assert service.job.redo.end - redo_end <= 1000 * 20 + parts * 160
        service.crash()
        service.open()


def test_case_59_a_half_with_a_delay_is_refused_at_prepare(service):
    for name in sorted(DELAY_PROPERTIES):
        with pytest.raises(DelayedHalf, match=name):
            service.send(b"fine", b"late", properties={name: "3"})
    service.settle()
    assert (service.edge.half_end, service.edge.log.end, service.pending) == (0, 0, 0)


# --- operators, recovery ----------------------------------------------------------------------------------------------------
def test_case_61_a_resume_sets_the_count_to_0_and_the_gauge_up_by_one(service):
    service.use(check_count_max=2)
    service.members["orders"] = always(OpKind.UNKNOWN)
    half = service.send_one(immunity_s=7)
    for _ in range(6):
        service.beat()
    assert (service.pending, service.state(half)) == (0, State.DISCARDED_MAX)
    assert verdicts(service.operate(half, OpKind.RESUME)) == [Verdict.ACCEPTED]
    service.settle()
    assert (service.pending, service.state(half), service.check_count(half)) == (1, State.PREPARED, 0)
    assert int(service.row(half)["stored_at_s"]) == service.now_ms // 1000
    before = len(service.asked)
    for _ in range(6):
        service.beat()
    assert len(service.asked) - before == 2
    assert service.discards() == [(half, State.DISCARDED_MAX)] * 2


def test_case_61_a_resume_makes_its_file_scannable_again(service):
    halves = service.send(*[b"x"] * 70)
    service.roll_back(*halves[1:])
    service.operate(halves[0], OpKind.DISCARD_MAX)
    service.settle()
    assert service.job.table.scannable() == []
    service.operate(halves[0], OpKind.RESUME)
    service.settle()
    assert service.job.table.scannable() == [0]


@pytest.mark.parametrize("keep", [0, 1, 31, 32, 119, 120, 200], ids=lambda keep: f"{keep} bytes of the batch")
def test_case_62_a_torn_tail_is_cut_to_the_last_whole_batch(service, keep):
    acknowledged = service.send(b"kept", b"kept too")
    end = service.edge.log.end
    service.edge.append_halves([Message("orders", "paid", b"torn 1"), Message("orders", "paid", b"torn 2")], service.now_ms)
    whole = service.edge.log.end
    service.crash()
    path = service.edge.directory.commit_log / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(end + keep)
        file.write(bytes(whole - end - keep))
    service.open()
    assert (service.edge.log.end, service.edge.half_end) == (end, 2)
    assert service.edge.recovery.cut_at == end
    assert not any(path.read_bytes()[end:])
    assert service.send(b"after") == [2]
    service.commit(*acknowledged, 2)
    service.settle()
    assert service.bodies() == [b"after", b"kept", b"kept too"]


def test_case_62_an_unacknowledged_batch_that_is_whole_is_kept_whole(service):
    service.edge.append_halves([Message("orders", "paid", b"%d" % number) for number in range(3)], service.now_ms)
    service.crash()
    service.open()
    service.settle()
    assert (service.edge.half_end, service.pending) == (3, 3)


def test_case_63_a_redo_log_over_many_files_with_ends_in_later_ones_rebuilds_exactly(service):
    halves = service.send(*[b"%03d" % number for number in range(150)])
    service.settle()
    assert len(service.job.redo.file.starts()) >= 3  # one batch over that many files
    service.commit(*halves[::3])
    service.settle()
    service.roll_back(*halves[1::3])
    service.settle(records_max=9)
    rows = service.job.table.get(np.arange(150)).copy()
    visible = service.consume()
    service.restart(clean=False, rebuild=True)
    assert service.job.recovery.rebuilt
    assert service.job.table.get(np.arange(150)).tolist() == rows.tolist()
    assert service.consume() == visible
    assert service.pending == 50
    pending = [int(half) for half in np.flatnonzero(state_of(service.job.table.get(np.arange(150))["word"]) == State.PREPARED)]
    assert pending == halves[2::3]


@pytest.mark.parametrize("how", ["clean", "unclean", "rebuilt"])
def test_case_64_an_id_issued_before_works_after(service, how):
    halves = service.send(*[b"%03d" % number for number in range(100)])
    service.commit(*halves[:10])
    service.settle()
    service.restart(clean=how == "clean", rebuild=how == "rebuilt")
    assert verdicts(service.commit(*halves[:20])) == [Verdict.ALREADY] * 10 + [Verdict.ACCEPTED] * 10
    assert verdicts(service.roll_back(*halves[15:25])) == [Verdict.CONFLICT] * 5 + [Verdict.ACCEPTED] * 5
    service.settle()
    assert service.bodies() == [b"%03d" % number for number in range(20)]
    assert service.pending == 75


def test_case_65_aa_and_bb_are_never_taken_for_each_other(service):
    assert tags_code("Aa") == tags_code("BB")
    mine, theirs = service.send_one(b"mine", group="Aa"), service.send_one(b"theirs", group="BB")
    assert service.commit(mine, group="BB")[0].reason == "wrong group"
    service.members["BB"] = always(OpKind.COMMIT)
    counts = service.beat()
    assert (counts[Decision.CHECK], counts[Decision.HOLD], service.asked) == (1, 1, [theirs])
    assert service.bodies() == [b"theirs"]
    service.restart(clean=False, rebuild=True)
    assert service.edge.dictionary.groups == ["Aa", "BB"]
    assert service.commit(mine, group="Aa")[0].verdict is Verdict.ACCEPTED


def test_case_66_the_gauge_identity_holds_after_every_replay(service):
    service.use(check_count_max=1)
    halves = service.send(*[b"%d" % number for number in range(30)])
    service.commit(*halves[:5])
    service.roll_back(*halves[5:8])
    service.members["orders"] = always(None)
    for _ in range(4):
        service.beat()
    service.operate(halves[9], OpKind.RESUME)
    more = service.send(b"a", b"b", b"c")
    damage_half(service, more[1])
    service.settle()
    totals = dict(service.job.marker.totals)
    assert totals == {
        "prepares": 33,
        "resumes": 1,
        "commits": 5,
        "rollbacks": 3,
        "discards_max": 22,
        "discards_expired": 0,
        "quarantined": 1,
        "messages": 0,
    }
    for clean, rebuild in ((True, False), (False, False), (False, True)):
        service.restart(clean=clean, rebuild=rebuild)
        assert (service.job.marker.totals, service.pending) == (totals, 3)


def test_case_67_a_standby_sends_no_checks(service):
    service.use(standby=True, retention_s=3600)
    service.members["orders"] = always(OpKind.COMMIT)
    service.send_one()
    for _ in range(3):
        counts = service.beat(4000)
        assert sum(counts[decision] for decision in (Decision.CHECK, Decision.DISCARD_MAX, Decision.DISCARD_EXPIRED)) == 0
    assert (service.asked, service.job.marker.check_end, service.job.marker.proposal_end) == ([], 0, 0)
    service.use(standby=False, retention_s=72 * 3600)
    service.beat()
    assert service.bodies() == [b"body"]


def test_outstanding_requests_of_one_group_are_bounded(service):
    service.use(outstanding_per_group_max=3)
    service.members.update(orders=always(None), others=always(None))
    halves = service.send(*[b"x"] * 10)
    theirs = service.send(*[b"y"] * 2, group="others")
    service.beat()
    assert service.asked == [*halves[:3], *theirs]
    assert service.settler.waits_for_answers, "their answers make room: they are settled as they come, whatever settleInterval says"


def test_nobody_waits_for_answers_while_no_group_is_full(service):
    service.use(outstanding_per_group_max=3)
    service.members.update(orders=always(None))
    service.send(*[b"x"] * 2)
    service.beat()
    assert not service.settler.waits_for_answers
