"""Queries of the dashboards, as Grafana would send them when everything is chosen."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scripts.dashboards import PLACE

_FILLED = {"$__rate_interval": "10s", **dict.fromkeys(("$instance", "$group", "$topic", "$readers", "$shard"), ".*")}


def queries(*boards: str) -> list[Any]:
    """A parameter for each query of these boards, variables filled in."""
    return [
        pytest.param(_fill(target["expr"]), id=f"{board}: {panel['title']} {target['refId']}")
        for board in boards
        for panel in json.loads((PLACE / f"escrow-{board}.json").read_text())["panels"]
        for target in panel.get("targets", [])
    ]


def _fill(expr: str) -> str:
    for name, value in _FILLED.items():
        expr = expr.replace(name, value)
    return expr
