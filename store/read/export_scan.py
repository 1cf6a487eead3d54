"""History: every half that is still there, and what became of it, as columns. Reads only, and may run beside the writers.

    scan   1  which halves: a range of half offsets, from the times that are asked for
           2  the ops that ended them (or took an end back), read once in log order: the last one of each half counts
           3  the halves themselves, a chunk at a time, with what 2 found and the attempts of the state table

What 2 finds is kept in a table of 18 bytes a half, which the caller provides: a file that is mapped keeps memory bounded, however
many halves there are. What retention takes away meanwhile is simply not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from store.arrays import Array, last_of_each
from store.io.pages import EdgeSlot, JobSlot
from store.properties import KEYS, NO_TEXTS, TAGS, PropertiesOfMany, Texts
from store.read.readers import CLOCK_SLACK_MS, open_readers
from store.records import STATE_OF_OP, OpKind, State, check_count_of, state_of
from store.tables.frames import HALF_HEAD_BYTES, SYS_FLAG_MEMBER

Mask = npt.NDArray[np.bool_]
Progress = Callable[[int, int, str], None]

CHUNK: Final = 1 << 16
#: What is known of a half from the ops: 0 in `state` means that none was decisive.
ENDED: Final = np.dtype([("settled_at_ms", "<i8"), ("position", "<i8"), ("state", "u1"), ("via", "u1")])
assert ENDED.itemsize == 18

_STATE_OF: Final = np.zeros(256, np.uint8)
for _kind, _state in {**STATE_OF_OP, OpKind.RESUME: State.PREPARED}.items():
    _STATE_OF[_kind] = _state


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which halves. Times are stored times in milliseconds; states and names: None = all of them."""

    since_ms: int = 0
    until_ms: int | None = None
    groups: Sequence[str] | None = None
    topics: Sequence[str] | None = None
    states: Sequence[State] | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some halves, in the order of their offsets. `heads` are frames.HALF_HEAD, zero where not `valid`; `ended` is ENDED."""

    half_offsets: npt.NDArray[np.int64]
    valid: Mask
    heads: Array
    ended: Array
    attempts: npt.NDArray[np.uint32]
    keys: Texts
    tags: Texts


class History:
    """A store opened for reading its history. `table` makes room for that many records of ENDED, all zero."""

    def __init__(self, root: Path, table: Callable[[int], Array] = lambda count: np.zeros(count, ENDED)) -> None:
        self.directory, self.log, self._topics, names = open_readers(root)
        self.groups, self.topics = names.groups, names.topics
        self._table = table

    def close(self) -> None:
        self.log.close()
        if self._topics is not None:
            self._topics.close()

    def chunks(self, wanted: Wanted, progress: Progress = lambda done, total, what: None) -> Iterator[Chunk]:
        """What is wanted, a chunk at a time; chunks of which nothing is wanted are left out."""
        first, stop = self.extent(wanted)  # 1
        yield from self.between(first, stop, wanted, progress)

    def between(
        self, first: int, stop: int, wanted: Wanted, progress: Progress = lambda done, total, what: None, *, with_texts: bool = True
    ) -> Iterator[Chunk]:
        """The same of halves first … stop - 1. Without texts, keys and tags are not looked up."""
        ended = self._table(stop - first)
        self._read_ops(first, stop, ended, progress)  # 2
        low = first
        while low < stop:  # 3
            low = max(low, self.log.page[EdgeSlot.HALF_BEGIN])
            high = min(low + CHUNK, stop)
            try:
                chunk = self._chunk(low, high, ended[low - first : high - first], wanted, with_texts)
            except IndexError:  # its file was taken by retention
                self.log.half_queue.file.refresh()
                low = max(low + 1, self.log.half_queue.begin)
                continue
            if chunk is not None and len(chunk.half_offsets):
                yield chunk
            progress(high - first, stop - first, "halves")
            low = high

    # --- 1 ---
    def extent(self, wanted: Wanted) -> tuple[int, int]:
        """(first half, behind the last one): flushed, and of the asked time, as far as halving tells."""
        log = self.log
        stop = log.ends()[0]
        first = min(max(log.half_queue.begin, log.page[EdgeSlot.HALF_BEGIN]), stop)
        # Wall clocks step back now and then: a little more than the asked time, on both sides.
        first = log.first_half_since(wanted.since_ms - CLOCK_SLACK_MS, first, stop)
        if wanted.until_ms is not None:
            stop = log.first_half_since(wanted.until_ms + CLOCK_SLACK_MS, first, stop)
        return first, stop

    # --- 2 ---
    def _read_ops(self, first: int, stop: int, ended: Array, progress: Progress) -> None:
        log, op_stop = self.log, self.log.ends()[1]
        if stop == first:
            return
        low = begin = min(max(log.ops_since(self._stored_at_ms(first))[0], log.page[EdgeSlot.OP_BEGIN]), op_stop)
        while low < op_stop:
            high = min(low + CHUNK, op_stop)
            try:
                ops = self._ops_about(low, high, first, stop)
            except IndexError:
                log.op_queue.file.refresh()
                low = max(low + 1, log.op_queue.begin)
                continue
            _apply(ops, first, stop, ended)
            progress(high - begin, op_stop - begin, "ops")
            low = high

    def _ops_about(self, low: int, high: int, first: int, stop: int) -> Array:
        """Those of ops low … high - 1 whose tag is a half of the range: the frames of others need not be read."""
        tags = self.log.op_queue.read(low, high)["tags_code"]
        chosen = np.flatnonzero((tags >= first) & (tags < stop))
        return self.log.ops(low, high) if len(chosen) == high - low else self.log.chosen_ops(low + chosen)

    def _stored_at_ms(self, half_offset: int) -> int:
        """0 if unknown: then every op is read."""
        try:
            _, heads, good = self.log.checked_halves(half_offset, half_offset + 1)
        except IndexError:
            return 0
        return int(heads["stored_at_ms"][0]) if good[0] else 0

    # --- 3 ---
    def _chunk(self, low: int, high: int, ended: Array, wanted: Wanted, with_texts: bool) -> Chunk | None:
        entries, heads, good = self.log.checked_halves(low, high)
        words, ended = self._words(low, high), ended.copy()
        known, begin = state_of(words), self.log.log.file.begin
        gone = ~good & (entries["size_bytes"] > 0) & (entries["commit_log_offset"] < begin)
        # Retention has taken the half out of the log, its op perhaps too: its row stays longer.
        ended["state"] = np.where(gone & (ended["state"] == 0), known, ended["state"])
        lost = gone & (ended["state"] == 0)
        is_member = good & (heads["sys_flag"] & SYS_FLAG_MEMBER != 0)
        ended["state"][is_member & (ended["state"] == 0)] = State.MEMBER  # not released: its head tells more
        ended["state"][ended["state"] == 0] = State.PREPARED
        ended["state"][(~good & ~gone) | (known == State.QUARANTINED)] = State.QUARANTINED
        heads[~good] = np.zeros(1, heads.dtype)
        chosen = np.flatnonzero(self._fits(heads, good, ended, wanted) & ~lost)
        if not len(chosen):
            return None
        keys, tags = self._texts(entries[chosen], heads[chosen], good[chosen]) if with_texts else (NO_TEXTS, NO_TEXTS)
        attempts = np.where(known[chosen] == State.MEMBER, 0, check_count_of(words[chosen])).astype(np.uint32)
        return Chunk(chosen + low, good[chosen], heads[chosen], ended[chosen], attempts, keys, tags)

    def _fits(self, heads: Array, good: Mask, ended: Array, wanted: Wanted) -> Mask:
        """A corrupt half, and one that is gone from the log, has neither time nor names: it fits where none is asked for."""
        fits = np.ones(len(heads), np.bool_)
        if wanted.since_ms:
            fits &= good & (heads["stored_at_ms"] >= wanted.since_ms)
        if wanted.until_ms is not None:
            fits &= good & (heads["stored_at_ms"] < wanted.until_ms)
        for column, given, known in (("group_no", wanted.groups, self.groups), ("topic_no", wanted.topics, self.topics)):
            if given is not None:
                fits &= good & np.isin(heads[column], [number for number, name in enumerate(known) if name in given])
        if wanted.states is not None:
            fits &= np.isin(ended["state"], list(wanted.states))
        return fits

    def _words(self, low: int, high: int) -> npt.NDArray[np.uint32]:
        """State words, as far as the job is: it counts hand-overs of check requests, and puts corrupt halves into quarantine."""
        found = np.zeros(high - low, np.uint32)
        topics = self._topics
        if topics is None or not topics.page[JobSlot.GENERATION]:
            return found
        topics.follow()
        first, stop = max(low, topics.page[JobSlot.ROW_BEGIN]), min(high, topics.page[JobSlot.HALF_CURSOR])
        if first < stop:
            try:
                found[first - low : stop - low] = topics.rows(np.arange(first, stop))["word"]
            except IndexError:  # rows that retention has taken meanwhile
                topics.let_go()
        return found

    def _texts(self, entries: Array, heads: Array, good: Mask) -> tuple[Texts, Texts]:
        """Key and tags of each half, out of its properties."""
        sizes = np.where(good, heads["properties_bytes"], 0).astype(np.int64)
        begins = entries["commit_log_offset"] + HALF_HEAD_BYTES + heads["body_bytes"]
        # Of those that cannot be read, nothing is read: at the first byte of the log that is still there.
        found = PropertiesOfMany(self.log.pieces(np.where(good, begins, self.log.log.file.begin), sizes))
        return found.values(KEYS), found.values(TAGS)


def _apply(ops: Array, first: int, stop: int, ended: Array) -> None:
    """What ops say of the halves of a range; a resume takes an end back."""
    states = _STATE_OF[ops["kind"]]
    chosen = ops[(states > 0) & (ops["corrupt"] == 0) & (ops["half_offset"] >= first) & (ops["half_offset"] < stop)]
    chosen = chosen[last_of_each(chosen["half_offset"])]
    rows, open_again = chosen["half_offset"] - first, chosen["kind"] == OpKind.RESUME
    ended["state"][rows] = _STATE_OF[chosen["kind"]]
    ended["settled_at_ms"][rows] = np.where(open_again, 0, chosen["stored_at_ms"])
    ended["position"][rows] = np.where(open_again, -1, chosen["position"])
    ended["via"][rows] = chosen["via"]
