"""What goes over the wire: the shapes of requests and answers, and what they become in the rooms below.

One declaration a shape (msgspec), from which follow the checks with the names of wrong fields, JSON and msgpack, and the schemas
of /openapi.json. docs/http-api.md explains them to people.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ingest.checks import CheckRequest
from ingest.core import EndAnswer, EndRequest, JobState
from ingest.deliveries import DeadLetter, Delivery, shown_properties
from ingest.errors import InvalidRequest, UnsupportedMedia
from ingest.history import Transaction
from store.frames import CHECK_IMMUNITY_TIME_IN_SECONDS, KEYS, NAME_MAX_BYTES, NO_HOST, REAL_TOPIC, TAGS, Message
from store.records import IMMUNITY_MAX_S, parse_immunity_s

PROPERTIES_MAX: Final = 256
TEXT_MAX_CHARACTERS: Final = 4096

T = TypeVar("T")
_NAME_PATTERN: Final = {"pattern": r"^[A-Za-z0-9_%|.\-]+$"}
Name = Annotated[str, Meta(min_length=1, max_length=NAME_MAX_BYTES, extra_json_schema=_NAME_PATTERN)]
Text = Annotated[str, Meta(max_length=TEXT_MAX_CHARACTERS)]
PropertyName = Annotated[str, Meta(min_length=1, max_length=TEXT_MAX_CHARACTERS)]
I63 = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Items = Annotated[list[T], Meta(min_length=1)]


# --- requests -------------------------------------------------------------------------------------------------------------
class MessageIn(Struct, forbid_unknown_fields=True):
    """A half, or an ordinary message. Give either `body` (base64; binary in msgpack) or `text`."""

    group: Name
    topic: Name
    body: bytes | UnsetType = UNSET
    text: str | UnsetType = UNSET
    key: Text = ""
    tags: Text = ""
    properties: Annotated[dict[PropertyName, str], Meta(max_length=PROPERTIES_MAX)] = {}
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


class ResumeIn(Struct, forbid_unknown_fields=True):
    ids: Items[Text]
    reason: Annotated[str, Meta(min_length=1, max_length=1024)]


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


class LiveOut(Struct):
    status: Literal["ok"]


class JobOut(Struct):
    """What the edge sees of the streaming job. `state`: absent (never started here), silent (no sign of life), running."""

    state: Literal["absent", "silent", "running"]
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
_json_encoder, _msgpack_encoder = msgspec.json.Encoder(), msgspec.msgpack.Encoder()
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
def messages(items: Sequence[MessageIn]) -> list[Message]:
    return [_message(item, number) for number, item in enumerate(items)]


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
    immunity_s = 0 if item.check_immunity_s is None else min(max(item.check_immunity_s, 0), IMMUNITY_MAX_S)
    if not immunity_s and CHECK_IMMUNITY_TIME_IN_SECONDS in properties:
        immunity_s = parse_immunity_s(properties[CHECK_IMMUNITY_TIME_IN_SECONDS])
    return Message(
        item.group, item.topic, body, properties, item.queue_id, item.born_at_ms, NO_HOST, 0, immunity_s, item.flag, item.dedup_key
    )


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


def ready(role: str, job: JobState) -> ReadyOut:
    return ReadyOut("ok", role, JobOut(job.state, job.halves_behind, job.ops_behind))  # type: ignore[arg-type]
