"""The `escrow` command as people and scripts meet it: a process of its own, against a real edge (the job is without Spark)."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from escrow.cli import main
from tests.support.live import Live, live
from tests.support.shell import Shell


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
