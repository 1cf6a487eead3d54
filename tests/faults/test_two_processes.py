"""Edge and job in processes of their own, as in a deployment; one of them is killed, again and again, and the other goes on.

The edge's process tells what it does; a new edge first finds out what became of its predecessor's last action. The job's process
settles, checks and retains without telling anybody anything but its time and round, until it is told to stop.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from store.errors import StoreError
from tests.support.check_store import check_store, resolve
from tests.support.children import Child, Teller
from tests.support.history import LEAD_MS, RETENTION_MS, Action, Checkpoint, Clock, History, Retain, Round, Settle
from tests.support.points import Aim, any_aim, failpoints
from tests.support.world import World, settle_all

KILLS = 8
ACTIONS_PER_EDGE = 60
JOB_POINTS = ("redo.", "state.", "queue.", "catalogue.", "apply.", "job.checkpoint.", "current.")


class Stop:
    """A pipe that tells the job's process to come to an end."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()

    def give(self) -> None:
        os.write(self._writer, b"!")

    def given(self, patience_s: float) -> bool:
        return bool(select.select([self.reader], [], [], patience_s)[0])

    def close(self) -> None:
        os.close(self.reader)
        os.close(self._writer)


@contextmanager
def stop_sign() -> Iterator[Stop]:
    stop = Stop()
    try:
        yield stop
    finally:
        stop.close()


def edge_process(root: Path, seed: int, aim: Aim | None) -> Callable[[Teller], None]:
    def main(teller: Teller) -> None:
        if aim is not None:
            aim.arm()
        world = World(root, job=False)
        resolve(world.edge, teller.history)
        teller.tell("history", teller.history)
        rng = Random(seed)
        for _ in range(ACTIONS_PER_EDGE):
            action = world.choose(rng, teller.history)
            if action is not None:
                teller.play(action, world.perform)
        world.drop()

    return main


def job_process(root: Path, seed: int, aim: Aim | None, stop: Stop, clock: Clock) -> Callable[[Teller], None]:
    def main(teller: Teller) -> None:
        if aim is not None:
            aim.arm()
        rng, round_no = Random(seed), teller.history.round_no
        start_ms = now_ms = max(teller.history.now_ms + LEAD_MS, clock.told_ms())
        world = World(root, edge=False)
        teller.tell("open")
        while not stop.given(0.001):
            now_ms += rng.choice((0, 100, 3000))
            if rng.random() < 0.05:
                round_no, start_ms, now_ms = round_no + 1, now_ms + 30_000, now_ms + 30_000
            actions: list[Action] = [
                Settle(rng.choice((1, 5, 1 << 20)), 3, now_ms),
                Round(round_no, start_ms, now_ms),
                Retain(now_ms + (RETENTION_MS if rng.random() < 0.2 else 0)),
                Checkpoint("job", now_ms),
            ]
            action = rng.choices(actions, (30, 4, 1, 1))[0]
            now_ms = max(now_ms, action.now_ms)
            clock.tell(now_ms)
            teller.tell("round", round_no)
            world.perform(action)
        settle_all(world.job, 1 << 20, now_ms)
        world.close()

    return main


class Pair:
    """The parent's view of both processes."""

    def __init__(self, root: Path, seed: int, stop: Stop) -> None:
        self.root, self._rng, self._stop = root, Random(seed), stop
        self._clock = Clock(root.parent / "clock")
        self.history = History(job_clock=self._clock)
        self.kills = 0
        self._seed = seed

    def _next_seed(self) -> int:
        self._seed += 1_000_003
        return self._seed

    def _aim(self, side: str) -> Aim | None:
        """A failpoint of that side, or (None) a kill at random."""
        if self._rng.random() < 0.4:
            return None
        while True:
            aim = any_aim(self._rng)
            if aim.point.startswith(JOB_POINTS) == (side == "job"):
                return Aim(aim.point, aim.action, self._rng.randint(1, 1 + aim.nth // 3))

    def live(self) -> None:
        """Edges come and go, while a job settles that is killed now and then as well."""
        failpoints()  # recorded before the first fork
        with Child(self.history, edge_process(self.root, self._next_seed(), None)) as first:
            self._run_edge(first, 20)
        job = self._new_job(None)
        try:
            while self.kills < KILLS:
                if self._rng.random() < 0.4:
                    job = self._replace_job(job)
                aim = self._aim("edge")
                with Child(self.history, edge_process(self.root, self._next_seed(), aim)) as edge:
                    self._run_edge(edge, self._rng.randint(2, 60) if aim is None else 1 << 30)
                    self.kills += edge.was_killed
                self._listen(job)
            if job.status is not None:
                job = self._new_job(None)
            self._stop.give()
            self._listen(job, until_end=True)
            if job.was_killed:  # it was armed, and came to its failpoint only now: the next one has the last word
                job = self._new_job(None)
                self._listen(job, until_end=True)
            assert not job.was_killed, "the last job ends by itself"
            self.history.now_ms = self._clock.told_ms()
        finally:
            job.__exit__()

    def _run_edge(self, edge: Child, events: int) -> None:
        for number, event in enumerate(edge.events(), 1):
            if event[0] == "history":
                edge.history = self.history = event[1]
            if number == events:
                edge.kill()
        edge.wait()

    def _new_job(self, aim: Aim | None) -> Child:
        job = Child(self.history, job_process(self.root, self._next_seed(), aim, self._stop, self._clock))
        for kind, *_ in job.events():
            if kind == "open":
                return job
        assert job.was_killed, "a job that ends while it opens was killed"
        self.kills += 1
        job.__exit__()
        return self._new_job(None)

    def _replace_job(self, job: Child) -> Child:
        job.kill()
        self._listen(job, until_end=True)
        self.kills += job.was_killed
        job.__exit__()
        return self._new_job(self._aim("job"))

    def _listen(self, job: Child, *, until_end: bool = False) -> None:
        """Learn the job's round; notice if it was killed at its failpoint."""
        for event in job.events() if until_end else job.ready_events():
            if event[0] == "round":
                self.history.round_no = max(self.history.round_no, event[1])
        if until_end:
            job.wait()


def test_one_side_is_killed(fast_path: Path, pair_seed: int) -> None:
    root = fast_path / "store"
    with stop_sign() as stop:
        pair = Pair(root, pair_seed, stop)
        try:
            pair.live()
            check_store(root, pair.history, Random(pair_seed))
        except (AssertionError, StoreError) as error:
            raise AssertionError(f"ESCROW_SEED={pair_seed}, after {pair.kills} kills: {error}") from error
