"""The two distributions: built, installed into empty environments and used. escrow-mq is the client alone, with the command
`escrow`."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = {"store", "checker", "sinks", "streaming", "ingest", "runtime"}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By distribution. Built from copies: a build leaves things in its directory."""
    place = tmp_path_factory.mktemp("wheels")
    source = place / "source"
    source.mkdir()
    subprocess.run(f"git ls-files -z | xargs -0 cp --parents --target-directory={source}", shell=True, cwd=ROOT, check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--no-index", "--wheel-dir", str(place), str(source / "sdk"), str(source)], check=True)
    return {path.name.partition("-")[0]: path for path in place.glob("*.whl")}


def environment(place: Path, *wheels: Path) -> Path:
    """An environment with these and nothing else; its bin."""
    venv.create(place, with_pip=False, symlinks=True)
    python = place / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", *map(str, wheels)], check=True)
    return place / "bin"


def said(*words: object) -> tuple[int, str, str]:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=60, cwd="/", check=False)
    return done.returncode, done.stdout, done.stderr


def packages(wheel: Path) -> set[str]:
    return {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def test_each_wheel_has_its_own_packages_and_their_data(wheels: dict[str, Path]) -> None:
    assert packages(wheels["escrow_mq"]) == {"escrow"}
    assert packages(wheels["escrow_mq_server"]) == ROOMS
    names = set(zipfile.ZipFile(wheels["escrow_mq_server"]).namelist())
    for name in (
        "store/FORMAT.md", "ingest/http/assets/index.html", "ingest/rocketmq/messaging.proto", "streaming/spark/kafka-pom.lock",
        "streaming/spark/log4j2.properties", "runtime/py.typed",
    ):  # fmt: skip
        assert name in names, name


def test_the_client_alone(wheels: dict[str, Path], tmp_path: Path) -> None:
    bin = environment(tmp_path / "client", wheels["escrow_mq"])
    program = "from escrow import *; import escrow, sys; print(escrow.__version__, [m for m in sys.modules if m in %r])"
    assert said(bin / "python", "-c", program % ROOMS) == (0, "0.1.0.dev0 []\n", "")
    code, out, _ = said(bin / "escrow", "--help")
    assert code == 0
    assert "start the service" in out
    for command in (("run",), ("store", "verify", "--json", "x"), ("doctor", "--help")):
        code, out, err = said(bin / "escrow", *command)
        assert (code, out) == (2, "")
        assert err.startswith(f"escrow: escrow {command[0]} needs escrow-mq-server; ")


def test_with_the_server_its_commands_are_there(wheels: dict[str, Path], tmp_path: Path) -> None:
    """Without what the server depends on: help and settings need none of it, and the rest says what to install."""
    bin = environment(tmp_path / "server", wheels["escrow_mq"], wheels["escrow_mq_server"])
    assert said(bin / "escrow", "run", "--help")[0] == 0
    code, out, err = said(bin / "escrow", "config", "show")
    assert (code, "listenPort" in out) == (0, True), err
    code, _, err = said(bin / "escrow", "store", "verify", tmp_path)
    assert (code, "needs escrow-mq-server" in err) == (2, True)
