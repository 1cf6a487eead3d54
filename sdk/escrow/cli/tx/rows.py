"""A transaction as a row of a table."""

from __future__ import annotations

from typing import Any, Final

from escrow.cli.progress import duration
from escrow.cli.render import cell

HEADS: Final = ("ID", "STATE", "GROUP", "TOPIC", "KEY", "AGE", "ATTEMPTS")


def listed(found: dict[str, Any]) -> tuple[object, ...]:
    state = found["state"] if not found.get("reason") else f"{found['state']} ({found['reason']})"
    return (
        found["id"],
        state,
        found["group"],
        found["topic"],
        cell(found["key"], 24) or None,
        duration(found["age_s"]),
        found["attempts"],
    )
