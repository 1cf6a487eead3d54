"""A well-behaved tenant: transactions at a steady pace, each consumed and acknowledged, each request timed.

python -m tests.campaigns.tenants.neighbour PORT TOKEN SECONDS      prints one JSON object: times in ms, errors
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.support.edge_client import EdgeClient

GROUP, TOPIC, READERS = "orders", "order-paid", "billing"
PER_SECOND = 20
PATIENCE_S = 30.0


class Neighbour:
    """One producer and one consumer, each with a connection of its own."""

    def __init__(self, port: int, token: str) -> None:
        self._port, self._token = port, token
        self.times_ms: list[float] = []
        self.errors: Counter[str] = Counter()
        self.sent = self.seen = 0
        self._through = threading.Event()

    def run(self, seconds: float) -> dict[str, object]:
        consumer = threading.Thread(target=self._guarded, args=(self._consume,))
        consumer.start()
        self._guarded(lambda: self._produce(seconds))
        self._through.set()
        consumer.join()
        return {"sent": self.sent, "seen": self.seen, "times_ms": self.times_ms, "errors": dict(self.errors)}

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self.errors[f"{type(error).__name__}: {error}"[:200]] += 1

    def _timed(self, call: Callable[..., Any], *arguments: object) -> Any:
        began_s = time.perf_counter()
        try:
            return call(*arguments)
        finally:
            self.times_ms.append((time.perf_counter() - began_s) * 1000)

    def _produce(self, seconds: float) -> None:
        with EdgeClient(self._port, token=self._token) as client:
            begin_s = time.monotonic()
            for number in range(int(seconds * PER_SECOND)):
                time.sleep(max(0.0, begin_s + number / PER_SECOND - time.monotonic()))
                half = {"group": GROUP, "topic": TOPIC, "text": f"order {number}", "properties": {"KEYS": str(number)}}
                (id,) = self._timed(client.prepare, [half])
                answer = self._timed(client.end, GROUP, id, "commit")
                if answer["verdict"] != "accepted":
                    self.errors[f"commit: {answer}"] += 1
                self.sent += 1

    def _consume(self) -> None:
        """Until everything that was sent has come."""
        give_up_s = float("inf")
        with EdgeClient(self._port, token=self._token) as client:
            while not (self._through.is_set() and self.seen >= self.sent) and time.monotonic() < give_up_s:
                found = client.consume(TOPIC, READERS, wait_s=0.5)
                if found:
                    client.ack(TOPIC, [each["receipt"] for each in found], READERS)
                    self.seen += len(found)
                if self._through.is_set() and give_up_s == float("inf"):
                    give_up_s = time.monotonic() + PATIENCE_S


if __name__ == "__main__":
    port, token, seconds = sys.argv[1:]
    print(json.dumps(Neighbour(int(port), token).run(float(seconds))))
