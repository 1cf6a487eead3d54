"""A service to look at through the console: the endpoint as a process, with tokens, and the settlement beside it, in a thread of
the test, without Spark. Rounds begin when the test says so, at the time that it says.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from checker.decisions import Tick
from checker.policy import Policy
from ingest.auth import token_file
from runtime.settings import load
from store.io.wakeup import EDGE_WAKE, Waker
from store.job.store import JobStore
from store.tables.journals.names import Dictionary
from store.tables.presence import Presence
from streaming.settlement.settle import Settler, read_feed
from tests.support.edge_client import EdgeClient
from tests.support.endpoint import Endpoint, until

FLAGS = (
    "commitLogSegmentSize=4MiB",
    "maxBodySize=256KiB",
    "transactionTimeOut=1s",
    "transactionCheckMax=2",
    "logQueueEntriesPerFile=65536",
    "topicQueueEntriesPerFile=4096",
)
BEAT_S = 0.05


class ConsoleService:
    """`endpoint`, `tokens` by name, `job` while it runs."""

    def __init__(self, data: Path, *flags: str, port: int = 0) -> None:
        self.data, self.flags = data, (*FLAGS, *flags)
        self.tokens = {"ada": self.token("ada", operator=True), "shop": self.token("shop", ["*"])}
        self.endpoint = Endpoint(data, *self.flags, port=port)
        self.settings = load(None, [*self.flags, f"dataDir={data}"], {})
        self._lock = threading.Lock()
        self.start_job()

    def token(self, name: str, produce: list[str] | None = None, consume: list[str] | None = None, **roles: bool) -> str:
        operator, metrics = roles.get("operator", False), roles.get("metrics", False)
        path, made_at = self.data / "keys" / "tokens.toml", "2026-01-02T03:04:05Z"
        return token_file.add(path, name, produce or [], consume or [], operator=operator, metrics=metrics, made_at=made_at)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.endpoint.port}"

    def client(self, who: str = "shop") -> EdgeClient:
        return EdgeClient(self.endpoint.port, token=self.tokens[who])

    # --- the settlement ----------------------------------------------------------------------------------------------------------
    def start_job(self) -> None:
        self.job = JobStore(self.settings.store_dir)
        self._settler = Settler(self.job, Policy.from_ms(**self.settings.policy_values()))
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="settlement", daemon=True)
        self._thread.start()

    def stop_job(self) -> None:
        self._stopping.set()
        self._thread.join()
        self.job.close()

    def _run(self) -> None:
        while not self._stopping.wait(BEAT_S):
            self.settle()

    def settle(self) -> None:
        with self._lock:
            now_ms = time.time_ns() // 1_000_000
            self.job.heartbeat(now_ms)
            self._settler.settle(read_feed(self.job.log, self.job.marker.half_cursor, self.job.marker.op_cursor), now_ms)
        self._wake()

    def round(self, after_s: float = 10.0) -> None:
        """A check round as if so much time had passed."""
        self.settle()
        with self._lock:
            now_ms = time.time_ns() // 1_000_000 + int(after_s * 1000)
            groups = len(Dictionary(self.settings.store_dir / "dictionary").groups)
            live = Presence(self.settings.store_dir / "presence").live(now_ms, self.settings.presence_ttl_ms, groups)
            for _ in self._settler.check_round(Tick(now_ms, self.job.marker.round_no + 1, now_ms, True), live):
                pass
        self._wake()

    def _wake(self) -> None:
        waker = Waker(self.settings.store_dir / EDGE_WAKE)
        waker.wake()
        waker.close()

    # --- what happens ------------------------------------------------------------------------------------------------------------
    def halves(self, group: str, topic: str, *items: dict[str, Any]) -> list[str]:
        with self.client() as client:
            return client.prepare([{"group": group, "topic": topic, "text": "{}", **item} for item in items])

    def end(self, group: str, id: str, outcome: str, **rest: Any) -> None:
        with self.client() as client:
            assert client.end(group, id, outcome, **rest)["verdict"] == "accepted"

    def ask(self, group: str, member: str) -> list[str]:
        """One round, and a member that takes what it brings."""
        with self.client() as client:
            client.poll_checks(group, member)
            self.round()
            return [each["id"] for each in client.poll_checks(group, member, wait_s=20)]

    def discard(self, group: str, topic: str, *items: dict[str, Any]) -> list[str]:
        """Halves whose members were asked too often and never knew."""
        ids = self.halves(group, topic, *items)
        for _ in range(self.settings.check_count_max):
            self.ask(group, "deaf-1")
        with self.client("ada") as client:

            def gone() -> bool:
                self.round()
                return all(client.transaction(id)["state"] == "DISCARDED_MAX" for id in ids)

            until(gone)
        return ids

    def close(self) -> None:
        self.stop_job()
        self.endpoint.kill()


@contextmanager
def console_service(data: Path, *flags: str, port: int = 0) -> Iterator[ConsoleService]:
    made = ConsoleService(data, *flags, port=port)
    try:
        yield made
    finally:
        made.close()
