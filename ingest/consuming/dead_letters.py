"""Dead letters: messages that a consumer group was given `maxDeliveries` times and never acknowledged.

They go to the topic `%DLQ%<group>` (one queue) as ordinary messages that say where they came from; the entry that they came from is
done only when that message is durable. A crash between the two makes a second letter of the same message, never none. A letter is
open until the group has replayed it (or consumed it: the topic can be polled like any other, and nothing in it dies again).

A replay appends the message to its origin topic and queue, with the property `__FOR_GROUP__`: only this group gets it, the others
pass over it. So the group's consumers find it where they read anyway, and other groups do not get it twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ingest.consuming.deliveries import DeadLetter, dead_letter
from ingest.consuming.group_queue import GroupQueue, Handed
from ingest.consuming.reading.tail import Tail
from ingest.errors import InvalidRequest
from store.edge.store import EdgeStore
from store.incarnations import Lineage
from store.messages import Message
from store.naming import DLQ_PREFIX, NAME_MAX_BYTES, check_name
from store.properties import (
    DLQ_ATTEMPTS,
    DLQ_ORIGIN_GROUP,
    DLQ_ORIGIN_OFFSET,
    DLQ_ORIGIN_QUEUE,
    DLQ_ORIGIN_TOPIC,
    FOR_GROUP,
    OWN_PROPERTIES,
    PGROUP,
)
from store.records import QUEUE_ID_BITS, topic_of_key
from store.tables.frames import Frame

GROUP_MAX_BYTES: Final = NAME_MAX_BYTES - len(DLQ_PREFIX)
_ENTRIES_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True)
class Letter:
    """A letter's place in its group's dead-letter topic."""

    queue_key: int
    queue_offset: int
    #: Of the store's incarnation.
    tag: str = ""

    def __str__(self) -> str:
        return f"{topic_of_key(self.queue_key)[1]:x}-{self.queue_offset:x}" + (f"-{self.tag}" if self.tag else "")


def topic_of(group: str) -> str:
    check_name(group, "group")
    if len(group) > GROUP_MAX_BYTES:
        raise InvalidRequest(f"group: {group[:40]!r}… is longer than {GROUP_MAX_BYTES} bytes, the limit for consumer groups")
    return DLQ_PREFIX + group


def has_dead_letters(topic: str) -> bool:
    """Whether messages of this topic may die: a dead letter does not."""
    return not topic.startswith(DLQ_PREFIX)


def parse_letter(text: str, topic_no: int | None, field: str, lineage: Lineage) -> Letter:
    queue_id, _, rest = text.partition("-")
    queue_offset, _, tag = rest.partition("-")
    try:
        letter = Letter((topic_no or 0) << QUEUE_ID_BITS | int(queue_id, 16), int(queue_offset, 16), lineage.tag)
    except ValueError:
        raise InvalidRequest(f"{field}: {text[:40]!r} is not the id of a dead letter: take the id from the list") from None
    if not lineage.holds(tag, letter.queue_key, letter.queue_offset):
        raise InvalidRequest(
            f"{field}: {text[:40]!r} is from after the backup that this store was restored from: take the id from the list again"
        )
    return letter


# --- in the committer's thread ---------------------------------------------------------------------------------------------------
def bury(store: EdgeStore, group: str, dying: Sequence[Handed], now_ms: int) -> None:
    """Store dead letters; durable on return."""
    topic = topic_of(group)
    store.add_topic(topic, 1)
    _append(store, [_letter(store, group, topic, handed) for handed in dying], now_ms)


def _letter(store: EdgeStore, group: str, topic: str, handed: Handed) -> Message:
    frame, (topic_no, queue_id) = handed.frame, topic_of_key(handed.queue.queue_key)
    own = {
        DLQ_ORIGIN_TOPIC: store.dictionary.topics[topic_no],
        DLQ_ORIGIN_QUEUE: str(queue_id),
        DLQ_ORIGIN_OFFSET: str(handed.queue_offset),
        DLQ_ORIGIN_GROUP: frame.properties.get(PGROUP, ""),
        DLQ_ATTEMPTS: str(handed.attempts),
    }
    return Message(
        group, topic, frame.body, given(frame), born_at_ms=frame.fields["born_at_ms"], flag=frame.fields["flag"], own=own
    )


def append_again(store: EdgeStore, group: str, letters: Sequence[DeadLetter], now_ms: int) -> None:
    """Append letters to the topics that they came from, for this group only; durable on return."""
    _append(store, [_again(group, letter) for letter in letters], now_ms)


def _again(group: str, letter: DeadLetter) -> Message:
    frame = letter.frame
    return Message(
        frame.properties.get(DLQ_ORIGIN_GROUP) or group,
        letter.topic,
        frame.body,
        given(frame),
        queue_id=letter.queue_id,
        born_at_ms=frame.fields["born_at_ms"],
        flag=frame.fields["flag"],
        own={FOR_GROUP: group},
    )


def given(frame: Frame) -> dict[str, str]:
    """The properties that the producer gave."""
    return {name: value for name, value in frame.properties.items() if name not in OWN_PROPERTIES}


def _append(store: EdgeStore, messages: Sequence[Message], now_ms: int) -> None:
    ticket = max(store.append_messages([message], now_ms).ticket for message in messages)
    store.wait(ticket)


# --- in the event loop -----------------------------------------------------------------------------------------------------------
class Letters:
    """The open dead letters of groups."""

    def __init__(self, store: EdgeStore, tail: Tail, queue_of: Callable[[int, int], GroupQueue | None]) -> None:
        self._store, self._tail, self._queue_of = store, tail, queue_of

    def page(self, group: str, after: str, max_letters: int) -> tuple[list[DeadLetter], str | None]:
        """Open letters behind `after`, oldest first, and the id to go on behind; None where these are the last."""
        topic_no = self._store.dictionary.topic_no(topic_of(group))
        behind = parse_letter(after, topic_no, "after", self._store.lineage) if after else None
        found: list[DeadLetter] = []
        for queue_key in self._queue_keys(topic_no):
            if behind is not None and queue_key < behind.queue_key:
                continue
            first = behind.queue_offset + 1 if behind is not None and queue_key == behind.queue_key else 0
            self._collect(group, queue_key, first, max_letters + 1, found)
        more = len(found) > max_letters
        found = found[:max_letters]
        return found, found[-1].id if more else None

    def count(self, group: str) -> int:
        """How many are open."""
        found = 0
        for queue_key in self._queue_keys(self._store.dictionary.topic_no(topic_of(group))):
            begin, end = self._tail.extent(queue_key)
            queue = self._queue(group, queue_key)
            found += max(0, end - begin) if queue is None else max(0, end - max(begin, queue.offset) - queue.done_ahead)
        return found

    def _queue_keys(self, topic_no: int | None) -> list[int]:
        if topic_no is None:
            return []
        return [topic_no << QUEUE_ID_BITS | queue_id for queue_id in range(self._store.dictionary.queues[topic_no])]

    def _collect(self, group: str, queue_key: int, first: int, count: int, found: list[DeadLetter]) -> None:
        begin, end = self._tail.extent(queue_key)
        queue = self._queue(group, queue_key)
        first = max(first, begin, queue.offset if queue is not None else 0)
        while first < end and len(found) < count:
            entries = self._tail.entries(queue_key, first, min(end, first + _ENTRIES_AT_ONCE))
            if not entries:
                return
            for queue_offset, (commit_log_offset, size_bytes, _) in enumerate(entries, first):
                if not size_bytes or (queue is not None and queue.is_done(queue_offset)):
                    continue
                frame = self._tail.frame(queue_key, commit_log_offset, size_bytes)
                if frame is not None and len(found) < count:
                    found.append(dead_letter(str(Letter(queue_key, queue_offset, self._store.lineage.tag)), frame))
            first += len(entries)

    def _queue(self, group: str, queue_key: int) -> GroupQueue | None:
        group_no = self._store.dictionary.group_no(group)
        return self._queue_of(group_no, queue_key) if group_no is not None else None

    def find(self, group: str, ids: Sequence[str]) -> dict[Letter, DeadLetter]:
        """Those of these letters that are open and can be replayed, each once."""
        topic_no = self._store.dictionary.topic_no(topic_of(group))
        keys = set(self._queue_keys(topic_no))
        found: dict[Letter, DeadLetter] = {}
        for number, id in enumerate(ids):
            letter = parse_letter(id, topic_no, f"ids[{number}]", self._store.lineage)
            queue = self._queue(group, letter.queue_key)
            begin, end = self._tail.extent(letter.queue_key) if letter.queue_key in keys else (0, 0)
            if not begin <= letter.queue_offset < end or (queue is not None and queue.is_done(letter.queue_offset)):
                continue
            for commit_log_offset, size_bytes, _ in self._tail.entries(
                letter.queue_key, letter.queue_offset, letter.queue_offset + 1
            ):
                frame = self._tail.frame(letter.queue_key, commit_log_offset, size_bytes) if size_bytes else None
                if frame is not None and (opened := dead_letter(id, frame)).topic:
                    found[letter] = opened
        return found
