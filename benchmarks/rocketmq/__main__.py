"""`make bench-rocketmq`: everything, or `ONLY=a,c`; `SCALE=0.02` only shows that it works."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.rocketmq import page, results
from benchmarks.rocketmq.systems import BUILD, resolve_jars
from benchmarks.rocketmq.workloads import WORKLOADS, Bench
from benchmarks.support import report, scratch

ROCKETMQ: Final = "5.5.0"


def about() -> dict[str, Any]:
    """Where and of what a workload was measured."""
    gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)
    sha = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    return {
        "at": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "commit": sha or "unknown",
        "machine": f"{os.cpu_count()} cores, {gib:.0f} GiB, {platform.system()}, Python {platform.python_version()}",
        "rocketmq": ROCKETMQ,
    }


def measure(letter: str, scale: float, rounds: int, class_path: str) -> dict[str, Any]:
    print(f"({letter}) {WORKLOADS[letter].__name__}", flush=True)
    before, begun = os.getloadavg()[0], time.monotonic()
    with scratch() as root:
        bench = Bench(root, class_path, scale, rounds)
        WORKLOADS[letter](bench)
    return {
        **about(),
        "scale": scale,
        "rounds": rounds,
        "seconds": round(time.monotonic() - begun, 1),
        "load_before": round(before, 1),
        "load_after": round(os.getloadavg()[0], 1),
        "rows": bench.rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.rocketmq", description=__doc__)
    parser.add_argument("--only", default="".join(WORKLOADS), help="workloads, such as a,c (default: all)")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="0.02: counts and times of two hundredths; nothing is written to docs"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="results (default: benchmarks/results.json, of a scaled run build/)")
    parser.add_argument("--page", action="store_true", help="only make docs/benchmarks.md from the results again")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    out: Path = given.out or (results.RESULTS if given.scale == 1 else BUILD / "results.json")
    if not given.page:
        class_path = resolve_jars()
        for letter in [letter for letter in given.only if letter in WORKLOADS]:
            results.merge(out, letter, measure(letter, given.scale, given.rounds, class_path))
    found = results.read(out)
    if out == results.RESULTS:
        page.write(found)
    for row in results.fault_rows(results.all_rows(found)):
        seen = {name: (row[name]["seen"], "right" if row[name]["right"] else "WRONG") for name in ("rocketmq", "escrow")}
        print(f"{row['title']}: expected {row['expected']}, RocketMQ {seen['rocketmq']}, Escrow {seen['escrow']}")
    report(found["figures"])


if __name__ == "__main__":
    main()
