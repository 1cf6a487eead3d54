"""The brokers' time counts, whatever the driver's machine says; and it is guarded as well."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from runtime.clock import SystemClock
from sinks.kafka import clients
from store.clock import Rules
from store.guarded_clock import ALERT_FILE, GuardedClock
from streaming.kafka import broker_time
from streaming.kafka.broker_time import BrokerTime
from tests.support.kafka import Cluster
from tests.support.one_shard import OneShard

DAYS_MS = 4 * 86_400_000
#: A broker on this machine answers within it, however busy the machine is.
PATIENCE_S = 60.0


class Machine(SystemClock):
    """Its wall clock is days ahead; the time since boot can be moved on."""

    def __init__(self) -> None:
        self.slept_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + DAYS_MS

    def steady_ms(self) -> int:
        return super().steady_ms() + self.slept_ms


@pytest.fixture
def lease(kafka: Cluster, shard: OneShard) -> tuple[clients.Options, str]:
    return shard.connection.librdkafka(), shard.topics.lease


def test_a_driver_whose_clock_is_days_ahead_tells_the_brokers_time(
    lease: tuple[clients.Options, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before_ms = time.time_ns() // 1_000_000
    brokers = BrokerTime(*lease, Machine())
    clock = GuardedClock(brokers, tmp_path, boot=7)
    after_ms = time.time_ns() // 1_000_000
    # An answer is late by its way: time may be behind by that, never ahead.
    assert before_ms - broker_time.ROUND_TRIP_MAX_MS <= clock.now_ms()
    assert brokers.now_ms() <= time.time_ns() // 1_000_000
    assert after_ms - clock.now_ms() < DAYS_MS // 2
    assert "this machine's clock is +345" in caplog.text


def test_it_is_asked_for_again_and_goes_on_meanwhile(lease: tuple[clients.Options, str]) -> None:
    machine = Machine()
    brokers = BrokerTime(*lease, machine)
    first_ms = brokers.now_ms()
    machine.slept_ms = 5_000
    assert brokers.now_ms() >= first_ms + 5_000, "by what has elapsed here"
    machine.slept_ms = broker_time.ASK_EVERY_MS + 1
    ahead = brokers._ahead_ms
    give_up_s = time.monotonic() + PATIENCE_S
    while brokers._ahead_ms == ahead and time.monotonic() < give_up_s:
        brokers.look()
    assert brokers.now_ms() <= time.time_ns() // 1_000_000, "what the broker says counts"


def test_a_broker_whose_clock_jumps_stops_what_discards_until_it_is_back(
    lease: tuple[clients.Options, str], tmp_path: Path
) -> None:
    machine = Machine()
    brokers = BrokerTime(*lease, machine)
    clock = GuardedClock(brokers, tmp_path, Rules(grace_ms=0), boot=7)
    right_ms = brokers.now_ms()
    assert clock.deletes_allowed()
    brokers._heard(right_ms + DAYS_MS)
    assert not clock.deletes_allowed()
    assert clock.now_ms() < right_ms + DAYS_MS // 2, "nothing is older because of it"
    assert (tmp_path / ALERT_FILE).exists()
    brokers._heard(brokers.now_ms() - DAYS_MS)
    assert clock.deletes_allowed()
    assert not clock.alert
