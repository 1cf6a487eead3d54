"""Nobody is told "done" unless the flush that covers it returned; a thread that dies ends the edge with its reason."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from ingest.capabilities import EndRequest
from ingest.errors import EdgeFailed
from ingest.threads import Threads
from store.errors import StoreUnusable
from store.io.pages import EdgeSlot
from tests.support.edge_world import World

#: A caller that is never answered is the fault that these tests look for.
PATIENCE_S = 30

UNFORESEEN = [MemoryError("no memory"), SystemExit("somebody left"), KeyboardInterrupt(), StopIteration()]


@pytest.fixture
def play(tmp_path):
    """Like a service that fails: closing it tells of the failure once more."""

    def run(story):
        async def live():
            w = World(tmp_path / "data")
            await w.open()
            try:
                await asyncio.wait_for(story(w), PATIENCE_S)
            finally:
                w.job.close()
                with suppress(StoreUnusable):
                    await asyncio.wait_for(w.edge.close(), PATIENCE_S)

        asyncio.run(live())

    return run


def raising(error):
    def fail(*_args, **_named):
        raise error

    return fail


@pytest.mark.parametrize("error", UNFORESEEN, ids=lambda error: type(error).__name__)
def test_an_error_before_the_flush_in_the_thread_is_no_acknowledgement(play, monkeypatch, error):
    async def story(w):
        flushed = w.edge.store.page[EdgeSlot.LOG_END]
        monkeypatch.setattr(w.edge.store._commit, "_flush", raising(error))
        with pytest.raises(EdgeFailed, match="nothing is known"):
            await w.half(group="a-new-name", topic="another")  # new names: it goes through the thread
        assert type(error).__name__ in await w.edge.failed
        assert w.edge.store.page[EdgeSlot.LOG_END] == flushed
        with pytest.raises(EdgeFailed):
            await w.half(group="one-more")

    play(story)


def test_an_error_behind_the_flush_in_the_thread_is_no_acknowledgement(play, monkeypatch):
    async def story(w):
        monkeypatch.setattr(w.edge.store, "_on_publish", raising(MemoryError("no memory")))
        with pytest.raises(EdgeFailed, match="nothing is known"):
            await w.half(group="a-new-name")
        assert "MemoryError" in await w.edge.failed

    play(story)


def test_an_error_behind_a_flush_of_the_kernel_is_heard(play, monkeypatch):
    async def story(w):
        await w.half()  # the names and files are there: the next one goes through the event loop
        monkeypatch.setattr(w.edge.store, "_on_publish", raising(MemoryError("no memory")))
        with pytest.raises(EdgeFailed, match="nothing is known"):
            await w.half()
        assert "MemoryError" in await w.edge.failed

    play(story)


@pytest.mark.parametrize("part", ["_is_small", "_cycle_ends", "_cycle_messages"])
def test_an_error_in_the_loop_is_told_to_all_who_wait(play, monkeypatch, part):
    async def story(w):
        id = await w.half()
        committer = w.edge._committer
        owner = committer if hasattr(committer, part) else committer._appender
        monkeypatch.setattr(owner, part, raising(MemoryError("no memory")))
        asked = [w.half(), w.half(), w.edge.end([EndRequest("g", id, "commit")])]
        told = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(each) for each in told] == [EdgeFailed] * 3
        assert "MemoryError" in await w.edge.failed

    play(story)


def test_what_waits_behind_a_lost_cycle_is_refused(play, monkeypatch):
    async def story(w):
        await w.half()
        store, waiting, loop = w.edge.store, [], asyncio.get_running_loop()

        def fail():
            loop.call_soon_threadsafe(lambda: waiting.append(asyncio.ensure_future(w.half())))
            raise MemoryError("no memory")

        monkeypatch.setattr(store._commit, "_flush", fail)
        with pytest.raises(EdgeFailed):
            await w.half(group="a-new-name")
        with pytest.raises(EdgeFailed):
            await waiting[0]

    play(story)


@pytest.mark.parametrize("error", [MemoryError("no memory"), SystemExit("somebody left")], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("part", ["write", "flush", "is_long"])
def test_a_dead_thread_of_the_ledger_ends_the_edge(play, monkeypatch, part, error):
    async def story(w):
        await w.send(b"one", b"two")
        (first, second) = await w.pull(wait_s=5)
        assert await w.ack(first) == ["done"]
        monkeypatch.setattr(w.edge.consumption._ledger._consumers, part, raising(error))
        with suppress(Exception):  # an answer that was written down before the thread died
            await w.ack(second)
        assert type(error).__name__ in await w.edge.failed
        with pytest.raises(EdgeFailed):
            await w.ack(second)

    play(story)


@pytest.mark.parametrize("error", UNFORESEEN, ids=lambda error: type(error).__name__)
def test_whoever_calls_a_thread_hears_of_any_error(error):
    async def run():
        threads = Threads("test", 1)
        with pytest.raises((RuntimeError, MemoryError)):
            await threads.call(raising(error), timeout_s=PATIENCE_S)
        assert await threads.call(lambda: 7, timeout_s=PATIENCE_S) == 7
        threads.close()

    asyncio.run(run())
