"""A settlement batch: what is decided becomes redo entries and a marker."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from store.arrays import Array, Ints
from store.errors import BatchBeyondCursor
from store.records import ROW, State, member_words, pack_words, state_of
from store.tables import redo_log
from store.tables.consume_queue import REASON_SHIFT
from store.tables.redo_log import REDO, Marker, RedoKind

_TOTAL_OF_STATE: Final = {State.DISCARDED_MAX: "discards_max", State.DISCARDED_EXPIRED: "discards_expired"}


class Batch:
    """One settlement batch under construction: entries and the marker that will close them. Touches no disk.

    It moves the cursors from those of the marker `before` to these values.
    """

    def __init__(self, before: Marker, *, half_cursor: int, op_cursor: int, now_ms: int) -> None:
        if half_cursor < before.half_cursor or op_cursor < before.op_cursor:
            raise BatchBeyondCursor(
                f"cursors cannot go back: half {half_cursor}, op {op_cursor} after half {before.half_cursor}, op {before.op_cursor}"
            )
        self.before = before
        self.marker = before.copy()
        self.marker.half_cursor, self.marker.op_cursor, self.marker.now_ms = half_cursor, op_cursor, now_ms
        self.marker.sequence += 1
        self._parts: list[Array] = []

    @property
    def entries(self) -> Array:
        return np.concatenate(self._parts) if self._parts else np.empty(0, REDO)

    def _add(self, kind: RedoKind, numbers: Any, words: Any, positions: Any) -> None:
        if len(numbers):
            self._parts.append(redo_log.make_entries(kind, numbers, words, positions))

    def _places(self, queue: str, count: int) -> Ints:
        """The next `count` places of one of the four numbered queues."""
        end: int = getattr(self.marker, f"{queue}_end")
        setattr(self.marker, f"{queue}_end", end + count)
        return np.arange(end, end + count, dtype=np.int64)

    def begin_round(self, round_no: int) -> None:
        """Check entries from here on belong to this round; the earlier ones have lapsed."""
        self.marker.round_no, self.marker.round_check_start = round_no, self.marker.check_end

    def prepare(self, halves: Array) -> Array:
        """Make rows for new halves (records.HALF) and return them. Corrupt halves keep their number as QUARANTINED. Members are
        not counted: they follow their heads."""
        rows = rows_of_halves(halves)
        self._image(halves["half_offset"], rows)
        corrupt = np.flatnonzero(halves["corrupt"])
        if len(corrupt):
            positions = self._places("quarantine", len(corrupt))
            self._add(RedoKind.QUARANTINE, halves["half_offset"][corrupt], rows["word"][corrupt], positions)
        self.marker.totals["prepares"] += len(halves) - int(np.count_nonzero(halves["follows"]))
        self.marker.totals["quarantined"] += len(corrupt)
        return rows

    def _image(self, half_offsets: Any, rows: Array) -> None:
        if len(rows):
            self._parts.append(redo_log.make_images(half_offsets, rows))

    def set_words(self, half_offsets: Any, words: Any) -> None:
        """Change the words of rows, nothing else. Not for roll-backs, which are counted: see `roll_back`."""
        self._add(RedoKind.ROW, half_offsets, words, -1)

    def release(self, half_offsets: Any, words: Any, positions: Any) -> None:
        self._add(RedoKind.RELEASE, half_offsets, words, positions)
        self.marker.totals["commits"] += len(half_offsets)

    def follow(self, half_offsets: Any, words: Any, positions: Any) -> None:
        """Members of halves that are released: they take their places, and their rows stay as they are."""
        self._add(RedoKind.RELEASE, half_offsets, words, positions)

    def set_aside(self, half_offsets: Any, words: Any) -> None:
        """Halves that nobody can end any more, because the op that ended them together is corrupt."""
        self._add(RedoKind.ROW, half_offsets, words, -1)
        self.marker.totals["quarantined"] += len(half_offsets)

    def roll_back(self, half_offsets: Any, words: Any) -> None:
        self._add(RedoKind.ROW, half_offsets, words, -1)
        self.marker.totals["rollbacks"] += len(half_offsets)

    def hole(self, half_offsets: Any, words: Any, positions: Any) -> None:
        """Commits of quarantined halves: their places stay empty."""
        self._add(RedoKind.HOLE, half_offsets, words, positions)

    def discard(self, half_offsets: Any, words: Any, states: Ints) -> None:
        """Put discarded halves into the discard queue, in the order of their ops. `states` are the reasons, DISCARDED_MAX or
        DISCARDED_EXPIRED."""
        places = self._places("discard", len(half_offsets)) | (states << REASON_SHIFT)
        self._add(RedoKind.DISCARD, half_offsets, words, places)
        for state, name in _TOTAL_OF_STATE.items():
            self.marker.totals[name] += int(np.count_nonzero(states == int(state)))

    def resume(self, half_offsets: Any, rows: Array, *, reopened: int) -> None:
        """Rows that are pending (again) with a new stored time; `reopened` of them were discarded before."""
        self._image(half_offsets, rows)
        self.marker.totals["resumes"] += reopened

    def tell_again(self, half_offsets: Any, rows: Array) -> None:
        """Repeat rows as they are, so that the redo log need not keep the batch that has them."""
        self._image(half_offsets, rows)

    def check(self, half_offsets: Any, words: Any) -> None:
        """Put check requests for these halves into the check queue."""
        self._add(RedoKind.CHECK, half_offsets, words, self._places("check", len(half_offsets)))

    def propose_discard(self, half_offsets: Any, words: Any, states: Any) -> None:
        """Propose discards to the edge. It turns each into a discard op, unless the half has ended meanwhile."""
        places = self._places("proposal", len(half_offsets)) | (np.asarray(states, np.int64) << REASON_SHIFT)
        self._add(RedoKind.PROPOSE, half_offsets, words, places)

    def quarantine_ops(self, op_offsets: Any) -> None:
        """Report corrupt ops to the edge."""
        self._add(RedoKind.QUARANTINE_OP, op_offsets, 0, self._places("quarantine", len(op_offsets)))

    def release_again(self, half_offsets: Any, words: Any) -> None:
        """Repeat the effect of ended halves whose message Kafka refused. They were counted the first time."""
        states = np.asarray(state_of(words), np.int64)
        committed = states == int(State.COMMITTED)
        self._add(RedoKind.RELEASE, half_offsets[committed], words[committed], -1)
        self._add(RedoKind.DISCARD, half_offsets[~committed], words[~committed], states[~committed] << REASON_SHIFT)

    def messages(self, op_offsets: Any, sizes: Any, positions: Any) -> None:
        """Ordinary messages, released without a half."""
        self._add(RedoKind.MESSAGE, op_offsets, sizes, positions)
        self.marker.totals["messages"] += len(op_offsets)


def rows_of_halves(halves: Array) -> Array:
    """The first row of each half."""
    rows = np.empty(len(halves), ROW)
    for name in ("commit_log_offset", "size_bytes", "stored_at_s", "group_no"):
        rows[name] = halves[name]
    state = np.where(halves["corrupt"] != 0, int(State.QUARANTINED), int(State.PREPARED))
    rows["word"] = pack_words(state, 0, halves["immunity_s"], 0, 0)
    members = np.flatnonzero(halves["follows"])
    if len(members):
        rows["word"][members] = member_words(halves["follows"][members])
    return rows
