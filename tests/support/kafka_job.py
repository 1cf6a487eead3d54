"""The job as tests start it: `python -m tests.support.kafka_job SHIFT_FILE …`, the real one with a clock that tests can move.

SHIFT_FILE holds milliseconds that are added to the machine's time, both to wall time and to steady time; missing counts as 0.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from escrow.clock import SystemClock
from streaming import job, kafka_service


class ShiftedClock(SystemClock):
    def __init__(self) -> None:
        self._file = Path(sys.argv[1])

    def _shift_ms(self) -> int:
        try:
            return int(self._file.read_text() or "0")
        except FileNotFoundError:
            return 0

    def now_ms(self) -> int:
        return super().now_ms() + self._shift_ms()

    def steady_ms(self) -> int:
        return super().steady_ms() + self._shift_ms()


if __name__ == "__main__":
    setattr(kafka_service, "SystemClock", ShiftedClock)  # noqa: B010 - mypy would not have it assigned
    with job._exit_for_sure():
        status = job.main(sys.argv[2:])
    os._exit(status)
