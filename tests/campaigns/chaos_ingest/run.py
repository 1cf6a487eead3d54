"""One run: the lives of a producer, one after another, until everything that it has sent is settled."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from escrow import Barrier, _msgpack
from store.records import State
from tests.campaigns.chaos.service import ROOT
from tests.campaigns.chaos_ingest.plan import Life, Plan
from tests.campaigns.chaos_ingest.producer import make_database
from tests.campaigns.chaos_ingest.proxy import Proxy

#: A run that is not over after this long hangs.
PATIENCE_S = 600.0
KILLED = -signal.SIGKILL
STATES = {"commit": State.COMMITTED, "rollback": State.ROLLED_BACK}


@dataclass(slots=True)
class Ledger:
    """What the producers of all runs told, and what was done to them."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    #: Transaction ids, with the order that each is about.
    orders_of: dict[str, str] = field(default_factory=dict)
    #: What Escrow has told producers when they ended an order.
    heard: dict[str, State] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a campaign happens."""

    directory: Path
    port: int
    mark: str
    ledger: Ledger
    #: Waits until the halves of a group have all ended.
    settled: Callable[[str], Awaitable[None]]

    def database(self, plan: Plan) -> Path:
        return self.directory / f"{plan.group}.db"


class Run:
    """`await Run(plan, place, rng).play()`"""

    def __init__(self, plan: Plan, place: Place, rng: random.Random) -> None:
        self.plan, self._place, self._rng = plan, place, rng
        self._ledger, self._counts = place.ledger, place.ledger.counts
        self._life = Life(())
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self._worked = asyncio.Event()
        #: Transaction ids as the proxy saw them in answers, by order: the producer itself may be dead before it can tell.
        self._ids: dict[str, str] = {}

    async def play(self) -> None:
        """1 a database · 2 a network · 3 lives, until one is not killed · 4 all is settled · 5 the last one stops."""
        plan, place = self.plan, self._place
        make_database(str(place.database(plan)), Barrier())  # 1
        network = Proxy(place.port, self._cut, self._counts, self._rng, forwarded=self._forwarded, answered=self._answered)
        async with asyncio.timeout(PATIENCE_S), network:  # 2
            url = network.url if plan.through_proxy else f"http://127.0.0.1:{place.port}"
            try:
                for number, life in enumerate(plan.lives):  # 3
                    if await self._live(url, number, life):
                        break
                while network.stalled:
                    await asyncio.sleep(0.05)
                await place.settled(plan.group)  # 4
                await self._stop()  # 5
            finally:
                await self._finish()
        self._counts["runs"] += 1

    async def answer(self) -> None:
        """Once more, for halves that came to light after the run was over: what was cut off may lie in a buffer for a while."""
        self._counts["answered after the run"] += 1
        try:
            await self._live(f"http://127.0.0.1:{self._place.port}", len(self.plan.lives), Life(()))
            await self._place.settled(self.plan.group)
            await self._stop()
        finally:
            await self._finish()

    # --- the network ------------------------------------------------------------------------------------------------------
    def _cut(self, route: str, before: int) -> str:
        return self.plan.cuts.get((route, before), "")

    def _forwarded(self, route: str, body: bytes) -> bool:
        """Kills the producer when its victim's half or end is on its way."""
        life, process = self._life, self._process
        if (life.point, route) == ("half_sent", "halves"):
            hit = _msgpack.text("key") + _msgpack.text(life.victim) in body
        elif (life.point, route) == ("end_sent", "ends") and life.victim in self._ids:
            hit = self._ids[life.victim].encode() in body
        else:
            return False
        if hit and process is not None and process.returncode is None:
            self._kill(life.point)
        return hit

    def _answered(self, route: str, request: bytes, answer: bytes) -> None:
        if route == "halves":
            with suppress(KeyError):  # refused
                for sent, half in zip(msgspec.msgpack.decode(request)["messages"], json.loads(answer)["halves"], strict=True):
                    self._ids[sent["key"]] = half["id"]

    # --- lives ------------------------------------------------------------------------------------------------------------
    async def _live(self, url: str, number: int, life: Life) -> bool:
        """One life; whether it goes on. Otherwise it was killed."""
        given = self._place.directory / f"{self.plan.group}-{number}.json"
        given.write_text(json.dumps(asdict(life)))
        self._life = life
        self._worked.clear()
        process = self._process = await self._start(url, given)
        self._listening = asyncio.create_task(self._listen(process))
        if life.point == "any":
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), life.any_after_s)
            self._kill("any")
        worked = asyncio.create_task(self._worked.wait())
        await asyncio.wait([self._listening, worked], return_when=asyncio.FIRST_COMPLETED)
        worked.cancel()
        if not self._listening.done() and life.point != "any":
            self._counts["points not reached"] += life.point != "none"
            return True
        await self._listening
        code = await process.wait()
        assert code == KILLED, f"the producer of {self.plan.group} ended with {code}: {self._said(number)}"
        return False

    async def _start(self, url: str, given: Path) -> asyncio.subprocess.Process:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("ESCROW_")}
        command = [sys.executable, "-m", "tests.campaigns.chaos_ingest.producer", url, self.plan.group]
        with open(given.with_suffix(".said"), "w") as said:
            return await asyncio.create_subprocess_exec(
                *command, str(self._place.database(self.plan)), str(given),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=said,
                cwd=ROOT, env={**environ, "CHAOS_MARK": self._place.mark},
            )  # fmt: skip

    def _said(self, number: int) -> str:
        return (self._place.directory / f"{self.plan.group}-{number}.said").read_text()[-3000:]

    def _kill(self, point: str) -> None:
        """SIGKILL, unless it is dead."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
                self._counts[f"killed {point}"] += 1

    async def _stop(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = await self._process.wait()
        assert code == 0, f"the producer of {self.plan.group} ended with {code}"

    async def _finish(self) -> None:
        """Whatever happened: nothing of it runs on."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
        if self._process is not None:
            await self._process.wait()
        if self._listening is not None:
            await self._listening

    # --- what it tells ----------------------------------------------------------------------------------------------------
    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            self._hear(json.loads(line))

    def _hear(self, told: dict[str, Any]) -> None:
        event, order = told["event"], told.get("order", "")
        if event == "worked":
            self._worked.set()
        elif event == "kill":
            self._counts[f"killed {told['point']}"] += 1
        elif event == "problem":
            self._ledger.problems.append(f"{order}: {told['text']}")
        elif event in ("half", "check"):
            self._know(told["id"], order)
        elif event == "answer":
            self._counts[f"answered {told['outcome']}" + (" while running" if told["running"] else "")] += 1
        elif event == "end":
            self._counts[f"ended {told['outcome']}" + ("" if told["stands"] else " unheard")] += 1
            if told["stands"] and told["outcome"] in STATES:
                self._ledger.heard[order] = STATES[told["outcome"]]
        elif event in ("raised", "overtaken", "not sent", "begin"):
            self._counts[f"orders {event}"] += 1

    def _know(self, id: str, order: str) -> None:
        if self._ledger.orders_of.setdefault(id, order) != order:
            self._ledger.problems.append(f"{id} is of {order} and of {self._ledger.orders_of[id]}")
