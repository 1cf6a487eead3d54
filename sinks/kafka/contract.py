"""The words of docs/kafka.md as code: topics, headers, places. The endpoint, the job and its tasks use the same ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from store.frames import NAME_MAX_BYTES
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
REDO: Final = "escrow-redo"

#: Of a producer group's name, as everywhere in Escrow: what is longer is no group.
GROUP_MAX_BYTES: Final = NAME_MAX_BYTES
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
