"""The first transaction of README.md against the whole service, as `make run` starts it: real Spark, real processes, SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from base64 import b64decode
from pathlib import Path

from store.dump import dump
from store.verify import verify
from tests.support.readme import example
from tests.support.tools import require_tool

ROOT = Path(__file__).parents[2]
DEADLINE_S = 240.0


def until(true, process, log):
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()
        if found := true():
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited {DEADLINE_S} s in vain:\n{log.read_text()}")


def processes_of(data):
    """Processes that were started for this data directory."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(data).encode() in (entry / "cmdline").read_bytes():
                found.append(entry.name)
        except OSError:
            continue
    return found


def by_hand(port):
    """The three lines of curl; what the last one prints, in clear."""
    require_tool("curl")
    first, second, third = example("curl", "sh").replace("7480", str(port)).splitlines()

    def run(line):
        return json.loads(subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60, check=True).stdout)

    id = run(first)["halves"][0]["id"]
    assert run(second.replace("THE ID", id))["answers"][0]["verdict"] == "accepted"
    return " ".join(b64decode(message["body"]).decode() for message in run(third)["messages"])


def test_the_first_transaction_runs_as_it_stands(tmp_path):
    data, log = tmp_path / "data", tmp_path / "run.log"
    sets = ["listenPort=0", "jobMetricsPort=0", "transactionTimeOut=1s", "transactionCheckInterval=2s"]
    sets += ["commitLogSegmentSize=1MiB", "maxBodySize=64KiB"]
    command = [sys.executable, "-m", "escrow", "run", "--data", str(data), *(word for key in sets for word in ("--set", key))]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ESCROW_")}
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT, env=clean)
    try:
        until(lambda: "edge ready" in log.read_text(), process, log)
        port = json.loads((data / "supervisor.json").read_text())["edge"]["port"]
        program = example("escrow.Producer(URL").replace("7480", str(port))
        said = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, env=clean, timeout=DEADLINE_S, check=True
        ).stdout.splitlines()
        assert sorted(said) == ["asked about order 3 attempt 1", "commit", "got order 1", "got order 3", "rollback", "unknown"]
        assert [line for line in said if line in ("commit", "rollback", "unknown")] == ["commit", "rollback", "unknown"]
        assert "order 4" in by_hand(port)

        def released():
            return sorted(str(message["body"]) for message in dump(data / "store", what="topic", topic="order-paid"))

        until(lambda: len(released()) == 3, process, log)
        assert [word in body for word, body in zip(("order 1", "order 3", "order 4"), released(), strict=True)] == [True] * 3
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
    assert processes_of(data) == []
    assert verify(data / "store").problems == []
