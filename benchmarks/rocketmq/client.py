"""Escrow's side: its SDK, told by lines on stdin what to do, answering each with a line of JSON. Client.java is the twin.

python -m benchmarks.rocketmq.client URL topic=… group=… [check_threads=8]      then lines: COMMAND KEY=VALUE …
"""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from escrow import Api, AsyncProducer, Check, Consumer, End, Message, Outcome, Producer
from escrow.errors import EscrowError

BODY: Final = "x" * 1024
PATIENCE_S: Final = 600.0


class Client:
    def __init__(self, url: str, topic: str, group: str, check_threads: str = "8", member: str = "true") -> None:
        self.url, self.topic, self.group = url, topic, group
        self._numbers = itertools.count(1)
        self._policy = Outcome.COMMIT
        self._asked_at: dict[str, float] = {}
        self._checks = 0
        self._next_check = threading.Event()
        self._deliveries: Counter[str] = Counter()
        self._positions: Counter[tuple[int, int]] = Counter()
        self._consumer: Consumer | None = None
        self.api = Api(url, retry_for_s=0)
        self._accepted = self.api.status()["answers"].get("accepted", 0)
        listener = self._answer if member == "true" else None
        self.producer = Producer(url, group, on_check=listener, check_threads=int(check_threads))

    def _answer(self, check: Check) -> Outcome:
        self._asked_at.setdefault(check.key, time.monotonic())
        self._checks += 1
        self._next_check.set()
        return self._policy

    def _next(self) -> Message:
        return Message(self.topic, BODY, key=f"k{next(self._numbers)}")

    # --- transactions ---------------------------------------------------------------------------------------------------------
    def tx(self, callers: str, seconds: str, style: str = "threads") -> dict[str, Any]:
        """Callers in a loop for so long; each transaction is two acknowledged requests."""
        for_s = float(seconds)
        begun = time.monotonic()
        if style == "tasks":
            took = asyncio.run(self._tasks(int(callers), begun + for_s))
        else:
            took = self._threads(int(callers), begun + for_s)
        seconds_s = time.monotonic() - begun
        return {"count": len(took), "errors": 0, "seconds": seconds_s, "visible_seconds": seconds_s, **quantiles(took)}

    def _threads(self, callers: int, until_s: float) -> list[float]:
        def work(took: list[float]) -> None:
            while (begun := time.monotonic()) < until_s:
                self.producer.send_in_transaction(self._next(), _commit)
                took.append(time.monotonic() - begun)

        return run(callers, work)

    async def _tasks(self, callers: int, until_s: float) -> list[float]:
        took: list[float] = []
        async with AsyncProducer(self.url, self.group) as producer:

            async def work() -> None:
                while (begun := time.monotonic()) < until_s:
                    await producer.send_in_transaction(self._next(), _commit_soon)
                    took.append(time.monotonic() - begun)

            await asyncio.gather(*[work() for _ in range(callers)])
        return took

    def batched(self, callers: str, batch: str, seconds: str) -> dict[str, Any]:
        """Explicit batches: halves in one call, their commits in one call."""
        size, begun = int(batch), time.monotonic()
        until_s = begun + float(seconds)

        def work(took: list[float]) -> None:
            while (start := time.monotonic()) < until_s:
                self._commit_batch(size)
                took += [time.monotonic() - start] * size

        took = run(int(callers), work)
        return {"count": len(took), "errors": 0, "seconds": time.monotonic() - begun, **quantiles(took)}

    def _commit_batch(self, size: int) -> None:
        halves = self.producer.send_halves([self._next() for _ in range(size)])
        answers = self.producer.end_all([End(half.id, Outcome.COMMIT) for half in halves])
        assert all(answer.stands for answer in answers)

    def count_tx(self, callers: str, count: str) -> dict[str, Any]:
        left, begun = itertools.count(), time.monotonic()

        def work(_: list[float]) -> None:
            while next(left) < int(count):
                self.producer.send_in_transaction(self._next(), _commit)

        run(int(callers), work)
        return {"count": int(count), "seconds": time.monotonic() - begun, "errors": 0}

    def halves(self, callers: str, count: str, batch: str = "256") -> dict[str, Any]:
        """Silent halves."""
        left, begun, size = itertools.count(), time.monotonic(), int(batch)

        def work(_: list[float]) -> None:
            while (first := next(left) * size) < int(count):
                self.producer.send_halves([self._next() for _ in range(min(size, int(count) - first))])

        run(int(callers), work)
        return {"count": int(count), "seconds": time.monotonic() - begun, "errors": 0}

    # --- commit -> visible ----------------------------------------------------------------------------------------------------
    def paced(self, rate: str, seconds: str) -> dict[str, Any]:
        """At a constant rate; the consumer is a process of its own, on the same clock."""
        committed: dict[str, float] = {}

        def commit(message: Message, _: None) -> Outcome:
            committed[message.key] = time.monotonic()
            return Outcome.COMMIT

        command = [sys.executable, "-m", "benchmarks.rocketmq.client", "--reader", self.url, self.topic]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            assert reader.stdin is not None
            while True:  # until it reads
                self.producer.send_in_transaction(Message(self.topic, BODY, key=f"hello{next(self._numbers)}"), _commit)
                time.sleep(0.2)
                if reader.stdout.readline().strip() == "reading":
                    break
            time.sleep(1.0)
            self._pace(int(rate), float(seconds), commit)
            reader.stdin.write(f"{len(committed)}\n")
            reader.stdin.close()
            seen = json.loads(reader.stdout.readline())
        return {
            **quantiles([seen[key] - at for key, at in committed.items()]),
            "committed_at": sorted(committed.values()),
        }

    def _pace(self, rate: int, seconds: float, commit: Callable[[Message, None], Outcome]) -> None:
        begun = time.monotonic()
        for number in range(int(rate * seconds)):
            time.sleep(max(0.0, begun + number / rate - time.monotonic()))
            self.producer.send_in_transaction(self._next(), commit)

    # --- check-back -----------------------------------------------------------------------------------------------------------
    def policy(self, answer: str) -> dict[str, Any]:
        self._policy = Outcome(answer)
        return {}

    def asked(self) -> dict[str, Any]:
        return {"checks": self._checks, "halves": len(self._asked_at)}

    def storm(self, expect: str) -> dict[str, Any]:
        """From the first check on: until half, 99 % and all of the halves were asked about, and until Spark has settled them."""
        count = int(expect)
        until(lambda: len(self._asked_at) >= count)
        until(lambda: self._settled(count))
        settled = time.monotonic()
        asked = sorted(self._asked_at.values())
        return {
            "asked_50_s": asked[count // 2] - asked[0],
            "asked_99_s": asked[int(count * 0.99)] - asked[0],
            "asked_s": asked[-1] - asked[0],
            "settled_s": settled - asked[0],
            "checks": self._checks,
        }

    def _settled(self, count: int) -> bool:
        """As many ends were taken since this client began, and Spark has settled them."""
        status = self.api.status()
        behind = status["job"]["halves_behind"] + status["job"]["ops_behind"]
        return bool(status["answers"].get("accepted", 0) - self._accepted >= count and behind == 0)

    def first_ack(self) -> dict[str, Any]:
        """Halves until one is acknowledged: when that was."""
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.api.send_halves(self.group, [self._next()])
                return {"at": time.time()}
            except EscrowError:
                if time.monotonic() > give_up_at:
                    raise
                time.sleep(0.01)

    def first_check(self) -> dict[str, Any]:
        self._next_check.clear()
        self._next_check.wait()
        return {"at": time.time()}

    # --- faults ---------------------------------------------------------------------------------------------------------------
    def consume(self) -> dict[str, Any]:
        """A consumer that notes how often it is given what."""
        if self._consumer is None:
            self._consumer = Consumer(self.url, self.topic, "readers", start="latest", prefetch=256, retry_for_s=PATIENCE_S)
            threading.Thread(target=self._read, args=(self._consumer,), daemon=True).start()
            while not self._deliveries:  # until it reads
                self.producer.send_in_transaction(self._next(), _commit)
                time.sleep(0.2)
        return {}

    def _read(self, consumer: Consumer) -> None:
        for message in consumer:
            self._deliveries[message.key] += 1
            self._positions[message.queue_id, message.queue_offset] += 1

    def commits(self, callers: str, count: str) -> dict[str, Any]:
        """Commits, each seen by the consumer before this returns."""
        self.consume()
        before = len(self._deliveries)
        said = self.count_tx(callers, count)
        until(lambda: len(self._deliveries) >= before + int(count))
        return said

    def copies(self) -> dict[str, Any]:
        """The whole topic, as a new consumer group finds it: copies; and which messages our consumer was given more than once."""
        found = self._everything()
        again = sum(times - 1 for times in self._positions.values())
        return {"messages": found.total(), "keys": len(found), "twice": found.total() - len(found), "delivered_again": again}

    def _everything(self) -> Counter[str]:
        found: Counter[str] = Counter()
        with Consumer(self.url, self.topic, f"everything-{time.time_ns()}", start="earliest", prefetch=512, idle_s=2.0) as reader:
            for message in reader:
                found[message.key] += 1
        return found

    def thrice(self) -> dict[str, Any]:
        return self._copies_of(Outcome.COMMIT, Outcome.COMMIT, Outcome.COMMIT)

    def after_rollback(self) -> dict[str, Any]:
        return self._copies_of(Outcome.ROLLBACK, Outcome.COMMIT)

    def _copies_of(self, *outcomes: Outcome) -> dict[str, Any]:
        message = self._next()
        half = self.producer.send_half(message)
        verdicts = [str(self.producer.end(half.id, outcome).verdict) for outcome in outcomes]
        return {"copies": self._everything()[message.key], "verdicts": verdicts}


# --- tools --------------------------------------------------------------------------------------------------------------------
def _commit(_: Message, __: None) -> Outcome:
    return Outcome.COMMIT


async def _commit_soon(_: Message, __: None) -> Outcome:
    return Outcome.COMMIT


def run(callers: int, work: Callable[[list[float]], None]) -> list[float]:
    """Threads, each with a list for what its transactions took; all of them together."""
    lists: list[list[float]] = [[] for _ in range(callers)]
    failed: list[BaseException] = []

    def guarded(took: list[float]) -> None:
        try:
            work(took)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(took,)) for took in lists]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return [each for took in lists for each in took]


def quantiles(values_s: list[float]) -> dict[str, float]:
    ordered = sorted(values_s)
    if not ordered:
        return {}
    return {"p50_ms": ordered[len(ordered) // 2] * 1000, "p99_ms": ordered[int(len(ordered) * 0.99)] * 1000}


def until(holds: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > give_up_at:
            raise TimeoutError("waited in vain")
        time.sleep(0.005)


def reader(url: str, topic: str) -> None:
    """Reads as it comes, notes when it had each key, and tells it all when it has seen as many as stdin says."""
    seen: dict[str, float] = {}
    with Consumer(url, topic, f"reader-{time.time_ns()}", start="latest", prefetch=256) as consumer:
        threading.Thread(target=_note, args=(consumer, seen), daemon=True).start()
        while not seen:
            print("waiting", flush=True)
            time.sleep(0.1)
        print("reading", flush=True)
        expected = int(sys.stdin.readline())
        until(lambda: sum(key.startswith("k") for key in list(seen)) >= expected)
    print(json.dumps(seen))


def _note(consumer: Consumer, seen: dict[str, float]) -> None:
    for message in consumer:
        seen.setdefault(message.key, time.monotonic())


def main(arguments: list[str]) -> None:
    if arguments[0] == "--reader":
        reader(arguments[1], arguments[2])
        return
    client = Client(arguments[0], **dict(word.split("=", 1) for word in arguments[1:]))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command, *words = line.split()
        print(json.dumps(getattr(client, command)(**dict(word.split("=", 1) for word in words))), flush=True)
    client.producer.close()


if __name__ == "__main__":
    main(sys.argv[1:])
