"""One dedup key from many connections at once, with `kill -9` and restarts in the middle: one transaction for each key.

Each story is made from a seed: how many keys, which of them go together in one request, who waits when, after how many answers the
endpoint is killed. Clients repeat whatever was not answered, as a producer would.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import defaultdict

import pytest

from store.inspect.verify.store import verify
from tests.support.edge_client import EdgeClient
from tests.support.endpoint import PATIENCE_S, Endpoint, quiet_port
from tests.support.load_clients import Line
from tests.support.load_store import GEOMETRY, halves_in

CONNECTIONS = 64
KILLS = 2
STORIES = 4


class Story:
    """What the clients of one seed do and hear."""

    def __init__(self, endpoint: Endpoint, seed: int) -> None:
        self.endpoint, self.rng, self.port = endpoint, random.Random(seed), endpoint.port
        self.keys = [f"key {number}" for number in range(self.rng.choice((3, 8, 40)))]
        self.per_client = self.rng.choice((4, 10))
        self.ids: dict[str, set[str]] = defaultdict(set)
        self.answers = self.repeated = self.conflicts = 0

    def half(self, key: str, text: str = "") -> dict[str, str]:
        group = f"g{self.keys.index(key) % 2}"
        return {"group": group, "topic": "t", "text": text or f"body of {key}", "dedup_key": key}

    async def client(self, number: int) -> None:
        rng = random.Random(self.rng.randrange(1 << 32))
        line: Line | None = None
        for _ in range(self.per_client):
            keys = rng.choices(self.keys, k=rng.choice((1, 1, 1, 3)))
            for _ in range(rng.choice((0, 0, 1, 3))):
                await asyncio.sleep(0)  # another order
            line = await self.send(line, [self.half(key) for key in keys], keys)
            if rng.random() < 0.2:
                line = await self.send_another_body(line, rng.choice(keys))
        if line is not None:
            await line.close()

    async def send(self, line: Line | None, halves: list[dict[str, str]], keys: list[str]) -> Line:
        """Again and again, until it is answered."""
        line, answer = await self.until_answered(line, halves)
        assert answer.status == 200, answer
        for key, half in zip(keys, answer.content["halves"], strict=True):
            self.ids[key].add(half["id"])
        return line

    async def send_another_body(self, line: Line | None, key: str) -> Line:
        """Refused as a whole: with it goes a half that would be new."""
        line, answer = await self.until_answered(
            line, [{"group": "g", "topic": "t", "text": "new"}, self.half(key, "another body")]
        )
        assert (answer.status, answer.content["code"]) == (409, "duplicate_key"), answer
        assert answer.content["field"] == "messages[1].dedup_key"
        self.conflicts += 1
        return line

    async def until_answered(self, line, halves):
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    line = line or await Line.open(self.port)
                    await line.send("POST", "/v1/halves", {"messages": halves})
                    answer = await line.answer()
                except (OSError, EOFError):
                    if line is not None:
                        await line.close()
                    line = None
                    self.repeated += 1
                    await asyncio.sleep(0.02)  # the endpoint is being started again
                    continue
                self.answers += 1
                return line, answer

    async def kill_now_and_then(self) -> None:
        """After so many answers, more than once; whatever is under way then."""
        expected = CONNECTIONS * self.per_client
        for at in sorted(self.rng.randrange(1, expected // 2) for _ in range(KILLS)):
            while self.answers < at:
                await asyncio.sleep(0)
            await asyncio.to_thread(self.endpoint.kill)
            await asyncio.to_thread(self.endpoint.start)

    async def play(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.kill_now_and_then())
            for number in range(CONNECTIONS):
                group.create_task(self.client(number))


@pytest.mark.parametrize("number", range(STORIES))
def test_one_transaction_for_each_key(tmp_path, number):
    seed = int(os.environ.get("SEED", random.randrange(1 << 32)))
    print(f"SEED={seed}")
    with Endpoint(tmp_path / "data", *GEOMETRY, port=quiet_port()) as endpoint:
        story = Story(endpoint, seed)
        asyncio.run(story.play())
        print(f"{len(story.keys)} keys, {story.answers} answers, {story.repeated} tries without one, {story.conflicts} 409s")
        assert {key: len(ids) for key, ids in story.ids.items()} == dict.fromkeys(story.ids, 1), "the same id everywhere"
        known = {key: ids.pop() for key, ids in story.ids.items()}
        assert len(set(known.values())) == len(known)
        assert story.repeated > 0, "the kills were felt"
        with EdgeClient(endpoint.port) as client:
            assert client.status()["half_end"] == len(known), "exactly one for each, and nothing of what was refused"
        assert endpoint.stop() == (0, "")
        endpoint.start()
        with EdgeClient(endpoint.port) as client:
            keys = list(known)
            assert client.prepare([story.half(key) for key in keys]) == list(known.values()), "across a clean restart, too"
            status, _, _ = client.raw("POST", "/v1/halves", {"messages": [story.half(keys[0], "another body")]})
            assert status == 409
            assert client.end(story.half(keys[0])["group"], known[keys[0]], "commit")["verdict"] == "accepted"
            assert client.prepare([story.half(keys[0])]) == [known[keys[0]]], "an ended one is the same, still"
        assert endpoint.stop() == (0, "")
    assert halves_in(tmp_path / "data" / "store") == len(known)
    assert verify(tmp_path / "data" / "store").problems == []
