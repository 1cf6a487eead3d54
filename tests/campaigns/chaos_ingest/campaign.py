"""The campaign against endpoint, SDK and barrier: producers, endpoint and network fail in the middle of transactions, and the
database row and the released message agree, always.

    python -m tests.campaigns.chaos_ingest.campaign --runs 300 --seed 7        (make chaos-ingest RUNS=300 SEED=7)

One real service (`escrow run`, with Spark), many runs at the same time. A run is a producer process with a database of its own:
plan.py says what it may do and where it is killed, proxy.py what the network does to it, edge_faults.py what happens to the
endpoint meanwhile, audit.py what must be true afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import re
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import escrow
from store.errors import StoreError
from store.read.readers import open_readers
from store.records import State, state_of
from tests.campaigns.chaos.service import FLAGS, Service
from tests.campaigns.chaos_ingest import edge_faults
from tests.campaigns.chaos_ingest.audit import Where, audit
from tests.campaigns.chaos_ingest.plan import CUTS, POINTS, TOPICS, Order, Plan, Planner
from tests.campaigns.chaos_ingest.proxy import Proxy
from tests.campaigns.chaos_ingest.run import Ledger, Place, Run

CONCURRENT = 12
#: Of requests of the consumer behind the proxy.
CONSUMER_CUTS = 0.08
SETTLE_S = 600.0
#: Runs at a time, where more than were asked for are needed.
EXTRA = 4
#: A look at the store is shared by those who want one within this time.
LOOK_S = 0.2
#: Silent halves are asked about soon, and as often as it takes: nothing is discarded here.
CHANGED = ("transactionCheckMax=255", "maxDeliveries=60000")
#: Asked for of every campaign, besides its runs: it goes on until it has them, up to twice its runs.
COVERAGE: Mapping[str, int] = {
    **{f"killed {point}": 2 for point in POINTS},
    **{f"{cut} of {route}": 1 for cut in CUTS for route in ("halves", "ends")},
    "edge killed any": 5,
    "edge killed before_flush": 2,
    "edge killed after_flush": 2,
    "edge killed torn_write": 1,
    "answered unknown while running": 2,
    "answered commit": 5,
    "answered rollback": 5,
    "orders overtaken": 1,
}


@dataclass(slots=True)
class Outcome:
    """Figures of a campaign."""

    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    figures: dict[str, float] = field(default_factory=dict)

    def of(self, beginning: str) -> int:
        """All counts whose name begins so."""
        return sum(count for name, count in self.counts.items() if name.startswith(beginning))

    def missing(self) -> list[str]:
        return [f"{name}: {self.of(name)} of {least}" for name, least in COVERAGE.items() if self.of(name) < least]


class Consumers:
    """Members of one consumer group that take everything, one of them over a bad network. The same place holds the same body."""

    def __init__(self, urls: list[str], ledger: Ledger) -> None:
        self._ledger = ledger
        self.consumed: dict[Where, str] = {}
        self.deliveries = 0
        self._lock = threading.Lock()
        self._members = [_member(url) for url in urls]
        self._threads = [threading.Thread(target=self._take, args=(member,)) for member in self._members]
        for thread in self._threads:
            thread.start()

    def _take(self, member: escrow.Consumer) -> None:
        for message in member:
            place, body = (message.topic, message.queue_id, message.queue_offset), message.text
            with self._lock:
                self.deliveries += 1
                if self.consumed.setdefault(place, body) != body:
                    self._ledger.problems.append(f"{place} was delivered as {self.consumed[place][:40]} and as {body[:40]}")

    def close(self) -> None:
        for member in self._members:
            member.close()
        for thread in self._threads:
            thread.join()


def _member(url: str) -> escrow.Consumer:
    return escrow.Consumer(
        url, TOPICS, "audit", start="earliest", prefetch=8, visibility_s=5.0, wait_s=2.0, timeout_s=3.0, retry_for_s=60.0
    )


class Campaign:
    """One campaign in one directory."""

    def __init__(self, place: Path, seed: int, tell: Callable[[str], None] = print) -> None:
        self.directory, self.seed, self._tell = place, seed, tell
        self.data = place / "data"
        self.ledger, self.outcome = Ledger(), Outcome(seed)
        self.outcome.counts = self.ledger.counts
        self.orders: dict[str, Order] = {}
        self.databases: list[Path] = []
        self.consumed: dict[Where, str] = {}
        self._planner, self._plans = Planner(seed), list[Plan]()
        self._began_s = time.monotonic()
        self._looked_s, self._seen = 0.0, Counter[str]()

    def run(self, runs: int, concurrent: int = CONCURRENT) -> Outcome:
        """1 start · 2 runs, while edges die · 3 stop · 4 audit."""
        service = Service(self.data, (*FLAGS, *CHANGED), environ=edge_faults.environment(self.data))  # 1
        try:
            asyncio.run(self._play(service, runs, concurrent))  # 2
            self._stop(service)  # 3
        except BaseException:
            self._say(f"failed; what the service said last: {service.said()[-1500:]}")
            raise
        finally:
            service.finish()
        self.outcome.figures |= audit(self.data / "store", self.databases, self.orders, self.ledger, self.consumed)  # 4
        self.outcome.figures["duration_s"] = round(time.monotonic() - self._began_s, 1)
        return self.outcome

    # --- 2 ----------------------------------------------------------------------------------------------------------------
    async def _play(self, service: Service, runs: int, concurrent: int) -> None:
        """The endpoint takes halves long before Spark is warm: the runs begin when it does."""
        port = await self._edge_port(service)
        self._say("the endpoint is ready")
        rng = random.Random(f"{self.seed}:consumers")
        cuts: Counter[str] = Counter()
        broken = Proxy(port, lambda *_: rng.choice(CUTS) if rng.random() < CONSUMER_CUTS else "", cuts, rng)
        faults = edge_faults.EdgeFaults(service, self.ledger.counts, random.Random(f"{self.seed}:edge"))
        async with broken:
            consumers = Consumers([f"http://127.0.0.1:{port}", broken.url], self.ledger)
            try:
                killing = asyncio.create_task(faults.play())
                place = Place(self.directory, port, service.mark, self.ledger, self._settled)
                await self._play_runs(place, runs, concurrent, killing)
                await self._until(lambda: self._is_all_consumed(consumers), "everything released is consumed")
            finally:
                await asyncio.to_thread(consumers.close)
        self.consumed = consumers.consumed
        self.outcome.figures |= {"deliveries": consumers.deliveries, "consumer_requests_broken": cuts.total()}

    async def _edge_port(self, service: Service) -> int:
        def port() -> int:
            service.check_alive()
            with suppress(OSError, ValueError, KeyError):
                return int(service.state()["edge"]["port"])
            return 0

        await self._until(lambda: port() > 0, "the endpoint is ready")
        return port()

    async def _play_runs(self, place: Place, runs: int, concurrent: int, killing: asyncio.Task[None]) -> None:
        """So many at a time; more than were asked for where some kind of fault has not happened often enough. Then edges live, and
        what came to light late is answered."""
        under_way: dict[asyncio.Task[None], Run] = {}
        done: list[Run] = []
        try:
            while True:
                while len(under_way) < concurrent and len(self._plans) < self._wanted(runs, len(under_way)):
                    run = self._next_run(place)
                    under_way[asyncio.create_task(run.play())] = run
                if not under_way:
                    break
                over, _ = await asyncio.wait([*under_way, killing], return_when=asyncio.FIRST_COMPLETED)
                for task in over:
                    await task
                    done.append(under_way.pop(task))
                    self._progress(len(done))
        finally:
            for task in (killing, *under_way):
                task.cancel()
            await asyncio.gather(killing, *under_way, return_exceptions=True)
        edge_faults.disarm(self.data)
        for run in done:
            if self._look()[run.plan.group]:
                await run.answer()

    def _wanted(self, runs: int, under_way: int) -> int:
        """How many runs there are to be, as far as is known now."""
        return 2 * runs if len(self._plans) >= runs and under_way < EXTRA and self.outcome.missing() else runs

    def _next_run(self, place: Place) -> Run:
        plan = self._planner.plan(len(self._plans))
        self._plans.append(plan)
        self.orders |= {order.ident: order for order in plan.orders}
        self.databases.append(place.database(plan))
        return Run(plan, place, random.Random(f"{self.seed}:{plan.number}:network"))

    # --- waiting ----------------------------------------------------------------------------------------------------------
    async def _settled(self, group: str) -> None:
        await asyncio.sleep(LOOK_S)  # a look from before does not count
        await self._until(lambda: not self._open_halves().get(group), f"all halves of {group} have ended", 0.3)

    def _open_halves(self) -> Counter[str]:
        """Halves that have not ended, or that the job has not read, by group; as of LOOK_S ago at most."""
        if time.monotonic() >= self._looked_s + LOOK_S:
            self._looked_s, self._seen = time.monotonic(), self._look()
        return self._seen

    def _look(self) -> Counter[str]:
        _, log, topics, names = open_readers(self.data / "store")
        try:
            if topics is None:
                raise StoreError("no job has opened the store yet")
            half_end, _ = log.ends()
            group_nos = log.halves(0, half_end)["group_no"]
            open_ones = np.isin(state_of(topics.rows(np.arange(half_end))["word"]), (int(State.NONE), int(State.PREPARED)))
            return Counter(names.groups[number] for number in group_nos[open_ones].tolist())
        finally:
            log.close()
            if topics is not None:
                topics.close()

    def _is_all_consumed(self, consumers: Consumers) -> bool:
        _, log, topics, _ = open_readers(self.data / "store")
        assert topics is not None
        try:
            extents = [topics.catalogue.extent(key) for key in topics.catalogue.queue_keys()]
            return len(consumers.consumed) >= sum(end - begin for begin, end in extents)
        finally:
            log.close()
            topics.close()

    @staticmethod
    async def _until(true: Callable[[], bool], what: str, every_s: float = 0.1) -> None:
        give_up = time.monotonic() + SETTLE_S
        while True:
            with suppress(StoreError, OSError, IndexError):  # the job is just changing files
                if true():
                    return
            assert time.monotonic() < give_up, f"waited {SETTLE_S:.0f} s in vain: {what}"
            await asyncio.sleep(every_s)

    # --- 3, telling ---------------------------------------------------------------------------------------------------------
    def _stop(self, service: Service) -> None:
        self._say("all runs are over, and everything is consumed: stopping")
        code, _ = service.stop()
        assert code == 0, service.said()
        assert "had to be killed" not in service.said(), service.said()[-1500:]
        assert service.left_behind() == [], "processes were left behind"
        deaths = re.findall(r"the (\w+) died \((.*?)\); starting", service.said())
        assert set(deaths) <= {("edge", "killed by SIGKILL")}, f"something died that nobody killed: {Counter(deaths)}"
        assert len(deaths) >= self.outcome.of("edge killed"), f"{len(deaths)} edges died, more were said to be killed"

    def _say(self, text: str) -> None:
        self._tell(f"{time.monotonic() - self._began_s:7.1f} s  {text}")

    def _progress(self, done: int) -> None:
        if done % 10 == 0:
            counts, of = self.ledger.counts, self.outcome.of
            kills = f"{of('killed ')} producers and {of('edge killed')} edges killed, {of('cut_') + of('stall_')} requests broken"
            self._say(f"{done} runs over, {counts['orders begin']} orders begun, {kills}")


def report(outcome: Outcome) -> None:
    """The closing lines: NAME VALUE."""
    print(f"chaos_ingest.seed {outcome.seed}")
    for name, count in sorted(outcome.counts.items()):
        print(f"chaos_ingest.{name.replace(' ', '_')} {count}")
    for name, value in outcome.figures.items():
        print(f"chaos_ingest.{name} {value:.10g}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--concurrent", type=int, default=CONCURRENT)
    parser.add_argument("--dir", type=Path, default=None, help="where to work (default: a new temporary directory)")
    args = parser.parse_args()
    seed = args.seed if args.seed is not None else random.randrange(1 << 32)
    place = Path(tempfile.mkdtemp(prefix="escrow-chaos-ingest-", dir=args.dir))
    print(f"SEED={seed}, {place}, load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores", flush=True)
    logging.getLogger("escrow").setLevel(logging.ERROR)  # consumers that lose their connection are no news here
    campaign = Campaign(place, seed, lambda line: print(line, flush=True))
    try:
        outcome = campaign.run(args.runs, args.concurrent)
    except BaseException:
        print(f"SEED={seed}; everything is left in {place}", file=sys.stderr)
        raise
    report(outcome)
    print(f"load {os.getloadavg()[0]:.1f}")
    with suppress(OSError):
        shutil.rmtree(place)
    missing = outcome.missing()
    if missing:
        print(f"SEED={seed}: too few faults: {', '.join(missing)}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
