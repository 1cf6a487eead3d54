"""The check side of the embedded edge: members of producer groups poll for check requests, and hand-overs are recorded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Container
from contextlib import asynccontextmanager

from ingest.checks.delivery import CheckDelivery, Handover
from ingest.committing.committer import Committer
from ingest.errors import Closing
from ingest.parts import Gate
from runtime.settings import Settings
from store.edge.store import EdgeStore
from store.guarded_clock import GuardedClock
from store.tables.presence import Presence


class Asking:
    """Lives in the event loop."""

    def __init__(
        self,
        settings: Settings,
        gate: Gate,
        store: EdgeStore,
        committer: Committer,
        checks: CheckDelivery,
        *,
        presence: Presence,
        clock: GuardedClock,
    ) -> None:
        self._settings, self._gate, self._store, self._committer = settings, gate, store, committer
        self._checks, self._presence, self._clock = checks, presence, clock

    @asynccontextmanager
    async def poll_checks(
        self, group: str, member: str, max_requests: int, wait_s: float, *, passing_over: Container[int], via: str
    ) -> AsyncIterator[Handover]:
        """As `ingest.capabilities.Polls` says."""
        max_requests, wait_s = self._gate.check_poll(member, max_requests, wait_s)
        handover = await self._checks.poll(
            group, member, max_requests, self._settings.max_request_bytes // 2, wait_s, passing_over=passing_over, via=via
        )
        try:
            yield handover
        except BaseException:
            self._checks.put_back(handover)
            raise
        if handover.requests:
            with contextlib.suppress(Closing):  # not counted then: the half is asked again, which does no harm
                self._committer.asked(handover.half_offsets, member).add_done_callback(_heard)

    def still_asked(self, handover: Handover) -> bool:
        """False when the round is over, or when all of it has ended meanwhile: stop trying then."""
        return handover.round_start == self._checks.round_start and any(
            not self._store.end_of(half_offset) for half_offset in handover.half_offsets
        )

    def live_groups(self) -> set[str]:
        """Producer groups with a live member."""
        names = self._store.dictionary.groups
        # Another thread adds names meanwhile: as many as there were count.
        live = self._presence.live(self._clock.elapsed_ms(), self._settings.presence_ttl_ms, len(names))
        return {names[number] for number in live.nonzero()[0].tolist()}


def _heard(future: asyncio.Future[None]) -> None:
    """A hand-over that could not be recorded is not counted; the edge's failure is told elsewhere."""
    if not future.cancelled():
        future.exception()
