"""What many teams use instead: an outbox table in PostgreSQL and a relay that polls it. `make bench-outbox`: in turns with Escrow.

client     INSERT into the outbox and COMMIT, durable (fsync on); the local transaction itself is empty, as it is for Escrow
relay      every 10 ms: takes what is committed, oldest first, hands it to the consumer over TCP, waits for its word, deletes it
consumer   notes when it had each key

Each is a program of its own. (a) transactions a second, (c) commit → visible, (e) bytes, as in benchmarks/rocketmq.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psycopg

from benchmarks.rocketmq import page, results
from benchmarks.rocketmq.__main__ import about
from benchmarks.rocketmq.client import BODY, quantiles, run
from benchmarks.rocketmq.client import until as wait_until
from benchmarks.rocketmq.processes import Meter, Talker, tree
from benchmarks.rocketmq.systems import BUILD, Escrow
from benchmarks.rocketmq.workloads import CALLERS, ESCROW, Bench
from benchmarks.support import report, scratch
from tests.support.postgres import Cluster, postgres

POLL_S: Final = 0.010
BATCH: Final = 500
OUTBOX: Final = "outbox"
#: As Debian gives it: fsync, full pages and synchronous commits are on.
OPTIONS: Final = ("max_connections=100", "listen_addresses=127.0.0.1")
TABLE: Final = "CREATE TABLE outbox (id bigserial PRIMARY KEY, topic text NOT NULL, key text NOT NULL, body bytea NOT NULL)"
INSERT: Final = "INSERT INTO outbox (topic, key, body) VALUES ('paid', %s, %s)"
TAKE: Final = """DELETE FROM outbox WHERE id IN (SELECT id FROM outbox ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED)
                 RETURNING id, key, body"""


# --- the programs ----------------------------------------------------------------------------------------------------------------
class Client:
    """Producers in threads, a connection each; what the consumer has seen it asks the consumer."""

    def __init__(self, dsn: str) -> None:
        self._dsn, self._numbers, self._prefix = dsn, itertools.count(1), os.getpid()
        self._connections: list[psycopg.Connection[Any]] = []

    def tx(self, callers: str, seconds: str) -> dict[str, Any]:
        begun = time.monotonic()
        until_s = begun + float(seconds)
        connections = iter(self._connected(int(callers)))

        def work(took: list[float]) -> None:
            connection = next(connections)
            while (start := time.monotonic()) < until_s:
                self._commit(connection)
                took.append(time.monotonic() - start)

        took = run(int(callers), work)
        return {"count": len(took), "errors": 0, "seconds": time.monotonic() - begun, "begun": begun, **quantiles(took)}

    def count_tx(self, callers: str, count: str) -> dict[str, Any]:
        left, connections = itertools.count(), iter(self._connected(int(callers)))

        def work(_: list[float]) -> None:
            connection = next(connections)
            while next(left) < int(count):
                self._commit(connection)

        run(int(callers), work)
        return {"count": int(count)}

    def paced(self, rate: str, seconds: str) -> dict[str, Any]:
        """When each was committed: the instant before COMMIT is sent, as the local transaction's end is for the others."""
        [connection] = self._connected(1)
        committed, begun = {}, time.monotonic()
        for number in range(int(float(rate) * float(seconds))):
            time.sleep(max(0.0, begun + number / int(rate) - time.monotonic()))
            key, at = self._commit(connection)
            committed[key] = at
        return {"committed": committed}

    def _commit(self, connection: psycopg.Connection[Any]) -> tuple[str, float]:
        key = f"{self._prefix}-{next(self._numbers)}"
        connection.execute(INSERT, (key, BODY.encode()))
        at = time.monotonic()
        connection.commit()
        return key, at

    def _connected(self, count: int) -> list[psycopg.Connection[Any]]:
        while len(self._connections) < count:
            self._connections.append(psycopg.connect(self._dsn, prepare_threshold=1))
        return self._connections[:count]


class Consumer:
    """Takes batches over TCP: {"keys": […], "bodies": …} a line; answers each with a line."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._seen: dict[str, float] = {}
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        connection, _ = self._listening.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection.makefile("rwb") as stream:
            for line in stream:
                now = time.monotonic()
                for key, _ in json.loads(line):
                    self._seen.setdefault(key, now)
                stream.write(b"ok\n")
                stream.flush()

    def seen(self, expect: str) -> dict[str, Any]:
        """Waits until it has so many; when it had each, and forgets them."""
        wait_until(lambda: len(self._seen) >= int(expect))
        found, self._seen = self._seen, {}
        return {"seen": found, "last": max(found.values())}


def relay(dsn: str, port: int) -> None:
    with psycopg.connect(dsn) as connection, socket.create_connection(("127.0.0.1", port)) as consumer:
        consumer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with consumer.makefile("rwb") as stream:
            while True:
                rows = sorted(connection.execute(TAKE, (BATCH,)).fetchall())
                if rows:
                    stream.write(json.dumps([(key, bytes(body).decode()) for _, key, body in rows]).encode() + b"\n")
                    stream.flush()
                    stream.readline()
                connection.commit()
                if len(rows) < BATCH:
                    time.sleep(POLL_S)


def serve(thing: object, **said: object) -> None:
    """Commands on stdin, answers on stdout."""
    print(json.dumps({"ready": True, **said}), flush=True)
    for line in sys.stdin:
        command, *words = line.split()
        print(json.dumps(getattr(thing, command)(**dict(word.split("=", 1) for word in words))), flush=True)


# --- the system ------------------------------------------------------------------------------------------------------------------
class Outbox:
    """PostgreSQL, relay and consumer."""

    def __init__(self, cluster: Cluster, stack: ExitStack, said: Path) -> None:
        self.dsn, self._cluster, self._said = cluster.dsn, cluster, said
        with cluster.connect(autocommit=True) as connection:
            connection.execute(TABLE)
        self.consumer = stack.enter_context(Talker(program("--consumer"), said))
        port = self.consumer.said["port"]
        self._relay = stack.enter_context(Talker(program("--relay", self.dsn, str(port)), said))

    def client(self) -> Talker:
        return Talker(program("--client", self.dsn), self._said)

    def pids(self) -> list[int]:
        postmaster = int((self._cluster.directory / "data" / "postmaster.pid").read_text().split()[0])
        return [*tree(postmaster), self._relay.process.pid]

    def log_bytes(self) -> int:
        """How much write-ahead log there is so far, pages of the tables included that it is followed by."""
        with self._cluster.connect(autocommit=True) as connection:
            connection.execute("CHECKPOINT")
            found = connection.execute("SELECT pg_current_wal_lsn() - '0/0'").fetchone()
        assert found is not None
        return int(found[0])


def program(*words: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.outbox", *words]


@contextmanager
def outbox(root: Path) -> Iterator[Outbox]:
    """On a disk: /var/tmp is one where /tmp is none, and PostgreSQL's user may go there."""
    with postgres(OPTIONS, under=Path("/var/tmp")) as cluster, ExitStack() as stack:
        yield Outbox(cluster, stack, root / "outbox.out")


# --- what is measured ------------------------------------------------------------------------------------------------------------
def measure(bench: Bench) -> None:
    with bench.running((ESCROW,)) as systems, outbox(bench.root) as box:
        ours = systems[ESCROW]
        assert isinstance(ours, Escrow)
        with ours.client() as our_client, box.client() as box_client:
            our_client.ask("tx", callers=64, seconds=bench.seconds(8))  # warm
            box.consumer.ask("seen", expect=box_client.ask("tx", callers=64, seconds=bench.seconds(3))["count"])
            for _ in range(bench.rounds):
                rates(bench, our_client, box_client, box)
                visible(bench, our_client, box_client, box)
                box_bytes(bench, box, box_client)


def rates(bench: Bench, ours: Talker, theirs: Talker, box: Outbox) -> None:
    for callers in CALLERS:
        given: Mapping[str, object] = {"callers": callers, "seconds": bench.seconds(5)}
        said = ours.ask("tx", **given)
        bench.add("tx_per_s", ESCROW, callers, said["count"] / said["seconds"])
        bench.add("visible_tx_per_s", ESCROW, callers, said["count"] / said["visible_seconds"])
        said = theirs.ask("tx", **given)
        last = box.consumer.ask("seen", expect=said["count"])["last"]
        bench.add("tx_per_s", OUTBOX, callers, said["count"] / said["seconds"])
        bench.add("visible_tx_per_s", OUTBOX, callers, said["count"] / (last - said["begun"]))


def visible(bench: Bench, ours: Talker, theirs: Talker, box: Outbox) -> None:
    given: Mapping[str, object] = {"rate": 200, "seconds": bench.seconds(10, 2.0)}
    said = ours.ask("paced", **given)
    committed = theirs.ask("paced", **given)["committed"]
    seen = box.consumer.ask("seen", expect=len(committed))["seen"]
    waits = quantiles([seen[key] - at for key, at in committed.items()])
    for name in ("p50_ms", "p99_ms"):
        bench.add(f"visible_{name}", ESCROW, "200/s", said[name])
        bench.add(f"visible_{name}", OUTBOX, "200/s", waits[name])


def box_bytes(bench: Bench, box: Outbox, client: Talker) -> None:
    count, before, meter = bench.count(20_000, 500), box.log_bytes(), Meter(box.pids())
    client.ask("count_tx", callers=64, count=count)
    box.consumer.ask("seen", expect=count)
    bench.add("bytes_per_tx", OUTBOX, "", (box.log_bytes() - before) / count)
    bench.add("device_bytes_per_tx", OUTBOX, "", meter.written / count)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks.outbox", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    out: Path = given.out or (results.RESULTS if given.scale == 1 else BUILD / "results.json")
    before, begun = os.getloadavg()[0], time.monotonic()
    with scratch() as root:
        bench = Bench(root, "", given.scale, given.rounds)
        measure(bench)
    took = {
        "seconds": round(time.monotonic() - begun, 1),
        "load_before": round(before, 1),
        "load_after": round(os.getloadavg()[0], 1),
    }
    found = results.merge(out, OUTBOX, {**about(), "scale": given.scale, "rounds": given.rounds, **took, "rows": bench.rows})
    if out == results.RESULTS:
        page.write(found)
    report({name: value for name, value in found["figures"].items() if name.startswith("outbox.")})


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[:1] == ["--client"]:
        serve(Client(arguments[1]))
    elif arguments[:1] == ["--consumer"]:
        consumer = Consumer()
        serve(consumer, port=consumer.port)
    elif arguments[:1] == ["--relay"]:
        threading.Thread(target=relay, args=(arguments[1], int(arguments[2])), daemon=True).start()
        serve(None)
    else:
        with suppress(KeyboardInterrupt):
            main()
