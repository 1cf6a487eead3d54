"""Runs `tests.support.standin_job` beside an edge that a test has started itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.edge_world import SMALL

ROOT = Path(__file__).parents[2]


class Standin:
    """A job as a process, ready when entered."""

    def __init__(self, data: Path, *flags: str) -> None:
        sets = [word for flag in (*SMALL, *flags) for word in ("--set", flag)]
        self._command = [sys.executable, "-m", "tests.support.standin_job", "--data", str(data), *sets]

    def __enter__(self) -> Standin:
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self.process.stdout is not None
        assert json.loads(self.process.stdout.readline())["ready"]
        return self

    def __exit__(self, *_: object) -> None:
        with self.process:
            self.process.terminate()
