"""The brokers' time: what a driver holds ages against, because halves are stamped by brokers and not by the driver's machine.

The driver writes a small record to the lease topic, whose records are stamped by the broker that takes them (LogAppendTime), and is
told that time. Between two such records time goes on by what has elapsed on this machine (CLOCK_BOOTTIME). The machine's own wall
clock decides nothing. A broker's clock may jump as well: `store.guarded_clock` reads this source as it reads a wall clock
elsewhere, so a jump stops what discards or deletes until the clock is back or an operator confirms.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message, Producer

from runtime.clock import Clock

LOG: Final = logging.getLogger("escrow.kafka")
ASK_EVERY_MS: Final = 10_000
#: A record that was on its way for longer tells little about now.
ROUND_TRIP_MAX_MS: Final = 2_000
START_S: Final = 60.0
SKEW_TOLD_MS: Final = 60_000
RECORD: Final = b"time"


class BrokerTime:
    """A `Clock`: `now_ms` is the brokers' time, `steady_ms` that of the machine. Asked by one thread; read by any."""

    def __init__(self, options: dict[str, Any], topic: str, machine: Clock) -> None:
        self._machine, self._topic = machine, topic
        self._producer = Producer({**options, "acks": "all", "message.timeout.ms": ROUND_TRIP_MAX_MS, "linger.ms": 0})
        self._ahead_ms: int | None = None  # of the machine's steady time
        self._asked_ms: int | None = None
        self._problem: KafkaError | None = None
        self._ask_first()

    def now_ms(self) -> int:
        assert self._ahead_ms is not None
        return self._machine.steady_ms() + self._ahead_ms

    def steady_ms(self) -> int:
        return self._machine.steady_ms()

    def look(self) -> None:
        """Hear what was answered, and ask again when it is time to. Waits for nothing: without Kafka, time goes on."""
        self._producer.poll(0)
        if self._asked_ms is None or self.steady_ms() - self._asked_ms >= ASK_EVERY_MS:
            self._ask()

    def _ask(self) -> None:
        asked_ms = self._asked_ms = self.steady_ms()
        try:
            self._producer.produce(
                self._topic, RECORD, partition=0, on_delivery=lambda error, message: self._answered(error, message, asked_ms)
            )
        except (BufferError, KafkaException) as error:
            LOG.debug("the brokers' time cannot be asked for: %s", error)

    def _answered(self, error: KafkaError | None, message: Message, asked_ms: int) -> None:
        self._problem = error
        if error is not None:
            return
        kind, append_ms = message.timestamp()
        if kind == TIMESTAMP_LOG_APPEND_TIME and self.steady_ms() - asked_ms <= ROUND_TRIP_MAX_MS:
            self._heard(append_ms)

    def _heard(self, append_ms: int) -> None:
        """Held against now, not against when it was asked for: time may be behind by the way of the answer, never ahead."""
        self._ahead_ms = append_ms - self.steady_ms()

    def _ask_first(self) -> None:
        give_up_s = time.monotonic() + START_S
        while self._ahead_ms is None:
            if time.monotonic() > give_up_s:
                text = f"no broker has told its time within {START_S:.0f} s"
                raise KafkaException(self._problem or KafkaError(KafkaError._TIMED_OUT, text))
            self._ask()
            self._producer.flush(ROUND_TRIP_MAX_MS / 1000)
        skew_ms = self._machine.now_ms() - self.now_ms()
        if abs(skew_ms) > SKEW_TOLD_MS:
            LOG.warning("this machine's clock is %+.0f s away from the brokers': theirs counts; look at both", skew_ms / 1000)
