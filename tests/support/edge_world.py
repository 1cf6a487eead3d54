"""An edge core in this event loop, the settling job beside it, and a clock that tests move.

async with world(tmp_path) as w:
    (id,) = await w.edge.prepare([w.message()])
    w.settle(); w.round()          # what the streaming job does
    await w.until(lambda: …)       # what the edge makes of it
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from checker.decisions import Tick
from checker.policy import Policy
from ingest.assembly import assemble
from ingest.capabilities import Capabilities, EndRequest
from ingest.consuming.deliveries import Delivery
from ingest.edge.embedded import Edge
from ingest.operating.operator import Action
from runtime.settings import Settings, load
from store.io.wakeup import EDGE_WAKE, Waker
from store.job.store import JobStore
from store.messages import Message
from store.read.readers import LogReader
from store.records import OpKind, check_count_of, state_of
from store.tables.journals.names import Dictionary
from store.tables.presence import Presence
from streaming.settlement.settle import Settler, read_feed
from tests.support.hand_clock import ByHand

T0_MS = 1_800_000_000_000
SMALL = (
    "commitLogSegmentSize=1MiB",
    "maxBodySize=64KiB",
    "tranStateTableMapedFileSize=24000",
    "tranRedoLogMapedFileSize=200000",
    "logQueueEntriesPerFile=4096",
    "topicQueueEntriesPerFile=1024",
    "settleInterval=0",
)


def settings_for(root: Path, *flags: str) -> Settings:
    """Of the environment only the plug-ins count, which `tests.support.distributions` names there."""
    plugins = {name: value for name, value in os.environ.items() if name == "ESCROW_PLUGINS"}
    return load(None, [*SMALL, f"dataDir={root}", *flags], plugins)


@dataclass(slots=True)
class World:
    root: Path
    flags: tuple[str, ...] = ()
    now_ms: int = T0_MS
    #: The embedded core; `asked` is what the doors ask, with the wrappers that are configured.
    edge: Edge = field(init=False)
    asked: Capabilities = field(init=False)
    job: JobStore = field(init=False)

    @property
    def settings(self) -> Settings:
        return settings_for(self.root, *self.flags)

    async def open(self) -> None:
        await self.open_edge()
        self.open_job()

    async def open_edge(self) -> None:
        self.asked = assemble(self.settings, clock=ByHand(lambda: self.now_ms))
        assert isinstance(self.asked.core, Edge)
        self.edge = self.asked.core
        await self.asked.open()

    def open_job(self) -> None:
        self.job = JobStore(self.settings.store_dir)
        self.settler = Settler(self.job, Policy.from_ms(**self.settings.policy_values()))

    settler: Settler = field(init=False)

    async def restart_edge(self) -> None:
        await self.edge.close()
        await self.open_edge()

    async def close(self) -> None:
        self.job.close()
        await self.edge.close()

    # --- producers ---
    @staticmethod
    def message(group: str = "g", topic: str = "t", body: bytes = b"body", **rest: Any) -> Message:
        return Message(group, topic, body, **rest)

    async def half(self, group: str = "g", **rest: Any) -> str:
        ((id, _),) = await self.asked.halves.store_halves([self.message(group, **rest)])
        return id

    async def end(self, id: str, outcome: str, group: str = "g", **rest: Any) -> str:
        (answer,) = await self.asked.ends.end([EndRequest(group, id, outcome, **rest)])
        return answer.verdict

    async def act(self, action: str, *ids: str) -> list[str]:
        """As operator; what was answered."""
        return [each.result for each in (await self.edge.act(Action(action, "ada", "a test", ids=ids))).results]

    async def send(self, *bodies: bytes, topic: str = "t", key: str = "", tags: str = "", **rest: Any) -> None:
        """Ordinary messages."""
        properties = {name: value for name, value in (("KEYS", key), ("TAGS", tags)) if value}
        await self.edge.send([self.message(topic=topic, body=body, properties=properties, **rest) for body in bodies])

    # --- consumers ---
    async def pull(self, group: str = "c", topic: str = "t", count: int = 32, **rest: Any) -> list[Delivery]:
        assert self.asked.offers.deliveries is not None
        return await self.asked.offers.deliveries.poll(topic, group, "me", max_messages=count, **rest)

    async def pull_bodies(self, *args: Any, **rest: Any) -> list[bytes]:
        return [message.body for message in await self.pull(*args, **rest)]

    async def ack(self, *messages: Delivery, group: str = "c", topic: str = "t") -> list[str]:
        return await self.edge.consumption.ack(topic, group, [message.receipt for message in messages])

    async def poll(self, group: str = "g", member: str = "m", count: int = 32, wait_s: float = 0.0) -> list[str]:
        """The ids asked about; the hand-over is counted."""
        async with self.asked.polls.poll_checks(group, member, count, wait_s) as handover:
            return [self.edge.id_of(request) for request in handover.requests]

    # --- the job ---
    def settle(self) -> None:
        feed = read_feed(self.job.log, self.job.marker.half_cursor, self.job.marker.op_cursor)
        self.settler.settle(feed, self.now_ms)

    def round(self, after_ms: int = 30_000) -> None:
        """Time passes, ops are settled, a round is decided, the edge is woken."""
        self.now_ms += after_ms
        self.settle()
        groups = len(Dictionary(self.settings.store_dir / "dictionary").groups)
        live = Presence(self.settings.store_dir / "presence").live(self.now_ms, self.settings.presence_ttl_ms, groups)
        for _ in self.settler.check_round(Tick(self.now_ms, self.job.marker.round_no + 1, self.now_ms, True), live):
            pass
        self.wake()

    def wake(self) -> None:
        waker = Waker(self.settings.store_dir / EDGE_WAKE)
        waker.wake()
        waker.close()

    def row(self, half_offset: int) -> tuple[int, int]:
        """(state, check_count) of a row, after settling."""
        import numpy as np

        self.settle()
        word = int(self.job.table.get(np.array([half_offset]))["word"][0])
        return state_of(word), check_count_of(word)

    def ops(self) -> list[tuple[OpKind, int]]:
        """(kind, half_offset) of every op that is flushed."""
        log = LogReader(self.edge.store.directory)
        found = [(OpKind(op["kind"]), int(op["half_offset"])) for op in log.ops(0, log.ends()[1])]
        log.close()
        return found

    async def until(self, true: Callable[[], Any], timeout_s: float = 15.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not true():
                await asyncio.sleep(0.002)

    async def waiting(self, count: int) -> None:
        """Until the edge has that many check requests to hand over."""
        await self.until(lambda: self.edge._checks.figures()["requests_waiting"] == count)


class Play(Protocol):
    """The fixture `play` (tests/unit/ingest/conftest.py)."""

    def __call__(self, story: Callable[[World], Awaitable[Any]], *flags: str, place: str = "") -> Any: ...


@asynccontextmanager
async def world(root: Path, *flags: str) -> AsyncIterator[World]:
    made = World(root, flags)
    await made.open()
    try:
        yield made
    finally:
        await made.close()
