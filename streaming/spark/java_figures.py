"""What Spark's Java process and its Python workers use: heap, garbage collection, executors, workers' memory.

Read from Java's management beans and from /proc when the metrics are scraped, at most once a second: each value is a call
into Java. In a cluster this is the driver's Java. Executors are counted; their memory is not measured here.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from runtime.metrics import JobMetrics

EVERY_S: Final = 1.0
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Figures:
    """As they were at one moment."""

    heap_used_bytes: int = 0
    heap_max_bytes: int = 0
    executors: int = 0
    workers: int = 0
    worker_bytes: int = 0
    gc_s: float = 0.0


@dataclass(slots=True)
class JavaFigures:
    """For the thread of the metrics server. Once Java is gone, the last figures stay."""

    spark: SparkSession
    clock_s: Callable[[], float] = time.monotonic
    _last: Figures = field(default_factory=Figures)
    _next_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def now(self) -> Figures:
        with self._lock:
            if self.clock_s() >= self._next_s:
                self._next_s = self.clock_s() + EVERY_S
                with suppress(Py4JError, OSError):
                    self._last = self._read()
            return self._last

    def _read(self) -> Figures:
        context: Any = self.spark.sparkContext
        beans = context._jvm.java.lang.management.ManagementFactory
        heap = beans.getMemoryMXBean().getHeapMemoryUsage()
        # The driver counts itself among them. In local mode it is the only one that runs tasks.
        known = context._jsc.sc().getExecutorMemoryStatus().size()
        workers = python_workers(context._gateway.proc.pid)
        return Figures(
            heap.getUsed(),
            heap.getMax(),
            known if context.master.startswith("local") else known - 1,
            len(workers),
            sum(workers),
            sum(each.getCollectionTime() for each in beans.getGarbageCollectorMXBeans()) / 1000,
        )


def watch_java(metrics: JobMetrics, figures: Callable[[], Figures]) -> None:
    """Tie the metrics to what is read at a scrape."""
    metrics.watch(metrics.jvm_heap, lambda: figures().heap_used_bytes, area="used")
    metrics.watch(metrics.jvm_heap, lambda: figures().heap_max_bytes, area="max")
    metrics.watch(metrics.spark_executors, lambda: figures().executors)
    metrics.watch(metrics.python_workers, lambda: figures().workers)
    metrics.watch(metrics.python_worker_bytes, lambda: figures().worker_bytes)
    metrics.jvm_gc.watch("driver", lambda: figures().gc_s)


def python_workers(java_pid: int, proc: Path = Path("/proc")) -> list[int]:
    """Resident bytes of each process below Java: PySpark's daemon and its workers."""
    parents, sizes = dict[int, int](), dict[int, int]()
    for entry in proc.iterdir():
        if not entry.name.isdecimal():
            continue
        with suppress(OSError, ValueError, IndexError):  # it has just ended
            # Behind the name, which may have spaces and brackets: state, parent, … and at 22 the resident pages.
            words = (entry / "stat").read_text().rpartition(")")[2].split()
            parents[int(entry.name)], sizes[int(entry.name)] = int(words[1]), int(words[21]) * _PAGE_BYTES
    return [size for pid, size in sizes.items() if _is_below(pid, java_pid, parents)]


def _is_below(pid: int, top: int, parents: dict[int, int]) -> bool:
    seen = set()
    while pid in parents and pid not in seen:
        seen.add(pid)
        pid = parents[pid]
        if pid == top:
            return True
    return False
