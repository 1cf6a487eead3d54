"""Benchmarks of the SDK against a real edge: the second half of `make bench-ingest`. Ratios within one run; no Spark is needed.

Callers each send halves and commit them, one transaction after another, through one producer: 64 asyncio tasks (`AsyncProducer`)
or 64 threads (`Producer`).

batched      as the producer is by default: callers share requests
unbatched    the same producer with `batch_max=1`: each caller makes requests of his own
background   the same producer with `end="background"`: no caller waits for its end, and all of them are answered at the end
bare         each caller makes his requests by hand, without a producer: what is below it (`LoopTransport`, `Api`)
one caller   one thread alone: what the producer adds to the bare requests
cpu          CPU of both sides for one transaction: says the same on a machine that is busy with other things, where the
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
from typing import Any, Literal

from benchmarks.support import alternate, load, ratio, report, scratch, spread
from escrow import Api, AsyncProducer, End, Message, Outcome, Producer, _calls
from escrow._loop import LoopTransport
from escrow._transport import Server

CALLERS = 64
TRANSACTIONS = 6_400
ALONE = 300
ROUNDS = 7
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


def ending_throughput(url: str, callers: int, count: int, end: Literal["wait", "background"]) -> float:
    """Transactions a second of so many threads, until each end is answered."""
    with Producer(url, "orders", on_check=committed, end=end) as producer, ThreadPoolExecutor(callers) as pool:

        def work() -> None:
            for _ in range(count // callers):
                producer.send_in_transaction(MESSAGE, committed)

        begun_s = time.perf_counter()
        for done in [pool.submit(work) for _ in range(callers)]:
            done.result()
        assert producer.close(60), "an end was not answered"
        elapsed_s = time.perf_counter() - begun_s
    assert end == "wait" or producer.ends.ended == count // callers * callers
    return count / elapsed_s


async def ending_task_throughput(url: str, end: Literal["wait", "background"]) -> float:
    """The same of CALLERS tasks."""

    async def outcome(*_: object) -> Outcome:
        return Outcome.COMMIT

    producer = AsyncProducer(url, "orders", on_check=committed, end=end)
    await producer.start()

    async def work() -> None:
        for _ in range(TRANSACTIONS // CALLERS):
            await producer.send_in_transaction(MESSAGE, outcome)

    begun_s = time.perf_counter()
    await asyncio.gather(*[work() for _ in range(CALLERS)])
    assert await producer.close(60), "an end was not answered"
    return TRANSACTIONS / (time.perf_counter() - begun_s)


def background(url: str) -> dict[str, float]:
    """What it brings that no caller waits for its end: rates over those of callers that wait."""
    figures = {}
    kinds: dict[str, Callable[[Literal["wait", "background"]], float]] = {
        "threads": lambda end: ending_throughput(url, CALLERS, TRANSACTIONS, end),
        "tasks": lambda end: asyncio.run(ending_task_throughput(url, end)),
        "one_caller": lambda end: ending_throughput(url, 1, ALONE, end),
    }
    for name, rate in kinds.items():
        rates = in_turns(ROUNDS, waiting=partial(rate, "wait"), background=partial(rate, "background"))
        for side, values in rates.items():
            print(f"{name}, transactions/s, {side}: {spread(values)}")
        figures[f"ingest.sdk_background_over_waiting_{name}"] = ratio(rates["background"], rates["waiting"])
    return figures


async def task_throughput(url: str, **options: Any) -> float:
    """Transactions a second of CALLERS tasks with one producer."""

    async def outcome(*_: object) -> Outcome:
        return Outcome.COMMIT

    async with AsyncProducer(url, "orders", **options) as producer:

        async def transact() -> None:
            assert (await producer.send_in_transaction(MESSAGE, outcome)).committed

        return await of_tasks(transact)


async def own_request_throughput(url: str) -> float:
    """Transactions a second of CALLERS tasks, each with its own requests and a connection of its own."""

    own = deque(LoopTransport(Server(url)) for _ in range(CALLERS))
    transports = list(own)

    async def transact() -> None:
        transport = own.popleft()
        [half] = await transport.perform(_calls.halves("orders", [MESSAGE], [f"{time.monotonic_ns()}-{id(transport)}"]))
        [answer] = await transport.perform(_calls.ends("orders", [End(half.id, Outcome.COMMIT)]))
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


def in_turns(rounds: int, **sides: Callable[[], float]) -> dict[str, list[float]]:
    """Each side once in every round, and once to warm up."""
    return {name: values[1:] for name, values in zip(sides, alternate(rounds + 1, *sides.values()), strict=True)}


def measure(url: str, edge_pid: int, api: Api, producer: Producer, single: Producer) -> dict[str, float]:
    tasks = in_turns(
        ROUNDS,
        batched=lambda: asyncio.run(task_throughput(url)),
        unbatched=lambda: asyncio.run(task_throughput(url, batch_max=1)),
        bare=lambda: asyncio.run(own_request_throughput(url)),
    )
    threads = in_turns(
        ROUNDS,
        batched=lambda: throughput(partial(shared, producer)),
        unbatched=lambda: throughput(partial(shared, single)),
        bare=lambda: throughput(partial(bare, api)),
    )
    alone = in_turns(ROUNDS, bare=lambda: latency_ms(partial(bare, api)), batched=lambda: latency_ms(partial(shared, producer)))
    cpu = in_turns(
        ROUNDS,
        bare=lambda: cpu_us(edge_pid, partial(bare, api)),
        batched=lambda: cpu_us(edge_pid, partial(shared, producer)),
    )
    for what, sides in (("tasks, transactions/s", tasks), ("threads, transactions/s", threads), ("one caller, ms", alone),
                        ("threads, CPU µs a transaction", cpu)):  # fmt: skip
        for name, values in sides.items():
            print(f"{what}, {name}: {spread(values)}")
    return {
        "ingest.sdk_batched_over_unbatched": ratio(tasks["batched"], tasks["unbatched"]),
        "ingest.sdk_tasks_over_bare": ratio(tasks["batched"], tasks["bare"]),
        "ingest.sdk_threads_over_unbatched": ratio(threads["batched"], threads["unbatched"]),
        "ingest.sdk_threads_over_bare": ratio(threads["batched"], threads["bare"]),
        "ingest.sdk_one_caller_over_bare": ratio(alone["batched"], alone["bare"]),
        "ingest.sdk_cpu_bare_over_batched": ratio(cpu["bare"], cpu["batched"]),
    }


def main() -> None:
    print(load())
    with (
        scratch() as root,
        edge(root / "data") as (url, edge_pid),
        Api(url) as api,
        Producer(url, "orders") as producer,
        Producer(url, "orders", batch_max=1) as single,
    ):
        report(measure(url, edge_pid, api, producer, single) | background(url))


if __name__ == "__main__":
    main()
