"""Retention: what may be deleted, so that disk use is bounded and nothing pending is ever lost. Slow consumers keep nothing.

Files go whole and only from the front. The job decides, deletes its own and publishes low-water marks; the edge deletes behind
them.

- A commit log segment goes when nothing pending points into it and its newest append, release, roll-back and discard are older
than fileReservedTime.
- A row goes when its frame has gone, or with its state file: when that is full, nothing in it is pending and its last change is
older than fileReservedTime. Its id is then `gone`. (The file itself stays until all its rows have gone.)
- Queue files go when all their entries point before the log's low-water mark; "unread" does not pin them.
- A redo file goes when every row and every ordinary message that its batches speak of is gone.

The ledger keeps the newest touch of each segment and state file, in the job's checkpoint; a replay touches the same again.
After a rebuild from the redo log, touches are those of the replayed batches. Times err on the late side: a file may stay longer,
never shorter. A touch in the future (the clock was set back) counts from now.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from store.arrays import Ints, distinct
from store.directory import Geometry
from store.io.pages import EdgeSlot
from store.read.readers import LogReader
from store.records import STATE_MASK, State
from store.tables.consume_queue import EntryQueue
from store.tables.redo_log import Marker
from store.tables.state_table import StateTable


class Settled(NamedTuple):
    """What has been settled: the rows up to the marker, and the log behind them."""

    table: StateTable
    marker: Marker
    log: LogReader


class Ledger:
    """Newest touch (ms) of each commit log segment and of each state file, by number; and the low-water marks."""

    def __init__(self, geometry: Geometry) -> None:
        self._geometry = geometry
        self.log_touch: dict[int, int] = {}
        self.state_touch: dict[int, int] = {}
        self.log_low_water = self.half_low_water = self.op_low_water = 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "log_touch": sorted(self.log_touch.items()),
            "state_touch": sorted(self.state_touch.items()),
            "low_water": list(self.low_water),
        }

    @property
    def low_water(self) -> tuple[int, int, int]:
        return self.log_low_water, self.half_low_water, self.op_low_water

    @classmethod
    def from_dict(cls, geometry: Geometry, state: dict[str, Any]) -> Ledger:
        ledger = cls(geometry)
        ledger.log_touch = {int(key): int(value) for key, value in state["log_touch"]}
        ledger.state_touch = {int(key): int(value) for key, value in state["state_touch"]}
        ledger.log_low_water, ledger.half_low_water, ledger.op_low_water = state["low_water"]
        return ledger

    def touch_rows(self, half_offsets: Ints, at_ms: int) -> None:
        _touch(self.state_touch, half_offsets, self._geometry.state_rows_per_file, at_ms)

    def touch_places(self, commit_log_offsets: Ints, at_ms: int) -> None:
        _touch(self.log_touch, commit_log_offsets, self._geometry.commit_log_segment_bytes, at_ms)

    def touch_logs(self, log: LogReader, before: Marker, after: Marker) -> None:
        """The segments that hold the halves and ops between two cursors were appended to no later than the batch's time."""
        for queue, first, stop in (
            (log.half_queue, before.half_cursor, after.half_cursor),
            (log.op_queue, before.op_cursor, after.op_cursor),
        ):
            if stop > max(first, queue.begin):
                segment = self._geometry.commit_log_segment_bytes
                # Kept within the log: a damaged entry may point anywhere.
                low = max(queue.entry(max(first, queue.begin))[0], log.page[EdgeSlot.LOG_BEGIN])
                high = min(queue.entry(stop - 1)[0], log.page[EdgeSlot.LOG_END])
                for number in range(low // segment, high // segment + 1):
                    self.log_touch[number] = max(self.log_touch.get(number, 0), after.now_ms)

    def not_ahead_of(self, now_ms: int) -> None:
        """No touch can be later than now."""
        for touches in (self.log_touch, self.state_touch):
            for number in [number for number, at_ms in touches.items() if at_ms > now_ms]:
                touches[number] = now_ms

    def advance(self, settled: Settled, now_ms: int, retention_ms: int, leapt_ms: int = 0) -> int:
        """Compute the low-water marks. They may go back: a discarded half that was resumed is pending again.

        Returns the first row that must stay. `leapt_ms`: by how much the clock leapt within retention_ms; it does not age files.
        """
        self.not_ahead_of(now_ms)
        oldest = now_ms - leapt_ms - retention_ms
        self.log_low_water = self._log_low(settled, oldest)
        self.half_low_water = max(self._half_low(settled, oldest), self._first_framed(settled))
        queue = settled.log.op_queue
        queue.file.refresh()  # the edge removes files at its front
        self.op_low_water = self.first_kept(queue, queue.begin, settled.marker.op_cursor)
        for touches, low in (
            (self.log_touch, self.log_low_water // self._geometry.commit_log_segment_bytes),
            (self.state_touch, self.half_low_water // self._geometry.state_rows_per_file),
        ):
            for number in [number for number in touches if number < low]:
                del touches[number]
        return self.half_low_water

    def _half_low(self, settled: Settled, oldest_ms: int) -> int:
        size = self._geometry.state_rows_per_file
        for file_no in settled.table.file_numbers():
            full = settled.marker.half_cursor >= (file_no + 1) * size
            if not full or settled.table.pending_by_file.get(file_no, 0) or self.state_touch.get(file_no, 0) >= oldest_ms:
                return file_no * size
        return settled.table.allocated

    def _first_framed(self, settled: Settled) -> int:
        """The first row whose frame must stay, not only the first of a state file: where halves are rare, a file takes years to
        fill, and the redo log behind its first row would only grow."""
        log_end, size = settled.log.page[EdgeSlot.LOG_END], self._geometry.state_rows_per_file
        for file_no in settled.table.file_numbers():
            rows = settled.table.rows_of(file_no)[: max(0, settled.marker.half_cursor - file_no * size)]
            places = rows["commit_log_offset"]
            framed = (places >= self.log_low_water) & (places < log_end)  # a damaged entry may point anywhere
            framed |= (rows["word"] & np.uint32(STATE_MASK)) == np.uint32(State.PREPARED)
            if framed.any():
                return file_no * size + int(np.argmax(framed))
        return settled.marker.half_cursor

    def _log_low(self, settled: Settled, oldest_ms: int) -> int:
        """The start of the first segment that must stay. By what this side knows of segments, not by which files it has seen:
        the edge makes them, and another process reads them for the settlement."""
        # First of all, and so before the ends of halves and ops: what is appended meanwhile must stay.
        limit = settled.log.page[EdgeSlot.VISIBLE_END]
        limit = min(limit, _first_pending_place(settled), _unsettled_place(settled))
        size = self._geometry.commit_log_segment_bytes
        return size * min([limit // size, *(number for number, at_ms in self.log_touch.items() if at_ms >= oldest_ms)])

    def first_kept(self, queue: EntryQueue, begin: int, end: int) -> int:
        """The first entry of begin … end whose frame is not before the log's low-water mark (holes aside)."""
        first = begin
        while first < end:
            stop = min(end, first + 65_536)
            kept = np.flatnonzero(queue.read(first, stop)["commit_log_offset"] >= self.log_low_water)
            if len(kept):
                return first + int(kept[0])
            first = stop
        return end

    def first_readable(self, queue: EntryQueue, begin: int, end: int) -> int:
        """The first message behind the last entry of begin … end whose frame is before the log's low-water mark.

        A topic's entries stand in the order of their release, not of their frames: an entry before that last one may point into a
        segment that is still there, but it was released even earlier, so its time is over too. Holes at the front are skipped.
        """
        first = -1
        for start in range(begin, end, 65_536):
            entries = queue.read(start, min(end, start + 65_536))
            there, kept = entries["size_bytes"] > 0, entries["commit_log_offset"] >= self.log_low_water
            gone = np.flatnonzero(there & ~kept)
            after = int(gone[-1]) + 1 if len(gone) else 0
            if len(gone) or first < 0:
                readable = np.flatnonzero(there[after:])
                first = start + after + int(readable[0]) if len(readable) else -1
        return end if first < 0 else first


def _touch(touches: dict[int, int], places: Ints, size: int, at_ms: int) -> None:
    for number in distinct(places // size):
        touches[number] = max(touches.get(number, 0), at_ms)


def _first_pending_place(settled: Settled) -> int:
    """commit_log_offset of the oldest pending half. Halves lie in the log in the order of their offsets, so the first row tells."""
    for file_no in settled.table.scannable():
        rows = settled.table.rows_of(file_no)
        at = int(np.argmax((rows["word"] & np.uint32(STATE_MASK)) == np.uint32(State.PREPARED)))
        return int(rows["commit_log_offset"][at])
    return 1 << 62


def _unsettled_place(settled: Settled) -> int:
    """commit_log_offset of the first frame that has not been settled."""
    half_end, op_end = settled.log.ends()
    places = [
        int(queue.read(cursor, cursor + 1)["commit_log_offset"][0])
        for queue, cursor, end in (
            (settled.log.half_queue, settled.marker.half_cursor, half_end),
            (settled.log.op_queue, settled.marker.op_cursor, op_end),
        )
        if cursor < end
    ]
    return min(places, default=1 << 62)
