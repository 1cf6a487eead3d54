"""Reading a topic by place, without a consumer group: what Spark's source and others that keep their own offsets read.

    places   the queues of a topic: begin, end, and the place of a time; under which store and which edition of the topic they count
    page     messages of one queue from a place on, in columns, bounded in number and bytes

A place names the same message whether it is read from the settled queue or from the unsettled tail (`tail.py`). Nothing is
handed out, so nothing is written and no consumer group is disturbed. Left out of a page are holes, frames that fail their check,
and replayed dead letters, which belong to one consumer group.

Which entries there are is looked up in the event loop, where the tail lives. Messages are read in a thread with files of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct

from ingest.consuming import lag
from ingest.consuming.deliveries import shown_properties
from ingest.consuming.reading.start_positions import EARLIEST, LATEST, offsets_at, parse_start
from ingest.consuming.reading.tail import Entry, Tail
from ingest.errors import InvalidRequest, NoSuchTopic, NotReady, Overloaded
from ingest.threads import Threads
from store.directory import StoreDirectory
from store.edge.store import EdgeStore
from store.errors import Corrupt
from store.naming import RESERVED_TOPICS, check_name
from store.properties import FOR_GROUP, KEYS, TAGS
from store.read.readers import LogReader
from store.read.releases import NotFoundYet, Range, ReleaseTimes
from store.records import QUEUE_ID_BITS
from store.tables.frames import Frame, FrameKind

#: The most messages of a page.
PAGE_MAX: Final = 16_384
_MESSAGES: Final = frozenset({FrameKind.HALF, FrameKind.MESSAGE})

#: Makes the transaction id of (half_offset, group_no).
Seal = Callable[[int, int], str]
Hold = Callable[[int], None]


class Identity(Struct, frozen=True):
    """What places are places of. `store_id`: of the store that was made first; `incarnation`: another one after each restore;
    `topic_id`: another one where a topic of this name is made again."""

    store_id: str
    incarnation: str
    topic_id: str


class QueuePlaces(Struct, frozen=True):
    """`begin` … `end`: what may be read now. `at`: the place that was asked for."""

    queue_id: int
    begin: int
    end: int
    at: int


class Page(Struct):
    """Messages of one queue, in columns. `next`: where to go on; `begin` … `end`: what may be read of the queue now. Where
    `queue_offset` is before `begin`, retention has taken messages, and the page begins at `begin`."""

    identity: Identity
    begin: int
    end: int
    next: int
    queue_offsets: list[int]
    keys: list[str]
    tags: list[str]
    bodies: list[bytes]
    properties: list[dict[str, str]]
    transaction_ids: list[str | None]
    born_at_ms: list[int]
    stored_at_ms: list[int]
    released_at_ms: list[int | None]


class TopicPages:
    """Lives in the event loop."""

    def __init__(self, store: EdgeStore, looked: Callable[[], Tail], seal: Seal, size_max_bytes: int) -> None:
        """`looked`: the tail, with what is flushed taken in."""
        self._store, self._looked, self._size_max_bytes = store, looked, size_max_bytes
        self._reader = _Reader(store.directory, seal)
        self._threads = Threads("pages", 1)

    def _topic_no(self, topic: str) -> int:
        if topic in RESERVED_TOPICS:
            raise InvalidRequest(f"topic: {topic} is internal and cannot be consumed: name the topic that messages are released to")
        check_name(topic, "topic")
        topic_no = self._store.dictionary.topic_no(topic)
        if topic_no is None:
            raise NoSuchTopic(f"topic: topic {topic} does not exist; the first message for it creates it, or an operator")
        return topic_no

    def _whole_tail(self) -> Tail:
        """Until the job's files are known to be whole, an empty queue would be told as one that has nothing."""
        tail = self._looked()
        if not tail.settled.whole:
            raise NotReady("after a restart of the machine, topics are readable when the job has started")
        return tail

    def _identity(self, topic_no: int) -> Identity:
        lineage = self._store.lineage
        first = lineage.ancestors[0].store_id if lineage.ancestors else lineage.store_id
        return Identity(first, lineage.store_id, f"{topic_no}.{self._store.dictionary.editions[topic_no]}")

    async def places(self, topic: str, at: str = LATEST) -> tuple[Identity, list[QueuePlaces]]:
        """Each queue of a topic. `at`: earliest, latest or a time."""
        wanted, topic_no = parse_start(at, "at"), self._topic_no(topic)
        identity, tail = self._identity(topic_no), self._whole_tail()
        queue_keys = lag.queue_keys(self._store.dictionary, topic_no)
        extents = {queue_key: tail.extent(queue_key) for queue_key in queue_keys}
        found: dict[int, int] = {}
        if isinstance(wanted, int):
            found = await self._threads.call(offsets_at, self._store.directory, queue_keys, wanted)
        places = []
        for queue_id, queue_key in enumerate(queue_keys):
            begin, end = extents[queue_key]
            asked = begin if wanted == EARLIEST else min(max(found.get(queue_key, end), begin), end)
            places.append(QueuePlaces(queue_id, begin, end, asked))
        return identity, places

    async def page(
        self, topic: str, queue_id: int, queue_offset: int, *, max_messages: int, max_bytes: int, hold: Hold | None = None
    ) -> Page:
        """`hold` hears how many bytes it is about to take, and raises where that is too much."""
        topic_no = self._topic_no(topic)
        queues = self._store.dictionary.queues[topic_no]
        if queue_id >= queues:
            raise InvalidRequest(f"queue: topic {topic} has queues 0 to {queues - 1}, no queue {queue_id}", "queue")
        tail, queue_key = self._whole_tail(), topic_no << QUEUE_ID_BITS | queue_id
        begin, end = tail.extent(queue_key)
        first = max(queue_offset, begin)
        stop = min(end, first + min(max_messages, PAGE_MAX))
        entries = _bounded(_entries(tail, queue_key, first, stop), min(max_bytes, self._size_max_bytes))
        if hold is not None:
            hold(sum(size for _, size, _ in entries))
        page = Page(self._identity(topic_no), begin, end, first + len(entries), *([] for _ in range(9)))
        if entries:
            await self._threads.call(self._reader.read, page, queue_key, first, entries)
        return page

    def close(self) -> None:
        self._threads.close()


def _entries(tail: Tail, queue_key: int, first: int, stop: int) -> list[Entry]:
    """Across the border between the settled queue and the tail; fewer where the files are just changing."""
    found = tail.entries(queue_key, first, stop) if first < stop else []
    if found and first + len(found) < stop:
        found = found + tail.entries(queue_key, first + len(found), stop)
    return found


def _bounded(entries: list[Entry], max_bytes: int) -> list[Entry]:
    """As many as have so many bytes together, and one at least."""
    total = 0
    for number, (_, size, _) in enumerate(entries):
        total += size
        if total > max_bytes and number:
            return entries[:number]
    return entries


class _Reader:
    """In the thread of the pages. Files are open during a page alone, so that none is held when retention removes it."""

    def __init__(self, directory: StoreDirectory, seal: Seal) -> None:
        self._directory, self._seal, self._releases = directory, seal, ReleaseTimes()

    def read(self, page: Page, queue_key: int, first: int, entries: Sequence[Entry]) -> None:
        """Fill the columns of a page."""
        log = LogReader(self._directory)
        try:
            frames = [
                (first + number, frame)
                for number, (offset, size, _) in enumerate(entries)
                if size > 0 and (frame := _frame(log, queue_key, offset, size)) is not None
            ]
            released = self._released(log, Range(queue_key, first, first + len(entries)), [frame for _, frame in frames])
        finally:
            log.close()
        self._fill(page, frames, released)

    def _fill(self, page: Page, frames: Sequence[tuple[int, Frame]], released: Mapping[int, int]) -> None:
        for queue_offset, frame in frames:
            said, is_half, half_offset = frame.properties, frame.kind == FrameKind.HALF, frame.queue_offset
            page.queue_offsets.append(queue_offset)
            page.keys.append(said.get(KEYS, ""))
            page.tags.append(said.get(TAGS, ""))
            page.bodies.append(frame.body)
            page.properties.append(shown_properties(said))
            page.transaction_ids.append(self._seal(half_offset, frame.fields["group_no"]) if is_half else None)
            page.born_at_ms.append(frame.fields["born_at_ms"])
            page.stored_at_ms.append(frame.stored_at_ms)
            page.released_at_ms.append(released.get(half_offset) if is_half else frame.stored_at_ms)

    def _released(self, log: LogReader, places: Range, frames: Sequence[Frame]) -> dict[int, int]:
        halves = [frame for frame in frames if frame.kind == FrameKind.HALF]
        oldest_ms = min((frame.stored_at_ms for frame in halves), default=0)
        offsets = np.array([frame.queue_offset for frame in halves], np.int64)
        try:
            return self._releases.times(log, places, offsets, oldest_ms)
        except NotFoundYet:
            raise Overloaded("looking up when these messages were released takes longer: ask again, it goes on then") from None
        except IndexError:  # retention has just taken the file
            return {}


def _frame(log: LogReader, queue_key: int, offset: int, size: int) -> Frame | None:
    """None where its bytes are gone or bad, where it is not of this queue, and where it is for one consumer group alone."""
    try:
        frame = log.log.read(offset, size)
    except (Corrupt, IndexError, ValueError):
        return None
    return frame if _is_of(frame, queue_key) else None


def _is_of(frame: Frame, queue_key: int) -> bool:
    fields: dict[str, Any] = frame.fields
    here = frame.kind in _MESSAGES and fields["topic_no"] << QUEUE_ID_BITS | fields["queue_id"] == queue_key
    return here and FOR_GROUP not in frame.properties
