"""One consumer group in one topic queue: what is done, what is in hand, what comes next. Decides; no disk and no clock. All times
are on the elapsed line (`store.clock`), which never leaps.

    offset ……………………… scanned ……………………… end of the queue
    │ done, held, free      │ not looked at yet
    └ all before is done    └ at most `look_ahead` behind offset

What lies between offset and scanned is the window (`window.py`, with the states of an entry and the order by key). A queue that has
nothing under way has none: there may be hundreds of thousands of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, Protocol

from ingest.consuming.filters import TagFilter
from ingest.consuming.window import Entry, EntryState, Window
from store.properties import FOR_GROUP
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
    #: Keys that this poll has taken from the queue that it is at: it may go on with their lanes.
    mine: set[str] = field(default_factory=set)
    passed_over: dict[str, int] = field(default_factory=dict)

    def full(self) -> bool:
        return self.count_left <= 0

    def fits(self, size_bytes: int) -> bool:
        return not self.taken or size_bytes <= self.bytes_left

    def wants(self, frame: Frame) -> bool:
        return self.wanted.takes(frame) and frame.properties.get(FOR_GROUP, self.group) == self.group

    def pass_over(self, why: str, count: int = 1) -> None:
        self.passed_over[why] = self.passed_over.get(why, 0) + count


class GroupQueue:
    """Lives in the event loop."""

    __slots__ = (
        "_edition", "_floor_ms", "_latest_ms", "_look_ahead", "_noted", "_scanned", "_until_ms", "_window",
        "group_no", "offset", "queue_key",
    )  # fmt: skip

    def __init__(self, group_no: int, queue_key: int, look_ahead: int, progress: Progress, *, until_ms: int = 1 << 62) -> None:
        """`until_ms`: no hand-out of an earlier life can be held longer; what says so was written by a clock that was ahead."""
        self.group_no, self.queue_key, self._look_ahead = group_no, queue_key, look_ahead
        self._edition, self._until_ms = progress.edition, until_ms
        self.offset = self._noted = self._scanned = progress.offset
        #: No hand-out is visible again before this: a receipt from before a seek never equals one from after it.
        self._floor_ms = self._latest_ms = 0
        self._window: Window | None = None
        if progress.ahead:
            self._window = self._recovered(progress)

    def _recovered(self, progress: Progress) -> Window:
        window = Window()
        for record in progress.ahead.values():
            if record.kind == ConsumerKind.DONE:
                window.done.add(record.queue_offset)
            else:
                window.receipts[record.queue_offset] = (record.attempts, record.visible_at_ms)
                if record.visible_at_ms <= self._until_ms:
                    self._latest_ms = max(self._latest_ms, record.visible_at_ms)
        return window

    # --- handing out ----------------------------------------------------------------------------------------------------------
    def take(self, source: Source, hand: Hand) -> None:
        """Put into the hand what may go out now: first what came back, then what is new."""
        begin, end = source.extent(self.queue_key)
        if begin > self.offset:
            hand.pass_over("retention", self._pass_to(begin))
        if self._window is not None or self._scanned < end:
            self._take(source, hand, end)
        hand.records += self.noted()

    def _take(self, source: Source, hand: Hand, end: int) -> None:
        window = self._opened()
        if window.receipts:
            self._recall(window, source, hand, end)
        window.lapse(hand.now_ms)
        hand.mine = set()
        self._take_ready(window, source, hand)
        # Not beyond what could not be recalled yet: it is not new.
        self._scan(window, source, hand, min(end, *window.receipts) if window.receipts else end)
        hand.more |= hand.full() and (bool(window.ready) or self._scanned < end)
        if not len(window):
            self._window = None

    def _opened(self) -> Window:
        if self._window is None:
            self._window = Window()
        return self._window

    def next_due_ms(self) -> int | None:
        """When the next entry in hand may become free."""
        return None if self._window is None else self._window.next_due_ms()

    def _take_ready(self, window: Window, source: Source, hand: Hand) -> None:
        ready = window.ready
        while ready and not hand.full():
            queue_offset = heappop(ready)
            entry = window.entries.get(queue_offset)
            if entry is None or entry.state is not EntryState.FREE or not window.is_next(queue_offset, entry, hand.mine):
                continue
            try:
                frame = source.frame(self.queue_key, *entry.place)
            except BaseException:
                heappush(ready, queue_offset)
                raise
            if frame is None or not hand.wants(frame):
                hand.pass_over("unreadable" if frame is None else "filtered")
                self._finish(window, queue_offset)
                if entry.key in hand.mine:
                    window.make_ready(entry.key)
            else:
                self._offer(window, queue_offset, entry, frame, hand)

    def _offer(self, window: Window, queue_offset: int, entry: Entry, frame: Frame, hand: Hand) -> None:
        """Hand an entry out, or leave it to the next poll where the answer is full."""
        if hand.fits(frame.size_bytes):
            self._hand_out(window, queue_offset, entry, frame, hand)
        else:
            heappush(window.ready, queue_offset)
            hand.count_left, hand.more = 0, True

    def _recall(self, window: Window, source: Source, hand: Hand, end: int) -> None:
        """What an earlier life handed out is known again before anything else: its keys may be in hand."""
        for queue_offset in sorted(window.receipts):
            found = source.entries(self.queue_key, queue_offset, queue_offset + 1) if queue_offset < end else []
            if not found:
                return
            frame = source.frame(self.queue_key, *found[0][:2]) if found[0][1] else None
            if frame is None:
                hand.pass_over("unreadable")
                self._finish(window, queue_offset)
                continue
            entry = window.remember(queue_offset, frame)
            if entry.attempts and hand.now_ms < entry.visible_at_ms <= self._until_ms:
                self._hold(window, queue_offset, entry)
            else:
                window.recalled(queue_offset, entry)

    def _scan(self, window: Window, source: Source, hand: Hand, end: int) -> None:
        while not hand.full():
            first = self._scanned
            stop = min(end, self.offset + self._look_ahead, first + _CHUNK)
            if first < stop and hand.looked_at >= LOOK_ENTRIES:
                hand.more = True
                return
            chunk = source.entries(self.queue_key, first, stop) if first < stop else []
            if not chunk:
                return
            hand.looked_at += len(chunk)
            for queue_offset, entry in enumerate(chunk, first):
                self._look_at(window, queue_offset, entry, source, hand)
                if hand.full():
                    return

    def _look_at(self, window: Window, queue_offset: int, found: tuple[int, int, int], source: Source, hand: Hand) -> None:
        """An entry that this life has not seen yet."""
        commit_log_offset, size_bytes, tags_code = found
        if queue_offset in window.done or queue_offset in window.entries:
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
            why = "unreadable" if frame is None else "" if hand.wants(frame) else "filtered"
        self._scanned = queue_offset + 1  # only now: what could not be read is looked at again
        if frame is None or why:
            hand.pass_over(why)
            self._finish(window, queue_offset)
            return
        entry = window.remember(queue_offset, frame)
        if window.is_next(queue_offset, entry, hand.mine):
            self._offer(window, queue_offset, entry, frame, hand)

    def _hand_out(self, window: Window, queue_offset: int, entry: Entry, frame: Frame, hand: Hand) -> None:
        if entry.attempts >= hand.deliveries_max:
            window.make_busy(entry, EntryState.DYING)
            hand.mine.discard(entry.key)  # what follows waits until it has gone
            hand.dying.append(Handed(self, queue_offset, entry.attempts, entry.visible_at_ms, frame))
            return
        entry.attempts = min(entry.attempts + 1, ATTEMPTS_MAX)
        entry.visible_at_ms = max(hand.visible_at_ms, self._floor_ms)
        self._hold(window, queue_offset, entry)
        if entry.key:
            hand.mine.add(entry.key)
            window.make_ready(entry.key)
        hand.taken.append(Handed(self, queue_offset, entry.attempts, entry.visible_at_ms, frame))
        hand.records.append(self.receipt(queue_offset, entry.attempts, entry.visible_at_ms))
        hand.count_left -= 1
        hand.bytes_left -= frame.size_bytes

    def _hold(self, window: Window, queue_offset: int, entry: Entry) -> None:
        window.hold(queue_offset, entry)
        self._latest_ms = max(self._latest_ms, entry.visible_at_ms)

    # --- what became of it ----------------------------------------------------------------------------------------------------
    def acknowledge(self, queue_offset: int, attempts: int, visible_at_ms: int, records: list[ConsumerRecord]) -> bool:
        """Whether the entry is done now, or was already; False: the receipt is not the last one. Call `noted` after the last."""
        if self.is_done(queue_offset):
            return True
        window = self._window
        if window is None or not window.matches(queue_offset, attempts, visible_at_ms):
            return False
        self._finish(window, queue_offset)
        if queue_offset > self.offset:
            records.append(self._record(ConsumerKind.DONE, queue_offset))
        return True

    def change_visibility(self, queue_offset: int, attempts: int, visible_at_ms: int, until_ms: int, now_ms: int) -> int | None:
        """Hold the entry until then, or free it now; when it is visible again, None where the receipt is not the last one."""
        window = self._window
        if window is None:
            return None
        window.lapse(now_ms)
        if visible_at_ms <= now_ms or not window.matches(queue_offset, attempts, visible_at_ms):
            return None
        window.hold_until(queue_offset, attempts, until_ms, now_ms)
        self._latest_ms = max(self._latest_ms, until_ms)
        return until_ms

    def condemn(self, queue_offset: int, attempts: int, visible_at_ms: int) -> tuple[int, int] | None:
        """The entry goes to the dead-letter topic whatever its attempts; its place, None where the receipt is not the last one."""
        window = self._window
        if window is None or not window.matches(queue_offset, attempts, visible_at_ms):
            return None
        return window.condemn(queue_offset)

    def put_back(self, handed: Handed, now_ms: int) -> ConsumerRecord | None:
        """It never reached the consumer: free again, and not counted. The record that says so."""
        attempts = handed.attempts - 1
        if self._window is None or not self._window.give_back(handed.queue_offset, handed.visible_at_ms, attempts, now_ms):
            return None
        return self.receipt(handed.queue_offset, attempts, now_ms)

    def finish(self, queue_offset: int) -> list[ConsumerRecord]:
        """The entry is done, whatever it was: a dead letter that is stored, or that was replayed. The records that say so."""
        if self.is_done(queue_offset):
            return []
        self._finish(self._opened(), queue_offset)
        if queue_offset > self.offset:
            return [self._record(ConsumerKind.DONE, queue_offset)]
        return self.noted()

    def not_buried(self, queue_offset: int, again_at_ms: int) -> None:
        """A dying entry could not be stored as a dead letter: it is tried again then."""
        if self._window is not None:
            self._window.not_buried(queue_offset, again_at_ms)

    def is_done(self, queue_offset: int) -> bool:
        return queue_offset < self.offset or (self._window is not None and queue_offset in self._window.done)

    def noted(self) -> list[ConsumerRecord]:
        """The offset, if it has moved since it was written down."""
        if self.offset <= self._noted:
            return []
        self._noted = self.offset
        return [self._record(ConsumerKind.OFFSET, self.offset)]

    def receipt(self, queue_offset: int, attempts: int, visible_at_ms: int) -> ConsumerRecord:
        return self._record(ConsumerKind.RECEIPT, queue_offset, attempts, visible_at_ms)

    def _record(self, kind: ConsumerKind, queue_offset: int, attempts: int = 0, visible_at_ms: int = 0) -> ConsumerRecord:
        return ConsumerRecord(kind, self.group_no, self.queue_key, queue_offset, attempts, visible_at_ms, self._edition)

    # --- where it stands ------------------------------------------------------------------------------------------------------
    def _finish(self, window: Window, queue_offset: int) -> None:
        """The entry is done."""
        window.forget(queue_offset)
        window.done.add(queue_offset)
        self._advance(window)

    def _advance(self, window: Window) -> None:
        offset, done = self.offset, window.done
        while offset in done:
            done.remove(offset)
            offset += 1
        self.offset = offset
        self._scanned = max(self._scanned, offset)

    def _pass_to(self, begin: int) -> int:
        """Retention has taken what lies before `begin`; how many entries were not done."""
        window = self._opened()
        undone = begin - self.offset - sum(at < begin for at in window.done)
        window.drop_before(begin)
        self.offset = begin
        self._advance(window)
        return undone

    def put_at(self, queue_offset: int) -> GroupQueue:
        """This group and queue anew, from here on: what was in hand is not any more."""
        anew = GroupQueue(self.group_no, self.queue_key, self._look_ahead, Progress(queue_offset, edition=self._edition))
        anew._floor_ms = anew._latest_ms = self._latest_ms + 1
        return anew

    @property
    def done_ahead(self) -> int:
        """Entries behind `offset` that are done."""
        return 0 if self._window is None else len(self._window.done)

    @property
    def in_hand(self) -> int:
        """Entries that are out; of an earlier life those too that were not looked at again yet."""
        return 0 if self._window is None else self._window.in_hand

    @property
    def tracked(self) -> int:
        """Entries that are kept in memory: at most the window."""
        return 0 if self._window is None else len(self._window)
