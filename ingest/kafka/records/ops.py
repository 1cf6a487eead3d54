"""One op record, read. Whatever stands in it, reading raises nothing: what does not fit docs/kafka.md counts for nothing."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from ingest.kafka.records.places import HALF_OFFSET_MAX
from ingest.kafka.records.sealing import PlaceSealer
from sinks.kafka.contract import (
    GROUP,
    HALF_OFFSET,
    NOT_UTF8,
    OP,
    REMARK,
    TRANSACTION_ID,
    VIA,
    group_of,
    half_offset_of,
    op_kind_of,
    via_of,
)
from store.records import OpKind, Via

#: Of an end that an endpoint writes (`contract.op_headers`, without a remark): how many headers, and what they may say.
_SEALED_HEADERS: Final = 5
_SEALED_KINDS: Final = {kind.name.encode(): kind for kind in (OpKind.COMMIT, OpKind.ROLLBACK)}
_SEALED_VIAS: Final = frozenset({b"producer", b"check"})
#: Half offsets in the value of an ASKED.
_ASKED_BYTES: Final = 8


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
    kind, via, group = op_kind_of(headers.get(OP)), via_of(headers.get(VIA)), group_of(headers.get(GROUP))
    if kind is None or via is None or group == "":
        return None
    rest = (group, via, _text(headers.get(REMARK)), _text(headers.get(TRANSACTION_ID)))
    if kind is OpKind.ASKED:
        return Op(kind, -1, *rest, asked_in(message.value() or b""))
    half_offset = half_offset_of(headers.get(HALF_OFFSET))
    return Op(kind, half_offset, *rest) if 0 <= half_offset <= HALF_OFFSET_MAX else None


def read_sealed(message: Any, partition: int, sealer: PlaceSealer) -> tuple[OpKind, int] | None:
    """(kind, half_offset) of an end as endpoints write it, with a good seal: it counts, and no half need be looked up. None: it may
    be anything, `read_op` tells. Most ops are other endpoints' ends: this costs half of reading them the long way."""
    try:
        headers = message.headers()
        if headers is None or len(headers) != _SEALED_HEADERS:
            return None
        (op, kind), (at, half_offset), (by, group), (through, via), (named, id) = headers
        stated = group_of(group)
    except UnicodeDecodeError:  # a name is no text
        return None
    known = _SEALED_KINDS.get(kind)
    if known is None or via not in _SEALED_VIAS or not (half_offset and stated and id):
        return None
    if op != OP or at != HALF_OFFSET or by != GROUP or through != VIA or named != TRANSACTION_ID:
        return None
    return (known, int(half_offset)) if sealer.seals(id, b"%d-%b" % (partition, half_offset), group) else None


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
