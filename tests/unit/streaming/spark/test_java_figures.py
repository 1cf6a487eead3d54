"""What is read of Spark's processes: workers out of /proc, and at most once a second."""

from __future__ import annotations

import os

from prometheus_client import CollectorRegistry

from runtime.metrics import JobMetrics
from streaming.spark import java_figures
from streaming.spark.java_figures import Figures, JavaFigures, python_workers, watch_java
from streaming.spark.listener import ProgressListener

PAGE = os.sysconf("SC_PAGE_SIZE")


def stat(proc, pid, parent, pages, name="python3"):
    (proc / str(pid)).mkdir()
    words = ["S", str(parent), *["0"] * 19, str(pages), "0"]
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(words)}\n")


def test_everything_below_java_is_a_worker(tmp_path):
    (tmp_path / "meminfo").write_text("")
    stat(tmp_path, 1, 0, 1)
    stat(tmp_path, 10, 1, 1000, "java")
    stat(tmp_path, 11, 10, 20, "a (b) c")
    stat(tmp_path, 12, 11, 30)
    stat(tmp_path, 20, 1, 500)
    (tmp_path / "30").mkdir()  # it has just ended
    assert sorted(python_workers(10, tmp_path)) == [20 * PAGE, 30 * PAGE]
    assert python_workers(99, tmp_path) == []


def test_java_is_asked_once_a_second_and_its_end_leaves_the_last_figures(monkeypatch):
    now_s, asked = [0.0], []

    def read(self):
        asked.append(now_s[0])
        if now_s[0] >= 2:
            raise ConnectionError("Java is gone")
        return Figures(heap_used_bytes=len(asked))

    monkeypatch.setattr(JavaFigures, "_read", read)
    figures = JavaFigures(None, lambda: now_s[0])  # type: ignore[arg-type]
    assert [figures.now().heap_used_bytes for _ in range(3)] == [1, 1, 1]
    now_s[0] = 1.0
    assert figures.now().heap_used_bytes == 2
    now_s[0] = 5.0
    assert figures.now().heap_used_bytes == 2
    assert asked == [0.0, 1.0, 5.0]
    assert java_figures.EVERY_S == 1.0


def test_metrics_tell_what_was_read():
    metrics = JobMetrics(CollectorRegistry())
    watch_java(metrics, lambda: Figures(10, 100, 2, 3, 4096, 1.5))
    ProgressListener(metrics).take({"batchId": 7, "durationMs": {}, "inputRowsPerSecond": 3.5})
    value = metrics.registry.get_sample_value
    assert value("escrow_jvm_heap_bytes", {"area": "used"}) == 10
    assert value("escrow_jvm_heap_bytes", {"area": "max"}) == 100
    assert value("escrow_spark_executors") == 2
    assert value("escrow_spark_python_workers") == 3
    assert value("escrow_spark_python_worker_bytes") == 4096
    assert value("escrow_jvm_gc_seconds_total", {"process": "driver"}) == 1.5
    assert value("escrow_spark_rows_per_second", {"rate": "input"}) == 3.5
    assert value("escrow_spark_rows_per_second", {"rate": "processed"}) == 0, "Spark leaves it out where there was no time"
