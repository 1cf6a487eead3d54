"""The campaign: kill -9 of every process of the service, at random, under load; then nothing may be lost, doubled or left behind.

    python -m tests.campaigns.chaos.campaign --kills 300 --seed 7        (make chaos KILLS=300 SEED=7)

A kill names a kind of process and when: `ready`, when the whole service is ready and settles; `any`, after a random moment,
whatever the service is doing then, starting and recovering included. Only a kill of a living process counts.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from store.read.readers import open_readers
from store.records import State, state_of
from tests.campaigns.chaos.audit import audit
from tests.campaigns.chaos.load import ABSENT, GROUPS, Consumer, Ledger, Member, Operator, Producer
from tests.campaigns.chaos.service import DRIVER_KINDS, Service, kill, until

PRODUCERS = 4
SETTLE_S = 900.0
SETTLING_OPS = 20
#: Who is killed, cycle after cycle, while the service is ready and settles.
READY_KINDS = ("driver", "jvm", "source", "jvm", "driver", "worker")

Kill = tuple[str, str]


def long_schedule(kills: int, rng: random.Random) -> list[Kill]:
    """Cycles, each of one start of Spark: the edge a few times while the job settles, then a part of the job, then, while the job
    is starting again, the edge and the driver at any moment."""
    made: list[Kill] = []
    cycle = rng.randrange(len(READY_KINDS))
    while len(made) < kills:
        starting: list[Kill] = [("edge", "any")] * rng.randint(4, 7) + [
            (rng.choice(DRIVER_KINDS), "any") for _ in range(rng.randint(1, 2))
        ]
        if rng.random() < 0.15:
            starting.append((rng.choice(("source", "worker")), "any"))
        rng.shuffle(starting)
        made += [("edge", "ready")] * rng.randint(2, 4) + [(READY_KINDS[cycle % len(READY_KINDS)], "ready")] + starting
        cycle += 1
    return made[:kills]


def short_schedule(rng: random.Random) -> list[Kill]:
    """24 kills that take four starts of Spark: the driver twice while it settles and three times while it starts."""
    edge: Kill = ("edge", "any")
    one, other = rng.sample(DRIVER_KINDS, 2)
    return [
        *[("edge", "ready"), edge, (one, "ready"), edge, edge, edge, edge, ("driver", "any"), edge, edge, ("jvm", "any"), edge],
        *[("worker", "ready"), ("source", "ready"), edge, edge, edge, edge],
        *[("edge", "ready"), (other, "ready"), edge, edge, (rng.choice(DRIVER_KINDS), "any"), edge],
    ]


@dataclass(slots=True)
class Outcome:
    """Figures of a campaign."""

    seed: int
    kills: Counter[Kill] = field(default_factory=Counter)
    figures: dict[str, float] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def of(self, *kinds: str, when: str = "") -> int:
        return sum(count for (kind, at), count in self.kills.items() if kind in kinds and when in ("", at))

    @property
    def total(self) -> int:
        return sum(self.kills.values())


class Campaign:
    """One run over one data directory."""

    def __init__(self, data: Path, seed: int, tell: Callable[[str], None] = print) -> None:
        self.data, self.seed, self._tell = data, seed, tell
        self.rng = random.Random(seed)
        self.outcome, self.ledger = Outcome(seed), Ledger()
        self._stopping = threading.Event()
        self._began_s = time.monotonic()

    def run(self, schedule: Sequence[Kill]) -> Outcome:
        """0 Java dies while the service comes up for the first time · 1 start · 2 load · 3 kill · 4 settle · 5 stop · 6 audit."""
        service = Service(self.data)
        try:
            until(lambda: any(kill(pid) for pid in service.processes()["jvm"]), "a first Java to kill")  # 0
            self.outcome.kills["jvm", "first_start"] += 1
            port = service.wait_ready()["edge"]["port"]  # 1
            self._say(f"ready; {len(schedule)} kills to come")
            self._start_load(port)  # 2
            for number, (kind, when) in enumerate(schedule, 1):  # 3
                self._kill(service, kind, when)
                self._check_problems()
                if number % 10 == 0:
                    self._progress(number, len(schedule))
            self._say("all kills done, settling")
            self._settle(service)  # 4
            self._stop(service)  # 5
        except BaseException:
            self._stopping.set()
            self._say(f"failed; what the service said last: {service.said()[-1500:]}")
            raise
        finally:
            service.finish()
        self._audit()  # 6
        return self.outcome

    # --- 2 ---------------------------------------------------------------------------------------------------------------
    def _start_load(self, port: int) -> None:
        rest = (port, self.ledger, self.seed, self._stopping)
        self._producers = [Producer(f"producer-{number}", *rest) for number in range(PRODUCERS)]
        self._operator = Operator("operator", *rest)
        self.consumer = Consumer("consumer", *rest, store=self.data / "store")
        members = [Member(f"{group}-{number}", *rest, group=group) for group in GROUPS for number in range(2)]
        self._actors = [*self._producers, *members, self._operator, self.consumer]
        for actor in self._actors:
            actor.start()

    def _check_problems(self) -> None:
        assert not self.ledger.problems, self.ledger.problems[0]

    # --- 3 ---------------------------------------------------------------------------------------------------------------
    def _kill(self, service: Service, kind: str, when: str) -> None:
        """Until one was alive to be killed."""
        while True:
            if when == "ready":
                self._wait_settling(service)
                time.sleep(self.rng.uniform(0, 1.5))
            else:
                time.sleep(self.rng.choice((0.0, self.rng.uniform(0, 0.3), self.rng.uniform(0, 2.5))))
            found = until(lambda: service.processes()[kind], f"a living {kind}")
            was_ready = kind == "edge" or when != "ready" or service.is_ready()
            if was_ready and kill(self.rng.choice(found)):
                self.outcome.kills[kind, when] += 1
                return

    def _wait_settling(self, service: Service) -> None:
        """Ready, and ops are being settled since."""
        service.wait_ready()
        begun = service.op_cursor()
        until(lambda: service.is_ready() and service.op_cursor() >= begun + SETTLING_OPS, "the job settles")

    # --- 4 ---------------------------------------------------------------------------------------------------------------
    def _settle(self, service: Service) -> None:
        """Nothing new; everything that can be answered for is ended, and settled."""
        for producer in self._producers:
            producer.sending = False
        until(self._all_said, "the producers have said all", SETTLE_S)
        for tx in self.ledger.txs:
            if tx.plan == "for_ever" and not tx.resumed:
                tx.plan = "silent"
        service.wait_ready()
        until(lambda: self._unsettled(service) == 0, "everything is settled", SETTLE_S, 0.5)
        self._check_problems()

    def _all_said(self) -> bool:
        return all(producer.idle.is_set() or not producer.is_alive() for producer in self._producers)

    def _unsettled(self, service: Service) -> int:
        """Pending halves of groups that answer, and records not yet read."""
        service.check_alive()
        self._check_problems()
        _, log, topics, names = open_readers(self.data / "store")
        try:
            assert topics is not None
            half_end, op_end = log.ends()
            rows = topics.rows(np.arange(half_end))
            pending = state_of(rows["word"]) == int(State.PREPARED)
            absent = names.group_no(ABSENT)
            answered_for = pending & (rows["group_no"] != (-1 if absent is None else absent))
            behind = op_end - service.op_cursor() + int(np.count_nonzero(state_of(rows["word"]) == int(State.NONE)))
            return int(np.count_nonzero(answered_for)) + behind
        finally:
            log.close()
            if topics is not None:
                topics.close()

    # --- 5, 6 ------------------------------------------------------------------------------------------------------------
    def _stop(self, service: Service) -> None:
        self._stopping.set()
        for actor in self._actors:
            actor.join(60)
        self.consumer.step()
        code, took_s = service.stop()
        assert code == 0, service.said()
        assert "had to be killed" not in service.said(), service.said()[-1500:]
        assert service.left_behind() == [], "processes were left behind"
        self.outcome.figures["stop_s"] = took_s

    def _audit(self) -> None:
        ledger, outcome = self.ledger, self.outcome
        outcome.counts = ledger.counts
        outcome.figures |= {
            "transactions": len(ledger.txs),
            "unanswered": ledger.counts["unanswered"],
            "checks_answered": ledger.counts["asked"],
            "conflicts": sum(count for name, count in ledger.counts.items() if name.endswith(" conflict")),
            "messages_sent": len(ledger.messages),
            **audit(self.data / "store", ledger, self.consumer.seen),
            "duration_s": round(time.monotonic() - self._began_s, 1),
        }

    # --- telling ---------------------------------------------------------------------------------------------------------
    def _say(self, text: str) -> None:
        self._tell(f"{time.monotonic() - self._began_s:7.1f} s  {text}")

    def _progress(self, done: int, of: int) -> None:
        ended = sum(1 for tx in self.ledger.txs if tx.final)
        self._say(f"{done} of {of} kills, {len(self.ledger.txs)} transactions, {ended} ended, {len(self.consumer.seen)} consumed")


def report(outcome: Outcome) -> None:
    """The closing lines: NAME VALUE."""
    print(f"chaos.seed {outcome.seed}")
    print(f"chaos.kills {outcome.total}")
    for (kind, when), count in sorted(outcome.kills.items()):
        print(f"chaos.kills_{kind}_{when} {count}")
    for name, value in outcome.figures.items():
        print(f"chaos.{name} {value:.10g}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--dir", type=Path, default=None, help="where to work (default: a new temporary directory)")
    args = parser.parse_args()
    seed = args.seed if args.seed is not None else random.randrange(1 << 32)
    place = Path(tempfile.mkdtemp(prefix="escrow-chaos-", dir=args.dir))
    print(f"SEED={seed}, {place}, load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores", flush=True)
    campaign = Campaign(place / "data", seed, lambda line: print(line, flush=True))
    try:
        outcome = campaign.run(long_schedule(args.kills, campaign.rng))
    except BaseException:
        print(f"SEED={seed}; everything is left in {place}", file=sys.stderr)
        raise
    report(outcome)
    for name, count in sorted(outcome.counts.items()):
        print(f"# {name}: {count}")
    with suppress(OSError):
        shutil.rmtree(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
