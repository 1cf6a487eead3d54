"""What goes over the wire: the shapes of requests and answers, and what they become in the rooms below.

One declaration a shape (msgspec), from which follow the checks with the names of wrong fields, JSON and msgpack, and the schemas
of /openapi.json. docs/http-api.md explains them to people.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import astuple

from ingest.capabilities import EndAnswer, EndRequest, JobState
from ingest.checks.delivery import CheckRequest
from ingest.consuming.deliveries import DeadLetter, Delivery, shown_properties
from ingest.edge.ids import ID_CHARACTERS, Sealed
from ingest.errors import InvalidRequest, UnsupportedMedia
from ingest.operating.auditing import Audited
from ingest.operating.history import Inspected, Transaction
from ingest.operating.listings import Listed, ListPage, Query
from ingest.operating.operator import Action, Done
from store.edge.removal import Removal
from store.records import IMMUNITY_MAX_S, parse_immunity_s
from store.tables.frames import (
    ALIKE_MIN,
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    KEYS,
    NAME_MAX_BYTES,
    NO_HOST,
    NO_PROPERTIES,
    REAL_TOPIC,
    TAGS,
    AlikeMessages,
    Message,
    are_same,
)

PROPERTIES_MAX: Final = 256
TEXT_MAX_CHARACTERS: Final = 4096

T = TypeVar("T")
_NAME_PATTERN: Final = {"pattern": r"^[A-Za-z0-9_%|.\-]+$"}
Name = Annotated[str, Meta(min_length=1, max_length=NAME_MAX_BYTES, extra_json_schema=_NAME_PATTERN)]
Text = Annotated[str, Meta(max_length=TEXT_MAX_CHARACTERS)]
PropertyName = Annotated[str, Meta(min_length=1, max_length=TEXT_MAX_CHARACTERS)]
I63 = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
#: maxMessagesPerRequest cannot be more.
ITEMS_MAX: Final = 65_535
#: Topics that an answer names; the rest is counted.
TOPICS_TOLD_MAX: Final = 1_000
Items = Annotated[list[T], Meta(min_length=1, max_length=ITEMS_MAX)]
Properties = Annotated[dict[PropertyName, str], Meta(max_length=PROPERTIES_MAX)]


# --- requests -------------------------------------------------------------------------------------------------------------
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


State = Literal["pending", "discarded", "committed", "rolled_back", "quarantined", "settled", "any"]
Seconds = Annotated[int, Meta(ge=0, le=1 << 40)]
Attempts = Annotated[int, Meta(ge=0, le=255)]


class FilterIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Which transactions. What is left out is not looked at."""

    state: Annotated[State, Meta(description="settled: committed or rolled back")] = "pending"
    group: Annotated[str, Meta(max_length=NAME_MAX_BYTES, description="the producer group")] | None = None
    topic: Annotated[str, Meta(max_length=NAME_MAX_BYTES)] | None = None
    key: Annotated[str, Meta(max_length=TEXT_MAX_CHARACTERS, description="the whole key")] | None = None
    q: Annotated[str, Meta(max_length=TEXT_MAX_CHARACTERS, description="a whole id, or a part of group, topic or key")] | None = (
        None
    )
    age_min_s: Annotated[Seconds, Meta(description="stored at least so long ago")] | None = None
    age_max_s: Annotated[Seconds, Meta(description="stored at most so long ago")] | None = None
    attempts_min: Annotated[Attempts, Meta(description="asked at least so often")] | None = None
    attempts_max: Annotated[Attempts, Meta(description="asked at most so often")] | None = None
    since_ms: Annotated[I63, Meta(description="stored at this time or later")] | None = None
    until_ms: Annotated[I63, Meta(description="stored at this time or before")] | None = None


class TransactionsQuery(FilterIn, forbid_unknown_fields=True):
    order: Annotated[Literal["oldest", "newest"], Meta(description="what comes first")] = "oldest"
    limit: Annotated[int, Meta(ge=1, le=1000, description="the most transactions in the answer")] = 100
    cursor: Annotated[str, Meta(max_length=32, description="`next` of the answer before")] = ""


class ActionIn(Struct, forbid_unknown_fields=True):
    """What to do, and why. Give either `ids` or `filter`; with a filter, `expect` is the number that a dry run has matched."""

    action: Literal["check", "commit", "rollback", "resume"]
    reason: Annotated[str, Meta(min_length=1, max_length=500)]
    ids: Annotated[list[Text], Meta(max_length=ITEMS_MAX)] = []
    filter: FilterIn | None = None
    dry_run: bool = False
    expect: I63 | None = None


class TopicIn(Struct, forbid_unknown_fields=True):
    """A topic to make. `queues`: as many as queuesPerTopic says, if nothing is said."""

    topic: Annotated[str, Meta(min_length=1, max_length=NAME_MAX_BYTES)]
    queues: Annotated[int, Meta(ge=1, le=64)] | None = None


class TopicsRemoveIn(Struct, forbid_unknown_fields=True):
    """Topics to remove: these, or with `unused` all that nobody uses, with `made_by` only those that this token made."""

    topics: Annotated[list[Annotated[str, Meta(min_length=1, max_length=NAME_MAX_BYTES)]], Meta(max_length=32_768)] = []
    unused: bool = False
    made_by: Annotated[str, Meta(min_length=1, max_length=NAME_MAX_BYTES)] | None = None
    dry_run: bool = False


class AuditQuery(Struct, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=1000, description="the most records in the answer")] = 100
    before: Annotated[I63, Meta(description="`next` of the answer before")] | None = None


class MessagesQuery(Struct, forbid_unknown_fields=True, rename={"start": "from"}):
    group: Annotated[str, Meta(min_length=1, max_length=NAME_MAX_BYTES, description="the consumer group")]
    consumer: Annotated[str, Meta(min_length=1, max_length=128, description="who asks; one name a process")]
    max: Annotated[int, Meta(ge=1, le=65_535, description="the most messages in the answer")] = 32
    wait_s: Annotated[float, Meta(ge=0, le=600, description="how long to wait for the first one")] = 0.0
    visibility_s: Annotated[float, Meta(ge=0, description="what is not done by then is handed out again")] | None = None
    tags: Annotated[str, Meta(max_length=TEXT_MAX_CHARACTERS, description="a||b; nothing or * = all")] = ""
    start: Annotated[str, Meta(max_length=64, description="earliest, latest or a time, for a group that is new here")] = "earliest"


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


class LoginIn(Struct, forbid_unknown_fields=True):
    token: Text


# --- answers --------------------------------------------------------------------------------------------------------------
class HalfOut(Struct):
    id: str
    half_offset: int


class HalvesOut(Struct):
    halves: list[HalfOut]


class PlaceOut(Struct):
    queue_id: int
    queue_offset: int


class MessagesOut(Struct):
    messages: list[PlaceOut]


class EndOut(Struct):
    verdict: Literal["accepted", "already", "conflict", "refused"]
    reason: str
    state: str


class EndsOut(Struct):
    answers: list[EndOut]


class CheckOut(Struct):
    """A question about one half, with the half itself."""

    id: str
    topic: str
    key: str
    tags: str
    body: bytes
    properties: dict[str, str]
    attempt: int
    born_at_ms: int
    stored_at_ms: int


class ChecksOut(Struct):
    checks: list[CheckOut]


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


class TransactionsOut(Struct):
    """`next` null: everything was looked at (`scanned_all`). `matched`: how many there are, where that was counted."""

    transactions: list[Listed]
    next: str | None
    matched: int | None
    scanned_all: bool


class InspectedOut(Struct):
    """One transaction with its message. `body`: its first bytes; `body_bytes`: how many there are."""

    transaction: TransactionOut
    reason: str | None
    tags: str
    properties: dict[str, str]
    body: bytes
    body_bytes: int
    immunity_s: int
    outstanding: bool


class ResultOut(Struct):
    id: str
    result: Literal["accepted", "already", "conflict", "refused"]
    detail: str


class ActionOut(Struct):
    """All are counted, the first 1,000 are told one by one. `audit_no` null: a dry run."""

    dry_run: bool
    matched: int
    results: list[ResultOut]
    counts: dict[str, int]
    audit_no: int | None


class AuditOut(Struct):
    """`counts` null: the edge died before it was through. `ids`: the first 100."""

    no: int
    at_ms: int
    who: str
    action: str
    target: str
    reason: str
    filter: dict[str, Any] | None
    ids: list[str]
    matched: int
    counts: dict[str, int] | None
    result: str


class AuditsOut(Struct):
    records: list[AuditOut]
    next: int | None


class PartOut(Struct):
    part: str
    healthy: bool
    detail: str


class SeriesOut(Struct):
    """What was counted in each step; pending: at its end."""

    step_s: float
    at_ms: list[int]
    halves: list[int]
    commits: list[int]
    rollbacks: list[int]
    checks: list[int]
    pending: list[int]


class OverviewOut(Struct):
    """`totals` since the store was made, as far as the job has settled; checks and conflicts since the edge started."""

    now_ms: int
    started_at_ms: int
    role: str
    pending: int
    oldest_pending_age_s: int | None
    discarded: int
    totals: dict[str, int]
    parts: list[PartOut]
    clock_alert: bool
    series: SeriesOut


class MemberOut(Struct):
    member: str
    last_seen_ms: int
    via: str


class GroupOut(Struct):
    group: str
    pending: int
    oldest_age_s: int | None
    outstanding: int
    members: list[MemberOut]


class GroupsOut(Struct):
    groups: list[GroupOut]


class ConsumerOut(Struct):
    group: str
    lag: int
    in_hand: int
    dead_letters: int


class TopicOut(Struct):
    topic: str
    queues: int
    messages: int
    consumers: list[ConsumerOut]


class TopicMadeOut(Struct):
    """`made`: false where it was there before."""

    topic: str
    queues: int
    made: bool


class TopicKeptOut(Struct):
    """A topic that stays, and why."""

    topic: str
    reason: str


class TopicsRemovedOut(Struct):
    """How many topics were removed (in a dry run: would be) and how many stay; the first 1,000 of each by name."""

    dry_run: bool
    removed: int
    kept: int
    topics: list[str]
    in_the_way: list[TopicKeptOut]


class TopicsOut(Struct):
    topics: list[TopicOut]


class SessionOut(Struct):
    """Who is logged in at the console. `csrf` goes into the header X-Escrow-CSRF of every action; `open`: nobody needs a token."""

    name: str
    csrf: str
    open: bool
    left_s: float
    version: str
    check_max: int


class LiveOut(Struct):
    status: Literal["ok"]


class JobOut(Struct):
    """What the edge sees of the streaming job. `state`: absent (never started here), silent (no sign of life), no_room (it waits
    for room on the disk and goes on by itself), running."""

    state: Literal["absent", "silent", "no_room", "running"]
    halves_behind: int = 0
    ops_behind: int = 0


class ReadyOut(Struct):
    status: Literal["ok"]
    role: str
    job: JobOut


StatusOut = dict[str, Any]


class Problem(Struct, omit_defaults=True):
    """RFC 9457. `code` is stable; `detail` tells what to do; `field` names what is wrong."""

    status: int
    code: str
    title: str
    detail: str
    field: str = ""


# --- encoding -------------------------------------------------------------------------------------------------------------
JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"
_decoders: dict[tuple[Any, bool], Any] = {}


def media_type(content_type: bytes | None) -> str:
    """JSON or MSGPACK; UnsupportedMedia for anything else. Without a Content-Type it is JSON."""
    if content_type is None or content_type == b"application/json":
        return JSON
    bare = content_type.split(b";", 1)[0].strip().lower()
    if bare == b"application/json":
        return JSON
    if bare in (b"application/msgpack", b"application/x-msgpack", b"application/vnd.msgpack"):
        return MSGPACK
    raise UnsupportedMedia(f"Content-Type: {bare[:64].decode('latin-1')!r} is not understood; send {JSON} or {MSGPACK}")


def accepted_media(accept: bytes | None, otherwise: str) -> str:
    """What the answer is to be in. Problems are JSON always."""
    if accept is None or accept == b"*/*":
        return otherwise
    if b"msgpack" in accept:
        return MSGPACK
    return JSON if b"json" in accept else otherwise


# Halves in a row that were stored together are written in columns, byte for byte as the encoders would write them: half an answer's
# time goes into objects otherwise, which live for no longer than that.
_LAST_DIGITS: Final = np.array([b"%04d" % number for number in range(10_000)])


@lru_cache
def _row(before: int, between: int, number: str, after: int) -> np.dtype[np.void]:
    """A half in an answer: so many bytes before the id, between it and what differs of the half_offset, and behind that."""
    names, id = ("before", "id", "between", "number", "after"), f"S{ID_CHARACTERS}"
    return np.dtype(list(zip(names, (f"V{before}", id, f"V{between}", number, f"V{after}"), strict=True)))


def _rows(sealed: Sealed, before: bytes, between: bytes, numbers: npt.NDArray[Any], after: bytes) -> bytes:
    row = _row(len(before), len(between), numbers.dtype.str, len(after))
    template = before + bytes(ID_CHARACTERS) + between + bytes(numbers.dtype.itemsize) + after
    rows = np.frombuffer(bytearray(template * len(sealed)), row)
    rows["id"], rows["number"] = sealed.ids, numbers
    return rows.tobytes()


def _sealed(answer: Any) -> Sealed:
    """The only thing in an answer that the encoders do not know."""
    if type(answer) is not Sealed:
        raise NotImplementedError(f"{type(answer).__name__} is not for an answer")
    return answer


def _as_json(given: Any) -> Any:
    answer = _sealed(given)
    high, low = divmod(answer.first, len(_LAST_DIGITS))
    if not high or low + len(answer) > len(_LAST_DIGITS):  # they differ in more than their last digits
        return [HalfOut(*half) for half in answer]
    rows = _rows(answer, b'{"id":"', b'","half_offset":%d' % high, _LAST_DIGITS[low : low + len(answer)], b"},")
    return msgspec.Raw(b"[%b]" % rows[:-1])


def _as_msgpack(given: Any) -> Any:
    answer = _sealed(given)
    first, stop = answer.first, answer.first + len(answer)
    if first <= 0xFFFF or stop > 1 << 32 or not 16 <= len(answer) <= 0xFFFF:  # other lengths of numbers
        return [HalfOut(*half) for half in answer]
    numbers = np.arange(first, stop).astype(">u4")
    rows = _rows(answer, b"\x82\xa2id\xd9%c" % ID_CHARACTERS, b"\xabhalf_offset\xce", numbers, b"")
    return msgspec.Raw(b"\xdc%b%b" % (len(answer).to_bytes(2, "big"), rows))


_json_encoder, _msgpack_encoder = msgspec.json.Encoder(enc_hook=_as_json), msgspec.msgpack.Encoder(enc_hook=_as_msgpack)


def encode(answer: Any, media: str) -> bytes:
    return _json_encoder.encode(answer) if media == JSON else _msgpack_encoder.encode(answer)


def decode(content: bytes, media: str, shape: type[T]) -> T:
    """The request; InvalidRequest names the field that is wrong."""
    key = (shape, media == JSON)
    decoder = _decoders.get(key)
    if decoder is None:
        module: Any = msgspec.json if media == JSON else msgspec.msgpack
        decoder = _decoders[key] = module.Decoder(shape)
    try:
        found: T = decoder.decode(content)
    except msgspec.ValidationError as error:
        raise _invalid(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not {'JSON in UTF-8' if media == JSON else 'msgpack'}: {error}", "body") from None
    return found


def convert(values: Mapping[str, Any], shape: type[T]) -> T:
    """The parameters of a query: texts, where numbers are wanted too."""
    try:
        return msgspec.convert(values, shape, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid(error) from None


_WHERE: Final = re.compile(r"^(?P<text>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_FIELD_OF: Final = re.compile(r"^Object (?:missing required|contains unknown) field `(?P<name>[^`]*)`")


def _invalid(error: msgspec.ValidationError) -> InvalidRequest:
    found = _WHERE.match(str(error))
    text, path = (found["text"], found["path"] or "") if found else (str(error), "")
    named = _FIELD_OF.match(text)
    if named is not None:
        path = f"{path}.{named['name']}".lstrip(".")
        text = "is missing" if "missing" in text else "there is no such field"
    field = path.replace("[...]", "")
    return InvalidRequest(f"{field or 'body'}: {text[0].lower()}{text[1:]}", field or "body")


# --- into the rooms below -------------------------------------------------------------------------------------------------
assert len(Message._fields) == 12  # see _message


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
         item.dedup_key, NO_PROPERTIES),
    )  # fmt: skip


def halves(stored: Sequence[tuple[str, int]]) -> HalvesOut:
    if type(stored) is Sealed:
        return HalvesOut(stored)  # type: ignore[arg-type]  # encoded by `_as_json` or `_as_msgpack`
    return HalvesOut([HalfOut(*half) for half in stored])


def ends(items: Sequence[EndIn]) -> list[EndRequest]:
    return [EndRequest(item.group, item.id, item.outcome, item.from_check, item.remark) for item in items]


def end_answers(answers: Sequence[EndAnswer]) -> EndsOut:
    return EndsOut([EndOut(answer.verdict, answer.reason, answer.state) for answer in answers])  # type: ignore[arg-type]


def check(request: CheckRequest, id: str) -> CheckOut:
    frame = request.frame
    return CheckOut(
        id=id,
        topic=frame.properties.get(REAL_TOPIC, ""),
        key=frame.properties.get(KEYS, ""),
        tags=frame.properties.get(TAGS, ""),
        body=frame.body,
        properties=shown_properties(frame.properties),
        attempt=request.attempt,
        born_at_ms=frame.fields["born_at_ms"],
        stored_at_ms=frame.stored_at_ms,
    )


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


def query_of(given: FilterIn) -> Query:
    return Query.of({name: getattr(given, name) for name in FilterIn.__struct_fields__})


def transactions(page: ListPage) -> TransactionsOut:
    return TransactionsOut(page.transactions, page.following, page.matched, page.following is None)


def action(given: ActionIn, who: str) -> Action:
    wanted = None if given.filter is None else query_of(given.filter)
    return Action(given.action, who, given.reason, given.ids, wanted, given.dry_run, given.expect)


def done(found: Done) -> ActionOut:
    return msgspec.convert(found, ActionOut, from_attributes=True)


def audits(found: Sequence[Audited], following: int | None) -> AuditsOut:
    return AuditsOut([msgspec.convert(each, AuditOut, from_attributes=True) for each in found], following)


def inspected(id: str, found: Inspected) -> InspectedOut:
    return InspectedOut(
        transaction(id, found.transaction), found.reason, found.tags, found.properties, found.body, found.body_bytes,
        found.immunity_s, found.outstanding,
    )  # fmt: skip


def ready(role: str, job: JobState) -> ReadyOut:
    return ReadyOut("ok", role, JobOut(job.state, job.halves_behind, job.ops_behind))  # type: ignore[arg-type]


def topics_removed(found: Removal, dry_run: bool) -> TopicsRemovedOut:
    kept = [TopicKeptOut(topic, reason) for topic, reason in islice(found.kept.items(), TOPICS_TOLD_MAX)]
    return TopicsRemovedOut(dry_run, len(found.removed), len(found.kept), found.removed[:TOPICS_TOLD_MAX], kept)
