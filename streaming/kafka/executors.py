"""Runs release tasks on Spark's executors, and counts what each has released."""

from __future__ import annotations

from collections import Counter

from pyspark.sql import SparkSession

from sinks.kafka import release
from sinks.kafka.task import SUPERSEDED, Done, Superseded, Task


class Executors:
    """There from the start; `spark` is set when the query starts, and no task comes before."""

    def __init__(self) -> None:
        self.spark: SparkSession | None = None
        self.released_bytes: Counter[str] = Counter()

    def run(self, task: Task) -> Done | str:
        """What Spark throws is returned as a sentence: the task is started again."""
        assert self.spark is not None
        try:
            found = self.spark.sparkContext.parallelize([task], 1).map(release.attempt).collect()
        except Exception as error:  # an executor died, Java did, or a network did not answer
            return f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
        done = found[0]
        if isinstance(done, Done):
            self.released_bytes[done.executor] += done.bytes
        if isinstance(done, str) and done.startswith(SUPERSEDED):
            raise Superseded(done.removeprefix(SUPERSEDED))
        return done
