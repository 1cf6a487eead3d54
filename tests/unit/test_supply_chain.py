"""What comes from elsewhere is named exactly: packages and jars by hash. (Images: test_compose.py.)"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from streaming.spark.jars import PLUGIN

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
ROOMS = ("streaming", "tests", "benchmarks")
POMS = sorted(pom for room in ROOMS for pom in (ROOT / room).rglob("*pom.xml"))
#: What fetches.
FETCHERS = [ROOT / "Dockerfile", ROOT / "Makefile", *sorted((ROOT / "scripts").glob("*.sh"))]

#: Brings one jar, whose content is $JAR.
MAVEN = """#!/bin/sh
for argument; do case $argument in -DoutputDirectory=*) out=${argument#*=} ;; esac; done
mkdir -p "$out"
echo "$JAR" > "$out/a.jar"
"""


def commands(path: Path) -> list[str]:
    """Lines that are run, continued ones as one."""
    text = path.read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if not line.lstrip().startswith("#")]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_every_requirement_of_a_lock_has_one_version_and_hashes(lock: Path) -> None:
    entries = re.split(r"(?m)^(?=[a-z0-9])", lock.read_text())[1:]
    assert entries
    for entry in entries:
        assert re.match(r"[a-z0-9._-]+(\[[a-z,]+\])?==\S+", entry), entry
        assert "--hash=sha256:" in entry, entry


def test_what_builds_and_installs_is_locked() -> None:
    def names(lock: str) -> set[str]:
        return set(re.findall(r"(?m)^([a-z0-9._-]+)==", (ROOT / "requirements" / lock).read_text()))

    assert {"pip", "setuptools", "wheel"} <= names("build.lock") <= names("dev.lock")
    assert "uv" in names("lock.lock")


@pytest.mark.parametrize("path", FETCHERS, ids=lambda path: path.name)
def test_nothing_is_installed_without_a_hash(path: Path) -> None:
    for line in commands(path):
        for command in re.findall(r"(?:pip|PIP\)|\}) (?:--\S+ )*(?:install|wheel) .*?(?=&&|;|$)", line):
            ours = "--no-deps" in command and ("--no-index" in command or "--no-build-isolation" in command)
            assert ours or "--require-hashes" in command, command
        assert not re.search(r"(?<!maven-)dependency:copy-dependencies", line), f"{line}: the plug-in's version is left to Maven"
        if "maven-dependency-plugin" in line and path.name != "jars.sh":
            assert f"{PLUGIN}:copy-dependencies" in line


@pytest.mark.parametrize("pom", POMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_pom_has_a_lock_with_all_it_asks_for(pom: Path) -> None:
    lines = pom.with_suffix(".lock").read_text().splitlines()
    assert all(re.fullmatch(r"[0-9a-f]{64}  [\w.-]+\.jar", line) for line in lines)
    jars = [line.split("  ")[1] for line in lines]
    assert jars == sorted(jars)
    text = pom.read_text().split("</dependencyManagement>")[-1]
    version = dict(re.findall(r"<([\w.]+version)>(.*?)</", text))
    asked = re.findall(r"(?s)<dependency>.*?<artifactId>(.*?)</artifactId>\s*<version>(.*?)</version>", text)
    assert asked
    for name, wanted in asked:
        assert f"{name}-{version.get(wanted.strip('${}'), wanted)}.jar" in jars


def test_jars_for_the_tests_are_used_only_if_they_are_those_of_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """rocketmq_clients.sh with a Maven that brings what it is told: the right jar is taken, a changed one is not."""
    for name in ("scripts", "streaming", "requirements"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    java = tmp_path / "tests/rocketmq/java"
    shutil.copytree(ROOT / "tests/rocketmq/java", java)
    tools = {"mvn": MAVEN, "javac": "#!/bin/sh\n"}
    (tmp_path / "bin").mkdir()
    for name, text in tools.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    (tmp_path / ".clients").mkdir()
    lock = (tmp_path / "requirements/rocketmq-client.lock").read_bytes()
    made = subprocess.run(["cksum"], input=lock, capture_output=True, check=True).stdout
    (tmp_path / ".clients/python.made").write_bytes(made)
    summed = subprocess.run(["sha256sum"], input=b"good\n", capture_output=True, check=True).stdout.split()[0].decode()
    (java / "pom.lock").write_text(f"{summed}  a.jar\n")

    def run(jar: str) -> str:
        monkeypatch.setenv("JAR", jar)
        command = ["sh", "scripts/rocketmq_clients.sh", "python3"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stderr

    assert "Maven brought other jars than tests/rocketmq/java/pom.lock names" in run("changed")
    assert not (tmp_path / ".clients/java").exists()
    assert run("good") == ""
    assert (tmp_path / ".clients/java/a.jar").read_text() == "good\n"
