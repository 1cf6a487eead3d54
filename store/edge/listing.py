"""Listings: which halves are pending, discarded or settled, by group, topic, key, time and attempts. Nothing here is written.

`Listing` answers them from two sources, in the order of half offsets:
    the index   halves in doubt (open or discarded) as columns in memory, so that a filter over a million of them is a few array
                operations. `advance` follows the log, `tidy` takes out what has ended; both a piece at a time.
    the files   everything else: halves that the index has not reached yet, and all others for listings of settled ones.
How a half ended is never in the index: it is looked up at every listing. So a listing is exact however far behind the index is;
that only costs time. The index is volatile and is built from the files at every start.

Work is bounded by `enough`, asked after every piece: a listing that had to stop early says where to go on.

Not thread-safe, but for reading names: one thread calls everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from store.directory import StoreDirectory
from store.edge.pending_counts import Rows
from store.errors import Corrupt
from store.io.pages import EdgeSlot, JobSlot
from store.properties import KEYS, PropertyFinder, encode_route
from store.read.readers import CLOCK_SLACK_MS
from store.records import OpKind, State, check_count_of, state_of
from store.tables.ends import SEGMENT_BYTES as ENDS_SEGMENT
from store.tables.ends import EndsTable
from store.tables.frames import HALF_HEAD_BYTES, MAGIC, Frame, FrameKind
from store.tables.journals.names import Dictionary

Ints = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

#: Rows in one piece of the index, and half offsets looked at between two questions whether it is enough.
PIECE_ROWS: Final = 1 << 14
SCAN_OFFSETS: Final = 1 << 13
#: What the index keeps of a key to search texts in. A whole key is found by its hash, however long it is.
KEY_BYTES: Final = 256
#: What a text search finds in a piece is collected one by one up to so many, and as columns beyond.
FEW_HITS: Final = 256
#: Where only so many rows of a piece are left, their keys are searched one by one.
FEW_ROWS: Final = 1024
#: Ops looked at, from either end, for the time at which halves of a page ended.
ENDED_OPS: Final = 1 << 19
#: Bytes of frames read, and so checked, for one page.
PAGE_BYTES: Final = 16 << 20

OPEN: Final = frozenset({0})
DISCARDED: Final = frozenset({int(State.DISCARDED_MAX), int(State.DISCARDED_EXPIRED)})
ENDED: Final = frozenset({int(State.COMMITTED), int(State.ROLLED_BACK)})
IN_DOUBT: Final = OPEN | DISCARDED
_SEPARATOR: Final = b"\x02"
_KEY: Final = PropertyFinder(KEYS)
_SETTLING: Final = (OpKind.COMMIT, OpKind.ROLLBACK, OpKind.DISCARD_MAX, OpKind.DISCARD_EXPIRED)

Enough = Callable[[], bool]


def never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for; None = any. Times are stored_at, both ends included. `text` is found in group, topic or key."""

    ends: frozenset[int] = OPEN
    group: str | None = None
    topic: str | None = None
    key: str | None = None
    text: str | None = None
    stored_from_ms: int | None = None
    stored_until_ms: int | None = None
    attempts_min: int | None = None
    attempts_max: int | None = None

    @property
    def in_doubt(self) -> bool:
        """The index knows all that could be wanted."""
        return self.ends <= IN_DOUBT


@dataclass(frozen=True, slots=True)
class Columns:
    """Halves between two offsets, as columns. Key n: keys[key_at[n] : key_at[n + 1] - 1]; no keys = not read. Other hashes,
    other keys."""

    first: int
    stop: int
    half_offset: Ints
    stored_at_ms: Ints
    group_no: Array
    topic_no: Array
    key_hash: Array | None = None
    key_at: Ints | None = None
    keys: bytes = b""

    def __len__(self) -> int:
        return len(self.half_offset)

    def keep(self, kept: Array) -> Columns:
        """Only the rows where it is true."""
        assert self.key_at is not None
        assert self.key_hash is not None
        lengths = np.diff(self.key_at)
        content = np.frombuffer(self.keys, np.uint8)[1:][np.repeat(kept, lengths)]
        return Columns(
            self.first, self.stop, self.half_offset[kept], self.stored_at_ms[kept], self.group_no[kept], self.topic_no[kept],
            self.key_hash[kept], _starts(lengths[kept]), _SEPARATOR + content.tobytes(),
        )  # fmt: skip

    def behind(self, before: Columns) -> Columns:
        """Both as one."""
        assert self.key_at is not None
        assert self.key_hash is not None
        assert before.key_at is not None
        assert before.key_hash is not None
        both = np.concatenate
        return Columns(
            before.first, self.stop,
            both([before.half_offset, self.half_offset]), both([before.stored_at_ms, self.stored_at_ms]),
            both([before.group_no, self.group_no]), both([before.topic_no, self.topic_no]),
            both([before.key_hash, self.key_hash]),
            both([before.key_at, self.key_at[1:] + (len(before.keys) - 1)]), before.keys + self.keys[1:],
        )  # fmt: skip


def _hash(key: bytes) -> int:
    """Of this process: the index does not outlive it."""
    return hash(key) & 0xFFFFFFFF


def _starts(lengths: Any) -> Ints:
    """Where keys begin, separators counted, and where the last one ends: a separator stands before the first."""
    return np.concatenate([[1], 1 + np.cumsum(lengths, dtype=np.int64)])


@dataclass(frozen=True, slots=True)
class Page:
    """`following`: where to go on, None = nothing is left. `matched`: of all, where that was counted."""

    half_offsets: list[int]
    following: int | None
    matched: int | None


@dataclass(slots=True)
class Summary:
    """Halves in doubt by group_no."""

    pending: Ints
    oldest_ms: Ints  # 0 = none
    outstanding: Ints
    discarded: int = 0
    oldest_pending_ms: int | None = None


@dataclass(slots=True)
class _Filter:
    """`Wanted` in numbers. None of them can match when `impossible`."""

    wanted: Wanted
    group_no: int | None = None
    topic_no: int | None = None
    key: bytes | None = None
    text: bytes | None = None
    groups_with_text: Array = field(default_factory=lambda: np.zeros(1, np.bool_))
    topics_with_text: Array = field(default_factory=lambda: np.zeros(1, np.bool_))
    impossible: bool = False

    @property
    def by_attempts(self) -> bool:
        return self.wanted.attempts_min is not None or self.wanted.attempts_max is not None


class Listing:
    """Reads with files of its own."""

    def __init__(self, directory: StoreDirectory, dictionary: Dictionary) -> None:
        self._dictionary = dictionary
        self._rows = Rows(directory)
        self._log = self._rows.log
        self._ends = EndsTable(directory.ends())
        self._pieces: list[Columns] = []
        self._indexed = 0
        self._tidied = 0

    # --- the index ---------------------------------------------------------------------------------------------------------
    @property
    def begin(self) -> int:
        return max(self._log.half_queue.begin, self._log.page[EdgeSlot.HALF_BEGIN])

    @property
    def end(self) -> int:
        return self._log.page[EdgeSlot.HALF_END]

    @property
    def behind(self) -> int:
        """Halves that the index has not reached."""
        return max(0, self.end - max(self._indexed, self.begin))

    def __len__(self) -> int:
        return sum(len(piece) for piece in self._pieces)

    def forget(self) -> None:
        """Build the index anew: an end was taken back (`EdgeStore.reopen`)."""
        self._pieces, self._indexed = [], 0

    def advance(self, enough: Enough = never) -> None:
        """Follow the log. Most halves have ended by now and never get into the index."""
        self._indexed = max(self._indexed, self.begin)
        while self._indexed < (end := self.end):
            first, stop = self._indexed, min(end, self._indexed + SCAN_OFFSETS)
            found = self._describe(first, stop, IN_DOUBT, with_keys=True)
            if len(found):
                if self._pieces and len(self._pieces[-1]) + len(found) <= PIECE_ROWS:
                    self._pieces[-1] = found.behind(self._pieces[-1])
                else:
                    self._pieces.append(found)
            self._indexed = stop
            if enough():
                return

    def tidy(self) -> None:
        """Look at one piece, the next one at the next call: take out what has ended, join it with its neighbour."""
        begin = self.begin
        while self._pieces and self._pieces[0].half_offset[-1] < begin:
            del self._pieces[0]
        if not self._pieces:
            return
        if self._pieces[0].half_offset[0] < begin:  # the files that tell of its first rows may be gone
            self._pieces[0] = self._pieces[0].keep(self._pieces[0].half_offset >= begin)
        at = self._tidied = self._tidied % len(self._pieces)
        piece = self._pieces[at]
        kept = self._in_doubt(piece)
        if np.count_nonzero(kept) <= 0.75 * len(piece):
            self._pieces[at : at + 1] = [piece.keep(kept)] if kept.any() else []
        if at and at < len(self._pieces) and len(self._pieces[at - 1]) + len(self._pieces[at]) <= PIECE_ROWS:
            self._pieces[at - 1 : at + 1] = [self._pieces[at].behind(self._pieces[at - 1])]
        else:
            self._tidied += 1

    def _in_doubt(self, piece: Columns) -> Array:
        kept = _among(self._ends_of(piece.half_offset), IN_DOUBT)
        return np.asarray(kept & (state_of(self._words(piece.half_offset)) != int(State.QUARANTINED)))

    # --- what the files say ----------------------------------------------------------------------------------------------------
    def _ends_of(self, half_offsets: Ints) -> npt.NDArray[np.uint8]:
        """How halves, ascending, ended."""
        found = np.zeros(len(half_offsets), np.uint8)
        at = 0
        while at < len(half_offsets):
            start = int(half_offsets[at]) // ENDS_SEGMENT * ENDS_SEGMENT
            stop = int(np.searchsorted(half_offsets, start + ENDS_SEGMENT))
            content = np.frombuffer(self._ends.file.segment(start).buffer, np.uint8)
            found[at:stop] = content[_places(half_offsets[at:stop], start)]
            at = stop
        return found

    def _words(self, half_offsets: Ints) -> npt.NDArray[np.uint32]:
        """State words; 0 where the job has not made the row."""
        topics = self._rows.topics()
        return topics.words(half_offsets) if topics is not None else np.zeros(len(half_offsets), np.uint32)

    def _describe(self, first: int, stop: int, ends: frozenset[int], *, with_keys: bool) -> Columns:
        """Columns of the halves first … stop - 1 that ended in one of these ways."""
        marks = np.frombuffer(self._ends.file.view(first, stop - first), np.uint8)
        offsets = np.flatnonzero(_among(marks, ends)).astype(np.int64) + first
        entries, heads = self._log.half_heads(offsets)
        good = (heads["magic"] == MAGIC) & (heads["kind"] == FrameKind.HALF) & (heads["queue_offset"] == offsets)
        good &= heads["size_bytes"] == entries["size_bytes"]
        if not good.all():  # the job quarantines them
            offsets, entries, heads = offsets[good], entries[good], heads[good]
        columns = offsets, heads["stored_at_ms"].copy(), heads["group_no"].copy(), heads["topic_no"].copy()
        if not with_keys:
            return Columns(first, stop, *columns)
        hashes, lengths = np.full(len(offsets), _hash(b""), np.uint32), np.ones(len(offsets), np.int64)
        texts = [_SEPARATOR] * len(offsets)
        numbers = np.flatnonzero(self._may_have_key(heads))
        for number, key in zip(numbers.tolist(), self._read_keys(entries[numbers], heads[numbers]), strict=True):
            hashes[number], texts[number] = _hash(key), key[:KEY_BYTES] + _SEPARATOR
            lengths[number] = len(texts[number])
        return Columns(first, stop, *columns, hashes, _starts(lengths), b"".join([_SEPARATOR, *texts]))

    def _may_have_key(self, heads: Array) -> npt.NDArray[np.bool_]:
        """Not where a half has only the properties that every half of its group for its topic has: to look into the log for each
        would cost more than the rest of a list's work."""
        routes, which = np.unique(heads["group_no"].astype(np.int64) << 32 | heads["topic_no"], return_inverse=True)
        least = np.array([self._least(route >> 32, route & 0xFFFFFFFF) for route in routes.tolist()], np.int64)
        return np.asarray(heads["properties_bytes"] > least[which])

    def _least(self, group_no: int, topic_no: int) -> int:
        """Bytes of properties that a half has at least; 0 where its names are not known here."""
        groups, topics = self._dictionary.groups, self._dictionary.topics
        if not (0 <= group_no < len(groups) and 0 <= topic_no < len(topics)):
            return 0
        return len(encode_route(groups[group_no], topics[topic_no]))

    def _read_keys(self, entries: Array, heads: Array) -> Iterator[bytes]:
        log = self._log.log
        size = log.segment_bytes
        begins = (entries["commit_log_offset"] + HALF_HEAD_BYTES + heads["body_bytes"]).tolist()
        for begin, length in zip(begins, heads["properties_bytes"].tolist(), strict=True):
            within = begin % size
            content = log.file.segment(begin - within).buffer[within : within + length]
            yield _KEY.find(content) or b""

    # --- filters ---------------------------------------------------------------------------------------------------------------
    def _resolve(self, wanted: Wanted) -> _Filter:
        names = self._dictionary
        group_no = None if wanted.group is None else names.group_no(wanted.group)
        topic_no = None if wanted.topic is None else names.topic_no(wanted.topic)
        impossible = (wanted.group is not None and group_no is None) or (wanted.topic is not None and topic_no is None)
        found = _Filter(wanted, group_no, topic_no, impossible=impossible)
        if wanted.key is not None:
            found.key = wanted.key.encode(errors="surrogatepass")
        if wanted.text:
            found.text = wanted.text.encode(errors="surrogatepass")
            found.groups_with_text = np.array([wanted.text in name for name in names.groups] or [False])
            found.topics_with_text = np.array([wanted.text in name for name in names.topics] or [False])
        return found

    def _matching(self, columns: Columns, filter: _Filter, low: int, high: int) -> Ints:
        """The half offsets from low on and before high that are wanted, ascending. What costs least comes first."""
        if filter.key is not None and columns.key_hash is not None and not (columns.key_hash == _hash(filter.key)).any():
            return np.empty(0, np.int64)  # most pieces have nothing like it
        positions = self._by_columns(columns, filter, low, high)
        if filter.key is not None and len(positions):
            positions = positions[self._is_key(columns, positions, filter.key)]
        if filter.text is not None and len(positions):
            positions = positions[self._has_text(columns, positions, filter)]
        offsets: Ints = columns.half_offset[positions]
        if filter.by_attempts and len(offsets):
            offsets = offsets[_within(check_count_of(self._words(offsets)), filter.wanted)]
        return offsets

    def _by_columns(self, columns: Columns, filter: _Filter, low: int, high: int) -> Ints:
        wanted = filter.wanted
        first, stop = np.searchsorted(columns.half_offset, [low, high]).tolist()
        tests = [_among(self._ends_of(columns.half_offset[first:stop]), wanted.ends)]
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
        return found

    def _has_text(self, columns: Columns, positions: Ints, filter: _Filter) -> Array:
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
        found = columns.key_hash[positions] == _hash(key)
        alike = np.flatnonzero(found)
        if len(alike):
            found[alike] = self._keys_where(columns, positions[alike], key.__eq__)
        return np.asarray(found)

    def _in_key(self, columns: Columns, positions: Ints, text: bytes) -> Array:
        """Which of these rows have a key that contains it."""
        if columns.key_at is None:
            return self._keys_where(columns, positions, lambda key: text in key)
        if len(positions) <= FEW_ROWS:
            bounds = zip(columns.key_at[positions].tolist(), (columns.key_at[positions + 1] - 1).tolist(), strict=True)
            find = columns.keys.find
            return np.fromiter((find(text, first, stop) >= 0 for first, stop in bounds), np.bool_, len(positions))
        if _SEPARATOR in text:
            return np.zeros(len(positions), np.bool_)
        has = np.zeros(len(columns), np.bool_)
        has[np.searchsorted(columns.key_at, _hits(columns.keys, text), side="right") - 1] = True
        return np.asarray(has[positions])

    def _keys_where(self, columns: Columns, positions: Ints, test: Callable[[bytes], bool]) -> Array:
        """Whole keys, from the files."""
        keys = self._read_keys(*self._log.half_heads(columns.half_offset[positions]))
        return np.fromiter(map(test, keys), np.bool_, len(positions))

    # --- listings --------------------------------------------------------------------------------------------------------------
    def page(
        self, wanted: Wanted, limit: int, *, newest: bool = False, at: int | None = None, count: bool = True, enough: Enough = never
    ) -> Page:
        """At most `limit` halves, from `at` on, or before it when the newest come first. `count`: the first page goes on behind
        them as long as it may, to know how many there are."""
        filter = self._resolve(wanted)
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
        filter = self._resolve(wanted)
        if filter.impossible:
            return np.empty(0, np.int64)
        low, high = self._bounds(wanted)
        found = [offsets for _, _, offsets in self._scan(filter, low, high, newest=False)]
        return np.concatenate([np.empty(0, np.int64), *found])

    def _bounds(self, wanted: Wanted) -> tuple[int, int]:
        low, high = self.begin, self.end
        if wanted.in_doubt:
            return low, high
        if wanted.stored_from_ms is not None:
            low = self._log.first_half_since(wanted.stored_from_ms - CLOCK_SLACK_MS, low, high)
        if wanted.stored_until_ms is not None:
            high = self._log.first_half_since(wanted.stored_until_ms + 1 + CLOCK_SLACK_MS, low, high)
        return low, high

    def _scan(self, filter: _Filter, low: int, high: int, newest: bool) -> Iterator[tuple[int, int, Ints]]:
        """(first, stop, what is wanted between them) of one piece after another."""
        pieces = self._pieces if filter.wanted.in_doubt else []
        indexed = min(max(self._indexed if filter.wanted.in_doubt else low, low), high)
        tail = [(at, min(at + SCAN_OFFSETS, high)) for at in range(indexed, high, SCAN_OFFSETS)]
        if newest:
            yield from self._scan_files(filter, reversed(tail))
            yield from self._scan_index(filter, reversed(pieces), low, indexed)
        else:
            yield from self._scan_index(filter, iter(pieces), low, indexed)
            yield from self._scan_files(filter, iter(tail))

    def _scan_index(self, filter: _Filter, pieces: Iterator[Columns], low: int, high: int) -> Iterator[tuple[int, int, Ints]]:
        for piece in pieces:
            if piece.half_offset[-1] >= low and piece.half_offset[0] < high:
                yield max(piece.first, low), min(piece.stop, high), self._matching(piece, filter, low, high)

    def _scan_files(self, filter: _Filter, ranges: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int, Ints]]:
        for first, stop in ranges:
            columns = self._describe(first, stop, filter.wanted.ends, with_keys=False)
            yield first, stop, self._matching(columns, filter, first, stop)

    # --- what else is asked about halves in doubt ------------------------------------------------------------------------------
    def summary(self) -> Summary:
        """Counts by group. Walks over everything that is in doubt."""
        groups = len(self._dictionary.groups)
        found = Summary(np.zeros(groups, np.int64), np.zeros(groups, np.int64), np.zeros(groups, np.int64))
        tail = [(at, min(at + SCAN_OFFSETS, self.end)) for at in range(max(self._indexed, self.begin), self.end, SCAN_OFFSETS)]
        begin = self.begin
        for piece in list(self._pieces):
            self._add(piece, begin, found)
        for first, stop in tail:
            self._add(self._describe(first, stop, IN_DOUBT, with_keys=False), begin, found)
        return found

    def _add(self, columns: Columns, begin: int, found: Summary) -> None:
        first = int(np.searchsorted(columns.half_offset, begin))  # of what lies before it the files may be gone
        marks = self._ends_of(columns.half_offset[first:])
        found.discarded += int(np.count_nonzero(_among(marks, DISCARDED)))
        at = first + np.flatnonzero((marks == 0) & (columns.group_no[first:] < len(found.pending)))
        if not len(at):
            return
        words = self._words(columns.half_offset[at])
        known = state_of(words) != int(State.QUARANTINED)
        at, words = at[known], words[known]
        groups, stored = columns.group_no[at], columns.stored_at_ms[at]
        found.pending += np.bincount(groups, minlength=len(found.pending))
        asked = self._outstanding(words)
        found.outstanding += np.bincount(groups[asked], minlength=len(found.pending))
        oldest = np.full(len(found.pending), np.iinfo(np.int64).max)
        np.minimum.at(oldest, groups, stored)
        fresh = (oldest != np.iinfo(np.int64).max) & ((found.oldest_ms == 0) | (oldest < found.oldest_ms))
        found.oldest_ms[fresh] = oldest[fresh]
        if len(stored):
            least = int(stored.min())
            found.oldest_pending_ms = least if found.oldest_pending_ms is None else min(found.oldest_pending_ms, least)

    def _outstanding(self, words: Array) -> Array:
        topics = self._rows.topics()
        if topics is None:
            return np.zeros(len(words), np.bool_)
        return topics.under_way(words)

    # --- rows of a page ----------------------------------------------------------------------------------------------------------
    def frames(self, half_offsets: Sequence[int]) -> tuple[list[Frame], int]:
        """The readable ones among these halves, and how many were looked at: a page of large bodies ends early."""
        found: list[Frame] = []
        read_bytes = 0
        for looked, half_offset in enumerate(half_offsets):
            entry = self._log.half_queue.entry(half_offset)
            if looked and read_bytes + entry[1] > PAGE_BYTES:
                return found, looked
            read_bytes += entry[1]
            try:
                found.append(self._log.log.read(entry[0], entry[1]))
            except Corrupt:
                continue  # the job quarantines it
        return found, len(half_offsets)

    def end_of(self, half_offset: int) -> int:
        return self._ends[half_offset]

    def group_nos(self, half_offsets: Ints) -> list[int]:
        """In the order given."""
        found: list[int] = self._log.half_heads(half_offsets)[1]["group_no"].tolist()
        return found

    def states(self, half_offsets: Ints) -> tuple[list[int], list[int], list[bool]]:
        """(how they ended, attempts, whether a request is under way) of halves, in any order."""
        words = self._words(half_offsets)
        ends = [self._ends[half_offset] for half_offset in half_offsets.tolist()]
        return ends, check_count_of(words).tolist(), self._outstanding(words).tolist()

    def ended_at_ms(self, frames: Sequence[Frame]) -> dict[int, int]:
        """When halves ended, as far as that is found among the ops behind the oldest of them and among the newest ops."""
        if not frames:
            return {}
        wanted = np.sort(np.array([frame.queue_offset for frame in frames], np.int64))
        since_ms = min(frame.stored_at_ms for frame in frames)
        first, stop = self._log.ops_since(since_ms)
        found = self._settling_ops(first, min(stop, first + ENDED_OPS), wanted)
        if len(found) < len(wanted) and stop > first + ENDED_OPS:
            found |= self._settling_ops(max(first + ENDED_OPS, stop - ENDED_OPS), stop, wanted)
        return found

    def _settling_ops(self, first: int, stop: int, wanted: Ints) -> dict[int, int]:
        entries = self._log.op_queue.read(first, stop)
        at = np.minimum(np.searchsorted(wanted, entries["tags_code"]), len(wanted) - 1)
        found: dict[int, int] = {}
        for entry in entries[wanted[at] == entries["tags_code"]]:
            try:
                op = self._log.frame(entry)
            except Corrupt:
                continue
            if op.fields["op_kind"] in _SETTLING:
                found[int(entry["tags_code"])] = op.stored_at_ms
        return found

    def quarantined(self, limit: int, at: int | None = None) -> tuple[list[int], int | None]:
        """Halves that could not be read, from place `at` of their queue on, and the place to go on from."""
        topics = self._rows.topics()
        if topics is None:
            return [], None
        queue, end = topics.queue("quarantine"), topics.page[JobSlot.QUARANTINE_END]
        first = max(queue.begin, at or 0)
        stop = min(end, first + limit)
        tags = queue.read(first, stop)["tags_code"].tolist() if first < stop else []
        return [tag for tag in tags if tag >= self.begin], stop if stop < end else None

    def refresh(self) -> None:
        """Files were deleted: let go of them."""
        for part in (self._log.log.file, self._log.half_queue.file, self._log.op_queue.file, self._ends.file):
            part.refresh()

    def close(self) -> None:
        self._rows.close()
        self._ends.file.close()


def _take(taken: list[int], offsets: Ints, limit: int, newest: bool) -> int | None:
    """As many as there is room for; where to go on if some are left."""
    room = limit - len(taken)
    taken += (offsets[::-1] if newest else offsets)[:room].tolist()
    if len(offsets) <= room:
        return None
    return taken[-1] if newest else taken[-1] + 1


def _unless_through(following: int | None, low: int, high: int, newest: bool) -> int | None:
    if following is None or (following <= low if newest else following >= high):
        return None
    return following


_LUTS: dict[frozenset[int], Array] = {}


def _lut(ends: frozenset[int]) -> Array:
    """Which of 256 marks are among these."""
    found = _LUTS.get(ends)
    if found is None:
        found = np.zeros(256, np.bool_)
        found[list(ends)] = True
        _LUTS[ends] = found
    return found


def _hits(content: bytes, wanted: bytes) -> Ints:
    """Where it occurs."""
    few: list[int] = []
    find, at = content.find, content.find(wanted)
    while at >= 0:
        few.append(at)
        if len(few) > FEW_HITS:
            return _many_hits(content, wanted)
        at = find(wanted, at + 1)
    return np.array(few, np.int64)


def _many_hits(content: bytes, wanted: bytes) -> Ints:
    """As columns: the byte of it that is rarest here is looked for first, the others beside those that were found."""
    letters, found = np.frombuffer(content, np.uint8), np.frombuffer(wanted, np.uint8)
    sample = np.bincount(letters[:: max(1, len(letters) >> 12)], minlength=256)
    order = np.argsort(sample[found], kind="stable").tolist()
    last = len(letters) - len(found) + 1
    at: Ints = np.flatnonzero(letters[order[0] : order[0] + last] == found[order[0]])
    for number in order[1:]:
        if not len(at):
            break
        at = at[letters[at + number] == found[number]]
    return at


def _among(marks: Array, ends: frozenset[int]) -> Array:
    """Which of them are one of these ends."""
    if len(ends) == 1:  # as of open ones: many times faster than a table
        return np.asarray(marks == next(iter(ends)))
    return np.asarray(_lut(ends)[marks])


def _places(ascending: Ints, start: int) -> Ints | slice:
    """Where they are, from start on; as a slice where there is no gap, which is many times faster."""
    first, last = int(ascending[0]), int(ascending[-1])
    if last - first + 1 == len(ascending):
        return slice(first - start, last + 1 - start)
    return ascending - start


def _looked_up(table: Array, numbers: Array) -> Array:
    """Names that came after the table was made are none of it."""
    return np.asarray(table[np.minimum(numbers, len(table) - 1)] & (numbers < len(table)))


def _within(counts: Any, wanted: Wanted) -> Array:
    kept = np.ones(len(counts), np.bool_)
    if wanted.attempts_min is not None:
        kept &= counts >= wanted.attempts_min
    if wanted.attempts_max is not None:
        kept &= counts <= wanted.attempts_max
    return kept
