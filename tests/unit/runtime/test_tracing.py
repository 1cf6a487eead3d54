"""Tracing that is off costs nothing, and tracing that cannot be had says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from runtime.settings import load
from runtime.tracing import Tracer

ROOT = Path(__file__).parents[3]


def python(code, *words):
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    return done.returncode, done.stdout.strip(), done.stderr.strip()


@pytest.mark.parametrize("module", ["escrow", "ingest.server", "streaming.job"])
def test_nothing_is_imported_that_is_not_asked_for(module):
    code = f"import sys, {module}; print([name for name in sys.modules if name.startswith('opentelemetry')])"
    assert python(code) == (0, "[]", "")


@pytest.mark.parametrize("module", ["ingest.server", "streaming.job"])
def test_without_the_packages_it_does_not_start_and_says_what_to_do(module, tmp_path):
    """As on a machine with the server extra only."""
    if module == "streaming.job":
        python(
            "from store.edge.store import EdgeStore; import sys, pathlib; EdgeStore(pathlib.Path(sys.argv[1])).close()",
            str(tmp_path / "store"),
        )
    code = f"import sys; sys.modules['opentelemetry'] = None; import {module} as m; sys.exit(m.main(sys.argv[1:]))"
    sets = ("--set", "listenPort=0", "--set", "jobMetricsPort=0", "--set", "otlpEndpoint=http://127.0.0.1:1")
    status, _, err = python(code, "--data", str(tmp_path), *sets)
    assert status == 2
    assert "otlpEndpoint is set, and OpenTelemetry is not there" in err
    assert "pip install ./sdk '.[tracing]'" in err


def test_a_receiver_that_is_not_there_holds_nobody_up(tmp_path):
    tracer = Tracer(load(None, ["otlpEndpoint=http://127.0.0.1:1"], {}), "escrow-test")
    span = tracer.begin("half t", {}, {})
    assert tracer.traceparent(span).startswith("00-")
    span.end()
    tracer.close()


def test_one_in_so_many_is_traced():
    tracer = Tracer(load(None, ["otlpEndpoint=http://127.0.0.1:1", "traceOneIn=1000000000"], {}), "escrow-test")
    assert {tracer.traceparent(tracer.begin("half t", {}, {})) for _ in range(20)} == {""}
    given = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    assert tracer.traceparent(tracer.begin("half t", given, {})).split("-")[1] == given["traceparent"].split("-")[1]
    tracer.close()
