"""Making dead letters of messages, and giving them to their group again. `dead_letters.py` says what a dead letter is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from ingest.committing.committer import Committer
from ingest.consuming.dead_letters import Letter, Letters, append_again, bury
from ingest.consuming.group_queue import GroupQueue, Handed
from ingest.consuming.places import Places
from ingest.consuming.reading.poll_waiters import Waiting
from ingest.consuming.reading.tail import Tail
from ingest.consuming.receipts import Receipt
from ingest.errors import EdgeError
from store.edge.store import EdgeStore
from store.errors import StoreError
from store.guarded_clock import GuardedClock

#: A dead letter that could not be stored is tried again after this.
BURY_AGAIN_MS: Final = 1_000


class Burials:
    """Lives in the event loop. `letters`: those that are open. `trouble`: why the last one could not be stored; "" if it was."""

    def __init__(
        self, store: EdgeStore, committer: Committer, tail: Tail, places: Places, waiting: Waiting, *, clock: GuardedClock
    ) -> None:
        self._store, self._committer, self._tail = store, committer, tail
        self._places, self._waiting, self._clock = places, waiting, clock
        self.letters = Letters(store, tail, places.of)
        self.under_way: set[asyncio.Task[None]] = set()
        self._replaying: set[Letter] = set()
        self.trouble = ""
        self.dead = self.replayed = self.unreadable = 0

    def begin(self, topic: str, group: str, dying: list[Handed]) -> None:
        """Store these as dead letters, beside the poll that found them."""
        task = asyncio.get_running_loop().create_task(self._bury(topic, group, dying))
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)

    async def _bury(self, topic: str, group: str, dying: list[Handed]) -> None:
        """Each a call of its own: one that cannot be stored does not hold up the others."""
        for handed in dying:
            queue, queue_offset = handed.queue, handed.queue_offset
            try:
                await self._committer.call(partial(bury, self._store, group, [handed], self._clock.now_ms()))
                self.trouble = ""
            except (EdgeError, StoreError) as error:
                self.trouble = f"a dead letter of group {group} could not be stored: {error}"
                queue.not_buried(queue_offset, self._clock.elapsed_ms() + BURY_AGAIN_MS)
                continue
            self.dead += 1
            if self._places.is_current(queue):
                self._places.note(queue.finish(queue_offset))
        self._waiting.wake(topic, group)

    async def condemn(self, topic: str, group: str, queue: GroupQueue, receipt: Receipt) -> bool:
        """Make a dead letter of a message in hand, durably, whatever its attempts; False where the receipt is stale."""
        place = queue.condemn(receipt.queue_offset, receipt.attempt, receipt.visible_at_ms)
        if place is not None:
            try:
                frame = self._tail.frame(queue.queue_key, *place)
            except StoreError:
                queue.not_buried(receipt.queue_offset, receipt.visible_at_ms)
                raise
            if frame is None:
                self.unreadable += 1
                self._places.note(queue.finish(receipt.queue_offset))
            else:
                dying = Handed(queue, receipt.queue_offset, receipt.attempt, receipt.visible_at_ms, frame)
                await self._bury(topic, group, [dying])
        return queue.is_done(receipt.queue_offset)

    async def replay(self, group: str, ids: Sequence[str]) -> int:
        """Give open dead letters to the group again, where they came from, and close them; how many."""
        found = {letter: opened for letter, opened in self.letters.find(group, ids).items() if letter not in self._replaying}
        if not found:
            return 0
        self._replaying.update(found)
        try:
            group_no = await self._places.group_no(group)
            again = partial(append_again, self._store, group, list(found.values()), self._clock.now_ms())
            await self._committer.call(again)
            closed = self._places.finish(group_no, [(letter.queue_key, letter.queue_offset) for letter in found])
            await self._places.ledger.note(closed, durable=True)
        finally:
            self._replaying.difference_update(found)
        self.replayed += len(found)
        return len(found)

    async def close(self) -> None:
        """Wait for what was begun."""
        await asyncio.gather(*self.under_way, return_exceptions=True)
