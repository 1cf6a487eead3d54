"""The `escrow` command as people and scripts meet it: a process of its own, against a real edge (the job is without Spark)."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from escrow.cli import main
from tests.support.live import Live, live

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


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What a wrong command line is told. In this process: it is not carried out, so there is nothing to see from outside."""
    monkeypatch.setattr("sys.stdin", io.StringIO())

    def complain(*args: object) -> str:
        try:
            code = main([str(arg) for arg in args])
        except SystemExit as ended:  # argparse's own
            code = int(str(ended.code))
        out, err = capsys.readouterr()
        assert (code, out) == (2, ""), (args, err)
        return err

    return complain


@pytest.fixture
def here(service: Live, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What a command prints that is run in this process: for what is asked again and again."""
    monkeypatch.setenv("ESCROW_URL", service.url)

    def told(*args: object) -> str:
        code = main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        assert code == 0, (args, err)
        return out

    return told


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """One Escrow for all tests here: each has topics and groups of its own."""
    with live(tmp_path_factory.mktemp("cli") / "data") as escrow:
        yield escrow


@pytest.fixture
def shell(service: Live, tmp_path: Path) -> Shell:
    """Commands that find the service by ESCROW_URL."""
    return Shell(tmp_path, {"ESCROW_URL": service.url})


@pytest.fixture
def alone(tmp_path: Path) -> Shell:
    """Commands without a service."""
    return Shell(tmp_path)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for topics and groups that no other test has."""
    return request.node.name.replace("[", ".").replace("]", "")[:100]
