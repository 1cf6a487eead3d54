"""Check delivery: from the job's check queue to one live member of each producer group.

The job writes a request for a half at most once a round; entries before `round_check_start` have lapsed. The edge follows the
queue, sorts the requests by group and hands each to one member that polls. Only then is it counted, with an `asked` op: when
the answer was written, not when the request was taken. A request whose answer could not be written goes to another member.

What was handed over in the current round is known from the op log, so that a restarted edge does not ask twice in a round:
`edge.cursors` keeps the round and the op end at which the round was first seen, and the ops behind it are read again.

Polling makes a group live: presence is published when a poll begins and while it waits.

An operator may have a half asked about at once (`ask_now`), whatever its immunity and the round say. Such a request is put in front
of its group's queue, and outlives the round: it waits until a member takes it, the half ends or the edge stops. It is handed over
and counted like any other. While it waits, the job's own request for the same half is passed over, so that an attempt is counted
once; and because the hand-over is an `asked` op, the job does not ask again in that round.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from store.edge.store import EdgeStore
from store.errors import Corrupt, StoreError
from store.guarded_clock import GuardedClock
from store.io.pages import JOB_PUBLISHED, JobSlot
from store.read.readers import LogReader, TopicReader
from store.records import State, check_count_of, state_of
from store.tables import delivery_cursors as cursor
from store.tables.consume_queue import ASKED_TAG
from store.tables.delivery_cursors import Cursors
from store.tables.frames import Frame
from store.tables.presence import Presence

#: Entries read from the queue at one look; the rest at the next.
LOOK_ENTRIES: Final = 16_384
_OPS_AT_ONCE: Final = 1 << 20
#: Members of a group that are remembered; beyond it the one that was not seen for longest is forgotten.
MEMBERS_MAX: Final = 1024


class CheckRequest(NamedTuple):
    """A question about one half, with the half itself."""

    half_offset: int
    group_no: int
    attempt: int
    frame: Frame


class _Waiting(NamedTuple):
    """An entry of the check queue that was not handed over yet."""

    half_offset: int
    commit_log_offset: int
    size_bytes: int
    attempt: int


@dataclass(slots=True)
class Handover:
    """What one poll is given. The caller that writes it to the member says afterwards whether that worked."""

    group: str
    member: str
    requests: list[CheckRequest] = field(default_factory=list)
    round_start: int = 0
    #: What its giver keeps of each request.
    waiting: list[Any] = field(default_factory=list)

    @property
    def half_offsets(self) -> list[int]:
        return [request.half_offset for request in self.requests]

    def keep(self, good: Sequence[bool]) -> Handover:
        """Keep those that are good; the rest, to be put back."""
        rest = Handover(self.group, self.member, round_start=self.round_start)
        pairs = list(zip(self.requests, self.waiting, good, strict=True))
        rest.requests, rest.waiting = [each for each, _, yes in pairs if not yes], [each for _, each, yes in pairs if not yes]
        self.requests, self.waiting = [each for each, _, yes in pairs if yes], [each for _, each, yes in pairs if yes]
        return rest


@dataclass(frozen=True, slots=True)
class Member:
    """A taker of a group's check requests. `via`: poll, webhook, stream (a RocketMQ client's), plug-in or listener."""

    member: str
    last_seen_ms: int
    via: str
    seen_ms: int = 0  # the same on the elapsed line


def nobody_online(group: str) -> str:
    """Why a request for this group waits."""
    return f"no member of {group} is online: the first one that comes is asked"


class CheckDelivery:
    """Lives in the event loop."""

    def __init__(
        self,
        store: EdgeStore,
        cursors: Cursors,
        presence: Presence,
        clock: GuardedClock,
        *,
        enabled: bool,
        refresh_s: float,
        asked_now_max: int = 10_000,
    ) -> None:
        self._store, self._cursors, self._presence, self._clock = store, cursors, presence, clock
        self._enabled, self._refresh_s, self._asked_now_max = enabled, refresh_s, asked_now_max
        #: Halves that an operator wants asked about, and their group_no: they wait in their group's queue.
        self._asked_now: dict[int, int] = {}
        self._members: dict[str, dict[str, Member]] = {}
        self._log = LogReader(store.directory)
        self._topics: TopicReader | None = None
        self._round_start = -1
        self._at = 0
        self._queues: dict[int, deque[_Waiting]] = {}
        self._handed: set[int] = set()
        self._waiters: dict[str, deque[asyncio.Future[None]]] = {}
        self._closing = False
        self.polls = self.lapsed = self.unreadable = 0

    # --- following the queue ------------------------------------------------------------------------------------------------
    def look(self) -> None:
        """Take what the job has written since the last look; wake who waits for it."""
        topics = self.topics()
        if topics is None or not self._enabled:
            return
        # Start first: entries behind an end that is read later are of this round or of a newer one, never of an older one.
        start = topics.page[JobSlot.ROUND_CHECK_START]
        end = topics.page[JobSlot.CHECK_END]
        if start != self._round_start:
            self._begin_round(topics, start)
        if self._at < end:
            stop = min(end, self._at + LOOK_ENTRIES)
            self._load(topics, self._at, stop)
            self._at = self._cursors[cursor.CHECK] = stop

    def topics(self) -> TopicReader | None:
        """The job's files; None before the first job has opened the store."""
        if self._topics is None:
            if not (self._store.directory.root / JOB_PUBLISHED).exists():
                return None
            try:
                self._topics = TopicReader(self._store.directory)
            except StoreError:  # the job is just making it: next time
                return None
        if not self._topics.page[JobSlot.GENERATION]:
            return None
        self._topics.follow()
        return self._topics

    def _begin_round(self, topics: TopicReader, start: int) -> None:
        """Requests of the round before have lapsed. After a restart within a round: what of it was handed over?"""
        self.lapsed += sum(len(queue) for queue in self._queues.values()) - len(self._asked_now)
        kept = self._still_asked_now()
        self._queues, self._asked_now = {}, {each.half_offset: group_no for group_no, each in kept}
        for group_no, each in kept:
            self._queues.setdefault(group_no, deque()).append(each)
        restarted = self._round_start < 0 and self._cursors[cursor.ROUND_START] == start + 1
        self._handed = self._asked_since(self._cursors[cursor.ROUND_OPS]) if restarted else set()
        if not restarted:
            self._cursors[cursor.ROUND_OPS] = self._store.op_end
            self._cursors[cursor.ROUND_START] = start + 1
        self._round_start, self._at = start, max(start, topics.queue("check").begin)

    def _still_asked_now(self) -> list[tuple[int, _Waiting]]:
        """Operators' requests that were not taken yet, each once, without those whose half has ended."""
        found = {
            each.half_offset: (group_no, each)
            for group_no in set(self._asked_now.values())
            for each in reversed(self._queues.get(group_no, ()))
            if each.half_offset in self._asked_now and not self._store.end_of(each.half_offset)
        }
        return list(reversed(found.values()))

    def _asked_since(self, op_offset: int) -> set[int]:
        """Halves that `asked` ops from here on name."""
        found: set[int] = set()
        queue, stop = self._log.op_queue, self._log.ends()[1]
        first = max(op_offset, queue.begin)
        while first < stop:
            entries = queue.read(first, min(stop, first + _OPS_AT_ONCE))
            for entry in entries[entries["tags_code"] == ASKED_TAG]:
                try:
                    found.update(self._log.frame(entry).asked)
                except Corrupt:
                    continue  # the job quarantines it
            first += len(entries)
        return found

    def _load(self, topics: TopicReader, first: int, stop: int) -> None:
        entries = topics.queue("check").read(first, stop)
        entries = entries[entries["size_bytes"] > 0]  # a rebuild after retention leaves holes
        half_offsets = entries["tags_code"].astype(np.int64)
        rows = topics.rows(half_offsets)
        asked = np.flatnonzero(state_of(rows["word"]) == int(State.PREPARED))
        entries, rows = entries[asked], rows[asked]
        columns = (
            half_offsets[asked], entries["commit_log_offset"], entries["size_bytes"], check_count_of(rows["word"]) + 1,
            rows["group_no"],
        )  # fmt: skip
        woken = set()
        for half_offset, offset, size_bytes, attempt, group_no in zip(*[column.tolist() for column in columns], strict=True):
            if half_offset not in self._handed and half_offset not in self._asked_now:
                self._queues.setdefault(group_no, deque()).append(_Waiting(half_offset, offset, size_bytes, attempt))
                woken.add(group_no)
        for group_no in woken:
            self._wake(self._store.dictionary.groups[group_no])

    def refresh(self) -> None:
        """Files were deleted: let go of them."""
        for part in (self._log.log.file, self._log.half_queue.file, self._log.op_queue.file):
            part.refresh()

    @property
    def round_start(self) -> int:
        return self._round_start

    # --- an operator wants to know --------------------------------------------------------------------------------------------
    def ask_now(self, half_offsets: Sequence[int]) -> list[tuple[str, str]]:
        """Have members asked about these halves next; (verdict, what to know about it) for each."""
        topics = self.topics()
        if topics is None or not self._enabled:
            why = "no job runs, or checks are switched off (checkTransactionMessageEnable): the answer would not count"
            return [("refused", why)] * len(half_offsets)
        rows, cursor = topics.rows(np.array(half_offsets, np.int64)), topics.page[JobSlot.HALF_CURSOR]
        return [
            self._ask_now(half_offset, row) if half_offset < cursor else ("refused", "the job has not read it yet: try again")
            for half_offset, row in zip(half_offsets, rows, strict=True)
        ]

    def _ask_now(self, half_offset: int, row: Any) -> tuple[str, str]:
        ended = self._store.durable_end_of(half_offset)
        if self._store.end_of(half_offset) and not ended:
            return "refused", "its end is being written down: look again"
        if ended or state_of(int(row["word"])) != State.PREPARED:
            state = State(ended or state_of(int(row["word"]))).name.lower()
            return "refused", f"it is {state}" + (": resume it first" if state.startswith("discarded") else "")
        group_no = int(row["group_no"])
        queue = self._queues.setdefault(group_no, deque())
        if half_offset in self._asked_now:
            return "already", "a request for it waits for a member"
        if len(self._asked_now) >= self._asked_now_max:
            return "refused", f"{self._asked_now_max} such requests wait already (outstandingPerGroupMax): try again later"
        attempt = int(check_count_of(int(row["word"]))) + 1
        self._asked_now[half_offset] = group_no
        queue.appendleft(_Waiting(half_offset, int(row["commit_log_offset"]), int(row["size_bytes"]), attempt))
        group = self._store.dictionary.groups[group_no]
        self._wake(group)
        return ("accepted", "") if self.members(group) else ("queued", nobody_online(group))

    def asked_now(self, half_offset: int) -> bool:
        """Whether an operator's request for this half waits for a member."""
        return half_offset in self._asked_now

    def last_seen_ms(self, group: str) -> int | None:
        """When the last member of a group was seen, online now or not; None: none since the edge started."""
        return max((each.last_seen_ms for each in self._members.get(group, {}).values()), default=None)

    def members(self, group: str) -> list[Member]:
        """Who was there lately."""
        since_ms = self._clock.elapsed_ms() - int(self._refresh_s * 3000)
        return sorted(
            (each for each in self._members.get(group, {}).values() if each.seen_ms >= since_ms), key=lambda each: each.member
        )

    # --- polls ----------------------------------------------------------------------------------------------------------------
    async def poll(
        self,
        group: str,
        member: str,
        max_requests: int,
        max_bytes: int,
        wait_s: float,
        *,
        passing_over: Container[int] = (),
        via: str = "poll",
    ) -> Handover:
        """Requests for a member of this group; waits at most wait_s for the first. Empty when none came."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        self.polls += 1
        while True:
            self.seen(group, member, via)
            handover = self._take(Handover(group, member), max_requests, max_bytes, passing_over)
            left_s = deadline - loop.time()
            if handover.requests or left_s <= 0 or self._closing:
                return handover
            await self._wait(group, min(left_s, self._refresh_s))

    def seen(self, group: str, member: str, via: str) -> None:
        """A member is there for the group. A group without halves has no number, and no request will come for it."""
        group_no, seen_ms = self._store.dictionary.group_no(group), self._clock.elapsed_ms()
        if group_no is None:
            return
        self._presence.seen(group_no, seen_ms)
        members = self._members.setdefault(group, {})
        members.pop(member, None)  # the one that was seen last stands last
        members[member] = Member(member, self._clock.now_ms(), via, seen_ms)
        if len(members) > MEMBERS_MAX:
            del members[next(iter(members))]

    async def _wait(self, group: str, timeout_s: float) -> None:
        waiters = self._waiters.setdefault(group, deque())
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout_s):  # wait_for of Python 3.11 may swallow a cancellation
                await waiter
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._wake(group)  # this poll has left: pass the wake on
            raise
        finally:
            if waiter in waiters:
                waiters.remove(waiter)
            if not waiters and self._waiters.get(group) is waiters:
                del self._waiters[group]

    def _wake(self, group: str) -> None:
        """Wake the member that has waited longest; it wakes the next if it leaves something."""
        waiters = self._waiters.get(group)
        while waiters:
            waiter = waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _take(self, handover: Handover, max_requests: int, max_bytes: int, passing_over: Container[int]) -> Handover:
        handover.round_start = self._round_start
        group_no = self._store.dictionary.group_no(handover.group)
        queue = self._queues.get(group_no) if group_no is not None else None
        if not queue or group_no is None:
            return handover
        taken_bytes, passed_over = 0, list[_Waiting]()
        while (
            queue and len(handover.requests) < max_requests and (not taken_bytes or taken_bytes + queue[0].size_bytes <= max_bytes)
        ):
            waiting = queue.popleft()
            if self._store.end_of(waiting.half_offset):
                self._asked_now.pop(waiting.half_offset, None)
                continue  # ended meanwhile: no need to ask
            if waiting.half_offset in passing_over:
                passed_over.append(waiting)
                continue
            if waiting.half_offset in self._handed and waiting.half_offset not in self._asked_now:
                continue  # an operator had it asked in this round: the job's own request is one too many
            request = self._read(waiting, group_no)
            self._asked_now.pop(waiting.half_offset, None)
            if request is not None:
                handover.requests.append(request)
                handover.waiting.append(waiting)
                taken_bytes += waiting.size_bytes
                self._handed.add(waiting.half_offset)
        if queue:  # not what was passed over: two that pass over the same would wake each other for ever
            self._wake(handover.group)
        queue.extendleft(reversed(passed_over))
        return handover

    def _read(self, waiting: _Waiting, group_no: int) -> CheckRequest | None:
        try:
            frame = self._log.log.read(waiting.commit_log_offset, waiting.size_bytes)
        except StoreError:
            self.unreadable += 1  # never asked about: retention discards it
            return None
        return CheckRequest(waiting.half_offset, group_no, waiting.attempt, frame)

    def put_back(self, handover: Handover) -> None:
        """The answer could not be written: another member gets its requests, in this round still."""
        if handover.round_start != self._round_start or not handover.requests:
            return
        self._handed.difference_update(handover.half_offsets)
        self._queues.setdefault(handover.requests[0].group_no, deque()).extendleft(reversed(handover.waiting))
        self._wake(handover.group)

    def stop(self) -> None:
        """Polls that wait come back empty."""
        self._closing = True
        for waiters in list(self._waiters.values()):
            for waiter in list(waiters):
                if not waiter.done():
                    waiter.set_result(None)

    def figures(self) -> dict[str, int]:
        return {
            "requests_waiting": sum(len(queue) for queue in self._queues.values()),
            "polls_waiting": sum(len(waiters) for waiters in self._waiters.values()),
            "handed_over_this_round": len(self._handed),
            "lapsed": self.lapsed,
            "unreadable": self.unreadable,
            "polls": self.polls,
        }

    def close(self) -> None:
        self._log.close()
