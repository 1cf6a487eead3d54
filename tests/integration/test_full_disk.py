"""A full disk under the job: it waits, says so, and goes on by itself; the edge answers meanwhile."""

from __future__ import annotations

import json
import shutil
import threading
import time
import urllib.request
from contextlib import closing, suppress

import pytest

from store.io import disk
from store.io.pages import JobSlot
from store.read.readers import open_readers
from store.records import OpKind
from tests.support.edge_client import RemoteError
from tests.support.job_world import JobWorld
from tests.support.mount import mounted
from tests.support.supervised import running, until

#: Spark starts slowly where many others are at work.
PATIENCE_S = 400.0


@pytest.fixture(autouse=True)
def _disarmed():
    yield
    disk.arm(None)


@pytest.mark.parametrize("point", ["redo.create", "queue.create", "job.round.replace"])
def test_a_job_that_finds_no_room_goes_on_in_the_same_process(tmp_path, spark, point):
    with closing(JobWorld(tmp_path, spark, ["transactionCheckInterval=1s", "transactionTimeOut=1s"])) as world:
        world.settle()
        disk.arm(point, "ENOSPC", disk.EVERY_PASS)
        halves = [half for _ in range(30) for half in world.halves([b"x"] * 40)]
        world.end_all(halves, OpKind.COMMIT)
        world.half(b"pending")
        world.clock.advance(5)
        page = world.job.store.page
        world.job.tick()
        until(lambda: page[JobSlot.NO_ROOM_SINCE_MS] > 0, "it says that it waits")
        assert world.job.failure() is None
        disk.arm(None)
        world.settle()
        assert page[JobSlot.NO_ROOM_SINCE_MS] == 0
        assert (world.job.store.marker.totals["commits"], world.job.store.marker.pending) == (len(halves), 1)


def test_a_job_that_waits_for_room_stops_when_asked(tmp_path, spark):
    world = JobWorld(tmp_path, spark)
    world.settle()
    disk.arm("redo.create", "ENOSPC", disk.EVERY_PASS)
    halves = [half for _ in range(30) for half in world.halves([b"x"] * 40)]
    world.job.tick()
    until(lambda: world.job.store.page[JobSlot.NO_ROOM_SINCE_MS] > 0, "it waits")
    stopper = threading.Thread(target=world.stop_job)
    stopper.start()
    stopper.join(30)
    assert not stopper.is_alive()
    disk.arm(None)
    world.start_job()
    world.settle()
    assert world.job.store.marker.pending == len(halves)
    world.close()


def test_a_really_full_disk_under_the_whole_service(tmp_path):
    """Edge, job and Spark's own files on one small disk that is filled to the last byte while they work."""
    with mounted(tmp_path / "mounted", "160m") as mount:
        data, ballast = mount.path / "data", mount.path / "ballast"
        with running(data, "restartDeathsMax=2", "restartBackoffMax=1s", "startTimeout=10m", job="streaming.job") as run:
            until(lambda: run.state()["ready"], "Spark has started", PATIENCE_S)
            sent, refused = list[str](), list[tuple[int, bool]]()
            send(run, 20, sent)
            with ballast.open("wb") as file, suppress(OSError):
                while True:
                    file.write(bytes(1 << 16))
            give_up_s = time.monotonic() + PATIENCE_S
            # The edge may be the first to need room: it refuses everything then, and nothing comes to the job to wait for.
            while not (waits := ready(run)["job"]["state"] == "no_room") and len(refused) < 100 and time.monotonic() < give_up_s:
                try:
                    send(run, 20, sent)
                except RemoteError as error:
                    refused.append((error.status, "disk is full" in str(error)))
            assert set(refused) <= {(503, True)}
            assert waits or refused, run.said()
            assert run.process.poll() is None
            assert not waits or "no room" in run.said()
            ballast.unlink()
            until(lambda: ready(run)["job"]["state"] == "running", "it goes on by itself", PATIENCE_S)
            send(run, 20, sent)
            until(
                lambda: ready(run)["job"] == {"state": "running", "halves_behind": 0, "ops_behind": 0}, "all is settled", PATIENCE_S
            )
            assert run.state()["edge"]["starts"] == 1, "the edge answered all the time"
            assert run.stop()[0] == 0
        _, log, topics, _ = open_readers(data / "store")
        assert topics is not None
        assert topics.page[JobSlot.TOTALS + 2] == len(sent), "commits"
        topics.close()
        log.close()
        assert shutil.disk_usage(mount.path).free > 0


def send(run, count, sent):
    """Transactions, prepared and committed; what was acknowledged goes to `sent`, one by one: the disk may be full in between."""
    with run.client() as client:
        for id in client.prepare([{"group": "g", "topic": "t", "text": "x" * 2000}] * count):
            if client.end("g", id, "commit")["verdict"] in ("accepted", "already"):
                sent.append(id)


def ready(run):
    with urllib.request.urlopen(f"http://127.0.0.1:{run.state()['edge']['port']}/readyz", timeout=10) as answer:
        return json.load(answer)
