"""Benchmarks of many names: `python -m benchmarks.many`. 20,000 topics, 10,000 consumer groups, the disk of the checkout.

open        edge core and job's store, each opened in a process of its own: seconds, memory and descriptors, beside an empty store
start       the whole service until it is ready, Spark included, beside an empty store (`--service`; minutes)
release     one batch of 100,000 messages over 40,000 queues, into the redo log and the queues: their first files, then once more
lists       the list of topics, the figures, and the look at the job that consumption takes several times a second
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.support import alternate, load, private_mib, ratio, report, scratch, spread
from ingest.edge.embedded import Edge
from runtime.settings import load as load_settings
from store.edge.store import EdgeStore
from store.io.descriptors import raise_file_limit
from store.job.store import JobStore
from store.messages import Message
from store.records import QUEUE_OFFSET_BITS, queue_key
from store.tables.journals.consumers import ConsumerKind, ConsumerRecord, Consumers

TOPICS, GROUPS, QUEUES = 20_000, 10_000, 2
RELEASED, BATCH = 100_000, 2_000
NOW_MS = 1_800_000_000_000
FLAGS = ("commitLogSegmentSize=64MiB", f"queuesPerTopic={QUEUES}", "listenPort=0", "jobMetricsPort=0")


def settings_of(root: Path) -> Any:
    return load_settings(None, [f"dataDir={root}", *FLAGS], {})


def make(root: Path, topics: int, groups: int) -> float:
    """A store with so many topics, a message in each queue, and groups that have read some. Seconds that the names took."""
    asyncio.run(_open_once(root))
    store = settings_of(root).store_dir
    with EdgeStore(store) as edge:
        began = time.perf_counter()
        for first in range(0, topics, BATCH):
            edge.dictionary.add_names((), [f"topic-{number}" for number in range(first, min(topics, first + BATCH))])
        took = time.perf_counter() - began
        edge.dictionary.add_names([f"group-{number}" for number in range(groups)], ())
        for first in range(0, topics, BATCH):
            numbers = range(first, min(topics, first + BATCH))
            messages = [Message("g", f"topic-{n}", b"x", queue_id=queue) for n in numbers for queue in range(QUEUES)]
            edge.wait(edge.append_messages(messages, NOW_MS).ticket)
        with JobStore(store) as job:
            settle(job, edge.op_end)
    offsets = [
        ConsumerRecord(ConsumerKind.OFFSET, number + 1, queue_key(number % max(topics, 1), 0), 1) for number in range(groups)
    ]
    if offsets:
        consumers = Consumers(store / "consumers", writable=True)
        consumers.write(offsets)
        consumers.close()
    return took


async def _open_once(root: Path) -> None:
    edge = Edge(settings_of(root))
    await edge.open()
    await edge.close()


def settle(job: JobStore, op_end: int) -> float:
    """Release the messages up to this op in one batch; milliseconds."""
    ops = job.log.ops(job.marker.op_cursor, op_end)
    began = time.perf_counter()
    batch = job.batch(half_cursor=job.marker.half_cursor, op_cursor=op_end, now_ms=NOW_MS)
    messages = ops[ops["position"] >= 0]
    sizes = job.log.op_queue.gather(messages["op_offset"])["size_bytes"]
    batch.messages(messages["op_offset"], sizes, messages["position"])
    job.commit(batch)
    return (time.perf_counter() - began) * 1000


# --- in a process of its own ----------------------------------------------------------------------------------------------------
async def _look_at_edge(root: Path) -> dict[str, float]:
    before, began = private_mib(), time.perf_counter()
    edge = Edge(settings_of(root))
    await edge.open()
    found = {"open_s": time.perf_counter() - began, "memory_mib": private_mib() - before}
    found["descriptors"] = len(os.listdir("/proc/self/fd"))
    for name, work in (
        ("list_ms", edge.operations.overview.topics),
        ("figures_ms", edge.consumption.figures),
        ("look_ms", edge.consumption.look),
    ):
        found[name] = statistics.median(_milliseconds(work) for _ in range(5))
    await edge.close()
    return found


def _milliseconds(work: Any) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def _look_at_job(root: Path) -> dict[str, float]:
    before, began = private_mib(), time.perf_counter()
    job = JobStore(settings_of(root).store_dir)
    found = {"open_s": time.perf_counter() - began, "memory_mib": private_mib() - before}
    found["descriptors"] = len(os.listdir("/proc/self/fd"))
    job.close()
    return found


def looked(side: str, root: Path) -> dict[str, float]:
    said = subprocess.run(
        [sys.executable, "-m", "benchmarks.many", "--look", side, str(root)], capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(said.stdout.splitlines()[-1])
    return found


# --- what is measured -------------------------------------------------------------------------------------------------------------
def opened(many: Path, empty: Path) -> dict[str, float]:
    figures: dict[str, float] = {}
    for side in ("edge", "job"):
        rounds = [(looked(side, many), looked(side, empty)) for _ in range(3)]
        mine = {name: statistics.median(one[name] for one, _ in rounds) for name in rounds[0][0]}
        figures |= {f"many.{side}_{name}": value for name, value in mine.items()}
        figures[f"many.{side}_open_s_over_empty"] = ratio([one["open_s"] for one, _ in rounds], [e["open_s"] for _, e in rounds])
    return figures


def release(root: Path) -> dict[str, float]:
    """100,000 messages over all queues; once into queues that are new, once into files that are there."""
    with EdgeStore(root, default_queues=QUEUES) as edge, JobStore(root) as job:
        took = []
        for _ in range(4):
            places = np.random.default_rng(1).permutation(np.arange(RELEASED) % (TOPICS * QUEUES))
            for first in range(0, RELEASED, 4000):
                chosen = places[first : first + 4000].tolist()
                messages = [Message("g", f"t{at // QUEUES}", b"x", queue_id=at % QUEUES) for at in chosen]
                edge.wait(edge.append_messages(messages, NOW_MS).ticket)
            took.append(settle(job, edge.op_end))
        began = time.perf_counter()
        job.checkpoint()
        checkpoint_ms = (time.perf_counter() - began) * 1000
        assert len(job.catalogue.queue_keys()) == TOPICS * QUEUES
        assert max(job.catalogue.queue_keys()) << QUEUE_OFFSET_BITS > 0
        descriptors = len(os.listdir("/proc/self/fd"))
    print(f"    first {took[0]:.0f} ms, then {spread(took[1:])}; a checkpoint after it {checkpoint_ms:.0f} ms")
    return {
        "many.release_100k_to_40k_queues_ms": statistics.median(took[1:]),
        "many.release_first_files_ms": took[0],
        "many.release_checkpoint_ms": checkpoint_ms,
        "many.release_descriptors": descriptors,
    }


def started(root: Path) -> float:
    """Seconds until the whole service is ready."""
    flags = [part for flag in FLAGS for part in ("--set", flag)]
    state, began = root / "supervisor.json", time.perf_counter()
    state.unlink(missing_ok=True)
    with (root / "bench.log").open("w") as log:
        service = subprocess.Popen([sys.executable, "-m", "escrow", "run", "--data", str(root), *flags], stdout=log, stderr=log)
        try:
            while not (state.exists() and json.loads(state.read_text() or "{}").get("ready")):
                if service.poll() is not None:
                    raise RuntimeError((root / "bench.log").read_text()[-2000:])
                time.sleep(0.05)
            return time.perf_counter() - began
        finally:
            if service.poll() is None:
                service.send_signal(signal.SIGTERM)
            service.wait(120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--look", nargs=2, metavar=("SIDE", "ROOT"), help=argparse.SUPPRESS)
    parser.add_argument("--service", action="store_true", help="start the whole service too, Spark included")
    args = parser.parse_args()
    raise_file_limit()
    if args.look:
        side, root = args.look[0], Path(args.look[1])
        print(json.dumps(asyncio.run(_look_at_edge(root)) if side == "edge" else _look_at_job(root)))
        return
    with scratch() as place:
        many, empty, figures = place / "many", place / "empty", dict[str, float]()
        names_s = make(many, TOPICS, GROUPS)
        make(empty, 0, 0)
        figures["many.names_per_s"] = TOPICS / names_s
        figures |= opened(many, empty)
        figures |= release(place / "release")
        if args.service:
            ours, bare = alternate(3, lambda: started(many), lambda: started(empty))
            print(f"    service: {spread(ours)}; empty: {spread(bare)}")
            figures["many.start_s_over_empty"] = ratio(ours, bare)
        print(f"    {TOPICS:,} topics of {QUEUES} queues, {GROUPS:,} groups; {load()}")
        report(figures)


if __name__ == "__main__":
    main()
