"""Spark in the process of the tests: one at a time, and gone with its Java when it is not needed any more."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
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
    end = _end_of(session)
    _ends.append(end)
    try:
        yield session
    finally:
        if end in _ends:
            _end_all()


def _end_of(session: SparkSession) -> Callable[[], None]:
    context: Any = SparkContext
    jvm = context._gateway.proc

    def end() -> None:
        session.stop()
        jvm.stdin.close()
        jvm.wait(20)
        # PySpark would take the Java that is gone for the next session, too.
        context._gateway = context._jvm = None

    return end


@contextmanager
def user_spark(directory: Path, master: str = "local[2]", **conf: str) -> Iterator[SparkSession]:
    """The session of a user's application: nothing of the job's settings."""
    _end_all()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName("user")
    told = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stopTimeout": "30s",
        **conf,
    }
    for name, value in told.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    end = _end_of(session)
    _ends.append(end)
    try:
        yield session
    finally:
        if end in _ends:
            _end_all()


def _end_all() -> None:
    while _ends:
        _ends.pop()()
