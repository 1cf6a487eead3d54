"""How the edge finds its state again: clean, unclean, damaged, without its checkpoint, without its derived files."""

from __future__ import annotations

import os
import shutil

import pytest

from store.edge.store import End
from store.errors import Corrupt, CursorBeyondLog
from store.io import disk
from store.messages import Message
from store.records import OpKind, State, Via
from store.tables.ends import Verdict
from tests.support.service import Service, contents, drop, verdicts


def fill(service):
    """Some of everything: halves of two groups, all ends, asked, resumed, ordinary messages, keys."""
    halves = [half for number in range(5) for half in service.send(*[b"%d" % number] * 10, properties={"KEYS": f"k{number}"})]
    service.send(b"x", b"y", group="others", topic="else")
    service.commit(*halves[:20])
    service.roll_back(*halves[20:25])
    service.operate(halves[30], OpKind.DISCARD_MAX)
    service.operate(halves[31], OpKind.DISCARD_EXPIRED, OpKind.RESUME)
    service.edge.append_asked(halves[32:40], "m", service.now_ms)
    service.edge.append_messages([Message("orders", "paid", b"plain")], service.now_ms)
    service.end(halves[40], OpKind.UNKNOWN, via=Via.CHECK, remark="?")
    service.send_one(b"dedup", dedup_key="key")
    return halves


def snapshot(service):
    edge = service.edge
    return {
        "ends": (edge.log.end, edge.half_end, edge.op_end),
        "next": dict(edge.next_offset),
        "halves": edge.half_queue.read(0, edge.half_end).tolist(),
        "ops": edge.op_queue.read(0, edge.op_end).tolist(),
        "marks": [edge.end_of(half) for half in range(edge.half_end)],
        "names": (edge.dictionary.groups, edge.dictionary.topics, edge.dictionary.queues),
        "pages": [edge.page[slot] for slot in (3, 5, 7)],
        "key": edge.append_halves([Message("orders", "paid", b"dedup", dedup_key="key")], service.now_ms).offsets,
    }


def reopen_edge(service, *, clean):
    service.edge.close() if clean else drop(service.edge)
    service.edge = type(service.edge)(service.root)


def write_at(service, commit_log_offset, data):
    size = service.geometry.commit_log_segment_bytes
    with (service.edge.directory.commit_log / f"{commit_log_offset - commit_log_offset % size:020d}").open("r+b") as file:
        file.seek(commit_log_offset % size)
        file.write(data)


@pytest.mark.parametrize("clean", [True, False])
def test_everything_is_found_again(service, clean):
    fill(service)
    before = snapshot(service)
    reopen_edge(service, clean=clean)
    assert service.edge.recovery.clean is clean
    assert service.edge.recovery.damage == []
    assert snapshot(service) == before


def test_nothing_is_replayed_after_a_clean_exit(service):
    fill(service)
    reopen_edge(service, clean=True)
    assert service.edge.recovery.frames_replayed == 0
    drop(service.edge)
    service.edge = type(service.edge)(service.root)
    assert service.edge.recovery.clean is False  # a crash after a clean start is a crash


@pytest.mark.parametrize(
    "lost",
    [["edge.checkpoint"], ["edge.checkpoint", "half", "op", "ends", "dedup"], ["edge.published", "edge.checkpoint"]],
    ids=" ".join,
)
def test_what_is_derived_is_made_anew_from_the_log(service, lost):
    fill(service)
    before = snapshot(service)
    drop(service.edge)
    for name in lost:
        path = service.root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    service.edge = type(service.edge)(service.root)
    assert service.edge.recovery.frames_replayed > 60
    assert snapshot(service) == before


def test_a_corrupt_checkpoint_is_reported_and_done_without(service):
    fill(service)
    before = snapshot(service)
    service.edge.close()
    (service.root / "edge.checkpoint").write_bytes(b"junk")
    service.edge = type(service.edge)(service.root)
    assert any("edge.checkpoint" in reason for _, _, reason in service.edge.recovery.damage)
    assert snapshot(service) == before


def test_a_lost_dictionary_is_learned_again_from_the_frames(service):
    fill(service)
    before = snapshot(service)
    drop(service.edge)
    for name in ("dictionary", "edge.checkpoint"):
        (service.root / name).unlink()
    service.edge = type(service.edge)(service.root)
    assert snapshot(service) == before


def test_names_that_no_frame_has_used_do_not_shift_the_numbers_of_the_others(service):
    with pytest.raises(ValueError, match="body"):
        service.send_one(b"x" * 60_000, group="never stored"[:5], topic="nowhere")
    half = service.send_one(b"kept")
    drop(service.edge)
    for name in ("dictionary", "edge.checkpoint"):
        (service.root / name).unlink()
    service.edge = type(service.edge)(service.root)
    assert verdicts(service.commit(half)) == [Verdict.ACCEPTED]
    assert service.edge.read_half(half).fields["group_no"] == service.edge.dictionary.group_no("orders")


@pytest.mark.parametrize("checkpoint", [True, False], ids=["behind the checkpoint", "before the checkpoint"])
def test_damage_in_the_middle_keeps_all_numbers_and_costs_only_what_was_hit(service, checkpoint):
    halves = service.send(b"a", b"b", b"c")
    service.send_one(b"d")
    service.commit(halves[0])
    if not checkpoint:
        service.edge.checkpoint()
    damaged = service.edge.half_queue.entry(1)[0]
    drop(service.edge)
    write_at(service, damaged + 130, b"!!")
    service.edge = type(service.edge)(service.root)
    assert (service.edge.half_end, service.edge.op_end) == (4, 1)
    assert [(start, bool(reason)) for start, _, reason in service.edge.recovery.damage] == ([(damaged, True)] if checkpoint else [])
    assert [service.edge.read_half(half).body for half in (0, 2, 3)] == [b"a", b"c", b"d"]
    with pytest.raises(Corrupt):
        service.edge.read_half(1)
    answers = service.commit(*range(4))
    assert verdicts(answers) == [Verdict.ALREADY, Verdict.REFUSED, Verdict.ACCEPTED, Verdict.ACCEPTED]
    service.settle()
    assert (service.bodies(), service.state(1), service.pending) == ([b"a", b"c", b"d"], State.QUARANTINED, 0)


@pytest.mark.parametrize("settled", [False, True])
def test_damage_to_the_last_half_does_not_give_its_number_again(service, settled):
    service.send_one(b"first")
    service.send_one(b"last")
    if settled:
        service.settle()
    damaged = service.edge.half_queue.entry(1)[0]
    service.crash()
    write_at(service, damaged + 130, b"!!")
    service.open()
    assert service.edge.half_end == 2
    assert service.send_one(b"next") == 2
    service.settle()
    assert service.state(1) == (State.PREPARED if settled else State.QUARANTINED)
    assert service.commit(1)[0].verdict is Verdict.REFUSED
    service.commit(0, 2)
    service.settle()
    assert service.bodies() == [b"first", b"next"]


def test_damage_to_the_last_op_does_not_give_its_number_or_place_again(service):
    halves = service.send(b"a", b"b", queue_id=0)
    service.commit(halves[0])
    service.settle()
    damaged = service.edge.op_queue.entry(0)[0]
    service.crash()
    write_at(service, damaged + 45, b"!!")
    service.open()
    assert service.edge.op_end == 1
    service.commit(halves[1])
    service.settle()
    assert [message.body for message in service.consume()] == [b"a", b"b"]


def test_an_older_copy_of_the_log_is_a_fatal_explained_error(service):
    service.send_one(b"old")
    service.edge.checkpoint()
    path = service.edge.directory.commit_log / f"{0:020d}"
    old = path.read_bytes()
    service.send_one(b"new")
    service.crash()
    path.write_bytes(old)
    with pytest.raises(CursorBeyondLog, match="an older copy of the log"):
        service.open()
    assert path.read_bytes() == old


def test_an_older_copy_of_the_log_after_a_clean_exit_is_found_by_the_checkpoint(service):
    service.send(*[b"x" * 900] * 60)
    service.send(*[b"x" * 900] * 60)
    service.close()
    names = sorted(os.listdir(service.edge.directory.commit_log))
    (service.edge.directory.commit_log / names[-1]).unlink()
    with pytest.raises(CursorBeyondLog):
        service.open()


def test_a_torn_op_batch_leaves_all_its_halves_open(service):
    halves = service.send(b"a", b"b", b"c")
    end = service.edge.log.end
    service.edge.append_ends([End(half, OpKind.COMMIT, "orders") for half in halves], service.now_ms)
    drop(service.edge)
    write_at(service, end + 60, bytes(60))
    service.edge = type(service.edge)(service.root)
    assert (service.edge.op_end, service.edge.next_offset, service.edge.log.end) == (0, {}, end)
    assert verdicts(service.roll_back(*halves)) == [Verdict.ACCEPTED] * 3
    service.settle()
    assert service.bodies() == []


def test_stale_frames_behind_a_cut_never_come_back(service):
    service.send_one(b"kept")
    for number in range(5):
        service.edge.append_halves([Message("orders", "paid", b"lost %d" % number)], service.now_ms)
    end = service.edge.half_queue.entry(1)[0]
    drop(service.edge)
    write_at(service, end + 125, b"!!")  # the first of the five is torn, the other four are whole behind it
    service.edge = type(service.edge)(service.root)
    assert service.edge.half_end == 1
    service.send_one(b"new  0")  # as long as the torn one
    drop(service.edge)
    service.edge = type(service.edge)(service.root)
    assert [service.edge.read_half(half).body for half in range(service.edge.half_end)] == [b"kept", b"new  0"]


@pytest.mark.parametrize("point", ["commitlog.cut", "half.cut", "edge.checkpoint.replace", "commitlog.flush"])
def test_a_recovery_that_was_interrupted_is_simply_done_again(service, point):
    fill(service)
    service.edge.append_halves([Message("orders", "paid", b"written, not flushed")], service.now_ms)
    before = snapshot(service) | {"pages": [service.edge.log.end, service.edge.half_end, service.edge.op_end]}
    drop(service.edge)
    disk.arm(point, "EIO")
    with pytest.raises(Exception, match="Input/output"):
        type(service.edge)(service.root)
    disk.arm(None)
    service.edge = type(service.edge)(service.root)
    assert snapshot(service) == before


def test_recovery_flushes_what_it_keeps_before_publishing_it(service):
    service.edge.append_halves([Message("orders", "paid", b"x")], service.now_ms)
    drop(service.edge)
    with disk.recording() as passed:
        service.edge = type(service.edge)(service.root)
    assert passed["commitlog.flush"] >= 1
    assert service.job.log.ends() == (1, 0)


def test_progress_is_shown_to_whoever_watches(service):
    fill(service)
    drop(service.edge)
    seen = []
    service.edge = type(service.edge)(service.root, progress=lambda *what: seen.append(what))
    assert seen
    assert all(0 <= done <= total and what for done, total, what in seen)


def test_opening_and_closing_again_and_again_changes_nothing_but_the_epoch(tmp_path):
    with Service(tmp_path / "store") as service:
        fill(service)
        service.settle()
    before = contents(tmp_path / "store", "commitlog", "half", "op", "ends", "dedup", "dictionary", "transaction/redolog")
    for _ in range(3):
        with Service(tmp_path / "store") as service:
            assert service.is_caught_up()
    assert service.edge.page[1] == 4
    assert contents(tmp_path / "store", "commitlog", "half", "op", "ends", "dedup", "dictionary", "transaction/redolog") == before
