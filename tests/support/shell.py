"""The `escrow` command as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120


@dataclass(frozen=True)
class Shell:
    """Runs commands in a directory of their own, with these variables and none of the developer's."""

    cwd: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def environ(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ESCROW_")}
        return {**clean, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **self.variables}

    def run(self, *args: object, code: int = 0, stdin: str | bytes = b"", **variables: str) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            [sys.executable, "-m", "escrow", *(str(arg) for arg in args)],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True, timeout=PATIENCE_S, cwd=self.cwd, env={**self.environ, **variables}, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"{args}: {done.returncode}\n{done.stdout.decode()}\n{done.stderr.decode()}"
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return done

    def __call__(self, *args: object, code: int = 0, stdin: str | bytes = b"", **variables: str) -> str:
        """What it prints."""
        return self.run(*args, code=code, stdin=stdin, **variables).stdout.decode()

    def lines(self, *args: object, **rest: Any) -> list[str]:
        return self(*args, **rest).splitlines()

    def json(self, *args: object, **rest: Any) -> list[dict[str, Any]]:
        """What it prints with --json: an object a line."""
        return [json.loads(line) for line in self.lines(*args, "--json", **rest)]

    def error(self, *args: object, code: int = 2, **rest: Any) -> str:
        """What it complains of."""
        return self.run(*args, code=code, **rest).stderr.decode()
