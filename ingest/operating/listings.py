"""Lists of transactions for operators, and what is in doubt by group.

The index (`store.edge.listing`) is used by one thread of its own, so neither a search nor its upkeep takes time from
the event loop. A list request works for SCAN_S at most and then says where to continue: with a million pending halves
that is enough for any filter on columns, and for most on keys. What the overview needs is counted at most every
SUMMARY_S, and less often where counting takes long (`recent.Recent`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from ingest.errors import BadId, InvalidRequest
from ingest.ids import Sealer
from ingest.operating.answers import Answers, LastAnswer
from ingest.recent import Recent
from ingest.threads import Threads
from store.edge.listing.listing import Listing
from store.edge.listing.summary import Fold, FoldKey, Summary
from store.edge.listing.wanted import DISCARDED, ENDED, OPEN, Wanted
from store.edge.store import EdgeStore
from store.errors import StoreError
from store.properties import KEYS, TAGS
from store.records import State
from store.tables.frames import Frame

#: A list request works so long, then it answers with what it has.
SCAN_S: Final = 0.002
#: The index follows the log this often, and works so long at a time.
FOLLOW_S: Final = 0.5
FOLLOW_WORK_S: Final = 0.05
SUMMARY_S: Final = 1.0
TEXT_OF: Final[dict[int, Literal["pending", "committed", "rolled_back", "discarded"]]] = {
    0: "pending",
    int(State.COMMITTED): "committed",
    int(State.ROLLED_BACK): "rolled_back",
    int(State.DISCARDED_MAX): "discarded",
    int(State.DISCARDED_EXPIRED): "discarded",
}
REASON_OF: Final[dict[int, Literal["check_max", "expired"]]] = {
    int(State.DISCARDED_MAX): "check_max",
    int(State.DISCARDED_EXPIRED): "expired",
}
ENDS_OF: Final[dict[str, frozenset[int]]] = {
    "pending": OPEN,
    "discarded": DISCARDED,
    "committed": frozenset({int(State.COMMITTED)}),
    "rolled_back": frozenset({int(State.ROLLED_BACK)}),
    "settled": ENDED,
    "any": OPEN | DISCARDED | ENDED,
}
#: Characters of a remark in a list.
REMARK_SHOWN: Final = 200
#: States over which an action may be spread by a filter.
IN_DOUBT: Final = ("pending", "discarded")
#: Causes why a half is in doubt: nobody was asked; asked, and no answer came; the answer was UNKNOWN, with a remark.
UNASKED: Final = "unasked"
UNANSWERED: Final = "unanswered"
UNKNOWN: Final = "unknown:"


#: (half offsets, group numbers) → which are wanted.
_Test = Callable[[npt.NDArray[np.int64], npt.NDArray[Any]], npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Query:
    """What an operator looks for; None = any. As in GET /v1/operator/transactions."""

    state: str = "pending"
    group: str | None = None
    topic: str | None = None
    key: str | None = None
    q: str | None = None
    age_min_s: int | None = None
    age_max_s: int | None = None
    attempts_min: int | None = None
    attempts_max: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    #: unasked, unanswered, or unknown: and a folded remark (`answers`).
    cause: str | None = None
    #: Whether a member of the group is online.
    online: bool | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Query:
        return cls(**{name: given[name] for name in cls.__slots__ if given.get(name) is not None})

    def given(self) -> dict[str, Any]:
        """What it asks for, as it was written."""
        return {name: value for name in self.__slots__ if (value := getattr(self, name)) is not None}

    def wanted(self, now_ms: int) -> Wanted:
        since, until = self.since_ms, self.until_ms
        if self.age_max_s is not None:
            since = max(since or 0, now_ms - self.age_max_s * 1000)
        if self.age_min_s is not None:
            until = min(now_ms if until is None else until, now_ms - self.age_min_s * 1000)
        attempts_min, attempts_max = self.attempts_min, self.attempts_max
        if self.cause == UNANSWERED:
            attempts_min = max(1, attempts_min or 0)
        if self.cause == UNASKED:
            attempts_max = 0
        return Wanted(
            ENDS_OF[self.state], self.group, self.topic, self.key, self.q or None, since, until, attempts_min, attempts_max,
        )  # fmt: skip


class Listed(msgspec.Struct):
    """A transaction in a list. `reason`: why it was discarded. `age_s`: since it was stored, up to its end where that is known."""

    id: str
    group: str
    topic: str
    key: str
    tags: str
    state: Literal["pending", "discarded", "committed", "rolled_back", "quarantined"]
    reason: Literal["check_max", "expired"] | None
    stored_at_ms: int
    born_at_ms: int
    settled_at_ms: int | None
    age_s: int
    attempts: int
    immunity_s: int
    outstanding: bool
    half_offset: int
    remark: str = ""
    answered_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    """Halves in doubt of one group that wait for the same reason. `cause`: as a filter takes it."""

    state: str
    group: str
    cause: str
    count: int
    oldest_ms: int
    newest_ms: int
    attempts_max: int


@dataclass(frozen=True, slots=True)
class ListPage:
    """`following` None: all was looked at. `matched`: how many there are, where that was counted."""

    transactions: list[Listed]
    following: str | None
    matched: int | None


class Listings:
    """Lives in the event loop; its thread has the files."""

    def __init__(
        self,
        store: EdgeStore,
        sealer: Sealer,
        now_ms: Callable[[], int],
        clock_s: Callable[[], float] = time.perf_counter,
        live: Callable[[], set[str]] = set,
    ) -> None:
        self._store, self._sealer, self._now_ms, self._clock_s, self._live = store, sealer, now_ms, clock_s, live
        self._listing: Listing | None = None
        self._answers: Answers | None = None
        self._threads = Threads("listings", 1)
        self._reopened = store.reopened
        self._summary = Recent(self._counted_now, clock_s, SUMMARY_S)
        self.trouble = ""

    # --- in the event loop ------------------------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Keep the index. What cannot be read now, because files change under our hands, is read at the next look."""
        while True:
            try:
                behind = await self._threads.call(self._follow)
                self.trouble = ""
            except (StoreError, IndexError) as error:
                self.trouble, behind = str(error), False
            await asyncio.sleep(0 if behind else FOLLOW_S)

    async def page(self, query: Query, limit: int, newest: bool, at: str) -> ListPage:
        """StoreError where the files cannot be read just now."""
        if at and not at.isdecimal():
            raise InvalidRequest("cursor: invalid; send `next` of the previous answer unchanged")
        return await self._threads.call(self._again, self._page, query, limit, newest, int(at) if at else None)

    async def every(self, query: Query) -> npt.NDArray[np.int64]:
        """The half offsets of all that match, for an action."""
        return await self._threads.call(self._again, self._every, query)

    async def groups_and_times(self, half_offsets: list[int]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """(group_no, stored_at_ms) of halves."""
        return await self._threads.call(self._again, self._groups_and_times, half_offsets)

    async def ids(self, half_offsets: list[int]) -> list[str]:
        return await self._threads.call(self._again, self._ids, half_offsets)

    async def summary(self) -> Summary:
        """What is in doubt by group, counted a moment ago."""
        return await self._summary.get()

    async def _counted_now(self) -> Summary:
        found: Summary = await self._threads.call(self._again, self._count)
        return found

    async def causes(self, state: str) -> list[Cause]:
        """Pending or discarded halves folded by group and cause, the largest first."""
        folds = (await self.summary()).folds
        found = [self._cause(key, fold) for key, fold in folds.items() if key.is_discarded == (state == "discarded")]
        return sorted(found, key=lambda each: (-each.count, each.group, each.cause))

    def _cause(self, key: FoldKey, fold: Fold) -> Cause:
        cause = {0: UNASKED, -1: UNANSWERED}.get(key.cause) or UNKNOWN + self._open_answers().remark(key.cause)
        state, group = "discarded" if key.is_discarded else "pending", self._store.dictionary.groups[key.group_no]
        return Cause(state, group, cause, fold.count, fold.oldest_ms, fold.newest_ms, fold.attempts_max)

    async def answered(self, half_offset: int) -> LastAnswer | None:
        """The last answer about a half in doubt that did not end it."""
        return await self._threads.call(lambda: self._open_answers().last(half_offset))

    async def recent_answers(self, group: str) -> list[tuple[str, LastAnswer]]:
        """(id, answer) of what a group answered lately, the newest first."""
        return await self._threads.call(self._recent_answers, group)

    async def refresh(self) -> None:
        """Retention has removed files."""
        with suppress(StoreError, IndexError):
            await self._threads.call(self._refresh)

    async def close(self) -> None:
        await self._threads.call(self._close)
        self._threads.close()

    # --- in the thread ------------------------------------------------------------------------------------------------------------
    def _open(self) -> Listing:
        if self._listing is None:
            self._listing = Listing(self._store.directory, self._store.dictionary)
        return self._listing

    def _open_answers(self) -> Answers:
        if self._answers is None:
            self._answers = Answers(self._store.directory)
        return self._answers

    def _refresh(self) -> None:
        self._open().refresh()
        self._open_answers().refresh()

    def _close(self) -> None:
        if self._listing is not None:
            self._listing.close()
            self._listing = None
        if self._answers is not None:
            self._answers.close()
            self._answers = None

    def _recent_answers(self, group: str) -> list[tuple[str, LastAnswer]]:
        group_no = self._store.dictionary.group_no(group)
        if group_no is None:
            return []
        found = self._open_answers().recent(group_no)
        return [(self._sealer.seal(each.half_offset, group_no), each) for each in found]

    def _until(self, work_s: float) -> Callable[[], bool]:
        stop_s, clock_s = self._clock_s() + work_s, self._clock_s
        return lambda: clock_s() >= stop_s

    def _follow(self) -> bool:
        """Is there more to do at once?"""
        listing = self._open()
        if self._reopened != self._store.reopened:
            self._reopened = self._store.reopened
            listing.index.forget()
        listing.index.advance(self._until(FOLLOW_WORK_S))
        listing.index.tidy()
        answers = self._open_answers()
        answers.follow(self._until(FOLLOW_WORK_S))
        return listing.index.behind > 0 or answers.behind > 0

    def _again(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Once more where retention or a rebuild took files away in the middle of it."""
        try:
            return work(*arguments)
        except (StoreError, IndexError):
            self._refresh()
            return work(*arguments)

    def _count(self) -> Summary:
        return self._open().summary(self._open_answers().causes)

    def _every(self, query: Query) -> npt.NDArray[np.int64]:
        return self._open().every(self._wanted(query))

    def _wanted(self, query: Query) -> Wanted:
        wanted = query.wanted(self._now_ms())
        tests = [test for test in (self._by_cause(query.cause), self._by_online(query.online)) if test is not None]
        if not tests:
            return wanted
        return replace(wanted, only=lambda halves, groups: np.logical_and.reduce([test(halves, groups) for test in tests]))

    def _by_cause(self, cause: str | None) -> _Test | None:
        if cause is None:
            return None
        answers = self._open_answers()
        number = answers.number(cause.removeprefix(UNKNOWN)) if cause.startswith(UNKNOWN) else 0
        return lambda halves, _: answers.causes(halves) == number

    def _by_online(self, online: bool | None) -> _Test | None:
        if online is None:
            return None
        live = self._live()
        is_live = np.array([name in live for name in self._store.dictionary.groups] or [False])
        return lambda _, groups: is_live[groups] == online

    def _groups_and_times(self, half_offsets: list[int]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        return self._open().shown.groups_and_times(np.array(half_offsets, np.int64))

    def _ids(self, half_offsets: list[int]) -> list[str]:
        groups = self._open().shown.group_nos(np.array(half_offsets, np.int64))
        return [self._sealer.seal(*place) for place in zip(half_offsets, groups, strict=True)]

    def _page(self, query: Query, limit: int, newest: bool, at: int | None) -> ListPage:
        if query.state == "quarantined":
            return self._quarantined(limit, at)
        listing = self._open()
        if query.q and (half_offset := self._half_of(query.q)) is not None:
            return self._single(listing, query, half_offset)
        wanted, counted = self._wanted(query), self._counted(query)
        page = listing.page(wanted, limit, newest=newest, at=at, count=counted is None, enough=self._until(SCAN_S))
        frames, looked = listing.shown.frames(page.half_offsets)
        following = page.following
        if looked < len(page.half_offsets):
            following = page.half_offsets[looked] + newest
        matched = page.matched if counted is None else counted
        return ListPage(self._described(listing, frames), None if following is None else str(following), matched)

    def _half_of(self, text: str) -> int | None:
        """A whole id is found at once."""
        try:
            return self._sealer.open(text).half_offset
        except BadId:
            return None

    def _single(self, listing: Listing, query: Query, half_offset: int) -> ListPage:
        """What an id leads to, if it is of the state that is looked for."""
        frames = listing.shown.frames([half_offset])[0] if half_offset in listing else []
        asked = ENDS_OF[query.state]
        found = [each for each in self._described(listing, frames) if listing.shown.end_of(each.half_offset) in asked]
        return ListPage(found, None, len(found))

    def _counted(self, query: Query) -> int | None:
        """How many there are, where the edge counts them anyway."""
        pending = self._store.pending
        if query.given().keys() - {"state", "group"} or query.state != "pending" or not pending.known:
            return None
        if query.group is None:
            return sum(pending.counts)
        group_no = self._store.dictionary.group_no(query.group)
        return 0 if group_no is None else pending.of(group_no)

    def _described(self, listing: Listing, frames: list[Frame]) -> list[Listed]:
        ends, attempts, outstanding = listing.shown.states(np.array([frame.queue_offset for frame in frames], np.int64))
        settled = listing.shown.ended_at_ms([frame for frame, end in zip(frames, ends, strict=True) if end])
        rows = zip(frames, ends, attempts, outstanding, strict=True)
        return [
            self._listed(frame, end, count, waits, settled.get(frame.queue_offset) if end else None)
            for frame, end, count, waits in rows
        ]

    def _listed(self, frame: Frame, end: int, attempts: int, outstanding: bool, settled_at_ms: int | None) -> Listed:
        names, fields = self._store.dictionary, frame.fields
        until_ms = self._now_ms() if settled_at_ms is None else settled_at_ms
        answer = self._open_answers().last(frame.queue_offset)
        return Listed(
            id=self._sealer.seal(frame.queue_offset, fields["group_no"]),
            group=names.groups[fields["group_no"]],
            topic=names.topics[fields["topic_no"]],
            key=frame.properties.get(KEYS, ""),
            tags=frame.properties.get(TAGS, ""),
            state=TEXT_OF[end],
            reason=REASON_OF.get(end),
            stored_at_ms=frame.stored_at_ms,
            born_at_ms=fields["born_at_ms"],
            settled_at_ms=settled_at_ms,
            age_s=max(0, (until_ms - frame.stored_at_ms) // 1000),
            attempts=attempts,
            immunity_s=fields["immunity_s"],
            outstanding=outstanding,
            half_offset=frame.queue_offset,
            remark=answer.remark[:REMARK_SHOWN] if answer is not None else "",
            answered_at_ms=answer.at_ms if answer is not None else None,
        )

    def _quarantined(self, limit: int, at: int | None) -> ListPage:
        """Of these nothing is known but that they were there."""
        found, following = self._open().shown.quarantined(limit, at)
        listed = [
            Listed(self._sealer.seal(half, -1), "", "", "", "", "quarantined", None, 0, 0, None, 0, 0, 0, False, half)
            for half in found
        ]
        return ListPage(listed, None if following is None else str(following), None)
