"""`escrow run` as real processes: start, death of parts, stop, and nothing left behind. The job is tests.support.standin_job."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runtime import supervisor
from runtime.java import java_problem
from store.read.readers import open_readers
from tests.support.supervised import HALF, running, until


def test_start_a_transaction_and_stop(tmp_path):
    with running(tmp_path / "data", habits="child,noisy") as run:
        state = run.ready()
        said = run.said()
        assert f"data in {tmp_path}/data, logs in {tmp_path}/data/logs" in said
        assert f"edge ready on http://127.0.0.1:{state['edge']['port']}" in said
        assert "back it up" in said, "the notice about the new key"
        assert "xxxx" not in said, "the parts' noise stays out of the terminal"
        with run.client() as client:
            a, b = client.prepare([HALF, HALF])
            client.end("g", a, "commit")
            # Nobody says anything about b: it is asked about, and the answer settles it.
            checks = until(lambda: client.poll_checks("g", "m", wait_s=1), "a check request")
            assert [(check["id"], check["body"], check["attempt"]) for check in checks] == [(b, b"hello", 1)]
            assert client.end("g", b, "rollback", from_check=True)["verdict"] == "accepted"
            until(lambda: client.status()["job"]["ops_behind"] == 0, "settled")
        assert len(run.alive()) >= 5, "supervisor, guard, edge, job and its child"
        code, took_s = run.stop()
        assert code == 0, run.said()
        assert took_s < 10
        assert run.alive() == []
        assert run.said().rstrip().endswith("escrow: stopped")
        assert not (run.data / supervisor.STATE_FILE).exists()
        assert "xxxx" in (run.data / "logs" / "job.log").read_text()
    directory, log, topics, _ = open_readers(run.data / "store")
    assert topics is not None
    assert sum(topics.catalogue.extent(key)[1] for key in topics.catalogue.queue_keys()) == 1, "one released, one rolled back"
    assert directory.store_id
    log.close()


def test_no_part_shows_a_secret_in_its_arguments(tmp_path):
    secret = "1f" * 32
    with running(tmp_path / "data", f"idKeys={secret}") as run:
        run.ready()
        lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in run.alive() if pid != run.process.pid}
        assert len(lines) >= 3, "guard, edge and job"
        assert not [line for line in lines.values() if secret.encode() in line]
        assert "set ESCROW_ID_KEYS instead" in run.said()
        with run.client() as client:
            client.prepare([HALF])
    assert not (run.data / "keys" / "ids.keys").exists(), "it was given, and is not made"


def test_a_killed_job_is_started_again(tmp_path):
    with running(tmp_path / "data", habits="child") as run:
        before = run.ready()
        with run.client() as client:
            (id,) = client.prepare([HALF])
            os.kill(before["job"]["pid"], signal.SIGKILL)
            assert client.end("g", id, "commit")["verdict"] == "accepted", "the edge goes on meanwhile"
            after = until(lambda: run.state()["job"]["starts"] == 2 and run.state()["ready"] and run.state(), "the job again")
            until(lambda: client.status()["job"]["ops_behind"] == 0, "settled by the new one")
        assert after["job"]["pid"] != before["job"]["pid"]
        assert after["edge"]["pid"] == before["edge"]["pid"]
        assert "the job died (killed by SIGKILL); starting it again in 0.01 s" in run.said()
        # What the dead one had started is gone as well: supervisor, guard, edge, job, and one child of the living job.
        until(lambda: len(run.alive()) == 5, "no leftovers")
        assert run.stop()[0] == 0
        assert run.alive() == []


def test_a_killed_edge_is_started_again_on_its_port(tmp_path):
    with running(tmp_path / "data") as run:
        before = run.ready()
        with run.client() as client:
            ids = [client.prepare([HALF])[0] for _ in range(5)]
            client.end("g", ids[0], "commit")
        os.kill(before["edge"]["pid"], signal.SIGKILL)
        after = until(lambda: run.state()["edge"]["starts"] == 2 and run.state()["ready"] and run.state(), "the edge again")
        assert after["edge"]["port"] == before["edge"]["port"]
        assert after["job"]["pid"] == before["job"]["pid"]
        with run.client() as client:
            assert [client.end("g", id, "commit")["verdict"] for id in ids] == ["already"] + ["accepted"] * 4
        assert run.stop()[0] == 0


def test_both_killed_again_and_again(tmp_path):
    with running(tmp_path / "data", "restartDeathsMax=100") as run:
        run.ready()
        ids = []
        for number in range(3):
            with run.client() as client:
                ids += client.prepare([HALF])
            state = run.state()
            for part in ("edge", "job"):
                os.kill(state[part]["pid"], signal.SIGKILL)
            until(
                lambda n=number: run.state()["ready"] and min(run.state()[p]["starts"] for p in ("edge", "job")) == n + 2,
                "both again",
            )
        with run.client() as client:
            assert {client.end("g", id, "commit")["verdict"] for id in ids} == {"accepted"}
        assert run.stop()[0] == 0
        assert run.alive() == []


def test_kill_9_of_the_supervisor_takes_everything_along(tmp_path):
    with running(tmp_path / "data", habits="child,stubborn") as run:
        run.ready()
        assert len(run.alive()) >= 5
        run.process.kill()
        run.process.wait()
        until(lambda: run.alive() == [], "nobody left", 10)
    with running(tmp_path / "data") as run:
        run.ready()
        assert run.stop()[0] == 0


def test_a_stubborn_job_is_killed_in_time(tmp_path):
    with running(tmp_path / "data", "stopTimeout=4s", habits="stubborn,child") as run:
        run.ready()
        code, took_s = run.stop()
        assert code == 0
        assert took_s < 4
        assert "the job did not stop within" in run.said()
        assert run.alive() == []


def test_a_second_signal_kills_at_once(tmp_path):
    with running(tmp_path / "data", "stopTimeout=60s", habits="stubborn") as run:
        run.ready()
        run.process.send_signal(signal.SIGINT)
        until(lambda: "stopping" in run.said(), "the first is heard")
        run.process.send_signal(signal.SIGINT)
        run.wait(10)
        assert "stopped; a process had to be killed" in run.said()
        assert run.alive() == []


def test_the_same_stop_told_twice_is_one_stop(tmp_path):
    """A process group gets SIGTERM, and make or a shell passes it on to its child."""
    with running(tmp_path / "data", habits="slow") as run:
        run.ready()
        run.process.send_signal(signal.SIGTERM)
        until(lambda: "stopping" in run.said(), "the first is heard")
        run.process.send_signal(signal.SIGTERM)
        (run.data / "go").touch()
        assert run.wait() == 0
        assert "killing" not in run.said()
        assert run.said().endswith("escrow: stopped\n")
        assert run.alive() == []


def test_make_run_is_stopped_cleanly_by_a_signal_to_its_group(tmp_path):
    with running(tmp_path / "data", habits="slow", by_make=True) as run:
        state = run.ready()
        os.killpg(run.process.pid, signal.SIGTERM)
        until(lambda: "stopping" in run.said(), "it is heard")
        (run.data / "go").touch()
        until(lambda: not Path(f"/proc/{state['supervisor']}").exists(), "the service has stopped")
        assert "killing" not in run.said()
        assert "escrow: stopped\n" in run.said()
        until(lambda: run.alive() == [], "nobody left", 10)


def test_a_signal_during_the_start(tmp_path):
    with running(tmp_path / "data", habits="mute") as run:
        until(lambda: "edge ready" in run.said(), "half started")
        code, took_s = run.stop()
        assert code == 0
        assert took_s < 10
        assert run.alive() == []


def test_quick_deaths_end_the_service_with_a_reason(tmp_path):
    with running(tmp_path / "data", "restartDeathsMax=3", habits="brief") as run:
        assert run.wait() == 2
        said = run.said()
        assert said.count("starting it again") == 2
        assert re.search(r"starting it again in 0.01 s.*starting it again in 0.02 s", said, re.S), "the wait doubles"
        assert f"the job died 3 times in a row, giving up: exit code 3, no reason given; see {run.data}/logs/job.log" in said
        assert run.alive() == []


def test_a_part_that_is_never_ready(tmp_path):
    with running(tmp_path / "data", "startTimeout=1s", "restartDeathsMax=2", habits="mute") as run:
        assert run.wait() == 2
        assert "giving up: it was not ready after 1 s (startTimeout)" in run.said()
        assert run.alive() == []


def test_a_java_killed_during_the_very_first_start_is_started_again(tmp_path):
    with running(tmp_path / "data", habits="java-once") as run:
        state = run.ready()
        assert (state["job"]["starts"], state["edge"]["starts"]) == (2, 1)
        assert "the job died (the Java side of Spark ended with status -9); starting it again in 0.01 s" in run.said()
        assert run.stop()[0] == 0


def test_a_java_that_never_comes_up_ends_the_service_with_a_reason(tmp_path):
    with running(tmp_path / "data", "restartDeathsMax=3", habits="java") as run:
        assert run.wait() == 2
        said = run.said()
        assert said.count("starting it again") == 2
        reason = "the Java side of Spark ended with status -9"
        assert f"the job did not come up 3 times in a row, giving up: {reason}; see {run.data}/logs/job.log" in said
        assert "Traceback" not in said
        assert run.alive() == []


def test_a_job_killed_before_it_was_ever_ready_is_started_again(tmp_path):
    with running(tmp_path / "data", habits="mute") as run:
        first = until(lambda: run.state()["job"]["pid"], "the job's process")
        os.kill(first, signal.SIGKILL)
        until(lambda: run.state()["job"]["pid"] not in (0, first), "another one")
        assert "the job died (killed by SIGKILL); starting it again" in run.said()
        assert run.stop()[0] == 0


def test_a_job_without_room_is_started_again_however_often(tmp_path):
    with running(tmp_path / "data", "restartDeathsMax=2", "restartBackoffMax=50ms", habits="full") as run:
        until(lambda: run.state()["job"]["starts"] >= 6, "more starts than deaths are allowed")
        with run.client() as client:
            (id,) = client.prepare([HALF])
        (run.data / "room").touch()
        run.ready()
        assert "the job died (No space left on device); starting it again" in run.said()
        with run.client() as client:
            assert client.end("g", id, "commit")["verdict"] == "accepted"
        assert run.stop()[0] == 0


def test_the_start_timeout_does_not_count_while_a_job_waits_for_room(tmp_path):
    with running(tmp_path / "data", "startTimeout=6s", "restartDeathsMax=1", habits="waiting") as run:
        until(lambda: "job: no room" in run.said(), "it says so")
        begun_s = time.monotonic()
        until(lambda: time.monotonic() > begun_s + 7, "longer than it has to start")
        assert run.process.poll() is None, run.said()
        (run.data / "room").touch()
        assert run.ready()["job"]["starts"] == 1
        assert run.said().count("no room") == 1
        assert run.stop()[0] == 0


# --- cannot start: one line, exit code 2, nothing left ---
def cannot_start(data, *flags, **rest):
    with running(data, *flags, **rest) as run:
        assert run.wait() == 2, run.said()
        assert "Traceback" not in run.said()
        assert run.alive() == []
        return run.said()


def test_a_job_that_cannot_start_says_why(tmp_path):
    said = cannot_start(tmp_path / "data", habits="refuse")
    assert "escrow: the job cannot start: no room for Spark: make some\n" in said


def test_a_job_that_does_not_exist(tmp_path):
    assert "the job cannot start: " in cannot_start(tmp_path / "data", job="tests.support.no_such_job")


def test_port_in_use(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = cannot_start(tmp_path / "data", f"listenPort={taken.getsockname()[1]}")
    assert "escrow: the edge cannot start: 127.0.0.1:" in said
    assert "Address already in use" in said


def test_data_directory_in_use(tmp_path):
    with running(tmp_path / "data") as run:
        state = run.ready()
        said = cannot_start(tmp_path / "data")
        assert f"process {run.process.pid} runs Escrow with this data directory; stop it first" in said
        assert run.state() == state, "the one that runs is not disturbed"
        with run.client() as client:
            client.prepare([HALF])
        assert run.stop()[0] == 0


def test_bad_settings_start_nothing(tmp_path):
    said = cannot_start(tmp_path / "data", "transactionCheckMax=0")
    assert said.startswith("escrow: flag --set: transactionCheckMax: '0' is less than 1")
    assert said.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_a_probable_mistake_of_unit_is_a_warning_and_no_more(tmp_path):
    with running(tmp_path / "data", "transactionTimeOut=6") as run:
        run.ready()
        warning = "escrow: warning: flag --set: transactionTimeOut: '6' is 6 milliseconds"
        assert run.said().startswith(warning)
        assert run.said().count("warning") == 1
        assert run.stop()[0] == 0


def test_a_data_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    assert "choose another dataDir" in cannot_start(tmp_path / "file" / "data")


# --- what the machine lacks ---
def test_java_missing_is_said_with_the_remedy(tmp_path):
    assert re.search("no java was found.*apt install openjdk-17", java_problem({"PATH": str(tmp_path)}))
    assert "cannot be run" in java_problem({"JAVA_HOME": str(tmp_path)})


@pytest.mark.parametrize(
    ("says", "problem"),
    [
        ('openjdk version "17.0.15"', ""),
        ('java version "21"', ""),
        ('java version "1.8.0_402"', "Java 8, too old"),
        ("?", "does not tell"),
    ],
)
def test_java_versions(tmp_path, says, problem):
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    assert problem in java_problem({"PATH": str(tmp_path)})
    assert bool(java_problem({"PATH": str(tmp_path)})) == bool(problem)


def test_a_look_at_java_that_was_killed_is_repeated(tmp_path):
    java, mark = tmp_path / "java", tmp_path / "looked"
    java.write_text(f"#!/bin/sh\n[ -e {mark} ] || {{ : > {mark}; kill -9 $$; }}\necho 'openjdk version \"17.0.15\"' >&2\n")
    java.chmod(0o755)
    assert java_problem({"PATH": str(tmp_path)}) == ""
    assert mark.exists()


def test_without_java_nothing_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: True)
    monkeypatch.setattr(os, "environ", {"PATH": str(tmp_path)})
    from runtime.settings import load

    said: list[str] = []
    assert supervisor.run(load(None, [f"dataDir={tmp_path}/data"], {}), say=said.append) == 2
    assert len(said) == 1
    assert "java" in said[0]
    assert not (tmp_path / "data").exists()


def test_no_activated_environment_is_needed(tmp_path):
    with running(tmp_path / "data", PATH="/usr/bin:/bin", VIRTUAL_ENV="") as run:
        run.ready()
        assert run.stop()[0] == 0


def test_logs_are_rotated(tmp_path):
    with running(tmp_path / "data", "logFileSize=4KiB", "logFiles=2", habits="noisy") as run:
        run.ready()
        assert run.stop()[0] == 0
    assert sorted(file.name for file in (tmp_path / "data" / "logs").glob("job*")) == ["job.log", "job.log.1", "job.log.2"]


def test_the_command_of_the_environment_works(tmp_path):
    """The installed script, not only python -m escrow."""
    script = Path(sys.executable).parent / "escrow"
    if not script.exists():
        script = Path(shutil.which("escrow") or pytest.skip("not installed"))
    told = subprocess.run([script, "run", "--help"], capture_output=True, text=True, check=True)
    assert "--config" in told.stdout
