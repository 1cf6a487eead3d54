"""A progress line on stderr for work that takes more than two seconds.

On a terminal the line is redrawn in place and removed at the end. Elsewhere (a log, CI) a whole line is printed, at
most one every five seconds. Work that is done sooner prints nothing at all.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

QUIET_S = 2.0
REDRAW_INTERVAL_S = 0.1
LINE_INTERVAL_S = 5.0


class Progress:
    """Call it as ``progress(done, total, what)``, as often as convenient; use it as a context manager.

    ``total`` may be 0 when it is not known.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._clock = clock
        self._redraws = self._stream.isatty()
        self._interval_s = REDRAW_INTERVAL_S if self._redraws else LINE_INTERVAL_S
        self._next_s = clock() + QUIET_S
        self._what = ""
        self._what_since_s = clock()
        self._drawn_chars = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._erase()

    def __call__(self, done: int, total: int, what: str) -> None:
        """Shows how far the work is, if it is time to show anything."""
        now_s = self._clock()
        if what != self._what:
            self._what, self._what_since_s = what, now_s
        if now_s < self._next_s:
            return
        self._next_s = now_s + self._interval_s
        self._show(describe(done, total, what, now_s - self._what_since_s))

    def _show(self, line: str) -> None:
        if self._redraws:
            self._stream.write("\r" + line.ljust(self._drawn_chars))
            self._drawn_chars = len(line)
        else:
            self._stream.write(line + "\n")
        self._stream.flush()

    def _erase(self) -> None:
        if self._drawn_chars:
            self._stream.write("\r" + " " * self._drawn_chars + "\r")
            self._stream.flush()
            self._drawn_chars = 0


def describe(done: int, total: int, what: str, elapsed_s: float) -> str:
    """Words one progress line: the share, the counts, and the time that is left at the pace so far."""
    if total <= 0:
        return f"{what}: {done:,}"
    line = f"{what}: {min(100, done * 100 // total)} % ({done:,} of {total:,})"
    if 0 < done < total and elapsed_s >= 1:
        line += f", about {duration(elapsed_s * (total - done) / done)} left"
    return line


def duration(seconds: float) -> str:
    """Words a length of time in its two largest units at most."""
    whole_s = max(1, round(seconds))
    if whole_s < 60:
        return f"{whole_s} s"
    if whole_s < 3600:
        return f"{whole_s // 60} min {whole_s % 60} s"
    if whole_s < 86_400:
        return f"{whole_s // 3600} h {whole_s % 3600 // 60} min"
    return f"{whole_s // 86_400} d {whole_s % 86_400 // 3600} h"
