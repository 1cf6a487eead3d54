"""The cases of docs/cases.md in which edge and job play together: real edge core, real Spark, injected time."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from ingest.errors import Standby
from store.errors import Corrupt, DelayedHalf
from store.io import disk
from store.records import OpKind, State, Via
from tests.support.core_world import CoreWorld, MemberGone
from tests.support.job_world import spoil

# --- check delivery ---------------------------------------------------------------------------------------------------


def test_a_member_that_goes_away_while_it_is_asked_21_46(core):
    asked, other = core.send("asked"), core.send("other")
    core.ask_round()
    with pytest.raises(MemberGone):
        core.poll("gone", breaks=True)
    assert core.tell(other, "commit").verdict == "accepted"  # 21: nobody else is harmed, nor is the edge
    late = core.send("late")
    assert not core.core.failed.done()
    core.settle()
    assert core.check_count(core.half_of(asked)) == 0, "it did not get it: not counted"
    assert core.poll("there") == [asked]  # 46: another member, in the same round
    core.settle()
    assert core.check_count(core.half_of(asked)) == 1
    (op,) = core.history(asked)
    assert (op.fields["op_kind"], op.detail["actor"]) == (OpKind.ASKED, "there")
    assert core.poll("there") == []
    core.tell(asked, "commit", from_check=True)
    core.settle()
    assert sorted(core.released()) == [b"asked", b"other"]
    assert core.state(core.half_of(late)) is State.PREPARED
    core.assert_gauge()


def test_a_request_that_the_commit_overtook_is_not_handed_over_31(core):
    id = core.send("quick")
    core.ask_round()
    core.tell(id, "commit")
    assert core.poll() == []
    core.settle()
    assert core.released() == [b"quick"]


def test_unknown_with_a_remark_is_history_and_settles_nothing_68(core):
    id = core.send("undecided")
    core.ask_round()
    assert core.poll() == [id]
    answer = core.tell(id, "unknown", from_check=True, remark="the listener returned nothing")
    assert (answer.verdict, answer.state) == ("accepted", "PREPARED")
    core.settle()
    assert core.state(core.half_of(id)) is State.PREPARED
    assert core.released() == []
    said = [(op.fields["op_kind"], op.fields["via"], op.detail.get("remark")) for op in core.history(id)]
    assert said == [(OpKind.ASKED, Via.CHECK, None), (OpKind.UNKNOWN, Via.CHECK, "the listener returned nothing")]
    core.ask_round()
    assert core.poll() == [id], "it is asked again in the next round"
    core.settle()
    assert core.check_count(core.half_of(id)) == 2
    core.assert_gauge()


# --- discards and operators -------------------------------------------------------------------------------------------


def _until_discard_is_due(world: CoreWorld) -> None:
    """With transactionCheckMax=1: ask once, say nothing, and let a whole interval pass."""
    world.ask_round()
    assert len(world.poll()) == 1
    world.ask_round()


def test_a_discard_that_cannot_be_stored_48(make_core):
    core = make_core("transactionCheckMax=1")
    id = core.send("stuck")
    half = core.half_of(id)
    _until_discard_is_due(core)
    disk.arm("commitlog.write", "ENOSPC", disk.EVERY_PASS)  # the edge's disk is full and stays so; the job's is not
    for _ in range(3):
        core.ask_round()
    core.until(lambda: "the disk is full" in core.run(core.core.status())["trouble"], "an alert that names the remedy")
    assert core.metric("escrow_discard_proposals_total", reason="check_max") >= 1
    assert core.metric("escrow_discards_total", reason="check_max") == 0
    assert (core.state(half), core.discards()) == (State.PREPARED, [])
    assert not core.core.failed.done(), "the edge waits for room"
    core.assert_gauge()
    disk.arm(None)
    core.until(lambda: core.core._followers.discarded == 1, "the discard is stored once there is room")
    core.settle()
    assert core.discards() == [(half, State.DISCARDED_MAX)]
    core.until(lambda: core.run(core.core.status())["trouble"] == "", "the alert goes")
    core.assert_gauge()


def test_operators_and_discarded_halves_22_30_61(make_core):
    core = make_core("transactionCheckMax=1")
    readable, unreadable = core.send("readable"), core.send("unreadable")
    core.ask_round()
    core.poll()
    core.ask_round()
    core.ask_round()
    core.until(lambda: core.core._followers.discarded == 2, "both are discarded")
    core.settle()
    assert core.job.store.marker.pending == 0
    assert core.tell(readable, "commit").reason == "discarded"  # 30
    half = core.half_of(unreadable)
    spoil(core, core.edge.half_queue.read(half, half + 1)[0])
    op_end = core.edge.op_end
    answer = core.resume(unreadable)  # 22
    assert (answer.result, answer.detail) == ("refused", "quarantined")
    assert core.edge.op_end == op_end, "nothing was written"
    with pytest.raises(Corrupt):
        core.edge.read_half(half)
    assert core.resume(readable).result == "accepted"  # 61
    core.settle()
    assert core.check_count(core.half_of(readable)) == 0
    assert [core.state(core.half_of(id)) for id in (readable, unreadable)] == [State.PREPARED, State.DISCARDED_MAX]
    assert core.job.store.marker.pending == 1
    core.assert_gauge()
    assert core.tell(readable, "commit").verdict == "accepted"
    core.settle()
    assert core.released() == [b"readable"]


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_half_with_a_delay_is_refused_59(core):
    for name in ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "__STARTDELIVERTIME"):
        with pytest.raises(DelayedHalf, match=f"properties: {name}: .*leave it out"):
            core.send("late", properties={name: "3"})
    core.settle()
    assert (core.edge.half_end, core.job.store.marker.half_cursor, core.job.store.marker.pending) == (0, 0, 0)
    core.tell(core.send("at once", properties={"colour": "red"}), "commit")
    core.settle()
    assert core.released() == [b"at once"]


def test_ids_that_are_not_the_callers_34_35_36(core):
    id = core.send("mine")
    core.send("theirs", group="others")
    assert core.tell(id, "commit", group="others").reason == "wrong group"
    for forged in (id[:-1] + ("A" if id[-1] != "A" else "B"), "nonsense", ""):
        answer = core.tell(forged, "commit")
        assert (answer.verdict, answer.reason[:10]) == ("refused", "unknown id")
    core.settle()
    assert (core.edge.op_end, core.edge.half_end, core.released()) == (0, 2, [])
    assert core.job.store.marker.pending == 2


def test_a_standby_refuses_ends_and_asks_nobody_67(make_core):
    master = make_core()
    id = master.send("kept")
    master.settle()
    rounds = master.job.store.marker.round_no
    master.close()
    standby = make_core("role=standby")
    standby.clock.advance(60)
    standby.ask_round()
    for refused in (lambda: standby.tell(id, "commit"), standby.send, standby.poll):
        with pytest.raises(Standby, match="role = standby"):
            refused()
    standby.settle()
    assert (standby.requests(), standby.job.store.marker.round_no) == ([], rounds)
    assert (standby.released(), standby.job.store.marker.pending) == ([], 1)


# --- recovery ---------------------------------------------------------------------------------------------------------


def test_a_rebuild_from_a_redo_log_of_many_files_33_63_64_66(make_core):
    """Ends lie in later files than their halves; the state table is lost; the job rebuilds what it was, and old ids still work."""
    core = make_core(start=False)
    halves = list(core.halves(b"%04d" % n for n in range(1_500)))
    ids = [core.id_of(half) for half in halves]
    spoil(core, core.edge.half_queue.read(1_499, 1_500)[0])
    core.start_job()
    core.settle()
    ended_from = core.job.store.redo.end
    core.end_all(halves[0:1_400:3], OpKind.COMMIT)
    core.settle()
    core.end_all(halves[1:1_400:3], OpKind.ROLLBACK)
    for half in halves[1_400:1_410]:
        core.end(half, OpKind.DISCARD_MAX, group=None, via=Via.CHECKER)
    assert core.resume(ids[1_400]).result == "accepted"
    contradictory = [core.tell(ids[1_411], outcome).verdict for outcome in ("commit", "rollback", "commit")]
    assert contradictory == ["accepted", "conflict", "already"]  # 33
    assert core.run(core.core.status())["answers"]["conflict"] == 1
    core.settle()
    files = core.job.store.redo.file.starts()
    assert len(files) >= 3
    assert ended_from >= files[2], "the ends lie in later files"
    before = _all_of(core)
    core.assert_gauge()
    core.stop_job()
    shutil.rmtree(next(core.settings.store_dir.rglob("statetable")))
    rebuilt: list[object] = []
    core.start_job(before=lambda: rebuilt.append(_all_of(core)))
    assert core.job.store.recovery.rebuilt
    assert rebuilt == [before]  # 63, from the redo log alone: Spark has brought nothing yet
    core.settle()
    assert _all_of(core) == before
    # 66: of 1,500, one is unreadable, 467 and 467 and 1 have ended, 10 are discarded, 1 of them resumed
    assert core.job.store.marker.pending == 1_500 - 1 - 467 - 467 - 1 - 10 + 1
    core.assert_gauge()
    assert [core.tell(ids[n], "commit").verdict for n in (0, 1, 2, 1_499)] == ["already", "conflict", "accepted", "refused"]  # 64
    core.settle()
    assert b"0002" in core.released()
    core.assert_gauge()


def _all_of(core: CoreWorld) -> tuple[object, ...]:
    """Every row, every entry of the topic, every discard and every total."""
    store = core.job.store
    rows = store.table.get(np.arange(store.marker.half_cursor)).tobytes()
    return rows, core.queue_bytes(), core.discards(), dict(store.marker.totals), store.marker.pending
