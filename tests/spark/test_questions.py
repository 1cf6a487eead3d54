"""docs/spark.md: its Python, and each of its ten questions, against a running service. And the example."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import escrow.spark
from tests.support.edge_client import EdgeClient
from tests.support.fake_escrow import eventually
from tests.support.pages import blocks

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "spark.md"


def sql_blocks():
    return [part.split("```")[0].strip() for part in PAGE.read_text().split("```sql\n")[1:]]


@pytest.fixture(scope="module")
def history(service):
    """Something for each question to find."""
    with EdgeClient(service.port) as client:
        ids = client.prepare([{"group": "asked", "topic": "asked", "text": "x", "key": str(n)} for n in range(6)])
        client.end("asked", ids[0], "commit")
        client.end("asked", ids[1], "rollback")
        client.act("rollback", [ids[2]])
        eventually(lambda: client.call("GET", "/v1/groups/asked/checks?member=late&wait_s=1")["checks"])
        client.end("asked", ids[3], "unknown", from_check=True)
        client.end("asked", ids[3], "commit", from_check=True)
    return ids


def test_there_are_ten_questions():
    assert len(sql_blocks()) == 10


@pytest.mark.parametrize("number", range(10))
def test_question(spark, service, history, number):
    escrow.spark.register(spark, path=str(service.data))
    assert spark.sql(sql_blocks()[number]).collect(), "the question finds something"


def test_the_pages_python(spark, service, client):
    client.send([{"group": "g", "topic": "order-paid", "text": "x"}])
    names = {"spark": spark}
    for block in blocks("docs/spark.md"):
        if block.language == "python":
            exec(block.text.replace("http://localhost:7480", service.url), names)
    assert names["views"] == ["escrow_transactions", "escrow_ops", "escrow_checks", "escrow_audit"]
    assert names["messages"].isStreaming


def test_the_example_adds_up_orders_in_windows(service, client, tmp_path):
    orders = [{"customer": name, "amount": amount} for name, amount in (("ada", 2.5), ("ada", 1.5), ("bob", 4.0))]
    client.send([{"group": "g", "topic": "orders.example", "text": json.dumps(order)} for order in orders])
    client.send([{"group": "g", "topic": "orders.example", "text": "not an order"}])
    example = [sys.executable, str(ROOT / "examples" / "spark_orders.py"), "--url", service.url, "--topic", "orders.example"]
    command = [*example, "--once", "--out", "console", "--checkpoint", str(tmp_path / "checkpoint")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    lines = [[word.strip() for word in line.split("|")] for line in ran.stdout.splitlines() if "|" in line]
    sums = {words[2]: (int(words[3]), float(words[4])) for words in lines if words[2] in ("ada", "bob")}
    assert sums == {"ada": (2, 4.0), "bob": (1, 4.0)}
