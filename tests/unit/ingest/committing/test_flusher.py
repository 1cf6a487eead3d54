"""Flushes that the kernel does while the caller goes on."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from ingest.committing.flusher import KernelFlusher, make_flusher
from store.errors import FlushFailed
from store.io import disk
from store.io.pages import EdgeSlot
from store.messages import Message
from tests.support.service import SMALLEST, Service

HALF = Message("g", "t", b"body")


@pytest.fixture
def service(tmp_path):
    service = Service(tmp_path / "store", geometry=SMALLEST)
    yield service
    disk.arm(None)
    service.crash()


@pytest.fixture
def flusher():
    made = make_flusher()
    if made is None:
        pytest.skip("this kernel has no AIO (io_setup)")
    return made


def collect(flusher):
    """What the event loop does when it is told."""
    assert select.select([flusher.fileno], [], [], 10)[0]
    flusher.collect()


def test_a_flush_is_told_when_it_is_through(tmp_path, flusher):
    told = list[int]()
    with open(tmp_path / "file", "wb") as file:
        for number in range(3):
            os.pwrite(file.fileno(), b"x" * 5000, 5000 * number)
            assert flusher.begin(file.fileno(), told.append)
            assert len(told) == number
            collect(flusher)
            assert told == [0] * (number + 1)


def test_what_the_kernel_reports_comes_with_its_sign():
    told = list[int]()
    KernelFlusher._through(told.append, (1 << 64) - errno.EIO)
    assert told == [errno.EIO]


def test_what_the_kernel_does_not_take_is_left_to_a_thread(service, flusher, monkeypatch):
    begin, edge, nowhere = flusher.begin, service.edge, 1 << 20
    assert not begin(nowhere, lambda _: None)
    edge.append_halves([HALF], service.now_ms)
    monkeypatch.setattr(flusher, "begin", lambda fd, done: begin(nowhere, done))
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
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(edge.wait, ticket)
        collect(flusher)
        waiting.result(10)
    assert edge.flushes == 1


def test_a_failure_is_final(service, flusher):
    edge, told = service.edge, list[Exception | None]()
    edge.append_halves([HALF], service.now_ms)
    disk.arm("commitlog.flush", "EIO")
    with pytest.raises(FlushFailed):
        edge.begin_wait(flusher, told.append)
    for refused in (lambda: edge.begin_wait(flusher, told.append), lambda: edge.append_halves([HALF], service.now_ms)):
        with pytest.raises(FlushFailed, match="refused since an earlier failure"):
            refused()
    assert told == []


def test_a_failure_that_comes_later_is_final_too(service, flusher, monkeypatch):
    edge, told, begun = service.edge, list[Exception | None](), list[Callable[[int], None]]()
    edge.append_halves([HALF], service.now_ms)

    def begin(_fd, done):
        begun.append(done)
        return True

    monkeypatch.setattr(flusher, "begin", begin)
    assert edge.begin_wait(flusher, told.append)
    begun[0](errno.EIO)
    (failure,) = told
    assert isinstance(failure, FlushFailed)
    assert "replace the disk" in str(failure)
    assert edge.page[EdgeSlot.HALF_END] == 0
    with pytest.raises(FlushFailed, match="refused since an earlier failure"):
        edge.append_halves([HALF], service.now_ms)


def test_a_checkpoint_is_left_to_a_thread(service, flusher):
    edge = service.edge
    edge._checkpoint.every_bytes = 1
    edge.append_halves([HALF], service.now_ms)
    assert not edge.begin_wait(flusher, lambda _: None)
    edge.wait(edge.log.end)
    assert edge.page[EdgeSlot.HALF_END] == 1
