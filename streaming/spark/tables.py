"""The store's tables as Arrow: `escrow.spark` reads the data directory of a service on the same machine through here.

    describe(path, …)    the ranges that tasks read beside each other
    batches(path, …)     one range, in record batches

The columns are those of `store.read.tables`; the audit is a table, too. Everything is opened anew in each call: tasks are other
processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ingest.ids import Sealer, load_keys
from runtime.settings import Settings, load
from store.directory import StoreDirectory
from store.properties import Texts
from store.read.export_scan import Wanted
from store.read.tables import COLUMNS, STATE_WORDS, Column, Table, Tables
from store.records import State
from store.tables.journals.audit import NAME as AUDIT
from store.tables.journals.audit import Audit, AuditRecord

_TIME: Final = pa.timestamp("us", tz="UTC")
_TYPES: Final = {"text": pa.string(), "time": _TIME, "int": pa.int32(), "long": pa.int64(), "double": pa.float64()}
#: A task should have so many halves at least: starting one has a price.
ROWS_MIN: Final = 1 << 16


class NoStore(FileNotFoundError):
    """A path that has no store."""


def describe(path: str, filters: Mapping[str, Any], tasks: int) -> list[tuple[int, int]]:
    """Ranges of half offsets, about as many as there can be tasks."""
    tables = _open(path, with_ids=False)
    try:
        first, stop = tables.extent(_wanted(filters))
    finally:
        tables.close()
    step = max(ROWS_MIN, -(-(stop - first) // max(tasks, 1)))
    return [(low, min(low + step, stop)) for low in range(first, stop, step)]


def batches(
    path: str, table: str, extent: tuple[int, int], filters: Mapping[str, Any], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Rows of one range."""
    tables = _open(path, with_ids="id" in columns)
    schema = pa.schema([(name, _TYPES[COLUMNS[table][name]]) for name in columns])
    try:
        for found in tables.scan(table, *extent, _wanted(filters), columns):
            yield pa.RecordBatch.from_arrays([_arrow(found, field) for field in schema], schema=schema)
    finally:
        tables.close()


def audited(path: str) -> list[dict[str, Any]]:
    """Actions of the audit, the oldest first, each with what became of it, in the words of the HTTP API."""
    audit = Audit(_settings(path).store_dir / AUDIT)
    try:
        records = audit.records()
        return [_action(number, each, audit.outcome_of(number)) for number, each in enumerate(records) if each.about is None]
    finally:
        audit.close()


def _action(number: int, record: AuditRecord, outcome: AuditRecord | None) -> dict[str, Any]:
    last = record if outcome is None else outcome
    return {
        "no": number, "at_ms": record.at_ms, "who": record.actor, "action": record.action, "target": record.target,
        "reason": record.reason, "filter": record.filter, "ids": record.ids, "matched": record.matched or 0,
        "counts": last.counts, "result": last.result,
    }  # fmt: skip


def _settings(path: str) -> Settings:
    settings = load(flags=(f"dataDir={path}",), environ={})
    if not (settings.store_dir / "edge.published").exists():
        raise NoStore(f"path: {path} has no store of Escrow; give the data directory (dataDir) of a service on this machine")
    return settings


def _open(path: str, *, with_ids: bool) -> Tables:
    settings, seal = _settings(path), None
    if with_ids and (settings.id_keys or settings.keys_file.exists()):
        store_id = StoreDirectory(settings.store_dir).store_id
        seal = Sealer(load_keys(settings.keys_file, settings.id_keys)[0], store_id).seal_rows
    return Tables(settings.store_dir, seal)


def _wanted(filters: Mapping[str, Any]) -> Wanted:
    states = filters.get("states")
    numbers = None if states is None else [State(n) for n, word in enumerate(STATE_WORDS) if word in states]
    return Wanted(filters.get("since_ms", 0), filters.get("until_ms"), filters.get("groups"), filters.get("topics"), numbers)


def _arrow(found: Table, field: pa.Field) -> pa.Array:
    column: Column = found[field.name]
    values, missing = column.values, column.missing
    if column.names is not None:
        codes = pa.array(values, pa.int32(), mask=missing)
        return pa.DictionaryArray.from_arrays(codes, pa.array(list(column.names), pa.string())).dictionary_decode()
    if isinstance(values, Texts):
        return _texts(values)
    if not isinstance(values, np.ndarray):
        return pa.array(values, field.type)
    if values.dtype.kind == "S":
        return _fixed_texts(values, missing)
    if field.type == _TIME:
        return pa.array(values * 1000, pa.int64(), mask=missing).cast(_TIME)
    return pa.array(values, mask=missing).cast(field.type)


def _texts(found: Texts) -> pa.Array:
    try:
        found.content.tobytes().decode()
    except UnicodeDecodeError:  # invalid bytes: decode one by one, with replacement marks
        return pa.array(found.tolist(), pa.string())
    buffers = [_validity(found.missing), pa.py_buffer(found.offsets.astype(np.int32)), pa.py_buffer(found.content)]
    return pa.Array.from_buffers(pa.string(), len(found.missing), buffers)


def _validity(missing: Any) -> Any:
    return None if missing is None or not missing.any() else pa.array(~missing).buffers()[1]


def _fixed_texts(values: Any, missing: Any) -> pa.Array:
    """Texts of one width, without a loop."""
    width, count = values.dtype.itemsize, len(values)
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    buffers = [_validity(missing), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.string(), count, buffers)
