"""Retention: disk use is bounded whatever consumers do, nothing pending is ever deleted, late ends are answered, not executed."""

from __future__ import annotations

import os

import numpy as np
import pytest

from checker.policy import Policy
from store.directory import Geometry
from store.edge.store import EdgeStore, End
from store.errors import StoreUnusable
from store.inspect.verify.store import verify
from store.io import disk
from store.io.pages import EdgeSlot, JobSlot
from store.job.store import JobStore
from store.messages import Message
from store.read.readers import LogReader
from store.records import OpKind, State, Via
from store.tables import ends
from store.tables.ends import Answer, Verdict
from streaming.settlement.settle import Settler, read_feed
from tests.support.service import Service, segment_files

HOUR = 3600
DAY = 24 * HOUR


def traffic(service, batches=1, size=20, end=True, **fields):
    """Halves of 1 KiB or so, committed and settled."""
    sent = []
    for _ in range(batches):
        halves = service.send(*[b"x" * 1000] * size, **fields)
        if end:
            service.commit(*halves)
        service.settle()
        sent += halves
    return sent


def retain(service, seconds=DAY):
    """Rows go one cycle after their ids."""
    first, second = service.retain(seconds), service.retain(seconds)
    return {name: first.get(name, 0) + second.get(name, 0) for name in first | second}


def bytes_of(service, *parts):
    return sum(size for name, size in segment_files(service.root).items() if name.startswith(parts))


def test_disk_use_is_bounded_though_nobody_reads(service):
    sizes, counts = [], []
    for _ in range(12):
        traffic(service, 4)
        service.sleep(DAY / 2)
        retain(service)
        sizes.append(sum(segment_files(service.root).values()))
        counts.append(len(segment_files(service.root)))
    assert max(sizes[6:]) <= max(sizes[3:6])
    assert max(counts[6:]) <= max(counts[3:6])
    assert service.edge.half_end == 12 * 80


def test_every_kind_of_file_goes(service):
    traffic(service, 10, queue_id=0)
    service.use(check_count_max=1)
    service.members["orders"] = lambda half: None
    halves = service.send(*[b"y"] * 70)
    for _ in range(4):
        service.beat()
    assert service.discards()[0] == (halves[0], State.DISCARDED_MAX)
    before = segment_files(service.root)
    service.sleep(2 * DAY)
    traffic(service, 4)
    removed = retain(service)
    after = segment_files(service.root)
    assert all(removed[name] for name in ("state", "redo", "topics", "commitlog", "half", "op")), removed
    for part in ("commitlog/", "half/", "op/", "transaction/redolog/", "transaction/generation-000001/statetable/"):
        assert f"{part}" in "".join(before)
        first = min(name for name in before if name.startswith(part))
        assert first not in after, part
    for queue in ("topics", "check", "proposal", "discard"):
        gone = [name for name in before if f"/{queue}/" in name and name not in after]
        assert gone, queue


def test_ends_files_go_with_their_halves(service, monkeypatch):
    service.crash()
    monkeypatch.setattr(ends, "SEGMENT_BYTES", 64)
    for path in sorted(service.root.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    service.open()
    traffic(service, 10)
    service.sleep(2 * DAY)
    traffic(service, 1)
    assert retain(service)["ends"] == 3
    assert service.commit(0)[0].reason == "gone"
    service.restart(clean=False)
    assert service.commit(200)[0].verdict is Verdict.ALREADY


def test_nothing_goes_before_its_time(service):
    traffic(service, 10)
    service.sleep(DAY - 1)
    assert not any(retain(service).values())
    service.sleep(1)
    assert not any(retain(service).values())
    service.sleep(1)
    traffic(service, 1)
    assert retain(service)["commitlog"] > 0


def test_nothing_pending_is_ever_deleted(service):
    traffic(service, 2)
    (pending,) = service.send(b"held", group="silent")
    service.settle()
    for _ in range(6):
        traffic(service, 4)
        service.sleep(DAY)
        retain(service)
    assert service.edge.read_half(pending).body == b"held"
    assert service.state(pending) == State.PREPARED
    assert service.job.table.begin <= pending
    assert service.commit(pending, group="silent")[0].verdict is Verdict.ACCEPTED
    service.settle()
    assert b"held" in service.bodies()
    assert service.pending == 0


def test_what_is_not_settled_yet_is_never_deleted(service):
    traffic(service, 3)
    late = service.send(*[b"late"] * 3)
    service.commit(late[0])
    service.sleep(5 * DAY)
    traffic(service, 0)
    retain(service)
    assert [service.edge.read_half(half).body for half in late] == [b"late"] * 3
    service.settle()
    assert service.bodies().count(b"late") == 1
    assert service.pending == 2


def test_a_released_message_stays_for_the_time_after_its_release_not_its_append(service):
    (old,) = service.send(b"old")
    service.settle()
    traffic(service, 6)
    service.sleep(2 * DAY)
    service.commit(old)
    service.settle()
    retain(service)
    assert service.bodies().count(b"old") == 1
    service.sleep(DAY + 1)
    traffic(service, 6)
    retain(service)
    assert b"old" not in service.bodies()


def test_a_discarded_half_stays_for_the_time_after_its_discard(service):
    (old,) = service.send(b"old")
    service.settle()
    traffic(service, 6)
    service.sleep(2 * DAY)
    service.operate(old, OpKind.DISCARD_MAX)
    service.settle()
    retain(service)
    assert service.edge.read_half(old).body == b"old"
    assert [answer.verdict for answer in service.operate(old, OpKind.RESUME)] == [Verdict.ACCEPTED]
    service.settle()
    assert service.pending == 1


def test_a_late_end_is_answered_gone_and_not_executed(service):
    halves = traffic(service, 10)
    service.sleep(2 * DAY)
    traffic(service, 1)
    retain(service)
    op_end = service.edge.op_end
    for kind in (OpKind.COMMIT, OpKind.ROLLBACK, OpKind.RESUME, OpKind.DISCARD_MAX):
        answer = service.end(halves[0], kind, group=None)
        assert (answer.verdict, answer.reason) == (Verdict.REFUSED, "gone")
    assert service.edge.op_end == op_end
    for clean in (True, False):
        service.restart(clean=clean)
        assert service.commit(halves[0])[0].reason == "gone"


def test_a_resume_that_came_after_the_job_looked_keeps_its_half(service):
    (half,) = service.send(b"resumed")
    service.operate(half, OpKind.DISCARD_MAX)
    traffic(service, 10)
    service.sleep(2 * DAY)
    traffic(service, 1)
    service.job.retain(service.now_ms, DAY * 1000)
    assert service.operate(half, OpKind.RESUME)[0].verdict is Verdict.ACCEPTED
    service.edge.retain()
    service.settle()
    for _ in range(3):
        retain(service)
    assert (service.state(half), service.edge.read_half(half).body) == (State.PREPARED, b"resumed")
    service.commit(half)
    service.settle()
    assert b"resumed" in service.bodies()


def test_a_resume_during_the_checkpoint_of_a_retention_is_refused_or_keeps_its_message(service, monkeypatch):
    """Once the edge has said which ids are gone, nobody is told accepted about one of them while its segment goes."""
    parked = service.send(b"first", b"second")
    service.edge.end([End(half, OpKind.DISCARD_MAX, None, Via.CHECKER) for half in parked], service.now_ms)
    for _ in range(4):
        service.roll_back(*service.send(*[b"x" * 5000] * 10))
    service.settle()
    service.sleep(2 * DAY)
    service.commit(*service.send(b"new"))
    service.settle()
    service.job.retain(service.now_ms, DAY * 1000)
    write = service.edge.write_checkpoint
    answers: list[Answer] = []

    def resumed_meanwhile(**how):
        answers.append(service.operate(parked[len(answers) % 2], OpKind.RESUME)[0])
        write(**how)

    with monkeypatch.context() as patch:
        patch.setattr(service.edge, "write_checkpoint", resumed_meanwhile)
        # The first is resumed right before, so that the marks do not know it: it pins itself and what lies behind it.
        assert service.operate(parked[0], OpKind.RESUME)[0].verdict is Verdict.ACCEPTED
        service.roll_back(parked[0])
        assert service.edge.retain()["commitlog"] == 0
    service.settle()
    assert service.edge.read_half(parked[0]).body == b"first"
    service.sleep(2 * DAY)
    with monkeypatch.context() as patch:
        patch.setattr(service.edge, "write_checkpoint", resumed_meanwhile)
        service.retain(DAY)
    assert (answers[-1].verdict, answers[-1].reason) == (Verdict.REFUSED, "gone")


def test_after_everything_was_idle_for_long_new_messages_stay(service):
    """The marks never go back: they must not run ahead of the log."""
    traffic(service, 4)
    service.sleep(10 * DAY)
    retain(service)
    (half,) = traffic(service, 1, size=1, topic="new")
    for _ in range(3):
        retain(service)
    assert len(service.bodies("new")) == 1
    assert service.commit(half)[0].verdict is Verdict.ALREADY
    assert service.job.page[JobSlot.LOG_LOW_WATER] <= service.edge.page[EdgeSlot.LOG_END]


@pytest.mark.parametrize("how", ["clean", "unclean", "rebuild"])
def test_a_restart_after_retention_finds_the_same(service, how):
    traffic(service, 8)
    (held,) = service.send(b"held", group="silent")
    service.sleep(2 * DAY)
    traffic(service, 5)
    service.send(b"open")
    service.settle()
    assert retain(service)["commitlog"]
    traffic(service, 2)
    begin, marker = service.job.table.begin, service.job.marker
    # A rebuild does not bring back messages whose rows have gone, though a shared segment may still hold their bodies.
    visible = [message for message in service.consume() if how != "rebuild" or message.frame.queue_offset >= begin]
    rows = service.job.table.get(np.arange(begin, service.edge.half_end)).tolist()
    ends = {key: service.job.catalogue.extent(key)[1] for key in service.job.catalogue.queue_keys()}
    service.restart(clean=how == "clean", rebuild=how == "rebuild")
    assert service.job.recovery.rebuilt is (how == "rebuild")
    assert service.job.table.get(np.arange(begin, service.edge.half_end)).tolist() == rows
    assert service.job.marker == marker
    assert service.consume() == visible
    assert {key: service.job.catalogue.extent(key)[1] for key in service.job.catalogue.queue_keys()} == ends
    assert min(message.frame.stored_at_ms for message in visible) <= service.now_ms - DAY * 1000  # none younger is missing
    assert service.pending == 2
    assert service.commit(held, group="silent")[0].verdict is Verdict.ACCEPTED
    service.settle()
    assert b"held" in service.bodies()


def test_a_rebuild_after_retention_has_the_rest_of_a_batch_that_began_in_files_that_could_go(service):
    """One batch over many redo files: while one of its rows is there, the whole of it must be."""
    halves = service.send(*[b"x"] * 200)
    service.settle()
    service.commit(*halves[:64])
    service.settle()
    service.sleep(2 * DAY)
    retain(service)
    assert service.job.table.begin == 64
    service.restart(clean=False, rebuild=True)
    assert service.pending == 136
    assert service.job.marker.half_cursor == 200


def test_ordinary_messages_outlive_a_rebuild_after_retention(service):
    for number in range(30):
        service.edge.wait(service.edge.append_messages([Message("g", "t", b"%02d" % number)], service.now_ms).ticket)
        service.settle()
    retain(service)
    service.restart(rebuild=True)
    assert service.bodies("t") == [b"%02d" % number for number in range(30)]


def test_ordinary_messages_go_in_time(service):
    for number in range(20):
        messages = [Message("g", "t", b"%02d" % number * 500, queue_id=0)] * 10
        service.edge.wait(service.edge.append_messages(messages, service.now_ms).ticket)
        service.settle()
    service.sleep(2 * DAY)
    traffic(service, 3)
    removed = retain(service)
    assert removed["commitlog"]
    assert removed["topics"]
    assert removed["redo"]
    assert len(service.bodies("t")) < 200


def test_every_visible_message_can_be_read_after_retention_and_after_a_rebuild(service):
    """consume() reads every frame from a queue's begin to its end: an entry into a deleted segment would raise."""
    for _ in range(6):
        traffic(service, 5)
        service.sleep(DAY / 2)
        retain(service)
        assert all(message.body == b"x" * 1000 for message in service.consume())
    service.restart(rebuild=True)
    assert all(message.body == b"x" * 1000 for message in service.consume())


def test_offsets_of_a_topic_never_start_again(service):
    traffic(service, 10, queue_id=1)
    service.sleep(2 * DAY)
    traffic(service, 10, queue_id=1)
    retain(service)
    begin, end = service.job.catalogue.extent(1)
    assert (begin > 0, end) == (True, 400)
    for clean, rebuild in ((True, False), (False, False), (False, True)):
        service.restart(clean=clean, rebuild=rebuild)
        traffic(service, 1, size=1, queue_id=1)
        end += 1
        assert service.job.catalogue.extent(1)[1] == end
        assert service.consume()[-1].queue_offset == end - 1


def test_a_job_that_was_reopened_between_its_own_and_the_edges_deletion_goes_on(service):
    traffic(service, 10)
    service.sleep(2 * DAY)
    traffic(service, 1)
    service.job.retain(service.now_ms, DAY * 1000)
    service.job.close()
    service.job = JobStore(service.root)
    service.settler = Settler(service.job, service.policy)
    assert service.edge.retain()["op"]
    service.job.retain(service.now_ms, DAY * 1000)
    traffic(service, 1)
    assert len(service.job.log.history(service.edge.half_end - 1)) == 1


def test_the_edge_opens_without_its_checkpoint_after_retention(service):
    traffic(service, 10)
    service.sleep(2 * DAY)
    traffic(service, 2, topic="other")
    retain(service)
    ends, places = (service.edge.half_end, service.edge.op_end), dict(service.edge.next_offset)
    service.crash()
    (service.root / "edge.checkpoint").write_bytes(b"junk")
    service.open()
    assert (service.edge.half_end, service.edge.op_end) == ends
    assert service.edge.next_offset == places
    traffic(service, 1)
    assert service.pending == 0


def test_without_a_job_the_edge_deletes_nothing(tmp_path):
    with EdgeStore(tmp_path / "store") as edge:
        assert edge.retain() == {}


@pytest.mark.parametrize("point", ["state.remove", "redo.remove", "queue.remove", "job.checkpoint.replace"])
def test_a_crash_inside_the_jobs_deletion_is_simply_gone_on_with(service, point):
    traffic(service, 10, queue_id=0)
    service.send(b"open")
    service.sleep(2 * DAY)
    traffic(service, 5)
    disk.arm(point, "EIO")
    with pytest.raises(Exception, match="Input/output"):
        retain(service)
    disk.arm(None)
    service.restart(clean=False)
    retain(service)
    assert service.pending == 1
    service.restart(clean=False, rebuild=True)
    assert service.pending == 1
    traffic(service, 2)


@pytest.mark.parametrize("point", ["commitlog.remove", "half.remove", "op.remove", "edge.checkpoint.replace"])
def test_a_crash_inside_the_edges_deletion_is_simply_gone_on_with(service, point):
    traffic(service, 10)
    service.send(b"open")
    service.sleep(2 * DAY)
    traffic(service, 5)
    disk.arm(point, "EIO")
    with pytest.raises(Exception, match="Input/output"):
        retain(service)
    disk.arm(None)
    service.restart(clean=False)
    retain(service)
    traffic(service, 2)
    assert service.pending == 1


def test_the_job_sees_no_begin_that_a_power_failure_could_take_back(service):
    """It would remove rows about which the edge takes ops again."""
    (half, *_) = traffic(service, 10)
    service.sleep(2 * DAY)
    traffic(service, 5)
    service.job.retain(service.now_ms, DAY * 1000)
    disk.arm("edge.checkpoint.replace", "ENOSPC", disk.EVERY_PASS)
    with pytest.raises(StoreUnusable):
        service.edge.retain()
    assert service.edge.page[EdgeSlot.HALF_BEGIN] == 0
    assert service.job.retain(service.now_ms, DAY * 1000)["state"] == 0
    assert service.commit(half)[0].reason == "gone"
    disk.arm(None)
    service.edge.retain()
    assert service.edge.page[EdgeSlot.HALF_BEGIN] > half
    assert service.job.retain(service.now_ms, DAY * 1000)["state"] > 0
    service.restart(clean=False)
    assert service.commit(half)[0].reason == "gone"


def test_a_half_that_went_bad_after_it_was_settled_does_not_pin_the_disk_for_ever(service):
    service.use(check_count_max=2, retention_s=DAY)
    service.members["orders"] = lambda half: None
    (half,) = service.send(b"bad")
    service.settle()
    service.edge.log.file.write(service.edge.half_queue.entry(half)[0] + 125, b"!")
    service.beat(DAY)
    assert service.pending == 1
    service.beat()
    service.beat()
    assert (service.pending, service.discards()) == (0, [(half, State.DISCARDED_EXPIRED)])
    for answer in (*service.commit(half), *service.operate(half, OpKind.RESUME, OpKind.ROLLBACK)):
        assert answer.verdict is Verdict.REFUSED
    service.restart(clean=False, rebuild=True)
    assert service.state(half) == State.DISCARDED_EXPIRED


def test_time_is_an_argument_and_going_back_deletes_nothing(service):
    traffic(service, 5)
    service.sleep(-DAY)
    assert not any(retain(service).values())
    service.sleep(DAY)
    assert not any(retain(service).values())


def test_names_of_files_that_are_left_are_consecutive(service):
    for _ in range(5):
        traffic(service, 4)
        service.sleep(DAY)
        retain(service)
    size = service.geometry.commit_log_segment_bytes
    starts = sorted(int(name) for name in os.listdir(service.edge.directory.commit_log))
    assert starts == list(range(starts[0], starts[-1] + 1, size))
    assert starts[0] > 0


def test_a_topic_that_nobody_used_for_long_keeps_its_place(tmp_path):
    with Service(tmp_path / "store") as service:
        traffic(service, 1, size=4, topic="rare", queue_id=0)
        for _ in range(4):
            traffic(service, 8)
            service.sleep(DAY)
            retain(service)
        assert service.bodies("rare") == []
        assert service.job.catalogue.extent(0) == (4, 4)
        service.restart(clean=False, rebuild=True)
        traffic(service, 1, size=1, topic="rare", queue_id=0)
        assert [message.queue_offset for message in service.consume("rare")] == [4]


def test_a_topic_whose_messages_are_all_gone_keeps_its_offsets_over_a_rebuild(tmp_path):
    """Retention takes the redo entries too: only the checkpoint still knows how far the queue reached."""
    now_ms, four_days_ms, retention_ms = 1_700_000_000_000, 4 * 86_400_000, 72 * 3_600_000
    geometry = Geometry(64 * 1024, 64, 64, 64, 64)
    with EdgeStore(tmp_path, geometry=geometry, default_queues=1) as edge:
        with JobStore(tmp_path) as job:
            settler = Settler(job, Policy())

            def settle(at_ms):
                settler.settle(read_feed(job.log, job.marker.half_cursor, job.marker.op_cursor), at_ms)

            def send(topic, count, at_ms):
                for _ in range(count):
                    [half] = edge.prepare([Message("g", topic, bytes(2000))], at_ms)
                    edge.end([End(half, OpKind.COMMIT, "g")], at_ms)
                settle(at_ms)

            send("rare", 3, now_ms)
            send("busy", 200, now_ms)
            later_ms = now_ms + four_days_ms
            send("busy", 200, later_ms)
            for _ in range(3):
                job.retain(later_ms, retention_ms)
                edge.retain()
            assert job.catalogue.extent(0) == (3, 3)
        with JobStore(tmp_path, rebuild=True) as job:
            assert job.catalogue.extent(0) == (3, 3)


def messages(service, batches=1, size=50):
    for _ in range(batches):
        sent = [Message("g", "t", b"m" * 1000, queue_id=0)] * size
        service.edge.wait(service.edge.append_messages(sent, service.now_ms).ticket)
        service.settle()


def test_the_redo_log_is_bounded_where_halves_are_rare_among_ordinary_messages(service):
    """Their state file takes years to fill: the redo log behind its first row must not wait for that."""
    rare = traffic(service, 1, size=3)
    sizes, counts = [], []
    for day in range(24):
        messages(service, 4)
        if day % 8 == 7:
            rare += traffic(service, 1, size=1)
        service.sleep(DAY)
        retain(service, 3 * DAY)
        sizes.append(sum(segment_files(service.root).values()))
        counts.append(bytes_of(service, "transaction/redolog/"))
    assert max(counts[16:]) <= max(counts[4:10])
    # Queue files are as long as their entries: a page more or less is no growth.
    assert max(sizes[16:]) <= max(sizes[4:10]) + 4096
    assert service.job.table.begin == 0, "a state file that was filled: the test shows nothing"
    assert service.commit(rare[0])[0].reason == "gone"
    assert problems(service) == []


@pytest.mark.parametrize("halves_left", [0, 2])
def test_a_rebuild_without_the_first_rows_of_a_state_file_goes_on_where_it_stood(service, halves_left):
    traffic(service, 1, size=3)
    for _ in range(6):
        messages(service, 4)
        service.sleep(DAY)
    left = service.send(*[b"late"] * halves_left) if halves_left else []
    service.settle()
    retain(service, 3 * DAY)
    assert service.edge.half_begin == 3
    visible, marker = service.consume("t"), service.job.marker
    for _ in range(2):
        service.restart(rebuild=True)
        assert (service.consume("t"), service.job.marker, service.pending) == (visible, marker, halves_left)
        service.restart()
        assert not service.job.recovery.rebuilt
        assert problems(service) == []
    for half in left:
        assert service.commit(half)[0].verdict is Verdict.ACCEPTED
    traffic(service, 1, size=2)
    assert (service.bodies().count(b"late"), service.pending) == (halves_left, 0)


def problems(service):
    service.restart()
    return verify(service.root).problems


def test_parked_halves_stay_though_the_jobs_process_has_not_seen_their_segments(service):
    """Spark's source reads the log in a process of its own: this one learns of new segments only when it must read in them."""
    source = LogReader(service.job.directory)

    def settle():
        marker = service.job.marker
        service.settler.settle(read_feed(source, marker.half_cursor, marker.op_cursor), service.now_ms)

    service.commit(*service.send(b"x"))
    settle()
    for _ in range(2):
        service.roll_back(*service.send(*[b"y" * 4000] * 10))
        settle()
    service.sleep(3 * DAY)
    parked = []
    for _ in range(8):
        parked += service.send(*[b"y" * 4000] * 10)
        service.edge.end([End(half, OpKind.DISCARD_MAX, None, Via.CHECKER) for half in parked[-10:]], service.now_ms)
        settle()
    service.retain(2 * DAY)
    assert {service.operate(half, OpKind.RESUME)[0].verdict for half in parked} == {Verdict.ACCEPTED}


class Interrupted:
    """A page of the other side; something happens right before its nth look, or write."""

    def __init__(self, page, nth, happen):
        self._page, self._left, self._happen = page, nth, happen

    def _count(self):
        self._left -= 1
        if self._left == 0:
            self._happen()

    def __getitem__(self, slot):
        self._count()
        return self._page[slot]

    def __setitem__(self, slot, value):
        self._count()
        self._page[slot] = value


@pytest.mark.parametrize("nth", range(1, 9))
def test_what_comes_while_the_job_looks_at_the_edges_page_stays(service, nth):
    traffic(service, 2)
    service.sleep(2 * DAY)
    new = []
    page = service.job.log.page

    def more():
        for _ in range(4):
            new.extend(service.send(*[b"new" * 700] * 25))

    service.job.log.page = Interrupted(page, nth, more)
    service.job.retain(service.now_ms, DAY * 1000)
    service.job.log.page = page
    service.edge.retain()
    assert len(new) in (0, 100), "the edge came once, or there were not so many looks"
    assert all(service.edge.read_half(half) for half in new)
    assert all(answer.verdict is Verdict.ACCEPTED for answer in service.commit(*new))
    service.settle()
    assert service.bodies().count(b"new" * 700) == len(new)


@pytest.mark.parametrize("nth", range(1, 6))
def test_the_job_may_look_while_the_edge_is_publishing(service, nth):
    traffic(service, 2)
    service.sleep(2 * DAY)
    page, looked = service.edge.page, []

    def look():
        looked.append(service.job.retain(service.now_ms, DAY * 1000))

    service.edge.page = Interrupted(page, nth, look)
    appended = [service.edge.append_halves([Message("orders", "paid", b"new" * 5000)] * 4, service.now_ms) for _ in range(3)]
    service.edge.wait(appended[-1].ticket)
    service.edge.page = page
    service.edge.retain()
    assert len(looked) == (nth <= 4)
    assert all(service.edge.read_half(half) for half in range(40, service.edge.half_end))
