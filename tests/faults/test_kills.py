"""SIGKILL at every named failpoint and at random instants; afterwards the store must be what its users were told.

A *life* is one store with several kills, some of them during the recovery from the one before. Replay a failing life with
ESCROW_SEED=<the seed that the failure names>; the kills at random instants are then at about the same places, the others at
the very same.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.support.check_store import check_store
from tests.support.children import Child, Teller
from tests.support.history import History
from tests.support.points import OPENING, RECOVERING, Aim, aims, any_aim
from tests.support.seeds import KILLS_PER_LIFE, SEED
from tests.support.troubles import trouble
from tests.support.world import World, WrongWall, ageing, open_edge, open_job, settle_all

ACTIONS_PER_CHILD = 120
SHARDS = 6
#: Children that may miss their failpoint before the test gives up: what they play is random.
ATTEMPTS = 6
#: By how much a wall clock may be wrong: days ahead, when everything would be old; a day behind.
LEAPS_MS = (4 * 86_400_000, 400 * 86_400_000, -86_400_000)


# --- children -------------------------------------------------------------------------------------------------------------
def acting(root: Path, seed: int, aim: Aim | None, leap_ms: int = 0) -> Callable[[Teller], None]:
    """Opens the store and plays until it dies, or for so many actions; on a machine whose wall clock is wrong by `leap_ms`."""

    def main(teller: Teller) -> None:
        if aim is not None:
            aim.arm()
        rng = Random(seed)
        world = World(root, wall=WrongWall(leap_ms, teller.history.now_ms))
        if aim is not None and aim.favourites == {"Retain"}:
            for action in ageing(teller.history):
                teller.play(action, world.perform)
        for _ in range(ACTIONS_PER_CHILD):
            thought = world.choose(rng, teller.history, aim.favourites if aim is not None else frozenset())
            if thought is not None:
                teller.play(thought, world.perform)
        world.drop()

    return main


def recovering(root: Path, aim: Aim) -> Callable[[Teller], None]:
    """Opens the store, settles what is there, and ends without a word."""

    def main(teller: Teller) -> None:
        aim.arm()
        edge = open_edge(root)
        job = open_job(root)
        settle_all(job, 1 << 20, teller.history.now_ms)
        job.checkpoint()
        edge.checkpoint()

    return main


def run(history: History, main: Callable[[Teller], None]) -> bool:
    """Run a child to its end; whether it was killed."""
    with Child(history, main) as child:
        child.finish()
        return child.was_killed


def run_for(history: History, main: Callable[[Teller], None], events: int, spin_us: int) -> bool:
    """Run a child and kill it some microseconds after it told so many things."""
    with Child(history, main) as child:
        for number, _ in enumerate(child.events(), 1):
            if number == events:
                until = time.perf_counter_ns() + spin_us * 1000
                while time.perf_counter_ns() < until:
                    pass
                child.kill()
        return child.was_killed


# --- tests ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shard", range(SHARDS))
def test_kill_at_every_failpoint(fast_path: Path, shard: int) -> None:
    """Each failpoint in each way, on a store that has seen some life; then the same point again while recovering."""
    for number, aim in enumerate(aims()[shard::SHARDS]):
        for attempt in range(ATTEMPTS):
            seed = (SEED * 100 + shard) * 1000 + number * ATTEMPTS + attempt
            try:
                # Some points are passed once in a store's life: every other attempt is on a new one.
                if _kill_once(fast_path / f"{number}-{attempt}", aim, seed, new=attempt % 2 == 1):
                    break
            except Exception as error:
                raise AssertionError(f"ESCROW_SEED={SEED}, shard {shard}, {aim}, attempt {attempt}: {error}") from error
        else:
            pytest.fail(f"ESCROW_SEED={SEED}: never reached {aim}")


def _kill_once(root: Path, aim: Aim, seed: int, *, new: bool) -> bool:
    history, rng = History(), Random(seed)
    if OPENING not in aim.favourites and not new:
        run_for(history, acting(root, seed, None), rng.randint(20, 150), 0)
        check_store(root, history, rng)
    killed = run(history, acting(root, seed + 1, aim))
    if killed and RECOVERING in aim.favourites:
        run(history, recovering(root, aim))
    check_store(root, history, rng)
    shutil.rmtree(root)
    return killed


def test_lives_of_kills(fast_path: Path, life_seed: int, record_property: Callable[[str, object], None]) -> None:
    """One store, many kills: at any pass through any failpoint and at random instants, during recovery too. Between them it is
    restored from a backup, rebuilt, loses files, has damaged ones; and the wall clock leaps and comes back."""
    rng, history, root = Random(life_seed), History(), fast_path / "store"
    kills, last = 0, "nothing"
    WrongWall(0, history.now_ms).guard(root)  # the clock is right when the store is made
    try:
        for number in range(KILLS_PER_LIFE * 3):
            if kills >= KILLS_PER_LIFE:
                break
            seed, was = life_seed * 1000 + number, last.rpartition(", then ")[2]
            leap_ms = rng.choice(LEAPS_MS) if rng.random() < 0.3 else 0
            if rng.random() < 0.3:
                last = f"{was}; kill at random, child seed {seed}, leap {leap_ms}"
                kills += run_for(history, acting(root, seed, None, leap_ms), rng.randint(1, 200), rng.randint(0, 4000))
            else:
                aim = any_aim(rng)
                last = f"{was}; {aim}, child seed {seed}, leap {leap_ms}"
                kills += run(history, acting(root, seed, aim, leap_ms))
            while rng.random() < 0.4:
                aim = any_aim(rng, RECOVERING)
                last += f", then {aim}"
                kills += run(history, recovering(root, aim))
            check_store(root, history, rng)
            if rng.random() < 0.3:
                what, do = trouble(root, history, rng)
                last += f", then {what}"
                do()
    except Exception as error:
        raise AssertionError(f"ESCROW_SEED={life_seed}, after {kills} kills, {last}: {error}") from error
    record_property("kills", kills)
    assert kills >= KILLS_PER_LIFE, f"ESCROW_SEED={life_seed}: only {kills} kills"
