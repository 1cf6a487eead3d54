"""What needs no settings: Python, packages, Java, memory, limits, temporary files."""

from __future__ import annotations

import importlib.metadata
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from runtime.commands.checkup.finding import Finding, Level, free_bytes, size_text
from runtime.java import java_problem
from runtime.settings import Settings

MEMORY_BESIDE_BYTES: Final = 512 << 20
FILES_BESIDE: Final = 512


def machine(settings: Settings | None) -> Iterator[Finding]:
    """What needs no settings; memory and limits are held against them where there are any."""
    yield _python()
    yield _packages()
    yield _java()
    yield _memory((settings or Settings()).spark_driver_memory_bytes)
    yield _open_files((settings or Settings()).max_connections)
    yield _temporary()


def _python() -> Finding:
    version = ".".join(str(number) for number in sys.version_info[:3])
    return Finding(Level.OK, "Python", f"{version} ({sys.executable})")


def _packages() -> Finding:
    """Those that the server needs, and the versions that the project fixes."""
    wrong = []
    try:
        requirements = importlib.metadata.requires("escrow-mq-server") or []
    except importlib.metadata.PackageNotFoundError:
        return Finding(
            Level.FAIL, "packages", "escrow-mq-server is not installed here", "in a checkout: make venv, or pip install ./sdk ."
        )
    for requirement in requirements:
        name, _, rest = requirement.partition(";")
        if "extra" in rest:
            continue
        bare = re.split(r"[^A-Za-z0-9_.-]", name.strip())[0]
        try:
            have = importlib.metadata.version(bare)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{bare} is missing")
            continue
        if "==" in name and have != (wanted := name.split("==")[1].strip()):
            wrong.append(f"{bare} is {have}, not {wanted}")
    if wrong:
        return Finding(Level.FAIL, "packages", ", ".join(wrong), f"in a checkout: pip install ./sdk . (into {sys.prefix})")
    return Finding(Level.OK, "packages", f"PySpark {importlib.metadata.version('pyspark')} and the rest of what the server needs")


def _java() -> Finding:
    problem = java_problem(os.environ)
    if problem:
        says, _, remedy = problem.partition(": ")
        return Finding(Level.FAIL, "Java", says, remedy)
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    return Finding(Level.OK, "Java", told.splitlines()[0] if told else java)


def _memory(driver_bytes: int) -> Finding:
    available = _memory_bytes()
    needed = driver_bytes + MEMORY_BESIDE_BYTES
    if available is None:
        return Finding(Level.WARN, "memory", "unknown on this system", f"have {size_text(needed)} free")
    if available < needed:
        remedy = "stop something, add memory, or lower sparkDriverMemory"
        return Finding(
            Level.WARN, "memory", f"{size_text(available)} available; Spark and the edge want {size_text(needed)}", remedy
        )
    return Finding(Level.OK, "memory", f"{size_text(available)} available")


def _memory_bytes() -> int | None:
    """What may still be taken: of the machine, or of our control group where that is less."""
    try:
        found = re.search(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return None
    available = int(found[1]) << 10 if found else None
    with suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        left = limit - int(Path("/sys/fs/cgroup/memory.current").read_text())
        return left if available is None else min(available, left)
    return available


def _open_files(connections: int) -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < connections + FILES_BESIDE:
        says = f"at most {hard:,} open files: fewer connections than maxConnections ({connections:,}) are taken"
        return Finding(
            Level.WARN,
            "limits",
            says,
            f"ulimit -Hn {connections + FILES_BESIDE}, or LimitNOFILE in its unit, or lower maxConnections",
        )
    return Finding(Level.OK, "limits", f"{'unlimited' if hard == resource.RLIM_INFINITY else f'{hard:,}'} open files")


def _temporary() -> Finding:
    place = tempfile.gettempdir()
    try:
        with tempfile.TemporaryFile() as file:
            file.write(b"escrow doctor")
            file.flush()
    except OSError as error:
        return Finding(Level.FAIL, "temporary", f"{place}: {error.strerror}", "make room there, or set TMPDIR to another directory")
    free = free_bytes(Path(place))
    if free < 64 << 20:
        return Finding(
            Level.WARN, "temporary", f"{place}: {size_text(free)} free", "make room there, or set TMPDIR to another directory"
        )
    return Finding(Level.OK, "temporary", f"{place}: {size_text(free)} free")
