"""Removed topics as producers, consumers and operators see them: unknown, forgotten, and never somebody else's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ingest.errors import InvalidRequest
from ingest.operating.topic_removal import Wanted
from store.edge.removal import remove_topics
from store.tables.journals.consumers import Consumers
from tests.support.edge_world import Play, World

DAY_MS = 86_400_000


@pytest.fixture
def play(play: Play) -> Play:
    """With two queues for each topic, and small messages."""
    return lambda story, *_, place="": play(story, "queuesPerTopic=2", "maxBodySize=64KiB", place=place)


async def age_out(w: World) -> None:
    """Retention takes what there is, and the log moves on."""
    for _ in range(5):
        await w.send(*[b"x" * 60_000] * 10, topic="filler")
    w.settle()
    w.now_ms += 10 * DAY_MS
    await w.send(b"x", topic="filler")
    w.settle()
    for _ in range(3):
        w.job.retain(w.now_ms, DAY_MS)
        await w.edge.retain()


async def remove(w: World, *topics: str) -> list[str]:
    return (await w.edge.operations.remove_topics(Wanted(topics))).removed


async def removed_and_reused(w: World) -> int:
    """Group `c` has read topic `t` to its end and holds its last message; `t` is removed, and `u` has its number."""
    await w.send(b"1", b"2", b"3", b"4")
    w.settle()
    first = await w.pull()
    assert len(first) == 4
    await w.ack(*first[:3])
    await age_out(w)
    number = w.edge.store.dictionary.topic_no("t")
    assert number is not None
    assert await remove(w, "t") == ["t"]
    await age_out(w)
    await w.send(b"5", b"6", topic="u")
    assert w.edge.store.dictionary.topic_no("u") == number
    return number


def test_consumers_of_the_old_topic_know_nothing_of_the_new_one(play: Play) -> None:
    async def story(w: World) -> None:
        await removed_and_reused(w)
        w.settle()
        assert sorted(await w.pull_bodies(topic="u")) == [b"5", b"6"]
        assert await w.pull_bodies(topic="u", group="late", start="latest") == []
        assert "t" not in {each["topic"] for each in w.edge.consumption.topics_and_lag()}

    play(story)


def test_what_a_group_did_in_the_old_topic_is_forgotten(play: Play) -> None:
    """A group that is at the end of the old topic begins the new one where it wants, not where it stood."""

    async def story(w: World) -> None:
        await removed_and_reused(w)
        w.settle()
        assert await w.pull_bodies(topic="u", start="latest") == []
        await w.send(b"7", topic="u")
        assert await w.pull_bodies(topic="u", start="latest") == [b"7"]

    play(story)


def test_the_journal_of_an_earlier_life_is_held_against_the_edition(play: Play) -> None:
    """Records about the old topic are still in the journal when the number has another name."""

    async def story(w: World) -> None:
        number = await removed_and_reused(w)
        w.settle()
        path = w.settings.store_dir / "consumers"
        before = Consumers(path)
        assert {key >> 6 for _, key in before.progress} == {number}
        assert {progress.edition for progress in before.progress.values()} == {0}
        await w.restart_edge()
        assert Consumers(path).progress == {}
        assert await w.pull_bodies(topic="u", start="latest") == []
        await w.send(b"7", topic="u")
        (got,) = await w.pull(topic="u", start="latest")
        assert await w.ack(got, topic="u") == ["done"]
        assert {progress.edition for progress in Consumers(path).progress.values()} == {1}
        await w.restart_edge()
        assert await w.pull_bodies(topic="u") == []

    play(story)


def test_receipts_of_the_old_topic_do_nothing(play: Play) -> None:
    async def story(w: World) -> None:
        await w.send(b"1")
        w.settle()
        (old,) = await w.pull()
        await age_out(w)
        await remove(w, "t")
        await age_out(w)
        await w.send(b"5", b"6", topic="u")
        w.settle()
        got = await w.pull(topic="u")
        assert len(got) == 2
        await w.ack(old, topic="u")
        await w.ack(old)
        w.now_ms += DAY_MS
        assert sorted(await w.pull_bodies(topic="u")) == [b"5", b"6"]  # none was acknowledged

    play(story)


def test_a_poll_that_waits_gets_the_topic_that_comes(play: Play) -> None:
    """It is removed while a poll waits for it, and made anew by the next message."""

    async def story(w: World) -> None:
        w.edge.store.add_topic("t", 2)
        waiting = asyncio.create_task(w.pull(wait_s=20))
        await asyncio.sleep(0)
        assert await remove(w, "t") == ["t"]
        await w.send(b"1")
        assert [each.body for each in await waiting] == [b"1"]

    play(story)


def test_a_group_that_begins_while_its_topic_is_removed(play: Play) -> None:
    """The places of the removed topic are not kept: its number will be another's."""

    async def story(w: World) -> None:
        consumption = w.edge.consumption
        w.edge.store.add_topic("t", 2)
        note = consumption._ledger.note

        def then_remove(*given: Any, **rest: Any) -> asyncio.Future[None]:
            consumption._ledger.note = note  # type: ignore[method-assign]
            assert remove_topics(w.edge.store, ["t"]).removed == ["t"]
            return note(*given, **rest)

        consumption._ledger.note = then_remove  # type: ignore[method-assign]
        assert await w.pull() == []
        assert consumption._places.queues == {}

    play(story)


def test_what_is_asked_for_must_be_clear(play: Play) -> None:
    async def story(w: World) -> None:
        for wanted in (Wanted(), Wanted(["a"], unused=True), Wanted(["a"], made_by="b")):
            with pytest.raises(InvalidRequest):
                await w.edge.operations.remove_topics(wanted)

    play(story)
