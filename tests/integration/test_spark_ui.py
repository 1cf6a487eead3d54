"""Spark's web UI where a port is set: on loopback, with the query's name and its batches. And what is read of its Java."""

from __future__ import annotations

import socket
import urllib.request
from typing import Any

from runtime.settings import load
from streaming.spark.java_figures import JavaFigures
from tests.support.spark import own_spark


def test_the_ui_shows_the_query_and_java_tells_what_it_uses(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with own_spark(load(flags=[f"dataDir={tmp_path}", f"sparkUiPort={port}"], environ={})) as spark:
        assert spark.sparkContext.uiWebUrl == f"http://127.0.0.1:{port}"
        rows = spark.readStream.format("rate").option("rowsPerSecond", "50").load()
        query = rows.writeStream.format("noop").queryName("escrow").start()
        run_id = str(query.runId)
        try:
            while query.lastProgress is None:
                assert query.isActive
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/StreamingQuery/", timeout=60) as page:
                shown = page.read().decode()
        finally:
            query.stop()
        context: Any = spark.sparkContext
        context._jvm.System.gc()
        figures = JavaFigures(spark).now()
    assert "escrow" in shown
    assert run_id in shown
    assert 0 < figures.heap_used_bytes <= figures.heap_max_bytes
    assert figures.executors == 1
    assert figures.gc_s > 0
