"""The short form of `make chaos`: 24 kills of the real service, five of them of the Spark driver."""

from __future__ import annotations

import os
import random

import pytest

from tests.campaigns.chaos.audit import audit
from tests.campaigns.chaos.campaign import Campaign, report, short_schedule
from tests.campaigns.chaos.load import Tx
from tests.campaigns.chaos.service import DRIVER_KINDS


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
    assert outcome.of("jvm", when="first_start") == 1, "and the service came up all the same"
    assert outcome.of("source") >= 1
    figures = outcome.figures
    assert min(figures["commits"], figures["rollbacks"], figures["checks_answered"], figures["conflicts"], figures["pending"]) > 0
    the_audit_would_have_found(campaign)


def the_audit_would_have_found(campaign: Campaign) -> None:
    """Whoever trusts an audit must have seen it fail: the same store against a ledger that says something else."""
    ledger, seen, store = campaign.ledger, campaign.consumer.seen, campaign.data / "store"
    committed = next(tx for tx in ledger.txs if tx.final == "COMMITTED")
    place, body = next((place, body) for place, body in seen.items() if body == committed.body)

    def fails(match: str) -> None:
        with pytest.raises(AssertionError, match=match):
            audit(store, ledger, seen)

    committed.final = "ROLLED_BACK"
    fails("the log says COMMITTED")
    committed.final = "COMMITTED"
    committed.body += " "
    fails("stored otherwise than sent")
    committed.body = body
    ledger.txs.append(Tx(len(ledger.txs), "orders", "paid", ledger.batches, "end", "commit", id="x"))
    fails("an acknowledged half is lost")
    ledger.txs.pop()
    ledger.messages["never sent"] = True
    fails("acknowledged messages that are not visible")
    del ledger.messages["never sent"]
    message = next(body for body, acknowledged in ledger.messages.items() if acknowledged)  # others may never have been stored
    del ledger.messages[message]
    fails("released although nobody committed it")
    ledger.messages[message] = True
    seen[place] = "something else"
    fails("a consumer saw something else")
    seen[place] = body
    audit(store, ledger, seen)
