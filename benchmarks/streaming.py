"""Benchmarks of the streaming job, with real Spark: `make bench-streaming`. Figures as in the issue, ratios within one run.

floor              the same Spark, source and rows, and a foreachBatch that only takes the rows
visible            commit acknowledged → its batch applied: 200 transactions/s from a process of its own
settled_records    halves and commits of a backlog, from the first batch to the last
slowdown           a batch of the same traffic with a million pending rows, against none
check_round        a round over a million due halves: decided and durable
idle               CPU of all processes of `escrow run`, with nothing to do
paced              the same with 20 transactions/s, at the default settleInterval and settled at once

All but the last two are measured with settleInterval=0.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, SparkSession

from benchmarks.support import load, report, scratch
from escrow import Message as Outgoing
from escrow import Outcome, Producer
from runtime import settings as escrow_settings
from runtime.settings import Settings
from sinks.interfaces import Applied
from store.edge.store import EdgeStore, End
from store.io.wakeup import JOB_WAKE, Waker
from store.messages import Message
from store.records import OpKind
from store.tables.presence import Presence
from streaming.service import JobService, collect
from streaming.spark.session import make_run_directory, start_spark

BODY = os.urandom(1024)
RATE = 200
PACE = 20
TRAFFIC_S = 15.0
BACKLOG_TRANSACTIONS = 1_000_000
PENDING = 1_000_000
BATCH = 4096


# --- a producer in a process of its own ---------------------------------------------------------------------------------
def producer(root: Path, for_s: float) -> None:
    """RATE transactions a second; prints [[op_offset, when acknowledged], …] of the commits."""
    waker = Waker(root / JOB_WAKE)
    acknowledged = []
    with EdgeStore(root, on_publish=waker.wake) as edge:
        start_s = time.monotonic()
        for number in range(int(for_s * RATE)):
            time.sleep(max(0.0, start_s + number / RATE - time.monotonic()))
            now_ms = time.time_ns() // 1_000_000
            half = edge.prepare([Message("orders", "paid", BODY)], now_ms)[0]
            edge.end([End(half, OpKind.COMMIT, "orders")], now_ms)
            acknowledged.append((edge.op_end - 1, time.monotonic()))
    print(json.dumps(acknowledged))


def traffic(root: Path, for_s: float) -> list[tuple[int, float]]:
    command = [sys.executable, "-m", "benchmarks.streaming", "--producer", str(root), str(for_s)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [(int(op_offset), float(at_s)) for op_offset, at_s in json.loads(out)]


# --- services under measurement -------------------------------------------------------------------------------------------
class Watch:
    """A sink that notes when each batch was applied, and how far it went."""

    def __init__(self) -> None:
        self.applied_at: list[tuple[float, int]] = []

    def applied(self, batch: Applied) -> None:
        self.applied_at.append((time.monotonic(), batch.op_cursor))

    def close(self) -> None:
        return None


class Floor(JobService):
    """Takes the rows and does nothing with them; notes when each batch was done, and whether it brought records."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.done_at: list[tuple[float, bool]] = []

    def _batch(self, rows: DataFrame) -> None:
        delivery = collect(rows)
        self._tick_seen = max(self._tick_seen, delivery.tick)
        self.done_at.append((time.monotonic(), len(delivery.feed.ops) > 0))


def settings_at(root: Path, *flags: str) -> Settings:
    found = escrow_settings.load(None, [f"dataDir={root}", "settleInterval=0", *flags], {})
    found.store_dir.mkdir(parents=True, exist_ok=True)
    EdgeStore(found.store_dir).close()
    return found


@contextmanager
def running(service: JobService, spark: SparkSession) -> Iterator[None]:
    service.start(spark, service.settings.spark_dir / "checkpoint")
    try:
        service.warm_up()
        yield
    finally:
        service.stop()


def gaps_s(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times)]


# --- figures ---------------------------------------------------------------------------------------------------------------
def floor_s(root: Path, spark: SparkSession) -> float:
    service = Floor(settings_at(root))
    with running(service, spark):
        service.done_at.clear()
        traffic(service.settings.store_dir, TRAFFIC_S)
        return statistics.median(gaps_s([at_s for at_s, brought in service.done_at if brought]))


def visible_s(root: Path, spark: SparkSession, prepare: Callable[[JobService], None] | None = None) -> tuple[float, float, float]:
    """(p50, p99, median batch) under traffic; `prepare` sets the store up before it."""
    service, watch = JobService(settings_at(root, "transactionTimeOut=1h")), Watch()
    service._sinks.append(("watch", watch))
    with running(service, spark):
        if prepare is not None:
            prepare(service)
        traffic(service.settings.store_dir, 3.0)
        watch.applied_at.clear()
        acknowledged = traffic(service.settings.store_dir, TRAFFIC_S)
        service.run_batch()
        at_s = np.array([at for at, _ in watch.applied_at])
        cursors = np.array([cursor for _, cursor in watch.applied_at])
        ops, acks = (np.array(column) for column in zip(*acknowledged, strict=True))
        waited = np.sort(at_s[np.searchsorted(cursors, ops, side="right")] - acks)
        batch_s = statistics.median(gaps_s(at_s.tolist()))
    return float(np.quantile(waited, 0.5)), float(np.quantile(waited, 0.99)), batch_s


def settled_per_s(root: Path, spark: SparkSession) -> float:
    service = JobService(settings_at(root))
    with running(service, spark), service._lock:
        append(service.settings.store_dir, BACKLOG_TRANSACTIONS, end=True)
        start_s = time.monotonic()
        service._lock.release()
        service.tick()
        wait_for(lambda: service.store.marker.totals["commits"] >= BACKLOG_TRANSACTIONS)
        taken_s = time.monotonic() - start_s
        service._lock.acquire()
    return 2 * BACKLOG_TRANSACTIONS / taken_s


def append(root: Path, count: int, *, end: bool) -> None:
    message = Message("orders", "paid", BODY[:256])
    with EdgeStore(root) as edge:
        now_ms = time.time_ns() // 1_000_000
        first = edge.half_end
        for start in range(0, count, BATCH):
            edge.append_halves([message] * min(BATCH, count - start), now_ms)
        for start in range(first, first + count if end else first, BATCH):
            stop = min(start + BATCH, first + count)
            edge.append_ends([End(half, OpKind.COMMIT, "orders") for half in range(start, stop)], now_ms)


def pending_million(service: JobService) -> None:
    append(service.settings.store_dir, PENDING, end=False)
    service.tick()
    wait_for(lambda: service.store.marker.pending >= PENDING)


def check_round_s(root: Path, spark: SparkSession) -> float:
    """From the tick to the end of the round, a million requests in the check queue."""
    settings = settings_at(root, "outstandingPerGroupMax=2000000", "transactionTimeOut=5s", "transactionCheckInterval=1h")
    service = JobService(settings)
    with running(service, spark):
        pending_million(service)
        service.run_batch()
        time.sleep(6.5)
        presence = Presence(settings.store_dir / "presence", writable=True)
        presence.seen(0, time.time_ns() // 1_000_000)
        presence.close()
        done, emitted = service.rounds.rounds_done, service.store.marker.check_end
        service.rounds._due_ms = 0
        start_s = time.monotonic()
        service.tick()
        wait_for(lambda: service.rounds.rounds_done > done and not service.rounds.at_work)
        taken_s = time.monotonic() - start_s
        assert service.store.marker.check_end - emitted == PENDING
    return taken_s


def wait_for(true: Callable[[], bool], timeout_s: float = 300.0) -> None:
    give_up_s = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > give_up_s:
            raise TimeoutError("waited in vain")
        time.sleep(0.002)


# --- idle ------------------------------------------------------------------------------------------------------------------
def run_cores(root: Path, during: Callable[[str, int, float], float], *flags: str, for_s: float = 45.0) -> float:
    """CPU of `escrow run` and everything under it while something is done with it, over more than one check interval."""
    sets = [word for flag in ("listenPort=0", "jobMetricsPort=0", *flags) for word in ("--set", flag)]
    root.mkdir(parents=True)
    out = root / "out"
    command = [sys.executable, "-m", "escrow", "run", "--data", str(root / "data"), *sets]
    with open(out, "w") as said:
        run = subprocess.Popen(command, stdout=said, stderr=said)
    try:
        wait_for(lambda: "job ready" in out.read_text() or run.poll() is not None, 200.0)
        time.sleep(10.0)
        return during(out.read_text(), run.pid, for_s)
    finally:
        run.terminate()
        run.wait(30)


def nothing(_said: str, pid: int, for_s: float) -> float:
    before, start_s = cpu_s(pid), time.monotonic()
    time.sleep(for_s)
    return (cpu_s(pid) - before) / (time.monotonic() - start_s)


def paced(said: str, pid: int, for_s: float) -> float:
    """PACE transactions a second by one caller, 3 s of them before it is measured."""
    url = said.split("edge ready on ", 1)[1].split(maxsplit=1)[0]
    before, start_s, first = 0.0, 0.0, 3 * PACE
    with Producer(url, "orders") as sender:
        begun_s = time.monotonic()
        for number in range(first + int(for_s * PACE)):
            time.sleep(max(0.0, begun_s + number / PACE - time.monotonic()))
            if number == first:
                before, start_s = cpu_s(pid), time.monotonic()
            sender.send_in_transaction(Outgoing("paid", "x" * 1024), lambda *_: Outcome.COMMIT)
    return (cpu_s(pid) - before) / (time.monotonic() - start_s)


def cpu_s(root_pid: int) -> float:
    """CPU of a process and all its descendants that still live."""
    parents: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        pid = int(path.parent.name)
        parents.setdefault(int(words[1]), []).append(pid)
        used[pid] = (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    total, ahead = 0.0, [root_pid]
    while ahead:
        pid = ahead.pop()
        total += used.get(pid, 0.0)
        ahead += parents.get(pid, [])
    return total


def with_spark(root: Path, wanted: set[str]) -> None:
    """The figures that need a Spark in this process; printed as they come."""
    at = settings_at(root / "spark")
    spark = start_spark(at, make_run_directory(at))
    batch_s = 0.0
    if "floor" in wanted:
        report({"streaming.floor_batch_ms": floor_s(root / "floor", spark) * 1000})
    if wanted & {"visible", "pending"}:
        before_s = floor_s(root / "floor-1", spark)
        p50, p99, batch_s = visible_s(root / "visible", spark)
        floor = (before_s + floor_s(root / "floor-2", spark)) / 2
        report({"streaming.floor_batch_ms": floor * 1000, "streaming.settling_batch_ms": batch_s * 1000})
        report({"streaming.visible_p50_over_floor": p50 / floor, "streaming.visible_p99_over_floor": p99 / floor})
    if "backlog" in wanted:
        report({"streaming.settled_records_per_s": settled_per_s(root / "backlog", spark)})
    if "pending" in wanted:
        full_s = visible_s(root / "pending", spark, pending_million)[2]
        report({"streaming.batch_slowdown_1m_pending": full_s / batch_s})
    if "round" in wanted:
        report({"streaming.check_round_1m_s": check_round_s(root / "round", spark)})
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.proc.kill()


def main(wanted: set[str]) -> None:
    print(f"before: {load()}", flush=True)
    with scratch() as root:
        if wanted - {"idle", "paced"}:
            with_spark(root, wanted)
        if "idle" in wanted:
            report({"streaming.idle_cpu_cores": run_cores(root / "idle", nothing)})
        if "paced" in wanted:
            report({f"streaming.cores_at_{PACE}_per_s": run_cores(root / "paced", paced)})
            at_once = run_cores(root / "at-once", paced, "settleInterval=0")
            report({f"streaming.cores_at_{PACE}_per_s_settled_at_once": at_once})
    print(f"after: {load()}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--producer"]:
        producer(Path(sys.argv[2]), float(sys.argv[3]))
    else:
        main(set(sys.argv[1:]) or {"visible", "backlog", "pending", "round", "idle", "paced"})
