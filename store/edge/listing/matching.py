"""Which halves of some columns a filter lets through. What costs least comes first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from store.arrays import Array, Ints
from store.edge.listing.columns import SEPARATOR, Columns, hits, key_hash
from store.edge.listing.half_files import HalfFiles
from store.edge.listing.wanted import Filter, among, within_attempts
from store.records import check_count_of

#: Keys of up to this many rows are searched one by one.
FEW_ROWS: Final = 1024


class Matcher:
    def __init__(self, files: HalfFiles) -> None:
        self._files = files

    def matching(self, columns: Columns, filter: Filter, low: int, high: int) -> Ints:
        """The half offsets from low on and before high that are wanted, ascending."""
        if filter.key is not None and columns.key_hash is not None and not (columns.key_hash == key_hash(filter.key)).any():
            return np.empty(0, np.int64)  # most pieces have nothing like it
        positions = self._by_columns(columns, filter, low, high)
        if filter.key is not None and len(positions):
            positions = positions[self._is_key(columns, positions, filter.key)]
        if filter.text is not None and len(positions):
            positions = positions[self._has_text(columns, positions, filter)]
        offsets: Ints = columns.half_offset[positions]
        if filter.by_attempts and len(offsets):
            offsets = offsets[within_attempts(check_count_of(self._files.words(offsets)), filter.wanted)]
        return offsets

    def _by_columns(self, columns: Columns, filter: Filter, low: int, high: int) -> Ints:
        wanted = filter.wanted
        first, stop = np.searchsorted(columns.half_offset, [low, high]).tolist()
        tests = [among(self._files.ends_of(columns.half_offset[first:stop]), wanted.ends)]
        if filter.group_no is not None:
            tests.append(columns.group_no[first:stop] == filter.group_no)
        if filter.topic_no is not None:
            tests.append(columns.topic_no[first:stop] == filter.topic_no)
        if wanted.stored_from_ms is not None:
            tests.append(columns.stored_at_ms[first:stop] >= wanted.stored_from_ms)
        if wanted.stored_until_ms is not None:
            tests.append(columns.stored_at_ms[first:stop] <= wanted.stored_until_ms)
        kept = tests[0]
        for test in tests[1:]:
            kept &= test
        found: Ints = np.flatnonzero(kept) + first
        if wanted.only is not None and len(found):
            found = found[wanted.only(columns.half_offset[found], columns.group_no[found])]
        return found

    def _has_text(self, columns: Columns, positions: Ints, filter: Filter) -> Array:
        assert filter.text is not None
        found = _looked_up(filter.groups_with_text, columns.group_no[positions])
        found |= _looked_up(filter.topics_with_text, columns.topic_no[positions])
        if not found.all():
            found |= self._in_key(columns, positions, filter.text)
        return found

    def _is_key(self, columns: Columns, positions: Ints, key: bytes) -> Array:
        """Which of these rows have this key."""
        if columns.key_hash is None:
            return self._keys_where(columns, positions, key.__eq__)
        found = columns.key_hash[positions] == key_hash(key)
        alike = np.flatnonzero(found)
        if len(alike):
            found[alike] = self._keys_where(columns, positions[alike], key.__eq__)
        return np.asarray(found)

    def _in_key(self, columns: Columns, positions: Ints, text: bytes) -> Array:
        """Which of these rows have a key that contains the text."""
        if columns.key_at is None:
            return self._keys_where(columns, positions, lambda key: text in key)
        if len(positions) <= FEW_ROWS:
            bounds = zip(columns.key_at[positions].tolist(), (columns.key_at[positions + 1] - 1).tolist(), strict=True)
            find = columns.keys.find
            return np.fromiter((find(text, first, stop) >= 0 for first, stop in bounds), np.bool_, len(positions))
        if SEPARATOR in text:
            return np.zeros(len(positions), np.bool_)
        has = np.zeros(len(columns), np.bool_)
        has[np.searchsorted(columns.key_at, hits(columns.keys, text), side="right") - 1] = True
        return np.asarray(has[positions])

    def _keys_where(self, columns: Columns, positions: Ints, test: Callable[[bytes], bool]) -> Array:
        """Whole keys, from the files."""
        keys = self._files.read_keys(*self._files.log.half_heads(columns.half_offset[positions]))
        return np.fromiter(map(test, keys), np.bool_, len(positions))


def _looked_up(table: Array, numbers: Array) -> Array:
    """False for names that came after the table was made."""
    return np.asarray(table[np.minimum(numbers, len(table) - 1)] & (numbers < len(table)))
