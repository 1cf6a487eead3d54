"""A real Escrow without Spark: the edge as a process, and `standin_job` beside it. For tests that speak HTTP and want check-backs.

with live(tmp_path) as escrow:
    escrow.url; escrow.kill_edge(); escrow.start_edge()      # the same port again
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.edge_world import SMALL
from tests.support.standin import Standin

ROOT = Path(__file__).parents[2]
#: Checks come soon, so that a test need not wait for them.
SOON = ("transactionTimeOut=1s", "transactionCheckInterval=1s")


class Live:
    def __init__(self, data: Path, *flags: str) -> None:
        self.data = data
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._sets = [word for flag in (*SMALL, *SOON, f"listenPort={self.port}", *flags) for word in ("--set", flag)]
        self._edge: subprocess.Popen[str] | None = None

    def start_edge(self) -> None:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("ESCROW_")}
        command = [sys.executable, "-m", "ingest.server", "--data", str(self.data), *self._sets]
        self._edge = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environ)
        assert self._edge.stdout is not None
        for line in self._edge.stdout:
            if json.loads(line).get("ready"):
                return
        raise AssertionError("the edge ended before it was ready")

    def kill_edge(self) -> None:
        self.stop_edge(signal.SIGKILL)

    def stop_edge(self, number: int = signal.SIGTERM) -> None:
        assert self._edge is not None
        with self._edge:
            self._edge.send_signal(number)

    @property
    def edge_exit_code(self) -> int | None:
        """Of the edge that ran last."""
        assert self._edge is not None
        return self._edge.returncode


@contextmanager
def live(data: Path, *flags: str) -> Iterator[Live]:
    escrow = Live(data, *flags)
    escrow.start_edge()
    try:
        with Standin(data, *SOON, *flags):
            yield escrow
    finally:
        escrow.kill_edge()
