"""Which failpoints there are: found by playing a long workload and recording, so that a new one is tested as soon as it exists."""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import dataclass
from random import Random

from store.io import disk
from tests.support.history import History
from tests.support.seeds import fast_directory
from tests.support.world import World, small_tables

OPENING = "opening"
RECOVERING = "recovering"
#: Always the same, whichever seed is being replayed: what is aimed at depends on it.
RECORDING_SEED = 20270115


@functools.cache
def failpoints() -> dict[str, dict[str, int]]:
    """Every failpoint that a long workload passes: by name, how often in which kind of action."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))

    def note(passed: dict[str, int], during: str) -> None:
        for point, passes in passed.items():
            found[point][during] += passes
        passed.clear()

    with fast_directory() as place, small_tables(), disk.recording() as passed:
        root, rng, history = place / "store", Random(RECORDING_SEED), History()
        world = World(root)
        note(passed, OPENING)
        for number in range(700):
            if number % 100 == 99:
                world.drop()
                passed.clear()
                world = World(root)
                note(passed, RECOVERING)
            action = world.choose(rng, history)
            if action is not None:
                history.intend(action)
                history.acknowledge(action, world.perform(action))
                note(passed, type(action).__name__)
        world.drop()
    return {point: dict(during) for point, during in found.items()}


@dataclass(frozen=True, slots=True)
class Aim:
    """Where a child dies: at the nth pass through a failpoint."""

    point: str
    action: str
    nth: int = 1
    favourites: frozenset[str] = frozenset()

    def arm(self) -> None:
        disk.arm(self.point, self.action, self.nth)


def ways(point: str) -> list[str]:
    return ["kill", "kill-after", *(["torn"] if point.endswith((".write", ".replace")) else [])]


def aims() -> list[Aim]:
    """Every failpoint, every way to die at it, at its first pass."""
    return [Aim(point, way, 1, frozenset(during)) for point, during in sorted(failpoints().items()) for way in ways(point)]


def any_aim(rng: Random, during: str = "") -> Aim:
    points = sorted(point for point, where in failpoints().items() if not during or during in where)
    point = rng.choice(points)
    where = failpoints()[point]
    passes = where[during] if during else sum(where.values()) // 7
    return Aim(point, rng.choice(ways(point)), rng.randint(1, max(1, min(passes, 60))), frozenset(where))
