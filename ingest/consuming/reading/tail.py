"""The unsettled tail: messages whose commit is flushed, and which the streaming job has not put into their queue yet.

A commit's place is written into its op, so a consumer may be served from the op queue at the very offset that the settled queue
will have. The tail follows the op queue from the job's cursor to the flushed end and keeps, for each topic queue, the entries that
the job will put there. What a reader sees of a queue is

    begin … settled end     the topic queue
    settled end … end       the tail, as long as its entries follow one another without a gap

A gap (a corrupt op, whose place is unknown) ends what may be served until the job has settled it.

Why nothing is missed and nothing seen twice: an offset names a message, whichever of the two it is read from, and the settled end
decides which. Entries leave the tail only below a cursor that was read *before* the catalogue, and the job writes the catalogue
before the cursor: what has left is below the settled end.

Bounded: at most OPS_MAX ops beyond the cursor are held; beyond it consumers wait for settlement.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingest.consuming.reading.settled_queues import Settled
from store.arrays import Array, Ints, distinct
from store.errors import Corrupt, StoreError
from store.read.readers import LogReader
from store.records import ENTRY, QUEUE_ID_BITS, OpKind, queue_key_of, queue_offset_of
from store.tables.frames import Frame, FrameKind
from store.transitions import Together

#: Ops held beyond the job's cursor, and ops read at one look: some milliseconds of the event loop.
OPS_MAX: Final = 262_144
OPS_AT_ONCE: Final = 1_024
_MESSAGES: Final = frozenset({FrameKind.HALF, FrameKind.MESSAGE})

Entry = tuple[int, int, int]


class Run:
    """The unsettled entries of one topic queue, in the order of their offsets, in arrays that grow at the end."""

    __slots__ = ("_entries", "_offsets", "_ops", "_start", "_stop")

    def __init__(self) -> None:
        self._offsets, self._ops, self._entries = np.empty(16, np.int64), np.empty(16, np.int64), np.empty(16, ENTRY)
        self._start = self._stop = 0

    def __len__(self) -> int:
        return self._stop - self._start

    def append(self, offsets: Ints, ops: Ints, entries: Array) -> None:
        if len(self) and offsets[0] <= self._offsets[self._stop - 1]:
            self._start = self._stop  # places only ever grow; whatever this is, the settlement will tell
        stop = self._stop + len(offsets)
        if stop > len(self._offsets):
            stop = self._make_room(len(offsets))
        at = slice(stop - len(offsets), stop)
        self._offsets[at], self._ops[at], self._entries[at] = offsets, ops, entries
        self._stop = stop

    def _make_room(self, count: int) -> int:
        """Move what is held to the front of arrays twice as long as it needs; where `count` more will end."""
        held = slice(self._start, self._stop)
        stop = len(self) + count
        for name in ("_offsets", "_ops", "_entries"):
            old = getattr(self, name)
            new = np.empty(2 * stop, old.dtype)
            new[: len(self)] = old[held]
            setattr(self, name, new)
        self._start, self._stop = 0, stop - count
        return stop

    def trim(self, op_cursor: int) -> None:
        """Entries of ops before the cursor are settled."""
        self._start += int(np.searchsorted(self._ops[self._start : self._stop], op_cursor))

    def end_from(self, settled_end: int) -> int:
        """Where the entries that follow the settled end without a gap stop."""
        offsets = self._offsets[self._start : self._stop]
        at = int(np.searchsorted(offsets, settled_end))
        if at == len(offsets) or offsets[at] != settled_end:
            return settled_end
        last = int(offsets[-1])
        if last - settled_end == len(offsets) - 1 - at:
            return last + 1
        return settled_end + 1 + int(np.flatnonzero(np.diff(offsets[at:]) != 1)[0])

    def entries(self, first: int, stop: int) -> list[Entry]:
        """Entries first … stop - 1, which follow one another without a gap."""
        offsets = self._offsets[self._start : self._stop]
        at = self._start + int(np.searchsorted(offsets, first))
        found: list[Entry] = self._entries[at : at + stop - first].tolist()
        return found


def _hold_together(ops: Array, good: npt.NDArray[np.bool_]) -> None:
    """Of ops that end halves jointly either all have an effect or none has."""
    if not (ops["together"] != int(Together.ALONE)).any():
        return
    number = np.cumsum(ops["together"] != int(Together.OTHER))
    lost = number[(ops["together"] != int(Together.ALONE)) & (ops["follows"] == 0) & ~good]
    good[np.isin(number, lost) & (ops["together"] != int(Together.ALONE))] = False


class Tail:
    """Lives in the event loop. `look_at_job` and `look_at_ops` move it; the rest reads."""

    def __init__(self, log: LogReader, settled: Settled) -> None:
        self.log, self.settled = log, settled
        self._runs: dict[int, Run] = {}
        self._resumed: dict[int, int] = {}
        self._op_cursor = self._next = -1
        self.gaps = 0

    # --- moving ---------------------------------------------------------------------------------------------------------------
    def look_at_job(self) -> None:
        """Let go of what the job has settled meanwhile."""
        op_cursor = self.settled.look()
        if op_cursor is None:
            return
        if op_cursor < self._op_cursor or self._op_cursor < 0 or op_cursor > self._next:
            # The first look, or a rebuilt job that begins further back: from here on everything is unsettled.
            self._runs, self._resumed, self._next = {}, {}, op_cursor
        else:
            self._trim(op_cursor)
        self._op_cursor = op_cursor

    def _trim(self, op_cursor: int) -> None:
        for queue_key, run in list(self._runs.items()):
            run.trim(op_cursor)
            if not len(run):
                del self._runs[queue_key]
        if self._resumed:
            self._resumed = {half: op for half, op in self._resumed.items() if op >= op_cursor}

    def look_at_ops(self) -> tuple[set[int], bool]:
        """Read what was flushed since, at most OPS_AT_ONCE; (keys of the queues that grew, whether there is more to read now)."""
        if self._op_cursor < 0:
            return set(), False
        self._next = max(self._next, self.log.op_queue.begin)
        flushed = self.log.ends()[1]
        end = min(flushed, self._op_cursor + OPS_MAX)
        stop = self.log.whole_ops(self._next, min(end, self._next + OPS_AT_ONCE), flushed)
        if stop <= self._next:
            return set(), False
        grown = self._read(self._next, stop)
        self._next = stop
        return grown, stop < end

    def _read(self, first: int, stop: int) -> set[int]:
        ops = self.log.ops(first, stop)
        whole = ops["corrupt"] == 0
        self.gaps += len(ops) - int(np.count_nonzero(whole))
        for op in ops[whole & (ops["kind"] == int(OpKind.RESUME))]:
            self._resumed[int(op["half_offset"])] = int(op["op_offset"])
        released = ops[whole & (ops["position"] >= 0)]
        if not len(released):
            return set()
        entries, good = self._entries_of(released)
        self.gaps += len(good) - int(np.count_nonzero(good))
        released, entries = released[good], entries[good]
        keys, offsets = queue_key_of(released["position"]), queue_offset_of(released["position"])
        grown = distinct(keys)
        for queue_key in grown:
            chosen = slice(None) if len(grown) == 1 else np.flatnonzero(keys == queue_key)
            run = self._runs.get(queue_key)
            if run is None:
                run = self._runs[queue_key] = Run()
            run.append(offsets[chosen], released["op_offset"][chosen], entries[chosen])
        return set(grown)

    def _entries_of(self, ops: Array) -> tuple[Array, Any]:
        """The topic queue entries that the job will make of commits and messages, and for which ops it certainly will."""
        entries, good = np.zeros(len(ops), ENTRY), np.ones(len(ops), np.bool_)
        commits = np.flatnonzero(ops["kind"] == int(OpKind.COMMIT))
        if len(commits):
            halves, follows = ops["half_offset"][commits], ops["follows"][commits]
            entries[commits] = self.log.half_queue.gather(halves)
            good[commits] = self.settled.may_release(halves - follows, set(self._resumed))
            if follows.any():
                good[commits[follows > 0]] &= self.settled.may_follow(halves[follows > 0])
            _hold_together(ops, good)
        messages = np.flatnonzero(ops["kind"] == int(OpKind.MESSAGE))
        if len(messages):
            entries[messages] = self.log.op_queue.gather(ops["op_offset"][messages])
            entries["tags_code"][messages] = self.log.tags_codes(entries["commit_log_offset"][messages])
        return entries, good & (entries["size_bytes"] > 0)

    # --- reading --------------------------------------------------------------------------------------------------------------
    def extent(self, queue_key: int) -> tuple[int, int]:
        """(begin, end) of what may be read of a topic queue now."""
        if not self.settled.whole:
            return 0, 0
        begin, end = self.settled.extent(queue_key)
        run = self._runs.get(queue_key)
        return begin, end if run is None else run.end_from(end)

    def extents(self) -> dict[int, tuple[int, int]]:
        """`extent` of every topic queue that has anything, by queue key."""
        if not self.settled.whole:
            return {}
        found = self.settled.extents()
        for queue_key, run in self._runs.items():
            begin, end = found.get(queue_key, (0, 0))
            found[queue_key] = begin, run.end_from(end)
        return found

    def entries(self, queue_key: int, first: int, stop: int) -> list[Entry]:
        """Entries first … stop - 1 within the extent; fewer where the files are just changing."""
        settled_end = self.settled.extent(queue_key)[1]
        if first < settled_end:
            return self.settled.entries(queue_key, first, min(stop, settled_end))
        run = self._runs.get(queue_key)
        stop = min(stop, settled_end if run is None else run.end_from(settled_end))
        return run.entries(first, stop) if run is not None and first < stop else []

    def frame(self, queue_key: int, commit_log_offset: int, size_bytes: int) -> Frame | None:
        """The frame that an entry points at; None where its bytes are gone or bad, or are not a message of this queue. Any other
        StoreError says that it cannot be read now (no descriptor, no memory): later it may be."""
        try:
            frame = self.log.log.read(commit_log_offset, size_bytes)
        except (Corrupt, IndexError, ValueError):
            return None
        fields = frame.fields
        here = frame.kind in _MESSAGES and fields["topic_no"] << QUEUE_ID_BITS | fields["queue_id"] == queue_key
        return frame if here else None

    @property
    def held_ops(self) -> int:
        return max(0, self._next - self._op_cursor)

    def let_go(self) -> None:
        """Let go of files that were removed."""
        try:
            self.settled.let_go()
            for part in (self.log.log.file, self.log.half_queue.file, self.log.op_queue.file):
                part.refresh()
        except StoreError:  # the job is just changing them: next time
            return

    def close(self) -> None:
        self.log.close()
        self.settled.close()
