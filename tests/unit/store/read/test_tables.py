"""The history as tables, whatever the ranges: over a store that edge and job have written."""

from __future__ import annotations

import numpy as np
import pytest

from store.edge.store import EdgeStore, End
from store.messages import Message
from store.read.export_scan import Wanted
from store.read.tables import COLUMNS, Tables, as_list
from store.records import OpKind, State, Via
from tests.support.service import ROOMY, T0_MS


@pytest.fixture
def root(tmp_path):
    """20 halves of two groups: half n ends n + 1 seconds later, by n % 4; every fifth was asked twice before."""
    store = EdgeStore(tmp_path, geometry=ROOMY)
    store.prepare([Message(f"g{n % 2}", f"t{n % 3}", b"x", {"KEYS": f"k{n}"} if n % 2 else {}) for n in range(20)], T0_MS)
    for n in range(0, 20, 5):
        store.append_asked([n], "m1", T0_MS + 100)
        store.end([End(n, OpKind.UNKNOWN, f"g{n % 2}", Via.CHECK)], T0_MS + 300)
        store.append_asked([n], "m2", T0_MS + 500)
    for n in range(20):
        kind = {0: OpKind.COMMIT, 1: OpKind.ROLLBACK, 2: None, 3: OpKind.COMMIT}[n % 4]
        if kind is not None:
            store.end([End(n, kind, f"g{n % 2}", Via.CHECK if n % 5 == 0 else Via.PRODUCER)], T0_MS + (n + 1) * 1000)
    store.close()
    return tmp_path


def rows(root, table, step=1000, wanted=Wanted(), columns=None):  # noqa: B008
    tables = Tables(root, None)
    try:
        first, stop = tables.extent(wanted)
        found = [
            each for low in range(first, stop, step) for each in tables.scan(table, low, min(low + step, stop), wanted, columns)
        ]
        names = list(COLUMNS[table]) if columns is None else columns
        return [
            dict(zip(names, row, strict=True)) for each in found for row in zip(*(as_list(each[n]) for n in names), strict=True)
        ]
    finally:
        tables.close()


@pytest.mark.parametrize("table", ["transactions", "ops", "checks"])
def test_rows_do_not_depend_on_the_ranges(root, table):
    whole = rows(root, table)
    key = ("half_offset", "op_offset") if table != "transactions" else ("half_offset",)
    for step in (1, 3, 7):
        pieces = rows(root, table, step)
        assert sorted(pieces, key=lambda row: [row[k] for k in key]) == sorted(whole, key=lambda row: [row[k] for k in key])


def test_transactions(root):
    found = rows(root, "transactions")
    assert [row["half_offset"] for row in found] == list(range(20))
    for n, row in enumerate(found):
        assert (row["group"], row["topic"], row["key"]) == (f"g{n % 2}", f"t{n % 3}", f"k{n}" if n % 2 else None)
        outcome = {0: "commit", 1: "rollback", 2: None, 3: "commit"}[n % 4]
        assert row["outcome"] == outcome
        assert row["state"] == {"commit": "committed", "rollback": "rolled_back", None: "pending"}[outcome]
        assert row["duration_s"] == (None if outcome is None else n + 1.0)
        assert (row["queue_offset"] is not None) == (outcome == "commit")


def test_checks_have_the_answer_that_followed(root):
    found = rows(root, "checks")
    mine = [row for row in found if row["half_offset"] == 5]
    assert [(row["attempt"], row["member"], row["answer"], row["answer_s"]) for row in mine] == [
        (1, "m1", "unknown", 0.2), (2, "m2", "rollback", 5.5),
    ]  # fmt: skip
    pending = [row for row in found if row["half_offset"] == 10]
    assert [(row["attempt"], row["answer"]) for row in pending] == [(1, "unknown"), (2, None)]


def test_ops_in_log_order(root):
    mine = [row for row in rows(root, "ops") if row["half_offset"] == 5]
    assert [(row["op"], row["actor"]) for row in mine] == [
        ("asked", "m1"), ("unknown", None), ("asked", "m2"), ("rolled_back", None),
    ]  # fmt: skip
    assert [row["by"] for row in mine if row["op"] != "asked"] == ["check", "check"]


def test_filters_and_chosen_columns(root):
    wanted = Wanted(groups=["g1"], states=[State.ROLLED_BACK])
    found = rows(root, "transactions", wanted=wanted, columns=["half_offset", "group"])
    assert [row["half_offset"] for row in found] == [1, 5, 9, 13, 17]
    assert all(list(row) == ["half_offset", "group"] for row in found)
    assert rows(root, "transactions", wanted=Wanted(since_ms=T0_MS + 1)) == []
    assert np.all([row["id"] is None for row in rows(root, "transactions")]), "no keys, no ids"
