"""Spark in the process of the tests: one at a time, and gone with its Java when it is not needed any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from runtime.settings import Settings
from streaming.spark.session import make_run_directory, start_spark

_ends: list[Callable[[], None]] = []


@contextmanager
def own_spark(settings: Settings) -> Iterator[SparkSession]:
    """Ends the one before, if its fixture has not done so yet: a process can have one, and pytest ends a fixture that a whole
    directory shares when everything is over."""
    _end_all()
    session = start_spark(settings, make_run_directory(settings))
    context: Any = SparkContext
    jvm = context._gateway.proc

    def end() -> None:
        session.stop()
        jvm.stdin.close()
        jvm.wait(20)
        # PySpark would take the Java that is gone for the next session, too.
        context._gateway = context._jvm = None

    _ends.append(end)
    try:
        yield session
    finally:
        if end in _ends:
            _end_all()


def _end_all() -> None:
    while _ends:
        _ends.pop()()
