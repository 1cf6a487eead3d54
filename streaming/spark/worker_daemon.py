"""The process from which Spark forks its Python workers, with everything imported that tasks of Kafka mode need.

Spark ends a worker that had nothing to do for a minute. One that Spark's own daemon forks imports for half a second of processor
time before its first task, and the first message after a quiet minute waits for that; one of this daemon begins at once. Only on
`local[n]`, where tasks have the driver's Python: on a cluster our code comes with the first task, later than the daemon starts.
"""

from __future__ import annotations

import gc
import importlib
from typing import Final

from pyspark.daemon import manager

NEEDED: Final = ("pyspark.worker", "sinks.kafka.release", "streaming.kafka.reading.records")

if __name__ == "__main__":
    for name in NEEDED:
        importlib.import_module(name)
    gc.freeze()  # pages that no collection touches stay shared with the workers
    manager()
