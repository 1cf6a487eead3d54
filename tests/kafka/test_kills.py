"""The short form of `make chaos-kafka`: seven kills on one broker, `local[2]`."""

from __future__ import annotations

import os
import random

import pytest

from tests.campaigns.kafka.campaign import Campaign, report
from tests.campaigns.kafka.load import Promised, Seen, audit, audit_halves
from tests.support.kafka import Cluster

KINDS = ("worker", "endpoint", "driver", "worker", "broker", "endpoint", "store")


@pytest.mark.timeout(1800)
def test_kills_of_driver_worker_broker_and_endpoint_under_load_53_54_55(breakable_kafka: Cluster) -> None:
    seed = int(os.environ.get("SEED", random.randrange(1 << 32)))
    print(f"SEED={seed}")
    campaign = Campaign(breakable_kafka, seed)
    try:
        campaign.run(KINDS)
        report(campaign)
    finally:
        campaign.close()
    assert [kill.kind for kill in campaign.watch.kills] == list(KINDS)


def seen(number: int, *, offset: int | None = None, key: bytes = b"k", place: tuple[int, int] | None = None) -> Seen:
    return Seen(0, number if offset is None else offset, key, number, place or (0, number))


PROMISED = Promised({1, 2, 3}, {4}, {number: (0, number) for number in range(10)})


@pytest.mark.parametrize("also", [[], [seen(4)]])
def test_the_audit_takes_what_was_promised(also: list[Seen]) -> None:
    audit([seen(1), seen(2), seen(3), *also], PROMISED)


@pytest.mark.parametrize(
    ("released", "wrong"),
    [
        ([seen(1), seen(2), seen(3), seen(3, offset=9)], "more than once"),
        ([seen(1), seen(2), seen(3), seen(4), seen(4, offset=9)], "more than once"),
        ([seen(1), seen(2)], "not released"),
        ([seen(1), seen(2), seen(3), seen(5)], "nobody committed"),
        ([seen(1), seen(2), seen(3, place=(0, 8))], "another half"),
        ([seen(1, offset=7), seen(2), seen(3)], "out of order"),
    ],
)
def test_the_audit_finds(released: list[Seen], wrong: str) -> None:
    """Whoever trusts an audit must have seen it fail."""
    with pytest.raises(AssertionError, match=wrong):
        audit(released, PROMISED)


def test_the_audit_finds_a_lost_half() -> None:
    stored = {(0, number): number for number in range(10)}
    assert audit_halves({**stored, (0, 99): 4}, PROMISED) == 1
    del stored[0, 7]
    with pytest.raises(AssertionError, match="not in Kafka"):
        audit_halves(stored, PROMISED)
