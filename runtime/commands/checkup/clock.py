"""The clock: alerts, the last settled batch, synchronisation."""

from __future__ import annotations

import ctypes
import importlib.util
import time
from collections.abc import Iterator
from typing import Final

from runtime.commands.checkup.finding import Finding, Level
from runtime.settings import Settings

_STA_UNSYNC: Final = 0x0040


def check_clock(settings: Settings) -> Iterator[Finding]:
    if (settings.data_dir / "clock.alert").exists():
        yield Finding(
            Level.FAIL,
            "clock",
            "there is a clock alert: nothing is discarded or deleted",
            "escrow clock shows it and what to do",
        )
    behind_s = _behind_last_batch_s(settings)
    if behind_s > settings.clock_drift_max_ms / 1000:
        says = f"the wall clock is {behind_s:,.0f} s behind the last settled batch"
        yield Finding(Level.FAIL, "clock", says, "set the clock (timedatectl) before you start Escrow")
    synchronised, error_s = _kernel_clock()
    if synchronised is None:
        yield Finding(Level.OK, "clock", "unknown whether it is synchronised")
    elif synchronised:
        yield Finding(Level.OK, "clock", f"synchronised, error at most {error_s * 1000:.0f} ms")
    else:
        says = "not synchronised: it may drift, and a jump stops discards"
        yield Finding(Level.WARN, "clock", says, "install chrony or systemd-timesyncd; in a container, do this on the host")


def _behind_last_batch_s(settings: Settings) -> float:
    if importlib.util.find_spec("numpy") is None:
        return 0.0
    from store.errors import StoreError
    from store.io.pages import JOB_MAGIC, JOB_PUBLISHED, JobSlot, PublishedPage

    page = settings.store_dir / JOB_PUBLISHED
    if not page.exists():
        return 0.0
    try:
        return PublishedPage(page, JOB_MAGIC)[JobSlot.NOW_MS] / 1000 - time.time()
    except (StoreError, OSError):
        return 0.0


class _Timex(ctypes.Structure):
    """The begin of Linux' struct timex, and room for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint), ("offset", ctypes.c_long), ("freq", ctypes.c_long), ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long), ("status", ctypes.c_int), ("rest", ctypes.c_byte * 256),
    )  # fmt: skip


def _kernel_clock() -> tuple[bool | None, float]:
    """(whether the kernel calls its clock synchronised, by how many seconds it may be wrong); (None, 0) where unknown."""
    try:
        timex = _Timex()  # modes 0: only asks
        state = ctypes.CDLL(None).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError):
        return None, 0.0
    return (None, 0.0) if state < 0 else (not timex.status & _STA_UNSYNC, timex.maxerror / 1_000_000)
