"""The short way of reading an op says what the long way says, or nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ingest.kafka.ended.table import CHUNK, Ends
from ingest.kafka.records.ops import read_op, read_sealed
from ingest.kafka.records.places import Place
from ingest.kafka.records.sealing import PlaceSealer
from sinks.kafka.contract import op_headers
from store.records import OpKind

OLD, NEW = b"o" * 32, b"n" * 32
SEALER = PlaceSealer([NEW, OLD], "halves")
PLACE = Place(3, 1027)


def message(headers: Any) -> Any:
    return SimpleNamespace(headers=lambda: headers, value=lambda: b"")


def written(kind: OpKind = OpKind.COMMIT, group: str = "orders", **more: Any) -> list[tuple[str, Any]]:
    return list(op_headers(kind, PLACE.half_offset, group, id=SEALER.seal(PLACE, group), **more))


@pytest.mark.parametrize("kind", [OpKind.COMMIT, OpKind.ROLLBACK])
@pytest.mark.parametrize("group", ["orders", "größe"])
def test_an_end_as_endpoints_write_it_is_read(kind: OpKind, group: str) -> None:
    said = message(written(kind, group))
    assert read_sealed(said, 3, SEALER) == (kind, 1027)
    op = read_op(said)
    assert op is not None
    assert (op.kind, op.half_offset, SEALER.is_good(op.id, PLACE, op.group or "")) == (kind, 1027, True)


def changed(number: int, value: Any, name: str = "") -> list[tuple[str, Any]]:
    headers = written()
    headers[number] = (name or headers[number][0], value)
    return headers


@pytest.mark.parametrize(
    "headers",
    [
        None, [], written()[:4], [*written(), ("more", b"")], written(remark="why"), written(OpKind.UNKNOWN), written()[::-1],
        changed(0, None), changed(0, b"commit"), changed(1, b"1028"), changed(1, b"01027"), changed(1, None), changed(1, b"x"),
        changed(2, b"other"), changed(2, None), changed(2, b""), changed(2, b"\xff"), changed(2, b"g" * 128),
        changed(3, b"operator"), changed(3, b"nobody"), changed(3, None), changed(4, None), changed(4, b"3-1027-" + b"A" * 22),
        changed(4, PlaceSealer([OLD], "halves").seal(PLACE, "orders").encode()), changed(2, b"orders", "escrow-groups"),
    ],
)  # fmt: skip
def test_anything_else_is_left_to_the_long_way(headers: Any) -> None:
    assert read_sealed(message(headers), 3, SEALER) is None


def test_an_op_in_another_partition_than_its_id_names_is_left_to_the_long_way() -> None:
    assert read_sealed(message(written()), 2, SEALER) is None


def test_the_first_end_is_noted_once_and_only_where_the_checkpoint_is_not_ahead() -> None:
    ends = Ends({0: bytes(CHUNK)})
    assert ends.first(7, 2)
    assert not ends.first(7, 3)
    assert (ends[7], ends.take(all_of_them=False)[0]) == (2, bytes([*[0] * 7, 2]) + bytes(CHUNK - 8))
    assert not Ends().first(7, 2), "no chunk yet: the long way makes it"
    assert not Ends({0: bytes(CHUNK)}, {0: 100}).first(7, 2)
