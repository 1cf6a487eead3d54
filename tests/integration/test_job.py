"""The job around the settlement: batch boundaries, checkpoints, damage, rounds over restarts, clock, sinks, the process itself."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from random import Random

import pytest

from escrow.cli import main
from runtime.processes import kill_session, session_members
from runtime.settings import load
from store.guarded_clock import ALERT_FILE
from store.inspect.verify.store import verify
from store.io import disk
from store.io.pages import JobSlot
from store.records import OpKind, State
from streaming.errors import JobStopped
from streaming.settlement.settle import Settler
from streaming.spark.session import make_run_directory
from tests.support.job_world import JobWorld, spoil

# --- batches ----------------------------------------------------------------------------------------------------------


def _play(world: JobWorld, seed: int) -> None:
    """The same history whatever the batches: halves and ends in small portions."""
    chance = Random(seed)
    waiting: list[int] = []
    for n in range(30):
        waiting += world.halves(b"%d-%d" % (n, at) for at in range(chance.randrange(1, 9)))
        chance.shuffle(waiting)
        ended, waiting = waiting[: len(waiting) // 2], waiting[len(waiting) // 2 :]
        world.end_all(ended, OpKind.COMMIT if chance.random() < 0.7 else OpKind.ROLLBACK)
        if chance.random() < 0.3 and world.job is not None:
            world.job.run_batch()


def test_batch_boundaries_do_not_matter(make_world):
    results = []
    for number, flags in enumerate((("maxRecordsPerBatch=3",), ("maxRecordsPerBatch=17",), ())):
        world = make_world(*flags, name=f"world-{number}", start=number < 2)
        _play(world, 4)
        if world.job is None:
            world.start_job()
        world.settle()
        world.assert_gauge()
        results.append((world.queue_bytes(), world.job.store.table.rows_of(0).tobytes(), world.job.store.marker.totals))
        world.stop_job()
    assert results[0] == results[1] == results[2]


def test_a_commit_is_picked_up_without_a_tick(world):
    """The edge's wake alone is enough, and so is none at all: then it takes the source's own look, at most two seconds."""
    half = world.half(b"quick")
    world.commit(half)
    deadline_s = time.monotonic() + 20
    while not world.released() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert world.released() == [b"quick"]


def test_a_dead_ticker_ends_the_job_with_its_reason(make_world):
    world = make_world()

    def fail(_now_ms):
        raise MemoryError("no memory")

    world.job.wants_batch = fail
    world.job.lifecycle.ticker.join(60)
    assert "no memory" in world.job.failure()
    with pytest.raises(JobStopped, match="no memory"):
        world.job.run_batch()
    world.job.lifecycle.error = None  # so that the world can close it in order


def test_a_quiet_stream_is_still_checked(world):
    half = world.half()
    world.settle()
    world.online()
    world.clock.advance(31)  # nobody asks for a batch: the ticker has to
    deadline_s = time.monotonic() + 20
    while not (found := world.requests()) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert found == [half]


def test_an_idle_stream_makes_no_batches(world):
    world.settle()
    batches = world.job.batches
    world.clock.advance(31)
    time.sleep(2.5)
    assert world.job.batches <= batches + 1


# --- damage -----------------------------------------------------------------------------------------------------------


def test_corrupt_frames_are_set_aside_52_56(make_world):
    world = make_world(start=False)
    halves = world.halves(b"body-%d" % n for n in range(6))
    world.end_all(halves[:5], OpKind.COMMIT)
    spoil(world, world.edge.half_queue.read(1, 2)[0])  # the half behind a commit
    spoil(world, world.edge.op_queue.read(3, 4)[0])  # a commit
    world.start_job()
    world.settle()
    assert sorted(world.released()) == [b"body-0", b"body-2", b"body-4"]
    assert world.state(halves[1]) is State.QUARANTINED
    assert world.state(halves[3]) is State.PREPARED  # its commit is lost: check-back will ask
    assert world.metric("escrow_quarantined_total", queue="half") == 1
    assert world.metric("escrow_quarantined_total", queue="op") == 1
    world.commit(halves[5])
    world.settle()
    assert b"body-5" in world.released()
    world.assert_gauge()


# --- Spark's checkpoint does not matter -------------------------------------------------------------------------------


def test_a_checkpoint_that_was_deleted_or_is_older(make_world, monkeypatch, tmp_path):
    """Deleted, a copy from long ago, its own: the store's cursor decides, whatever Spark begins with."""
    begun = _watch_feeds(monkeypatch)
    world = make_world()
    spark_dir, old, total = world.settings.spark_dir, tmp_path / "old", 0
    for step, what in enumerate(("new", "new", "deleted", "older", "its own"), 1):
        following = spark_dir / f"checkpoint-{step}"
        # Before the start, so that one feed may hold both what is settled and what is new.
        world.end_all(world.halves(b"%d" % n for n in range(total, total + 10)), OpKind.COMMIT)
        if step > 1:
            if what == "deleted":
                for left in spark_dir.glob("checkpoint-*"):
                    shutil.rmtree(left)
            elif what == "older":
                shutil.copytree(old, following)
            elif what == "its own":
                shutil.copytree(spark_dir / f"checkpoint-{step - 1}", following)
            begun.clear()
            world.start_job()
        world.settle()
        assert begun[0] < total if what == "older" else begun[0] <= total, "where Spark began, against the store's cursor"
        total += 10
        assert sorted(world.released()) == sorted(b"%d" % n for n in range(total)), what
        totals = world.job.store.marker.totals
        assert (totals["prepares"], totals["commits"], world.job.store.marker.pending) == (total, total, 0), what
        world.assert_gauge()
        world.stop_job()
        if step == 1:
            shutil.copytree(following, old)


def _watch_feeds(monkeypatch) -> list[int]:
    """half_start of every feed that is settled from now on."""
    begun: list[int] = []
    settle = Settler.settle

    def watched(settler, feed, now_ms):
        begun.append(feed.half_start)
        return settle(settler, feed, now_ms)

    monkeypatch.setattr(Settler, "settle", watched)
    return begun


def test_a_checkpoint_newer_than_the_store(world, tmp_path):
    """What lies between would be lost: the batch is refused and the job ends. The next start has a new one and settles all."""
    world.settle()
    world.stop_job()
    kept = ("transaction", "job.checkpoint", "job.published")
    for name in kept:
        _copy(world.settings.store_dir / name, tmp_path / name)
    world.start_job()
    world.end_all(world.halves(b"%d" % n for n in range(10)), OpKind.COMMIT)
    world.settle()
    world.stop_job()
    world.start_job()  # starts at 10
    world.end_all(world.halves(b"%d" % n for n in range(10, 20)), OpKind.COMMIT)
    world.settle()
    world.stop_job()
    for name in kept:  # the job's side of the store as it was: its cursor stands at 0
        _copy(tmp_path / name, world.settings.store_dir / name)
    shutil.copytree(world.settings.spark_dir / "checkpoint-3", world.settings.spark_dir / "checkpoint-4")
    world.start_job()
    with pytest.raises(JobStopped, match="BatchBeyondCursor"):
        world.job.run_batch()
    assert world.job.store.marker.half_cursor == 0
    world.stop_job()
    world.start_job()
    world.settle()
    assert sorted(world.released()) == sorted(b"%d" % n for n in range(20))


def _copy(source: Path, target: Path) -> None:
    if target.is_dir():
        shutil.rmtree(target)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)


def test_the_process_gives_every_start_a_new_checkpoint(tmp_path):
    settings = load(None, [f"dataDir={tmp_path}"], {})
    first = make_run_directory(settings)
    (first / "checkpoint").mkdir()
    (settings.spark_dir / "checkpoint-of-somebody").mkdir()
    second = make_run_directory(settings)
    assert [path.name for path in settings.spark_dir.iterdir()] == [second.name]


# --- rounds over restarts, clock --------------------------------------------------------------------------------------


def test_a_restart_repeats_no_check_55(world):
    halves = list(world.halves(b"%d" % n for n in range(5)))
    world.online()
    assert world.round() == halves
    world.hand_over(halves)
    world.settle()
    round_no = world.job.store.marker.round_no
    for _ in range(3):
        world.stop_job()
        world.clock.advance(5)
        world.start_job()
        world.settle()
        assert world.requests() == []
        assert world.job.store.marker.round_no == round_no  # the interval is counted over the restart
    assert [world.check_count(half) for half in halves] == [1] * 5
    world.online()
    assert world.round(16) == halves


def test_a_crash_in_the_middle_of_a_round_55(world, monkeypatch):
    monkeypatch.setattr("streaming.settlement.settle.ROUND_PART_ROWS", 16)
    monkeypatch.setattr("streaming.settlement.rounds.SLICE_S", 0.0)
    halves = list(world.halves(b"%d" % n for n in range(64)))
    world.settle()
    world.online()
    world.clock.advance(31)
    disk.arm("redo.write", "EIO", nth=4)  # the beginning of the round, two parts of four, and no more
    with pytest.raises(JobStopped, match="Input/output error"):
        world.settle()
    world.stop_job()
    world.start_job()
    emitted = world.job.store.marker.check_end
    assert 0 < emitted < len(halves)
    world.settle()
    assert world.requests() == halves, "each once, those from before the crash too"
    world.hand_over(halves)
    world.settle()
    assert [world.check_count(half) for half in halves] == [1] * 64


def test_a_jump_of_the_clock_stops_discards_until_confirmed(make_world, capsys):
    world = make_world("fileReservedTime=1")
    half = world.half()
    world.settle()
    world.clock.wall_ms += 7_200_000  # the wall clock alone: no time has passed
    world.round()
    assert world.turn_proposals() == []
    assert world.metric("escrow_clock_alert") == 1
    alert = world.settings.data_dir / ALERT_FILE
    assert json.loads(alert.read_text())["drift_ms"] == 7_200_000
    world.stop_job()
    world.start_job()  # a restart does not forget it
    world.round()
    assert world.turn_proposals() == []
    assert main(["clock", "--data", str(world.settings.data_dir)]) == 1
    assert "CLOCK ALERT: the wall clock left the time since boot" in capsys.readouterr().out
    assert main(["clock", "confirm", "--data", str(world.settings.data_dir)]) == 0  # the operator has looked
    world.round()
    assert world.metric("escrow_clock_alert") == 0
    assert world.turn_proposals() == [], "it has not grown older by the jump"
    world.clock.advance(3_600)
    world.round()
    assert world.turn_proposals() == [(half, "ACCEPTED")]


def test_a_round_yields_to_news(make_world, monkeypatch):
    """Parts of one round are spread over batches, and a release does not wait for the last of them."""
    monkeypatch.setattr("streaming.settlement.settle.ROUND_PART_ROWS", 100)
    monkeypatch.setattr("streaming.settlement.rounds.SLICE_S", 0.0)
    world = make_world("outstandingPerGroupMax=100000")
    halves = world.halves(b"%d" % n for n in range(1_500))
    world.settle()
    world.online()
    world.clock.advance(31)
    batches = world.job.batches
    world.commit(world.half(b"meanwhile"))
    world.settle()
    assert sorted(world.requests()) == list(halves)
    assert world.released() == [b"meanwhile"]
    assert world.job.batches - batches >= 15


# --- sinks ------------------------------------------------------------------------------------------------------------


def test_a_failing_sink_holds_nothing_up(world):
    seen = []

    class Broken:
        def applied(self, batch):
            seen.append(batch)
            raise RuntimeError("no")

        def close(self):
            raise RuntimeError("no")

    world.job._sinks.append(("broken", Broken()))
    world.commit(world.half(b"through"))
    world.settle()
    assert world.released() == [b"through"]
    assert world.metric("escrow_sink_errors_total") >= 1
    assert [batch.released for batch in seen if batch.released] == [1]


def test_a_failure_of_the_store_ends_the_job_with_a_reason(world, monkeypatch):
    world.settle()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(world.job.store, "commit", fail)
    world.half()
    with pytest.raises(JobStopped, match="No space left"):
        world.job.run_batch(20)
    assert "No space left" in (world.job.failure() or "")


# --- the process ------------------------------------------------------------------------------------------------------


def test_the_process_from_start_to_sigterm(make_world):
    world = make_world(start=False)
    world.end_all(world.halves(b"%d" % n for n in range(20)), OpKind.COMMIT)
    flags = [word for flag in (*_flags(world), "jobMetricsPort=0") for word in ("--set", flag)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ESCROW_", "PYSPARK", "SPARK"))}
    command = [sys.executable, "-m", "streaming.job", *flags]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean)
    try:
        assert job.stdout is not None
        ready = json.loads(job.stdout.readline())
        assert ready["ready"] is True
        assert len(world.released()) == 20
        with urllib.request.urlopen(f"http://127.0.0.1:{ready['metrics_port']}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        assert 'escrow_settled_total{outcome="commit",via="producer"} 20.0' in text
        second = subprocess.run(command, capture_output=True, text=True, env=clean, timeout=60, check=False)
        assert (second.returncode, second.stdout, second.stderr.count("\n")) == (1, "", 1)
        assert str(job.pid) in second.stderr  # one line, and it names who holds the store
        start_s = time.monotonic()
        job.send_signal(signal.SIGTERM)
        out, err = job.communicate(timeout=30)
        assert time.monotonic() - start_s < 10
        assert (job.returncode, out, err) == (0, "", "")  # and Spark said nothing to the terminal
    finally:
        if job.poll() is None:
            job.kill()
            job.communicate()
    world.start_job()
    assert world.job.store.recovery.clean
    world.stop_job()
    assert not verify(world.settings.store_dir).problems


@pytest.mark.parametrize("moment", ["as soon as it is there", "while batches warm it up"])
def test_a_java_killed_while_the_job_starts(make_world, moment):
    """One line that names it, and exit code 1: the supervisor starts the job again. (2 would say that this is of no use.)"""
    world = make_world(start=False)
    world.half()
    flags = [word for flag in (*_flags(world), "metricsEnable=false") for word in ("--set", flag)]
    job = subprocess.Popen(
        [sys.executable, "-m", "streaming.job", *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        deadline_s = time.monotonic() + 120
        while not (java := _java_of(job.pid)) or (moment.startswith("while") and not _warming(world)):
            assert job.poll() is None, job.communicate()
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        os.kill(java[0], signal.SIGKILL)
        start_s = time.monotonic()
        out, err = job.communicate(timeout=60)
        assert time.monotonic() - start_s < 20
        assert job.returncode == 1, err
        said = [json.loads(line) for line in out.splitlines()]  # it may have been ready: it warms up beside its work
        assert said in (([], [{"ready": True, "metrics_port": 0}]) if moment.startswith("while") else ([],))
        (reason,) = (line for line in err.splitlines() if line.startswith("escrow job: "))  # PySpark may add tracebacks
        assert "the Java side of Spark" in reason
    finally:
        kill_session(job.pid)
        job.wait()


def _java_of(session: int) -> list[int]:
    """Processes of a session that run Spark's Java side (the launcher before it only composes a command line)."""
    found = []
    for pid in session_members(session):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if words[0].endswith(b"java") and b"org.apache.spark.deploy.SparkSubmit" in words:
                found.append(pid)
    return found


def _warming(world: JobWorld) -> bool:
    """Whether the first of the batches that warm Java up is through: it settled the half that lay there."""
    return world.topics().page[JobSlot.HALF_CURSOR] > 0


def _flags(world: JobWorld) -> list[str]:
    return list(world.settings.flags)
