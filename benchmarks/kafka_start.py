"""Benchmark of an endpoint's start in Kafka mode, with a real broker and no driver: `make bench-kafka`.

kafka.endpoint_start_s    from the start of the process to ready, with `--ops` ops in the op topic. All but the last
                          `--since` are in a checkpoint: the endpoint that wrote it was killed

The ops are ends as endpoints write them, one a half, sealed. Halves are there by number only: an endpoint does not read a half
whose end is sealed. The first start has no checkpoint and reads all ops; its time is printed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from itertools import count
from multiprocessing import get_context
from typing import Any

from confluent_kafka import Producer

from benchmarks.support import load, report, spread
from ingest.kafka.records.places import Place
from ingest.kafka.records.sealing import PlaceSealer
from sinks.kafka.contract import op_headers
from store.records import OpKind, Via
from tests.support.edge_client import EdgeClient
from tests.support.endpoint import Endpoint
from tests.support.kafka import kafka_cluster
from tests.support.kafka_world import KafkaWorld

GROUP = "orders"
KEY = "5e" * 32
PARTITIONS = 4
AT_ONCE = 10_000
#: The first start may take long: it reads every op.
PATIENCE = "startTimeout=1h"
_NUMBERS = count(1)


def producer(bootstrap: str) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "1",
            "compression.type": "lz4",
            "linger.ms": 50,
            "batch.num.messages": AT_ONCE,
            "queue.buffering.max.messages": 10 * AT_ONCE,
        }
    )


def runs(start: int, stop: int) -> Iterator[range]:
    for at in range(start, stop, AT_ONCE):
        yield range(at, min(at + AT_ONCE, stop))


def write(bootstrap: str, world: tuple[str, str], partition: int, start: int, stop: int) -> None:
    """Halves of this partition from `start` on, and the end of each."""
    (half, op), client = world, producer(bootstrap)
    sealer = PlaceSealer([bytes.fromhex(KEY)], half)
    for run in runs(start, stop):
        client.produce_batch(half, [{"value": b""} for _ in run], partition)
        client.flush(600)
        for offset in run:
            id = sealer.seal(Place(partition, offset), GROUP)
            kind = OpKind.ROLLBACK if offset % 10 == 0 else OpKind.COMMIT
            headers: list[Any] = list(op_headers(kind, offset, GROUP, via=Via.PRODUCER, remark="", id=id))
            client.produce(op, b"", b"bencher!" + offset.to_bytes(8, "big"), partition, headers=headers)
        client.flush(600)


def write_all(world: KafkaWorld, start: int, stop: int, writers: int) -> None:
    began_s = time.perf_counter()
    with get_context("spawn").Pool(writers) as pool:
        todo = [(world.cluster.bootstrap, (world.half, world.op), partition, start, stop) for partition in range(PARTITIONS)]
        pool.starmap(write, todo, chunksize=1)
    print(f"{PARTITIONS * (stop - start)} halves and ends written in {time.perf_counter() - began_s:.0f} s", flush=True)


def started_s(world: KafkaWorld, flags: list[str], *, kept: bool = False) -> float:
    """`kept`: until a checkpoint holds all ops. Killed afterwards, so that it writes no other one."""
    began_s = time.perf_counter()
    with Endpoint(world.root / f"edge{next(_NUMBERS)}", *world.flags, *flags) as made, EdgeClient(made.port) as client:
        took_s, of = time.perf_counter() - began_s, client.status()["kafka"]
        print(f"ready after {took_s:.2f} s, {sum(of['ops_read'].values())} ops read, {load()}", flush=True)
        while kept and client.status()["kafka"]["checkpoints"]["ops_since"]:
            time.sleep(0.2)
    return took_s


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka_start")
    parser.add_argument("--ops", type=int, default=20_000_000)
    parser.add_argument("--since", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--writers", type=int, default=2)
    args = parser.parse_args()
    before, all_of_them = (args.ops - args.since) // PARTITIONS, args.ops // PARTITIONS
    print(load())
    with kafka_cluster() as cluster, KafkaWorld(cluster, PARTITIONS, [f"idKeys={KEY}", PATIENCE]) as world:
        started_s(world, [])  # makes the topics
        write_all(world, 0, before, args.writers)
        started_s(world, ["kafkaCheckpointInterval=1s"], kept=True)
        write_all(world, before, all_of_them, args.writers)
        found = [started_s(world, ["kafkaCheckpointInterval=1h"]) for _ in range(args.rounds)]
    print(load())
    print(f"start: {spread(found)}")
    report({"kafka.endpoint_start_s": statistics.median(found)})


if __name__ == "__main__":
    main()
