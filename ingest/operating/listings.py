"""Lists of transactions for operators, and what is in doubt by group. The edge keeps the index (`store.edge.listing`) in a
thread of its
own: neither an operator's search nor the index's upkeep takes time from the event loop.

A list request works for SCAN_S at most and then says where to go on: with a million pending halves that is enough for any filter
on columns, and for most on keys. What the overview needs is counted at most every SUMMARY_S, and seldomer where that takes long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from ingest.errors import BadId, InvalidRequest
from ingest.ids import Sealer
from ingest.threads import Threads
from store.edge.listing.listing import Listing
from store.edge.listing.summary import Summary
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
#: Counting may take this share of the time.
SHARE: Final = 0.05
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
#: States over which an action may be spread by a filter.
IN_DOUBT: Final = ("pending", "discarded")


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
        return Wanted(
            ENDS_OF[self.state], self.group, self.topic, self.key, self.q or None, since, until,
            self.attempts_min, self.attempts_max,
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
    ) -> None:
        self._store, self._sealer, self._now_ms, self._clock_s = store, sealer, now_ms, clock_s
        self._listing: Listing | None = None
        self._threads = Threads("listings", 1)
        self._reopened = store.reopened
        self._summary: Summary | None = None
        self._counted_s = self._took_s = 0.0
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

    async def ids(self, half_offsets: list[int]) -> list[str]:
        return await self._threads.call(self._again, self._ids, half_offsets)

    async def summary(self) -> Summary:
        now_s = self._clock_s()
        if self._summary is None or now_s - self._counted_s > max(SUMMARY_S, self._took_s / SHARE):
            self._counted_s = now_s
            found: Summary = await self._threads.call(self._again, self._count)
            self._summary, self._took_s = found, self._clock_s() - now_s
        return self._summary

    async def refresh(self) -> None:
        """Retention has removed files."""
        with suppress(StoreError, IndexError):
            await self._threads.call(lambda: self._open().refresh())

    async def close(self) -> None:
        await self._threads.call(self._close)
        self._threads.close()

    # --- in the thread ------------------------------------------------------------------------------------------------------------
    def _open(self) -> Listing:
        if self._listing is None:
            self._listing = Listing(self._store.directory, self._store.dictionary)
        return self._listing

    def _close(self) -> None:
        if self._listing is not None:
            self._listing.close()
            self._listing = None

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
        return listing.index.behind > 0

    def _again(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Once more where retention or a rebuild took files away in the middle of it."""
        try:
            return work(*arguments)
        except (StoreError, IndexError):
            self._open().refresh()
            return work(*arguments)

    def _count(self) -> Summary:
        return self._open().summary()

    def _every(self, query: Query) -> npt.NDArray[np.int64]:
        return self._open().every(query.wanted(self._now_ms()))

    def _ids(self, half_offsets: list[int]) -> list[str]:
        groups = self._open().shown.group_nos(np.array(half_offsets, np.int64))
        return [self._sealer.seal(*place) for place in zip(half_offsets, groups, strict=True)]

    def _page(self, query: Query, limit: int, newest: bool, at: int | None) -> ListPage:
        if query.state == "quarantined":
            return self._quarantined(limit, at)
        listing = self._open()
        if query.q and (half_offset := self._half_of(query.q)) is not None:
            return self._single(listing, query, half_offset)
        wanted, counted = query.wanted(self._now_ms()), self._counted(query)
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
        )

    def _quarantined(self, limit: int, at: int | None) -> ListPage:
        """Of these nothing is known but that they were there."""
        found, following = self._open().shown.quarantined(limit, at)
        listed = [
            Listed(self._sealer.seal(half, -1), "", "", "", "", "quarantined", None, 0, 0, None, 0, 0, 0, False, half)
            for half in found
        ]
        return ListPage(listed, None if following is None else str(following), None)
