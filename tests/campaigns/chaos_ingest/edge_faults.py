"""Kills of the endpoint, again and again, while the runs go on: at any moment, and around the flush of the commit log.

    any            SIGKILL from outside, whatever it is doing, starting and recovering included
    before_flush   by itself, before the nth flush: halves and ends are written, and nobody was answered
    after_flush    by itself, after the nth flush: they are durable, and nobody was answered
    torn_write     by itself, in the middle of the nth write to the log

A life is armed through a file that the next edge takes with it (armed/sitecustomize.py), so that the supervisor and its command are
the real ones.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from pathlib import Path

from tests.campaigns.chaos.service import ROOT, Service, kill

FAILPOINTS = {
    "before_flush": "commitlog.flush=kill",
    "after_flush": "commitlog.flush=kill-after",
    "torn_write": "commitlog.write=torn",
}
#: Two of the flush to one torn write.
TURNS = ("before_flush", "after_flush", "torn_write", "after_flush", "before_flush")
#: Between turns: so that runs get ahead, and edges die in the middle of something.
PAUSE_S = (1.0, 6.0)
#: An armed edge that has not died after this long had nothing to write.
ARMED_MAX_S = 20.0


def environment(data: Path) -> dict[str, str]:
    """For the service: how its edges find out that they are armed."""
    return {"PYTHONPATH": str(ROOT / "tests" / "campaigns" / "chaos_ingest" / "armed"), "CHAOS_ARM": str(_arm_file(data))}


def _arm_file(data: Path) -> Path:
    return data.parent / "arm"


class EdgeFaults:
    """Runs until it is cancelled, in turns: a kill from outside, then a life that is armed."""

    def __init__(self, service: Service, counts: Counter[str], rng: random.Random) -> None:
        self._service, self._counts, self._rng = service, counts, rng
        self._arm = _arm_file(service.data)
        self._turns: list[str] = []
        self._dead: set[int] = set()

    async def play(self) -> None:
        while True:
            await asyncio.sleep(self._rng.uniform(*PAUSE_S))
            kind = self._next_turn()
            self._write(f"{FAILPOINTS[kind]}@{self._rng.choice((1, 2, self._rng.randint(1, 40)))}")
            await self._kill_any()
            await self._wait_armed(kind)

    def _next_turn(self) -> str:
        if not self._turns:
            self._turns = list(TURNS)
            self._rng.shuffle(self._turns)
        return self._turns.pop()

    def _write(self, failpoint: str) -> None:
        """Whole or not at all."""
        made = self._arm.with_suffix(".new")
        made.write_text(failpoint)
        made.rename(self._arm)

    async def _kill_any(self) -> None:
        while True:
            for pid in self._service.processes()["edge"]:
                if pid not in self._dead and kill(pid):
                    self._dead.add(pid)
                    self._counts["edge killed any"] += 1
                    return
            await asyncio.sleep(0.02)

    async def _wait_armed(self, kind: str) -> None:
        """The armed edge is there, and dies of it."""
        while not (taken := list(self._arm.parent.glob(f"{self._arm.name}.taken.*"))):
            self._service.check_alive()
            await asyncio.sleep(0.02)
        [path] = taken
        pid = int(path.name.rpartition(".")[2])
        path.unlink()
        for _ in range(round(ARMED_MAX_S / 0.02)):
            if not _lives(pid):
                self._counts[f"edge killed {kind}"] += 1
                return
            await asyncio.sleep(0.02)
        self._counts["edge not killed: nothing to write"] += 1
        if kill(pid):
            self._dead.add(pid)
            self._counts["edge killed any"] += 1


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def disarm(data: Path) -> None:
    """Edges that start from now on live."""
    _arm_file(data).unlink(missing_ok=True)
    for name in os.listdir(data.parent):
        if name.startswith("arm."):
            (data.parent / name).unlink(missing_ok=True)
