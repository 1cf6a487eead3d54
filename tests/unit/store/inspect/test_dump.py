"""Dump: every record of a small store, word for word as in tests/golden (`--regenerate-golden` writes them anew)."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from escrow.cli.render import json_line, text_line
from store.edge.store import EdgeStore
from store.errors import IllegalName, InvalidRecord, NotAStore
from store.inspect.dump import dump
from tests.support.sample_store import GEOMETRY, build_sample

GOLDEN = Path(__file__).parents[3] / "golden"
ALL = ("half", "op", "state", "redo", "check", "proposal", "discard", "quarantine", "ends", "dictionary", "audit", "consumers")
NUMBER = {
    "half": "half_offset",
    "op": "op_offset",
    "state": "half_offset",
    "redo": "redo_entry",
    "check": "entry",
    "ends": "half_offset",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample store with its two corrupt frames."""
    root = tmp_path_factory.mktemp("dump") / "store"
    build_sample(root, mend=False)
    return root


@pytest.mark.parametrize("what", [*ALL, "topic-paid", "topic-shipped"])
def test_golden(root: Path, what: str, regenerate_golden: bool) -> None:
    kind, _, topic = what.partition("-")
    text = "".join(f"{text_line(record)}\n" for record in dump(root, kind, topic or None))
    golden = GOLDEN / f"dump-{what}.txt"
    if regenerate_golden:
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("what", ALL)
def test_every_record_is_one_json_object(root: Path, what: str) -> None:
    for record in dump(root, what):
        assert json.loads(json_line(record))


@pytest.mark.parametrize("what", sorted(NUMBER))
def test_start_and_limit(root: Path, what: str) -> None:
    every = list(dump(root, what))
    numbers = [int(str(record[NUMBER[what]])) for record in every]
    assert all(first < second for first, second in pairwise(numbers))
    start = numbers[5]
    assert list(dump(root, what, start=start)) == every[5:]
    assert list(dump(root, what, start=start, limit=3)) == every[5:8]
    assert list(dump(root, what, limit=0)) == []
    assert list(dump(root, what, start=numbers[-1] + 1)) == []


def test_start_counts_in_each_queue_of_a_topic(root: Path) -> None:
    found = [(record["queue_id"], record["queue_offset"]) for record in dump(root, "topic", "shipped", start=1)]
    assert found == [(0, 1), (1, 1), (1, 2)]


def test_a_corrupt_record_does_not_stop_the_dump(root: Path) -> None:
    halves = list(dump(root, "half"))
    assert [half["half_offset"] for half in halves if "corrupt" in half] == [6]
    assert len(halves) == 13
    ops = list(dump(root, "op"))
    assert [op["op_offset"] for op in ops if "corrupt" in op] == [12]


def test_damaged_redo_log_is_dumped_around_the_damage(root: Path, tmp_path: Path) -> None:
    build_sample(tmp_path / "store")
    path = next((tmp_path / "store").glob("transaction/redolog/*/0/00000000000000000000"))
    content = bytearray(path.read_bytes())
    content[20 * 52] ^= 0xFF
    path.write_bytes(content)
    records = list(dump(tmp_path / "store", "redo"))
    assert [record["redo_entry"] for record in records if "corrupt" in record] == [49]
    assert {record.get("batch") for record in records if "corrupt" not in record} == {*range(1, 11)} - {3}


def test_damaged_journals_and_rows(root: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    build_sample(store)
    for name in ("audit", "consumers"):
        content = (store / name).read_bytes()
        (store / name).write_bytes(content[:-1])
        *good, last = dump(store, name)
        assert last["corrupt"] == "not a whole valid record"
        assert all("corrupt" not in record for record in good)
    table = next(store.glob("transaction/generation-*/statetable/0/*"))
    rows = bytearray(table.read_bytes())
    rows[24 * 2 + 20] |= 0b111
    table.write_bytes(rows)
    assert [row["half_offset"] for row in dump(store, "state") if "corrupt" in row] == [2]


def test_a_store_without_anything(tmp_path: Path) -> None:
    EdgeStore(tmp_path / "store", geometry=GEOMETRY).close()
    for what in ALL:
        assert list(dump(tmp_path / "store", what)) == []


def test_what_there_is_not(root: Path, tmp_path: Path) -> None:
    with pytest.raises(IllegalName, match="paid, shipped"):
        list(dump(root, "topic", "nothing"))
    with pytest.raises(InvalidRecord, match="one of half, op"):
        list(dump(root, "everything"))
    with pytest.raises(NotAStore):
        list(dump(tmp_path, "half"))
