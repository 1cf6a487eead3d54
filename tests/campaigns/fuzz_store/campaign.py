"""The recovery fuzzer: random histories × random damage × {open, verify, rebuild, backup → restore}. What must hold: judge.py.

python -m tests.campaigns.fuzz_store.campaign --cases 20000 --seed 7        (make fuzz-store CASES=20000 SEED=7)
python -m tests.campaigns.fuzz_store.campaign --seed 7 --only 123           (one case again, with its trace)

A case is made by the seed and its number alone. Cases in a row share a history; each has damage of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from store.admin.backup import backup, restore
from store.admin.rebuild import rebuild
from store.errors import StoreError
from tests.campaigns.fuzz_store.damage import Damage, Vandal
from tests.campaigns.fuzz_store.history import Facts, History
from tests.campaigns.fuzz_store.judge import Case, Wrong, check_store, check_verify, read_log
from tests.support.seeds import fast_directory

CASES_PER_HISTORY = 20
#: Of the processor, for one case: damage must not send anybody round for ever.
CASE_CPU_S = 20
EXAMPLES = 12


@dataclass(slots=True)
class Outcome:
    """Figures of a campaign."""

    seed: int
    cases: int = 0
    actions: Counter[str] = field(default_factory=Counter)
    damages: Counter[str] = field(default_factory=Counter)
    #: Refusals by name: "action: error".
    refused: Counter[str] = field(default_factory=Counter)
    wrongs: list[str] = field(default_factory=list)
    #: Different ways in which something was wrong.
    signatures: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


def run_open(case: Case, _: Path) -> None:
    check_store(case, case.root)


def run_verify(case: Case, _: Path) -> None:
    check_verify(case)


def run_rebuild(case: Case, _: Path) -> None:
    rebuild(case.root)
    check_store(case, case.root)


def run_restore(case: Case, place: Path) -> None:
    try:
        backup(case.root, place / "backup")
        restore(place / "backup", place / "restored")
        check_store(case, place / "restored", restored=True)
    except StoreError as error:
        if case.derived_only:
            raise Wrong(f"only derived files are damaged, and yet: {error}") from error
        raise


ACTIONS: dict[str, Callable[[Case, Path], None]] = {
    "open": run_open,
    "verify": run_verify,
    "rebuild": run_rebuild,
    "restore": run_restore,
}


class Campaign:
    """Plays cases one after another in a directory of its own."""

    def __init__(self, place: Path, seed: int) -> None:
        self._place, self._seed = place, seed
        self._history = -1
        self._facts = Facts()
        self._log: dict[int, bytes] = {}
        self.outcome = Outcome(seed)

    def run(self, cases: int, *, first: int = 0) -> Outcome:
        begun = time.monotonic()
        with _no_waiting_for_the_disk():
            for number in range(first, first + cases):
                self.play(number)
        self.outcome.seconds = time.monotonic() - begun
        return self.outcome

    def play(self, number: int) -> None:
        """One case: what is wrong is noted, not raised."""
        self._make_history(number // CASES_PER_HISTORY)
        pick = random.Random(self._seed << 32 | number)
        place = self._place / "case"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self._place / "store", place / "store")
        vandal = Vandal(place / "store", self._place / "snapshot", pick)
        struck = [vandal.strike() for _ in range(pick.choices((0, 1, 2, 3), (1, 14, 3, 2))[0])]
        damages = [damage for damage in struck if damage is not None]
        action = pick.choice(sorted(ACTIONS))
        self.outcome.cases += 1
        self.outcome.actions[action] += 1
        self.outcome.damages.update(damage.kind for damage in damages)
        try:
            with _in_time():
                ACTIONS[action](Case(place / "store", self._facts, damages, self._log), place)
        except StoreError as error:
            if damages:
                self.outcome.refused[f"{action}: {type(error).__name__}"] += 1
            else:
                self._note(number, action, damages, error)
        except Exception as error:
            self._note(number, action, damages, error)

    def _make_history(self, history: int) -> None:
        if history == self._history:
            return
        for name in ("store", "snapshot"):
            shutil.rmtree(self._place / name, ignore_errors=True)
        self._facts = History(self._place / "store", self._place / "snapshot", self._seed << 32 | history).play()
        self._log = read_log(self._place / "store")
        self._history = history

    def _note(self, number: int, action: str, damages: list[Damage], error: Exception) -> None:
        where = [f"{Path(frame.filename).name}:{frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
        signature = f"{action}: {type(error).__name__} in {where[-1]}"
        self.outcome.signatures[signature] += 1
        if self.outcome.signatures[signature] <= EXAMPLES:
            text = "".join(traceback.format_exception(error)[-6:])
            struck = "; ".join(map(str, damages)) or "nothing"
            state = "closed in order" if self._facts.clean else "killed"
            self.outcome.wrongs.append(f"case {number} ({action}; {state}; damaged: {struck})\n{text}")


@contextlib.contextmanager
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Nothing here outlives its process: what the system holds is enough."""
    with mock.patch("os.fsync", return_value=None), mock.patch("os.fdatasync", return_value=None):
        yield


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError(f"more than {CASE_CPU_S} s of the processor")

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, CASE_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def report(outcome: Outcome) -> None:
    rate = outcome.cases / max(outcome.seconds, 0.001)
    print(f"SEED={outcome.seed}: {outcome.cases} cases in {outcome.seconds:.0f} s ({rate:.1f}/s)")
    for name in ("actions", "damages", "refused", "signatures"):
        counts: Counter[str] = getattr(outcome, name)
        print(f"{name}:", ", ".join(f"{what}: {count}" for what, count in sorted(counts.items())) or "none")
    for wrong in outcome.wrongs:
        print(wrong)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.fuzz_store.campaign")
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", type=int, default=None, help="this case alone")
    given = parser.parse_args(argv)
    seed = random.randrange(1 << 31) if given.seed is None else given.seed
    print(f"SEED={seed}", flush=True)
    with fast_directory() as place:
        campaign = Campaign(place, seed)
        outcome = campaign.run(given.cases) if given.only is None else campaign.run(1, first=given.only)
    report(outcome)
    return 1 if outcome.wrongs else 0


if __name__ == "__main__":
    sys.exit(main())
