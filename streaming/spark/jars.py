"""Jars of Spark's Kafka connector: resolved once by Maven from `kafka-pom.xml`, then taken from the directory.

The directory is filled beside itself and renamed, so that what has its name is whole. `POM_COPY` in it says which pom it was made
from: another release's jars are resolved anew.

Every jar, transitive ones included, must have the SHA-256 that the pom's lock names (`make lock` writes it, in the format of
sha256sum), and no other jar may be there. This is checked at every start, before Spark sees the directory. An operator's own
jars (no `POM_COPY`) need their list beside them, `OWN_LOCK`, in the same format.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path
from typing import Final

from streaming.errors import JobCannotStart

POM_COPY: Final = "resolved.xml"
OWN_LOCK: Final = "jars.lock"
RESOLVE_S: Final = 900.0
#: By version: what Maven runs is code too.
PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"


def connector_jars(directory: Path) -> list[Path]:
    """Jars of the connector, in this directory."""
    here = resources.files("streaming.spark")
    return resolve(here.joinpath("kafka-pom.xml").read_bytes(), here.joinpath("kafka-pom.lock").read_bytes(), directory)


def resolve(pom: bytes, lock: bytes, directory: Path) -> list[Path]:
    """All jars that a pom asks for, as its lock names them; JobCannotStart says what to do where they cannot be had."""
    found = _found(pom, lock, directory)
    if found:
        return found
    directory.parent.mkdir(parents=True, exist_ok=True)
    # One process at a time: what another has just resolved is taken as it is, and Maven's own repository is no place for two.
    with (directory.parent / ".jars.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        return _found(pom, lock, directory) or _resolve(pom, lock, directory)


def differences(directory: Path, lock: bytes) -> list[str]:
    """What is wrong with the jars of a directory, in the words of an operator; nothing if they are those of the lock."""
    wanted = {name: digest for digest, _, name in (line.partition("  ") for line in lock.decode().splitlines())}
    have = {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in directory.glob("*.jar")}
    told = [f"{name} is missing" for name in sorted(wanted.keys() - have.keys())]
    told += [f"{name} is not in the lock" for name in sorted(have.keys() - wanted.keys())]
    return told + [f"{name} has another SHA-256" for name in sorted(wanted) if name in have and have[name] != wanted[name]]


def _shown(wrong: list[str]) -> str:
    return "; ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")


def _found(pom: bytes, lock: bytes, directory: Path) -> list[Path]:
    """The jars that are there, if they are this pom's or an operator's own; each is what its lock says."""
    noted, own = directory / POM_COPY, directory / OWN_LOCK
    found = sorted(directory.glob("*.jar"))
    if not found or (noted.exists() and noted.read_bytes() != pom):
        return []
    by_hand = not noted.exists() and own.exists()
    wrong = differences(directory, own.read_bytes() if by_hand else lock)
    if wrong:
        lists = str(own) if by_hand else "this release's lock"
        raise JobCannotStart(
            f"{directory}: its jars are not those of {lists}: {_shown(wrong)}: remove the directory so that they are "
            f"fetched again, or, for jars of your own, run `sha256sum *.jar > {OWN_LOCK}` there"
        )
    return found


def _resolve(pom: bytes, lock: bytes, directory: Path) -> list[Path]:
    work = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        _copy_dependencies(pom, work, directory)
        wrong = differences(work / "jars", lock)
        if wrong:
            raise JobCannotStart(
                f"Maven brought other jars than this release's lock names: {_shown(wrong)}: nothing of them was used; look at "
                "the repository that Maven's settings name"
            )
        shutil.rmtree(directory, ignore_errors=True)
        os.rename(work / "jars", directory)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return sorted(directory.glob("*.jar"))


def _copy_dependencies(pom: bytes, work: Path, directory: Path) -> None:
    maven = shutil.which("mvn")
    by_hand = (
        f"run `mvn -B -f kafka-pom.xml {PLUGIN}:copy-dependencies -DincludeScope=runtime -DoutputDirectory=JARS` elsewhere and "
        f"copy JARS to {directory}"
    )
    if maven is None:
        raise JobCannotStart(f"{directory} holds no jars and there is no mvn to resolve them: install Maven, or {by_hand}")
    (work / "pom.xml").write_bytes(pom)
    goal = [f"{PLUGIN}:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={work / 'jars'}"]
    command = [maven, "-B", "-q", "-f", str(work / "pom.xml"), *goal]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=RESOLVE_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise JobCannotStart(f"Maven did not resolve the jars within {RESOLVE_S:.0f} s: {by_hand}") from error
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if "ERROR" in line]
        raise JobCannotStart(f"Maven could not resolve the jars ({lines[0] if lines else done.stderr.strip()}): {by_hand}")
    (work / "jars" / POM_COPY).write_bytes(pom)
