"""The words of docs/kafka.md as code: topics, headers, places. The endpoint, the job and its tasks use the same ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from store.naming import NAME_MAX_BYTES
from store.records import OpKind, Via

#: Headers that begin with it are Escrow's; a released message has none of them but TRANSACTION_ID.
OURS: Final = "escrow-"
# of a half
GROUP: Final = "escrow-group"
TOPIC: Final = "escrow-topic"
PARTITION: Final = "escrow-partition"
BORN_TIME: Final = "escrow-born-time"
IMMUNITY: Final = "escrow-immunity"
# of an op
OP: Final = "escrow-op"
HALF_OFFSET: Final = "escrow-half-offset"
VIA: Final = "escrow-via"
REMARK: Final = "escrow-remark"
# of what the job writes
TRANSACTION_ID: Final = "escrow-transaction-id"
HALF_PARTITION: Final = "escrow-half-partition"
KEY: Final = "escrow-key"
CHECK_COUNT: Final = "escrow-check-count"
REASON: Final = "escrow-reason"
BODY: Final = "escrow-body"
#: What BODY says of a check request that has neither body nor headers of its half.
IN_HALF_TOPIC: Final = b"in-half-topic"
#: The half's own headers that such a request has.
TOLD_OF_A_HALF: Final = frozenset({GROUP, TOPIC, BORN_TIME})
REDO: Final = "escrow-redo"

#: Of a producer group's name, as everywhere in Escrow: what is longer is no group.
GROUP_MAX_BYTES: Final = NAME_MAX_BYTES
#: Of a number in a header.
DIGITS_MAX: Final = 18
#: Halves in an ASKED op: half of Kafka's default record size.
ASKED_PER_RECORD: Final = 65_536
#: What an op record may say, by its word.
OP_KINDS: Final[Mapping[str, OpKind]] = {kind.name: kind for kind in OpKind if kind is not OpKind.MESSAGE}
VIAS: Final[Mapping[str, Via]] = {via.name.lower(): via for via in Via}

#: What Java makes of a header's name that is not UTF-8.
NOT_UTF8: Final = "\N{REPLACEMENT CHARACTER}"
_TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")

Headers = list[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Topics:
    """Names of Escrow's own topics."""

    half: str
    op: str
    redo: str
    check: str
    discard: str
    lease: str
    ends: str
    keys: str


def is_topic_name(name: str) -> bool:
    """Whether Kafka could have a topic of this name: its clients raise, or never answer, where it could not."""
    return _TOPIC_NAME.fullmatch(name) is not None and name not in (".", "..")


def place_of(partition: int, half_offset: int) -> str:
    """How a transaction is called where no right comes with the name: "3-1027"."""
    return f"{partition}-{half_offset}"


def half_headers(
    group: str, topic: str, *, partition: int | None = None, born_at_ms: int | None = None, immunity: str | None = None
) -> Headers:
    """Headers that make a message a half."""
    given = {GROUP: group, TOPIC: topic, PARTITION: partition, BORN_TIME: born_at_ms, IMMUNITY: immunity}
    return [(name, str(value).encode()) for name, value in given.items() if value is not None]


def op_headers(
    kind: OpKind, half_offset: int | None, group: str | None, *, via: Via = Via.PRODUCER, remark: str = "", id: str = ""
) -> Headers:
    """Headers of an op record; it goes to the partition of its half."""
    given = {
        OP: kind.name,
        HALF_OFFSET: half_offset,
        GROUP: group,
        VIA: via.name.lower(),
        REMARK: remark or None,
        TRANSACTION_ID: id or None,
    }
    return [(name, str(value).encode()) for name, value in given.items() if value is not None]


def headers_of(message: Any) -> list[tuple[str, bytes | None]]:
    """Headers of a message that confluent-kafka read; its own type is wider."""
    return cast("list[tuple[str, bytes | None]]", message.headers() or [])


def first_header(headers: Iterable[tuple[str, bytes | None]], name: str) -> bytes | None:
    """The value of the first header of that name."""
    return next((value for key, value in headers if key == name), None)


# --- what a header says: the only reading of it, for the endpoint as for the job -------------------------------------------------
# None: the record has no such header. A header whose value is null has an empty value, as in Kafka's own Java client.
def text_of(value: bytes | None) -> str:
    """ "" where there is none, or it is not UTF-8."""
    try:
        return (value or b"").decode()
    except UnicodeDecodeError:
        return ""


def group_of(value: bytes | None) -> str | None:
    """A producer group; None where none is stated, "" where what is stated is none."""
    if value is None:
        return None
    return text_of(value) if len(value) <= GROUP_MAX_BYTES else ""


def op_kind_of(value: bytes | None) -> OpKind | None:
    return OP_KINDS.get(text_of(value))


def via_of(value: bytes | None) -> Via | None:
    """Who says it; a producer need not say."""
    return VIAS.get(text_of(value)) if value else Via.PRODUCER


def half_offset_of(value: bytes | None) -> int:
    """-1 where it is no whole number. (The job reads whole columns: `kafka_records._Headers.numbers` says the same.)"""
    return int(value) if value and value.isdigit() and len(value) <= DIGITS_MAX else -1


def number_of(value: bytes | None, otherwise: int) -> int:
    """A whole number; `otherwise` where the header is missing or is none."""
    return int(value) if value is not None and value.isdigit() and len(value) <= DIGITS_MAX else otherwise


def topic_of(value: bytes | None) -> str:
    """A real topic; what is not UTF-8 is replaced, so that an error can name it."""
    return (value or b"").decode("utf-8", "replace")


def owner_of(headers: Mapping[str, bytes]) -> str:
    """The producer group of a half by its headers; "" where the half is quarantined: nobody's op counts for it."""
    return (group_of(headers.get(GROUP)) or "") if text_of(headers.get(TOPIC)) else ""
