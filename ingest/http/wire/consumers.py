"""Shapes for consumers: messages, receipts, positions, dead letters."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from ingest.consuming.deliveries import DeadLetter, Delivery
from ingest.consuming.pages import PAGE_MAX, Identity, QueuePlaces
from ingest.http.wire.fields import I63, TEXT_MAX_CHARACTERS, Items, Name, PlaceOut, Text
from store.naming import NAME_MAX_BYTES


class MessagesQuery(Struct, forbid_unknown_fields=True, rename={"start": "from"}):
    group: Annotated[str, Meta(min_length=1, max_length=NAME_MAX_BYTES, description="the consumer group")]
    consumer: Annotated[str, Meta(min_length=1, max_length=128, description="who asks; one name a process")]
    max: Annotated[int, Meta(ge=1, le=65_535, description="the most messages in the answer")] = 32
    wait_s: Annotated[float, Meta(ge=0, le=600, description="how long to wait for the first one")] = 0.0
    visibility_s: Annotated[float, Meta(ge=0, description="what is not done by then is handed out again")] | None = None
    tags: Annotated[str, Meta(max_length=TEXT_MAX_CHARACTERS, description="a||b; nothing or * = all")] = ""
    start: Annotated[str, Meta(max_length=64, description="earliest, latest or a time, for a group that is new here")] = "earliest"


class PlacesQuery(Struct, forbid_unknown_fields=True):
    at: Annotated[str, Meta(max_length=64, description="earliest, latest or a time: `at` of each queue")] = "latest"


class PageQuery(Struct, forbid_unknown_fields=True):
    queue_offset: Annotated[I63, Meta(description="where to begin")] = 0
    max: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="the most messages in the answer")] = 1024
    max_bytes: Annotated[int, Meta(ge=1, le=1 << 30, description="their most bytes; one message comes at least")] = 4 << 20


class PlacesOut(Struct):
    """The queues of a topic. Offsets count as long as `identity` is the same."""

    identity: Identity
    queues: list[QueuePlaces]


class ReceiptsIn(Struct, forbid_unknown_fields=True):
    group: Name
    receipts: Items[Text]


class VisibilityIn(Struct, forbid_unknown_fields=True):
    group: Name
    receipts: Items[Text]
    visibility_s: Annotated[float, Meta(ge=0)]


class SeekIn(Struct, forbid_unknown_fields=True):
    group: Name
    to: Annotated[str, Meta(min_length=1, max_length=64)]


class LettersQuery(Struct, forbid_unknown_fields=True):
    max: Annotated[int, Meta(ge=1, le=1024, description="the most letters in the answer")] = 32
    after: Annotated[str, Meta(max_length=64, description="`next` of the answer before")] = ""


class ReplayIn(Struct, forbid_unknown_fields=True):
    ids: Items[Text]


class MessageOut(Struct):
    """A message in a consumer's hand. `transaction_id` is null where there was no transaction."""

    receipt: str
    topic: str
    queue_id: int
    queue_offset: int
    attempt: int
    key: str
    tags: str
    body: bytes
    properties: dict[str, str]
    born_at_ms: int
    stored_at_ms: int
    transaction_id: str | None


class DeliveriesOut(Struct):
    messages: list[MessageOut]


class AckOut(Struct):
    verdict: Literal["done", "stale"]


class AcksOut(Struct):
    answers: list[AckOut]


class ReceiptsOut(Struct):
    receipts: list[str | None]


class SeekOut(Struct):
    queues: list[PlaceOut]


class LetterOut(Struct):
    """A dead letter; topic, queue and offset are where it came from."""

    id: str
    topic: str
    queue_id: int
    queue_offset: int
    attempts: int
    dead_at_ms: int
    key: str
    tags: str
    body: bytes
    properties: dict[str, str]
    born_at_ms: int


class LettersOut(Struct):
    dead_letters: list[LetterOut]
    next: str | None


class ReplayOut(Struct):
    replayed: int


def delivery(found: Delivery, transaction_id: str | None) -> MessageOut:
    return MessageOut(
        found.receipt, found.topic, found.queue_id, found.queue_offset, found.attempt, found.key, found.tags, found.body,
        dict(found.properties), found.born_at_ms, found.stored_at_ms, transaction_id,
    )  # fmt: skip


def letter(found: DeadLetter) -> LetterOut:
    return LetterOut(
        found.id, found.topic, found.queue_id, found.queue_offset, found.attempts, found.dead_at_ms, found.key, found.tags,
        found.body, dict(found.properties), found.born_at_ms,
    )  # fmt: skip
