"""conf/grafana: the committed boards are what scripts/dashboards.py describes, and each panel says what it shows, in which unit."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from scripts.dashboards import BOARDS, PLACE, SCHEMA, text_of
from tests.support.metrics_page import documented

GRAFANA = Path(__file__).parents[3] / "conf" / "grafana"
FILES = sorted(PLACE.glob("*.json"))


def test_the_files_are_what_is_described():
    written = {file.name: file.read_text() for file in FILES}
    assert written == {f"{board.uid}.json": text_of(board) for board in BOARDS}, "run make pages"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_board_can_be_read(file):
    board = json.loads(file.read_text())
    assert (board["uid"], board["schemaVersion"]) == (file.stem, SCHEMA)
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in panels:
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
    cells = [
        (x, y)
        for panel in board["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)), "no panel lies on another"
    assert max(x for x, _ in cells) < 24


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_board_asks_for_what_escrow_tells(file):
    board = json.loads(file.read_text())
    known = {variable["name"] for variable in board["templating"]["list"]} | {"__rate_interval"}
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= known, target["expr"]
            names = set(re.findall(r"\b(?:escrow|process)_[a-z_0-9]+", target["expr"]))
            assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in names} <= set(documented()), target["expr"]


def test_provisioning_can_be_read():
    [source] = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "prometheus.yml").read_text())["datasources"]
    [provider] = yaml.safe_load((GRAFANA / "provisioning" / "dashboards" / "escrow.yml").read_text())["providers"]
    assert (source["type"], provider["type"]) == ("prometheus", "file")
