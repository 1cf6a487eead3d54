"""Jars of Spark's Kafka connector: resolved once by Maven from `kafka-pom.xml`, then taken from the directory.

The directory is filled beside itself and renamed, so that what has its name is whole. `POM_COPY` in it says which pom it was made
from: another release's jars are resolved anew. Jars that somebody put there by hand (no `POM_COPY`) are taken as they are.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path
from typing import Final

from streaming.errors import JobCannotStart

POM_COPY: Final = "resolved.xml"
RESOLVE_S: Final = 900.0


def connector_jars(directory: Path) -> list[Path]:
    """Jars of the connector, in this directory."""
    return resolve(resources.files("streaming").joinpath("kafka-pom.xml").read_bytes(), directory)


def resolve(pom: bytes, directory: Path) -> list[Path]:
    """All jars that a pom asks for; JobCannotStart says what to do where they cannot be had."""
    found = _found(pom, directory)
    if found:
        return found
    directory.parent.mkdir(parents=True, exist_ok=True)
    # One process at a time: what another has just resolved is taken as it is, and Maven's own repository is no place for two.
    with (directory.parent / ".jars.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _found(pom, directory) or _resolve(pom, directory)


def _found(pom: bytes, directory: Path) -> list[Path]:
    """The jars that are there, if they are this pom's, or somebody's who knows better."""
    noted = directory / POM_COPY
    return [] if noted.exists() and noted.read_bytes() != pom else sorted(directory.glob("*.jar"))


def _resolve(pom: bytes, directory: Path) -> list[Path]:
    work = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        _copy_dependencies(pom, work, directory)
        shutil.rmtree(directory, ignore_errors=True)
        os.rename(work / "jars", directory)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return sorted(directory.glob("*.jar"))


def _copy_dependencies(pom: bytes, work: Path, directory: Path) -> None:
    maven = shutil.which("mvn")
    by_hand = (
        f"run `mvn -B -f kafka-pom.xml dependency:copy-dependencies -DoutputDirectory=JARS` elsewhere and copy JARS to {directory}"
    )
    if maven is None:
        raise JobCannotStart(f"{directory} holds no jars and there is no mvn to resolve them: install Maven, or {by_hand}")
    (work / "pom.xml").write_bytes(pom)
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={work / 'jars'}"]
    command = [maven, "-B", "-q", "-f", str(work / "pom.xml"), *goal]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=RESOLVE_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise JobCannotStart(f"Maven did not resolve the jars within {RESOLVE_S:.0f} s: {by_hand}") from error
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if "ERROR" in line]
        raise JobCannotStart(f"Maven could not resolve the jars ({lines[0] if lines else done.stderr.strip()}): {by_hand}")
    (work / "jars" / POM_COPY).write_bytes(pom)
