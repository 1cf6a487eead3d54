"""Real job processes, each with its own Spark, killed at a failpoint in the middle of a release; then the job goes on.

Starting Spark takes most of the time, so the doomed jobs run side by side, each over a store of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest

from runtime.processes import kill_session
from store.inspect.verify.store import verify
from store.records import State
from store.tables.ends import Verdict
from tests.support.job_world import JobWorld

#: Where the batch dies → how many ops the redo log holds then (a kill loses no page: what was written is there, flushed or not).
POINTS = {
    "redo.write=torn": 0,  # 54: half of the record is there
    "redo.flush=kill": 2,  # 54: written, not flushed
    "apply.queues=kill": 2,  # 53: durable, the rows say so, nothing is in the topic
    "apply.queues=kill-after": 2,  # 53: in the topic, but nothing is published and no checkpoint knows of it
}


def _spawn(world: JobWorld, failpoint: str) -> subprocess.Popen[str]:
    """`python -m streaming.job` over the world's store, in a session of its own."""
    settings = (*world.settings.flags, "metricsEnable=false", "sparkDriverMemory=512MiB")
    flags = [word for flag in settings for word in ("--set", flag)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ESCROW_", "PYSPARK", "SPARK"))}
    return subprocess.Popen(
        [sys.executable, "-m", "streaming.job", *flags], env={**clean, "ESCROW_FAILPOINT": failpoint},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def _run_until_dead(worlds: Sequence[JobWorld]) -> None:
    jobs = [_spawn(world, failpoint) for world, failpoint in zip(worlds, POINTS, strict=True)]
    try:
        for job, failpoint in zip(jobs, POINTS, strict=True):
            out, err = job.communicate(timeout=240)
            assert (job.returncode, out) == (-signal.SIGKILL, ""), f"{failpoint}: {err}"
    finally:
        for job in jobs:
            kill_session(job.pid)
            job.wait()


@pytest.mark.timeout(600)
def test_a_job_killed_around_the_release_53_54(make_world):
    worlds = [make_world(name=failpoint, start=False) for failpoint in POINTS]
    for world in worlds:
        for body in (b"once", b"never", b"pending"):
            world.half(body)
        world.commit(0)
        world.rollback(1)
    _run_until_dead(worlds)
    for world, settled in zip(worlds, POINTS.values(), strict=True):
        assert world.released() == [], "nothing is visible before it is published"
        world.start_job()
        assert not world.job.store.recovery.clean
        assert world.job.store.marker.op_cursor == settled, "the redo record alone brings it back, without Spark"
        world.settle()
        world.settle()
        assert world.released() == [b"once"]
        assert [world.state(half) for half in range(3)] == [State.COMMITTED, State.ROLLED_BACK, State.PREPARED]
        assert world.job.store.marker.totals["commits"] == 1
        world.assert_gauge()
        assert world.commit(0).verdict is Verdict.ALREADY
        world.stop_job()
        assert not verify(world.settings.store_dir).problems
