"""Kills while many threads share one flush, and kills of the small journals: what was acknowledged is there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from store.io import disk
from store.records import OpKind
from store.tables.journals.audit import Audit, AuditRecord
from store.tables.journals.consumers import ConsumerKind, ConsumerRecord, Consumers
from tests.support.check_store import check_store
from tests.support.children import Child, Teller
from tests.support.history import Action, Checkpoint, EndMany, History, Prepare, Send, Sent, Wish
from tests.support.seeds import SEED
from tests.support.world import World

THREADS = 4
#: More than any child does before it is killed. One that ended by itself on a busy machine, while its parent had not come to read
#: what it told, would be no kill at all.
ACTIONS_MAX = 20_000


# --- threads --------------------------------------------------------------------------------------------------------------
class Producer:
    """One of many producers: has halves of its own and ends only those, so that every answer can be foretold."""

    def __init__(self, number: int, seed: int, teller: Teller, world: World, lock: threading.Lock) -> None:
        self._number, self._rng = number, Random(seed + number)
        self._teller, self._world, self._lock = teller, world, lock
        self._mine: list[int] = []

    def run(self, actions: int) -> None:
        for _ in range(actions):
            action = self._think()
            with self._lock:
                self._teller.history.intend(action)
                self._teller.tell("intend", action)
            result = self._world.perform(action)
            with self._lock:
                self._teller.history.acknowledge(action, result)
                self._teller.tell("acknowledge", action, result)
            if isinstance(action, Prepare):
                self._mine += result

    def _think(self) -> Action:
        rng = self._rng
        with self._lock:
            now_ms = self._teller.history.now_ms + rng.choice((0, 0, 1, 50))
            if self._number == 0:
                return Checkpoint("edge", now_ms)
            if self._mine and rng.random() < 0.5:
                half = rng.choice(self._mine)
                kind = rng.choice((OpKind.COMMIT, OpKind.ROLLBACK))
                return EndMany((Wish(half, kind, f"group-{self._number}"),), now_ms)
            sent = [self._sent() for _ in range(rng.choice((1, 1, 3)))]
            return (Send if rng.random() < 0.2 else Prepare)(tuple(sent), now_ms)

    def _sent(self) -> Sent:
        # Numbers are taken at once, not when the action is noted: other threads think at the same time.
        self._teller.history.idents += 1
        return Sent(self._teller.history.idents - 1, self._rng.choice((20, 500, 4000)), f"group-{self._number}", "paid")


def threaded(root: Path, seed: int, aim: tuple[str, str, int] | None) -> Callable[[Teller], None]:
    def main(teller: Teller) -> None:
        world, lock = World(root, job=False), threading.Lock()
        if aim is not None:
            disk.arm(*aim)
        producers = [Producer(number, seed, teller, world, lock) for number in range(THREADS + 1)]
        threads = [threading.Thread(target=producer.run, args=(ACTIONS_MAX,), daemon=True) for producer in producers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return main


AIMS = [
    None,
    ("commitlog.flush", "kill", 9),
    ("commitlog.flush", "kill-after", 14),
    ("commitlog.write", "torn", 30),
    ("half.flush", "kill-after", 5),
    ("edge.checkpoint.replace", "kill", 4),
    ("edge.checkpoint.flush_directory", "kill-after", 6),
    ("op.create", "kill-after", 1),
    None,
]


@pytest.mark.parametrize("number", range(len(AIMS)))
def test_threads_share_a_flush_and_die(fast_path: Path, number: int) -> None:
    seed = SEED + number * 100
    root, history, rng = fast_path / "store", History(), Random(seed)
    events = rng.randint(20, 200)
    try:
        with Child(history, threaded(root, seed, AIMS[number])) as child:
            for count, _ in enumerate(child.events(), 1):
                if AIMS[number] is None and count == events:
                    child.kill()
            assert child.was_killed
        check_store(root, history, rng)
    except AssertionError as error:
        raise AssertionError(f"ESCROW_SEED={SEED}, {AIMS[number]}: {error}") from error


# --- journals -------------------------------------------------------------------------------------------------------------
def consumer_record(number: int) -> ConsumerRecord:
    return ConsumerRecord(ConsumerKind.RECEIPT, 3, 64, number, attempts=1, visible_at_ms=number)


def consuming(path: Path) -> Callable[[Teller], None]:
    def main(teller: Teller) -> None:
        consumers = Consumers(path, writable=True)
        for number in range(0, 60, 2):
            consumers.append([consumer_record(number), consumer_record(number + 1)])
            teller.tell("done", number + 2)
            if number % 10 == 8:
                consumers.compact()

    return main


def auditing(path: Path) -> Callable[[Teller], None]:
    def main(teller: Teller) -> None:
        audit = Audit(path, writable=True)
        for number in range(30):
            audit.append(AuditRecord(number, "ada", "resume", str(number), "because", "accepted"))
            teller.tell("done", number + 1)

    return main


WAYS = {
    "write": ("kill", "kill-after", "torn"),
    "flush": ("kill", "kill-after"),
    "replace": ("kill", "kill-after", "torn"),
    "flush_directory": ("kill-after",),
}
#: The audit is made once and never written anew.
CASES = [
    (journal, step, way, nth)
    for journal in ("consumers", "audit")
    for step, ways in WAYS.items()
    for way in ways
    for nth in ((1,) if journal == "audit" and step in ("replace", "flush_directory") else (1, 2, 5))
]


@pytest.mark.parametrize(("journal", "step", "way", "nth"), CASES)
def test_killed_journal(fast_path: Path, journal: str, step: str, way: str, nth: int) -> None:
    """All that was acknowledged, in order, and of the last call as many records as reached the disk."""
    path, done = fast_path / journal, 0
    main = (consuming if journal == "consumers" else auditing)(path)

    def armed(teller: Teller) -> None:
        disk.arm(f"{journal}.{step}", way, nth)
        main(teller)

    with Child(History(), armed) as child:
        for _, count in child.events():
            done = count
        assert child.was_killed
    if journal == "audit":
        with closing(Audit(path, writable=True)) as audit:
            found = [int(record.target) for record in audit.records()]
    else:
        with closing(Consumers(path, writable=True)) as consumers:
            progress = consumers.progress.get((3, 64))
        found = sorted(progress.ahead) if progress is not None else []
    assert found == list(range(len(found)))
    assert done <= len(found) <= done + 2, f"{done} were acknowledged"
