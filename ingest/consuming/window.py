"""The entries of a topic queue that one consumer group has under way: done ahead of the others, in hand, dying or free.

Each entry between the group's offset and what it has looked at is

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

from store.properties import KEYS
from store.tables.frames import Frame


class EntryState(IntEnum):
    FREE = 0
    HELD = 1
    DYING = 2


@dataclass(slots=True)
class Entry:
    place: tuple[int, int]
    key: str
    attempts: int = 0
    visible_at_ms: int = 0
    state: EntryState = EntryState.FREE


@dataclass(slots=True)
class _Lane:
    offsets: list[int] = field(default_factory=list)
    busy: int = 0  # how many are held or dying


class Window:
    """Belongs to one `GroupQueue`."""

    __slots__ = ("_due", "_lanes", "done", "entries", "ready", "receipts")

    def __init__(self) -> None:
        self.done: set[int] = set()
        #: Hand-outs of an earlier life whose entry was not looked at again yet: (attempts, visible_at_ms).
        self.receipts: dict[int, tuple[int, int]] = {}
        self.entries: dict[int, Entry] = {}
        self.ready: list[int] = []
        self._lanes: dict[str, _Lane] = {}
        self._due: list[tuple[int, int]] = []

    def __len__(self) -> int:
        """Entries that are kept in memory."""
        return len(self.entries) + len(self.done) + len(self.receipts)

    @property
    def in_hand(self) -> int:
        """Entries that are out; of an earlier life those too that were not looked at again yet."""
        return sum(entry.state is EntryState.HELD for entry in self.entries.values()) + len(self.receipts)

    def matches(self, queue_offset: int, attempts: int, visible_at_ms: int) -> bool:
        """Whether this is the last receipt of an entry that is not done."""
        entry = self.entries.get(queue_offset)
        if entry is None:
            return self.receipts.get(queue_offset) == (attempts, visible_at_ms) and attempts > 0
        last = entry.attempts == attempts and entry.visible_at_ms == visible_at_ms
        return last and attempts > 0 and entry.state is not EntryState.DYING

    # --- into the window, and out of it ---------------------------------------------------------------------------------------
    def remember(self, queue_offset: int, frame: Frame) -> Entry:
        """Make the record of an entry, free, with the attempts of an earlier life."""
        key = frame.properties.get(KEYS, "")
        attempts, visible_at_ms = self.receipts.pop(queue_offset, (0, 0))
        entry = Entry((frame.commit_log_offset, frame.size_bytes), key, attempts, visible_at_ms)
        self.entries[queue_offset] = entry
        if key:
            lane = self._lanes.get(key)
            if lane is None:
                lane = self._lanes[key] = _Lane()
            insort(lane.offsets, queue_offset)
        return entry

    def forget(self, queue_offset: int) -> None:
        self.receipts.pop(queue_offset, None)
        entry = self.entries.pop(queue_offset, None)
        if entry is None or not entry.key:
            return
        lane = self._lanes[entry.key]
        del lane.offsets[bisect_left(lane.offsets, queue_offset)]
        lane.busy -= entry.state is not EntryState.FREE
        if not lane.offsets:
            del self._lanes[entry.key]
        elif not lane.busy:
            heappush(self.ready, lane.offsets[0])

    def drop_before(self, begin: int) -> None:
        """Retention has taken what lies before `begin`."""
        for at in [at for at in (*self.entries, *self.receipts) if at < begin]:
            self.forget(at)
        self.done = {at for at in self.done if at >= begin}

    # --- states ---------------------------------------------------------------------------------------------------------------
    def hold(self, queue_offset: int, entry: Entry) -> None:
        """The entry is out until its visible_at_ms."""
        self.make_busy(entry, EntryState.HELD)
        heappush(self._due, (entry.visible_at_ms, queue_offset))

    def make_busy(self, entry: Entry, state: EntryState) -> None:
        entry.state = state
        if entry.key:
            self._lanes[entry.key].busy += 1

    def hold_until(self, queue_offset: int, attempts: int, until_ms: int, now_ms: int) -> None:
        """An entry that is out stays so until then; it is free where that is over."""
        entry = self.entries.get(queue_offset)
        if entry is None:
            self.receipts[queue_offset] = (attempts, until_ms)
            return
        entry.visible_at_ms = until_ms
        if until_ms <= now_ms:
            self.free(queue_offset, entry)
        else:
            heappush(self._due, (until_ms, queue_offset))

    def give_back(self, queue_offset: int, visible_at_ms: int, attempts: int, now_ms: int) -> bool:
        """Free an entry that is out until visible_at_ms, with these attempts; False where it is not."""
        entry = self.entries.get(queue_offset)
        if entry is None or entry.state is not EntryState.HELD or entry.visible_at_ms != visible_at_ms:
            return False
        entry.attempts, entry.visible_at_ms = attempts, now_ms
        self.free(queue_offset, entry)
        return True

    def condemn(self, queue_offset: int) -> tuple[int, int] | None:
        """Make an entry die; its place, None where it was not looked at in this life."""
        entry = self.entries.get(queue_offset)
        if entry is None:
            return None
        if entry.state is EntryState.FREE:
            self.make_busy(entry, EntryState.DYING)
        entry.state = EntryState.DYING
        return entry.place

    def not_buried(self, queue_offset: int, again_at_ms: int) -> None:
        """A dying entry is held until then."""
        entry = self.entries.get(queue_offset)
        if entry is not None and entry.state is EntryState.DYING:
            entry.state, entry.visible_at_ms = EntryState.HELD, again_at_ms
            heappush(self._due, (again_at_ms, queue_offset))

    def free(self, queue_offset: int, entry: Entry) -> None:
        entry.state = EntryState.FREE
        if not entry.key:
            heappush(self.ready, queue_offset)
            return
        lane = self._lanes[entry.key]
        lane.busy -= 1
        if not lane.busy:
            heappush(self.ready, lane.offsets[0])

    def lapse(self, now_ms: int) -> None:
        """Entries whose time is over are free again."""
        due = self._due
        while due and due[0][0] <= now_ms:
            visible_at_ms, queue_offset = heappop(due)
            entry = self.entries.get(queue_offset)
            if entry is not None and entry.state is EntryState.HELD and entry.visible_at_ms == visible_at_ms:
                self.free(queue_offset, entry)

    def next_due_ms(self) -> int | None:
        """When the next entry in hand may become free."""
        return self._due[0][0] if self._due else None

    # --- lanes ----------------------------------------------------------------------------------------------------------------
    def is_next(self, queue_offset: int, entry: Entry, mine: set[str]) -> bool:
        """Whether its lane, if it has one, is free or this poll's own, and has come to this entry."""
        if not entry.key:
            return True
        lane = self._lanes[entry.key]
        # A poll takes a lane from its first entry on: the busy ones are the beginning of it.
        return (not lane.busy or entry.key in mine) and lane.offsets[lane.busy] == queue_offset

    def make_ready(self, key: str) -> None:
        """The next entry of a lane may be tried."""
        lane = self._lanes[key]
        if lane.busy < len(lane.offsets):
            heappush(self.ready, lane.offsets[lane.busy])

    def recalled(self, queue_offset: int, entry: Entry) -> None:
        """An entry of an earlier life is known again and may be tried; of a lane its first."""
        heappush(self.ready, self._lanes[entry.key].offsets[0] if entry.key else queue_offset)
