"""Benchmarks of the operator's plane: `make bench-console`. Ratios within one run, all parts on the same cores.

list             with a million pending halves: p95 of a list request, for each filter, against p95 of /livez; asked in turns by one
                 client over one connection. The worst filter counts
ingest           halves of 1 KiB, one a request, 64 connections (wrk), with a million pending: requests/s while a console is open
                 against closed, in turns. An open console asks what the page asks, as often as the page does

`python -m benchmarks.console --pending 20000 --rounds 40` is a small one.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

from benchmarks.ingest import serving, wrk, wrk_script
from benchmarks.support import load, report, scratch, spread
from checker.policy import Policy
from store.edge.store import EdgeStore
from store.job.store import JobStore
from store.messages import Message
from streaming.settlement.settle import Settler, read_feed

GROUPS, TOPICS = 50, 7
TURNS = 5
#: (path and query, seconds between two requests) of a console that shows the list of pending transactions.
OPEN = (
    ("/v1/operator/overview", 2.0),
    ("/v1/operator/transactions?state=pending&order=oldest&limit=100", 5.0),
    ("/v1/operator/groups", 5.0),
)


def fill(store: Path, pending: int) -> None:
    """A store with so many pending halves, settled by the job; a tenth of them asked once."""
    with EdgeStore(store, default_queues=4) as edge:
        now_ms = time.time_ns() // 1_000_000 - pending
        for first in range(0, pending, 4096):
            numbers = range(first, min(pending, first + 4096))
            made = [Message(f"group-{n % GROUPS}", f"topic-{n % TOPICS}", b"x" * 256, {"KEYS": f"order-{n:08d}"}) for n in numbers]
            edge.append_halves(made, now_ms + first)
        edge.wait(edge.log.end)
        asked = list(range(0, pending, 10))
        edge.wait(max(edge.append_asked(asked[at : at + 4096], "m", now_ms) for at in range(0, len(asked), 4096)))
        job = JobStore(store)
        settler = Settler(job, Policy())
        while job.marker.half_cursor < edge.half_end or job.marker.op_cursor < edge.op_end:
            settler.settle(read_feed(job.log, job.marker.half_cursor, job.marker.op_cursor), now_ms)
        job.close()


def filters(pending: int) -> dict[str, dict[str, str]]:
    """Every filter of the list, alone and with others; some find all, some a few, some nothing."""
    half_ms = time.time_ns() // 1_000_000 - pending // 2
    return {
        "none": {},
        "newest": {"order": "newest"},
        "group": {"group": "group-7"},
        "topic": {"topic": "topic-3"},
        "group and topic": {"group": "group-7", "topic": "topic-3"},
        "key": {"key": f"order-{pending - 1:08d}"},
        "key of nobody": {"key": "nobody"},
        "text in a key": {"q": f"{pending - 1:08d}"[2:]},
        "text in every key": {"q": "order"},
        "text of nobody": {"q": "nobody"},
        "text in a group": {"q": "group-49"},
        "age": {"age_min_s": "3600"},
        "time": {"since_ms": str(half_ms)},
        "attempts": {"attempts_min": "1"},
        "attempts of nobody": {"attempts_min": "9"},
        "all of them": {"group": "group-10", "topic": "topic-3", "attempts_min": "1", "age_min_s": "1", "q": "order-0"},
        "discarded": {"state": "discarded"},
        "settled": {"state": "settled"},
        "settled by key": {"state": "settled", "key": "nobody"},
    }


class Asker:
    """One connection that is kept."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)

    def ask(self, path: str) -> tuple[float, bytes]:
        start_s = time.perf_counter()
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        content = answer.read()
        took_s = time.perf_counter() - start_s
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status} {content!r}")
        return took_s, content


def p95(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.95)]


def until_indexed(port: int, pending: int) -> None:
    asker, path = (
        Asker(port),
        "/v1/operator/transactions?"
        + urlencode(
            {"key": f"order-{pending - 1:08d}", "order": "newest"}  # the oldest first, a page may end before it is reached
        ),
    )
    while not json.loads(asker.ask(path)[1])["transactions"]:
        time.sleep(0.2)


def lists(port: int, pending: int, rounds: int) -> None:
    asker, wanted = Asker(port), filters(pending)
    paths = {name: f"/v1/operator/transactions?{urlencode(query)}" for name, query in wanted.items()}
    for path in (*paths.values(), "/livez"):
        asker.ask(path)  # warm
    took: dict[str, list[float]] = {name: [] for name in ("livez", *paths)}
    for _ in range(rounds):
        for name, path in paths.items():
            took["livez"].append(asker.ask("/livez")[0])
            took[name].append(asker.ask(path)[0])
    livez_s = p95(took.pop("livez"))
    ratios = {name: p95(values) / livez_s for name, values in took.items()}
    print(f"livez p95 {livez_s * 1000:.2f} ms")
    for name, values in took.items():
        p50_ms, p95_ms = statistics.median(values) * 1000, p95(values) * 1000
        print(f"list, {name}: p50 {p50_ms:.2f} ms, p95 {p95_ms:.2f} ms, {ratios[name]:.1f} livez")
    report({"console.list_p95_over_livez": max(ratios.values())})


@contextmanager
def open_console(port: int) -> Iterator[None]:
    """Asks what the page asks, as often."""
    closed = threading.Event()

    def poll(path: str, every_s: float) -> None:
        asker = Asker(port)
        while True:
            asker.ask(path)
            if closed.wait(every_s):
                return

    threads = [threading.Thread(target=poll, args=each) for each in OPEN]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        closed.set()
        for thread in threads:
            thread.join()


def ingest(root: Path, port: int) -> None:
    script = wrk_script(root, 1)
    wrk(port, script)  # warm
    rounds = []
    for _ in range(TURNS):
        closed = wrk(port, script)
        with open_console(port):
            rounds.append((closed, wrk(port, script)))
    closed_rates, open_rates = (list(column) for column in zip(*rounds, strict=True))
    print(f"halves/s, console closed: {spread(closed_rates)}\nhalves/s, console open: {spread(open_rates)}")
    report({"console.ingest_ratio": statistics.median(with_console / without for without, with_console in rounds)})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pending", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    print(f"before: {load()}", flush=True)
    with scratch() as root:
        fill(root / "data" / "store", arguments.pending)
        with serving("ingest.server", "--data", str(root / "data"), "--set", "listenPort=0") as port:
            until_indexed(port, arguments.pending)
            lists(port, arguments.pending, arguments.rounds)
            ingest(root, port)
    print(f"after: {load()}")


if __name__ == "__main__":
    main()
