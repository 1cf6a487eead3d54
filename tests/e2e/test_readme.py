"""The first transaction of README.md against the whole service, word for word."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64decode

from store.dump import dump
from tests.e2e.conftest import DEADLINE_S, ROOT
from tests.support.readme import example
from tests.support.tools import require_tool


def by_hand(port):
    """The three lines of curl; what the last one prints, in clear."""
    require_tool("curl")
    first, second, third = example("curl", "sh").replace("7480", str(port)).splitlines()

    def shell(line):
        return json.loads(subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60, check=True).stdout)

    id = shell(first)["halves"][0]["id"]
    assert shell(second.replace("THE ID", id))["answers"][0]["verdict"] == "accepted"
    return " ".join(b64decode(message["body"]).decode() for message in shell(third)["messages"])


def test_the_first_transaction_runs_as_it_stands(run):
    program = example("escrow.Producer(URL").replace("7480", str(run.port))
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, env=run.environ, timeout=DEADLINE_S, check=True
    ).stdout.splitlines()
    assert sorted(said) == ["asked about order 3 attempt 1", "commit", "got order 1", "got order 3", "rollback", "unknown"]
    assert [line for line in said if line in ("commit", "rollback", "unknown")] == ["commit", "rollback", "unknown"]
    assert "order 4" in by_hand(run.port)

    def released():
        return sorted(str(message["body"]) for message in dump(run.data / "store", what="topic", topic="order-paid"))

    run.until(lambda: len(released()) == 3)
    assert [word in body for word, body in zip(("order 1", "order 3", "order 4"), released(), strict=True)] == [True] * 3
