"""The endpoint as a process, for tests that look at it from outside: what it holds, what it says, how it ends."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.edge_client import EdgeClient

ROOT = Path(__file__).parents[2]
#: How long anything may take that is only waited for. No goal: this machine may be busy.
PATIENCE_S = 60.0


def allow_files(count: int) -> None:
    """Raise our own limit of open files, and with it a child's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        assert hard == resource.RLIM_INFINITY or hard >= count, f"this needs {count} open files: raise the hard limit (ulimit -Hn)"
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def quiet_port() -> int:
    """A free port that no outgoing connection is given: whoever connects to one of those while nobody listens may be connected to
    himself, and has taken the port then."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(max(1024, lowest - 10_000), lowest)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Endpoint:
    """`python -m ingest.server` over a data directory; started when made, killed when left."""

    def __init__(self, data: Path, *flags: str, port: int = 0, environment: Mapping[str, str] | None = None) -> None:
        self.data, self._flags, self._environment = data, (*flags, f"listenPort={port}"), dict(environment or {})
        self.start()

    def start(self) -> None:
        sets = [word for flag in self._flags for word in ("--set", flag)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ESCROW_")}
        environment |= self._environment
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ingest.server", "--data", str(self.data), *sets],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.said: list[dict[str, Any]] = []
        for line in self.process.stdout:
            self.said.append(json.loads(line))
            if self.said[-1].get("ready"):
                self.port: int = self.said[-1]["port"]
                return
        assert self.process.stderr is not None
        raise AssertionError(self.process.stderr.read())

    def kill(self) -> None:
        """kill -9, and it is gone."""
        with self.process:
            self.process.kill()

    def stop(self) -> tuple[int, str]:
        """SIGTERM; (exit code, what it said on stderr)."""
        self.process.send_signal(signal.SIGTERM)
        _, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, err

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    # --- from outside ---------------------------------------------------------------------------------------------------------
    def private_bytes(self) -> int:
        """RssAnon: memory of its own. Mapped files belong to the page cache."""
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))

    def files(self) -> tuple[int, int]:
        """(open sockets, other descriptors that are not files of its data directory)."""
        sockets = others = 0
        place = f"/proc/{self.process.pid}/fd"
        for name in os.listdir(place):
            try:
                target = os.readlink(f"{place}/{name}")
            except FileNotFoundError:
                continue
            sockets += target.startswith("socket:")
            others += not target.startswith(("socket:", str(self.data)))
        return sockets, others

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def log(self) -> str:
        return "".join(path.read_text(errors="replace") for path in (self.data / "logs").glob("*") if path.is_file())


def figures(client: EdgeClient) -> dict[str, float]:
    """All metrics, by name and labels."""
    lines = client.raw("GET", "/metrics")[2].decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))}


#: What must be there again when all clients have gone: our own connection and request, and nothing else.
IDLE = {
    "escrow_connections": 1.0,
    "escrow_requests_running": 1.0,
    "escrow_connections_stalled": 0.0,
    'escrow_receiving_bytes{share="halves"}': 0.0,
    'escrow_receiving_bytes{share="ends"}': 0.0,
    "escrow_queued_bytes": 0.0,
    "escrow_check_polls_waiting": 0.0,
    "escrow_edge_healthy": 1.0,
}


def until_idle(client: EdgeClient) -> None:
    """Until the endpoint holds nothing of anybody else."""

    def held() -> dict[str, float]:
        found = figures(client)
        waiting = client.status()["consumption"]["polls_waiting"]
        return {name: found[name] for name, wanted in IDLE.items() if found[name] != wanted} | (
            {"polls for messages": waiting} if waiting else {}
        )

    until(lambda: not held(), held)


def until(true: Callable[[], object], what: Callable[[], object] = lambda: "") -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline_s, f"waited for {PATIENCE_S:.0f} s: {what()}"
        time.sleep(0.01)


@contextmanager
def running(data: Path, *flags: str) -> Iterator[Endpoint]:
    with Endpoint(data, *flags) as made:
        yield made
