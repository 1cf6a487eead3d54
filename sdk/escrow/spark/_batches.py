"""Pages of the HTTP API as Arrow batches, column by column."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

_TEXT: Final = pa.string()
_TIME: Final = pa.timestamp("us", tz="UTC")
MESSAGES: Final = pa.schema(
    [
        ("topic", _TEXT),
        ("queue", pa.int32()),
        ("offset", pa.int64()),
        ("key", _TEXT),
        ("tags", _TEXT),
        ("body", pa.binary()),
        ("properties", pa.map_(_TEXT, _TEXT)),
        ("transaction_id", _TEXT),
        ("born_at", _TIME),
        ("stored_at", _TIME),
        ("released_at", _TIME),
    ]
)


def message_batch(topic: str, queue: int, stop: int, page: Mapping[str, Any]) -> pa.RecordBatch:
    """The messages of a page that lie before `stop`."""
    offsets = page["queue_offsets"]
    count = next((number for number, offset in enumerate(offsets) if offset >= stop), len(offsets))

    def column(name: str) -> Sequence[Any]:
        values: Sequence[Any] = page[name]
        return values if count == len(offsets) else values[:count]

    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(topic, _TEXT), count),
            pa.repeat(pa.scalar(queue, pa.int32()), count),
            pa.array(column("queue_offsets"), pa.int64()),
            _texts(column("keys")),
            _texts(column("tags")),
            pa.array(column("bodies"), pa.binary()),
            pa.array([list(each.items()) for each in column("properties")], pa.map_(_TEXT, _TEXT)),
            pa.array(column("transaction_ids"), _TEXT),
            times(column("born_at_ms"), zero_is_null=True),
            times(column("stored_at_ms")),
            times(column("released_at_ms")),
        ],
        schema=MESSAGES,
    )


def _texts(values: Sequence[str]) -> pa.Array:
    """ "" is null: the message has none."""
    return pa.array([value or None for value in values], _TEXT)


def times(values: Sequence[int | None], *, zero_is_null: bool = False) -> pa.Array:
    """Milliseconds since 1970 as Spark's timestamps."""
    known = [value or None for value in values] if zero_is_null else values
    return pa.array(known, pa.int64()).cast(pa.timestamp("ms", tz="UTC")).cast(_TIME)


_KINDS: Final = {"text": _TEXT, "int": pa.int32(), "long": pa.int64(), "double": pa.float64()}
AUDIT: Final = pa.schema(
    [
        ("no", pa.int64()),
        ("at", _TIME),
        ("who", _TEXT),
        ("action", _TEXT),
        ("target", _TEXT),
        ("reason", _TEXT),
        ("result", _TEXT),
        ("matched", pa.int64()),
        ("ids", pa.list_(_TEXT)),
        ("counts", pa.map_(_TEXT, pa.int64())),
        ("filter", _TEXT),
    ]
)


def table_batch(kinds: Mapping[str, str], columns: Mapping[str, Sequence[Any]]) -> pa.RecordBatch:
    """Columns of a table's page, by what their values are."""
    arrays = [times(columns[name]) if kind == "time" else pa.array(columns[name], _KINDS[kind]) for name, kind in kinds.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(kinds))


def audit_batch(records: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    def column(name: str) -> list[Any]:
        return [record[name] for record in records]

    counts = [None if each is None else list(each.items()) for each in column("counts")]
    filters = [None if each is None else json.dumps(each) for each in column("filter")]
    given = {
        "at": times(column("at_ms")),
        "counts": pa.array(counts, AUDIT.field("counts").type),
        "filter": pa.array(filters, _TEXT),
    }
    arrays = [given.get(field.name) if field.name in given else pa.array(column(field.name), field.type) for field in AUDIT]
    return pa.RecordBatch.from_arrays(arrays, schema=AUDIT)
