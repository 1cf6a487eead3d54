"""What the driver of Kafka mode costs, without Kafka and Spark: `python -m benchmarks.kafka_scale`. docs/scale.md uses the figures.

One shard, batches of `--batch` transactions (a half and its commit each), through everything that the driver does with them:
columns unpacked, matched, redo entries packed for the task, entries read back and unpacked, rows applied.

    kafka.driver_us_per_transaction      CPU time of the driver's Python
    kafka.driver_bytes_per_transaction   what crosses its network: metadata in, redo entries out and in again
    kafka.drivers_for_1m                 drivers for 1,000,000 transactions/s, each using one core at 70 %
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.support import load, report, scratch
from checker.policy import Policy
from sinks.kafka import redo
from store.job.batch import Batch
from store.job.shard import ShardStore
from store.records import HALF, OP, OpKind
from store.tables.redo_log import Marker
from store.tables.state_table import StateTable
from streaming.kafka.reading.records import Piece, _packed, _unpacked, joined
from streaming.settlement.settle import Feed, Settler

NOW_MS = 1_900_000_000_000
USED: float = 0.7


class LoopedShard:
    """A shard whose redo partition is a variable: packed and unpacked as for Kafka, and counted."""

    def __init__(self, store: ShardStore) -> None:
        self.store, self.bytes = store, 0

    @property
    def marker(self) -> Marker:
        return self.store.marker

    @property
    def table(self) -> StateTable:
        return self.store.table

    def batch(self, **cursors: int) -> Batch:
        return self.store.batch(**cursors)

    def commit(self, batch: Batch) -> None:
        packed = redo.pack_entries(batch.entries)
        names = self.store.names_for(batch.entries)
        records = list(redo.batch_records(batch.entries, batch.marker, 1, names, {}, next_group=self.store.next_group))
        self.bytes += len(packed) + sum(len(value) for _, value in records)
        entries = np.concatenate([redo.unpack_entries(value) for ((_, kind),), value in records if kind == redo.ENTRIES])
        self.store.apply(entries, batch.marker, names, (), batch.marker.sequence, next_group=self.store.next_group)


def columns(first: int, count: int) -> tuple[bytes, bytes]:
    """Metadata of `count` halves and their commits, as an executor packs it."""
    halves, ops = np.zeros(count, HALF), np.zeros(count, OP)
    halves["half_offset"] = halves["commit_log_offset"] = ops["half_offset"] = ops["op_offset"] = np.arange(first, first + count)
    halves["size_bytes"] = ops["size_bytes"] = 1024
    halves["stored_at_s"], ops["stored_at_ms"] = NOW_MS // 1000, NOW_MS + np.arange(count) // 100
    ops["kind"], ops["position"] = int(OpKind.COMMIT), -1
    return _packed(halves), _packed(ops)


def run(root: Path, batch: int, batches: int) -> tuple[float, float]:
    """(CPU seconds, bytes) of the driver for batch × batches transactions."""
    shard: Any = LoopedShard(ShardStore(root, 2_000_000))
    settler, taken, spent_s = Settler(shard, Policy()), 0, 0.0
    for number in range(batches):
        packed = columns(number * batch, batch)
        taken += sum(map(len, packed))
        started_s = time.process_time()
        halves = joined([Piece(["orders"], _unpacked(packed[0], HALF))], shard.store.group_no, HALF, "half_offset")
        ops = joined([Piece(["orders"], _unpacked(packed[1], OP))], shard.store.known_group, OP, "op_offset")
        marker = shard.marker
        stop = (number + 1) * batch
        settler.settle(Feed(marker.half_cursor, stop, marker.op_cursor, stop, halves, ops), NOW_MS)
        spent_s += time.process_time() - started_s
    shard.store.close()
    return spent_s, shard.bytes + taken


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka_scale")
    parser.add_argument("--batch", type=int, default=100_000)
    parser.add_argument("--batches", type=int, default=20)
    args = parser.parse_args()
    print(load())
    with scratch() as root:
        run(root / "warm", args.batch, 2)
        spent_s, crossed = run(root / "measured", args.batch, args.batches)
    count = args.batch * args.batches
    each_us = spent_s / count * 1e6
    report(
        {
            "kafka.driver_us_per_transaction": each_us,
            "kafka.driver_bytes_per_transaction": crossed / count,
            "kafka.drivers_for_1m": math.ceil(each_us / USED),
        }
    )


if __name__ == "__main__":
    main()
