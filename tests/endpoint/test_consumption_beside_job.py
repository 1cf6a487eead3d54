"""Consumers beside a job that settles in a process of its own and is killed and started again: no gap, nothing twice."""

from __future__ import annotations

import asyncio

from ingest.capabilities import EndRequest
from ingest.edge.embedded import Edge
from store.messages import Message
from tests.support.edge_world import settings_for
from tests.support.service import read_topic
from tests.support.standin import Standin

MESSAGES = 1200
FLAGS = ("queuesPerTopic=2",)


async def produce(edge: Edge) -> None:
    for number in range(0, MESSAGES, 6):
        bodies = [b"%d" % each for each in range(number, number + 6)]
        await edge.send([Message("g", "t", body) for body in bodies[:3]])
        ids = await edge.prepare([Message("g", "t", body) for body in bodies[3:]])
        await edge.end([EndRequest("g", id, "commit") for id in ids])


async def consume(edge: Edge, seen: dict[tuple[int, int], bytes]) -> None:
    while len(seen) < MESSAGES:
        got = await edge.consumption.poll("t", "c", "me", max_messages=20, wait_s=20)
        for message in got:
            place = (message.queue_id, message.queue_offset)
            assert message.attempt == 1
            assert place not in seen
            seen[place] = message.body
        if got:
            await edge.consumption.ack("t", "c", [message.receipt for message in got])


async def restart_jobs(data, done: asyncio.Event) -> None:
    """Jobs that live for a moment each; then one that settles everything."""
    while not done.is_set():
        standin = await asyncio.to_thread(Standin(data, *FLAGS).__enter__)
        await asyncio.sleep(0.3)
        standin.process.kill()
        await asyncio.to_thread(standin.__exit__)


async def story(data) -> dict[tuple[int, int], bytes]:
    edge = Edge(settings_for(data, *FLAGS))
    await edge.open()
    seen: dict[tuple[int, int], bytes] = {}
    done = asyncio.Event()
    jobs = asyncio.create_task(restart_jobs(data, done))
    await asyncio.wait_for(asyncio.gather(produce(edge), consume(edge, seen)), 100)
    done.set()
    await jobs
    with Standin(data, *FLAGS):
        while (await edge.status())["job"]["ops_behind"]:
            await asyncio.sleep(0.02)
    assert edge.consumption.figures()["holes"] == edge.consumption.figures()["unreadable"] == 0
    await edge.close()
    return seen


def test_what_consumers_saw_is_what_is_settled(tmp_path):
    seen = asyncio.run(story(tmp_path / "data"))
    settled = {(found.queue_id, found.queue_offset): found.body for found in read_topic(tmp_path / "data" / "store", "t")}
    assert seen == settled
    assert len(seen) == MESSAGES
