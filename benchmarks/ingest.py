"""Benchmarks of the endpoint: `make bench-ingest`. Figures as in the issue, ratios within one run, all parts on the same cores.
(`make bench-ingest` runs benchmarks/sdk.py, too.)

single           halves of 1 KiB, one a request, 64 connections (wrk), flush on: requests/s against a bare handler on the same
                 server that reads the body and answers a constant; `…_with_job`: the same while the streaming job settles them
batch100         the same with 100 halves a request: messages/s against single
ack              p50 of a half's acknowledgement at 200/s against (p50 of the bare handler + p50 of one fdatasync), same client
visible          p50 of commit acknowledged → in the hands of a long-polling consumer, at 200/s, against the p50 of the
                 acknowledgement of the commit; with the streaming job running
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.support import load, report, scratch, spread
from ingest.http.request import Request

BODY = "x" * 1024
RATE = 200
PACED_S = 10.0
WRK_S = 4
ROUNDS = 5
CONNECTIONS = 64


# --- servers -------------------------------------------------------------------------------------------------------------------
class _Bare:
    """An application that reads the body and answers a constant."""

    paths: Mapping[bytes, str] = {}
    straight: frozenset[str] = frozenset()

    async def __call__(self, request: Request) -> None:
        while request.take() is None:
            await request.next_piece()
        request.answer(200, b"", b'{"status":"ok"}')


def bare() -> None:
    """The bare handler, as a process; prints its port."""
    import uvloop

    from ingest.http.connections.listener import Door
    from runtime.settings import load as load_settings

    async def serve() -> None:
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        await Door(_Bare(), load_settings(None, [], {})).open(listening)
        print(json.dumps({"ready": True, "port": listening.getsockname()[1]}), flush=True)
        await asyncio.Event().wait()

    uvloop.run(serve())


@contextmanager
def serving(*command: str) -> Iterator[int]:
    """A process that tells its port in a line of JSON."""
    process = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            told = json.loads(line)
            if told.get("ready"):
                break
        yield told["port"]
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def whole_service(root: Path) -> Iterator[int]:
    """`escrow run`, Spark warm."""
    sets = [word for key in ("listenPort=0", "jobMetricsPort=0") for word in ("--set", key)]
    with open(root.with_suffix(".log"), "w") as log:
        process = subprocess.Popen([sys.executable, "-m", "escrow", "run", "--data", str(root), *sets], stdout=log, stderr=log)
    try:
        state = root / "supervisor.json"
        while not (state.exists() and json.loads(state.read_text())["ready"]):
            if process.poll() is not None:
                raise SystemExit(root.with_suffix(".log").read_text())
            time.sleep(0.2)
        yield json.loads(state.read_text())["edge"]["port"]
    finally:
        process.terminate()
        process.wait(60)


# --- throughput ----------------------------------------------------------------------------------------------------------------
def wrk_script(root: Path, messages: int) -> Path:
    path = root / f"post-{messages}.lua"
    message = json.dumps({"group": "orders", "topic": "paid", "text": BODY})
    content = '{"messages":[' + ",".join([message] * messages) + "]}"
    path.write_text(
        f"wrk.method='POST'\nwrk.headers['Content-Type']='application/json'\nwrk.body=[[{content}]]\n"
        "function response(status) if status ~= 200 then wrk.thread:stop() error('status '..status) end end\n"
    )
    return path


def wrk(port: int, script: Path, connections: int = CONNECTIONS) -> float:
    """Requests a second."""
    tool = shutil.which("wrk")
    if tool is None:
        raise SystemExit("wrk is not installed: run `make tools`, or apt install wrk")
    url = f"http://127.0.0.1:{port}/v1/halves"
    command = [tool, "-t1", f"-c{connections}", f"-d{WRK_S}s", "-s", str(script), url]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"Requests/sec:\s+([0-9.]+)", said)
    if found is None or "Non-2xx" in said:
        raise SystemExit(said)
    return float(found[1])


def throughput(root: Path) -> None:
    one, hundred = wrk_script(root, 1), wrk_script(root, 100)
    sets = ("--set", "listenPort=0")
    with serving("benchmarks.ingest", "--bare") as bare_port, serving("ingest.server", "--data", str(root / "e"), *sets) as port:
        wrk(bare_port, one), wrk(port, one)  # warm
        rounds = [(wrk(bare_port, one), wrk(port, one), wrk(port, hundred, 8)) for _ in range(ROUNDS)]
    bares, singles, hundreds = (list(column) for column in zip(*rounds, strict=True))
    print(f"bare requests/s: {spread(bares)}\nsingle halves/s: {spread(singles)}\nbatches of 100/s: {spread(hundreds)}")
    report(
        {
            "ingest.single_over_bare": statistics.median(single / bare for bare, single, _ in rounds),
            "ingest.batch100_over_single": statistics.median(100 * batch / single for _, single, batch in rounds),
        }
    )


def throughput_with_job(root: Path) -> None:
    one = wrk_script(root, 1)
    with serving("benchmarks.ingest", "--bare") as bare_port, whole_service(root / "w") as port:
        rounds = [(wrk(bare_port, one), wrk(port, one)) for _ in range(3)]
    report({"ingest.single_over_bare_with_job": statistics.median(single / bare for bare, single in rounds)})


# --- latency -------------------------------------------------------------------------------------------------------------------
class Caller:
    """A plain HTTP client that times its requests."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        self._connection.connect()
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def post(self, path: str, content: bytes) -> tuple[float, Any]:
        start_s = time.monotonic()
        self._connection.request("POST", path, content, {"Content-Type": "application/json"})
        answer = self._connection.getresponse().read()
        return time.monotonic() - start_s, json.loads(answer)


def timed(caller: Caller, half: bytes) -> float:
    return caller.post("/v1/halves", half)[0]


def paced(work: Callable[[], float]) -> list[float]:
    start_s, found = time.monotonic(), []
    for number in range(int(PACED_S * RATE)):
        time.sleep(max(0.0, start_s + number / RATE - time.monotonic()))
        found.append(work())
    return found


def one_sync(path: Path) -> Callable[[], float]:
    fd, content = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND), os.urandom(1200)

    def once() -> float:
        start_s = time.monotonic()
        os.write(fd, content)
        os.fdatasync(fd)
        return time.monotonic() - start_s

    return once


def ack(root: Path) -> None:
    half = json.dumps({"messages": [{"group": "orders", "topic": "paid", "text": BODY}]}).encode()
    sets = ("--set", "listenPort=0")
    with serving("benchmarks.ingest", "--bare") as bare_port, serving("ingest.server", "--data", str(root / "a"), *sets) as port:
        sync = one_sync(root / "sync")
        rounds = []
        for _ in range(3):
            plain = Caller(bare_port)
            bare_s = statistics.median(paced(partial(timed, plain, half)))
            sync_s = statistics.median(paced(sync))
            edge = Caller(port)
            ack_s = statistics.median(paced(partial(timed, edge, half)))
            rounds.append((bare_s, sync_s, ack_s))
    for name, values in zip(("bare", "fdatasync", "ack"), zip(*rounds, strict=True), strict=True):
        print(f"{name} p50 ms: {spread([1000 * value for value in values])}")
    report({"ingest.ack_p50_over_bare": statistics.median(ack_s / (bare_s + sync_s) for bare_s, sync_s, ack_s in rounds)})


def consumer(port: int) -> None:
    """Long polls and prints {transaction id: when it had it}, until it is told to stop."""
    seen: dict[str, float] = {}
    connection = http.client.HTTPConnection("127.0.0.1", port)
    caller = Caller(port)
    print("ready", flush=True)
    while True:
        connection.request("GET", "/v1/topics/paid/messages?group=bench&consumer=me&max=256&wait_s=2&from=latest")
        messages = json.loads(connection.getresponse().read())["messages"]
        now_s = time.monotonic()
        seen |= {message["transaction_id"]: now_s for message in messages}
        if messages:
            receipts = {"group": "bench", "receipts": [message["receipt"] for message in messages]}
            caller.post("/v1/topics/paid/acks", json.dumps(receipts).encode())
        elif seen:
            break
    print(json.dumps(seen))


def visible(root: Path) -> None:
    half = json.dumps({"messages": [{"group": "orders", "topic": "paid", "text": BODY}]}).encode()
    with whole_service(root / "v") as port:
        caller = Caller(port)
        caller.post("/v1/messages", half)
        command = [sys.executable, "-m", "benchmarks.ingest", "--consumer", str(port)]
        reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert reader.stdout is not None
        reader.stdout.readline()
        time.sleep(0.5)
        acked: dict[str, float] = {}

        def transaction() -> float:
            id = caller.post("/v1/halves", half)[1]["halves"][0]["id"]
            end = json.dumps({"ends": [{"group": "orders", "id": id, "outcome": "commit"}]}).encode()
            took_s, _ = caller.post("/v1/ends", end)
            acked[id] = time.monotonic()
            return took_s

        acks_s = paced(transaction)
        seen = json.loads(reader.stdout.read())
        reader.wait(30)
    # Some are in the consumer's hands before the producer has read its acknowledgement: that counts as no wait.
    waits_s = sorted(max(0.0, seen[id] - at_s) for id, at_s in acked.items())
    ack_s = statistics.median(acks_s)
    print(f"commit acknowledged p50 {ack_s * 1000:.2f} ms; visible after that p50 {statistics.median(waits_s) * 1000:.2f} ms, "
          f"p99 {waits_s[int(len(waits_s) * 0.99)] * 1000:.2f} ms")  # fmt: skip
    report({"ingest.visible_p50_over_ack": statistics.median(waits_s) / ack_s})


PARTS = {"throughput": throughput, "with_job": throughput_with_job, "ack": ack, "visible": visible}


def main(wanted: list[str]) -> None:
    print(f"before: {load()}", flush=True)
    with scratch() as root:
        for name in wanted or PARTS:
            PARTS[name](root)
    print(f"after: {load()}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[:1] == ["--bare"]:
        bare()
    elif arguments[:1] == ["--consumer"]:
        consumer(int(arguments[1]))
    else:
        main(arguments)
