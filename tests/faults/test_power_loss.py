"""Power failures: only what was flushed is sure to be there, and of the rest any sectors.

A workload plays on a watched directory (`tests.support.power`). At many of its system calls the directory is copied as a power
failure at that instant could leave it, and the copy is recovered and held against the history. On the way the process is killed and
started again (then the page cache survives, and what recovery publishes must be flushed by recovery), flushes fail (then the system
calls pages clean that were never written), and the power fails again during the recovery from a power failure.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from random import Random

from store.errors import StoreUnusable
from tests.support.check_store import check_store
from tests.support.history import History
from tests.support.power import Keep, Killed, PowerDisk
from tests.support.world import World

ACTIONS = 150


class Storm:
    """One workload on one disk, and everything that goes wrong with them."""

    def __init__(self, place: Path, seed: int, *, images: float, kills: float = 0.0, failures: float = 0.0) -> None:
        self.root, self._image_root = place / "store", place / "image"
        self._chances = images, kills, failures
        # What is played and what goes wrong have dice of their own.
        self._rng, self._fate = Random(seed), Random(-seed - 1)
        self.history = History()
        self.disk = PowerDisk(self.root)
        self.disk.on_step = self._step
        self.images = self.kills = self.failures = self._left = 0
        self.doing = "opening"

    def rage(self, actions: int) -> None:
        with self.disk.active():
            self._left = actions
            while self._left > 0:
                try:
                    # What is in doubt must be found out before more is done.
                    self.doing = "recovering"
                    check_store(self.root, self.history, self._rng)
                    self._play()
                except (Killed, StoreUnusable) as end:
                    if isinstance(end, StoreUnusable) and "Input/output error" not in str(end):
                        raise
                    self._left -= 1
                    self.disk.forget_process()
            self.disk.on_step = lambda _call, _path: None
            self.disk.forget_process()

    def _play(self) -> None:
        world = World(self.root)
        while self._left > 0:
            self._left -= 1
            action = world.choose(self._rng, self.history)
            if action is not None:
                self.doing = repr(action)[:120]
                self.history.intend(action)
                self.history.acknowledge(action, world.perform(action))
        world.drop()

    def _step(self, call: str, path: str) -> None:
        images, kills, failures = self._chances
        if self._fate.random() < images:
            self._fail_power(call, path)
        if self._fate.random() < failures:
            self.failures += 1
            self.disk.fail_sync(lambda _path: True)
        if self._fate.random() < kills:
            self.kills += 1
            raise Killed

    def _fail_power(self, call: str, path: str) -> None:
        self.images += 1
        keep = self._fate.choice(list(Keep))
        self.disk.image(self._image_root, self._fate, keep)
        history: History = pickle.loads(pickle.dumps(self.history))
        try:
            if self._fate.random() < 0.3:
                self._fail_again(history)
            else:
                check_store(self._image_root, history, self._fate)
        except Exception as error:
            where = f"{call} {path.removeprefix(str(self.root))} ({self.doing})"
            raise AssertionError(f"power failure {self.images}, keeping {keep.value}, before {where}: {error}") from error

    def _fail_again(self, history: History) -> None:
        """The power fails once more while the store recovers."""
        disk, again = PowerDisk(self._image_root), self._image_root.with_name("again")
        countdown = self._fate.randint(1, 60)

        def step(_call: str, _path: str) -> None:
            if disk.steps == countdown:
                raise Killed

        disk.on_step = step
        with disk.active():
            try:
                check_store(self._image_root, pickle.loads(pickle.dumps(history)), self._fate)
            except Killed:
                disk.forget_process()
            disk.image(again, self._fate, self._fate.choice(list(Keep)))
        check_store(again, history, self._fate)


def weather(place: Path, seed: int, **chances: float) -> Storm:
    storm = Storm(place, seed, **chances)
    try:
        storm.rage(ACTIONS)
    except Exception as error:
        raise AssertionError(f"ESCROW_SEED={seed}: {error}") from error
    return storm


def test_power_fails(fast_path: Path, storm_seed: int) -> None:
    storm = weather(fast_path, storm_seed, images=0.03)
    assert storm.images > 5, f"ESCROW_SEED={storm_seed}: the power failed {storm.images} times only"


def test_power_fails_after_kills(fast_path: Path, storm_seed: int) -> None:
    storm = weather(fast_path, storm_seed, images=0.02, kills=0.006)
    assert storm.images > 5, f"ESCROW_SEED={storm_seed}: the power failed {storm.images} times only"


def test_power_fails_after_flushes_failed(fast_path: Path, storm_seed: int) -> None:
    storm = weather(fast_path, storm_seed, images=0.02, failures=0.006)
    assert storm.images > 5, f"ESCROW_SEED={storm_seed}: the power failed {storm.images} times only"
