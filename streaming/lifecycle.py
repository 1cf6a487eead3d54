"""From start to stop: the query and the ticker of a job, and the first error that ends it.

Both jobs have one (streaming/service.py, streaming/kafka/service.py). Three threads use it: Spark's callback runs the
batches (`guarded`), the ticker runs `tick`, the caller starts and stops.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from runtime.metrics import JobMetrics
from store.guarded_clock import GuardedClock
from streaming.spark.java_figures import JavaFigures, watch_java
from streaming.spark.listener import ProgressListener
from streaming.spark.session import one_line, why_ended

LOG: Final = logging.getLogger("escrow.job")
TICK_S: Final = 0.25
#: The supervisor gives the job 5.5 s to stop: this for the query, a moment for Spark; the store is closed in between.
STOP_S: Final = 3.0
NUDGE_S: Final = 0.02


class Service(Protocol):
    """What the job's process needs of a job."""

    clock: GuardedClock
    metrics: JobMetrics

    def start(self, spark: SparkSession, checkpoint: Path) -> None: ...
    def first_batch(self) -> None: ...
    def warm_up_beside(self) -> None: ...
    def failure(self) -> str | None: ...
    def stop(self) -> None: ...


class LeasedService(Service, Protocol):
    """A job that several drivers may run: one is master, the others stand by."""

    def ask_for_lease(self) -> None: ...
    def why_waiting(self) -> str: ...
    def take_over(self, wanted: Callable[[], bool] = ..., timeout_s: float | None = None) -> bool: ...


class Lifecycle:
    """`started` with the query, then `failure`, then `stop`."""

    def __init__(self, metrics: JobMetrics, tick: Callable[[], None], failed: Callable[[], None] = lambda: None) -> None:
        """`tick` is called every TICK_S; an error that it raises ends the job. `failed` is called after the first error."""
        self.stopping = threading.Event()
        self.error: BaseException | None = None
        self.query: StreamingQuery | None = None
        self.ticker = threading.Thread(target=self._run_ticker, name="ticker", daemon=True)
        self._metrics, self._tick, self._failed = metrics, tick, failed
        self._spark: SparkSession | None = None
        self._listener: ProgressListener | None = None

    def listen(self, spark: SparkSession) -> None:
        """Have Spark report the query's progress to the metrics, and Java what it uses. Before the query starts."""
        self._spark, self._listener = spark, ProgressListener(self._metrics)
        watch_java(self._metrics, JavaFigures(spark).now)
        spark.streams.addListener(self._listener)

    def started(self, query: StreamingQuery) -> None:
        self.query = query
        self.ticker.start()

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Work without which the job cannot go on: an error ends the job, and is raised again."""
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """Remember the first error; those after `stop` are consequences of it."""
        if self.error is None and not self.stopping.is_set():
            self.error = error
            LOG.error("the job ends: %s", error)  # in full: Java's causes are at the end
        self._failed()

    def failure(self) -> str | None:
        """Why the job has ended by itself; None while it runs."""
        if self.error is not None:
            return one_line(self.error)
        return None if self.query is None or self.stopping.is_set() else why_ended(self.query)

    def stop(self, *, nudge: Callable[[], object] = lambda: None, ticker_s: float = 1.0) -> None:
        """No new batches and ticks; wait for those at work. `nudge` is called meanwhile: it wakes what may sleep."""
        self.stopping.set()
        if self.query is not None:
            stopper = threading.Thread(target=self._stop_query, args=(self.query,), name="stopper", daemon=True)
            stopper.start()
            give_up_s = time.monotonic() + STOP_S
            while stopper.is_alive() and time.monotonic() < give_up_s:
                nudge()
                stopper.join(NUDGE_S)
        if self.ticker.is_alive():
            self.ticker.join(ticker_s)

    def _stop_query(self, query: StreamingQuery) -> None:
        try:
            query.stop()
            if self._spark is not None and self._listener is not None:
                self._spark.streams.removeListener(self._listener)
        except Exception as error:  # the JVM may be gone, or too slow: the store is closed all the same
            LOG.warning("stop: %s", one_line(error))
        self._metrics.query_up.set(0)  # Spark tells the listener later, or not at all

    def _run_ticker(self) -> None:
        """Without ticks no round and no retention would begin: if the ticker ends, so does the job."""
        try:
            while not self.stopping.wait(TICK_S):
                self._tick()
        except BaseException as error:
            self.fail(error)
