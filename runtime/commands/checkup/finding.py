"""A finding of ``escrow doctor``, and how sizes and users are written in one."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

#: How long a service or a broker may take to answer.
ANSWER_S: Final = 3.0


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: what it is, what it is like, and what to do if that is not right."""

    level: Level
    what: str
    says: str
    remedy: str = ""


def free_bytes(path: Path) -> int:
    try:
        found = os.statvfs(path)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def size_text(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
