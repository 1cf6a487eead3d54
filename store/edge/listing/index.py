"""The index: halves in doubt as columns in memory, in pieces. Volatile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from store.arrays import Array
from store.edge.listing.columns import Columns
from store.edge.listing.half_files import HalfFiles, spans
from store.edge.listing.wanted import IN_DOUBT, among
from store.records import State, state_of

#: Rows in one piece.
PIECE_ROWS: Final = 1 << 14

Enough = Callable[[], bool]


def never() -> bool:
    return False


class Index:
    def __init__(self, files: HalfFiles) -> None:
        self._files = files
        self.pieces: list[Columns] = []
        #: Halves before this offset are in the index, as far as they are in doubt.
        self.indexed = 0
        self._tidied = 0

    @property
    def behind(self) -> int:
        """Halves that the index has not reached."""
        return max(0, self._files.end - max(self.indexed, self._files.begin))

    def __len__(self) -> int:
        return sum(len(piece) for piece in self.pieces)

    def forget(self) -> None:
        """Rebuild the index: an end was taken back (`EdgeStore.reopen`)."""
        self.pieces, self.indexed = [], 0

    def advance(self, enough: Enough = never) -> None:
        """Follow the log. Most halves have ended by now and never get into the index."""
        self.indexed = max(self.indexed, self._files.begin)
        while self.indexed < (end := self._files.end):
            first, stop = next(spans(self.indexed, end))
            found = self._files.describe(first, stop, IN_DOUBT, keys=True)
            if len(found):
                if self.pieces and len(self.pieces[-1]) + len(found) <= PIECE_ROWS:
                    self.pieces[-1] = found.behind(self.pieces[-1])
                else:
                    self.pieces.append(found)
            self.indexed = stop
            if enough():
                return

    def tidy(self) -> None:
        """Look at one piece, at the next one with the next call: remove what has ended, join it with its neighbour."""
        begin = self._files.begin
        while self.pieces and self.pieces[0].half_offset[-1] < begin:
            del self.pieces[0]
        if not self.pieces:
            return
        if self.pieces[0].half_offset[0] < begin:  # the files that tell of its first rows may be gone
            self.pieces[0] = self.pieces[0].keep(self.pieces[0].half_offset >= begin)
        at = self._tidied = self._tidied % len(self.pieces)
        piece = self.pieces[at]
        kept = self._in_doubt(piece)
        if np.count_nonzero(kept) <= 0.75 * len(piece):
            self.pieces[at : at + 1] = [piece.keep(kept)] if kept.any() else []
        if at and at < len(self.pieces) and len(self.pieces[at - 1]) + len(self.pieces[at]) <= PIECE_ROWS:
            self.pieces[at - 1 : at + 1] = [self.pieces[at].behind(self.pieces[at - 1])]
        else:
            self._tidied += 1

    def _in_doubt(self, piece: Columns) -> Array:
        kept = among(self._files.ends_of(piece.half_offset), IN_DOUBT)
        return np.asarray(kept & (state_of(self._files.words(piece.half_offset)) != int(State.QUARANTINED)))
