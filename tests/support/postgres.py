"""A private PostgreSQL for tests: a cluster of its own in a scratch directory, on a free loopback port and a Unix socket.

PostgreSQL refuses to run as root, so root hands it to another user. Nothing of a system-wide installation is touched but its
programs.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tests.support.tools import require_tool

DEADLINE_S = 60.0
#: fsync is off: nothing here outlives the test.
OPTIONS = ("fsync=off", "full_page_writes=off", "max_connections=50", "listen_addresses=127.0.0.1")


@dataclass(frozen=True, slots=True)
class Cluster:
    port: int
    directory: Path

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=escrow dbname=postgres"

    @property
    def socket_dsn(self) -> str:
        return f"host={self.directory} port={self.port} user=escrow dbname=postgres"

    @property
    def alchemy_url(self) -> str:
        return f"postgresql+psycopg://escrow@127.0.0.1:{self.port}/postgres"

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn, **options)


@contextmanager
def postgres(options: Sequence[str] = OPTIONS, under: Path | None = None) -> Iterator[Cluster]:
    """A running cluster; skips the test, or fails it in CI, where PostgreSQL is not installed."""
    initdb = Path(require_tool("initdb")).resolve()
    directory = Path(tempfile.mkdtemp(prefix="escrow-pg-", dir=under))
    try:
        as_user = _unprivileged(directory)
        command = [
            str(initdb),
            "-D",
            str(directory / "data"),
            "-U",
            "escrow",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-locale",
            "--no-sync",
        ]
        done = subprocess.run(command, **as_user, capture_output=True, text=True, cwd=directory, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        with _running(initdb.with_name("postgres"), directory, as_user, options) as cluster:
            yield cluster
    finally:
        shutil.rmtree(directory)


def _unprivileged(directory: Path) -> dict[str, Any]:
    """Arguments for subprocess. Root gives the directory to the package's own user, or to nobody."""
    if os.geteuid() != 0:
        return {}
    names = [entry.pw_name for entry in pwd.getpwall()]
    user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    os.chown(directory, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


@contextmanager
def _running(program: Path, directory: Path, as_user: dict[str, Any], options: Sequence[str]) -> Iterator[Cluster]:
    cluster = Cluster(_free_port(), directory)
    words = [word for option in options for word in ("-c", option)]
    command = [str(program), "-D", str(directory / "data"), "-k", str(directory), "-p", str(cluster.port), *words]
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(command, **as_user, stdout=log, stderr=log, cwd=directory)
    try:
        _until_it_answers(cluster, process)
        yield cluster
    finally:
        process.send_signal(signal.SIGINT)  # "fast": clients that were left open do not hold it up
        process.wait(DEADLINE_S)


def _until_it_answers(cluster: Cluster, process: subprocess.Popen[Any]) -> None:
    end = time.monotonic() + DEADLINE_S
    while True:
        try:
            cluster.connect(connect_timeout=5).close()
            return
        except psycopg.OperationalError:
            assert process.poll() is None and time.monotonic() < end, (cluster.directory / "log").read_text()  # noqa: PT018
            time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
