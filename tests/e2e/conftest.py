"""The whole service as `make run` starts it, once for all tests here: real Spark, real processes, SIGTERM at the end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from store.inspect.verify.store import verify
from tests.support.otlp import Receiver
from tests.support.whole_service import DEADLINE_S, SETS

ROOT = Path(__file__).parents[2]


@dataclass
class Run:
    """A running service."""

    process: subprocess.Popen
    data: Path
    log: Path
    environ: dict[str, str]
    traces: Receiver

    @property
    def state(self):
        return json.loads((self.data / "supervisor.json").read_text())

    @property
    def port(self):
        return self.state["edge"]["port"]

    def until(self, true):
        """What it gives, once that is something."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log.read_text()
            if found := true():
                return found
            time.sleep(0.05)
        raise AssertionError(f"waited {DEADLINE_S} s in vain:\n{self.log.read_text()}")


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


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("e2e")
    data, log = root / "data", root / "run.log"
    traces = Receiver()
    sets = [word for key in (*SETS, f"otlpEndpoint={traces.url}") for word in ("--set", key)]
    command = [sys.executable, "-m", "escrow", "run", "--data", str(data), *sets]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ESCROW_")}
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT, env=clean)
    made = Run(process, data, log, clean, traces)
    try:
        made.until(lambda: "edge ready" in log.read_text())
        yield made
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
        traces.close()
    assert code == 0, log.read_text()
    assert processes_of(data) == []
    assert verify(data / "store").problems == []


@pytest.fixture(scope="session")
def ports(run):
    """The service's own, by those that the pages name."""
    told = run.until(lambda: re.search(r"http://127\.0\.0\.1:(\d+)/metrics", run.log.read_text()))
    return {"7480": run.port, "7482": int(told[1])}
