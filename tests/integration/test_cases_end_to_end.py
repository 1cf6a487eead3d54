"""The cases of docs/cases.md through Spark, with time injected, by their numbers. test_case_table.py has all of them."""

from __future__ import annotations

from random import Random

from store.messages import Message
from store.records import OpKind, State, Via
from store.tables.ends import Verdict

#: Files in which a million halves fit into a few.
MILLION = (
    "commitLogSegmentSize=64MiB",
    "tranStateTableMapedFileSize=12000000",
    "tranRedoLogMapedFileSize=40000000",
    "logQueueEntriesPerFile=1000000",
    "outstandingPerGroupMax=1000",
)

# --- prepare and end --------------------------------------------------------------------------------------------------


def test_ends_of_four_halves_1_2_3_6_15_19(world):
    world.settle()  # 15: an empty queue
    assert world.released() == []
    halves = [world.half(b"%d" % n) for n in range(4)]
    world.edge.wait(world.edge.append_messages([Message("g", "plain", b"at once")], world.clock.now_ms()).ticket)
    world.settle()
    assert [bytes(world.edge.read_half(half).body) for half in halves] == [b"0", b"1", b"2", b"3"]  # 1: stored,
    assert world.released() == []  # invisible,
    assert world.released("plain") == [b"at once"]  # 2: unlike a message without a transaction
    assert world.job.store.marker.pending == 4
    assert world.commit(halves[0]).verdict is Verdict.ACCEPTED
    world.rollback(halves[1])
    world.end(halves[2], OpKind.UNKNOWN)  # 5
    world.settle()
    assert world.released() == [b"0"]  # 3, 6
    assert [world.state(half) for half in halves] == [State.COMMITTED, State.ROLLED_BACK, State.PREPARED, State.PREPARED]
    assert world.metric("escrow_settled_total", outcome="commit", via="producer") == 1
    world.assert_gauge()  # 19


def test_commit_from_a_check_is_the_same_4_5(world):
    asked = world.half(b"asked")
    world.online()
    assert world.round() == [asked]
    world.hand_over([asked])
    world.end(asked, OpKind.UNKNOWN, via=Via.CHECK)
    world.settle()
    assert world.state(asked) is State.PREPARED
    assert world.check_count(asked) == 1
    world.commit(asked, via=Via.CHECK)
    world.settle()
    assert world.released() == [b"asked"]
    assert world.metric("escrow_settled_total", outcome="commit", via="check") == 1


def test_repeated_and_contradictory_ends_27_28_29(world):
    one, two = world.half(b"one"), world.half(b"two")
    world.commit(one)
    world.rollback(two)
    world.settle()
    assert world.commit(one).verdict is Verdict.ALREADY
    assert world.rollback(one).verdict is Verdict.CONFLICT
    assert world.commit(two).verdict is Verdict.CONFLICT
    world.settle()
    assert world.released() == [b"one"]


def test_in_one_batch_the_first_in_the_log_wins_33(world):
    half = world.half(b"first")
    assert world.commit(half).verdict is Verdict.ACCEPTED
    assert world.rollback(half).verdict is Verdict.CONFLICT
    world.settle()
    assert world.released() == [b"first"]


def test_wrong_group_and_unknown_ids_34_35_36(world):
    half = world.half()
    assert world.commit(half, group="other").verdict is Verdict.REFUSED
    assert world.commit(half + 1).verdict is Verdict.REFUSED
    assert world.commit(-5).verdict is Verdict.REFUSED
    world.settle()
    assert world.state(half) is State.PREPARED
    assert world.edge.half_end == 1


def test_an_end_before_its_half_is_streamed_37_50(make_world):
    world = make_world("maxRecordsPerBatch=7", start=False)
    halves = [world.half(b"%d" % n) for n in range(40)]
    for half in reversed(halves):  # the ops of the last halves come first: each must wait for its half
        world.commit(half)
    world.online()
    world.clock.advance(60)  # old enough to be asked about, did one not see that they have ended
    world.start_job()
    world.settle()
    assert sorted(world.released()) == sorted(b"%d" % n for n in range(40))
    assert world.requests() == []


# --- when a half is checked -------------------------------------------------------------------------------------------


def test_immunity_9_38_41_42(world):
    """Whole seconds on both sides: an age of exactly the immunity waits, one second more is checked."""
    texts = {"1": 6, "5": 6, None: 6, "-1": 6, "100.5": 6, "": 6, "abc": 6, "7": 7, "100": 100, "9" * 30: 72 * 3600}
    halves = {world.half(immunity=text): immunity_s for text, immunity_s in texts.items()}
    world.settle()
    age_s = 0
    for target_s in (6, 7, 8, 100, 101):
        world.job.rounds._due_ms = 0  # a round for each look
        world.online()
        asked = set(world.round(target_s - age_s))
        assert asked == {half for half, immunity_s in halves.items() if immunity_s < target_s}
        age_s = target_s


def test_one_check_a_round_11_55(world):
    half = world.half()
    world.online()
    assert world.round() == [half]
    world.hand_over([half])
    world.settle()
    world.settle()
    assert world.requests() == []
    world.online()
    assert world.round() == [half]


def test_unknown_for_ever_10_30_47(make_world):
    world = make_world("transactionCheckMax=3")
    half = world.half(b"never")
    asked = 0
    for _ in range(12):
        world.online()
        requests = world.round()
        asked += len(requests)
        if requests:
            world.hand_over(requests)
            world.end(half, OpKind.UNKNOWN, via=Via.CHECK)
        world.turn_proposals()
    world.settle()
    assert asked == 3
    assert world.discards() == [(half, State.DISCARDED_MAX)]
    assert world.commit(half).verdict is not Verdict.ACCEPTED
    assert world.metric("escrow_discards_total", reason="check_max") == 1
    world.settle()
    assert world.released() == []
    world.assert_gauge()


def test_born_time_is_kept_and_never_used_16_43(world):
    hour_ms = 3_600_000
    early = world.half(b"early", born_at_ms=world.clock.now_ms() - hour_ms)
    late = world.half(b"late", born_at_ms=world.clock.now_ms() + hour_ms)
    world.online()
    assert world.round() == [early, late]
    world.commit(early)
    world.settle()
    assert world.edge.read_half(early).fields["born_at_ms"] == world.clock.now_ms() - 30_000 - hour_ms
    (released,) = world.released_frames()
    assert (released.body, released.fields["born_at_ms"]) == (b"early", world.clock.now_ms() - 30_000 - hour_ms)


def test_nobody_there_is_not_counted_20_44_45(make_world):
    world = make_world("presenceTtl=30s")
    half = world.half(b"back", group="away")
    for _ in range(3):
        assert world.round() == []
    assert world.metric("escrow_checks_held") == 1
    assert world.check_count(half) == 0
    world.online("away")
    assert world.round(31) == []  # presence has gone stale meanwhile: presenceTtl is 30 s
    world.clock.advance(30)
    world.online("away")
    world.settle()
    assert world.requests() == [half]
    world.hand_over([half])
    world.commit(half, group="away", via=Via.CHECK)
    world.settle()
    assert (world.released(), world.check_count(half)) == ([b"back"], 1)


def test_an_end_stops_the_checks_31_32(world):
    first, second = world.half(b"1"), world.half(b"2")
    world.online()
    world.hand_over(world.round())
    world.commit(first)
    world.end(second, OpKind.UNKNOWN, via=Via.CHECK)
    world.commit(second)
    world.settle()
    world.online()
    assert world.round() == []
    assert world.released() == [b"1", b"2"]


def test_a_long_immunity_costs_no_attempt_39(world):
    """Immunity 600 s, checkMax 15, interval 30 s."""
    half = world.half(immunity="600")
    asked = []
    for second in range(30, 1_201, 30):
        world.online()
        requests = world.round()
        world.hand_over(requests)
        asked += [second] * len(requests)
    assert asked == [630 + 30 * n for n in range(15)]  # the first round whose age exceeds 600, and still 15
    assert world.turn_proposals()[0] == (half, "ACCEPTED")


def test_a_commit_inside_the_immunity_40(world):
    half = world.half(b"slow", immunity="300")
    for _ in range(3):
        world.online()
        assert world.round() == []
    world.commit(half)
    world.settle()
    assert world.released() == [b"slow"]


def test_expired_has_its_own_reason_49(make_world):
    world = make_world("fileReservedTime=1")
    half = world.half()
    world.settle()
    world.round(3_601)
    assert world.turn_proposals() == [(half, "ACCEPTED")]
    world.settle()
    assert world.discards() == [(half, State.DISCARDED_EXPIRED)]
    assert world.metric("escrow_discards_total", reason="expired") == 1


def test_resume_61(make_world):
    world = make_world("transactionCheckMax=1")
    half = world.half(b"again")
    for _ in range(4):
        world.online()
        world.hand_over(world.round())
        world.turn_proposals()
    world.settle()
    assert world.state(half) is State.DISCARDED_MAX
    world.end(half, OpKind.RESUME, group=None, via=Via.OPERATOR)
    world.settle()
    assert (world.state(half), world.check_count(half)) == (State.PREPARED, 0)
    world.assert_gauge()
    world.commit(half, group=None, via=Via.OPERATOR)
    world.settle()
    assert world.released() == [b"again"]
    assert world.metric("escrow_settled_total", outcome="commit", via="operator") == 1


def test_groups_with_the_same_java_hash_65(world):
    a, b = world.half(group="Aa"), world.half(group="BB")
    world.online("BB")
    assert world.round() == [b]
    world.online("Aa")
    world.commit(b, group="BB")
    assert world.round() == [a]


def test_a_standby_asks_nobody_67(make_world):
    world = make_world("role=standby")
    world.half()
    world.online()
    assert world.round() == []
    assert world.job.store.marker.round_no == 0


def test_checks_can_be_switched_off(make_world):
    world = make_world("checkTransactionMessageEnable=false", "fileReservedTime=1")
    half = world.half()
    world.online()
    assert world.round() == []
    world.round(3_700)
    assert world.turn_proposals() == [(half, "ACCEPTED")]  # the disk must stay bounded all the same


def test_the_interval_is_kept(make_world):
    world = make_world("transactionCheckInterval=60s", "transactionTimeOut=1s")
    half = world.half()
    world.online()
    world.settle()  # the first round comes at once; the half is too young
    assert world.round(30) == []
    world.online()
    assert world.round(31) == [half]


def test_the_atleast_interval_is_kept(make_world):
    world = make_world("checkTransactionMessageAtleastInterval=60s")
    half = world.half()
    world.settle()
    world.online()
    assert world.round(45) == []
    world.online()
    assert world.round(45) == [half]


def test_outstanding_requests_of_a_group_are_bounded(make_world):
    world = make_world("outstandingPerGroupMax=2")
    halves = [world.half() for _ in range(5)]
    world.online()
    assert world.round() == halves[:2]


# --- many at once -----------------------------------------------------------------------------------------------------


def test_a_hundred_and_twenty_messages_23(world):
    chance = Random(23)
    plans = ["commit", "rollback", "commit in check", "rollback in check", "unknown"] * 24
    chance.shuffle(plans)
    halves = {world.half(b"%d %s" % (n, plan.encode())): plan for n, plan in enumerate(plans)}
    for half, plan in halves.items():
        if plan in ("commit", "rollback"):
            world.end(half, OpKind.COMMIT if plan == "commit" else OpKind.ROLLBACK)
    world.online()
    requests = world.round()
    assert sorted(requests) == [half for half, plan in halves.items() if plan not in ("commit", "rollback")]
    world.hand_over(requests)
    kinds = {"commit in check": OpKind.COMMIT, "rollback in check": OpKind.ROLLBACK, "unknown": OpKind.UNKNOWN}
    for half in requests:
        world.end(half, kinds[halves[half]], via=Via.CHECK)
    world.settle()
    wanted = sorted(b"%d %s" % (n, plan.encode()) for n, plan in enumerate(plans) if plan.startswith("commit"))
    assert sorted(world.released()) == wanted
    assert world.job.store.marker.pending == 24
    world.assert_gauge()


def test_an_old_pending_head_delays_nobody_57(world):
    head = world.half(b"head", immunity="5000")
    halves = [half for n in range(5) for half in world.halves(b"%d %d" % (n, at) for at in range(500))]  # three state files
    world.end_all(halves[::100], OpKind.COMMIT)
    world.end_all([half for n, half in enumerate(halves) if n % 100], OpKind.ROLLBACK)
    world.settle()
    assert len(world.released()) == 25
    assert world.state(head) is State.PREPARED
    assert world.job.store.table.scannable() == [0]


def test_a_million_pending_58(make_world):
    """One round over all of them: no body is written again, and what it writes is bounded by what it asks."""
    world = make_world(*MILLION)
    for _ in range(20):
        world.edge.append_halves([Message("g", "t", b"")] * 50_000, world.clock.now_ms())
    world.edge.wait(world.edge.log.end)
    world.settle()
    assert world.job.store.marker.pending == 1_000_000
    world.online()
    log_end, redo_end = world.edge.log.end, world.job.store.redo.end
    assert len(world.round()) == 1_000  # outstandingPerGroupMax
    assert world.edge.log.end == log_end
    assert world.job.store.redo.end - redo_end <= 1_000 * 20 + 10 * 160
    world.commit(999_999)
    world.settle()
    assert world.released() == [b""]
    assert world.metric("escrow_pending") == 999_999


# --- a crash of the edge ----------------------------------------------------------------------------------------------


def test_a_torn_tail_is_cut_while_the_job_runs_on_62(world):
    kept = [world.half(b"kept"), world.half(b"kept too")]
    world.settle()
    end = world.edge.log.end
    world.edge.append_halves([Message("g", "t", b"torn 1"), Message("g", "t", b"torn 2")], world.clock.now_ms())
    whole = world.edge.log.end
    world.crash_edge()  # nobody has waited for the flush: the batch was not acknowledged
    with open(world.edge.directory.commit_log / f"{0:020d}", "r+b") as segment:
        segment.seek((end + whole) // 2 + 60)  # the second half of the batch never reached the disk
        segment.write(bytes(whole - (end + whole) // 2 - 60))
    world.open_edge()
    assert (world.edge.log.end, world.edge.half_end, world.edge.recovery.cut_at) == (end, 2, end)
    assert not any((world.edge.directory.commit_log / f"{0:020d}").read_bytes()[end:whole]), "cut, so that nothing of it comes back"
    world.settle()
    assert world.job.store.marker.half_cursor == 2
    after = world.half(b"after")
    assert after == 2, "the number of the torn half is given out again"
    world.end_all([*kept, after], OpKind.COMMIT)
    world.settle()
    assert sorted(world.released()) == [b"after", b"kept", b"kept too"]
    world.assert_gauge()
