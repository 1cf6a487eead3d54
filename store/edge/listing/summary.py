"""Counts of what is in doubt, by producer group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from store.arrays import Array, Ints
from store.edge.listing.columns import Columns
from store.edge.listing.half_files import HalfFiles
from store.edge.listing.wanted import DISCARDED, among
from store.records import State, check_count_of, state_of


@dataclass(slots=True)
class Fold:
    """Halves in doubt that have the same group and cause."""

    count: int = 0
    oldest_ms: int = 0
    newest_ms: int = 0
    attempts_max: int = 0


class FoldKey(NamedTuple):
    """`cause`: what the caller's `causes` says; 0 = nothing, -1 = nothing though the half was asked about."""

    is_discarded: bool
    group_no: int
    cause: int


#: Half offsets → a number for the cause of each; 0 = none known.
Causes = Callable[[Ints], Ints]


@dataclass(slots=True)
class Summary:
    """Halves in doubt by group_no, and folded by cause."""

    pending: Ints
    oldest_ms: Ints  # 0 = none
    outstanding: Ints
    discarded_of: Ints
    discarded: int = 0
    oldest_pending_ms: int | None = None
    folds: dict[FoldKey, Fold] = field(default_factory=dict)

    @staticmethod
    def of_none(groups: int) -> Summary:
        pending, oldest, outstanding, discarded = (np.zeros(groups, np.int64) for _ in range(4))
        return Summary(pending, oldest, outstanding, discarded)

    def _fold(self, columns: Columns, at: Ints, words: Array, causes: Causes | None, *, is_discarded: bool) -> None:
        """Add rows to the folds that they belong to."""
        if causes is None or not len(at):
            return
        attempts, code, stored = check_count_of(words), causes(columns.half_offset[at]), columns.stored_at_ms[at]
        code[(code == 0) & (attempts > 0)] = -1
        groups = columns.group_no[at].astype(np.int64)
        pairs, which, counts = np.unique(groups << 32 | (code + 1), return_inverse=True, return_counts=True)
        order, starts = np.argsort(which, kind="stable"), np.concatenate([[0], np.cumsum(counts)[:-1]])
        found = (
            counts, np.minimum.reduceat(stored[order], starts), np.maximum.reduceat(stored[order], starts),
            np.maximum.reduceat(attempts[order], starts),
        )  # fmt: skip
        for pair, count, oldest, newest, most in zip(pairs.tolist(), *(each.tolist() for each in found), strict=True):
            fold = self.folds.setdefault(FoldKey(is_discarded, pair >> 32, (pair & 0xFFFFFFFF) - 1), Fold())
            fold.count += count
            fold.oldest_ms = min(fold.oldest_ms or oldest, oldest)
            fold.newest_ms = max(fold.newest_ms, newest)
            fold.attempts_max = max(fold.attempts_max, most)

    def add(self, files: HalfFiles, columns: Columns, begin: int, causes: Causes | None = None) -> None:
        """Count halves from `begin` on: of those before, the files may be gone."""
        first = int(np.searchsorted(columns.half_offset, begin))
        marks = files.ends_of(columns.half_offset[first:])
        known_group = columns.group_no[first:] < len(self.pending)
        self.discarded += int(np.count_nonzero(among(marks, DISCARDED)))
        discarded = first + np.flatnonzero(among(marks, DISCARDED) & known_group)
        if len(discarded):
            self.discarded_of += np.bincount(columns.group_no[discarded], minlength=len(self.pending))
            self._fold(columns, discarded, files.words(columns.half_offset[discarded]), causes, is_discarded=True)
        at = first + np.flatnonzero((marks == 0) & known_group)
        if not len(at):
            return
        words = files.words(columns.half_offset[at])
        known = state_of(words) != int(State.QUARANTINED)
        at, words = at[known], words[known]
        groups, stored = columns.group_no[at], columns.stored_at_ms[at]
        self.pending += np.bincount(groups, minlength=len(self.pending))
        self.outstanding += np.bincount(groups[files.under_way(words)], minlength=len(self.pending))
        self._fold(columns, at, words, causes, is_discarded=False)
        self._note_oldest(groups, stored)

    def _note_oldest(self, groups: Ints, stored: Ints) -> None:
        oldest = np.full(len(self.pending), np.iinfo(np.int64).max)
        np.minimum.at(oldest, groups, stored)
        fresh = (oldest != np.iinfo(np.int64).max) & ((self.oldest_ms == 0) | (oldest < self.oldest_ms))
        self.oldest_ms[fresh] = oldest[fresh]
        if len(stored):
            least = int(stored.min())
            self.oldest_pending_ms = least if self.oldest_pending_ms is None else min(self.oldest_pending_ms, least)
