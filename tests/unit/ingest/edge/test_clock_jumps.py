"""Jumps of the wall clock at the edge: what it stores has the time that elapsed, nothing is handed out twice because of one, and
everything goes on when the clock is back or an operator has confirmed."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from ingest.edge.embedded import Edge
from store.guarded_clock import ALERT_FILE
from store.io.pages import EdgeSlot
from store.messages import Message
from store.tables.dedup import Dedup, Known, digest_of
from store.tables.journals.consumers import ConsumerKind, ConsumerRecord, Consumers
from tests.support.edge_world import settings_for
from tests.support.hand_clock import START_MS, HandClock

HOUR_S, DAY_S, YEAR_S = 3_600, 86_400, 365 * 86_400
FLAGS = ("queuesPerTopic=1", "visibilityTime=30s", "dedupWindow=1h", "presenceTtl=30s")


class Seat:
    """An edge, its machine's clocks, and a consumer."""

    def __init__(self, root):
        self.settings, self.source = settings_for(root, *FLAGS), HandClock()

    async def __aenter__(self):
        self.edge = Edge(self.settings, clock=self.source)
        await self.edge.open()
        return self

    async def __aexit__(self, *error):
        await self.edge.close()

    async def restart(self):
        await self.edge.close()
        await self.__aenter__()

    def pass_time(self, seconds):
        self.source.advance(seconds)
        self.edge.clock.look()

    def jump(self, seconds):
        self.source.jump(seconds)
        self.edge.clock.look()

    def confirm(self):
        (self.settings.data_dir / ALERT_FILE).unlink()
        self.edge.clock.look()

    async def send(self, *bodies, **rest):
        await self.edge.send([Message("g", "t", body, **rest) for body in bodies])

    async def pull(self):
        return await self.edge.consumption.poll("t", "c", "me")

    async def bodies(self):
        return [each.body for each in await self.pull()]


@pytest.fixture
def play(tmp_path):
    """play(story): with a seat of its own; `place`: its data directory below tmp_path."""

    def run(story, place=""):
        async def live():
            async with Seat(tmp_path / place) as seat:
                await story(seat)

        asyncio.run(live())

    return run


JUMPS = pytest.mark.parametrize("jump_s", [4 * DAY_S, YEAR_S, -4 * DAY_S, -YEAR_S])
ENDINGS = pytest.mark.parametrize("ending", ["back", "confirmed"])


@JUMPS
def test_stored_times_are_those_that_elapsed(play, jump_s):
    async def story(seat):
        seat.jump(jump_s)
        seat.pass_time(10)
        (id,) = await seat.edge.prepare([Message("g", "t", b"x")])
        assert (await seat.edge.transaction(id)).stored_at_ms == START_MS + 10_000

    play(story)


@JUMPS
@ENDINGS
@pytest.mark.parametrize("restart", [False, True])
def test_what_is_in_hand_comes_back_when_its_time_has_passed_and_not_before(play, jump_s, ending, restart):
    async def story(seat):
        await seat.send(b"before", b"during")
        assert len(await seat.edge.consumption.poll("t", "c", "me", max_messages=1)) == 1
        seat.pass_time(10)
        seat.jump(jump_s)
        assert await seat.bodies() == [b"during"]
        if restart:
            await seat.restart()
        seat.pass_time(15)
        assert await seat.bodies() == []
        if ending == "back":
            seat.jump(-jump_s)
        else:
            seat.confirm()
        if restart:
            await seat.restart()
        assert await seat.bodies() == [], "25 s of its 30"
        seat.pass_time(6)
        assert await seat.bodies() == [b"before"]
        seat.pass_time(10)
        (again,) = await seat.pull()
        assert (again.body, again.attempt) == (b"during", 2)
        assert await seat.edge.consumption.ack("t", "c", [again.receipt]) == ["done"]

    play(story)


@pytest.mark.parametrize("seek", [False, True])
def test_a_hand_out_that_an_earlier_release_noted_far_ahead_holds_nobody_up(play, seek):
    async def story(seat):
        await seat.send(b"one", b"two")
        (_one, two) = await seat.pull()
        await seat.edge.consumption.ack("t", "c", [two.receipt])
        await seat.edge.close()
        journal = Consumers(seat.settings.store_dir / "consumers", writable=True)
        ((group_no, queue_key),) = journal.progress
        ahead_ms = START_MS + 30 * DAY_S * 1000
        journal.append([ConsumerRecord(ConsumerKind.RECEIPT, group_no, queue_key, 0, 1, ahead_ms)])
        journal.close()
        await seat.__aenter__()
        if seek:
            await seat.edge.consumption.seek("t", "c", "earliest")
        assert (await seat.bodies())[0] == b"one"
        seat.pass_time(31)
        assert (await seat.bodies())[0] == b"one", "held for 30 s, not for 30 days"

    play(story)


@JUMPS
@ENDINGS
def test_a_key_is_known_for_the_window_and_no_longer(play, jump_s, ending):
    async def story(seat):
        async def id_of():
            return (await seat.edge.prepare([Message("g", "t", b"x", dedup_key="k")]))[0]

        first = await id_of()
        seat.jump(jump_s)
        seat.pass_time(1_000)
        assert await id_of() == first
        if ending == "back":
            seat.jump(-jump_s)
        else:
            seat.confirm()
        assert await id_of() == first
        seat.pass_time(2_000)
        assert await id_of() == first
        for _ in range(8):
            await seat.edge.prepare([Message("g", "t", b"y", dedup_key=f"other {seat.source.running_ms}")])
            seat.pass_time(1_000)
        assert await id_of() != first
        assert len(list((seat.settings.store_dir / "dedup").iterdir())) <= 6

    play(story)


def test_a_key_outlives_a_kill_behind_a_leap(tmp_path, play):
    """The recovery reads halves of after the leap; those of before it are no older for that."""

    async def story(seat):
        async def prepare(key):
            return (await seat.edge.prepare([Message("g", "t", b"x", dedup_key=key)]))[0]

        first = await prepare("k")
        seat.jump(YEAR_S)
        seat.confirm()
        for number in range(3):
            seat.pass_time(1_000)
            await prepare(f"other {number}")
        killed = Seat(tmp_path / "killed")
        shutil.copytree(seat.settings.data_dir, killed.settings.data_dir, ignore=shutil.ignore_patterns("*.wake"))
        killed.source = seat.source
        async with killed:
            assert not killed.edge.store.recovery.clean
            again = (await killed.edge.prepare([Message("g", "t", b"x", dedup_key="k")]))[0]
            assert again == first

    play(story, "first")


@JUMPS
def test_who_was_there_is_there_for_its_time_and_the_job_is_seen_running(play, jump_s):
    async def story(seat):
        await seat.edge.prepare([Message("g", "t", b"x")])
        seat.edge._checks.seen("g", "m", "poll")
        seat.jump(jump_s)
        seat.pass_time(20)
        assert seat.edge.live_groups() == {"g"}
        seat.confirm()
        assert seat.edge.live_groups() == {"g"}
        assert [each.member for each in seat.edge._checks.members("g")] == ["m"]
        seat.pass_time(20)
        assert seat.edge.live_groups() == set()

    play(story)


def test_a_store_of_an_earlier_release_begins_with_its_last_heartbeat(play):
    async def story(seat):
        await seat.edge.close()
        for name in ("clock.state", "clock.lock"):
            (seat.settings.data_dir / name).unlink()
        seat.source.off(7 * DAY_S)
        await seat.__aenter__()
        assert not seat.edge.clock.deletes_allowed()
        assert seat.edge.clock.held_s == HOUR_S
        assert seat.edge.store.page[EdgeSlot.HEARTBEAT_MS] == seat.edge.clock.elapsed_ms() == seat.source.wall_ms

    play(story)


# --- dedup tables ---------------------------------------------------------------------------------------------------------
def test_one_key_from_a_year_ahead_keeps_no_table(tmp_path):
    """As an earlier release may have left it."""
    dedup, now_s = Dedup(tmp_path / "dedup", HOUR_S, writable=True), 1_800_000_000

    def put(key, at_s):
        dedup.ensure(1, at_s)
        dedup.put_all({digest_of(1, key): Known(7, at_s, 0)})

    put("ahead", now_s + YEAR_S)
    for number in range(100):
        now_s += 901
        put(f"{number}", now_s)
    assert len(list((tmp_path / "dedup").iterdir())) <= 7
    assert dedup.get(digest_of(1, "ahead"), now_s) is None
    assert dedup.get(digest_of(1, "99"), now_s) == Known(7, now_s, 0)
    dedup.close()


def test_a_key_from_ahead_is_known_for_a_window_after_the_clock_was_put_back(tmp_path):
    dedup, now_s = Dedup(tmp_path / "dedup", HOUR_S, writable=True), 1_800_000_000
    dedup.ensure(1, now_s + YEAR_S)
    dedup.put_all({digest_of(1, "ahead"): Known(7, now_s + YEAR_S, 0)})
    assert dedup.get(digest_of(1, "ahead"), now_s) is not None
    dedup.ensure(1, now_s)
    dedup.put_all({digest_of(1, "next"): Known(8, now_s, 0)})
    assert dedup.get(digest_of(1, "ahead"), now_s + HOUR_S) is not None
    assert dedup.get(digest_of(1, "ahead"), now_s + HOUR_S + 1) is None
    dedup.close()
