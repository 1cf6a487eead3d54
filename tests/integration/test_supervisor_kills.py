"""Parts killed at random under load: what was acknowledged is settled exactly once. Without Spark; `make chaos` is for that."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

from store.inspect.verify.store import verify
from store.read.readers import open_readers
from tests.support.edge_client import EdgeClient, RemoteError
from tests.support.supervised import running, until

KILLS = 8


class Producer(threading.Thread):
    """Sends halves and ends them, again and again, whatever happens to the edge; remembers what was acknowledged."""

    def __init__(self, run, name, seed):
        super().__init__(name=name)
        self._run, self._random, self.stopping = run, random.Random(seed), threading.Event()
        self.wanted: dict[str, str] = {}
        self.verdicts: dict[str, str] = {}

    def run(self):
        while not self.stopping.is_set():
            with suppress(OSError, RemoteError, ValueError, KeyError, HTTPException), self._run.client() as client:
                self._work(client)
            time.sleep(0.02)

    def _work(self, client):
        for id, body in list(self.wanted.items()):
            if id not in self.verdicts:  # its end was not acknowledged: say it again
                self._end(client, id, body)
        while not self.stopping.is_set():
            body = f"{self._random.choice(['commit', 'rollback'])} {self.name} {len(self.wanted)} {self._random.random()}"
            (id,) = client.prepare([{"group": "g", "topic": "t", "text": body}])
            self.wanted[id] = body
            self._end(client, id, body)

    def _end(self, client, id, body):
        self.verdicts[id] = client.end("g", id, body.split()[0])["verdict"]


def test_kills_under_load(tmp_path):
    seed = int(os.environ.get("SEED", random.randrange(1 << 32)))
    print(f"SEED={seed}")
    chance = random.Random(seed)
    with running(tmp_path / "data", "restartDeathsMax=1000", "restartBackoffMax=50ms", "transactionTimeOut=1h") as run:
        run.ready()
        producers = [Producer(run, f"p{number}", seed + number) for number in range(4)]
        for producer in producers:
            producer.start()
        for number in range(KILLS):
            before = sum(len(producer.verdicts) for producer in producers)
            until(
                lambda before=before: sum(len(producer.verdicts) for producer in producers) > before + 20,
                f"load before kill {number}",
            )
            part = chance.choice(["edge", "edge", "job"])
            state = until(lambda: run.state()["ready"] and run.state(), "ready")
            with suppress(ProcessLookupError):
                os.kill(state[part]["pid"], signal.SIGKILL)
            until(lambda p=part, s=state: run.state()["ready"] and run.state()[p]["starts"] > s[p]["starts"], f"{part} again")
        for producer in producers:
            until(lambda p=producer: len(p.verdicts) >= len(p.wanted) - 1, "ends said again")
            producer.stopping.set()
        for producer in producers:
            producer.join()
        with EdgeClient(run.state()["edge"]["port"]) as client:
            for producer in producers:
                for id, body in producer.wanted.items():
                    if id not in producer.verdicts:
                        producer._end(client, id, body)
            until(lambda: client.status()["job"]["ops_behind"] == 0, "settled")
        assert run.stop()[0] == 0
    check(tmp_path / "data" / "store", producers)


def check(store: Path, producers):
    verdicts = [verdict for producer in producers for verdict in producer.verdicts.values()]
    assert set(verdicts) <= {"accepted", "already"}
    wanted = sorted(body for producer in producers for body in producer.wanted.values() if body.startswith("commit"))
    _, log, topics, _ = open_readers(store)
    assert topics is not None
    released = []
    for key in topics.catalogue.queue_keys():
        begin, end = topics.catalogue.extent(key)
        _, entries = topics.topic_entries(key >> 6, key & 63, begin, end - begin)
        released += [log.frame(entry).body.decode() for entry in entries]
    log.close()
    assert sorted(released) == wanted, "every commit once, no rollback"
    report = verify(store)
    assert not report.problems, report.problems
