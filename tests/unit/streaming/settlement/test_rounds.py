"""A round is gone through again for halves that had to wait for room in their group; nobody is asked twice in it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from store.records import State
from streaming.settlement.rounds import Rounds
from tests.support.clockwork import Clockwork
from tests.support.edge_world import World, world

FLAGS = ("transactionTimeOut=2s", "transactionCheckInterval=30s", "outstandingPerGroupMax=4")


def play(root: Path, story: Callable[[World, Clockwork, list[str]], Awaitable[None]], halves: int = 10) -> None:
    async def run() -> None:
        async with world(root, *FLAGS) as w:
            clockwork = Clockwork(w)
            ids = list(await w.edge.prepare([w.message() for _ in range(halves)]))
            for _ in range(4):
                assert await clockwork.second() == []
            clockwork.rounds._due_ms = w.now_ms
            await story(w, clockwork, ids)

    asyncio.run(run())


async def commit(w: World, *ids: str) -> None:
    for id in ids:
        assert await w.end(id, "commit", from_check=True) == "accepted"


def test_the_round_goes_on_when_half_of_what_a_group_may_have_is_answered(tmp_path):
    async def story(w, clockwork, ids):
        assert await clockwork.second() == ids[:4]
        round_no = w.job.marker.round_no
        await commit(w, ids[0])
        assert await clockwork.second() == []  # three of four are still unanswered
        await commit(w, ids[1])
        assert await clockwork.second() == ids[4:6]
        await commit(w, *ids[2:6])
        assert await clockwork.second() == ids[6:10]
        await commit(w, *ids[6:10])
        assert await clockwork.second() == []
        assert w.job.marker.round_no == round_no
        assert [State(w.row(at)[0]) for at in range(10)] == [State.COMMITTED] * 10

    play(tmp_path, story)


def test_an_answer_of_unknown_makes_room_too_and_is_not_asked_again_in_the_round(tmp_path):
    async def story(w, clockwork, ids):
        asked = await clockwork.second()
        for _ in range(3):
            for id in asked:
                assert await w.end(id, "unknown", from_check=True) == "accepted"
            more = await clockwork.second()
            assert not set(more) & set(asked)
            asked += more
            if not more:
                break
        assert asked == ids

    play(tmp_path, story, halves=7)


def test_a_group_that_does_not_answer_is_asked_no_more_until_the_next_round(tmp_path):
    async def story(w, clockwork, ids):
        assert await clockwork.second() == ids[:4]
        for _ in range(28):
            assert await clockwork.second() == []
        assert not clockwork.rounds.wanted(w.now_ms)

    play(tmp_path, story)


def test_going_on_with_a_round_is_no_round_of_its_own_and_does_not_move_the_next_one(tmp_path):
    async def story(w, clockwork, ids):
        await clockwork.second()
        done, due_ms = clockwork.rounds.rounds_done, clockwork.rounds._due_ms
        await commit(w, *ids[:4])
        assert await clockwork.second() == ids[4:8]
        assert (clockwork.rounds.rounds_done, clockwork.rounds._due_ms) == (done, due_ms)

    play(tmp_path, story)


def test_after_a_restart_the_round_goes_on_where_it_was(tmp_path):
    async def story(w, clockwork, ids):
        assert await clockwork.second() == ids[:4]
        clockwork.rounds = Rounds(
            w.settler, clockwork._live, lambda: True, w.now_ms, root=w.job.directory.root, op_end=lambda: w.job.log.ends()[1]
        )
        assert await clockwork.second() == []
        await commit(w, *ids[:4])
        assert await clockwork.second() == ids[4:8]

    play(tmp_path, story)


def test_a_round_waits_until_it_is_known_which_groups_have_a_member(tmp_path):
    """If all counted as absent meanwhile, their halves would be held for a whole interval."""

    async def story(w, clockwork, ids):
        known, before = clockwork.rounds._live, w.job.marker.round_no
        clockwork.rounds._live = lambda _now_ms: None
        for _ in range(3):
            assert await clockwork.second() == []
        assert w.job.marker.round_no == before
        clockwork.rounds._live = known
        assert await clockwork.second() == ids[:4]

    play(tmp_path, story)
