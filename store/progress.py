"""Progress of long work: called with (done, total, what). The caller may show it; the store never prints."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int, str], None]


def no_progress(_done: int, _total: int, _what: str) -> None:
    """Ignores progress."""
