"""Jars are resolved once, however many ask at once. Maven is a script here: it notes that it ran, and takes its time."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from streaming import jars

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


def _names(directory: Path) -> list[str]:
    return [jar.name for jar in jars.resolve(b"<project/>", directory)]


def test_who_comes_at_the_same_time_finds_what_one_has_resolved(runs: Path, tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        found = pool.map(_names, [tmp_path / "cache" / "jars"] * 4, chunksize=1)
    assert found == [["a.jar", "b.jar"]] * 4
    assert runs.read_text() == "ran\n"


def test_those_of_another_pom_are_resolved_anew_and_those_of_nobody_are_kept(runs: Path, tmp_path: Path) -> None:
    directory = tmp_path / "jars"
    jars.resolve(b"<project>old</project>", directory)
    assert _names(directory) == ["a.jar", "b.jar"]
    assert runs.read_text() == "ran\nran\n"
    (directory / jars.POM_COPY).unlink()
    (directory / "b.jar").unlink()
    assert _names(directory) == ["a.jar"]
    assert runs.read_text() == "ran\nran\n"
