"""The job as tests start it: `python -m tests.support.kafka_job SHIFT_FILE …`, the real one with a clock that tests can move.

SHIFT_FILE holds milliseconds that are added to the machine's time, both to wall time and to steady time, and to the brokers' time
as the job is told it; missing counts as 0.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from runtime.clock import SystemClock
from streaming import job
from streaming.kafka import service
from streaming.kafka.broker_time import BrokerTime


def shift_ms() -> int:
    try:
        return int(Path(sys.argv[1]).read_text() or "0")
    except FileNotFoundError:
        return 0


class ShiftedClock(SystemClock):
    def now_ms(self) -> int:
        return super().now_ms() + shift_ms()

    def steady_ms(self) -> int:
        return super().steady_ms() + shift_ms()


class ShiftedBrokers(BrokerTime):
    def _heard(self, append_ms: int) -> None:
        super()._heard(append_ms + shift_ms())


if __name__ == "__main__":
    setattr(service, "SystemClock", ShiftedClock)  # noqa: B010 - mypy would not have it assigned
    setattr(service, "BrokerTime", ShiftedBrokers)  # noqa: B010
    with job._exit_for_sure():
        status = job.main(sys.argv[2:])
    os._exit(status)
