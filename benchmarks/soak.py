"""The soak: constant load on the whole service, and what it holds at both ends. `make soak` (30 minutes), `make soak MINUTES=5`.

`escrow run` with its default settings takes 200 transactions a second: of 20, 13 are committed, 6 rolled back, one is left to
check-back. After a warm-up of a tenth of the time (at least a minute) and at the end it is noted how much memory each process has,
`rss` with mapped files (the page cache's, whoever maps them) and `anon` without, and how many files Spark's directory and the logs
hold. Closing lines: NAME VALUE; memory in MiB. A flat line between is what one wants to see; the samples show it.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from benchmarks.support import load, report, scratch
from tests.campaigns.chaos.service import Service, until
from tests.support.edge_client import EdgeClient

FLAGS = ("listenPort=0", "jobMetricsPort=0", "startTimeout=600s")
BATCH, BATCHES_PER_S = 20, 10
BODY = "x" * 1024
PARTS = ("jvm", "driver", "source", "edge")
SAMPLES = 10


class Load(threading.Thread):
    """A producer that keeps time, and a member of its group that answers checks."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port, self.stopping = port, threading.Event()
        self.sent = self.checked = self.errors = 0
        self._member = threading.Thread(target=self._guarded, args=(self._answer,), daemon=True)

    def run(self) -> None:
        self._member.start()
        self._guarded(self._produce)

    def _guarded(self, work: Callable[[EdgeClient], None]) -> None:
        try:
            with EdgeClient(self._port) as client:
                work(client)
        except Exception:
            self.errors += 1
            raise

    def _produce(self, client: EdgeClient) -> None:
        next_s = time.monotonic()
        while not self.stopping.is_set():
            ids = client.prepare([{"group": "soak", "topic": "soak", "text": BODY}] * BATCH)
            outcomes = ["commit"] * 13 + ["rollback"] * 6  # the last is left to check-back
            ends = [{"group": "soak", "id": id, "outcome": outcome} for id, outcome in zip(ids, outcomes, strict=False)]
            client.ends(ends)
            self.sent += len(ids)
            next_s += 1 / BATCHES_PER_S
            time.sleep(max(0.0, next_s - time.monotonic()))

    def _answer(self, client: EdgeClient) -> None:
        while not self.stopping.is_set():
            checks = client.poll_checks("soak", "member", max=256, wait_s=1.0)
            if checks:
                ends = [{"group": "soak", "id": check["id"], "outcome": "commit", "from_check": True} for check in checks]
                client.ends(ends)
                self.checked += len(ends)


def memory_mib(service: Service) -> dict[str, float]:
    """`jvm_rss_mib`, `jvm_anon_mib`, …: of each part, its processes together."""
    found: dict[str, float] = {}
    processes = service.processes()
    for kind in PARTS:
        for field, measure in (("VmRSS", "rss"), ("RssAnon", "anon")):
            found[f"{kind}_{measure}_mib"] = sum(_status_mib(pid, field) for pid in processes[kind])
    return found


def _status_mib(pid: int, field: str) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:")), 0.0)


def files(data: Path) -> dict[str, float]:
    """How many files there are, and how large they are together."""
    found: dict[str, float] = {}
    for name in ("spark", "logs"):
        sizes = []
        for at, _, names in os.walk(data / name):
            for file in names:
                with suppress(FileNotFoundError):
                    sizes.append(os.path.getsize(os.path.join(at, file)))
        found[f"{name}_files"], found[f"{name}_kib"] = len(sizes), sum(sizes) / 1024
    return found


def soak(data: Path, minutes: float) -> dict[str, float]:
    service = Service(data, FLAGS)
    try:
        state = service.wait_ready()
        work = Load(state["edge"]["port"])
        work.start()
        warm_s = max(60.0, minutes * 6)
        _sleep(service, work, warm_s)
        sent, began_s = work.sent, time.monotonic()
        first = last = {**memory_mib(service), **files(data)}
        for number in range(1, SAMPLES + 1):
            _sleep(service, work, (minutes * 60 - warm_s) / SAMPLES)
            last = {**memory_mib(service), **files(data)}
            shown = ", ".join(f"{name} {last[f'{name}_anon_mib']:.1f}" for name in PARTS)
            print(f"{number:3} of {SAMPLES}: private MiB {shown}; spark files {last['spark_files']:.0f}", flush=True)
        rate = (work.sent - sent) / (time.monotonic() - began_s)
        work.stopping.set()
        work.join(60)
        until(lambda: _behind(state["edge"]["port"]) == 0, "everything is settled", 120)
        assert service.state()["job"]["starts"] == service.state()["edge"]["starts"] == 1, service.said()
        code, stop_s = service.stop()
        assert code == 0, service.said()
        figures = {f"soak.{name}_{end}": value for name in first for end, value in (("start", first[name]), ("end", last[name]))}
        return {
            "soak.minutes": minutes,
            "soak.transactions_per_s": rate,
            "soak.checked": work.checked,
            "soak.stop_s": stop_s,
            **dict(sorted(figures.items())),
        }
    finally:
        service.finish()


def _sleep(service: Service, work: Load, seconds: float) -> None:
    """Time passes; a service or a load that broke is noticed."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        service.check_alive()
        assert not work.errors, "the load broke"
        time.sleep(min(0.5, max(0.0, give_up - time.monotonic())))


def _behind(port: int) -> int:
    with EdgeClient(port) as client:
        job = client.status()["job"]
        return int(job["halves_behind"] + job["ops_behind"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    minutes: float = parser.parse_args().minutes
    print(f"soak of {minutes:g} minutes; {load()}", flush=True)
    with scratch() as root:
        report(soak(root / "data", minutes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
