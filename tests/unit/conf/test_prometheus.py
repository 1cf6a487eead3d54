"""conf/prometheus, as promtool sees it: rules are valid, every alert fires and stays silent when it should, and has a runbook."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.metrics_page import documented
from tests.support.pages import anchors
from tests.support.tools import require_tool

ROOT = Path(__file__).parents[3]
CONF = ROOT / "conf" / "prometheus"
PLAYED = Path(__file__).parent / "alerts_test.yml"
#: Names that queries may use and Escrow does not tell.
NOT_OURS = {"up"}


def rules(file):
    return [rule for group in yaml.safe_load((CONF / file).read_text())["groups"] for rule in group["rules"]]


ALERTS = rules("alerts.yml")


def promtool(*words, cwd=CONF):
    done = subprocess.run([require_tool("promtool"), *words], capture_output=True, text=True, cwd=cwd, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_configuration_and_the_rules_are_valid():
    promtool("check", "config", "prometheus.yml")
    promtool("check", "rules", "--lint=all", "--lint-fatal", "recording.yml", "alerts.yml")


def test_every_alert_fires_and_stays_silent_when_it_should():
    promtool("test", "rules", str(PLAYED))
    names = [test["name"] for test in yaml.safe_load(PLAYED.read_text())["tests"]]
    for rule in ALERTS:
        for what in ("fires", "is silent"):
            assert [name for name in names if name.startswith(f"{rule['alert']} {what}")], (
                f"{rule['alert']}: no test that it {what}"
            )


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_it_is_and_where_to_read_on(rule):
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["description"].endswith(".")
    page, anchor = rule["annotations"]["runbook_url"].split("#")
    assert anchor == rule["alert"].lower()
    assert anchor in anchors(ROOT / page)


def test_every_name_in_the_code_is_documented():
    """Those too that only appear in one mode or another. (Counters are named without their _total there.)"""
    text = (ROOT / "runtime" / "metrics.py").read_text() + (ROOT / "ingest" / "http" / "metrics.py").read_text()
    names = set(re.findall(r'"(escrow_[a-z_]+)"', text))
    known = documented().keys()
    assert len(names) > 60
    assert {name for name in names if name not in known and f"{name}_total" not in known} == set()
    assert {name.removesuffix("_total") for name in known if name.startswith("escrow_")} <= names


def test_queries_use_what_escrow_tells():
    recorded = {rule["record"] for rule in rules("recording.yml")}
    for rule in [*ALERTS, *rules("recording.yml")]:
        names = set(re.findall(r"\b(?:[a-z_]+:)?(?:escrow|process)_[a-z_0-9:]+|\bup\b", rule["expr"]))
        unknown = {re.sub(r"_(bucket|count|sum)$", "", name) for name in names - recorded - NOT_OURS} - set(documented())
        assert unknown == set(), rule
