"""The HTTP door beside an older checkout: `python -m benchmarks.results benchmarks.http_before CHECKOUT`.

Both edges run with their default limits and take single halves of 1 KiB over 64 connections (wrk), in turns, flush on. What counts
is the processor time of the edge's process: on a shared machine it says more than requests a second.

single_per_core_over_before      requests a processor-second, over those of the older checkout
batch100_per_core_over_before    the same with 100 halves a request, 8 connections
bare_per_core_over_before        the same of a handler that reads the body and answers a constant: connections alone
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.ingest import CONNECTIONS, wrk_script
from benchmarks.support import load, scratch

HERE = Path(__file__).parents[1]
ROUND_S = 2
ROUNDS = 9
SIDES = ("before", "now")


class Server(NamedTuple):
    pid: int
    port: int


@contextmanager
def serving(checkout: Path, *command: str) -> Iterator[Server]:
    """A module of a checkout as a process."""
    environ = {**os.environ, "PYTHONPATH": str(checkout)}
    process = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True, cwd=checkout, env=environ)
    try:
        assert process.stdout is not None
        told: dict[str, Any] = {}
        while not told.get("ready"):
            told = json.loads(process.stdout.readline())
        yield Server(process.pid, told["port"])
    finally:
        process.terminate()
        process.wait(30)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def per_core(server: Server, script: Path, connections: int) -> float:
    """Requests a processor-second of the server."""
    tool = shutil.which("wrk")
    if tool is None:
        raise SystemExit("wrk is not installed: run `make tools`, or apt install wrk")
    url = f"http://127.0.0.1:{server.port}/v1/halves"
    began_s = cpu_s(server.pid)
    command = [tool, "-t1", f"-c{connections}", f"-d{ROUND_S}s", "-s", str(script), url]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"(\d+) requests in", said)
    if found is None or "Non-2xx" in said:
        raise SystemExit(said)
    return int(found[1]) / (cpu_s(server.pid) - began_s)


def compare(name: str, servers: list[Server], script: Path, connections: int) -> None:
    for server in servers:
        per_core(server, script, connections)  # warm
    rounds = [[per_core(server, script, connections) for server in servers] for _ in range(ROUNDS)]
    for side, values in zip(SIDES, zip(*rounds, strict=True), strict=True):
        print(f"{name}, {side}: {1e6 / statistics.median(values):.1f} µs of processor time a request")
    ratios = sorted(now / before for before, now in rounds)
    print(
        f"ingest.{name}_per_core_over_before {statistics.median(ratios):.3g} "
        f"({ratios[0]:.3g} to {ratios[-1]:.3g} in {ROUNDS} rounds)"
    )


def main(before: Path) -> None:
    print(f"before: {load()}", flush=True)
    with scratch() as root, ExitStack() as stack:
        sets = ("--set", "listenPort=0")
        edges = [
            stack.enter_context(serving(checkout, "ingest.server", "--data", str(root / side), *sets))
            for side, checkout in zip(SIDES, (before, HERE), strict=True)
        ]
        bares = [stack.enter_context(serving(each, "benchmarks.ingest", "--bare")) for each in (before, HERE)]
        compare("single", edges, wrk_script(root, 1), CONNECTIONS)
        compare("batch100", edges, wrk_script(root, 100), 8)
        compare("bare", bares, wrk_script(root, 1), CONNECTIONS)
    print(f"after: {load()}")


if __name__ == "__main__":
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "ingest" / "server.py").exists():
        raise SystemExit("name an older checkout: python -m benchmarks.http_before CHECKOUT")
    main(Path(sys.argv[1]).resolve())
