"""Shapes for producers: messages, halves, ends, check requests, the state of a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import astuple

from ingest.capabilities import EndAnswer, EndRequest
from ingest.checks.wire import CheckOut
from ingest.errors import InvalidRequest
from ingest.http.wire.fields import I63, Items, Name, PlaceOut, Properties, Text
from ingest.operating.history import Transaction
from store.messages import ALIKE_MIN, NO_HOST, NO_PROPERTIES, AlikeMessages, Message, are_same
from store.properties import CHECK_IMMUNITY_TIME_IN_SECONDS, KEYS, TAGS
from store.records import IMMUNITY_MAX_S, parse_immunity_s


class MessageIn(Struct, forbid_unknown_fields=True):
    """A half, or an ordinary message. Give either `body` (base64; binary in msgpack) or `text`."""

    group: Name
    topic: Name
    body: bytes | UnsetType = UNSET
    text: str | UnsetType = UNSET
    key: Text = ""
    tags: Text = ""
    properties: Properties = {}
    check_immunity_s: int | None = None
    born_at_ms: I63 = 0
    dedup_key: Text = ""
    queue_id: Annotated[int, Meta(ge=0, le=63)] | None = None
    flag: Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)] = 0


class MessagesIn(Struct, forbid_unknown_fields=True):
    messages: Items[MessageIn]


class EndIn(Struct, forbid_unknown_fields=True):
    """What became of a transaction."""

    group: Name
    id: Text
    outcome: Literal["commit", "rollback", "unknown"]
    from_check: bool = False
    remark: Text = ""


class EndsIn(Struct, forbid_unknown_fields=True):
    ends: Items[EndIn]


class ChecksQuery(Struct, forbid_unknown_fields=True):
    member: Annotated[str, Meta(min_length=1, max_length=128, description="who asks; one name a process")]
    max: Annotated[int, Meta(ge=1, le=4096, description="the most check requests in the answer")] = 32
    wait_s: Annotated[float, Meta(ge=0, le=600, description="how long to wait for the first one")] = 0.0


class MessagesOut(Struct):
    messages: list[PlaceOut]


class EndOut(Struct):
    verdict: Literal["accepted", "already", "conflict", "refused"]
    reason: str
    state: str


class EndsOut(Struct):
    answers: list[EndOut]


class ChecksOut(Struct):
    checks: list[CheckOut]


class EventOut(Struct, omit_defaults=True):
    """One line of a transaction's history. `by`: producer, check, operator or checker."""

    event: Literal["prepared", "asked", "committed", "rolled_back", "unknown", "discarded", "resumed"]
    at_ms: int
    by: str = ""
    actor: str = ""
    remark: str = ""


class TransactionOut(Struct):
    id: str
    half_offset: int
    state: str
    group: str = ""
    topic: str = ""
    key: str = ""
    outcome: Literal["commit", "rollback"] | None = None
    attempts: int = 0
    born_at_ms: int = 0
    stored_at_ms: int = 0
    settled: bool = False
    queue_id: int | None = None
    queue_offset: int | None = None
    history: list[EventOut] = []


assert len(Message._fields) == 14  # see _message


def messages(items: Sequence[MessageIn]) -> Sequence[Message]:
    alike = _alike(items) if len(items) >= ALIKE_MIN else None
    return [_message(item, number) for number, item in enumerate(items)] if alike is None else alike


def _alike(items: Sequence[MessageIn]) -> AlikeMessages | None:
    """The same where nothing sets one apart from the others but what is in it; None where something does, or is wrong."""
    groups, topics, bodies, texts, keys, tags, properties, immunities, born, dedup_keys, queue_ids, flags = zip(
        *map(astuple, items), strict=True
    )
    if not are_same(groups) or not are_same(topics) or any(map(any, (keys, tags, properties, immunities, flags))):
        return None
    if queue_ids.count(None) < len(items):
        return None
    if UNSET not in bodies and texts.count(UNSET) == len(items):
        return AlikeMessages(groups[0], topics[0], bodies, dedup_keys, born)
    if UNSET not in texts and bodies.count(UNSET) == len(items):
        return AlikeMessages(groups[0], topics[0], [text.encode() for text in texts], dedup_keys, born)
    return None


def _message(item: MessageIn, number: int) -> Message:
    body, text = item.body, item.text
    if body is UNSET:
        if text is UNSET:
            raise InvalidRequest(f"messages[{number}].body: is missing; give body (base64) or text", f"messages[{number}].body")
        body = text.encode()
    elif text is not UNSET:
        raise InvalidRequest(f"messages[{number}].text: give body or text, not both", f"messages[{number}].text")
    properties = item.properties
    if item.key or item.tags:
        properties = {**properties, **({KEYS: item.key} if item.key else {}), **({TAGS: item.tags} if item.tags else {})}
    immunity_s = item.check_immunity_s
    immunity_s = 0 if immunity_s is None else min(max(immunity_s, 0), IMMUNITY_MAX_S)
    if properties and not immunity_s and CHECK_IMMUNITY_TIME_IN_SECONDS in properties:
        immunity_s = parse_immunity_s(properties[CHECK_IMMUNITY_TIME_IN_SECONDS])
    # `Message(…)` without the function in between, which takes as long again: there are many of them.
    return tuple.__new__(
        Message,
        (item.group, item.topic, body, properties, item.queue_id, item.born_at_ms, NO_HOST, 0, immunity_s, item.flag,
         item.dedup_key, NO_PROPERTIES, None, ""),
    )  # fmt: skip


def ends(items: Sequence[EndIn]) -> list[EndRequest]:
    return [EndRequest(item.group, item.id, item.outcome, item.from_check, item.remark) for item in items]


def end_answers(answers: Sequence[EndAnswer]) -> EndsOut:
    return EndsOut([EndOut(answer.verdict, answer.reason, answer.state) for answer in answers])  # type: ignore[arg-type]


def transaction(id: str, found: Transaction) -> TransactionOut:
    place = found.place
    return TransactionOut(
        id=id,
        half_offset=found.half_offset,
        state=found.state,
        group=found.group,
        topic=found.topic,
        key=found.key,
        outcome=found.outcome,  # type: ignore[arg-type]
        attempts=found.attempts,
        born_at_ms=found.born_at_ms,
        stored_at_ms=found.stored_at_ms,
        settled=found.settled,
        queue_id=place[0] if place else None,
        queue_offset=place[1] if place else None,
        history=[EventOut(each.event, each.at_ms, each.by, each.actor, each.remark) for each in found.history],  # type: ignore[arg-type]
    )
