"""Flushes that the kernel does while the caller goes on."""

from __future__ import annotations

import errno
import os
import select
from concurrent.futures import ThreadPoolExecutor

import pytest

from store import disk
from store.errors import FlushFailed
from store.frames import Message
from store.published import EdgeSlot

HALF = Message("g", "t", b"body")


@pytest.fixture
def flusher():
    made = disk.make_flusher()
    if made is None:
        pytest.skip("this kernel has no AIO (io_setup)")
    return made


def collect(flusher):
    """What the event loop does when it is told."""
    assert select.select([flusher.fileno], [], [], 10)[0]
    flusher.collect()


def test_a_flush_is_told_when_it_is_through(tmp_path, flusher):
    told = list[Exception | None]()
    with open(tmp_path / "file", "wb") as file:
        for number in range(3):
            os.pwrite(file.fileno(), b"x" * 5000, 5000 * number)
            flusher.flush(file.fileno(), "file", tmp_path, told.append)
            assert len(told) == number
            collect(flusher)
            assert told == [None] * (number + 1)


def test_what_the_kernel_reports_is_a_failed_flush_with_its_remedy(tmp_path):
    told = list[Exception | None]()
    disk.Flusher._done(tmp_path / "file", told.append, (1 << 64) - errno.EIO)
    assert isinstance(told[0], FlushFailed)
    assert "replace the disk" in str(told[0])


def test_what_the_kernel_does_not_take_is_left_to_a_thread(tmp_path, service, flusher, monkeypatch):
    flush, edge, nowhere = flusher.flush, service.edge, 1 << 20
    assert not flush(nowhere, "file", tmp_path, lambda _: None)
    edge.append_halves([HALF], service.now_ms)
    monkeypatch.setattr(flusher, "flush", lambda fd, *rest: flush(nowhere, *rest))
    assert not edge.begin_wait(flusher, lambda _: None)
    edge.wait(edge.log.end)
    assert edge.page[EdgeSlot.HALF_END] == 1


def test_halves_are_visible_when_their_flush_is_told(service, flusher):
    edge, told = service.edge, list[Exception | None]()
    service.edge.append_halves([HALF], service.now_ms)
    assert edge.begin_wait(flusher, told.append)
    assert not edge.begin_wait(flusher, told.append)  # one at a time
    assert edge.page[EdgeSlot.HALF_END] == 0
    collect(flusher)
    assert told == [None]
    assert edge.page[EdgeSlot.HALF_END] == 1
    assert edge.flushes == 1
    edge.wait(edge.log.end)
    assert edge.flushes == 1  # nothing was left to flush


def test_who_waits_in_a_thread_is_told_too(service, flusher):
    edge, told = service.edge, list[Exception | None]()
    ticket = edge.append_halves([HALF], service.now_ms).ticket
    assert edge.begin_wait(flusher, told.append)
    waiting = ThreadPoolExecutor(1).submit(edge.wait, ticket)
    collect(flusher)
    waiting.result(10)
    assert edge.flushes == 1


def test_a_failure_is_final(service, flusher, monkeypatch):
    edge, told = service.edge, list[Exception | None]()
    edge.append_halves([HALF], service.now_ms)
    monkeypatch.setattr(disk, "_failpoints", disk._Failpoints())
    disk._failpoints.arm("commitlog.flush", "EIO")
    with pytest.raises(FlushFailed):
        edge.begin_wait(flusher, told.append)
    for refused in (lambda: edge.begin_wait(flusher, told.append), lambda: edge.append_halves([HALF], service.now_ms)):
        with pytest.raises(FlushFailed, match="refused since an earlier failure"):
            refused()
    assert told == []


def test_a_failure_that_comes_later_is_final_too(service, flusher, monkeypatch):
    edge, told = service.edge, list[Exception | None]()
    edge.append_halves([HALF], service.now_ms)
    begun = []

    def begin(fd, point, path, done):
        begun.append(done)
        return True

    monkeypatch.setattr(flusher, "flush", begin)
    assert edge.begin_wait(flusher, told.append)
    begun[0](FlushFailed("no more"))
    assert [str(failure) for failure in told] == ["no more"]
    assert edge.page[EdgeSlot.HALF_END] == 0
    with pytest.raises(FlushFailed, match="refused since an earlier failure"):
        edge.append_halves([HALF], service.now_ms)


def test_a_checkpoint_is_left_to_a_thread(service, flusher):
    edge = service.edge
    edge.checkpoint_bytes = 1
    edge.append_halves([HALF], service.now_ms)
    assert not edge.begin_wait(flusher, lambda _: None)
    edge.wait(edge.log.end)
    assert edge.page[EdgeSlot.HALF_END] == 1
