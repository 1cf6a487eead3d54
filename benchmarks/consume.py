"""Benchmarks of consumption: `python -m benchmarks.consume`. The edge core in this process, no transport, the disk of the checkout.

poll+ack      one consumer, 256 messages of 100 bytes an answer, each answer acknowledged in one call before the next poll
shared acks   64 consumers, one message each, acknowledged one by one
tail          reading flushed ops into the tail: commits and messages, many at once and one by one
latency       a commit's acknowledgement, and the same commit in the hands of a poll that waits
"""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

from benchmarks.support import load, report, scratch
from ingest.capabilities import EndRequest
from ingest.consuming.consumption import Consumption
from ingest.consuming.reading.settled_queues import Settled
from ingest.consuming.reading.tail import Tail
from ingest.edge.embedded import Edge
from runtime.settings import load as load_settings
from store.messages import Message
from store.read.readers import LogReader
from store.tables.delivery_cursors import Cursors

COUNT = 100_000
BODY = b"x" * 100


async def open_edge(root: Path) -> Edge:
    flags = [f"dataDir={root}", "commitLogSegmentSize=64MiB", "messagesPerPollMax=4096", "queuesPerTopic=4"]
    edge = Edge(load_settings(None, flags, {}))
    await edge.open()
    return edge


async def fill(edge: Edge, count: int) -> None:
    for start in range(0, count, 4000):
        await edge.send([Message("g", "t", BODY, {"KEYS": f"k{n}"}) for n in range(start, min(count, start + 4000))])
    while edge.consumption.figures()["tail_ops"] < min(count, 262_144):
        await asyncio.sleep(0.01)


async def poll_and_ack(edge: Edge, group: str, count: int, at_once: int) -> float:
    consumption, done = edge.consumption, 0
    started, cpu = time.perf_counter(), time.process_time()
    while done < count:
        got = await consumption.poll("t", group, "me", max_messages=at_once, wait_s=5)
        await consumption.ack("t", group, [message.receipt for message in got])
        done += len(got)
    print(f"    {(time.process_time() - cpu) / count * 1e6:.1f} us of processor time a message, {at_once} an answer")
    return count / (time.perf_counter() - started)


async def shared_acks(edge: Edge, count: int) -> float:
    async def consumer(consumption: Consumption) -> None:
        while got := await consumption.poll("t", "many", "me", max_messages=1):
            await consumption.ack("t", "many", [got[0].receipt])

    await edge.consumption.seek("t", "many", "earliest")
    before, started = edge.consumption.figures(), time.perf_counter()
    consumers = [asyncio.create_task(consumer(edge.consumption)) for _ in range(64)]
    while edge.consumption.figures()["done"] < before["done"] + count and not all(task.done() for task in consumers):
        await asyncio.sleep(0.01)
    took = time.perf_counter() - started
    for task in consumers:
        task.cancel()
    await asyncio.gather(*consumers, return_exceptions=True)
    flushes = edge.consumption.figures()["journal_flushes"] - before["journal_flushes"]
    print(f"    {flushes} flushes for {count} acknowledgements")
    return count / took


def tail_cost(edge: Edge) -> tuple[float, int]:
    """Microseconds of processor time an op, read from the first op on."""
    cursors = Cursors(edge.settings.store_dir / "edge.cursors", writable=True)
    tail = Tail(LogReader(edge.store.directory), Settled(edge.store.directory, cursors, 1))
    tail.look_at_job()
    longest, started = 0.0, time.process_time()
    while True:
        before = time.perf_counter()
        more = tail.look_at_ops()[1]
        longest = max(longest, time.perf_counter() - before)
        if not more:
            break
    took, ops = time.process_time() - started, tail.held_ops
    print(f"    {ops} ops, longest look {longest * 1000:.1f} ms")
    tail.close()
    return took / ops * 1e6, ops


async def latency(edge: Edge, rounds: int) -> dict[str, float]:
    """From the call of `end` to its answer, and to the message in a waiting poll."""
    answered, delivered = [], []
    await edge.consumption.seek("t", "wait", "latest")
    for _ in range(rounds):
        (id,) = await edge.prepare([Message("g", "t", BODY)])
        poll = asyncio.create_task(edge.consumption.poll("t", "wait", "me", wait_s=10))
        await asyncio.sleep(0.002)
        started = time.perf_counter()
        poll.add_done_callback(lambda _, started=started: delivered.append(time.perf_counter() - started))  # type: ignore[misc]
        await edge.end([EndRequest("g", id, "commit")])
        answered.append(time.perf_counter() - started)
        await poll
        await edge.consumption.ack("t", "wait", [message.receipt for message in poll.result()])
    return {
        "commit answered, median ms": statistics.median(answered) * 1000,
        "commit in a consumer's hands, median ms": statistics.median(delivered) * 1000,
        "commit answered, p99 ms": sorted(answered)[int(rounds * 0.99)] * 1000,
        "commit in a consumer's hands, p99 ms": sorted(delivered)[int(rounds * 0.99)] * 1000,
    }


async def commit_tail(root: Path) -> float:
    edge = await open_edge(root)
    for _ in range(10):
        ids = await edge.prepare([Message("g", "t", BODY) for _ in range(4000)])
        await edge.end([EndRequest("g", id, "commit") for id in ids])
    cost, _ = tail_cost(edge)
    await edge.close()
    return cost


async def run() -> None:
    figures: dict[str, float] = {}
    with scratch() as root:
        edge = await open_edge(root)
        await fill(edge, COUNT)
        figures["tail, us per message op of 100 bytes"], _ = tail_cost(edge)
        for at_once in (32, 256):
            figures[f"poll+ack, {at_once} an answer, messages/s"] = await poll_and_ack(edge, f"g{at_once}", COUNT, at_once)
        figures["shared acks, one message each, messages/s"] = await shared_acks(edge, 20_000)
        figures |= await latency(edge, 200)
        await edge.close()
    with scratch() as root:
        figures["tail, us per commit op"] = await commit_tail(root)
    report(figures)


def main() -> None:
    print(load())
    asyncio.run(run())


if __name__ == "__main__":
    main()
