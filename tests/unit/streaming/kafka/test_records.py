"""From Kafka's records to columns, without Spark: what each header means, and what is made of records that fit nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingest.kafka.records.ops import headers_of, read_op
from ingest.kafka.records.places import HALF_OFFSET_MAX
from sinks.kafka import contract
from store.records import HALF, OP, OpKind, Via
from store.tables.state_table import StateTable
from streaming.kafka.reading.feeds import RELEASE_BYTES_MAX, pieces_of
from streaming.kafka.reading.records import Kind, Piece, _unpacked, joined, pack
from streaming.settlement.settle import Feed

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
GOOD = [("escrow-group", b"orders"), ("escrow-topic", b"paid")]


def packed(records: list[dict[str, Any]]) -> dict[tuple[int, int], Piece]:
    """Records as Spark would hand them to `pack`; what came out, by kind and partition."""
    filled = [
        {"is_op": False, "partition": 0, "stored_at_ms": 5_999, "size_bytes": 7, "value": None, "headers": None} | r
        for r in records
    ]
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([r["is_op"] for r in filled], pa.bool_()),
            pa.array([r["partition"] for r in filled], pa.int32()),
            pa.array([r["offset"] for r in filled], pa.int64()),
            pa.array([r["stored_at_ms"] for r in filled], pa.int64()),
            pa.array([r["size_bytes"] for r in filled], pa.int32()),
            pa.array([r["headers"] and [{"key": k, "value": v} for k, v in r["headers"]] for r in filled], HEADERS),
            pa.array([r["value"] for r in filled], pa.binary()),
        ],
        names=["is_op", "partition", "offset", "stored_at_ms", "size_bytes", "headers", "value"],
    )
    import json

    found = {}
    for out in pack([batch]):
        (row,) = out.to_pylist()
        dtype = HALF if row["kind"] == Kind.HALVES else OP
        found[row["kind"], row["partition"]] = Piece(json.loads(row["names"]), _unpacked(row["payload"], dtype))
    return found


def op(offset: int, *headers: tuple[str, bytes], value: bytes | None = b"", **more: Any) -> dict[str, Any]:
    return {"is_op": True, "offset": offset, "headers": list(headers), "value": value, **more}


def test_a_half_keeps_offset_size_time_group_and_immunity():
    (piece,) = packed([{"offset": 41, "headers": [*GOOD, ("escrow-immunity", b"30"), ("trace", b"x")]}]).values()
    (half,) = piece.records
    assert piece.names == ["orders"]
    assert (half["half_offset"], half["size_bytes"], half["stored_at_s"], half["immunity_s"]) == (41, 7, 5, 30)
    assert (half["group_no"], half["corrupt"]) == (0, 0)


@pytest.mark.parametrize(
    "headers",
    [
        None,
        [],
        GOOD[:1],
        GOOD[1:],
        [("escrow-group", b""), GOOD[1]],
        [("escrow-group", b"\xff"), GOOD[1]],
        [("escrow-group", b"x" * 128), GOOD[1]],
        [*GOOD, ("\N{REPLACEMENT CHARACTER}", b"1")],
        [("escrow-group", None), GOOD[1]],
    ],
)
def test_a_half_that_names_no_group_or_no_topic_is_quarantined(headers):
    (piece,) = packed([{"offset": 0, "headers": GOOD}, {"offset": 1, "headers": headers}]).values()
    assert piece.records["corrupt"].tolist() == [0, 1]
    assert piece.names == ["orders"]


def test_a_group_may_be_as_long_as_anywhere_in_escrow():
    (piece,) = packed([{"offset": 0, "headers": [("escrow-group", b"x" * 127), GOOD[1]]}]).values()
    assert (piece.names, piece.records["corrupt"].tolist()) == (["x" * 127], [0])


def test_the_first_of_two_headers_of_one_name_counts():
    (piece,) = packed([{"offset": 0, "headers": [*GOOD, ("escrow-group", b"other")]}]).values()
    assert piece.names[piece.records["group_no"][0]] == "orders"


def test_an_op_says_what_about_which_half_and_who_says_it():
    made = [
        op(3, *contract.op_headers(OpKind.COMMIT, 17, "orders")),
        op(4, *contract.op_headers(OpKind.ROLLBACK, 18, "orders", via=Via.CHECK)),
        op(5, *contract.op_headers(OpKind.RESUME, 19, None, via=Via.OPERATOR)),
    ]
    (piece,) = packed(made).values()
    ops = piece.records
    assert ops["kind"].tolist() == [OpKind.COMMIT, OpKind.ROLLBACK, OpKind.RESUME]
    assert ops["half_offset"].tolist() == [17, 18, 19]
    assert ops["via"].tolist() == [Via.PRODUCER, Via.CHECK, Via.OPERATOR]
    assert ops["group_no"].tolist() == [0, 0, -1]
    assert not ops["corrupt"].any()


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("escrow-op", b"COMMIT")],
        [("escrow-op", b"COMMIT"), ("escrow-half-offset", b"-1")],
        [("escrow-op", b"COMMIT"), ("escrow-half-offset", b"1e3")],
        [("escrow-op", b"COMMIT"), ("escrow-half-offset", b"9" * 40)],
        [("escrow-op", b"commit"), ("escrow-half-offset", b"1")],
        [("escrow-op", b"MESSAGE"), ("escrow-half-offset", b"1")],
        [("escrow-op", b"COMMIT"), ("escrow-half-offset", b"1"), ("escrow-group", b"\xff\xfe")],
        [("escrow-op", b"ASKED")],
    ],
)
def test_an_op_that_fits_nothing_keeps_its_offset_and_counts_for_nothing_52(headers):
    (piece,) = packed([op(9, *headers)]).values()
    assert (piece.records["op_offset"].tolist(), piece.records["corrupt"].tolist()) == ([9], [1])


def test_an_asked_record_is_an_op_for_each_of_its_halves():
    value = np.array([5, 7, 1 << 40], "<i8").tobytes()
    (piece,) = packed(
        [op(1, *contract.op_headers(OpKind.ASKED, None, None), value=value), op(2, *contract.op_headers(OpKind.COMMIT, 5, "g"))]
    ).values()
    assert piece.records["half_offset"].tolist() == [5, 7, 1 << 40, 5]
    assert piece.records["op_offset"].tolist() == [1, 1, 1, 2]


def test_pieces_are_put_in_order_with_the_shards_own_group_numbers():
    pieces = [
        packed([{"offset": 10, "headers": [("escrow-group", b"BB"), GOOD[1]]}])[Kind.HALVES, 0],
        packed([{"offset": 4, "headers": GOOD}, {"offset": 6, "headers": [("escrow-group", b"Aa"), GOOD[1]]}])[Kind.HALVES, 0],
    ]
    numbers = {"orders": 0, "Aa": 1, "BB": 2}
    halves = joined(pieces, numbers.__getitem__, HALF, "half_offset")
    assert halves["half_offset"].tolist() == [4, 6, 10]
    assert halves["group_no"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", [OpKind.COMMIT, OpKind.DISCARD_MAX, OpKind.DISCARD_EXPIRED])
def test_a_feed_is_cut_where_a_transaction_would_grow_too_large_and_never_within_a_record(tmp_path, kind):
    size = RELEASE_BYTES_MAX // 2 + 1
    halves, ops = np.zeros(5, HALF), np.zeros(6, OP)
    halves["half_offset"], halves["size_bytes"] = range(5), size
    ops["op_offset"], ops["half_offset"], ops["kind"] = [0, 1, 2, 2, 3, 4], [0, 1, 2, 3, 4, 4], kind
    pieces = list(pieces_of(Feed(0, 5, 0, 5, halves, ops), StateTable(tmp_path, 64)))
    assert [(piece.op_start, piece.op_stop) for piece in pieces] == [(0, 2), (2, 3), (3, 5)]
    assert np.concatenate([piece.ops["op_offset"] for piece in pieces]).tolist() == ops["op_offset"].tolist()
    assert [len(piece.halves) for piece in pieces] == [5, 0, 0]
    assert [(piece.half_start, piece.half_stop) for piece in pieces] == [(0, 5), (5, 5), (5, 5)]


@pytest.mark.parametrize(("share", "counts"), [(0.0, [100]), (0.5, [100]), (1.09, [100]), (1.2, [50, 50]), (2.5, [34, 33, 33])])
def test_pieces_of_a_feed_are_alike_and_a_little_too_much_makes_no_further_one(tmp_path, share, counts):
    halves, ops = np.zeros(100, HALF), np.zeros(100, OP)
    halves["half_offset"], halves["size_bytes"] = range(100), int(share * RELEASE_BYTES_MAX / 100)
    ops["op_offset"], ops["half_offset"], ops["kind"] = range(100), range(100), OpKind.COMMIT
    pieces = list(pieces_of(Feed(0, 100, 0, 100, halves, ops), StateTable(tmp_path, 128)))
    assert [len(piece.ops) for piece in pieces] == counts
    assert np.concatenate([piece.ops["op_offset"] for piece in pieces]).tolist() == list(range(100))


@pytest.mark.parametrize(
    ("headers", "corrupt"),
    [
        ([("escrow-via", b"operator")], False),
        ([("escrow-via", None)], False),
        ([], False),
        ([("escrow-via", b"sdk")], True),
        ([("tr\N{REPLACEMENT CHARACTER}ce", b"x")], True),
    ],
)
def test_an_op_counts_for_the_job_where_it_counts_for_the_endpoint(headers, corrupt):
    """A word that nobody knows, or a header name that is not UTF-8, and it counts for neither."""
    given = [("escrow-op", b"COMMIT"), ("escrow-half-offset", b"7"), *headers]
    (piece,) = packed([op(0, *given)]).values()
    assert bool(piece.records["corrupt"][0]) is corrupt
    assert (read_op(SimpleNamespace(headers=lambda: given, value=lambda: b"")) is None) is corrupt


WORDS = [
    "",
    "COMMIT",
    "ROLLBACK",
    "RESUME",
    "check",
    "sdk",
    "orders",
    "0",
    "7",
    "007",
    "0" * 17 + "7",
    "0" * 18 + "7",
    "9" * 18,
    "-7",
]
VALUES = st.one_of(
    st.none(), st.sampled_from([word.encode() for word in WORDS]), st.binary(max_size=3), st.just(b"x" * 127), st.just(b"x" * 128)
)
NAMES = st.sampled_from(
    ["escrow-op", "escrow-half-offset", "escrow-group", "escrow-via", "escrow-topic", "tr\N{REPLACEMENT CHARACTER}ce"]
)
PRESENT = [("escrow-op", b"COMMIT"), ("escrow-half-offset", b"7")]


@given(st.lists(st.tuples(NAMES, VALUES), max_size=5), st.booleans())
@example([("escrow-group", None)], True)
@example([("escrow-half-offset", b"0" * 17 + b"7"), ("escrow-op", b"COMMIT")], False)
def test_whatever_the_headers_are_job_and_endpoint_read_the_same(headers: list[Any], present: bool) -> None:
    given = [*headers, *(PRESENT if present else [])]
    message = SimpleNamespace(headers=lambda: given, value=lambda: b"")
    (piece,) = packed([op(0, *given)]).values()
    (mine,) = piece.records
    theirs = read_op(message)
    if mine["corrupt"] or mine["half_offset"] > HALF_OFFSET_MAX:
        assert theirs is None
    else:
        assert theirs is not None
        group = None if mine["group_no"] < 0 else piece.names[mine["group_no"]]
        assert (theirs.kind, theirs.half_offset, theirs.via, theirs.group) == (
            mine["kind"],
            mine["half_offset"],
            mine["via"],
            group,
        )
    (piece,) = packed([{"offset": 0, "headers": given}]).values()
    (half,) = piece.records
    assert contract.owner_of(headers_of(message)) == ("" if half["corrupt"] else piece.names[half["group_no"]])
