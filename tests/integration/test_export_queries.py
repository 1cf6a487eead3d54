"""The queries of docs/cli.md over the file of `escrow export`, in DuckDB and in Spark SQL: what took long last night?"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pytest

from escrow.cli import main
from store.records import OpKind
from tests.support.service import ROOMY, Service

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
TODAY = datetime(2026, 11, 16, tzinfo=UTC)
#: (when it was stored, how long it took in seconds; None: it is in doubt), in the order of time
NIGHT = (
    (TODAY - timedelta(hours=3), 600),  # too early
    (TODAY - timedelta(hours=1), 10),
    (TODAY - timedelta(minutes=5), 61),
    (TODAY + timedelta(hours=2), 60),
    (TODAY + timedelta(hours=3), 3600),
    (TODAY + timedelta(hours=5), None),
    (TODAY + timedelta(hours=7), 600),  # too late
)
#: Numbers of the halves that the question is about, as the queries order them.
ANSWER = [5, 4, 2]


@pytest.fixture
def history(tmp_path, monkeypatch):
    """history.parquet in the current directory; the ids by half."""
    monkeypatch.chdir(tmp_path)
    with Service(tmp_path / "data" / "store", ROOMY) as service:
        events = sorted([(when, number, "half") for number, (when, _) in enumerate(NIGHT)] + [
            (when + timedelta(seconds=took), number, "end") for number, (when, took) in enumerate(NIGHT) if took is not None
        ])  # fmt: skip
        for when, number, what in events:
            service.now_ms = round(when.timestamp() * 1000)
            if what == "half":
                assert service.send_one(f"{number}".encode()) == number
            else:
                service.end(number, OpKind.COMMIT)
        assert main(["export", "history.parquet", "--data", "data"]) == 0
    return duckdb.execute("SELECT half_offset, stored_at FROM 'history.parquet' ORDER BY half_offset").fetchall()


def queries():
    """(DuckDB's, Spark's), with today as it is in this test."""
    first, second = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [re.sub(r"current_date(\(\))?", f"DATE '{TODAY:%Y-%m-%d}'", query) for query in (first, second)]


def test_duckdb(history):
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    rows = connection.execute(queries()[0]).fetchall()
    times = [row[5] for row in rows]
    assert [next(number for number, at in history if at == when) for when in times] == ANSWER
    assert [row[6] for row in rows] == [None, 3600.0, 61.0]
    assert [(row[1], row[2], row[3], row[4]) for row in rows[1:]] == [("orders", "paid", "committed", "producer")] * 2


def test_spark_sql(history, spark):
    query = queries()[1].replace("history.parquet", str(Path.cwd() / "history.parquet"))
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        rows = spark.sql(query).collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert [row.duration_s for row in rows] == [None, 3600.0, 61.0]
    assert [row.state for row in rows] == ["pending", "committed", "committed"]
