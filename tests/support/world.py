"""A small store in motion: plays the actions of `history.py` on the real edge and the real job, and thinks of new ones by seed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from checker.decisions import Tick
from checker.policy import Policy
from store.directory import Geometry
from store.edge.store import EdgeStore, End
from store.guarded_clock import GuardedClock
from store.io.pages import EdgeSlot, JobSlot
from store.job.store import JobStore
from store.read.readers import TopicReader
from store.records import OpKind, State, Via
from store.tables import dedup, ends, queue_extents
from store.tables.consume_queue import REASON_SHIFT
from store.tables.ends import Answer
from streaming.settlement.settle import Settler, read_feed
from tests.support.history import (
    DISCARDED,
    RETENTION_MS,
    Action,
    Ask,
    Checkpoint,
    EndMany,
    History,
    Prepare,
    Reopen,
    Retain,
    Round,
    Send,
    Sent,
    Settle,
    Told,
    Wish,
)

#: The smallest files that there are, so that every kind of file rolls within a few dozen messages.
SMALL = Geometry(
    commit_log_segment_bytes=64 << 10,
    state_rows_per_file=64,
    redo_entries_per_file=128,
    log_queue_entries_per_file=64,
    topic_queue_entries_per_file=64,
)
POLICY = Policy(transaction_timeout_s=6, check_count_max=2, check_interval_s=30, retention_s=RETENTION_MS // 1000)
CHECKPOINT_BYTES = 48 << 10
CHECKPOINT_ENTRIES = 300
GROUPS = ("Aa", "BB", "orders")
TOPICS = ("paid", "shipped")
_REASON_MASK = (1 << REASON_SHIFT) - 1
_DISCARD_KIND = {State.DISCARDED_MAX: OpKind.DISCARD_MAX, State.DISCARDED_EXPIRED: OpKind.DISCARD_EXPIRED}


@contextlib.contextmanager
def small_tables() -> Iterator[None]:
    """Files whose size is no part of the geometry, made small too."""
    with contextlib.ExitStack() as stack:
        for module, name, value in ((ends, "SEGMENT_BYTES", 32), (queue_extents, "SLOTS_PER_FILE", 3), (dedup, "SLOTS_MIN", 16)):
            stack.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, value)
        yield


def open_edge(root: Path) -> EdgeStore:
    # Topics have two queues: more would only make the queues shorter.
    return EdgeStore(root, geometry=SMALL, default_queues=2, checkpoint_bytes=CHECKPOINT_BYTES, dedup_window_s=1 << 30)


def open_job(root: Path, *, rebuild: bool = False) -> JobStore:
    return JobStore(root, checkpoint_entries=CHECKPOINT_ENTRIES, rebuild=rebuild)


def drop(store: EdgeStore | JobStore) -> None:
    """What the end of a killed process does to its files and locks, and no more."""
    store.__exit__(RuntimeError)


class WrongWall:
    """The machine's clocks: the time since boot is that of the action; the wall clock is wrong by `leap_ms`."""

    def __init__(self, leap_ms: int, now_ms: int) -> None:
        self.leap_ms, self.at_ms = leap_ms, now_ms

    def now_ms(self) -> int:
        return self.at_ms + self.leap_ms

    def steady_ms(self) -> int:
        return self.at_ms

    def guard(self, root: Path) -> GuardedClock:
        """The clock of the service whose store this is."""
        return GuardedClock(self, root.with_name(root.name + "-clock"), boot=1)


class World:
    """Edge and job, in one process. Either may be absent: then the other process has it.

    With a `wall` retention asks a guarded clock, as the service does, whose files lie beside the store."""

    def __init__(self, root: Path, *, edge: bool = True, job: bool = True, wall: WrongWall | None = None) -> None:
        self.root, self._wall = root, wall
        self._guard = wall.guard(root) if wall is not None else None
        self._edge: EdgeStore | None = None
        self._job: JobStore | None = None
        self._reader: TopicReader | None = None
        try:
            self._edge = open_edge(root) if edge else None
            self._job = open_job(root) if job else None
        except BaseException:
            self.drop()
            raise

    @property
    def edge(self) -> EdgeStore:
        assert self._edge is not None
        return self._edge

    @property
    def job(self) -> JobStore:
        assert self._job is not None
        return self._job

    def close(self) -> None:
        self._forget_reader()
        for side in (self._job, self._edge):
            if side is not None:
                side.close()

    def drop(self) -> None:
        self._forget_reader()
        for side in (self._job, self._edge):
            if side is not None:
                drop(side)

    def _forget_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    # --- doing ------------------------------------------------------------------------------------------------------------
    def perform(self, action: Action) -> Any:
        """Do it; the answer that a caller would get."""
        if self._wall is not None:
            self._wall.at_ms = max(self._wall.at_ms, action.now_ms)
        return getattr(self, f"_{type(action).__name__.lower()}")(action)

    def _prepare(self, action: Prepare) -> list[int]:
        return [int(offset) for offset in self.edge.prepare([sent.message for sent in action.messages], action.now_ms)]

    def _send(self, action: Send) -> list[int]:
        appended = self.edge.append_messages([sent.message for sent in action.messages], action.now_ms)
        self.edge.wait(appended.ticket)
        return [int(offset) for offset in appended.offsets]

    def _endmany(self, action: EndMany) -> list[Told]:
        ends = [End(wish.half_offset, wish.kind, wish.group, wish.via, remark=wish.remark) for wish in action.wishes]
        return [told(answer) for answer in self.edge.end(ends, action.now_ms)]

    def _ask(self, action: Ask) -> None:
        self.edge.wait(self.edge.append_asked(action.half_offsets, "member", action.now_ms))

    def _settle(self, action: Settle) -> None:
        for _ in range(action.batches):
            settle_once(self.job, action.records_max, action.now_ms)

    def _round(self, action: Round) -> None:
        settle_all(self.job, 1 << 20, action.now_ms)
        caught_up = self.job.marker.op_cursor == self.job.log.ends()[1]
        tick = Tick(action.now_ms, action.round_no, action.start_ms, ops_caught_up=caught_up)
        live = np.array([name != action.nobody for name in GROUPS], bool)
        for _ in Settler(self.job, POLICY).check_round(tick, live):
            pass

    def _retain(self, action: Retain) -> int:
        if self._job is not None:
            self._retain_job(action.now_ms)
        if self._edge is None:
            return 0
        self.edge.retain()
        return max(self.edge.page[EdgeSlot.HALF_BEGIN], self.edge.half_queue.begin)

    def _retain_job(self, now_ms: int) -> None:
        if self._guard is None:
            self.job.retain(now_ms, RETENTION_MS)
        elif self._guard.deletes_allowed():
            self.job.retain(self._guard.now_ms(), RETENTION_MS, self._guard.leapt_ms(RETENTION_MS))

    def _checkpoint(self, action: Checkpoint) -> None:
        (self.edge if action.side == "edge" else self.job).checkpoint()

    def _reopen(self, action: Reopen) -> None:
        side = self.edge if action.side == "edge" else self.job
        if action.side == "edge":
            self._edge = None
        else:
            self._job = None
        if action.clean:
            side.close()
        else:
            drop(side)
        if action.side == "edge":
            self._edge = open_edge(self.root)
        else:
            self._job = open_job(self.root, rebuild=action.rebuild)

    # --- thinking of what to do -------------------------------------------------------------------------------------------
    def choose(self, rng: Random, history: History, favourites: frozenset[str] = frozenset()) -> Action | None:
        """The next action; None where the one thought of has nothing to do. Favourites (names of actions) come more often."""
        makers: list[tuple[bool, str, int, Callable[[Random, History, int], Action | None]]] = [
            (self._edge is not None, "Prepare", 24, _think_prepare),
            (self._edge is not None, "Send", 6, _think_send),
            (self._edge is not None, "EndMany", 24, _think_end),
            (self._edge is not None, "Ask", 7, self._think_ask),
            (self._edge is not None, "EndMany", 7, self._think_proposals),
            (self._job is not None, "Settle", 24, _think_settle),
            (self._job is not None, "Round", 8, _think_round),
            (True, "Retain", 3, _think_retain),
            (True, "Checkpoint", 2, self._think_checkpoint),
            (True, "Reopen", 2, self._think_reopen),
        ]
        fitting = [maker for maker in makers if maker[0]]
        weights = [weight + 30 * (name in favourites) for _, name, weight, _ in fitting]
        now_ms = history.next_ms(rng)
        return rng.choices(fitting, weights)[0][3](rng, history, now_ms)

    def _topics(self) -> TopicReader | None:
        if self._reader is None and (self.root / "job.published").exists():
            self._reader = TopicReader(self.edge.directory)
        elif self._reader is not None:
            self._reader.follow()
        return self._reader

    def _think_ask(self, _rng: Random, history: History, now_ms: int) -> Ask | None:
        topics = self._topics()
        if topics is None:
            return None
        stop = topics.page[JobSlot.CHECK_END]
        first = max(history.check_cursor, topics.page[JobSlot.ROUND_CHECK_START])
        halves = tags_from(topics, "check", first, stop)
        open_ones = tuple(half for half in halves if half in history.halves and history.halves[half].state == State.PREPARED)
        return Ask(open_ones, stop, now_ms) if open_ones else None

    def _think_proposals(self, _rng: Random, history: History, now_ms: int) -> EndMany | None:
        topics = self._topics()
        if topics is None:
            return None
        stop = topics.page[JobSlot.PROPOSAL_END]
        tags = tags_from(topics, "proposal", history.proposal_cursor, stop)
        wishes = [Wish(tag & _REASON_MASK, _DISCARD_KIND[State(tag >> REASON_SHIFT)], None, Via.CHECKER) for tag in tags]
        return EndMany(tuple(wishes), now_ms, stop) if wishes else None

    def _think_checkpoint(self, rng: Random, _history: History, now_ms: int) -> Checkpoint:
        return Checkpoint(rng.choice(self._sides()), now_ms)

    def _think_reopen(self, rng: Random, _history: History, now_ms: int) -> Reopen:
        return Reopen(rng.choice(self._sides()), rng.random() < 0.6, rng.random() < 0.25, now_ms)

    def _sides(self) -> list[str]:
        return [name for name, side in (("edge", self._edge), ("job", self._job)) if side is not None]


def tags_from(topics: TopicReader, name: str, first: int, stop: int) -> list[int]:
    """Tags of the entries from `first` on that are still there; after a rebuild the oldest may be holes."""
    queue = topics.queue(name)
    entries = queue.read(min(max(first, queue.begin), stop), stop)
    tags: list[int] = entries["tags_code"][entries["size_bytes"] > 0].tolist()
    return tags


def told(answer: Answer) -> Told:
    return answer.verdict, answer.reason, answer.state, answer.position


def settle_once(job: JobStore, records_max: int, now_ms: int) -> bool:
    """Settle one feed; whether there was anything."""
    marker = job.marker
    if (marker.half_cursor, marker.op_cursor) == job.log.ends():
        return False
    feed = read_feed(job.log, marker.half_cursor, marker.op_cursor, records_max)
    Settler(job, POLICY).settle(feed, now_ms)
    return True


def settle_all(job: JobStore, records_max: int, now_ms: int) -> None:
    while settle_once(job, records_max, now_ms):
        pass


def _sent(rng: Random, ident: int, size_max: int = 9000) -> Sent:
    size = min(rng.choice((12, 40, 300, 1200, 3000, 9000)), size_max)
    key = f"key-{ident}" if rng.random() < 0.2 else ""
    immunity_s = rng.choice((0, 0, 0, 20))
    return Sent(ident, size, rng.choice(GROUPS), rng.choice(TOPICS), immunity_s, key, rng.choice(("", "t1", "t2")))


def _think_prepare(rng: Random, history: History, now_ms: int) -> Prepare:
    count = rng.choice((1, 1, 2, 5, 12))
    # A batch lies in one segment.
    messages = [_sent(rng, history.idents + number, (50 << 10) // count) for number in range(count)]
    again = [history.halves[offset].sent for offset in history.by_key.values()]
    if again and rng.random() < 0.2:
        messages.insert(rng.randrange(len(messages) + 1), rng.choice(again))
    return Prepare(tuple(messages), now_ms)


def _think_send(rng: Random, history: History, now_ms: int) -> Send:
    messages = [_sent(rng, history.idents + number) for number in range(rng.choice((1, 2, 4)))]
    return Send(tuple(Sent(m.ident, m.size, m.group, m.topic, 0, "", m.tags) for m in messages), now_ms)


def _think_end(rng: Random, history: History, now_ms: int) -> EndMany | None:
    if not history.halves:
        return None
    pending, ended = history.pending(), [half for half in history.halves if history.halves[half].state != State.PREPARED]
    wishes = []
    for _ in range(rng.choice((1, 1, 2, 6))):
        pool = pending if pending and (not ended or rng.random() < 0.8) else list(history.halves)
        half_offset = rng.choice(pool)
        wishes.append(_wish(rng, history, half_offset))
    if rng.random() < 0.04:
        wishes.append(Wish(max(history.halves) + rng.choice((1, 1000)), OpKind.COMMIT, "orders"))
    return EndMany(tuple(wishes), now_ms)


def _wish(rng: Random, history: History, half_offset: int) -> Wish:
    half = history.halves[half_offset]
    group = half.sent.group if rng.random() < 0.93 else rng.choice(GROUPS)
    if rng.random() < (0.5 if half.state in DISCARDED else 0.04):
        return Wish(half_offset, OpKind.RESUME, None, Via.OPERATOR, "once more")
    kind = rng.choices((OpKind.COMMIT, OpKind.ROLLBACK, OpKind.UNKNOWN), (5, 3, 2))[0]
    if half.asked and rng.random() < 0.5:
        return Wish(half_offset, kind, group, Via.CHECK)
    return Wish(half_offset, kind, group, remark=rng.choice(("", "", "why")))


def _think_settle(rng: Random, _history: History, now_ms: int) -> Settle:
    return Settle(rng.choice((1, 2, 3, 7, 20, 1 << 20)), rng.choice((1, 1, 3, 8)), now_ms)


def _think_round(rng: Random, history: History, now_ms: int) -> Round:
    # Not always a new round: a crash in the middle of one continues it.
    nobody = rng.choice(("", "", "BB"))
    if rng.random() < 0.2:
        return Round(history.round_no, history.round_start_ms, now_ms, nobody)
    at_ms = now_ms + rng.choice((30_000, 30_000, 45_000))
    return Round(history.round_no + 1, at_ms, at_ms, nobody)


def ageing(history: History) -> Iterator[Action]:
    """Fill files of every kind, end everything, let the retention time pass: every kind of file has one to remove then."""
    for _ in range(12):
        sent = [Sent(history.idents + number, 2000, "orders", "paid") for number in range(12)]
        yield Prepare(tuple(sent), history.now_ms + 1)
    pending = history.pending()
    for at in range(0, len(pending), 10):
        wishes = [Wish(half, OpKind.COMMIT, history.halves[half].sent.group) for half in pending[at : at + 10]]
        yield EndMany(tuple(wishes), history.now_ms + 1)
        yield Settle(1 << 20, 1, history.now_ms + 1)
    # Rows go one cycle after their ids, files of the edge one after the job's.
    for _ in range(3):
        yield Retain(history.now_ms + RETENTION_MS + 5000)


def _think_retain(rng: Random, history: History, now_ms: int) -> Retain:
    """The job's time decides what goes; an edge without one takes away what it is told to."""
    leap = history.job_clock is None and rng.random() < 0.4
    return Retain(now_ms + (RETENTION_MS + 5000 if leap else 0))
