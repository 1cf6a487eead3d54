"""What the driver runs on Spark's executors: release tasks, and the look for check requests that they wrote."""

from __future__ import annotations

from collections import Counter

import numpy as np
from pyspark.sql import SparkSession

from sinks.kafka import asking, release
from sinks.kafka.task import SUPERSEDED, Done, Requested, Superseded, Target, Task
from store.arrays import Array


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

    def locate(self, target: Target, requested: Requested) -> Array:
        """Where a batch's check requests lie (asking.PLACED), as far as that is found."""
        assert self.spark is not None
        found = self.spark.sparkContext.parallelize([(target, requested)], 1).map(lambda each: asking.places_of(*each)).collect()
        return np.asarray(found[0], asking.PLACED)
