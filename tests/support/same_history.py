"""One history of halves, ends and rounds, played in embedded mode: what Kafka mode must come to as well.

A history is data, made from a seed; both sides play it. It has phases: new halves and ops about halves of this phase and of earlier
ones, in a random order, and then a round, in which one of the two producer groups has a live member, who never answers.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from checker.decisions import Decision, Tick
from store.records import OpKind, State
from store.tables.journals.names import Dictionary
from store.tables.presence import Presence
from tests.support.edge_world import World, world

LIVE, ABSENT = "there", "away"
GROUPS = (LIVE, ABSENT)
DISCARDS = (OpKind.DISCARD_MAX, OpKind.DISCARD_EXPIRED)


class Said(NamedTuple):
    """An op about the n-th half; RESUME is an operator's. `wrong`: said by the other group."""

    half: int
    kind: str
    wrong: bool = False


class Phase(NamedTuple):
    groups: list[str]  # of the new halves
    ops: list[Said]


def history(seed: int, phases: int = 6, halves: int = 12) -> list[Phase]:
    rng, made = random.Random(seed), list[Phase]()
    for number in range(phases):
        groups = rng.choices(GROUPS, (2, 1), k=halves)
        known = range((number + 1) * halves)
        kinds = rng.choices(("COMMIT", "ROLLBACK", "UNKNOWN", "RESUME"), (3, 2, 2, 3), k=halves)
        made.append(Phase(groups, [Said(rng.choice(known), kind, kind != "RESUME" and rng.random() < 0.1) for kind in kinds]))
    return made


def groups_of(phases: Sequence[Phase]) -> list[str]:
    return [group for phase in phases for group in phase.groups]


def other(group: str) -> str:
    return ABSENT if group == LIVE else LIVE


def play_embedded(root: Path, phases: Sequence[Phase], round_s: int, *flags: str) -> list[tuple[State, int]]:
    """(state, check_count) of every half, in the order of their making."""

    async def play() -> list[tuple[State, int]]:
        async with world(root, *flags) as w:
            ids = list[str]()
            for phase in phases:
                ids += [await w.half(group) for group in phase.groups]
                for said in phase.ops:
                    await _say(w, ids[said.half], groups_of(phases)[said.half], said)
                await _round(w, round_s)
            return [(State(state), count) for state, count in (w.row(number) for number in range(len(ids)))]

    return asyncio.run(play())


async def _say(w: World, id: str, group: str, said: Said) -> None:
    if said.kind == "RESUME":
        await w.act("resume", id)
    else:
        await w.end(id, said.kind.lower(), other(group) if said.wrong else group)


async def _round(w: World, round_s: int) -> None:
    """1 a member shows itself · 2 the round · 3 all requests are handed over, discards appended · 4 what came of it is settled."""
    w.now_ms += 1000 * round_s
    assert await w.poll(LIVE) == []  # 1
    w.settle()
    decided = Counter[Decision]()
    live = Presence(w.settings.store_dir / "presence").live(w.now_ms, w.settings.presence_ttl_ms, _group_count(w))
    for counts in w.settler.check_round(Tick(w.now_ms, w.job.marker.round_no + 1, w.now_ms, True), live):  # 2
        decided.update(counts)
    before = sum(kind in DISCARDS for kind, _ in w.ops())
    w.wake()
    handed_over = 0
    while handed_over < decided[Decision.CHECK]:  # 3
        handed_over += len(await w.poll(LIVE, count=1000, wait_s=1.0))
    wanted = before + decided[Decision.DISCARD_MAX] + decided[Decision.DISCARD_EXPIRED]
    await w.until(lambda: sum(kind in DISCARDS for kind, _ in w.ops()) == wanted)
    w.settle()  # 4


def _group_count(w: World) -> int:
    return len(Dictionary(w.settings.store_dir / "dictionary").groups)
