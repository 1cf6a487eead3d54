"""The machine's clocks, as the server's processes read them. What is believed of them is decided in `store.clock`."""

from __future__ import annotations

import time
from hashlib import blake2b
from pathlib import Path
from typing import Final, Protocol

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
#: Keeps counting while the machine sleeps, where the system has such a clock.
_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Where time comes from."""

    def now_ms(self) -> int:
        """Wall time."""

    def steady_ms(self) -> int:
        """Time that never jumps, from an arbitrary start."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        return time.clock_gettime_ns(_STEADY) // 1_000_000


def this_boot() -> int:
    """A number for the time since the machine was started; 0 where the system does not tell."""
    try:
        return int.from_bytes(blake2b(_BOOT_ID.read_bytes(), digest_size=8).digest(), "little") >> 1 or 1
    except OSError:
        return 0
