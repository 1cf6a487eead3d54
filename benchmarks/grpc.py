"""Benchmarks of the gRPC front: `make bench-grpc`. SendMessage of a half of 1 KiB, each on the disk before its answer, against a
bare server of the same kind that parses the call and answers a constant (benchmarks/grpc_bare.py). The client is grpc_load.py.

grpc.send_over_bare       calls a second, 64 in flight, over the bare server's
grpc.send_over_bare_1     the same, one in flight: here a flush is waited for, which the bare server has not
grpc.cpu_over_bare        processor time of the server for a call, over the bare server's; says the same on a busy machine
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.grpc_load import Load
from benchmarks.support import alternate, load, report, scratch, spread

CALLS = {64: 12_000, 1: 1_500}
ROUNDS = 5


class Server:
    """A server process and a connection to it."""

    def __init__(self, pid: int, port: int) -> None:
        self._pid, self._load = pid, Load(port)
        self.cpu_us: list[float] = []

    def rate(self, in_flight: int, calls: int) -> float:
        before_s = self._cpu_s()
        found = self._load.run(calls, in_flight)
        if in_flight > 1:
            self.cpu_us.append((self._cpu_s() - before_s) / calls * 1e6)
        return found

    def _cpu_s(self) -> float:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self._load.close()


@contextmanager
def bare(kind: str = "aio") -> Iterator[Server]:
    with _process([sys.executable, "-m", "benchmarks.grpc_bare", kind]) as process:
        assert process.stdout is not None
        with contextlib.closing(Server(process.pid, int(process.stdout.readline()))) as made:
            yield made


@contextmanager
def edge(root: Path) -> Iterator[Server]:
    flags = [word for flag in ("listenPort=0", "grpcPort=0") for word in ("--set", flag)]
    with _process([sys.executable, "-m", "ingest.server", "--data", str(root), *flags]) as process:
        assert process.stdout is not None
        for line in process.stdout:
            told = json.loads(line)
            if told.get("ready"):
                break
        with contextlib.closing(Server(process.pid, told["grpc_port"])) as made:
            yield made


@contextmanager
def _process(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def measure(ours: Server, other: Server, scale: float) -> dict[str, float]:
    figures: dict[str, float] = {}
    for in_flight, whole in CALLS.items():
        calls = max(int(whole * scale), 10)
        ours.rate(in_flight, calls // 2)  # warm
        other.rate(in_flight, calls // 2)
        mine, theirs = alternate(ROUNDS, lambda: ours.rate(in_flight, calls), lambda: other.rate(in_flight, calls))  # noqa: B023
        print(f"{in_flight} in flight, calls/s: {spread(mine)}; bare: {spread(theirs)}")
        end = "" if in_flight == 64 else f"_{in_flight}"
        figures[f"grpc.send_over_bare{end}"] = statistics.median(mine) / statistics.median(theirs)
        figures[f"grpc.send_per_s{end}"] = statistics.median(mine)
        figures[f"grpc.bare_per_s{end}"] = statistics.median(theirs)
    figures["grpc.cpu_over_bare"] = statistics.median(ours.cpu_us) / statistics.median(other.cpu_us)
    print(f"CPU µs a call: {spread(ours.cpu_us)}; bare: {spread(other.cpu_us)}")
    return figures


def kinds(scale: float) -> None:
    """Bare servers of three kinds, in turns: which one to build on."""
    with bare("aio") as aio, bare("sync") as sync, bare("bridge") as bridge:
        servers = {"aio": aio, "sync": sync, "bridge": bridge}
        calls = max(int(CALLS[64] * scale), 10)
        rates: dict[str, list[float]] = {name: [] for name in servers}
        for _ in range(ROUNDS):
            for name, server in servers.items():
                rates[name].append(server.rate(64, calls))
    for name, found in rates.items():
        print(f"bare {name}, calls/s: {spread(found)}; CPU µs a call: {spread(servers[name].cpu_us)}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grpc")
    parser.add_argument("--scale", type=float, default=1.0, help="fewer calls: 0.1 to see that it works")
    parser.add_argument("--kinds", action="store_true", help="compare bare servers of several kinds instead")
    args = parser.parse_args()
    print(load())
    if args.kinds:
        kinds(args.scale)
        return
    with scratch() as root, edge(root / "data") as ours, bare() as other:
        report(measure(ours, other, args.scale))


if __name__ == "__main__":
    main()
