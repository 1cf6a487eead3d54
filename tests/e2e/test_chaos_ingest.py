"""The short form of `make chaos-ingest`: 44 runs, every kind of fault among them."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from store.records import State
from tests.campaigns.chaos_ingest.audit import audit, read_books
from tests.campaigns.chaos_ingest.campaign import Campaign, report
from tests.campaigns.chaos_ingest.plan import CUTS, POINTS

RUNS = 44


@pytest.mark.timeout(1200)
def test_database_and_released_messages_agree_whatever_fails(tmp_path):
    seed = int(os.environ.get("SEED", random.randrange(1 << 32)))
    print(f"SEED={seed}")
    campaign = Campaign(tmp_path, seed)
    outcome = campaign.run(RUNS)
    report(outcome)
    assert outcome.missing() == []
    counts = outcome.counts
    assert counts["runs"] >= 40
    assert all(counts[f"killed {point}"] >= 2 for point in POINTS)
    assert all(min(counts[f"{cut} of halves"], counts[f"{cut} of ends"]) >= 1 for cut in CUTS)
    assert min(counts["edge killed before_flush"], counts["edge killed after_flush"]) >= 2
    assert min(outcome.figures["committed"], outcome.figures["rolled_back"]) >= 20
    the_audit_would_have_found(campaign)


def the_audit_would_have_found(campaign: Campaign) -> None:
    """Whoever trusts an audit must have seen it fail: the same store against databases, producers and consumers that say something
    else."""
    books = read_books(campaign.databases)
    ident, half_id = next(iter(books.rows.items()))
    database = campaign.databases[int(ident.partition("-")[0])]
    undone = next(id for id, state in books.barrier.items() if state == "rolled_back")
    place, body = next((place, body) for place, body in campaign.consumed.items() if body.startswith(f"{ident} "))
    ledger, consumed = campaign.ledger, campaign.consumed

    def check() -> None:
        audit(campaign.data / "store", campaign.databases, campaign.orders, ledger, consumed)

    def fails(match: str, *changes: str, path: Path = database) -> None:
        """With these changes of a database, which are taken back."""
        before = path.read_bytes()
        change(path, *changes)
        with pytest.raises(AssertionError, match=match):
            check()
        path.write_bytes(before)

    row, barrier = f"DELETE FROM orders WHERE ident = '{ident}'", f"DELETE FROM escrow_barrier WHERE id = '{half_id}'"
    fails("says committed, and there is no order", row)
    fails("its barrier row says None", barrier)
    fails(f"order {ident}: COMMITTED, row: False", row, barrier)
    of_undone = campaign.databases[int(ledger.orders_of[undone].partition("-")[0])]
    says = f"UPDATE escrow_barrier SET state = 'committed' WHERE id = '{undone}'"
    insert = f"INSERT INTO orders VALUES ('{ledger.orders_of[undone]}', '{undone}')"
    fails("says committed, and there is no order", says, path=of_undone)
    fails("ROLLED_BACK, row: True", says, insert, path=of_undone)
    consumers_and_producers_that_lie(campaign, check)
    consumed[place] = body
    check()


def consumers_and_producers_that_lie(campaign: Campaign, check: Callable[[], None]) -> None:
    ledger, consumed = campaign.ledger, campaign.consumed
    place, body = next(iter(consumed.items()))

    def fails(match: str) -> None:
        with pytest.raises(AssertionError, match=match):
            check()

    consumed[place] = "something else"
    fails("a consumer got something else")
    del consumed[place]
    fails("no consumer got")
    consumed[place] = body
    elsewhere = (place[0], place[1], place[2] + 1_000_000)
    consumed[elsewhere] = body
    fails("where nothing is")
    del consumed[elsewhere]
    ident, heard = next((ident, heard) for ident, heard in ledger.heard.items() if heard is State.COMMITTED)
    ledger.heard[ident] = State.ROLLED_BACK
    fails("its producer heard ROLLED_BACK")
    ledger.heard[ident] = heard
    ledger.problems.append("EndConflict")
    fails("the first: EndConflict")
    ledger.problems.pop()
    order = campaign.orders.pop(body.partition(" ")[0])
    fails("nobody's order")
    campaign.orders[order.ident] = order


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        for statement in statements:
            assert db.execute(statement).rowcount == 1, statement
        db.commit()
