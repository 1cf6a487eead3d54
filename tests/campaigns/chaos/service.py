"""The whole service as real processes: `escrow run` with real Spark, and a way to find and kill each of them.

Kinds of processes, as they hang below the supervisor:

    edge      ingest.server
    driver    streaming.job, the Python side of the Spark driver
    jvm       its Java side
    source    the Python process that runs the source's reader
    worker    Spark's Python daemon and workers (planning of the source)

Only descendants of a supervisor that was started here are ever killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from store.io.pages import JOB_MAGIC, JobSlot, PublishedPage

ROOT = Path(__file__).parents[3]
#: Files that a minute of load rolls many times, checks and restarts without long waits, and a supervisor that never gives up.
FLAGS = (
    "listenPort=0",
    "jobMetricsPort=0",
    "commitLogSegmentSize=1MiB",
    "maxBodySize=64KiB",
    "tranStateTableMapedFileSize=24000",
    "tranRedoLogMapedFileSize=200000",
    "logQueueEntriesPerFile=4096",
    "topicQueueEntriesPerFile=1024",
    "transactionTimeOut=1s",
    "transactionCheckInterval=1s",
    "transactionCheckMax=4",
    "presenceTtl=30s",
    "restartDeathsMax=1000",
    "restartBackoff=10ms",
    "restartBackoffMax=100ms",
    "startTimeout=600s",
    "stopTimeout=60s",
)
READY_S = 600.0
DRIVER_KINDS = ("driver", "jvm")
KINDS = ("edge", *DRIVER_KINDS, "source", "worker")

Found = TypeVar("Found")


class Vain(AssertionError):
    """Waited, and it did not come."""


def until(true: Callable[[], Found], what: str, timeout_s: float = READY_S, every_s: float = 0.02) -> Found:
    """Wait for a condition; what it became."""
    give_up = time.monotonic() + timeout_s
    while True:
        with suppress(OSError, ValueError, KeyError):
            found = true()
            if found:
                return found
        if time.monotonic() > give_up:
            raise Vain(f"waited {timeout_s:.0f} s in vain: {what}")
        time.sleep(every_s)


class Service:
    """One `escrow run` over one data directory."""

    def __init__(self, data: Path, flags: Sequence[str] = FLAGS, environ: Mapping[str, str] | None = None) -> None:
        self.data, self.mark, self._said = data, uuid.uuid4().hex, data.parent / f"{data.name}.said"
        data.parent.mkdir(parents=True, exist_ok=True)
        sets = [word for flag in flags for word in ("--set", flag)]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ESCROW_")}
        with open(self._said, "w") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "escrow", "run", "--data", str(data), *sets],
                stdout=said, stderr=said, stdin=subprocess.DEVNULL, cwd=ROOT, start_new_session=True,
                env={**clean, **(environ or {}), "CHAOS_MARK": self.mark},
            )  # fmt: skip

    # --- looking ---------------------------------------------------------------------------------------------------------
    def said(self) -> str:
        return self._said.read_text()

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.data / "supervisor.json").read_text())
        return found

    def check_alive(self) -> None:
        """The supervisor itself is never killed here: if it has gone, it gave up."""
        assert self.process.poll() is None, f"the service ended with {self.process.returncode}: {self.said()[-2000:]}"

    def is_ready(self) -> bool:
        self.check_alive()
        return bool(self.state()["ready"])

    def wait_ready(self) -> dict[str, Any]:
        until(self.is_ready, "the service is ready")
        return self.state()

    def op_cursor(self) -> int:
        """How many ops are settled."""
        return int(PublishedPage(self.data / "store" / "job.published", JOB_MAGIC)[JobSlot.OP_CURSOR])

    def processes(self) -> dict[str, list[int]]:
        """Living processes by kind, oldest first."""
        self.check_alive()
        children: dict[int, list[int]] = {}
        for pid, parent, _ in _all_processes():
            children.setdefault(parent, []).append(pid)
        found: dict[str, list[int]] = {kind: [] for kind in KINDS}
        waiting = [self.process.pid]
        while waiting:
            for pid in sorted(children.get(waiting.pop(0), [])):
                waiting.append(pid)
                kind = _kind(pid)
                if kind:
                    found[kind].append(pid)
        return found

    def left_behind(self) -> list[int]:
        """Living processes that carry our mark, wherever they hang now."""
        mark, found = f"CHAOS_MARK={self.mark}".encode(), []
        for pid, _, state in _all_processes():
            with suppress(OSError):
                if state != "Z" and mark in Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(pid)
        return found

    # --- ending ----------------------------------------------------------------------------------------------------------
    def stop(self, timeout_s: float = 120.0) -> tuple[int, float]:
        """SIGTERM; (exit code, seconds it took)."""
        began_s = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s), time.monotonic() - began_s

    def finish(self) -> None:
        """Whatever happened: nothing of it runs on."""
        self.process.kill()
        self.process.wait()
        for pid in self.left_behind():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def kill(pid: int) -> bool:
    """SIGKILL; whether it was alive to be killed."""
    try:
        if _stat(pid)[2] == "Z":
            return False
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return False
    return True


def _kind(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        if _stat(pid)[2] == "Z":
            return ""
    except OSError:
        return ""
    if words[0].endswith("java"):
        # Not the launcher, which only composes a command line, nor the supervisor's look at the version.
        return "jvm" if "org.apache.spark.deploy.SparkSubmit" in words else ""
    marks = {
        "ingest.server": "edge",
        "streaming.job": "driver",
        "pyspark.sql.streaming.python_streaming_source_runner": "source",
        "pyspark.daemon": "worker",
    }
    return next((kind for word, kind in marks.items() if word in words), "")


def _all_processes() -> list[tuple[int, int, str]]:
    """(pid, parent, state)"""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                found.append(_stat(int(name)))
    return found


def _stat(pid: int) -> tuple[int, int, str]:
    state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    return pid, int(parent), state
