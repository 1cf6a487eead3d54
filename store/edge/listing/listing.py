"""Pages and counts over halves, from the index and the files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from store.arrays import Ints
from store.directory import StoreDirectory
from store.edge.listing.columns import Columns
from store.edge.listing.half_files import HalfFiles, spans
from store.edge.listing.index import Enough, Index, never
from store.edge.listing.matching import Matcher
from store.edge.listing.shown import Shown
from store.edge.listing.summary import Causes, Summary
from store.edge.listing.wanted import IN_DOUBT, Filter, Wanted, resolve
from store.read.readers import CLOCK_SLACK_MS
from store.tables.journals.names import Dictionary


@dataclass(frozen=True, slots=True)
class Page:
    """`following`: where to go on, None = nothing is left. `matched`: of all, where that was counted."""

    half_offsets: list[int]
    following: int | None
    matched: int | None


class Listing:
    """`index` follows the log; `shown` tells more of single halves. Reads with files of its own."""

    def __init__(self, directory: StoreDirectory, dictionary: Dictionary) -> None:
        self._files = HalfFiles(directory, dictionary)
        self._matcher = Matcher(self._files)
        self.index = Index(self._files)
        self.shown = Shown(self._files)

    def __contains__(self, half_offset: int) -> bool:
        return self._files.begin <= half_offset < self._files.end

    def page(
        self, wanted: Wanted, limit: int, *, newest: bool = False, at: int | None = None, count: bool = True,
        enough: Enough = never,
    ) -> Page:  # fmt: skip
        """At most `limit` halves, from `at` on, or before it when the newest come first. `count`: the first page goes on
        behind them as long as it may, to know how many there are."""
        filter = resolve(wanted, self._files.dictionary)
        if filter.impossible:
            return Page([], None, 0)
        low, high = self._bounds(wanted)
        if at is not None:
            low, high = (low, min(high, at)) if newest else (max(low, at), high)
        taken: list[int] = []
        matched, following = 0, None
        for first, stop, offsets in self._scan(filter, low, high, newest):
            matched += len(offsets)
            if following is None:
                following = _take(taken, offsets, limit, newest)
                if following is None and (len(taken) == limit or enough()):
                    following = first if newest else stop
            if following is not None and (not count or at is not None or enough()):
                break
        else:
            return Page(taken, _unless_through(following, low, high, newest), matched if at is None else None)
        return Page(taken, _unless_through(following, low, high, newest), None)

    def every(self, wanted: Wanted) -> Ints:
        """All of them, oldest first. For halves in doubt."""
        filter = resolve(wanted, self._files.dictionary)
        if filter.impossible:
            return np.empty(0, np.int64)
        low, high = self._bounds(wanted)
        found = [offsets for _, _, offsets in self._scan(filter, low, high, newest=False)]
        return np.concatenate([np.empty(0, np.int64), *found])

    def summary(self, causes: Causes | None = None) -> Summary:
        """Counts by group, and by cause where one is told. Walks over everything that is in doubt."""
        files, index = self._files, self.index
        found = Summary.of_none(len(files.dictionary.groups))
        tail = list(spans(max(index.indexed, files.begin), files.end))
        begin = files.begin
        for piece in list(index.pieces):
            found.add(files, piece, begin, causes)
        for first, stop in tail:
            found.add(files, files.describe(first, stop, IN_DOUBT, keys=False), begin, causes)
        return found

    def _bounds(self, wanted: Wanted) -> tuple[int, int]:
        low, high = self._files.begin, self._files.end
        if wanted.in_doubt:
            return low, high
        if wanted.stored_from_ms is not None:
            low = self._files.log.first_half_since(wanted.stored_from_ms - CLOCK_SLACK_MS, low, high)
        if wanted.stored_until_ms is not None:
            high = self._files.log.first_half_since(wanted.stored_until_ms + 1 + CLOCK_SLACK_MS, low, high)
        return low, high

    def _scan(self, filter: Filter, low: int, high: int, newest: bool) -> Iterator[tuple[int, int, Ints]]:
        """(first, stop, what is wanted between them) of one piece after another."""
        in_doubt = filter.wanted.in_doubt
        pieces = self.index.pieces if in_doubt else []
        indexed = min(max(self.index.indexed if in_doubt else low, low), high)
        tail = list(spans(indexed, high))
        if newest:
            yield from self._scan_files(filter, reversed(tail))
            yield from self._scan_index(filter, reversed(pieces), low, indexed)
        else:
            yield from self._scan_index(filter, pieces, low, indexed)
            yield from self._scan_files(filter, tail)

    def _scan_index(
        self, filter: Filter, pieces: Iterable[Columns], low: int, high: int
    ) -> Iterator[tuple[int, int, Ints]]:  # fmt: skip
        for piece in pieces:
            if piece.half_offset[-1] >= low and piece.half_offset[0] < high:
                yield max(piece.first, low), min(piece.stop, high), self._matcher.matching(piece, filter, low, high)

    def _scan_files(self, filter: Filter, ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, Ints]]:
        for first, stop in ranges:
            columns = self._files.describe(first, stop, filter.wanted.ends, keys=False)
            yield first, stop, self._matcher.matching(columns, filter, first, stop)

    def refresh(self) -> None:
        """Files were deleted: let go of them."""
        self._files.refresh()

    def close(self) -> None:
        self._files.close()


def _take(taken: list[int], offsets: Ints, limit: int, newest: bool) -> int | None:
    """Take as many as there is room for; where to go on if some are left."""
    room = limit - len(taken)
    taken += (offsets[::-1] if newest else offsets)[:room].tolist()
    if len(offsets) <= room:
        return None
    return taken[-1] if newest else taken[-1] + 1


def _unless_through(following: int | None, low: int, high: int, newest: bool) -> int | None:
    if following is None or (following <= low if newest else following >= high):
        return None
    return following
