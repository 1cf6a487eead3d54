"""Where consumer groups stand in topics: a `GroupQueue` for each group and topic queue that it reads, and the journal of them.

A group that has never read a topic begins where its first poll says (`reading/start_positions.py`), and that is durable before
the first answer: what is released afterwards is not missed, whatever happens. A group that waits for a topic which does not exist
yet gets all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Final

from ingest.committing.committer import Committer
from ingest.consuming import lag
from ingest.consuming.group_queue import GroupQueue
from ingest.consuming.journal import Ledger
from ingest.consuming.reading.start_positions import EARLIEST, LATEST, offsets_at
from ingest.consuming.reading.tail import Tail
from ingest.errors import EdgeError, InvalidRequest
from runtime.settings import Settings
from store.edge.store import EdgeStore
from store.records import topic_of_key
from store.tables.journals.consumers import ConsumerKind, ConsumerRecord, Consumers, Progress

#: Groups that wait for topics which do not exist yet, remembered so that they get all of it.
EARLY_MAX: Final = 65_536


class Places:
    """Lives in the event loop. `queues`: by group number and queue key."""

    def __init__(self, store: EdgeStore, committer: Committer, tail: Tail, settings: Settings, now_ms: int) -> None:
        self._store, self._committer, self._tail, self._settings = store, committer, tail, settings
        self.queues: dict[tuple[int, int], GroupQueue] = {}
        self._making = asyncio.Lock()
        self._early: set[tuple[str, str]] = set()
        consumers = Consumers(store.directory.root / "consumers", writable=True)
        self._recover(consumers, now_ms + settings.visibility_max_ms)
        self.ledger = Ledger(consumers, committer.fail)

    def _recover(self, consumers: Consumers, until_ms: int) -> None:
        """Progress of an earlier life. Where an older log was put in place (a restore), a group cannot have read beyond its end."""
        consumers.is_there, is_empty = self._is_there, not consumers.progress
        consumers.forget_removed()
        consumers.clip(self._store.next_offset)
        for (group_no, queue_key), progress in consumers.progress.items():
            self.queues[group_no, queue_key] = GroupQueue(
                group_no, queue_key, self._settings.look_ahead, progress, until_ms=until_ms
            )
        # Written anew as a whole: whatever of it was not flushed before the process died is durable now.
        if not is_empty:
            consumers.compact()

    # --- topics ---------------------------------------------------------------------------------------------------------------
    def queue_keys(self, topic: str) -> list[int]:
        """Keys of a topic's queues; none where it does not exist."""
        topic_no = self._store.dictionary.topic_no(topic)
        return [] if topic_no is None else lag.queue_keys(self._store.dictionary, topic_no)

    def _edition(self, queue_key: int) -> int:
        return self._store.dictionary.editions[topic_of_key(queue_key)[0]]

    def _is_there(self, queue_key: int, edition: int) -> bool:
        """Whether the topic of a queue is there, in this edition of its number. In any thread."""
        names, topic_no = self._store.dictionary, topic_of_key(queue_key)[0]
        return topic_no not in names.removed and (topic_no >= len(names.topics) or names.editions[topic_no] == edition)

    def forget_removed(self) -> None:
        """Topics were removed: so is what groups have done in them, and their numbers will be others'."""
        removed = self._store.dictionary.removed.keys()
        for place in [place for place in self.queues if topic_of_key(place[1])[0] in removed]:
            del self.queues[place]

    # --- places of a group ----------------------------------------------------------------------------------------------------
    def of(self, group_no: int, queue_key: int) -> GroupQueue | None:
        return self.queues.get((group_no, queue_key))

    def is_current(self, queue: GroupQueue) -> bool:
        """Neither sought away from nor removed meanwhile."""
        return self.queues.get((queue.group_no, queue.queue_key)) is queue

    async def in_topic(self, topic: str, group: str, begin: str | int) -> list[GroupQueue]:
        """The group's places in a topic, made and durable where it has not read it before; none where it does not exist yet."""
        queue_keys = self.queue_keys(topic)
        if not queue_keys:
            if len(self._early) < EARLY_MAX:
                self._early.add((topic, group))
            return []
        group_no = self._store.dictionary.group_no(group)
        queues = [self.queues.get((group_no, queue_key)) for queue_key in queue_keys] if group_no is not None else [None]
        known = [queue for queue in queues if queue is not None]
        return known if len(known) == len(queues) else await self._begin(topic, group, queue_keys, begin)

    async def _begin(self, topic: str, group: str, queue_keys: list[int], begin: str | int) -> list[GroupQueue]:
        async with self._making:
            group_no = await self.group_no(group)
            missing = [queue_key for queue_key in queue_keys if (group_no, queue_key) not in self.queues]
            if missing:
                begin = EARLIEST if (topic, group) in self._early else begin
                offsets = await self._offsets(missing, begin)
                await self.ledger.note(self._records(ConsumerKind.OFFSET, group_no, offsets), durable=True)
                if self.queue_keys(topic) != queue_keys:  # it was removed meanwhile
                    return []
                self._early.discard((topic, group))
                for queue_key, offset in offsets.items():
                    self.queues[group_no, queue_key] = self._new_queue(group_no, queue_key, offset)
            return [queue for queue_key in queue_keys if (queue := self.queues.get((group_no, queue_key))) is not None]

    async def group_no(self, group: str) -> int:
        """The number of a group, which gets one if it has none."""
        number: int = await self._committer.call(partial(self._store.add_group, group))
        return number

    async def seek(self, topic: str, group: str, target: str | int) -> dict[int, int]:
        """Put the group elsewhere in a topic, durably; where it stands now: queue_id → queue_offset."""
        queue_keys = self.queue_keys(topic)
        if not queue_keys:
            raise InvalidRequest(f"topic: {topic} does not exist yet: there is nothing to seek in")
        async with self._making:
            group_no = await self.group_no(group)
            offsets = await self._offsets(queue_keys, target)
            if self.queue_keys(topic) != queue_keys:
                raise InvalidRequest(f"topic: {topic} was removed meanwhile: there is nothing to seek in")
            for queue_key, offset in offsets.items():
                known = self.queues.get((group_no, queue_key)) or self._new_queue(group_no, queue_key, 0)
                self.queues[group_no, queue_key] = known.put_at(offset)
            await self.ledger.note(self._records(ConsumerKind.SEEK, group_no, offsets), durable=True)
        return {topic_of_key(queue_key)[1]: offset for queue_key, offset in offsets.items()}

    async def _offsets(self, queue_keys: Sequence[int], begin: str | int) -> dict[int, int]:
        """The queue_offset in each queue that `begin` means now."""
        begins = {queue_key: self._tail.extent(queue_key)[0] for queue_key in queue_keys}
        if begin == EARLIEST:
            return begins
        ends = {queue_key: self._store.next_offset.get(queue_key, 0) for queue_key in queue_keys}
        if begin == LATEST or not isinstance(begin, int):
            return ends
        search = partial(offsets_at, self._store.directory, queue_keys, begin)
        found = await asyncio.get_running_loop().run_in_executor(None, search)
        return {queue_key: max(begins[queue_key], found.get(queue_key, ends[queue_key])) for queue_key in queue_keys}

    def _records(self, kind: ConsumerKind, group_no: int, offsets: dict[int, int]) -> list[ConsumerRecord]:
        return [ConsumerRecord(kind, group_no, key, offset, edition=self._edition(key)) for key, offset in offsets.items()]

    def _new_queue(self, group_no: int, queue_key: int, offset: int) -> GroupQueue:
        progress = Progress(offset, edition=self._edition(queue_key))
        return GroupQueue(group_no, queue_key, self._settings.look_ahead, progress)

    # --- the journal ----------------------------------------------------------------------------------------------------------
    def finish(self, group_no: int, entries: Sequence[tuple[int, int]]) -> list[ConsumerRecord]:
        """These (queue key, queue_offset) are done, whether or not the group has read there; the records that say so."""
        records: list[ConsumerRecord] = []
        for queue_key, queue_offset in entries:
            if topic_of_key(queue_key)[0] in self._store.dictionary.removed:
                continue
            queue = self.queues.get((group_no, queue_key))
            if queue is None:
                queue = self.queues[group_no, queue_key] = self._new_queue(group_no, queue_key, 0)
            records += queue.finish(queue_offset)
        return records

    def note(self, records: Sequence[ConsumerRecord]) -> None:
        """Write records that nothing waits for; lost, they are found out again."""
        if records:
            with contextlib.suppress(EdgeError):
                self.ledger.note(records, durable=False)
