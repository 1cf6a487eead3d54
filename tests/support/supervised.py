"""`escrow run` as real processes, and a way to find every process that came from it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path

from runtime import supervisor
from tests.support.edge_client import EdgeClient
from tests.support.edge_world import SMALL

ROOT = Path(__file__).parents[2]
HALF = {"group": "g", "topic": "t", "text": "hello"}
FAST = ("listenPort=0", "restartBackoff=10ms", "restartQuickDeath=60s", "transactionTimeOut=1s", "transactionCheckInterval=1s")
DEADLINE_S = 60.0


def until(true, what, deadline_s=DEADLINE_S):
    """Wait for a condition; what it became."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        with suppress(OSError, ValueError, KeyError):
            found = true()
            if found:
                return found
        time.sleep(0.01)
    raise AssertionError(f"waited {deadline_s} s in vain: {what}")


class Run:
    """One `escrow run`, and a way to find every process that came from it."""

    def __init__(self, data, *flags, habits="", job="tests.support.standin_job", by_make=False, **environ):
        self.data, self.mark = data, uuid.uuid4().hex
        self.out = next(parent for parent in data.parents if parent.is_dir()) / f"{self.mark}.out"
        sets = [word for flag in (*SMALL, *FAST, *flags) for word in ("--set", flag)]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ESCROW_")}
        arguments = ["--data", str(data), *sets, "--job-module", job]
        command = ["make", "run", f"RUN={' '.join(arguments)}"] if by_make else [sys.executable, "-m", "escrow", "run", *arguments]
        with open(self.out, "w") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=out, cwd=ROOT, process_group=0,
                env={**clean, "STANDIN": habits, "STANDIN_MARK": self.mark, **environ},
            )  # fmt: skip

    def said(self):
        return self.out.read_text()

    def state(self):
        return json.loads((self.data / supervisor.STATE_FILE).read_text())

    def ready(self):
        until(lambda: "ready after" in self.said() or self.process.poll() is not None, "ready")
        assert "ready after" in self.said(), self.said()
        return until(lambda: self.state()["ready"] and self.state(), "state file")

    def client(self):
        return EdgeClient(self.state()["edge"]["port"])

    def alive(self):
        """Processes that carry our mark in their environment."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                    if state != "Z" and self.mark.encode() in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
        return found

    def wait(self, timeout_s=30):
        return self.process.wait(timeout_s)

    def stop(self):
        """SIGTERM; (exit code, seconds it took)."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        return self.wait(), time.monotonic() - began

    def finish(self):
        self.process.kill()
        self.process.wait()
        for process in self.alive():
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)


@contextmanager
def running(data, *flags, **rest):
    run = Run(data, *flags, **rest)
    try:
        yield run
    finally:
        run.finish()
