"""The short form of `make chaos-kafka`: seven kills on one broker, `local[2]`."""

from __future__ import annotations

import os
import random

import pytest

from tests.kafka.campaign import Campaign, audit, report
from tests.support.kafka import kafka_cluster

KINDS = ("driver", "worker", "broker", "worker", "store", "jvm", "worker")


@pytest.mark.timeout(1800)
def test_kills_of_driver_worker_and_broker_under_load() -> None:
    seed = int(os.environ.get("SEED", random.randrange(1 << 32)))
    print(f"SEED={seed}")
    with kafka_cluster() as cluster:
        campaign = Campaign(cluster, seed)
        try:
            campaign.run(KINDS)
            report(campaign)
            the_audit_would_have_found(campaign)
        finally:
            campaign.close()
    assert sum(campaign.kills.values()) >= 6


def the_audit_would_have_found(campaign: Campaign) -> None:
    """Whoever trusts an audit must have seen it fail."""
    assert campaign.load is not None
    messages, committed = campaign.world.released("paid"), campaign.load.committed
    with pytest.raises(AssertionError, match="more than once"):
        audit([*messages, messages[0]], committed)
    with pytest.raises(AssertionError, match="not released"):
        audit(messages[1:], committed)
    with pytest.raises(AssertionError, match="nobody committed"):
        audit(messages, [number for number in committed if number != int(messages[0].value())])
