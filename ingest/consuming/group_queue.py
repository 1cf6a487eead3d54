"""One consumer group in one topic queue: what is done, what is in hand, what comes next. Decides; no disk and no clock. All times
are on the elapsed line (`store.clock`), which never leaps.

    offset ……………………… scanned ……………………… end of the queue
    │ done, held, free      │ not looked at yet
    └ all before is done    └ at most `window` behind offset

Each entry between offset and scanned is

    done    acknowledged, or passed over: a hole, corrupt, of another tag, for another group
    held    in hand until visible_at_ms; a receipt is out
    dying   handed out too often: on its way to the dead-letter topic
    free    never handed out because its key is in hand, or come back: lapsed, or given back

Exits: free → held, dying, done · held → free (time, give back), done (acknowledged) · dying → done (it is a dead letter), free (it
could not be stored).

Order by key. The undone entries of one key form a *lane*. While any of them is held or dying, nothing of the lane goes to another
poll; then it goes on with its first. One poll may take several of a lane, in order. Entries without a key are in no lane.

`ready` holds the offsets that may be tried next. Invariant: the first entry of a lane without held and dying ones is in it, and so
is each free entry without a key. Offsets that came in for nothing are dropped when they come out.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heappop, heappush
from typing import Final, Protocol

from store.properties import FOR_GROUP, KEYS, TAGS
from store.tables.frames import Frame
from store.tables.journals.consumers import ConsumerKind, ConsumerRecord, Progress

ATTEMPTS_MAX: Final = 0xFFFF
#: Entries looked at in one go; a filter that passes over millions must not keep the event loop.
LOOK_ENTRIES: Final = 1024
_CHUNK: Final = 64


class Source(Protocol):
    """What a queue's entries are read from."""

    def extent(self, queue_key: int) -> tuple[int, int]: ...

    def entries(self, queue_key: int, first: int, stop: int) -> list[tuple[int, int, int]]: ...

    def frame(self, queue_key: int, commit_log_offset: int, size_bytes: int) -> Frame | None:
        """The frame of an entry; None where it is lost or not of this queue. Raises where it cannot be read now: the entry is then
        tried again."""


@dataclass(frozen=True, slots=True)
class TagFilter:
    """Which messages a group wants: `a||b`; nothing or `*` is all of them."""

    text: str = ""
    tags: frozenset[str] = frozenset()
    codes: frozenset[int] = frozenset()

    def takes(self, frame: Frame) -> bool:
        return not self.tags or frame.properties.get(TAGS, "") in self.tags


class _Is(IntEnum):
    FREE = 0
    HELD = 1
    DYING = 2


@dataclass(slots=True)
class _Entry:
    place: tuple[int, int]
    key: str
    attempts: int = 0
    visible_at_ms: int = 0
    state: _Is = _Is.FREE


@dataclass(slots=True)
class _Lane:
    offsets: list[int] = field(default_factory=list)
    busy: int = 0  # how many are held or dying


@dataclass(frozen=True, slots=True)
class Handed:
    """An entry that goes out, or (`dying`) to the dead-letter topic."""

    queue: GroupQueue
    queue_offset: int
    attempts: int
    visible_at_ms: int
    frame: Frame


@dataclass(slots=True)
class Hand:
    """One poll while it takes: what it may still take and what it has."""

    group: str
    now_ms: int
    visible_at_ms: int
    wanted: TagFilter
    deliveries_max: int
    count_left: int
    bytes_left: int
    taken: list[Handed] = field(default_factory=list)
    dying: list[Handed] = field(default_factory=list)
    records: list[ConsumerRecord] = field(default_factory=list)
    #: Entries were left for the next poll, or for another go of this one.
    more: bool = False
    looked_at: int = 0
    passed_over: dict[str, int] = field(default_factory=dict)

    def full(self) -> bool:
        return self.count_left <= 0

    def fits(self, size_bytes: int) -> bool:
        return not self.taken or size_bytes <= self.bytes_left

    def pass_over(self, why: str, count: int = 1) -> None:
        self.passed_over[why] = self.passed_over.get(why, 0) + count


class GroupQueue:
    """Lives in the event loop."""

    def __init__(
        self, group_no: int, queue_key: int, window: int, progress: Progress | None = None, *, until_ms: int = 1 << 62
    ) -> None:
        """`until_ms`: no hand-out of an earlier life can be held longer; what says so was written by a clock that was ahead."""
        self.group_no, self.queue_key, self._window = group_no, queue_key, window
        self._edition = progress.edition if progress is not None else 0
        self.offset = self._noted = progress.offset if progress is not None else 0
        self._scanned = self.offset
        self._done: set[int] = set()
        #: Hand-outs of an earlier life whose entry was not looked at again yet: (attempts, visible_at_ms).
        self._receipts: dict[int, tuple[int, int]] = {}
        self._entries: dict[int, _Entry] = {}
        self._lanes: dict[str, _Lane] = {}
        self._ready: list[int] = []
        self._until_ms = until_ms
        self._due: list[tuple[int, int]] = []
        #: No hand-out is visible again before this: a receipt from before a seek never equals one from after it.
        self._floor_ms = self._latest_ms = 0
        for record in progress.ahead.values() if progress is not None else ():
            if record.kind == ConsumerKind.DONE:
                self._done.add(record.queue_offset)
            else:
                self._receipts[record.queue_offset] = (record.attempts, record.visible_at_ms)
                if record.visible_at_ms <= until_ms:
                    self._latest_ms = max(self._latest_ms, record.visible_at_ms)

    # --- handing out ----------------------------------------------------------------------------------------------------------
    def take(self, source: Source, hand: Hand) -> None:
        """Put into the hand what may go out now: first what came back, then what is new."""
        begin, end = source.extent(self.queue_key)
        if begin > self.offset:
            hand.pass_over("retention", self._pass_to(begin))
        if self._receipts:
            self._recall(source, hand, end)
        self.lapse(hand.now_ms)
        mine: set[str] = set()
        self._take_ready(source, hand, mine)
        # Not beyond what could not be recalled yet: it is not new.
        self._scan(source, hand, mine, min(end, *self._receipts) if self._receipts else end)
        hand.more |= hand.full() and (bool(self._ready) or self._scanned < end)
        hand.records += self.noted()

    def lapse(self, now_ms: int) -> None:
        """Entries whose time is over are free again."""
        while self._due and self._due[0][0] <= now_ms:
            visible_at_ms, queue_offset = heappop(self._due)
            entry = self._entries.get(queue_offset)
            if entry is not None and entry.state is _Is.HELD and entry.visible_at_ms == visible_at_ms:
                self._free(queue_offset, entry)

    def next_due_ms(self) -> int | None:
        """When the next entry in hand may become free."""
        return self._due[0][0] if self._due else None

    def _take_ready(self, source: Source, hand: Hand, mine: set[str]) -> None:
        while self._ready and not hand.full():
            queue_offset = heappop(self._ready)
            entry = self._entries.get(queue_offset)
            if entry is None or entry.state is not _Is.FREE or not self._is_next(queue_offset, entry, mine):
                continue
            try:
                frame = source.frame(self.queue_key, *entry.place)
            except BaseException:
                heappush(self._ready, queue_offset)
                raise
            if frame is None or not self._is_wanted(frame, hand):
                hand.pass_over("unreadable" if frame is None else "filtered")
                self._finish(queue_offset)
                if entry.key in mine:
                    self._make_ready(entry.key)
            elif not hand.fits(frame.size_bytes):
                heappush(self._ready, queue_offset)
                hand.count_left, hand.more = 0, True
            else:
                self._hand_out(queue_offset, entry, frame, hand, mine)

    def _is_next(self, queue_offset: int, entry: _Entry, mine: set[str]) -> bool:
        """Whether its lane, if it has one, is free or this poll's own, and has come to this entry."""
        if not entry.key:
            return True
        lane = self._lanes[entry.key]
        # A poll takes a lane from its first entry on: the busy ones are the beginning of it.
        return (not lane.busy or entry.key in mine) and lane.offsets[lane.busy] == queue_offset

    def _is_wanted(self, frame: Frame, hand: Hand) -> bool:
        return hand.wanted.takes(frame) and frame.properties.get(FOR_GROUP, hand.group) == hand.group

    def _recall(self, source: Source, hand: Hand, end: int) -> None:
        """What an earlier life handed out is known again before anything else: its keys may be in hand."""
        for queue_offset in sorted(self._receipts):
            found = source.entries(self.queue_key, queue_offset, queue_offset + 1) if queue_offset < end else []
            if not found:
                return
            frame = source.frame(self.queue_key, *found[0][:2]) if found[0][1] else None
            if frame is None:
                hand.pass_over("unreadable")
                self._finish(queue_offset)
                continue
            entry = self._remember(queue_offset, frame)
            if entry.attempts and hand.now_ms < entry.visible_at_ms <= self._until_ms:
                self._hold(queue_offset, entry)
            elif entry.key:
                heappush(self._ready, self._lanes[entry.key].offsets[0])
            else:
                heappush(self._ready, queue_offset)

    def _scan(self, source: Source, hand: Hand, mine: set[str], end: int) -> None:
        while not hand.full():
            first = self._scanned
            stop = min(end, self.offset + self._window, first + _CHUNK)
            if first < stop and hand.looked_at >= LOOK_ENTRIES:
                hand.more = True
                return
            chunk = source.entries(self.queue_key, first, stop) if first < stop else []
            if not chunk:
                return
            hand.looked_at += len(chunk)
            for queue_offset, entry in enumerate(chunk, first):
                self._look_at(queue_offset, entry, source, hand, mine)
                if hand.full():
                    return

    def _look_at(self, queue_offset: int, found: tuple[int, int, int], source: Source, hand: Hand, mine: set[str]) -> None:
        """An entry that this life has not seen yet."""
        commit_log_offset, size_bytes, tags_code = found
        if queue_offset in self._done or queue_offset in self._entries:
            self._scanned = queue_offset + 1
            return
        codes = hand.wanted.codes
        why, frame = "", None
        if not size_bytes:
            why = "holes"
        elif codes and tags_code not in codes:
            why = "filtered"
        else:
            frame = source.frame(self.queue_key, commit_log_offset, size_bytes)
            why = "unreadable" if frame is None else "" if self._is_wanted(frame, hand) else "filtered"
        self._scanned = queue_offset + 1  # only now: what could not be read is looked at again
        if frame is None or why:
            hand.pass_over(why)
            self._finish(queue_offset)
            return
        entry = self._remember(queue_offset, frame)
        if not self._is_next(queue_offset, entry, mine):
            return
        if hand.fits(frame.size_bytes):
            self._hand_out(queue_offset, entry, frame, hand, mine)
        else:
            heappush(self._ready, queue_offset)
            hand.count_left, hand.more = 0, True

    def _remember(self, queue_offset: int, frame: Frame) -> _Entry:
        """Make the entry's record in memory, free, with the attempts of an earlier life."""
        key = frame.properties.get(KEYS, "")
        attempts, visible_at_ms = self._receipts.pop(queue_offset, (0, 0))
        entry = _Entry((frame.commit_log_offset, frame.size_bytes), key, attempts, visible_at_ms)
        self._entries[queue_offset] = entry
        if key:
            lane = self._lanes.get(key)
            if lane is None:
                lane = self._lanes[key] = _Lane()
            insort(lane.offsets, queue_offset)
        return entry

    def _hand_out(self, queue_offset: int, entry: _Entry, frame: Frame, hand: Hand, mine: set[str]) -> None:
        if entry.attempts >= hand.deliveries_max:
            self._make_busy(entry, _Is.DYING)
            mine.discard(entry.key)  # what follows waits until it has gone
            hand.dying.append(Handed(self, queue_offset, entry.attempts, entry.visible_at_ms, frame))
            return
        entry.attempts = min(entry.attempts + 1, ATTEMPTS_MAX)
        entry.visible_at_ms = max(hand.visible_at_ms, self._floor_ms)
        self._hold(queue_offset, entry)
        if entry.key:
            mine.add(entry.key)
            self._make_ready(entry.key)
        hand.taken.append(Handed(self, queue_offset, entry.attempts, entry.visible_at_ms, frame))
        hand.records.append(self.receipt(queue_offset, entry.attempts, entry.visible_at_ms))
        hand.count_left -= 1
        hand.bytes_left -= frame.size_bytes

    # --- what became of it ----------------------------------------------------------------------------------------------------
    def acknowledge(self, queue_offset: int, attempts: int, visible_at_ms: int, records: list[ConsumerRecord]) -> bool:
        """Whether the entry is done now, or was already; False: the receipt is not the last one. Call `noted` after the last."""
        if queue_offset < self.offset or queue_offset in self._done:
            return True
        if not self._matches(queue_offset, attempts, visible_at_ms):
            return False
        self._finish(queue_offset)
        if queue_offset > self.offset:
            records.append(self._record(ConsumerKind.DONE, queue_offset))
        return True

    def change_visibility(self, queue_offset: int, attempts: int, visible_at_ms: int, until_ms: int, now_ms: int) -> int | None:
        """Hold the entry until then, or free it now; when it is visible again, None where the receipt is not the last one."""
        self.lapse(now_ms)
        entry = self._entries.get(queue_offset)
        if visible_at_ms <= now_ms or not self._matches(queue_offset, attempts, visible_at_ms):
            return None
        if entry is None:
            self._receipts[queue_offset] = (attempts, until_ms)
        else:
            entry.visible_at_ms = until_ms
            if until_ms <= now_ms:
                self._free(queue_offset, entry)
            else:
                heappush(self._due, (until_ms, queue_offset))
        self._latest_ms = max(self._latest_ms, until_ms)
        return until_ms

    def condemn(self, queue_offset: int, attempts: int, visible_at_ms: int) -> tuple[int, int] | None:
        """The entry goes to the dead-letter topic whatever its attempts; its place, None where the receipt is not the last one."""
        entry = self._entries.get(queue_offset)
        if entry is None or not self._matches(queue_offset, attempts, visible_at_ms):
            return None
        if entry.state is _Is.FREE:
            self._make_busy(entry, _Is.DYING)
        entry.state = _Is.DYING
        return entry.place

    def put_back(self, handed: Handed, now_ms: int) -> ConsumerRecord | None:
        """It never reached the consumer: free again, and not counted. The record that says so."""
        entry = self._entries.get(handed.queue_offset)
        if entry is None or entry.state is not _Is.HELD or entry.visible_at_ms != handed.visible_at_ms:
            return None
        entry.attempts, entry.visible_at_ms = handed.attempts - 1, now_ms
        self._free(handed.queue_offset, entry)
        return self.receipt(handed.queue_offset, entry.attempts, now_ms)

    def finish(self, queue_offset: int) -> list[ConsumerRecord]:
        """The entry is done, whatever it was: a dead letter that is stored, or that was replayed. The records that say so."""
        if self.is_done(queue_offset):
            return []
        self._finish(queue_offset)
        if queue_offset > self.offset:
            return [self._record(ConsumerKind.DONE, queue_offset)]
        return self.noted()

    def not_buried(self, queue_offset: int, again_at_ms: int) -> None:
        """A dying entry could not be stored as a dead letter: it is tried again then."""
        entry = self._entries.get(queue_offset)
        if entry is not None and entry.state is _Is.DYING:
            entry.state, entry.visible_at_ms = _Is.HELD, again_at_ms
            heappush(self._due, (again_at_ms, queue_offset))

    def is_done(self, queue_offset: int) -> bool:
        return queue_offset < self.offset or queue_offset in self._done

    def noted(self) -> list[ConsumerRecord]:
        """The offset, if it has moved since it was written down."""
        if self.offset <= self._noted:
            return []
        self._noted = self.offset
        return [self._record(ConsumerKind.OFFSET, self.offset)]

    def receipt(self, queue_offset: int, attempts: int, visible_at_ms: int) -> ConsumerRecord:
        return self._record(ConsumerKind.RECEIPT, queue_offset, attempts, visible_at_ms)

    def _matches(self, queue_offset: int, attempts: int, visible_at_ms: int) -> bool:
        entry = self._entries.get(queue_offset)
        if entry is None:
            return self._receipts.get(queue_offset) == (attempts, visible_at_ms) and attempts > 0
        last = entry.attempts == attempts and entry.visible_at_ms == visible_at_ms
        return last and attempts > 0 and entry.state is not _Is.DYING

    # --- states ---------------------------------------------------------------------------------------------------------------
    def _hold(self, queue_offset: int, entry: _Entry) -> None:
        self._make_busy(entry, _Is.HELD)
        self._latest_ms = max(self._latest_ms, entry.visible_at_ms)
        heappush(self._due, (entry.visible_at_ms, queue_offset))

    def _make_busy(self, entry: _Entry, state: _Is) -> None:
        entry.state = state
        if entry.key:
            self._lanes[entry.key].busy += 1

    def _free(self, queue_offset: int, entry: _Entry) -> None:
        entry.state = _Is.FREE
        if not entry.key:
            heappush(self._ready, queue_offset)
            return
        lane = self._lanes[entry.key]
        lane.busy -= 1
        if not lane.busy:
            heappush(self._ready, lane.offsets[0])

    def _make_ready(self, key: str) -> None:
        """The next entry of a lane may be tried."""
        lane = self._lanes[key]
        if lane.busy < len(lane.offsets):
            heappush(self._ready, lane.offsets[lane.busy])

    def _finish(self, queue_offset: int) -> None:
        """The entry is done."""
        self._forget(queue_offset)
        self._done.add(queue_offset)
        self._advance()

    def _forget(self, queue_offset: int) -> None:
        self._receipts.pop(queue_offset, None)
        entry = self._entries.pop(queue_offset, None)
        if entry is None or not entry.key:
            return
        lane = self._lanes[entry.key]
        del lane.offsets[bisect_left(lane.offsets, queue_offset)]
        lane.busy -= entry.state is not _Is.FREE
        if not lane.offsets:
            del self._lanes[entry.key]
        elif not lane.busy:
            heappush(self._ready, lane.offsets[0])

    def _advance(self) -> None:
        offset, done = self.offset, self._done
        while offset in done:
            done.remove(offset)
            offset += 1
        self.offset = offset
        self._scanned = max(self._scanned, offset)

    def _pass_to(self, begin: int) -> int:
        """Retention has taken what lies before `begin`; how many entries were not done."""
        undone = begin - self.offset - sum(at < begin for at in self._done)
        for at in [at for at in (*self._entries, *self._receipts) if at < begin]:
            self._forget(at)
        self._done = {at for at in self._done if at >= begin}
        self.offset = begin
        self._advance()
        return undone

    def _record(self, kind: ConsumerKind, queue_offset: int, attempts: int = 0, visible_at_ms: int = 0) -> ConsumerRecord:
        return ConsumerRecord(kind, self.group_no, self.queue_key, queue_offset, attempts, visible_at_ms, self._edition)

    def put_at(self, queue_offset: int) -> GroupQueue:
        """This group and queue anew, from here on: what was in hand is not any more."""
        anew = GroupQueue(self.group_no, self.queue_key, self._window, Progress(queue_offset, edition=self._edition))
        anew._floor_ms = anew._latest_ms = self._latest_ms + 1
        return anew

    @property
    def done_ahead(self) -> int:
        """Entries behind `offset` that are done."""
        return len(self._done)

    @property
    def in_hand(self) -> int:
        """Entries that are out; of an earlier life those too that were not looked at again yet."""
        return sum(entry.state is _Is.HELD for entry in self._entries.values()) + len(self._receipts)

    @property
    def tracked(self) -> int:
        """Entries that are kept in memory: at most the window."""
        return len(self._entries) + len(self._done) + len(self._receipts)
