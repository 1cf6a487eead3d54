"""What the command line tells while real Spark settles: check-backs and discards of the demo, the doctor, the export."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request

import pyarrow.parquet as pq

from escrow import Outcome, Producer
from tests.support.whole_service import DEADLINE_S, SETS


def escrow(run, *args, code=0):
    environ = {**run.environ, "ESCROW_URL": f"http://127.0.0.1:{run.port}"}
    command = [sys.executable, "-m", "escrow", *(str(arg) for arg in args)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_S, env=environ, cwd=run.data.parent, check=False
    )
    assert done.returncode == code, f"{args}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def overview(run):
    with urllib.request.urlopen(f"http://127.0.0.1:{run.port}/v1/operator/overview", timeout=10) as answer:
        return json.load(answer)


def test_demo_doctor_and_export(run, tmp_path):
    run.until(lambda: run.state["ready"])
    out = escrow(run, "demo", "--seconds", "10", "--rate", "3")
    assert "Shipping got every order that was committed, and none that was rolled back." in out
    assert re.search(r"Escrow asks about order \d+ \(attempt 1\): its database tells -> COMMIT", out)
    # transactionCheckMax is 2 here: the shop cannot tell, so it is put aside; an operator takes it back, and ends it.
    [undecided] = re.findall(r"\(undecided\) is .*: (\S+)", out)
    with Producer(f"http://127.0.0.1:{run.port}", "demo-undecided-shop", on_check=lambda check: Outcome.UNKNOWN) as shop:
        run.until(lambda: shop.state(undecided)["state"] == "DISCARDED_MAX")
    assert [line for line in escrow(run, "tx", "list", "--state", "discarded", "--ids").split() if line == undecided]
    assert "resume: 1 accepted" in escrow(run, "tx", "resume", undecided, "--reason", "the bank is back")
    assert "rollback: 1 accepted" in escrow(run, "tx", "rollback", undecided, "--reason", "the bank says no")
    sets = [word for key in (*SETS[2:], f"listenPort={run.port}") for word in ("--set", key)]
    # The abandoned shop's order stays in doubt, and doctor says so until it is settled.
    found = json.loads(escrow(run, "doctor", "--json", "--data", run.data, *sets, code=1))
    [wrong] = [each for each in found["findings"] if each["level"] == "fail"]
    assert wrong["says"].startswith("demo-abandoned-shop: 1 in doubt, nobody online")
    escrow(run, "tx", "rollback", "--group", "demo-abandoned-shop", "--reason", "the shop is gone", "--yes")
    run.until(lambda: not any(each["subject"] == "demo-abandoned-shop" for each in overview(run)["findings"]))
    found = json.loads(escrow(run, "doctor", "--json", "--data", run.data, *sets))
    assert found["ok"] is True, found
    assert any(each["what"] == "job" and each["says"].startswith("runs") for each in found["findings"])
    file = tmp_path / "history.parquet"
    escrow(run, "export", file, "--data", run.data, "--group", "demo-undecided-shop")
    [row] = [row for row in pq.read_table(file).to_pylist() if row["id"] == undecided]
    assert (row["state"], row["settled_by"]) == ("rolled_back", "operator")
