"""A Spark standalone cluster on this machine: a master and workers from the PyPI package, on free ports."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from runtime.processes import kill_session
from tests.support.tools import require_tool

DEADLINE_S = 120.0


@dataclass(slots=True)
class SparkCluster:
    url: str
    directory: Path
    secret: str = field(default_factory=lambda: secrets.token_hex(16))
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def flags(self) -> list[str]:
        """Settings of a job that runs here."""
        return [f"sparkMaster={self.url}", f"sparkAuthSecret={self.secret}"]

    @property
    def sessions(self) -> list[int]:
        """Each worker leads a session; its executors are in it."""
        return [process.pid for process in self.processes[1:]]


@contextmanager
def spark_cluster(workers: int = 2, cores: int = 1, memory: str = "1g") -> Iterator[SparkCluster]:
    require_tool("java")
    directory = Path(tempfile.mkdtemp(prefix="escrow-spark-"))
    cluster = SparkCluster("", directory)
    try:
        master = _start(cluster, "master", "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        cluster.url = _said(master, r"(spark://127\.0\.0\.1:\d+)")
        for number in range(workers):
            name = f"worker{number + 1}"
            words = ["--webui-port", "0", "--cores", str(cores), "--memory", memory, "--work-dir", str(directory / name / "work")]
            _said(_start(cluster, name, "worker.Worker", *words, cluster.url), r"(Successfully registered with master)")
        yield cluster
    finally:
        for process in reversed(cluster.processes):
            kill_session(process.pid)
            process.wait(30)
        shutil.rmtree(directory, ignore_errors=True)


def _start(cluster: SparkCluster, name: str, module: str, *words: str) -> Path:
    own = cluster.directory / name
    own.mkdir()
    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "SPARK_DAEMON_MEMORY": "256m"}
    environ["SPARK_LOCAL_DIRS"], environ["SPARK_CONF_DIR"] = str(own / "scratch"), str(own)
    guarded = {"authenticate": "true", "authenticate.secret": cluster.secret, "network.crypto.enabled": "true"}
    (own / "spark-defaults.conf").write_text("".join(f"spark.{name} {value}\n" for name, value in guarded.items()))
    log = own / "log"
    with log.open("wb") as output:
        command = [str(program), f"org.apache.spark.deploy.{module}", *words]
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environ, start_new_session=True, cwd=own)
    cluster.processes.append(process)
    return log


def _said(log: Path, pattern: str) -> str:
    end = time.monotonic() + DEADLINE_S
    while True:
        found = re.search(pattern, log.read_text(errors="replace"))
        if found is not None:
            return found[1]
        assert time.monotonic() < end, log.read_text(errors="replace")[-3000:]
        time.sleep(0.1)
