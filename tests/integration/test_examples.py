"""The order services of examples/, as scripts: killed at the worst moments, restarted, and the shop next door gets exactly the
orders that were really placed."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.support.fake_escrow import eventually
from tests.support.live import live
from tests.support.postgres import postgres

EXAMPLES = Path(__file__).parents[2] / "examples"


@contextmanager
def on_sqlite(tmp_path):
    path = tmp_path / "shop.db"
    yield "orders_sqlite.py", ["--db", str(path)], lambda: closing(sqlite3.connect(path, timeout=60))


@contextmanager
def on_postgres(tmp_path):
    with postgres() as cluster:
        yield "orders_postgres.py", ["--dsn", cluster.dsn], cluster.connect


@pytest.mark.parametrize("database", [on_sqlite, on_postgres], ids=["sqlite", "postgres"])
def test_an_order_and_its_message_both_or_neither(tmp_path, database):
    with database(tmp_path) as (script, where, connect), live(tmp_path / "data") as escrow:

        def command(*words):
            return [sys.executable, str(EXAMPLES / script), "--url", escrow.url, *where, *words]

        def place(item, *words):
            ran = subprocess.run(
                command("place", "--customer", "ada", "--item", item, *words),
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            return ran.returncode, ran.stdout

        def rows(statement):
            with connect() as db:
                return [row[0] for row in db.execute(statement).fetchall()]

        assert place("tea", "--count", "2") == (0, "order 1 placed\norder 2 placed\n")
        assert place("coffee", "--crash", "before-commit") == (-signal.SIGKILL, "")
        assert place("cocoa", "--crash", "after-commit") == (-signal.SIGKILL, "")
        assert sorted(rows("SELECT item FROM orders")) == ["cocoa", "tea", "tea"]

        with subprocess.Popen(command("answer"), stdout=subprocess.PIPE, text=True) as restarted:
            shipped = subprocess.run(command("ship", "--count", "3"), capture_output=True, text=True, timeout=120, check=True)
            assert sorted(shipped.stdout.splitlines()) == ["ship cocoa to ada", "ship tea to ada", "ship tea to ada"]
            states = "SELECT state FROM escrow_barrier"
            eventually(lambda: Counter(rows(states)) == {"committed": 3, "rolled_back": 1})
            restarted.send_signal(signal.SIGINT)
        assert restarted.returncode == 0
