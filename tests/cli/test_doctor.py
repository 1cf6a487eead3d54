"""`escrow doctor`: what is wrong is found, named and explained; what is right is left alone."""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import contextmanager

import pytest

from ingest.ids import load_keys
from runtime.commands.checkup import Level
from runtime.commands.checkup.network import broker
from store.edge.store import EdgeStore
from tests.support.distributions import installer
from tests.support.service import SMALLEST

#: Ports that nobody needs, so that what else runs on this machine is no matter.
QUIET = ("--set", "listenPort=0", "--set", "jobMetricsPort=0")


@pytest.fixture
def doctor(alone):
    """(finding by what, exit code) of a look."""

    def look(*args, code=0, **variables):
        [told] = alone.json("doctor", "--data", "data", *QUIET, *args, code=code, **variables)
        assert told["ok"] == (code == 0)
        found: dict[str, list[dict[str, str]]] = {}
        for each in told["findings"]:
            found.setdefault(each["what"], []).append(each)
            assert each["level"] == "ok" or each["remedy"], each
        return found

    return look


def worst(found, what):
    [bad] = [each for each in found[what] if each["level"] != "ok"]
    return bad["level"], bad["says"] + " | " + bad["remedy"]


def test_a_fresh_machine_is_fine_and_nothing_is_left_behind(doctor, alone):
    found = doctor()
    assert {each["level"] for what in ("Python", "packages", "Java", "data directory", "id keys") for each in found[what]} == {"ok"}
    assert "fdatasync" not in str(found)
    assert os.listdir(alone.cwd) == []


def test_words_for_people(alone):
    out = alone("doctor", "--data", "data", *QUIET)
    assert "ok   Java           openjdk" in out
    assert out.splitlines()[-1].startswith("no problems, ")
    assert "ok   Java" not in alone("doctor", "--quiet", "--data", "data", *QUIET)


def test_settings_that_are_wrong(doctor, alone):
    (alone.cwd / "bad.toml").write_text('transactionTimeOut = "6 parsecs"\n')
    found = doctor("--config", "bad.toml", code=1)
    assert "unknown unit" in worst(found, "settings")[1]
    assert "Java" in found  # the machine is looked at all the same


def test_no_java(doctor):
    level, says = worst(doctor(code=1, PATH="/nonexistent", JAVA_HOME=""), "Java")
    assert (level, "openjdk-17" in says) == ("fail", True)


def test_a_port_that_somebody_has(alone):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        out = alone("doctor", "--data", "data", "--set", f"listenPort={port}", "--set", "jobMetricsPort=0", code=1)
    assert f"FAIL port           listenPort 127.0.0.1:{port}: taken by process {os.getpid()} (" in out
    assert f"--set listenPort={'PORT'}" in out


def test_a_store_and_its_keys(doctor, alone):
    data = alone.cwd / "data"
    EdgeStore(data / "store", geometry=SMALLEST).close()
    found = doctor(code=1)
    assert "commit_log_segment_bytes is 65536" in worst(found, "store")[1]
    level, says = worst(found, "id keys")
    assert (level, "restore it" in says) == ("fail", True)
    keys = data / "keys" / "ids.keys"
    load_keys(keys)
    keys.chmod(0o644)
    level, says = worst(doctor(code=1), "id keys")
    assert (level, f"chmod 600 {keys}" in says) == ("warn", True)
    (data / "store" / "format.json").write_text("{}")
    assert "no escrow_format" in worst(doctor(code=1), "store")[1]


def test_listening_beyond_loopback_needs_tokens(doctor, alone):
    beyond = ("--set", "listenAddress=0.0.0.0")
    assert "escrow token new" in worst(doctor(*beyond, code=1), "tokens")[1]
    alone("token", "new", "ops", "--operator", "--data", "data")
    found = doctor(*beyond)
    assert found["tokens"][0]["level"] == "ok"
    assert "without TLS" in worst(found, "TLS")[1]
    (alone.cwd / "data" / "keys" / "tokens.toml").write_text("[[token]\n")
    assert worst(doctor(*beyond, code=1), "tokens")[0] == "fail"


def test_tls_files_that_do_not_fit(doctor, alone):
    for name in ("cert.pem", "key.pem"):
        (alone.cwd / name).write_text("nothing")
    found = doctor("--set", "tlsCertFile=cert.pem", "--set", "tlsKeyFile=key.pem", code=1)
    assert worst(found, "TLS")[0] == "fail"


def test_a_clock_alert(doctor, alone):
    (alone.cwd / "data").mkdir()
    (alone.cwd / "data" / "clock.alert").write_text(json.dumps({"reason": "it jumped"}))
    assert "escrow clock" in next(each["remedy"] for each in doctor(code=1)["clock"] if each["level"] == "fail")


def test_a_data_directory_that_cannot_be_written(doctor, alone):
    (alone.cwd / "data").write_text("a file")
    assert worst(doctor(code=1), "data directory")[0] == "fail"


def test_a_running_service(service, shell):
    """The edge alone, without a supervisor: its port is taken, and by whom."""
    out = shell("doctor", "--data", service.data, "--set", f"listenPort={service.port}", "--set", "jobMetricsPort=0", code=1)
    assert "ingest.server" in out


@contextmanager
def answering(answer: bytes):
    """Somebody who answers every connection with these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(64)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join()


def test_brokers():
    with answering(b"\0\0\0\x0aESCR\0\0\0\0\0\0") as server:
        assert broker(server).level is Level.OK
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as server:
        assert broker(server).level is Level.WARN
    assert broker(server).level is Level.FAIL  # it has gone
    assert broker("nowhere").level is Level.FAIL


def test_plug_ins(doctor, tmp_path, monkeypatch):
    put = installer(tmp_path / "site", monkeypatch)
    put("escrow-audit", "[escrow.sinks]\naudit = escrow_audit:Made\n", escrow_audit="raise SystemExit('it ran')")
    there = {"PYTHONPATH": str(tmp_path / "site")}
    found = doctor(ESCROW_PLUGINS="", **there)
    level, text = worst(found, "plug-ins")
    assert level == "warn"
    assert text.startswith("plug-in escrow-audit (escrow.sinks: audit) is installed and not used | add")
    assert [each["says"] for each in doctor(ESCROW_PLUGINS="escrow-audit", **there)["plug-ins"]] == ["audit (escrow.sinks)"]
    level, text = worst(doctor(ESCROW_PLUGINS="escrow-adit", code=1, **there), "plug-ins")
    assert level == "fail"
    assert "escrow-adit: no such plug-in is installed (installed: escrow-audit)" in text
