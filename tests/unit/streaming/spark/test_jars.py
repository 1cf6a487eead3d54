"""Jars are resolved once, however many ask at once. Maven is a script here: it notes that it ran, and takes its time."""

from __future__ import annotations

import hashlib
import multiprocessing
import re
from importlib import resources
from pathlib import Path

import pytest

from streaming.errors import JobCannotStart
from streaming.spark import jars

MAVEN = """#!/bin/sh
for argument; do case $argument in -DoutputDirectory=*) out=${argument#*=} ;; esac; done
echo ran >> "$MAVEN_RUNS"
mkdir -p "$out"
echo first > "$out/a.jar"
sleep 0.3
echo second > "$out/b.jar"
"""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tool = tmp_path / "bin" / "mvn"
    tool.parent.mkdir()
    tool.write_text(MAVEN)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    monkeypatch.setenv("MAVEN_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def _lock(**contents: str) -> bytes:
    """As sha256sum writes it."""
    return "".join(f"{hashlib.sha256(text.encode()).hexdigest()}  {name}.jar\n" for name, text in contents.items()).encode()


LOCK = _lock(a="first\n", b="second\n")


def _names(directory: Path) -> list[str]:
    return [jar.name for jar in jars.resolve(b"<project/>", LOCK, directory)]


def test_who_comes_at_the_same_time_finds_what_one_has_resolved(runs: Path, tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        found = pool.map(_names, [tmp_path / "cache" / "jars"] * 4, chunksize=1)
    assert found == [["a.jar", "b.jar"]] * 4
    assert runs.read_text() == "ran\n"


def test_those_of_another_pom_are_resolved_anew(runs: Path, tmp_path: Path) -> None:
    directory = tmp_path / "jars"
    jars.resolve(b"<project>old</project>", LOCK, directory)
    assert _names(directory) == ["a.jar", "b.jar"]
    assert runs.read_text() == "ran\nran\n"


@pytest.mark.parametrize(
    ("lock", "says"),
    [
        (_lock(a="first\n", b="another\n"), "b.jar has another SHA-256"),
        (_lock(a="first\n"), "b.jar is not in the lock"),
        (_lock(a="first\n", b="second\n", c="third\n"), "c.jar is missing"),
    ],
)
def test_what_maven_brings_is_used_only_if_it_is_what_the_lock_names(runs: Path, tmp_path: Path, lock: bytes, says: str) -> None:
    with pytest.raises(JobCannotStart, match=re.escape(says)):
        jars.resolve(b"<project/>", lock, tmp_path / "cache" / "jars")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".jars.lock"]


def test_a_jar_that_was_changed_where_it_lies_is_refused_at_the_next_start(runs: Path, tmp_path: Path) -> None:
    directory = tmp_path / "jars"
    _names(directory)
    (directory / "a.jar").write_text("changed\n")
    with pytest.raises(JobCannotStart, match=r"a\.jar has another SHA-256: remove the directory"):
        _names(directory)
    assert runs.read_text() == "ran\n"


def test_jars_put_there_by_hand_are_checked_too_and_may_bring_a_list_of_their_own(runs: Path, tmp_path: Path) -> None:
    directory = tmp_path / "jars"
    directory.mkdir()
    for name, text in (("a", "first\n"), ("b", "second\n")):
        (directory / f"{name}.jar").write_text(text)
    assert _names(directory) == ["a.jar", "b.jar"]
    (directory / "mine.jar").write_text("mine\n")
    with pytest.raises(JobCannotStart, match=r"mine\.jar is not in the lock"):
        _names(directory)
    (directory / jars.OWN_LOCK).write_bytes(LOCK + _lock(mine="mine\n"))
    assert _names(directory) == ["a.jar", "b.jar", "mine.jar"]
    (directory / "mine.jar").write_text("theirs\n")
    with pytest.raises(JobCannotStart, match=r"jars\.lock: mine\.jar has another SHA-256"):
        _names(directory)
    assert not runs.exists()


def test_the_lock_of_the_connector_is_in_the_package() -> None:
    text = resources.files("streaming.spark").joinpath("kafka-pom.lock").read_text()
    assert "spark-sql-kafka-0-10_2.13-4.2.0.jar" in text
    assert all(re.fullmatch(r"[0-9a-f]{64}  [\w.-]+\.jar", line) for line in text.splitlines())
