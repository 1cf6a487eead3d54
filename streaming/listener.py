"""Spark's own progress as metrics. (`recentProgress` grows, and Spark's metrics servlet has six gauges: this instead.)"""

from __future__ import annotations

from typing import Final

from pyspark.sql.streaming import StreamingQueryListener
from pyspark.sql.streaming.listener import QueryIdleEvent, QueryProgressEvent, QueryStartedEvent, QueryTerminatedEvent

from escrow.metrics import JobMetrics

#: Spark's names of the phases; others, which a later release may add, are left out: labels stay few.
PHASES: Final = frozenset(
    ("latestOffset", "getBatch", "queryPlanning", "walCommit", "addBatch", "commitOffsets", "commitBatch", "triggerExecution")
)


class ProgressListener(StreamingQueryListener):
    """Called by Spark on a thread of its own."""

    def __init__(self, metrics: JobMetrics) -> None:
        self._metrics = metrics

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self._metrics.query_up.set(1)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        self._metrics.spark_batches.inc()
        self._metrics.spark_batch_id.set(progress.batchId)
        for phase, duration_ms in progress.durationMs.items():
            if phase in PHASES:
                self._metrics.spark_phase_s.labels(phase).observe(duration_ms / 1000)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        return None

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._metrics.query_up.set(0)
