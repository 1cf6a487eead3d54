"""Times as people write them on a command line, and as they are shown."""

from __future__ import annotations

import argparse
import math
import re
import time
from datetime import datetime
from typing import Final

#: As the settings have it (runtime.settings); the client does not import them.
DURATION_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
HELP: Final = "2026-11-16T03:00 (local time, unless it ends in Z or +01:00), 15m (so long ago), or milliseconds since 1970"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def instant_ms(text: str) -> int:
    """An argparse type: a time as milliseconds since 1970."""
    if text.isascii() and text.isdigit():
        return int(text)
    if ago := _AGO.fullmatch(text):
        return now_ms() - round(float(ago[1]) * DURATION_MS[ago[2]])
    try:
        found = datetime.fromisoformat(text)
        return round(found.timestamp() * 1000)  # without an offset it is local time
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: write {HELP}") from None


def whole_seconds(text: str) -> int:
    """An argparse type: a length of time in whole seconds, rounded up."""
    return math.ceil(seconds(text))


def seconds(text: str) -> float:
    """An argparse type: a length of time, "90", "90s", "15m", "2h"."""
    found = _AGO.fullmatch(text if not text.replace(".", "", 1).isdigit() else text + "s")
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a length of time: write 90, 90s, 15m, 2h or 3d")
    return float(found[1]) * DURATION_MS[found[2]] / 1000


def shown(at_ms: int | None) -> str:
    """An instant for people: local time, with its offset."""
    if not at_ms:
        return "-"
    try:
        return datetime.fromtimestamp(at_ms / 1000).astimezone().isoformat(sep=" ", timespec="milliseconds")
    except (ValueError, OverflowError, OSError):  # a producer's clock may say anything
        return f"{at_ms} ms"
