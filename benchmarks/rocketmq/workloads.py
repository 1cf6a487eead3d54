"""What is measured, (a) to (i): each a function that starts the systems, lets them work in turns, and gives rows.

A row is one measurement with all its values: what, of which system, in which case. Results and page are made of rows alone.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypedDict

from benchmarks.rocketmq.client import quantiles
from benchmarks.rocketmq.processes import Meter, Talker, memory
from benchmarks.rocketmq.systems import Escrow, Rocket, System

CALLERS: Final = (1, 8, 64)
#: Threads and messages in a request of workload (b).
BATCHES: Final = ((4, 256), (2, 1024))
PROCESSES: Final = 4
SYNC, ASYNC, ESCROW = "RocketMQ sync", "RocketMQ async", "Escrow"
#: Nothing is checked while halves are being loaded.
NEVER: Final = {"transactionTimeOut": "3600000"}
#: For what only counts, and measures no time: rounds in quick succession. The time out is the default: RocketMQ puts ops together
#: for 3 s, and with less it would ask about what is committed.
QUICK_S: Final = 5
QUICK: Final = {"transactionTimeOut": "6000", "transactionCheckInterval": f"{QUICK_S * 1000}"}
CHECK_MAX: Final = 3


class Row(TypedDict):
    what: str
    system: str
    case: str
    values: list[float]


@dataclass(slots=True)
class Bench:
    """How much, where, and the rows so far."""

    root: Path
    class_path: str
    scale: float = 1.0
    rounds: int = 3
    rows: list[Row] = field(default_factory=list)
    _dirs: int = 0

    def count(self, full: int, least: int = 100) -> int:
        return max(least, round(full * self.scale))

    def seconds(self, full: float, least: float = 1.0) -> float:
        return max(least, full * self.scale)

    def add(self, what: str, system: str, case: object, value: float) -> None:
        for row in self.rows:
            if (row["what"], row["system"], row["case"]) == (what, system, str(case)):
                row["values"].append(value)
                break
        else:
            self.rows.append({"what": what, "system": system, "case": str(case), "values": [value]})
        print(f"    {what:24} {system:16} {case!s:18} {value:.5g}", flush=True)

    @contextmanager
    def system(self, kind: str) -> Iterator[System]:
        """One system with a directory of its own, not started; nothing of it is left afterwards."""
        self._dirs += 1
        root = self.root / f"{self._dirs}"
        made: System = Escrow(root) if kind == ESCROW else Rocket(root, self.class_path, kind.split()[1])
        try:
            yield made
        finally:
            made.finish()

    @contextmanager
    def running(self, kinds: Sequence[str], settings: Mapping[str, str] | None = None) -> Iterator[dict[str, System]]:
        """These systems, started; those of RocketMQ rest until it is their turn (`turn`)."""
        with ExitStack() as stack:
            systems = {kind: stack.enter_context(self.system(kind)) for kind in kinds}
            for kind in sorted(kinds):  # Escrow first: the others would take its time while it warms up
                systems[kind].start(settings)
            yield systems


@contextmanager
def turn(systems: dict[str, System], kind: str) -> Iterator[System]:
    """It is this one's turn: the others rest."""
    with ExitStack() as stack:
        for other, system in systems.items():
            if other != kind and isinstance(system, Rocket):
                stack.enter_context(system.resting())
        yield systems[kind]


@contextmanager
def clients(systems: dict[str, System], **options: object) -> Iterator[dict[str, Talker]]:
    with ExitStack() as stack:
        yield {kind: stack.enter_context(system.client(**options)) for kind, system in systems.items()}


# --- (a), (b): transactions a second ---------------------------------------------------------------------------------------------
def throughput(bench: Bench) -> None:
    seconds = bench.seconds(5)
    with bench.running((SYNC, ASYNC, ESCROW)) as systems, clients(systems) as by, ExitStack() as stack:
        more = [stack.enter_context(systems[ESCROW].client(group="many")) for _ in range(PROCESSES)]
        for kind, client in by.items():
            with turn(systems, kind):
                client.ask("tx", callers=64, seconds=bench.seconds(8))  # warm
        for _ in range(bench.rounds):
            for callers in CALLERS:
                for kind, client in by.items():
                    with turn(systems, kind):
                        _rate(bench, kind, str(callers), client.ask("tx", callers=callers, seconds=seconds))
                with turn(systems, ESCROW):
                    said = by[ESCROW].ask("tx", callers=callers, seconds=seconds, style="tasks")
                    _rate(bench, ESCROW, f"{callers} tasks", said)
            with turn(systems, ESCROW):
                _rate(bench, ESCROW, f"{PROCESSES} × 16", _together(more, callers=16, seconds=seconds))
                systems[ESCROW].settled()


def _rate(bench: Bench, kind: str, case: str, said: dict[str, Any]) -> None:
    bench.add("tx_per_s", kind, case, said["count"] / said["seconds"])
    if "visible_seconds" in said:
        bench.add("visible_tx_per_s", kind, case, said["count"] / said["visible_seconds"])
    bench.add("tx_p50_ms", kind, case, said["p50_ms"])
    bench.add("tx_p99_ms", kind, case, said["p99_ms"])
    if said["errors"]:
        bench.add("tx_errors", kind, case, said["errors"])


def _together(talkers: Sequence[Talker], **values: object) -> dict[str, Any]:
    for talker in talkers:
        talker.tell("tx", **values)
    said = [talker.answer() for talker in talkers]
    return {
        "count": sum(each["count"] for each in said),
        "errors": sum(each["errors"] for each in said),
        **{name: max(each[name] for each in said) for name in ("seconds", "visible_seconds", "p50_ms", "p99_ms")},
    }


def batches(bench: Bench) -> None:
    """RocketMQ has no batches of halves: its side is 64 callers, once for each flush mode."""
    seconds = bench.seconds(5)
    with bench.running((SYNC, ASYNC, ESCROW)) as systems, clients(systems) as by:
        for kind, client in by.items():
            with turn(systems, kind):
                client.ask("tx", callers=64, seconds=bench.seconds(8))  # warm
        for _ in range(bench.rounds):
            for kind in (SYNC, ASYNC):
                with turn(systems, kind):
                    _rate(bench, kind, "64", by[kind].ask("tx", callers=64, seconds=seconds))
            for threads, size in BATCHES:
                with turn(systems, ESCROW) as ours:
                    begun = time.monotonic()
                    said = by[ESCROW].ask("batched", callers=threads, batch=size, seconds=seconds)
                    ours.settled()
                    _rate(bench, ESCROW, f"{threads} × {size}", said)
                    bench.add("settled_tx_per_s", ESCROW, f"{threads} × {size}", said["count"] / (time.monotonic() - begun))


# --- (c): commit -> visible ------------------------------------------------------------------------------------------------------
def visibility(bench: Bench) -> None:
    """Each started for itself: a consumer of RocketMQ that rested for two minutes gets nothing for two more."""
    for _ in range(bench.rounds):
        for kind in (SYNC, ASYNC, ESCROW):
            with bench.system(kind) as system:
                system.start()
                with system.client() as client:
                    _visible(bench, kind, system, client)
    bench.add("spark_floor_batch_ms", ESCROW, "200/s", _floor_ms())


def _visible(bench: Bench, kind: str, system: System, client: Talker) -> None:
    client.ask("tx", callers=8, seconds=bench.seconds(8))  # warm
    client.ask("paced", rate=200, seconds=bench.seconds(5))
    with Cursor(system) as cursor:
        said = client.ask("paced", rate=200, seconds=bench.seconds(10, 3.0))
        system.settled()
    bench.add("visible_p50_ms", kind, "200/s", said["p50_ms"])
    bench.add("visible_p99_ms", kind, "200/s", said["p99_ms"])
    if "committed_at" in said:
        waits = quantiles(cursor.waits_s(said["committed_at"]))
        bench.add("settled_p50_ms", kind, "200/s", waits["p50_ms"])
        bench.add("settled_p99_ms", kind, "200/s", waits["p99_ms"])


def _floor_ms() -> float:
    """A micro-batch of the same Spark that only takes its rows."""
    command = [sys.executable, "-m", "benchmarks.streaming", "floor"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(next(line.split()[1] for line in said.splitlines() if line.startswith("streaming.floor_batch_ms ")))


class Cursor:
    """Watches how far Spark has settled, every millisecond. RocketMQ has nothing to watch."""

    def __init__(self, system: System) -> None:
        self._system = system if isinstance(system, Escrow) else None
        self._seen: list[tuple[int, float]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Cursor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while self._system is not None and not self._stop.wait(0.001):
            at = self._system.op_cursor()
            if not self._seen or at > self._seen[-1][0]:
                self._seen.append((at, time.monotonic()))

    def waits_s(self, committed_at: list[float]) -> list[float]:
        """The commits were the last ops: the n-th of them is the n-th of those."""
        cursors, first = [cursor for cursor, _ in self._seen], self._seen[-1][0] - len(committed_at)
        settled_at = [self._seen[bisect_right(cursors, first + number)][1] for number in range(len(committed_at))]
        return [settled - committed for settled, committed in zip(settled_at, committed_at, strict=True)]


# --- (d): check storm ------------------------------------------------------------------------------------------------------------
def storms(bench: Bench) -> None:
    for full, rounds in ((100_000, bench.rounds), (300_000, 1)):
        for _ in range(rounds):
            for kind in (ASYNC, ESCROW):
                _storm(bench, kind, full)


def _storm(bench: Bench, kind: str, full: int) -> None:
    """1 load, with nobody asked · 2 start again with the defaults · 3 a member that would commit comes online."""
    count = bench.count(full)
    with bench.system(kind) as system:
        system.start(NEVER)
        with system.client(topic="storm", group="storm") as client:
            client.ask("halves", callers=64 if kind != ESCROW else 4, count=count)  # 1
        system.settled()
        system.stop()
        system.start()  # 2
        with system.client(topic="storm", group="storm") as client:
            said = client.ask("storm", expect=count)  # 3
    for name in ("asked_50_s", "asked_99_s", "asked_s", "settled_s"):
        bench.add(f"storm_{name}", kind, full, said[name])
    bench.add("storm_checks_per_half", kind, full, said["checks"] / count)


# --- (e): bytes ------------------------------------------------------------------------------------------------------------------
def written(bench: Bench) -> None:
    for _ in range(bench.rounds):
        for kind in (SYNC, ESCROW):
            _bytes_per_tx(bench, kind)
            _bytes_per_check(bench, kind)


def _bytes_per_tx(bench: Bench, kind: str) -> None:
    count = bench.count(20_000, 500)
    with bench.system(kind) as system:
        _once(system)
        before = system.stored_bytes()
        system.start()
        meter = Meter(system.pids())
        with system.client() as client:
            client.ask("count_tx", callers=64, count=count)
        system.settled()
        bench.add("device_bytes_per_tx", kind, "", meter.written / count)
        system.stop()
        bench.add("bytes_per_tx", kind, "", (system.stored_bytes() - before) / count)


def _bytes_per_check(bench: Bench, kind: str) -> None:
    """Halves that are answered UNKNOWN, round after round. Looked at while it is quiet: before the first round, after the last."""
    count = bench.count(5_000)
    with bench.system(kind) as system:
        system.start({"transactionTimeOut": "12000", "transactionCheckInterval": "8000"})
        with system.client(topic="asked", group="asked") as client:
            client.ask("policy", answer="unknown")
            client.ask("halves", callers=16, count=count)
            time.sleep(1.0)
            assert client.ask("asked")["checks"] == 0, "too slow a machine: the first round came before the first look"
            before = system.stored_bytes()
            checks = _wait_for_checks(client, 2 * count)
            bench.add("bytes_per_check", kind, "", (system.stored_bytes() - before) / checks)


def _wait_for_checks(client: Talker, count: int) -> int:
    """So many, and then no more for a while: the round is over."""
    seen = -1
    while (checks := int(client.ask("asked")["checks"])) < count or checks != seen:
        seen = checks
        time.sleep(1.5)
    return checks


def _once(system: System) -> None:
    """A first transaction makes files that are not of any single one."""
    system.start()
    with system.client() as client:
        client.ask("count_tx", callers=1, count=10)
    system.settled()
    system.stop()


# --- (f), (g): many pending ------------------------------------------------------------------------------------------------------
def recovery(bench: Bench) -> None:
    for kind in (SYNC, ESCROW):
        with bench.system(kind) as system:
            _load(system, bench.count(500_000))
            with system.client(topic="pending", group="pending") as client:
                client.ask("policy", answer="unknown")
                client.ask("first_ack")
                for _ in range(bench.rounds):
                    _recover(bench, kind, system, client)


def _load(system: System, count: int) -> None:
    """Pending halves, with nobody asked. RocketMQ flushes asynchronously meanwhile: it is not what is measured."""
    system.start(NEVER | ({"flushDiskType": "ASYNC_FLUSH"} if isinstance(system, Rocket) else {}))
    with system.client(topic="pending", group="pending") as client:
        client.ask("halves", callers=4 if isinstance(system, Escrow) else 64, count=count)
    system.settled()


def _recover(bench: Bench, kind: str, system: System, client: Talker) -> None:
    """`kill -9`, then from the start of the process on."""
    system.kill()
    client.tell("first_ack")
    started = system.start(wait=False)
    bench.add("recover_first_ack_s", kind, "500,000 pending", client.answer()["at"] - started)
    system.wait_ready()
    bench.add("recover_first_check_s", kind, "500,000 pending", client.ask("first_check")["at"] - started)


def pending_memory(bench: Bench) -> None:
    for kind in (SYNC, ESCROW):
        with bench.system(kind) as system:
            _load(system, bench.count(1_000_000))
            for _ in range(bench.rounds):
                time.sleep(bench.seconds(5))
                found = memory(system.pids())
                bench.add("memory_anonymous_mib", kind, "1,000,000 pending", found.anonymous_mib)
                bench.add("memory_private_mib", kind, "1,000,000 pending", found.private_mib)


# --- (h): processor time ---------------------------------------------------------------------------------------------------------
def processor(bench: Bench) -> None:
    with bench.running((SYNC, ASYNC, ESCROW)) as systems:
        for kind in systems:
            with turn(systems, kind):
                _idle(bench, kind, systems[kind], "before the first transaction")
        with clients(systems) as by:
            for kind, client in by.items():
                with turn(systems, kind):
                    client.ask("tx", callers=64, seconds=bench.seconds(8))  # warm
            for _ in range(bench.rounds):
                for kind, client in by.items():
                    with turn(systems, kind):
                        _cpu(bench, kind, systems[kind], client, bench.count(30_000, 500))
        for _ in range(bench.rounds):
            for kind in systems:
                with turn(systems, kind):
                    _idle(bench, kind, systems[kind], "after transactions")


def _cpu(bench: Bench, kind: str, system: System, client: Talker, count: int) -> None:
    server, own = Meter(system.pids()), Meter([client.process.pid])
    client.ask("count_tx", callers=64, count=count)
    system.settled()
    bench.add("server_cpu_s_per_100k", kind, "64 callers", server.cpu_s * 100_000 / count)
    bench.add("client_cpu_s_per_100k", kind, "64 callers", own.cpu_s * 100_000 / count)


def _idle(bench: Bench, kind: str, system: System, case: str) -> None:
    time.sleep(bench.seconds(5))
    meter = Meter(system.pids())
    time.sleep(bench.seconds(15, 5.0))
    bench.add("idle_cores", kind, case, meter.cores)


# --- (i): faults -----------------------------------------------------------------------------------------------------------------
def faults(bench: Bench) -> None:
    for _ in range(bench.rounds):
        for kind in (SYNC, ESCROW):
            _killed_after_commits(bench, kind)
            _ends_repeated(bench, kind)
    for kind in (SYNC, ESCROW):
        _nobody_online(bench, kind)


def _killed_after_commits(bench: Bench, kind: str) -> None:
    """Commits that a consumer has seen; `kill -9`; a start, and three rounds of checks that the producer answers COMMIT."""
    count = bench.count(20_000)
    with bench.system(kind) as system:
        system.start(QUICK)
        with system.client() as client:
            client.ask("consume")
            client.ask("commits", callers=64, count=count)
            system.kill()
            system.start(QUICK)
            time.sleep(6.0 + 4 * QUICK_S)
            said = client.ask("copies")
    bench.add("fault_twice_in_topic", kind, count, said["twice"])
    bench.add("fault_delivered_again", kind, count, said["delivered_again"])
    bench.add("fault_lost", kind, count, max(0, count - said["keys"]))


def _ends_repeated(bench: Bench, kind: str) -> None:
    with bench.system(kind) as system:
        system.start()
        with system.client() as client:
            bench.add("fault_commit_thrice", kind, "copies", client.ask("thrice")["copies"])
            bench.add("fault_commit_after_rollback", kind, "copies", client.ask("after_rollback")["copies"])


def _nobody_online(bench: Bench, kind: str) -> None:
    """Halves, and nobody to ask for more rounds than checkMax; then a producer that would commit."""
    count, settings = 200, {**QUICK, "transactionCheckMax": str(CHECK_MAX)}
    with bench.system(kind) as system:
        system.start(NEVER)
        with system.client(topic="left", group="left") as client:
            client.ask("halves", callers=4, count=count)
        system.settled()
        system.stop()
        system.start(settings)
        time.sleep((CHECK_MAX + 3) * QUICK_S)
        with system.client(topic="left", group="left") as client:
            time.sleep(3 * QUICK_S)
            asked, delivered = client.ask("asked")["halves"], client.ask("copies")["keys"]
    bench.add("fault_nobody_asked", kind, f"of {count}", asked)
    bench.add("fault_nobody_delivered", kind, f"of {count}", delivered)


WORKLOADS: Final[dict[str, Callable[[Bench], None]]] = {
    "a": throughput,
    "b": batches,
    "c": visibility,
    "d": storms,
    "e": written,
    "f": recovery,
    "g": pending_memory,
    "h": processor,
    "i": faults,
}
