"""Benchmarks of Spark's sources for users: `python -m benchmarks.spark`. Real Spark, one core for each figure.

spark.read_rows_per_s              escrow.transactions from the files of a store, every column, one task, into Spark's noop sink
spark.read_chosen_rows_per_s       the same, without id, key and tags (option columns)
spark.read_python_rows_per_s       the same as the first without Spark: what the reader alone makes of Arrow, by processor time
spark.stream_messages_per_s        a topic of 1 KiB messages over HTTP as a stream, into the noop sink, without its first batch
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import escrow.spark
from benchmarks.support import load, report, scratch, seconds
from escrow.spark.tables import COLUMNS
from ingest.ids import load_keys
from runtime.settings import load as load_settings
from store.edge.store import EdgeStore, End
from store.messages import Message
from store.records import OpKind
from streaming.spark import tables

TRANSACTIONS = 1_000_000
MESSAGES = 200_000
AT_ONCE = 4_000
ROUNDS = 3
NOW_MS = 1_800_000_000_000


def fill(data: Path) -> None:
    """Transactions with a key, nine of ten committed; and messages of 1 KiB."""
    settings = load_settings(None, [f"dataDir={data}"], {})
    load_keys(settings.keys_file)
    store = EdgeStore(settings.store_dir)
    try:
        for first in range(0, TRANSACTIONS, AT_ONCE):
            store.prepare(
                [Message("orders", "paid", b"x" * 100, {"KEYS": f"order-{first + n}"}) for n in range(AT_ONCE)], NOW_MS + first
            )
            kinds = [OpKind.ROLLBACK if n % 10 == 0 else OpKind.COMMIT for n in range(AT_ONCE)]
            store.end([End(first + n, kind, "orders") for n, kind in enumerate(kinds)], NOW_MS + first + 5)
    finally:
        store.close()


def fill_messages(data: Path) -> None:
    store = EdgeStore(load_settings(None, [f"dataDir={data}"], {}).store_dir)
    try:
        for first in range(0, MESSAGES, AT_ONCE):
            messages = [Message("orders", "stream", b"x" * 1024, {"KEYS": f"order-{first + n}"}) for n in range(AT_ONCE)]
            store.wait(store.append_messages(messages, NOW_MS).ticket)
    finally:
        store.close()


@contextmanager
def session(directory: Path) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[1]").appName("bench").config("spark.ui.enabled", "false")
    for name, value in (("local.dir", str(directory)), ("driver.host", "127.0.0.1"), ("driver.bindAddress", "127.0.0.1")):
        builder = builder.config(f"spark.{name}", value)
    spark = builder.getOrCreate()
    try:
        escrow.spark.register(spark)
        yield spark
    finally:
        spark.stop()


def noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def read_rate(spark: SparkSession, data: Path, **options: str) -> float:
    frame = spark.read.format("escrow.transactions").options(path=str(data), tasks="1", **options).load()
    noop(frame.limit(1000))
    return TRANSACTIONS / min(seconds(lambda: noop(frame)) for _ in range(ROUNDS))


def python_rate(data: Path) -> float:
    started = time.process_time()
    found = tables.batches(str(data), "transactions", (0, TRANSACTIONS), {}, list(COLUMNS["transactions"]))
    rows: int = sum(batch.num_rows for batch in found)
    assert rows == TRANSACTIONS, rows
    return rows / (time.process_time() - started)


@contextmanager
def endpoint(data: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "ingest.server", "--data", str(data), "--set", "listenPort=7489"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while '"ready": true' not in (line := process.stdout.readline()):
            assert line, "the endpoint ended"
        try:
            yield "http://127.0.0.1:7489"
        finally:
            process.terminate()


def stream_rate(spark: SparkSession, url: str, directory: Path) -> float:
    options = {"url": url, "topic": "stream", "startingOffsets": "earliest", "maxMessagesPerTrigger": str(MESSAGES // 5)}
    frame = spark.readStream.format("escrow").options(**options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(directory / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    batches = [each for each in query.recentProgress if each["numInputRows"]][1:]
    messages: int = sum(each["numInputRows"] for each in batches)
    took_ms: int = sum(each["durationMs"]["addBatch"] for each in batches)
    return messages / took_ms * 1000


def main() -> None:
    with scratch() as root:
        fill(root / "history")
        fill_messages(root / "topic")
        figures = {"spark.read_python_rows_per_s": python_rate(root / "history")}
        with session(root) as spark:
            chosen = ",".join(name for name in COLUMNS["transactions"] if name not in ("id", "key", "tags"))
            figures["spark.read_rows_per_s"] = read_rate(spark, root / "history")
            figures["spark.read_chosen_rows_per_s"] = read_rate(spark, root / "history", columns=chosen)
            with endpoint(root / "topic") as url:
                figures["spark.stream_messages_per_s"] = stream_rate(spark, url, root)
        print(load())
        report(figures)


if __name__ == "__main__":
    main()
