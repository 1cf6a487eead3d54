"""Records of the redo topic, without a broker: what is put together from them, and what is passed over."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.errors import RedoBroken
from sinks.kafka import redo
from sinks.kafka.contract import GROUP_MAX_BYTES
from store.job.undeliverable import Refusal
from store.tables.redo_log import MARKER, REDO, Marker
from tests.support.redo_records import as_read


@pytest.fixture(autouse=True)
def few_entries_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redo, "ENTRIES_PER_RECORD", 10)


def written(*counts: int) -> list[Any]:
    """A claim, and batches of so many entries."""
    records = [redo.claim_record(1, "me", 0, 0)]
    for sequence, count in enumerate(counts, 1):
        records += redo.batch_records(np.zeros(count, REDO), Marker(sequence=sequence), 1, [], {})
    return as_read(records)


def sequences(records: list[Any], *, cut: bool) -> list[int]:
    decoder = redo.Decoder(0, cut=cut)
    taken = [decoder.take(record) for record in records]
    return [batch.marker.sequence for batch in taken if isinstance(batch, redo.RedoBatch)]


@pytest.mark.parametrize(
    ("begin", "whole"),
    [(0, [1, 2, 3]), (1, [1, 2, 3]), (2, [2, 3]), (3, [2, 3]), (4, [2, 3]), (5, [2, 3]), (6, [3]), (7, [3])],
)
def test_the_batch_that_retention_has_cut_is_passed_over_and_the_next_ones_are_read(begin: int, whole: list[int]) -> None:
    # 0 claim · 1, 2, 3 entries, 4 marker of the first batch · 5, 6 of the second · 7 marker of the third, which has no entries
    assert sequences(written(25, 5, 0)[begin:], cut=begin > 0) == whole


@pytest.mark.parametrize("missing", [1, 2, 3, 5])
def test_a_batch_that_is_not_whole_elsewhere_is_no_batch_of_ours(missing: int) -> None:
    records = written(25, 5)
    del records[missing]
    with pytest.raises(RedoBroken, match="CRC"):
        sequences(records, cut=True)


def test_very_many_refusals_are_read_back_from_records_that_fit() -> None:
    refused = {half_offset: f"topic {half_offset}{'x' * half_offset}: none" for half_offset in range(20_000)}
    refusals = {at: Refusal(reason, 1 << 63, "t" * 249, 1_900_000_000_000) for at, reason in refused.items()}
    records = as_read(redo.batch_records(np.zeros(1, REDO), Marker(sequence=1), 1, [], refusals))
    assert max(len(record.value()) for record in records) < 1 << 20
    decoder = redo.Decoder(0)
    *_, batch = [decoder.take(record) for record in records]
    assert isinstance(batch, redo.RedoBatch)
    assert [at for at, _ in batch.refused] == list(refused)
    assert all(each[1:] == refusals[at][1:] for at, each in batch.refused)
    reasons = [(refused[at], each.reason) for at, each in batch.refused]
    assert all(whole.startswith(reason) and len(reason) >= min(400, len(whole)) for whole, reason in reasons)


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda name: len(name.encode()) <= GROUP_MAX_BYTES)


@given(st.lists(st.tuples(st.integers(0, 25), st.lists(NAMES, max_size=25), st.lists(NAMES, max_size=9)), max_size=4), st.data())
def test_what_is_read_is_what_was_written_from_wherever_retention_lets_it_begin(
    batches: list[tuple[int, list[str], list[str]]], data: st.DataObject
) -> None:
    records, wanted, ends = list[redo.Record](), list[Any](), list[int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redo, "GROUPS_PER_RECORD", 10)
        for sequence, (count, names, reasons) in enumerate(batches, 1):
            groups, refused = list(enumerate(names)), {at: Refusal(each, at) for at, each in enumerate(reasons[:count])}
            records += redo.batch_records(np.zeros(count, REDO), Marker(sequence=sequence), 1, groups, refused)
            wanted.append((sequence, count, groups, list(refused.items())))
            ends.append(len(records))
    begin = data.draw(st.integers(0, len(records)), "begin")
    decoder = redo.Decoder(0, cut=begin > 0)
    taken = [decoder.take(record) for record in as_read(records)[begin:]]
    found = [(b.marker.sequence, len(b.entries), b.groups, b.refused) for b in taken if isinstance(b, redo.RedoBatch)]
    behind = [batch for batch, end in zip(wanted, ends, strict=True) if end > begin]
    assert found == (behind if begin in (0, *ends) else behind[1:]), "the one that was cut is passed over"


@pytest.mark.parametrize("letter", ["x", "\x01", "\N{SNOWMAN}"])
def test_very_many_new_groups_are_read_back_from_records_that_fit(letter: str) -> None:
    names = (f"{number:06}".ljust(GROUP_MAX_BYTES - 3 * 40, "-") + letter * 40 for number in range(50_000))
    groups = list(enumerate(names, 7))
    records = as_read(redo.batch_records(np.zeros(1, REDO), Marker(sequence=1), 1, groups, {}))
    assert max(len(record.value()) for record in records) < 1 << 20
    decoder = redo.Decoder(0)
    *_, batch = [decoder.take(record) for record in records]
    assert isinstance(batch, redo.RedoBatch)
    assert batch.groups == groups


def test_the_longest_names_fit_however_badly_they_compress() -> None:
    longest = [(10**9, "\x01" * GROUP_MAX_BYTES)] * redo.GROUPS_PER_RECORD
    assert len(json.dumps(longest)) < 1 << 20


def test_a_batch_whose_groups_are_not_all_there_is_no_batch_of_ours() -> None:
    records = as_read(redo.batch_records(np.zeros(1, REDO), Marker(sequence=1), 1, [(0, "g")], {}))
    decoder = redo.Decoder(0)
    decoder.take(records[0])
    with pytest.raises(RedoBroken, match="the names of 1 groups, and 0 are there"):
        decoder.take(records[2])


def test_groups_are_also_read_from_the_marker_where_they_stood_at_first() -> None:
    ((headers, value),) = redo.batch_records(np.empty(0, REDO), Marker(sequence=1), 1, [], {})
    rest = json.dumps({"term": 1, "groups": [[0, "orders"], [1, "payments"]]}).encode()
    (record,) = as_read([(headers, value[: MARKER.itemsize] + rest)])
    batch = redo.Decoder(0).take(record)
    assert isinstance(batch, redo.RedoBatch)
    assert batch.groups == [(0, "orders"), (1, "payments")]


def test_refusals_are_also_read_from_the_marker_where_they_stood_at_first() -> None:
    ((headers, value),) = redo.batch_records(np.empty(0, REDO), Marker(sequence=1), 1, [], {})
    rest = json.loads(value[MARKER.itemsize :]) | {"refused": [[7, "too large"]]}
    (record,) = as_read([(headers, value[: MARKER.itemsize] + json.dumps(rest).encode())])
    batch = redo.Decoder(0).take(record)
    assert isinstance(batch, redo.RedoBatch)
    assert batch.refused == [(7, Refusal("too large"))]


def test_the_refusals_of_a_batch_that_was_cut_are_not_those_of_the_next_one() -> None:
    records = [*redo.batch_records(np.zeros(1, REDO), Marker(sequence=1), 1, [], {3: Refusal("too large")})][1:]
    records += redo.batch_records(np.zeros(1, REDO), Marker(sequence=2), 1, [], {})
    decoder = redo.Decoder(0, cut=True)
    *_, batch = [decoder.take(record) for record in as_read(records)]
    assert isinstance(batch, redo.RedoBatch)
    assert (batch.marker.sequence, batch.refused) == (2, [])
