"""What is told is durable first: states, acknowledgements, dead letters of a store whose limits were changed."""

from __future__ import annotations

import asyncio

import pytest

from ingest.consuming.dead_letters import bury
from ingest.consuming.group_queue import GroupQueue, Handed
from ingest.consuming.journal import Owed
from ingest.operating.history import Histories
from store.directory import Geometry
from store.edge.store import EdgeStore, End
from store.errors import BodyTooLarge, StoreUnusable
from store.io import disk
from store.messages import Message
from store.records import OpKind
from store.tables.journals.consumers import ConsumerKind, ConsumerRecord, Consumers, Progress
from tests.support.edge_world import T0_MS


@pytest.fixture(autouse=True)
def _disarmed():
    yield
    disk.arm(None)


# --- states ---------------------------------------------------------------------------------------------------------------
SMALL = Geometry(64 * 1024, 64, 64, 64, 64)


def test_a_state_is_told_when_its_op_is_flushed(tmp_path):
    with EdgeStore(tmp_path, geometry=SMALL) as edge:
        (half,) = edge.prepare([Message("g", "t", b"x")], T0_MS)
        histories = Histories(edge)
        _, ticket = edge.append_ends([End(half, OpKind.COMMIT, "g")], T0_MS)
        told = histories.of(half)
        assert (told.state, told.outcome, [each.event for each in told.history]) == ("PREPARED", None, ["prepared"])
        edge.wait(ticket)
        told = histories.of(half)
        assert (told.state, told.outcome, [each.event for each in told.history]) == (
            "COMMITTED",
            "commit",
            ["prepared", "committed"],
        )
        histories.close()


def test_a_half_is_told_when_it_is_flushed(tmp_path):
    with EdgeStore(tmp_path, geometry=SMALL) as edge:
        histories = Histories(edge)
        appended = edge.append_halves([Message("g", "t", b"x")], T0_MS)
        assert histories.of(0).state == "GONE"
        edge.wait(appended.ticket)
        assert histories.of(0).state == "PREPARED"
        histories.close()


def test_an_operator_is_not_told_of_an_end_before_its_flush(play):
    async def story(w):
        await w.half()
        w.settle()
        half = 0
        _, ticket = w.edge.store.append_ends([End(half, OpKind.COMMIT, "g")], T0_MS)
        ((verdict, why),) = w.edge._checks.ask_now([half])
        assert verdict == "refused"
        assert "committed" not in why
        await asyncio.to_thread(w.edge.store.wait, ticket)
        ((_, why),) = w.edge._checks.ask_now([half])
        assert "committed" in why

    play(story)


# --- acknowledgements -------------------------------------------------------------------------------------------------------
def journalled(w):
    """What a start after `kill -9` would find."""
    found = Consumers(w.settings.store_dir / "consumers").progress
    return {key: (progress.offset, sorted(progress.ahead)) for key, progress in found.items() if progress.offset or progress.ahead}


def test_an_acknowledgement_that_met_a_full_disk_is_done_when_it_is_written(play):
    async def story(w):
        await w.send(b"one", b"two", b"three")
        messages = await w.pull(wait_s=5)
        before = journalled(w)
        disk.arm("consumers.write", "ENOSPC", disk.EVERY_PASS)
        for _ in range(3):  # it is refused as long as there is no room
            with pytest.raises(StoreUnusable):
                await w.ack(messages[0])
        with pytest.raises(StoreUnusable):
            await w.ack(messages[2])
        assert journalled(w) == before
        disk.arm(None)
        assert await w.ack(messages[0]) == ["done"]
        ((offset, ahead),) = journalled(w).values()
        assert offset == 1
        assert 2 in ahead  # what was acknowledged meanwhile is not forgotten either

    play(story, "queuesPerTopic=1")


def test_a_seek_that_met_a_full_disk_is_written_before_what_comes_later(play):
    async def story(w):
        await w.send(b"one", b"two")
        await w.ack(*await w.pull(wait_s=5))
        disk.arm("consumers.write", "ENOSPC")
        with pytest.raises(StoreUnusable):
            await w.edge.consumption.seek("t", "c", "earliest")
        (first,) = await w.pull(count=1, wait_s=5)
        assert first.body == b"one"
        assert await w.ack(first) == ["done"]
        ((offset, _),) = journalled(w).values()
        assert offset == 1

    play(story, "queuesPerTopic=1")


def test_what_is_owed_to_the_journal_stays_small():
    owed = Owed()

    def record(kind, at):
        return ConsumerRecord(kind, 1, 64, at)

    for at in range(1000):
        owed.add([record(ConsumerKind.DONE, at + 5), record(ConsumerKind.RECEIPT, at), record(ConsumerKind.OFFSET, at)])
    assert len(owed.records()) == 7
    owed.add([record(ConsumerKind.SEEK, 0)])
    owed.add([record(ConsumerKind.OFFSET, 3)])
    assert owed.records() == [record(ConsumerKind.SEEK, 0), record(ConsumerKind.OFFSET, 3)]


# --- dead letters -------------------------------------------------------------------------------------------------------------
def test_what_is_stored_may_be_moved_whatever_limit_is_set_later(tmp_path):
    with EdgeStore(tmp_path, geometry=SMALL, default_queues=1) as edge:
        (half,) = edge.prepare([Message("p", "t", b"z" * 20_000)], T0_MS)
        edge.end([End(half, OpKind.COMMIT, "p")], T0_MS)
    with EdgeStore(tmp_path, max_body_bytes=10_000) as edge:
        with pytest.raises(BodyTooLarge):
            edge.prepare([Message("p", "t", b"z" * 20_000)], T0_MS)
        handed = Handed(GroupQueue(0, 0, 64, Progress(0)), 0, 16, 0, edge.read_half(half))
        bury(edge, "c", [handed], T0_MS)
        assert edge.op_end == 2
