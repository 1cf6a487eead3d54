"""What a consumer is given, and the words it is given in: deliveries, dead letters, tag filters. (`receipts.py`: receipts.)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ingest.consuming.filters import TagFilter
from ingest.consuming.group_queue import Handed
from ingest.consuming.receipts import Receipt, ReceiptSealer
from ingest.errors import InvalidRequest
from store.properties import (
    DLQ_ATTEMPTS,
    DLQ_ORIGIN_OFFSET,
    DLQ_ORIGIN_QUEUE,
    DLQ_ORIGIN_TOPIC,
    KEYS,
    OWN_PROPERTIES,
    TAGS,
    tags_code,
)
from store.records import topic_of_key
from store.tables.frames import Frame, FrameKind

#: Told in fields of their own, or internal to Escrow.
_HIDDEN: Final = OWN_PROPERTIES | {KEYS, TAGS}
_ALL: Final = TagFilter()


def shown_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """What of a message's properties its producer gave it."""
    return {name: value for name, value in properties.items() if name not in _HIDDEN}


def parse_tags(text: str) -> TagFilter:
    """`a||b`; nothing or `*` takes all."""
    tags = [tag.strip() for tag in text.split("||")]
    if text.strip() in ("", "*"):
        return _ALL
    if "" in tags or "*" in tags:
        raise InvalidRequest(f"tags: {text[:40]!r} has an empty tag or a * among others: write a||b, or * for all")
    return TagFilter("||".join(sorted(set(tags))), frozenset(tags), frozenset(tags_code(tag) for tag in tags))


class _Content:
    """What a message says, read from its frame."""

    __slots__ = ()
    frame: Frame

    @property
    def key(self) -> str:
        return self.frame.properties.get(KEYS, "")

    @property
    def tags(self) -> str:
        return self.frame.properties.get(TAGS, "")

    @property
    def properties(self) -> Mapping[str, str]:
        """The producer's own, without key and tags."""
        return shown_properties(self.frame.properties)

    @property
    def body(self) -> bytes:
        return self.frame.body

    @property
    def born_at_ms(self) -> int:
        return self.frame.fields["born_at_ms"]

    @property
    def stored_at_ms(self) -> int:
        return self.frame.stored_at_ms


@dataclass(frozen=True, slots=True)
class Delivery(_Content):
    """A message in a consumer's hand. `attempt` counts from 1."""

    receipt: str
    topic: str
    queue_id: int
    queue_offset: int
    attempt: int
    frame: Frame
    handed: Handed = field(repr=False, compare=False)

    @property
    def half_offset(self) -> int:
        """Of the transaction that released it; -1 for an ordinary message."""
        return self.frame.queue_offset if self.frame.kind == FrameKind.HALF else -1


def delivery(handed: Handed, topic: str, tag: str, sealer: ReceiptSealer) -> Delivery:
    """`tag`: of the store's incarnation."""
    queue = handed.queue
    receipt = Receipt(queue.group_no, queue.queue_key, handed.queue_offset, handed.attempts, handed.visible_at_ms, tag)
    queue_id = topic_of_key(queue.queue_key)[1]
    return Delivery(sealer.seal(receipt), topic, queue_id, handed.queue_offset, handed.attempts, handed.frame, handed)


@dataclass(frozen=True, slots=True)
class DeadLetter(_Content):
    """A message that a group was given too often. `id` names it for the replay; topic, queue and offset say where it came from."""

    id: str
    topic: str
    queue_id: int
    queue_offset: int
    attempts: int
    frame: Frame

    @property
    def dead_at_ms(self) -> int:
        return self.frame.stored_at_ms


def dead_letter(id: str, frame: Frame) -> DeadLetter:
    """A frame of a dead-letter topic; one that was sent there directly has no origin."""
    said = frame.properties
    queue_id, queue_offset, attempts = (
        int(said[name]) if said.get(name, "").isdecimal() else -1 for name in (DLQ_ORIGIN_QUEUE, DLQ_ORIGIN_OFFSET, DLQ_ATTEMPTS)
    )
    return DeadLetter(id, said.get(DLQ_ORIGIN_TOPIC, ""), queue_id, queue_offset, max(attempts, 0), frame)
