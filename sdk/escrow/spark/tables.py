"""`format("escrow.transactions")`, `escrow.ops`, `escrow.checks`, `escrow.audit`: the history of a store as batch tables.

With `url` they read over HTTP, with an operator's token. With `path`, on the machine of the service, they read the files of its
data directory: many times faster, and without a request. That needs escrow-mq-server in the same Python.

Spark hands filters to Python sources where `spark.sql.python.filterPushdown.enabled` is true (`escrow.spark.register` sets it).
Those on stored_at, group, topic and state narrow what is read. Spark applies all of them again, so none has to be exact.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from escrow._calls import an_object, path_of
from escrow._msgpack import MEDIA
from escrow.errors import NotAllowed, Refused
from escrow.spark._batches import audit_batch, table_batch
from escrow.spark._options import HTTP, Given, OptionError

_TYPES: Final[Mapping[str, DataType]] = {
    "text": StringType(),
    "time": TimestampType(),
    "int": IntegerType(),
    "long": LongType(),
    "double": DoubleType(),
    "texts": ArrayType(StringType()),
    "counts": MapType(StringType(), LongType()),
}
COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    "transactions": {
        "id": "text", "group": "text", "topic": "text", "key": "text", "tags": "text", "state": "text", "outcome": "text",
        "reason": "text", "settled_by": "text", "stored_at": "time", "born_at": "time", "settled_at": "time",
        "duration_s": "double", "attempts": "int", "immunity_s": "long", "body_bytes": "long", "queue_id": "int",
        "queue_offset": "long", "half_offset": "long",
    },
    "ops": {
        "id": "text", "group": "text", "topic": "text", "op": "text", "at": "time", "by": "text", "actor": "text", "remark": "text",
        "reason": "text", "queue_id": "int", "queue_offset": "long", "half_offset": "long", "op_offset": "long",
    },
    "checks": {
        "id": "text", "group": "text", "topic": "text", "attempt": "int", "asked_at": "time", "member": "text",
        "answered_at": "time", "answer": "text", "answer_s": "double", "stored_at": "time",
        "half_offset": "long", "op_offset": "long",
    },
    "audit": {
        "no": "long", "at": "time", "who": "text", "action": "text", "target": "text", "reason": "text", "result": "text",
        "matched": "long", "ids": "texts", "counts": "counts", "filter": "text",
    },
}  # fmt: skip
#: Columns whose upper bound holds for the stored time of the half, too: nothing is said before it is stored.
_LATER: Final = {"stored_at": True, "at": False, "asked_at": False, "settled_at": False, "answered_at": False}
_PER_PAGE: Final = 8192


class _Table(DataSource):
    TABLE: ClassVar[str]
    OPTIONS: ClassVar[tuple[str, ...]] = (*HTTP, "path", "columns", "tasks")

    @classmethod
    def name(cls) -> str:
        return f"escrow.{cls.TABLE}"

    def schema(self) -> StructType:
        given = Given(self.name(), self.options, self.OPTIONS)
        return StructType([StructField(name, _TYPES[COLUMNS[self.TABLE][name]]) for name in _chosen(given, self.TABLE)])

    def reader(self, schema: StructType) -> DataSourceReader:
        given = Given(self.name(), self.options, self.OPTIONS)
        given.check_place()
        given.number("tasks", 1)
        if schema != self.schema():
            raise OptionError(
                'schema: the columns of this source are fixed; leave .schema(…) out, or name some with .option("columns", …)'
            )
        return _AuditReader(given) if self.TABLE == "audit" else _TableReader(given, self.TABLE)


def _chosen(given: Given, table: str) -> list[str]:
    """Which columns: Spark does not tell Python sources which a query needs, so the user may."""
    known, text = COLUMNS[table], given.text("columns")
    if not text:
        return list(known)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise OptionError(f"columns: {given.format} has no column {name!r}; it has {', '.join(known)}")
    return names


class EscrowTransactions(_Table):
    TABLE = "transactions"


class EscrowOps(_Table):
    TABLE = "ops"


class EscrowChecks(_Table):
    TABLE = "checks"


class EscrowAudit(_Table):
    TABLE = "audit"
    OPTIONS = (*HTTP, "path")


@dataclass
class HalfRange(InputPartition):
    """Halves first … stop - 1."""

    first: int
    stop: int


class _TableReader(DataSourceReader):
    def __init__(self, given: Given, table: str) -> None:
        self._given, self._table, self._filters = given, table, dict[str, Any]()
        self._columns = _chosen(given, table)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what narrows the reading; Spark applies all filters all the same."""
        for each in filters:
            _narrow(self._filters, each, with_state=self._table == "transactions")
        return filters

    def partitions(self) -> list[InputPartition]:
        if self._given.text("path"):
            ranges = _files().describe(self._given.text("path"), self._filters, self._given.number("tasks", os.cpu_count() or 1))
        else:
            page = _page(self._given, self._table, {**_query(self._filters), "max": 1})
            step = max(_PER_PAGE, -(-(page["end"] - page["begin"]) // self._given.number("tasks", 1)))
            ranges = [(low, min(low + step, page["end"])) for low in range(page["begin"], page["end"], step)]
        return [HalfRange(*each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, HalfRange):  # there is nothing, and Spark makes one task all the same
            return iter(())
        if self._given.text("path"):
            found: Iterator[pa.RecordBatch] = _files().batches(
                self._given.text("path"), self._table, (partition.first, partition.stop), self._filters, self._columns
            )
            return found
        return self._pages(partition)

    def _pages(self, partition: HalfRange) -> Iterator[pa.RecordBatch]:

        at, kinds = partition.first, {name: COLUMNS[self._table][name] for name in self._columns}
        while at < partition.stop:
            asked = {**_query(self._filters), "half_offset": at, "stop": partition.stop, "max": _PER_PAGE}
            page = _page(self._given, self._table, asked)
            batch = table_batch(kinds, page["columns"])
            if batch.num_rows:
                yield batch
            at = max(page["next"], at + 1)


class _AuditReader(DataSourceReader):
    """Small: one task reads all of it, the oldest first."""

    def __init__(self, given: Given) -> None:
        self._given = given

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:

        records = _files().audited(self._given.text("path")) if self._given.text("path") else self._over_http()
        if records:
            yield audit_batch(records)

    def _over_http(self) -> list[dict[str, Any]]:
        found, before = list[dict[str, Any]](), None
        with self._given.api() as api:
            while True:
                page = _told(partial(api.audit, limit=1000, before=before))
                found += page["records"]
                before = page["next"]
                if before is None:
                    return found[::-1]


def _page(given: Given, table: str, query: Mapping[str, object]) -> dict[str, Any]:
    with given.api() as api:
        path = path_of("v1", "operator", "tables", table)
        found: dict[str, Any] = _told(partial(api.transport.perform, an_object("GET", path, query=query, accept=MEDIA)))
        return found


def _told(call: Any) -> Any:
    """Errors in the words of the caller."""
    try:
        return call()
    except NotAllowed as error:
        raise OptionError(f"token: {error.detail}") from None
    except Refused as error:
        if error.code == "kafka_mode":
            raise OptionError(f"url: leads to an endpoint in Kafka mode, which has no such table: {error.detail}") from None
        raise


def _query(filters: Mapping[str, Any]) -> dict[str, object]:
    """Filters as the HTTP API takes them: one name of each kind, otherwise Spark filters."""
    found: dict[str, object] = {name: filters[name] for name in ("since_ms", "until_ms") if name in filters}
    for name, parameter in (("groups", "group"), ("topics", "topic"), ("states", "state")):
        if len(filters.get(name, ())) == 1:
            found[parameter] = filters[name][0]
    return found


def _narrow(found: dict[str, Any], each: Filter, *, with_state: bool) -> None:
    names = {"group": "groups", "topic": "topics", **({"state": "states"} if with_state else {})}
    column = (
        each.attribute[0] if isinstance(each, (EqualTo, In, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)) else ""
    )
    if column in names and isinstance(each, (EqualTo, In)):
        values = [each.value] if isinstance(each, EqualTo) else [value for value in each.value if value is not None]
        known = found.get(names[column])
        found[names[column]] = [value for value in values if known is None or value in known]
    elif column in _LATER and isinstance(each, (LessThan, LessThanOrEqual, EqualTo)):
        found["until_ms"] = min(found.get("until_ms", 1 << 62), _ms(each.value) + 1)
    if column == "stored_at" and isinstance(each, (GreaterThan, GreaterThanOrEqual, EqualTo)):
        found["since_ms"] = max(found.get("since_ms", 0), _ms(each.value))


def _ms(value: datetime) -> int:
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return int(aware.timestamp() * 1000)


def _files() -> Any:
    """The server's part, which reads a data directory."""
    try:
        from streaming.spark import tables  # noqa: PLC0415
    except ImportError as error:
        raise OptionError(
            f'path: reading a data directory needs the distribution escrow-mq-server in the same Python ({error}); or give "url"'
        ) from error
    return tables
