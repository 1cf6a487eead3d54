"""SIGKILL of an edge whose consumers are at work: what was acknowledged never comes back, what was not always does.

Each life is a process: it polls everything, acknowledges some, lets time pass, polls again, and tells what it was answered, until
it is killed at a step of the journal or at any instant. The next life finds the journal as it was left. Attempts are exact: one
more than was told, and one more for each process that was killed when it had just handed out and could not tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from ingest.edge.embedded import Edge
from store.inspect.verify.store import verify
from store.io import disk
from store.messages import Message
from store.tables.journals import consumers
from tests.support.children import Child, Teller
from tests.support.edge_world import T0_MS, settings_for
from tests.support.hand_clock import ByHand
from tests.support.history import History
from tests.support.seeds import SEED

MESSAGES = 120
LIVES = 4
FLAGS = ("queuesPerTopic=1", "maxDeliveries=65535", "commitLogSegmentSize=256KiB")
WAYS = {"write": ("kill", "kill-after", "torn"), "flush": ("kill", "kill-after"), "replace": ("kill", "kill-after", "torn")}
AIMS: list[tuple[str, str, int] | None] = [
    (f"consumers.{step}", way, nth) for step, ways in WAYS.items() for way in ways for nth in (1, 2, 4)
]


class Told:
    """What the consumers know."""

    def __init__(self) -> None:
        self.acknowledged: set[int] = set()
        self.in_doubt: set[int] = set()
        self.attempts: dict[int, int] = {}
        self.killed_since = 0

    def learn(self, kind: str, *rest: list[int] | list[tuple[int, int]]) -> None:
        if kind == "acknowledging":
            self.in_doubt.update(rest[0])  # type: ignore[arg-type]
        elif kind == "acknowledged":
            self.acknowledged.update(rest[0])  # type: ignore[arg-type]
        elif kind == "first":
            self.check(dict(rest[0]))  # type: ignore[arg-type]
        elif kind == "handed":
            self.attempts.update(dict(rest[0]))  # type: ignore[arg-type]

    def check(self, handed: dict[int, int]) -> None:
        """What a new life is handed, asking for all there is."""
        assert not self.acknowledged & set(handed), "acknowledged, and came back"
        missing = set(range(MESSAGES)) - self.acknowledged - self.in_doubt - set(handed)
        assert not missing, f"never acknowledged, and did not come back: {missing}"
        for queue_offset, attempt in handed.items():
            before = self.attempts.get(queue_offset, 0)
            assert before + 1 <= attempt <= before + 1 + self.killed_since, f"{queue_offset}: attempt {attempt} after {before}"
        self.killed_since = 0
        self.in_doubt -= set(handed)
        self.attempts.update(handed)


def consuming(root: Path, life: int, seed: int, aim: tuple[str, str, int] | None) -> Callable[[Teller], None]:
    def main(teller: Teller) -> None:
        consumers.COMPACT_FROM = 60  # type: ignore[misc]
        asyncio.run(consume(root, life, Random(seed + life), aim, teller))

    return main


async def consume(root: Path, life: int, rng: Random, aim: tuple[str, str, int] | None, teller: Teller) -> None:
    now_ms = T0_MS + life * 1_000_000
    if life and aim is not None and rng.random() < 0.3:
        disk.arm(*aim)  # during the recovery, too
    edge = Edge(settings_for(root, *FLAGS), clock=ByHand(lambda: now_ms))
    await edge.open()
    if not life:
        await edge.send([Message("g", "t", b"%d" % number) for number in range(MESSAGES)])
    if aim is not None:
        disk.arm(*aim)
    consumption = edge.consumption
    await edge.consumption.poll("t", "nobody", "me", max_messages=1)  # begins the journal
    kind = "first"
    for _ in range(40):
        got = await consumption.poll("t", "c", "me", max_messages=1000, visibility_s=1)
        teller.tell(kind, [(message.queue_offset, message.attempt) for message in got])
        kind = "handed"
        for _ in range(3):
            some = rng.sample(got, min(len(got), rng.randint(0, 2)))
            if not some:
                continue
            offsets = [message.queue_offset for message in some]
            teller.tell("acknowledging", offsets)
            verdicts = await consumption.ack("t", "c", [message.receipt for message in some])
            teller.tell("acknowledged", [at for at, verdict in zip(offsets, verdicts, strict=True) if verdict == "done"])
        now_ms += 2_000
    await edge.close()


def live(main: Callable[[Teller], None], told: Told, events: int | None) -> bool:
    """One life, killed after so many events; whether it was killed."""
    with Child(History(), main) as child:
        for count, event in enumerate(child.events(), 1):
            told.learn(*event)
            if count == events:
                child.kill()
        told.killed_since += child.was_killed
        return child.was_killed


@pytest.mark.parametrize("aim", AIMS, ids=lambda aim: "-".join(map(str, aim)))
def test_killed_at_a_step_of_the_journal(fast_path: Path, aim: tuple[str, str, int]) -> None:
    play(fast_path / "data", [aim] * LIVES, [None] * LIVES, SEED)


@pytest.mark.parametrize("number", range(6))
def test_killed_at_any_instant(fast_path: Path, number: int) -> None:
    rng = Random(SEED + number)
    play(fast_path / "data", [None] * LIVES, [rng.randint(1, 150) for _ in range(LIVES)], SEED + 100 * number)


def play(root: Path, aims: list[tuple[str, str, int] | None], events: list[int | None], seed: int) -> None:
    told, kills = Told(), 0
    try:
        for life, (aim, count) in enumerate(zip(aims, events, strict=True)):
            kills += live(consuming(root, life, seed, aim), told, count)
        assert kills, "nobody was killed"
        assert not live(consuming(root, LIVES, seed, None), told, None)
    except AssertionError as error:
        raise AssertionError(f"ESCROW_SEED={SEED}: {error}") from error
    problems = verify(root / "store").problems
    assert not problems, problems
