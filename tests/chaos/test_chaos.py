"""The short form of `make chaos`: 24 kills of the real service, five of them of the Spark driver."""

from __future__ import annotations

import os
import random

import pytest

from tests.chaos.campaign import Campaign, report, short_schedule
from tests.chaos.service import DRIVER_KINDS


@pytest.mark.timeout(1200)
def test_kills_of_the_whole_service_under_load(tmp_path):
    seed = int(os.environ.get("SEED", random.randrange(1 << 32)))
    print(f"SEED={seed}")
    campaign = Campaign(tmp_path / "data", seed)
    outcome = campaign.run(short_schedule(campaign.rng))
    report(outcome)
    assert outcome.total >= 20
    assert outcome.of(*DRIVER_KINDS) >= 4
    assert outcome.of(*DRIVER_KINDS, when="ready") >= 2
    assert outcome.of("source") >= 1
    figures = outcome.figures
    assert min(figures["commits"], figures["rollbacks"], figures["checks_answered"], figures["conflicts"], figures["pending"]) > 0
