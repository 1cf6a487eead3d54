"""Group commit: one flush serves all who wait for it; a failed one refuses all, for good."""

from __future__ import annotations

import threading

import pytest

from store.edge.append.group_commit import GroupCommit
from store.edge.store import EdgeStore
from store.errors import FlushFailed, StoreUnusable
from store.io import disk
from store.io.pages import EdgeSlot
from store.messages import Message
from store.tables.ends import Verdict
from tests.support.service import ROOMY, SMALLEST, Service


class Log:
    """An end that grows, and flushes that wait until they are let through."""

    def __init__(self):
        self.end, self.flushes = 0, 0
        self.published: list[tuple[int]] = []
        self.entered, self.go = threading.Semaphore(0), threading.Semaphore(0)
        self.failure: BaseException | None = None
        self.commit = GroupCommit(self.flush, lambda: (self.end,), self.published.append)

    def flush(self):
        self.flushes += 1
        self.entered.release()
        self.go.acquire()
        if self.failure is not None:
            raise self.failure


def waiting(log, ticket, errors=None):
    def run():
        try:
            log.commit.wait(ticket)
        except StoreUnusable as error:
            if errors is not None:
                errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_whoever_comes_during_a_flush_shares_the_next_one():
    log = Log()
    log.end = 1
    first = waiting(log, 1)
    log.entered.acquire()  # the first flush is under way, for ticket 1 only
    log.end = 100
    others = [waiting(log, ticket) for ticket in range(2, 101)]
    log.go.release()
    first.join()
    log.entered.acquire()
    log.go.release()
    for thread in others:
        thread.join()
    assert log.flushes == 2
    assert log.published == [(1,), (100,)]
    assert log.commit.flushed == 100


def test_what_is_durable_already_is_not_flushed_again():
    log = Log()
    log.end = 10
    log.go.release()
    log.commit.wait(10)
    for ticket in (10, 3, 0):
        log.commit.wait(ticket)
    assert log.flushes == 1


@pytest.mark.parametrize("failure", [FlushFailed("no"), StoreUnusable("no"), RuntimeError("a bug"), KeyboardInterrupt()])
def test_a_failed_flush_refuses_everybody_who_waited_and_everybody_after(failure):
    log = Log()
    log.end, log.failure = 5, failure
    errors: list[StoreUnusable] = []
    log.go.release()
    with pytest.raises(type(failure)):
        log.commit.wait(5)
    threads = [waiting(log, ticket, errors) for ticket in (5, 6)]
    for thread in threads:
        thread.join()
    assert len(errors) == 2
    assert log.flushes == 1
    assert (log.published, log.commit.flushed) == ([], -1)
    log.failure = None
    with pytest.raises(FlushFailed, match="refused since an earlier failure"):
        log.commit.wait(5)


def test_those_who_wait_behind_a_failing_flush_are_refused_without_another_try():
    log = Log()
    log.end = 5
    errors: list[StoreUnusable] = []
    first = waiting(log, 5, errors)
    log.entered.acquire()
    others = [waiting(log, 5, errors) for _ in range(5)]
    log.failure = FlushFailed("no")
    log.go.release()
    for thread in [first, *others]:
        thread.join()
    assert (len(errors), log.flushes) == (6, 1)


def test_what_was_durable_before_the_failure_stays_acknowledged():
    log = Log()
    log.end = 5
    log.go.release()
    log.commit.wait(5)
    log.commit.fail(StoreUnusable("no"))
    log.commit.wait(5)
    with pytest.raises(FlushFailed):
        log.commit.wait(6)


# --- with a real edge ---------------------------------------------------------------------------------------------------
def test_many_threads_are_served_by_two_flushes(tmp_path, monkeypatch):
    """The first flush is held until everybody has appended; the second must then serve all the others."""
    threads = 32
    appended, flushes = threading.Semaphore(0), []
    real = disk.flush

    def held(fd, point, path):
        if point == "commitlog":
            flushes.append(path)
            if len(flushes) == 1:
                for _ in range(threads):
                    appended.acquire()
        real(fd, point, path)

    with EdgeStore(tmp_path / "store", geometry=ROOMY) as edge:
        monkeypatch.setattr(disk, "flush", held)
        seen = []

        def run():
            halves = edge.append_halves([Message("g", "t", b"x")], 1)
            appended.release()
            edge.wait(halves.ticket)
            seen.append(halves.offsets[0])

        workers = [threading.Thread(target=run, daemon=True) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert sorted(seen) == list(range(threads))
        assert len(flushes) <= 2
        assert edge.page[EdgeSlot.HALF_END] == threads


def test_many_threads_that_send_and_end_get_numbers_of_their_own_and_final_answers(tmp_path):
    threads, each = 8, 25
    service = Service(tmp_path / "store", geometry=ROOMY)
    answers = []

    def run(number):
        for _ in range(each):
            (half,) = service.edge.prepare([Message("orders", "paid", b"%d" % number)], service.now_ms)
            answers.append((half, service.commit(half)[0], service.roll_back(half)[0].verdict))

    workers = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(half for half, _, _ in answers) == list(range(threads * each))
    assert {answer.verdict for _, answer, _ in answers} == {Verdict.ACCEPTED}
    assert {verdict for _, _, verdict in answers} == {Verdict.CONFLICT}
    assert len({answer.position for _, answer, _ in answers}) == threads * each
    service.settle(records_max=17)
    assert sorted(service.bodies()) == sorted(b"%d" % number for number in range(threads) for _ in range(each))
    service.close()


def test_after_a_failed_flush_the_edge_takes_nothing_until_it_is_reopened(tmp_path):
    service = Service(tmp_path / "store", geometry=SMALLEST)
    kept = service.send_one(b"kept")
    disk.arm("commitlog.flush", "EIO")
    with pytest.raises(FlushFailed):
        service.send_one(b"in doubt")
    disk.arm(None)
    for attempt in (lambda: service.send_one(b"x"), lambda: service.commit(kept), service.edge.checkpoint):
        with pytest.raises(FlushFailed, match="earlier failure"):
            attempt()
    with pytest.raises(FlushFailed):
        service.edge.close()
    service.job.close()
    service.open()
    assert service.edge.recovery.clean is False
    assert service.edge.read_half(kept).body == b"kept"
    service.commit(kept)
    service.settle()
    assert service.bodies() == [b"kept"]
    service.close()


def test_a_checkpoint_does_not_let_a_waiter_go_before_its_flush_is_done(tmp_path, monkeypatch):
    """While a checkpoint's flush of the log runs, a waiter whose bytes it covers must not be told that they are durable."""
    with EdgeStore(tmp_path / "store", geometry=SMALLEST) as edge:
        edge.prepare([Message("g", "t", b"a")], 1)
        entered, go, events = threading.Event(), threading.Event(), []
        real = disk.flush

        def slow(fd, point, path):
            if point == "commitlog" and threading.current_thread().name == "checkpoint":
                entered.set()
                go.wait()
            real(fd, point, path)
            if point == "commitlog":
                events.append("flushed")

        appended = edge.append_halves([Message("g", "t", b"b")], 1)
        monkeypatch.setattr(disk, "flush", slow)
        checkpoint = threading.Thread(target=lambda: edge.write_checkpoint(clean=False), name="checkpoint", daemon=True)
        checkpoint.start()
        entered.wait()

        def acknowledge():
            edge.wait(appended.ticket)
            events.append("acknowledged")

        waiter = threading.Thread(target=acknowledge, daemon=True)
        waiter.start()
        waiter.join(0.05)  # a chance to do it wrong
        before = list(events)
        go.set()
        waiter.join()
        checkpoint.join()
        assert "acknowledged" not in before
        assert events[-1] == "acknowledged"


@pytest.mark.parametrize("point", ["half.flush", "op.flush", "ends.flush", "commitlog.flush"])
def test_a_checkpoint_whose_flush_failed_is_never_followed_by_one_that_vouches_for_it(tmp_path, point):
    service = Service(tmp_path / "store", geometry=SMALLEST)
    half = service.send_one(b"kept")
    service.commit(half)
    service.edge.append_halves([Message("orders", "paid", b"more")], service.now_ms)
    before = (service.root / "edge.checkpoint").read_bytes()
    disk.arm(point, "EIO")
    with pytest.raises(FlushFailed):
        service.edge.write_checkpoint(clean=False)
    disk.arm(None)
    with pytest.raises(FlushFailed):
        service.edge.checkpoint()
    with pytest.raises(FlushFailed):
        service.edge.close()
    assert (service.root / "edge.checkpoint").read_bytes() == before
    service.job.close()
    service.open().close()
