"""Which failpoints there are: found by playing a long workload and recording, so that a new one is tested as soon as it exists."""

from __future__ import annotations

import functools
from collections import defaultdict
from random import Random

from store import disk
from tests.support.history import History
from tests.support.seeds import SEED, fast_directory
from tests.support.world import World, small_tables

OPENING = "opening"
RECOVERING = "recovering"


@functools.cache
def failpoints() -> dict[str, dict[str, int]]:
    """Every failpoint that a long workload passes: by name, how often in which kind of action."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))

    def note(passed: dict[str, int], during: str) -> None:
        for point, passes in passed.items():
            found[point][during] += passes
        passed.clear()

    with fast_directory() as place, small_tables(), disk.recording() as passed:
        root, rng, history = place / "store", Random(SEED), History()
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
