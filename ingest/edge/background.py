"""What the embedded edge does in the background: follow the job, heartbeat, retention, pages for the log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from ingest.checks.delivery import CheckDelivery
from ingest.committing.committer import Committer
from ingest.consuming.consumption import Consumption
from ingest.edge.job_feedback import Followers
from ingest.operating.listings import Listings
from ingest.threads import Threads
from runtime.settings import Settings
from store.edge.store import EdgeStore
from store.errors import StoreError
from store.guarded_clock import GuardedClock
from store.io.wakeup import EDGE_WAKE, Sleeper

LOG: Final = logging.getLogger("escrow.edge")
#: Without a wake from the job, its pages are looked at this often.
LOOK_S: Final = 0.25
HEARTBEAT_S: Final = 1.0


class Background:
    """Lives in the event loop. `trouble`: what goes wrong at the moment and is tried again."""

    def __init__(
        self,
        store: EdgeStore,
        committer: Committer,
        checks: CheckDelivery,
        followers: Followers,
        consumption: Consumption,
        *,
        listings: Listings,
        clock: GuardedClock,
        settings: Settings,
    ) -> None:
        self._store, self._committer, self._checks, self._followers = store, committer, checks, followers
        self._consumption, self._listings, self._clock, self._settings = consumption, listings, clock, settings
        self.trouble = ""
        self._loop, self._short, self._woken = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        self._sleeper = Sleeper(store.directory.root / EDGE_WAKE)
        self._loop.add_reader(self._sleeper.fileno(), self._wake)

    def loops(self) -> tuple[Callable[[], Coroutine[Any, Any, None]], ...]:
        return self._follow, self._beat, self._retain, self._pave

    def close(self) -> None:
        """After the loops have ended."""
        self._loop.remove_reader(self._sleeper.fileno())
        self._sleeper.close()

    def published(self) -> None:
        """In the committer's thread or in the loop: the log has grown."""
        if not self._short.is_set() and self._store.runway.is_short(self._store.log.end):
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                self._loop.call_soon_threadsafe(self._short.set)

    async def _pave(self) -> None:
        """Keep pages ready for the log. Nothing depends on it: where it fails, it is left alone."""
        threads = Threads("runway", 1)
        try:
            while True:
                await self._short.wait()
                await threads.call(self._store.runway.extend, lambda: self._store.log.end)
                self._short.clear()
        except Exception:
            LOG.exception("no more pages are made ready for the log; it goes on without")
            await self._loop.create_future()  # loops of the edge never end
        finally:
            threads.close()

    def _wake(self) -> None:
        self._sleeper.wait(0)
        self._woken.set()

    async def _follow(self) -> None:
        """Look at the job's pages when it wakes us, and now and then. What cannot be done now (the disk is full, the job is
        switching to other files) is tried again at the next look; nothing is skipped."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):  # wait_for of Python 3.11 may swallow a cancellation
                    await self._woken.wait()
            self._woken.clear()
            try:
                self._consumption.look()
                self._checks.look()
                topics = self._checks.topics()
                if topics is not None and not self._settings.standby and self._followers.news(topics):
                    await self._committer.call(self._followers.take)
                self.trouble = ""
            except (StoreError, IndexError) as error:
                self.trouble = str(error)

    async def _beat(self) -> None:
        while True:
            self._store.heartbeat(self._clock.elapsed_ms())
            # Beside the event loop: it may write.
            await asyncio.to_thread(self._clock.look)
            await asyncio.sleep(HEARTBEAT_S)

    async def _retain(self) -> None:
        while True:
            await asyncio.sleep(self._settings.retention_interval_ms / 1000)
            try:
                await self.retain()
            except StoreError as error:
                self.trouble = str(error)

    async def retain(self) -> dict[str, int]:
        """Delete files that the job says are not needed any more; how many of each kind went."""
        removed: dict[str, int] = await self._committer.call(self._store.retain)
        if any(removed.values()):
            self._checks.refresh()
            await self._listings.refresh()
        self._consumption.let_go()
        return removed
