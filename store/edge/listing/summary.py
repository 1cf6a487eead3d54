"""Counts of what is in doubt, by producer group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from store.arrays import Ints
from store.edge.listing.columns import Columns
from store.edge.listing.half_files import HalfFiles
from store.edge.listing.wanted import DISCARDED, among
from store.records import State, state_of


@dataclass(slots=True)
class Summary:
    """Halves in doubt by group_no."""

    pending: Ints
    oldest_ms: Ints  # 0 = none
    outstanding: Ints
    discarded: int = 0
    oldest_pending_ms: int | None = None

    @staticmethod
    def of_none(groups: int) -> Summary:
        return Summary(np.zeros(groups, np.int64), np.zeros(groups, np.int64), np.zeros(groups, np.int64))

    def add(self, files: HalfFiles, columns: Columns, begin: int) -> None:
        """Count halves from `begin` on: of those before, the files may be gone."""
        first = int(np.searchsorted(columns.half_offset, begin))
        marks = files.ends_of(columns.half_offset[first:])
        self.discarded += int(np.count_nonzero(among(marks, DISCARDED)))
        at = first + np.flatnonzero((marks == 0) & (columns.group_no[first:] < len(self.pending)))
        if not len(at):
            return
        words = files.words(columns.half_offset[at])
        known = state_of(words) != int(State.QUARANTINED)
        at, words = at[known], words[known]
        groups, stored = columns.group_no[at], columns.stored_at_ms[at]
        self.pending += np.bincount(groups, minlength=len(self.pending))
        self.outstanding += np.bincount(groups[files.under_way(words)], minlength=len(self.pending))
        self._note_oldest(groups, stored)

    def _note_oldest(self, groups: Ints, stored: Ints) -> None:
        oldest = np.full(len(self.pending), np.iinfo(np.int64).max)
        np.minimum.at(oldest, groups, stored)
        fresh = (oldest != np.iinfo(np.int64).max) & ((self.oldest_ms == 0) | (oldest < self.oldest_ms))
        self.oldest_ms[fresh] = oldest[fresh]
        if len(stored):
            least = int(stored.min())
            self.oldest_pending_ms = least if self.oldest_pending_ms is None else min(self.oldest_pending_ms, least)
