"""Which Python executors start: the operator's choice on a cluster, our own on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from runtime.settings import load
from streaming.spark import session

THEIRS = "/opt/their/bin/python"


def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *flags: str) -> str:
    monkeypatch.setattr(session, "connector_jars", lambda _: [])
    settings = load(None, [f"dataDir={tmp_path}", "mode=kafka", "kafkaBootstrapServers=k:9092", *flags], {})
    return session.spark_conf(settings, tmp_path, tmp_path / "log4j")["spark.pyspark.python"]


@pytest.mark.parametrize("master", ["k8s://https://api:6443", "spark://m:7077"])
def test_on_a_cluster_the_variable_of_the_operator_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    flags = [f"sparkMaster={master}", "sparkAuthSecret=0123456789abcdef0123456789abcdef", "sparkDriverHost=10.0.0.1"]
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert told(tmp_path, monkeypatch, *flags) == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", THEIRS)
    assert told(tmp_path, monkeypatch, *flags) == THEIRS
    file = tmp_path / "spark.conf"
    file.write_text("spark.pyspark.python /opt/image/bin/python\n")
    assert told(tmp_path, monkeypatch, *flags, f"sparkConfFile={file}") == "/opt/image/bin/python"


def test_on_this_machine_another_sparks_variable_does_not_leak_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", THEIRS)
    assert told(tmp_path, monkeypatch, "sparkMaster=local[2]") == sys.executable
