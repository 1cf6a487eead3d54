"""What the benchmarks share: scratch directories, memory, medians of alternating runs, the closing lines."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory on the disk that holds the checkout (not a memory file system), removed afterwards."""
    root = Path(tempfile.mkdtemp(prefix=".bench-", dir=Path(__file__).parent))
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def alternate(rounds: int, *sides: Callable[[], float]) -> list[list[float]]:
    """Run measurements in turns, so that a noisy machine is noisy for all."""
    found = [[side() for side in sides] for _ in range(rounds)]
    return [list(column) for column in zip(*found, strict=True)]


def ratio(over: list[float], under: list[float]) -> float:
    """Median of the rounds: what is slow for a while is so for both."""
    return statistics.median(one / other for one, other in zip(over, under, strict=True))


def spread(values: list[float]) -> str:
    return f"median {statistics.median(values):.4g}, {min(values):.4g} to {max(values):.4g}, {len(values)} runs"


def private_mib() -> float:
    """Private memory of this process: anonymous pages. Mapped files are the page cache's, whoever maps them."""
    status = Path("/proc/self/status").read_text()
    kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:"))
    return kib / 1024


def load() -> str:
    return f"load {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores"


def report(figures: dict[str, float]) -> None:
    for name, value in figures.items():
        print(f"{name} {value:.4g}" if value < 1000 else f"{name} {value:.0f}")
