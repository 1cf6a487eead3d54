"""Records of the redo topic, without a broker: what is put together from them, and what is passed over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sinks.errors import RedoBroken
from sinks.kafka import redo
from store.redo_log import REDO, Marker


class Read:
    """A record as a consumer returns it."""

    def __init__(self, redo_offset: int, record: redo.Record) -> None:
        self._offset, (self._headers, self._value) = redo_offset, record

    def offset(self) -> int:
        return self._offset

    def headers(self) -> Any:
        return list(self._headers)

    def value(self) -> bytes:
        return self._value


@pytest.fixture(autouse=True)
def few_entries_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redo, "ENTRIES_PER_RECORD", 10)


def written(*counts: int) -> Iterator[Any]:
    """A claim, and batches of so many entries."""
    records = [redo.claim_record(1, "me", 0)]
    for sequence, count in enumerate(counts, 1):
        records += redo.batch_records(np.zeros(count, REDO), Marker(sequence=sequence), 1, [], {})
    return iter([Read(at, record) for at, record in enumerate(records)])


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
    assert sequences(list(written(25, 5, 0))[begin:], cut=begin > 0) == whole


@pytest.mark.parametrize("missing", [1, 2, 3, 5])
def test_a_batch_that_is_not_whole_elsewhere_is_no_batch_of_ours(missing: int) -> None:
    records = list(written(25, 5))
    del records[missing]
    with pytest.raises(RedoBroken, match="CRC"):
        sequences(records, cut=True)
