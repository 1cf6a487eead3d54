"""Times and sizes: their units, and how a value is written with one."""

from __future__ import annotations

from typing import Final

DURATION_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
DURATION_NAMES: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
SIZE_BYTES: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def duration_text(value_ms: int) -> str:
    for unit in ("h", "m", "s"):
        if value_ms and value_ms % DURATION_MS[unit] == 0:
            return f"{value_ms // DURATION_MS[unit]}{unit}"
    return f"{value_ms}ms"


def size_text(value: int) -> str:
    for unit in ("GiB", "MiB", "KiB"):
        if value and value % SIZE_BYTES[unit] == 0 and (unit != "KiB" or value < SIZE_BYTES["MiB"]):
            return f"{value // SIZE_BYTES[unit]}{unit}"
    return str(value)
