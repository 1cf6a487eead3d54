"""The tables of docs/metrics.md, and what a page for Prometheus tells, in the same form."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
_ROW = re.compile(
    r"^\| `(?P<name>[a-z_]+)` \| (?P<kind>\w+) \|(?P<labels>[a-z_, ]*)\| "
    r"(?P<whence>edge|job|both|kafka|kafka-edge|grpc) \| (?P<text>.+) \|$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Told:
    kind: str
    labels: frozenset[str]


def documented(*whence: str) -> dict[str, Told]:
    """By name; of these processes, if any is named (kafka, grpc: what job and edge tell in Kafka mode and of gRPC only)."""
    return {
        found["name"]: Told(found["kind"], frozenset(filter(None, re.split(r"[, ]+", found["labels"]))))
        for found in _ROW.finditer(PAGE.read_text())
        if not whence or found["whence"] in (*whence, "both")
    }


def exposed(page: str) -> dict[str, Told]:
    """What a /metrics page tells, by name; a family without a single series is none."""
    return {
        family.name + ("_total" if family.type == "counter" else ""): Told(
            family.type, frozenset(label for sample in family.samples for label in sample.labels if label != "le")
        )
        for family in text_string_to_metric_families(page)
        if family.samples
    }
