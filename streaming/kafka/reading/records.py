"""Kafka's records as columns of metadata: made on the executors, where the bodies stay, and put together on the driver.

`read_stream` is Spark's own Kafka source over half and op topic. `pack` runs on the executors; each of its rows holds the halves or
the ops of one partition in one piece of the source's output:

    kind        HALVES or OPS
    partition   of the shard
    names       JSON list: producer groups that the records use; their group_no is a place in it (-1 = none stated)
    payload     records.HALF or records.OP, their bytes transposed (all first bytes, all second bytes, …), then zlib

A record that is not what docs/kafka.md asks for is `corrupt`: it keeps its offset and counts for nothing.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from sinks.kafka import contract
from sinks.kafka.contract import ASKED_PER_RECORD
from sinks.kafka.gc_pause import no_collector
from store.arrays import Array, Ints
from store.records import HALF, OP, OpKind, parse_immunity_s

SCHEMA: Final = "kind tinyint, partition int, names binary, payload binary"
ARROW: Final = pa.schema([("kind", pa.int8()), ("partition", pa.int32()), ("names", pa.binary()), ("payload", pa.binary())])
#: Spark's source asks for a partition's bounds after every poll, and then what its client has fetched beyond the poll is thrown
#: away. With Kafka's default, 500 records a poll, small records are fetched several times: a poll should take all of a fetch,
#: which is 1 MiB. More of it is more memory for every partition.
#: At the end of a partition the client asks ahead for records that are not there yet, and what Spark asks next waits behind that
#: for as long as the broker does: half a second by default, for each partition.
POLL: Final = {"kafka.isolation.level": "read_committed", "kafka.max.poll.records": "10000", "kafka.fetch.max.wait.ms": "10"}

#: Of one record's headers, each counted with its name and HEADER_COST_BYTES. Where they weigh more, only
#: what is read of them goes to Python, and of that no value longer than VALUE_MAX_BYTES.
HEADERS_MAX_BYTES: Final = 4 << 10
HEADER_COST_BYTES: Final = 8
#: No word, number or name that Escrow takes is longer.
VALUE_MAX_BYTES: Final = 255
#: What is read of halves and ops.
READ: Final = (contract.GROUP, contract.TOPIC, contract.IMMUNITY, contract.OP, contract.HALF_OFFSET, contract.VIA)
#: Of the value of an ASKED: as many offsets as the job puts into one.
ASKED_MAX_BYTES: Final = 8 * ASKED_PER_RECORD

#: topic → partition → offset
Offsets = Mapping[str, Mapping[int, int]]


class Kind(IntEnum):
    HALVES = 1
    OPS = 2


def read_stream(
    spark: SparkSession, java: Mapping[str, str], topics: contract.Topics, start: Offsets, records_max: int
) -> DataFrame:
    """Half and op topic from these offsets on, as packed rows."""
    source = spark.readStream.format("kafka").options(
        **_options(java),
        subscribe=f"{topics.half},{topics.op}",
        startingOffsets=_offsets(start),
        maxOffsetsPerTrigger=str(2 * records_max),
    )
    return _columns(spark, source.load(), topics)


def read_ops(
    spark: SparkSession, java: Mapping[str, str], topics: contract.Topics, partition: int, offsets: tuple[int, int]
) -> DataFrame:
    """Ops of one partition once more, from one offset up to another, as packed rows."""
    start, stop = offsets
    source = spark.read.format("kafka").options(
        **_options(java),
        assign=json.dumps({topics.op: [partition]}),
        startingOffsets=_offsets({topics.op: {partition: start}}),
        endingOffsets=_offsets({topics.op: {partition: stop}}),
    )
    return _columns(spark, source.load(), topics)


def _options(java: Mapping[str, str]) -> dict[str, str]:
    return {**{f"kafka.{name}": value for name, value in java.items()}, **POLL, "includeHeaders": "true", "failOnDataLoss": "true"}


def _offsets(places: Offsets) -> str:
    return json.dumps({topic: {str(partition): at for partition, at in offsets.items()} for topic, offsets in places.items()})


def _columns(spark: SparkSession, records: DataFrame, topics: contract.Topics) -> DataFrame:
    """Without the halves' bodies, packed."""
    # One task a core: a small batch should not pay for a task a partition.
    return columns_of(records, topics).coalesce(spark.sparkContext.defaultParallelism).mapInArrow(pack, SCHEMA)


def columns_of(records: DataFrame, topics: contract.Topics) -> DataFrame:
    """What `pack` takes. On their way to Python rows are counted, not weighed: so no row has more than
    HEADERS_MAX_BYTES of headers, whatever a client put into them. `size_bytes` is what a release has to carry:
    key, value and headers. (It reads them from the half topic again, whole.)"""
    is_op, headers = F.col("topic") == topics.op, F.col("headers")
    is_asked = is_op & F.array_contains(headers["value"], OpKind.ASKED.name.encode())
    # Joined, because that is compiled; a loop over the headers is not.
    texts = F.octet_length(F.concat_ws("", headers["key"], headers["value"].cast("array<string>")))
    header_bytes = texts + HEADER_COST_BYTES * F.coalesce(F.size(headers), F.lit(0))
    return records.select(
        is_op.alias("is_op"),
        "partition",
        "offset",
        F.unix_millis("timestamp").alias("stored_at_ms"),
        (F.coalesce(F.length("value"), F.lit(0)) + F.coalesce(F.length("key"), F.lit(0)) + header_bytes).alias("size_bytes"),
        F.when(header_bytes > HEADERS_MAX_BYTES, _needed(headers)).otherwise(headers).alias("headers"),
        F.when(is_asked & (F.length("value") <= ASKED_MAX_BYTES), F.col("value")).alias("value"),
    )


def _needed(headers: Column) -> Column:
    """Of very large headers: the first of each name that is read, and whether a name was not UTF-8."""
    bad = F.when(F.concat_ws("", headers["key"]).contains(contract.NOT_UTF8), _header(contract.NOT_UTF8, F.lit(b"")))
    return F.array_compact(F.array(*(_first(headers, name) for name in READ), bad))


def _first(headers: Column, name: str) -> Column:
    at = F.array_position(headers["key"], name)
    return F.when(at > 0, _header(name, _short(F.get(headers["value"], (at - 1).cast("int")))))


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.alias("value"))


def _short(value: Column) -> Column:
    """A value that is too long to mean anything: what is left of it is that it is too long, and whether it is UTF-8."""
    size = VALUE_MAX_BYTES + 1
    stand_in = F.when(F.is_valid_utf8(value.cast("string")), F.lit(b"x" * size)).otherwise(F.lit(b"\xff" * size))
    return F.when(F.length(value) > VALUE_MAX_BYTES, stand_in).otherwise(value)


# --- on the executors -----------------------------------------------------------------------------------------------------------
def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Spark's rows as packed rows."""
    with no_collector():
        for batch in batches:
            if batch.num_rows:
                yield from _pack_batch(batch)


def _pack_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Spark reads one partition after another: what belongs together is in one piece, or few."""
    is_op = batch.column("is_op").to_numpy(zero_copy_only=False)
    partitions = batch.column("partition").to_numpy(zero_copy_only=False)
    starts = np.flatnonzero((np.diff(partitions) != 0) | (is_op[1:] != is_op[:-1])) + 1
    for start, stop in pairwise([0, *starts.tolist(), batch.num_rows]):
        kind, rows = Kind.OPS if is_op[start] else Kind.HALVES, batch.slice(start, stop - start)
        names, records = _halves(rows) if kind is Kind.HALVES else _ops(rows)
        row = [[int(kind)], [int(partitions[start])], [json.dumps(names).encode()], [_packed(records)]]
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(row, ARROW, strict=True)], schema=ARROW
        )


def _packed(records: Array) -> bytes:
    return zlib.compress(np.ascontiguousarray(records).view(np.uint8).reshape(len(records), -1).T.tobytes(), 1)


class _Headers:
    """Headers of many records: the first of each name, as a column."""

    def __init__(self, column: pa.ListArray) -> None:
        self._count = len(column)
        flat = column.flatten()
        coded = flat.field("key").dictionary_encode()
        self._names, self._coded = coded.dictionary.to_pylist(), coded.indices.to_numpy(zero_copy_only=False)
        self._values = pc.fill_null(flat.field("value"), b"")  # a value that is null is there, and empty
        self._parents = np.repeat(np.arange(len(column)), pc.fill_null(pc.list_value_length(column), 0).to_numpy())

    def column(self, name: str) -> pa.Array:
        """Binary, null where a record has no such header."""
        hits = np.flatnonzero(self._coded == self._names.index(name)) if name in self._names else np.empty(0, np.int64)
        at = np.full(self._count, -1, np.int64)
        at[self._parents[hits][::-1]] = hits[::-1]  # the last write stays: the first header
        return self._values.take(pa.array(at, mask=at < 0))

    def unreadable(self) -> Array:
        """Which records have a header whose name is not UTF-8 (Java has put its sign for that): the release's client reads none of
        their headers."""
        found = np.zeros(self._count, np.bool_)
        bad = [number for number, name in enumerate(self._names) if contract.NOT_UTF8 in name]
        if bad:
            found[self._parents[np.isin(self._coded, bad)]] = True
        return found

    def mapped(self, name: str, to: Callable[[bytes | None], Any], dtype: Any) -> Array:
        """What each value means; asked once for each distinct one."""
        coded = self.column(name).dictionary_encode()
        meanings = [to(value) for value in coded.dictionary.to_pylist()] + [to(None)]
        indices = pc.fill_null(coded.indices, len(meanings) - 1).to_numpy(zero_copy_only=False)
        found: Array = np.array(meanings, dtype)[indices]
        return found

    def numbers(self, name: str) -> Ints:
        """Whole numbers, -1 where there is none."""
        texts = self.column(name).cast(pa.string(), safe=False)
        good = pc.and_kleene(pc.ascii_is_decimal(texts), pc.less_equal(pc.binary_length(texts), contract.DIGITS_MAX))
        numbers = pc.if_else(good, texts, None).cast(pa.int64())
        found: Ints = pc.fill_null(numbers, -1).to_numpy(zero_copy_only=False)
        return found

    def groups(self) -> tuple[list[str], Ints]:
        """(names, place in them for each record): -1 where none is stated, -2 where it cannot be read or is too long."""
        coded = self.column(contract.GROUP).dictionary_encode()
        names: list[str] = []
        places = []
        for value in coded.dictionary.to_pylist():
            name = contract.group_of(value)
            places.append(len(names) if name else -2)
            names += [name] if name else []
        indices = pc.fill_null(coded.indices, len(places)).to_numpy(zero_copy_only=False)
        return names, np.array([*places, -1], np.int64)[indices]


def _halves(rows: pa.RecordBatch) -> tuple[list[str], Array]:
    headers = _Headers(rows.column("headers"))
    names, groups = headers.groups()
    halves = np.zeros(rows.num_rows, HALF)
    halves["half_offset"] = halves["commit_log_offset"] = rows.column("offset").to_numpy()
    halves["size_bytes"] = rows.column("size_bytes").to_numpy()
    halves["stored_at_s"] = rows.column("stored_at_ms").to_numpy() // 1000
    halves["group_no"] = groups
    halves["immunity_s"] = headers.mapped(contract.IMMUNITY, _immunity, np.uint32)
    has_topic = headers.mapped(contract.TOPIC, lambda value: bool(contract.text_of(value)), np.bool_)
    halves["corrupt"] = (groups < 0) | ~has_topic | headers.unreadable()
    halves["group_no"][halves["corrupt"] != 0] = -1
    return names, halves


def _immunity(value: bytes | None) -> int:
    return parse_immunity_s(None if value is None or len(value) > VALUE_MAX_BYTES else value.decode("utf-8", "replace"))


def _ops(rows: pa.RecordBatch) -> tuple[list[str], Array]:
    headers = _Headers(rows.column("headers"))
    names, groups = headers.groups()
    ops = np.zeros(rows.num_rows, OP)
    ops["op_offset"], ops["position"] = rows.column("offset").to_numpy(), -1
    ops["stored_at_ms"], ops["size_bytes"] = rows.column("stored_at_ms").to_numpy(), rows.column("size_bytes").to_numpy()
    ops["kind"] = headers.mapped(contract.OP, _op_kind, np.uint8)
    via = headers.mapped(contract.VIA, _via, np.int16)
    ops["via"] = np.maximum(via, 0)
    ops["half_offset"], ops["group_no"] = headers.numbers(contract.HALF_OFFSET), groups
    asked = ops["kind"] == int(OpKind.ASKED)
    illegal = (ops["kind"] == 0) | (via < 0) | (groups == -2) | headers.unreadable()
    ops["corrupt"] = illegal | (~asked & (ops["half_offset"] < 0))
    return names, _spread_asked(ops, asked, rows.column("value"))


def _op_kind(value: bytes | None) -> int:
    kind = contract.op_kind_of(value)
    return 0 if kind is None else int(kind)


def _via(value: bytes | None) -> int:
    """-1 where it is none that is known."""
    via = contract.via_of(value)
    return -1 if via is None else int(via)


def _spread_asked(ops: Array, asked: Any, values: pa.Array) -> Array:
    """An ASKED record of n halves becomes n ops."""
    parts, done = [], 0
    for at in np.flatnonzero(asked).tolist():
        value = values[at].as_py() or b""
        parts.append(ops[done:at])
        many = np.repeat(ops[at : at + 1], max(1, len(value) // 8))
        if not value or len(value) % 8:
            many["corrupt"] = 1
        else:
            many["half_offset"] = np.frombuffer(value, "<i8")
        parts.append(many)
        done = at + 1
    return np.concatenate([*parts, ops[done:]])


# --- on the driver ----------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Piece:
    """Records of one shard; group_no is a place in `names`."""

    names: list[str]
    records: Array

    def since(self, place: str, offset: int) -> Piece:
        return Piece(self.names, self.records[self.records[place] >= offset])

    def before(self, place: str, offset: int) -> Piece:
        return Piece(self.names, self.records[self.records[place] < offset])


def collect(rows: DataFrame) -> tuple[dict[int, list[Piece]], dict[int, list[Piece]]]:
    """(halves, ops) by partition."""
    table = rows.toArrow()
    found: dict[int, dict[int, list[Piece]]] = {Kind.HALVES: defaultdict(list), Kind.OPS: defaultdict(list)}
    for row in table.to_pylist():
        dtype = HALF if row["kind"] == Kind.HALVES else OP
        found[row["kind"]][row["partition"]].append(Piece(json.loads(row["names"]), _unpacked(row["payload"], dtype)))
    return found[Kind.HALVES], found[Kind.OPS]


def _unpacked(payload: bytes, dtype: np.dtype[Any]) -> Array:
    raw = np.frombuffer(zlib.decompress(payload), np.uint8)
    return np.ascontiguousarray(raw.reshape(dtype.itemsize, -1).T).reshape(-1).view(dtype)


def joined(pieces: Iterable[Piece], number_of: Callable[[str], int], dtype: np.dtype[Any], place: str) -> Array:
    """Records in the order of their offsets, with the shard's own group numbers."""
    parts, groups = [], []
    for piece in pieces:
        numbers = np.array([*(number_of(name) for name in piece.names), -1], np.int64)
        parts.append(piece.records)
        groups.append(numbers[np.maximum(piece.records["group_no"], -1)])
    if not parts:
        return np.empty(0, dtype)
    records = np.concatenate(parts)
    records["group_no"] = np.concatenate(groups)
    offsets = records[place]
    # They come in order but where a partition was read in several pieces, or ops have waited.
    return records if (offsets[1:] >= offsets[:-1]).all() else records[np.argsort(offsets, kind="stable")]
