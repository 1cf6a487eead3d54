"""A job without Spark: `python -m tests.support.standin_job --config …`. Settles with the real rules over the real files.

STANDIN, a comma-separated list, makes it misbehave:
    child      starts a process of its own that outlives it, in a process group of its own (as Spark's workers do)
    stubborn   ignores SIGTERM
    slow       stops when a file `go` is in the data directory, not before
    refuse     cannot start: says why, exit code 2
    java       its Java dies at every start: says so, exit code 1
    java-once  … at the first start only
    mute       never gets ready
    brief      ends by itself as soon as it is ready, exit code 3
    full       has no room until a file `room` is in the data directory: says so, exit code 75
    waiting    … says that it waits, and does
    noisy      writes a lot to both outputs
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

from checker.decisions import Tick
from checker.policy import Policy
from runtime.settings import from_arguments
from store.io.wakeup import EDGE_WAKE, JOB_WAKE, Sleeper, Waker
from store.job.store import JobStore
from store.tables.journals.names import Dictionary
from store.tables.presence import Presence
from streaming.settlement.settle import Settler, read_feed


def main() -> int:
    habits = set(os.environ.get("STANDIN", "").split(","))
    if "refuse" in habits:
        print("escrow job: no room for Spark: make some", file=sys.stderr)
        return 2
    if "java" in habits or ("java-once" in habits and first_time()):
        print("the Java side of Spark ended with status -9", file=sys.stderr)
        return 1
    if "full" in habits and not has_room():
        print("escrow job: No space left on device", file=sys.stderr)
        return 75
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN if "stubborn" in habits else lambda *_: stop.set())
    if "child" in habits:
        child = [sys.executable, "-c", "import time; time.sleep(600)"]
        subprocess.Popen(child, process_group=0, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if "waiting" in habits:
        print(json.dumps({"notice": "no room", "waiting": True}), flush=True)
        while not has_room() and not stop.is_set():
            time.sleep(0.01)
        print(json.dumps({"notice": "room again", "waiting": False}), flush=True)
    if "mute" in habits:
        stop.wait()
        return 0
    return settle(habits, stop)


def first_time() -> bool:
    """Whether nobody has asked before, for this data directory."""
    mark = from_arguments().data_dir / "standin.started"
    known = mark.exists()
    mark.touch()
    return not known


def has_room() -> bool:
    return (from_arguments().data_dir / "room").exists()


def settle(habits: set[str], stop: threading.Event) -> int:
    settings = from_arguments()
    root, policy = settings.store_dir, Policy.from_ms(**settings.policy_values())
    with JobStore(root) as job:
        settler, sleeper, waker = Settler(job, policy), Sleeper(root / JOB_WAKE), Waker(root / EDGE_WAKE)
        presence, dictionary = Presence(root / "presence"), Dictionary(root / "dictionary")
        if "noisy" in habits:
            print("x" * 200_000, file=sys.stderr)
            print("out " * 50_000)
        print(json.dumps({"ready": True}), flush=True)
        if "brief" in habits:
            return 3
        round_at_ms = 0
        while not stop.is_set():
            sleeper.wait(0.02)
            now_ms = time.time_ns() // 1_000_000
            feed = read_feed(job.log, job.marker.half_cursor, job.marker.op_cursor)
            settler.settle(feed, now_ms)
            if now_ms >= round_at_ms:
                round_at_ms = now_ms + settings.check_interval_ms
                dictionary.refresh()
                live = presence.live(now_ms, settings.presence_ttl_ms, len(dictionary.groups))
                tick = Tick(now_ms, job.marker.round_no + 1, now_ms, ops_caught_up=True)
                for _ in settler.check_round(tick, live):
                    pass
            job.heartbeat(now_ms)
            waker.wake()
    while "slow" in habits and not (settings.data_dir / "go").exists():
        time.sleep(0.01)
    return 0


if __name__ == "__main__":
    sys.exit(main())
