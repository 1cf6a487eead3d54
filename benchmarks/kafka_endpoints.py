"""Benchmark of endpoints in Kafka mode, with a real broker and no driver: `make bench-kafka`.

kafka.endpoints_2_over_1    ends for each processor-second of an endpoint, two endpoints against one, × 2. Two share the
                            ends as behind a load balancer: each end goes to either. 2 would be: following what the other
                            one has ended costs nothing
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, count

from benchmarks.support import load, report, spread
from tests.support.edge_client import EdgeClient
from tests.support.endpoint import Endpoint
from tests.support.kafka import kafka_cluster
from tests.support.kafka_world import KafkaWorld

TOPIC = "paid"
GROUP = "orders"
PARTITIONS = 4
PREPARED_AT_ONCE = 500
_NUMBERS = count(1)


@contextmanager
def endpoint(world: KafkaWorld) -> Iterator[Endpoint]:
    with Endpoint(world.root / f"edge{next(_NUMBERS)}", *world.flags) as made:
        yield made


def processor_s(endpoints: Sequence[Endpoint]) -> float:
    """Of all their threads."""
    ticks = 0
    for each in endpoints:
        with open(f"/proc/{each.process.pid}/stat") as stat:
            ticks += sum(map(int, stat.read().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


# --- two endpoints against one -------------------------------------------------------------------------------------------------
def requests(endpoints: Sequence[Endpoint], ends: int, batch: int) -> list[bytes]:
    """Bodies of requests that end so many halves, which are prepared first."""
    with EdgeClient(endpoints[0].port) as client:
        message = {"group": GROUP, "topic": TOPIC, "text": "x"}
        pieces = (client.prepare([message] * PREPARED_AT_ONCE) for _ in range(-(-ends // PREPARED_AT_ONCE)))
        ids = list(chain.from_iterable(pieces))[:ends]
    said = [{"group": GROUP, "id": id, "outcome": "commit"} for id in ids]
    return [json.dumps({"ends": said[at : at + batch]}).encode() for at in range(0, ends, batch)]


def post(port: int, todo: list[bytes]) -> None:
    """Until there are none left; others take from the same list."""
    with EdgeClient(port) as client:
        while todo:
            try:
                body = todo.pop()
            except IndexError:
                return
            status, _, said = client.raw("POST", "/v1/ends", body)
            assert status == 200, said[:1000]
            assert said.count(b"accepted") == body.count(b"commit"), said[:1000]


def ends_a_processor_second(endpoints: Sequence[Endpoint], ends: int, batch: int, connections: int) -> float:
    todo = requests(endpoints, ends, batch)
    threads = [threading.Thread(target=post, args=(each.port, todo)) for each in endpoints for _ in range(connections)]
    before_s, began_s = processor_s(endpoints), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not todo, "a client failed"
    used_s, took_s = processor_s(endpoints) - before_s, time.perf_counter() - began_s
    print(f"{len(endpoints)} endpoints: {1e6 * used_s / ends:.1f} us an end; {ends / took_s:.0f} ends/s", flush=True)
    return ends / used_s


def two_over_one(world: KafkaWorld, args: argparse.Namespace) -> list[float]:
    """Each round: one, then two of them."""
    found = list[float]()
    with endpoint(world) as first:
        ends_a_processor_second([first], args.ends // 4, args.batch, args.connections)  # warm
        for _ in range(args.rounds):
            one = ends_a_processor_second([first], args.ends, args.batch, args.connections)
            with endpoint(world) as second:
                both = [first, second]
                ends_a_processor_second(both, args.ends // 4, args.batch, args.connections)
                two = ends_a_processor_second(both, args.ends, args.batch, args.connections)
            found.append(2 * two / one)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka_endpoints")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ends", type=int, default=40_000)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--connections", type=int, default=16)
    args = parser.parse_args()
    print(load())
    with kafka_cluster() as cluster, KafkaWorld(cluster, PARTITIONS, [f"idKeys={'5e' * 32}"]) as world:
        cluster.create_topic(TOPIC, 1)
        ratios = two_over_one(world, args)
    print(load())
    print(f"two over one: {spread(ratios)}")
    report({"kafka.endpoints_2_over_1": statistics.median(ratios)})


if __name__ == "__main__":
    main()
