"""Benchmarks of the SDK against a real edge: the second half of `make bench-ingest`. Ratios within one run; no Spark is needed.

unbatched       64 threads, each with its own requests: half, then commit (`Api`)
batched         64 threads that share requests (`Producer`)
tasks           64 asyncio tasks that share requests (`AsyncProducer`), and 64 that each make their own, in the event loop, too
one caller      one thread alone: what the producer adds to the bare requests
cpu             CPU of both sides for one transaction: says the same on a machine that is busy with other things, where the
                figures above mostly tell how many threads compete for it
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.support import alternate, load, report, scratch, spread
from escrow import Api, AsyncProducer, End, Message, Outcome, Producer
from escrow.api import posting_ends, posting_halves
from escrow.loop import LoopTransport
from escrow.transport import Server

CALLERS = 64
TRANSACTIONS = 6_400
ALONE = 300
ROUNDS = 3
MESSAGE = Message("paid", b"x" * 1024)


@contextmanager
def edge(root: Path) -> Iterator[tuple[str, int]]:
    """The url and the pid of an edge in a process of its own."""
    command = [sys.executable, "-m", "ingest.server", "--data", str(root), "--set", "listenPort=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            told = json.loads(line)
            if told.get("ready"):
                break
        try:
            yield f"http://127.0.0.1:{told['port']}", process.pid
        finally:
            process.terminate()


def committed(*_: object) -> Outcome:
    return Outcome.COMMIT


def bare(api: Api) -> None:
    [half] = api.send_halves("orders", [MESSAGE], dedup_keys=[f"{time.monotonic_ns()}-{id(object())}"])
    [answer] = api.end("orders", [End(half.id, Outcome.COMMIT)])
    assert answer.stands


def shared(producer: Producer) -> None:
    assert producer.send_in_transaction(MESSAGE, committed).committed


def throughput(transact: Callable[[], None]) -> float:
    """Transactions a second of CALLERS threads."""

    def work() -> None:
        for _ in range(TRANSACTIONS // CALLERS):
            transact()

    with ThreadPoolExecutor(CALLERS) as pool:
        begun_s = time.perf_counter()
        for done in [pool.submit(work) for _ in range(CALLERS)]:
            done.result()
        return TRANSACTIONS / (time.perf_counter() - begun_s)


async def task_throughput(url: str) -> float:
    """Transactions a second of CALLERS tasks that share requests."""

    async def outcome(*_: object) -> Outcome:
        return Outcome.COMMIT

    async with AsyncProducer(url, "orders") as producer:

        async def transact() -> None:
            assert (await producer.send_in_transaction(MESSAGE, outcome)).committed

        return await of_tasks(transact)


async def own_request_throughput(url: str) -> float:
    """Transactions a second of CALLERS tasks, each with its own requests and a connection of its own."""

    own = deque(LoopTransport(Server(url)) for _ in range(CALLERS))
    transports = list(own)

    async def transact() -> None:
        transport = own.popleft()
        [half] = await transport.post(posting_halves("orders", [MESSAGE], [f"{time.monotonic_ns()}-{id(transport)}"]))
        [answer] = await transport.post(posting_ends("orders", [End(half.id, Outcome.COMMIT)]))
        assert answer.stands
        own.append(transport)

    try:
        return await of_tasks(transact)
    finally:
        for transport in transports:
            transport.close()


async def of_tasks(transact: Callable[[], Awaitable[None]]) -> float:
    async def work() -> None:
        for _ in range(TRANSACTIONS // CALLERS):
            await transact()

    begun_s = time.perf_counter()
    await asyncio.gather(*[work() for _ in range(CALLERS)])
    return TRANSACTIONS / (time.perf_counter() - begun_s)


def latency_ms(transact: Callable[[], None]) -> float:
    times = []
    for _ in range(ALONE):
        begun_s = time.perf_counter()
        transact()
        times.append(time.perf_counter() - begun_s)
    return statistics.median(times) * 1000


def cpu_s(edge_pid: int) -> float:
    """CPU of this process and of the edge."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    fields = Path(f"/proc/{edge_pid}/stat").read_text().rpartition(") ")[2].split()
    return own.ru_utime + own.ru_stime + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_us(edge_pid: int, transact: Callable[[], None]) -> float:
    """CPU microseconds of both sides for one transaction of CALLERS threads."""
    before_s = cpu_s(edge_pid)
    throughput(transact)
    return (cpu_s(edge_pid) - before_s) / TRANSACTIONS * 1e6


def measure(url: str, edge_pid: int, api: Api, producer: Producer) -> dict[str, float]:
    throughput(partial(bare, api))  # warm
    unbatched, batched = alternate(lambda: throughput(partial(bare, api)), lambda: throughput(partial(shared, producer)), ROUNDS)
    own_tasks, tasks = alternate(
        lambda: asyncio.run(own_request_throughput(url)), lambda: asyncio.run(task_throughput(url)), ROUNDS
    )
    alone_bare, alone_shared = alternate(
        lambda: latency_ms(partial(bare, api)), lambda: latency_ms(partial(shared, producer)), ROUNDS
    )
    cpu_bare, cpu_shared = alternate(
        lambda: cpu_us(edge_pid, partial(bare, api)), lambda: cpu_us(edge_pid, partial(shared, producer)), ROUNDS
    )
    print(f"CPU µs a transaction, unbatched: {spread(cpu_bare)}")
    print(f"CPU µs a transaction, batched: {spread(cpu_shared)}")
    print(f"unbatched transactions/s: {spread(unbatched)}")
    print(f"batched transactions/s: {spread(batched)}")
    print(f"one caller, bare requests, ms: {spread(alone_bare)}")
    print(f"one caller, producer, ms: {spread(alone_shared)}")
    print(f"tasks, own requests, transactions/s: {spread(own_tasks)}")
    print(f"tasks, batched, transactions/s: {spread(tasks)}")
    return {
        "ingest.sdk_batched_over_unbatched": statistics.median(batched) / statistics.median(unbatched),
        "ingest.sdk_tasks_over_unbatched": statistics.median(tasks) / statistics.median(own_tasks),
        "ingest.sdk_one_caller_over_bare": statistics.median(alone_shared) / statistics.median(alone_bare),
        "ingest.sdk_cpu_unbatched_over_batched": statistics.median(cpu_bare) / statistics.median(cpu_shared),
    }


def main() -> None:
    print(load())
    with scratch() as root, edge(root / "data") as (url, edge_pid), Api(url) as api, Producer(url, "orders") as producer:
        report(measure(url, edge_pid, api, producer))


if __name__ == "__main__":
    main()
