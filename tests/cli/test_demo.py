"""`escrow demo`: every fate is met and told, what was committed arrives, and nothing is left running."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path


def victims():
    """Processes that the demo should have killed."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and b"escrow.cli.demo_victim" in (process / "cmdline").read_bytes():
                found.append(process.name)
        except OSError:
            continue
    return found


def test_every_fate_is_met_and_told(shell, service):
    out = shell("demo", "--seconds", "12", "--rate", "4")
    for sentence in (
        rf"look here meanwhile: {re.escape(service.url)}/",
        r"shop +order 1 is stored as a half, and cannot be seen; the card was charged -> COMMIT",
        r"the card was refused -> ROLLBACK",
        r"then the shop says nothing",
        r"before it can say COMMIT: kill -9 \d+",
        r"belongs to|of a shop that is gone",
        r"will not know",
        r"operator +has Escrow ask about order 3",
        r"check +Escrow asks about order 3 \(attempt 1\): its books say -> COMMIT",
        r"check +Escrow asks about order 4 \(attempt 1\): its database tells -> COMMIT",
        r"check +Escrow asks about order 6 \(attempt \d+\): cannot tell -> UNKNOWN",
        r"shipping +got order 1\n",
        r"shipping +got order 4\n",
        r"billing +got order 1 and stumbles",
        r"billing +got order 1 again \(attempt 2\)",
        r"Shipping got every order that was committed, and none that was rolled back",
        r"escrow tx rollback \S+ --reason",
    ):
        assert re.search(sentence, out), f"{sentence}\n{out}"
    assert victims() == []


def test_ctrl_c_ends_it_cleanly(shell):
    command = [sys.executable, "-m", "escrow", "demo", "--seconds", "600"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=shell.cwd, env=shell.environ, start_new_session=True
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "kill -9" in line:
                break
        os.killpg(demo.pid, signal.SIGINT)
        out, err = demo.communicate(timeout=60)
    assert (demo.returncode, err) == (0, "")
    assert "orders: " in out
    assert victims() == []


def test_nobody_there(alone):
    assert "escrow run" in alone.error("demo", "--url", "http://127.0.0.1:1", code=3)
