"""Removed topics as producers, consumers and operators see them: unknown, forgotten, and never somebody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from ingest.errors import InvalidRequest
from ingest.operating.topic_removal import Wanted
from store.edge.removal import remove_topics
from store.tables.journals.consumers import Consumers
from tests.support.edge_client import EdgeClient, RemoteError
from tests.support.edge_world import World, world
from tests.unit.ingest.edge.test_names import new, sent
from tests.unit.ingest.http.test_endpoint import HALF, edge

DAY_MS = 86_400_000


def played(tmp_path: Path, story: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def play() -> None:
        async with world(tmp_path, "queuesPerTopic=2", "maxBodySize=64KiB") as w:
            await story(w)

    asyncio.run(play())


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


def test_consumers_of_the_old_topic_know_nothing_of_the_new_one(tmp_path: Path) -> None:
    async def story(w: World) -> None:
        await removed_and_reused(w)
        w.settle()
        assert sorted(await w.pull_bodies(topic="u")) == [b"5", b"6"]
        assert await w.pull_bodies(topic="u", group="late", start="latest") == []
        assert "t" not in {each["topic"] for each in w.edge.consumption.topics_and_lag()}

    played(tmp_path, story)


def test_what_a_group_did_in_the_old_topic_is_forgotten(tmp_path: Path) -> None:
    """A group that is at the end of the old topic begins the new one where it wants, not where it stood."""

    async def story(w: World) -> None:
        await removed_and_reused(w)
        w.settle()
        assert await w.pull_bodies(topic="u", start="latest") == []
        await w.send(b"7", topic="u")
        assert await w.pull_bodies(topic="u", start="latest") == [b"7"]

    played(tmp_path, story)


def test_the_journal_of_an_earlier_life_is_held_against_the_edition(tmp_path: Path) -> None:
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

    played(tmp_path, story)


def test_receipts_of_the_old_topic_do_nothing(tmp_path: Path) -> None:
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

    played(tmp_path, story)


def test_a_poll_that_waits_gets_the_topic_that_comes(tmp_path: Path) -> None:
    """It is removed while a poll waits for it, and made anew by the next message."""

    async def story(w: World) -> None:
        w.edge.store.add_topic("t", 2)
        waiting = asyncio.create_task(w.pull(wait_s=20))
        await asyncio.sleep(0)
        assert await remove(w, "t") == ["t"]
        await w.send(b"1")
        assert [each.body for each in await waiting] == [b"1"]

    played(tmp_path, story)


def test_a_group_that_begins_while_its_topic_is_removed(tmp_path: Path) -> None:
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

    played(tmp_path, story)


def test_what_is_asked_for_must_be_clear(tmp_path: Path) -> None:
    async def story(w: World) -> None:
        for wanted in (Wanted(), Wanted(["a"], unused=True), Wanted(["a"], made_by="b")):
            with pytest.raises(InvalidRequest):
                await w.edge.operations.remove_topics(wanted)

    played(tmp_path, story)


def test_an_operator_removes_all_that_a_token_made(tmp_path: Path) -> None:
    data = tmp_path / "data"
    team, ops = new(data, "team", ["g*:*"], ["*:*"]), new(data, "ops", operator=True)
    made = [f"hostile-{number}" for number in range(20)]
    with edge(data, "topicsPerTokenMax=20") as (_, port), EdgeClient(port, token=ops) as client:
        with EdgeClient(port, token=team) as tenant:
            halves = [{**HALF, "group": "g", "topic": topic} for topic in made]
            ids = [each["id"] for each in tenant.call("POST", "/v1/halves", {"messages": halves})["halves"]]
            ends = [{"group": "g", "id": id, "outcome": "rollback"} for id in ids[1:]]
            tenant.call("POST", "/v1/ends", {"ends": ends})
        client.call("POST", "/v1/operator/topics", {"topic": "mine"})
        assert sent(port, team, "more") == "too_many_names"
        wanted = {"unused": True, "made_by": "team"}
        dry = client.call("POST", "/v1/operator/topics/remove", {**wanted, "dry_run": True})
        assert (dry["removed"], dry["dry_run"]) == (19, True)
        answer = client.call("POST", "/v1/operator/topics/remove", wanted)
        assert (answer["removed"], answer["kept"], sorted(answer["topics"])) == (19, 0, sorted(made[1:]))
        assert {each["topic"] for each in client.call("GET", "/v1/operator/topics")["topics"]} >= {"mine", made[0]}
        assert sent(port, team, "more") == 200
        answer = client.call("POST", "/v1/operator/topics/remove", {"topics": [made[0], "nobody"]})
        assert (answer["removed"], answer["kept"]) == (0, 2)
        reasons = {each["topic"]: each["reason"] for each in answer["in_the_way"]}
        assert "1 halves for it are in doubt" in reasons[made[0]]
        assert "no such topic" in reasons["nobody"]
        audit = client.call("GET", "/v1/operator/audit")["records"]
        assert ("remove topics", "unused topics made by team") in [(each["action"], each["target"]) for each in audit]
        with pytest.raises(RemoteError) as caught:
            client.call("POST", "/v1/operator/topics/remove", {"topics": ["a"], "unused": True})
        assert caught.value.code == "invalid"
