"""Open files: how many this process may have, and how many of them go to the files of queues."""

from __future__ import annotations

import resource
from typing import Final

#: Open files that a process asks for, and how many are few.
FILES_WANTED: Final = 65_536
FILES_FEW: Final = 4_096
#: Descriptors of one owner of queue files: this share of the limit, within these bounds. The edge has five owners, and where the
#: limit is low its clients have half of it (`ingest.http.connections.room`).
_SHARE: Final = 16
_LEAST: Final = 16
_MOST: Final = 256


def raise_file_limit(wanted: int = FILES_WANTED) -> int:
    """Raise this process's limit of open files to `wanted`, or as far as the hard limit lets it. The limit then in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if allowed <= soft:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (OSError, ValueError):
        return soft
    return allowed


def few_files(limit: int) -> str:
    """What an operator should read about a limit of open files that stays low; "" where it is high enough."""
    if limit >= FILES_FEW:
        return ""
    return (
        f"this process may have {limit} open files: with many topics their files are opened and closed all the time; raise the "
        f"hard limit to {FILES_FEW} or more (ulimit -Hn, LimitNOFILE)"
    )


def descriptors_allowed() -> int:
    """How many descriptors one owner of queue files may hold."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else max(_LEAST, min(_MOST, soft // _SHARE))
