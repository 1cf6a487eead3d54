"""One op record, read. Whatever stands in it, reading raises nothing: what does not fit docs/kafka.md counts for nothing."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from ingest.kafka.places import HALF_OFFSET_MAX
from sinks.kafka.contract import GROUP, HALF_OFFSET, NOT_UTF8, OP, OP_KINDS, REMARK, TRANSACTION_ID, VIA, VIAS
from store.records import OpKind, Via

#: Half offsets in the value of an ASKED.
_ASKED_BYTES: Final = 8
_DECIMAL: Final = re.compile(rb"[0-9]{1,15}", re.ASCII)


class Op(NamedTuple):
    """`half_offset` is -1 and `asked` has halves for an ASKED. `group` None: the op does not state one."""

    kind: OpKind
    half_offset: int
    group: str | None
    via: Via
    remark: str
    id: str
    asked: tuple[int, ...] = ()


def read_op(message: Any) -> Op | None:
    """What a record says; None where it does not fit the table of docs/kafka.md."""
    headers = headers_of(message)
    kind = OP_KINDS.get(_text(headers.get(OP)))
    via = VIAS.get(_text(headers.get(VIA)) or "producer")
    if kind is None or via is None:
        return None
    group = _text(headers[GROUP]) if GROUP in headers else None
    rest = (group, via, _text(headers.get(REMARK)), _text(headers.get(TRANSACTION_ID)))
    if kind is OpKind.ASKED:
        return Op(kind, -1, *rest, asked_in(message.value() or b""))
    half_offset = headers.get(HALF_OFFSET) or b""
    if not _DECIMAL.fullmatch(half_offset) or int(half_offset) > HALF_OFFSET_MAX:
        return None
    return Op(kind, int(half_offset), *rest)


def asked_in(value: bytes) -> tuple[int, ...]:
    """The half offsets that an ASKED names."""
    whole = len(value) // _ASKED_BYTES * _ASKED_BYTES
    return tuple(int.from_bytes(value[at : at + _ASKED_BYTES], "little", signed=True) for at in range(0, whole, _ASKED_BYTES))


def headers_of(message: Any) -> dict[str, bytes]:
    """The first header of each name; none where a name is no text."""
    try:
        found = message.headers() or []
    except UnicodeDecodeError:
        return {}
    if any(NOT_UTF8 in name for name, _ in found):  # what the job takes it for
        return {}
    return {name: value or b"" for name, value in reversed(found)}


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")
