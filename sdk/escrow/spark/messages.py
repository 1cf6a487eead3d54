"""`format("escrow")`: the released messages of a topic, as a stream or as they are now.

Offsets are Spark's, kept in the query's checkpoint: for each queue the place of the next message, with the identity of store
and topic that these places belong to. So the source is exactly-once with any sink that is, and touches no consumer group.
An offset names the same message whether the job has settled it or not.

    initialOffset   where `startingOffsets` says, once: a query that has a checkpoint goes on from there
    latestOffset    the ends of the queues now, within the admission limit; never before `start`
    partitions      one for each queue that has news
    read            pages of one queue, until the end of its range is reached, however often the service restarts meanwhile
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import BinaryType, IntegerType, LongType, MapType, StringType, StructType, TimestampType

from escrow._calls import an_object, path_of
from escrow._msgpack import MEDIA
from escrow._transport import Backoff
from escrow.api import Api
from escrow.errors import EscrowError, NotAllowed, NotFound, Refused
from escrow.spark._batches import message_batch
from escrow.spark._options import HTTP, Given, OptionError

SCHEMA: Final = (
    StructType()
    .add("topic", StringType())
    .add("queue", IntegerType())
    .add("offset", LongType())
    .add("key", StringType())
    .add("tags", StringType())
    .add("body", BinaryType())
    .add("properties", MapType(StringType(), StringType()))
    .add("transaction_id", StringType())
    .add("born_at", TimestampType())
    .add("stored_at", TimestampType())
    .add("released_at", TimestampType())
)
OPTIONS: Final = (
    *HTTP, "topic", "startingOffsets", "failOnDataLoss", "maxMessagesPerTrigger", "messagesPerPage", "bytesPerPage",
)  # fmt: skip
_IDENTITY: Final = ("store_id", "incarnation", "topic_id")

Offset = dict[str, Any]


class OffsetMismatch(RuntimeError):
    """The checkpoint's offsets are not places of this topic in this store."""


class DataLoss(RuntimeError):
    """Messages between the checkpoint and what is there have been removed."""


class EscrowMessages(DataSource):
    """Options: docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "escrow"

    def schema(self) -> StructType:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _Stream(_checked(self.options, schema))

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Batch(_checked(self.options, schema))


def _checked(options: Mapping[str, str], schema: StructType) -> Given:
    """The options, once all of them are known to be good."""
    given = Given("escrow", options, OPTIONS)
    if schema != SCHEMA:
        raise OptionError(f"schema: the columns of this source are fixed ({SCHEMA.simpleString()}); leave .schema(…) out")
    given.need("url", "http://127.0.0.1:7480")
    given.need("topic", "order-paid")
    given.flag("failOnDataLoss", True)
    for name, otherwise in (("maxMessagesPerTrigger", 1), ("messagesPerPage", 4096), ("bytesPerPage", 1)):
        given.number(name, otherwise)
    return given


class _Topic:
    """A topic over HTTP: where its queues begin and end, and pages of them. Errors in the words of the caller."""

    def __init__(self, given: Given) -> None:
        self.given, self.topic = given, given.need("topic", "order-paid")
        self._api: Api | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _Topic, (self.given,)

    @property
    def api(self) -> Api:
        if self._api is None:
            self._api = self.given.api()
        return self._api

    def places(self, at: str) -> dict[str, Any]:
        return self._call(path_of("v1", "topics", self.topic, "queues"), {"at": at})

    def page(self, queue: int, offset: int, count: int) -> dict[str, Any]:
        query = {
            "queue_offset": offset,
            "max": min(count, self.given.number("messagesPerPage", 4096)),
            "max_bytes": self.given.number("bytesPerPage", 4 << 20),
        }
        return self._call(path_of("v1", "topics", self.topic, "queues", str(queue), "messages"), query)

    def _call(self, path: str, query: Mapping[str, object]) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self.api.transport.perform(an_object("GET", path, query=query, accept=MEDIA))
        except NotFound as error:
            if error.code == "no_such_topic":
                raise OptionError(f"topic: there is no topic {self.topic!r} at {self.given.text('url')} yet") from None
            raise
        except NotAllowed as error:
            raise OptionError(f"token: {error.detail}") from None
        except Refused as error:
            if error.field == "at":
                raise OptionError(f"startingOffsets: {error.detail.removeprefix('at: ')}") from None
            if error.code == "kafka_mode":
                raise OptionError(
                    f"{self.given.text('url')} runs in Kafka mode, where released messages lie in Kafka: read topic "
                    f'{self.topic!r} with format("kafka")'
                ) from None
            raise
        return found


def _offset(places: Mapping[str, Any], column: str) -> Offset:
    """An offset of Spark: texts and numbers in two levels."""
    return {**places["identity"], "queues": {str(queue["queue_id"]): queue[column] for queue in places["queues"]}}


def _check_identity(topic: str, believed: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Fail by name where offsets belong to something else."""
    what = next((name for name in _IDENTITY if believed.get(name) != found[name]), None)
    if what is None:
        return
    why = {
        "store_id": "the url leads to another store",
        "incarnation": "the store was restored from a backup, and offsets behind the backup name other messages now",
        "topic_id": f"topic {topic} was removed and made again",
    }[what]
    raise OffsetMismatch(
        f"{what}: the checkpoint says {believed.get(what)!r}, the service {found[what]!r}: {why}. "
        "Start the query with a new checkpointLocation, and say with startingOffsets where"
    )


@dataclass
class QueueRange(InputPartition):
    """Messages first … stop - 1 of one queue, and the identity that these offsets belong to."""

    queue: int
    first: int
    stop: int
    identity: dict[str, str]


class _Pages:
    """Reads ranges: the part that runs in tasks."""

    def __init__(self, given: Given) -> None:
        self.given, self.topic = given, _Topic(given)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:

        assert isinstance(partition, QueueRange)
        at, waiting = partition.first, _Patience(self.given.seconds("retryFor", 60.0))
        while at < partition.stop:
            page = self.topic.page(partition.queue, at, partition.stop - at)
            _check_identity(self.topic.topic, partition.identity, page["identity"])
            if page["begin"] > at:
                self._lost(partition.queue, at, min(page["begin"], partition.stop))
                at = page["begin"]
            following = min(max(page["next"], at), partition.stop)
            if following == at:
                # The service has just started: what it has promised is flushed, and appears when it has read its log.
                waiting.wait(f"{self.topic.topic}/{partition.queue}: offset {at} of {partition.stop}")
                continue
            waiting.reset()
            batch = message_batch(self.topic.topic, partition.queue, partition.stop, page)
            if batch.num_rows:
                yield batch
            at = following

    def _lost(self, queue: int, first: int, stop: int) -> None:
        if first < stop and self.given.flag("failOnDataLoss", True):
            raise DataLoss(
                f"queue {queue} of topic {self.topic.topic}: messages {first} to {stop - 1} are gone, "
                "removed after fileReservedTime. "
                "Set failOnDataLoss to false to go on with what is there"
            )


class _Patience:
    """Waits for what is certain to come, up to a time."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self.reset()

    def reset(self) -> None:
        self._give_up_s, self._backoff = time.monotonic() + self._patience_s, Backoff(first_s=0.05, most_s=1.0)

    def wait(self, what: str) -> None:
        if time.monotonic() > self._give_up_s:
            raise EscrowError(f"{what} did not become readable within {self._patience_s:g} s (retryFor)")
        time.sleep(self._backoff.next_s())


class _Batch(DataSourceReader):
    """What is there when the plan is made."""

    def __init__(self, given: Given) -> None:
        for name in ("maxMessagesPerTrigger",):
            if given.text(name):
                raise OptionError(f"{name}: is for readStream; a batch reads everything that is there")
        self._pages, self._given = _Pages(given), given

    def partitions(self) -> list[InputPartition]:
        places = self._pages.topic.places(self._given.text("startingOffsets", "earliest"))
        return [
            QueueRange(queue["queue_id"], queue["at"], queue["end"], dict(places["identity"]))
            for queue in places["queues"]
            if queue["at"] < queue["end"]
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._pages.read(partition) if isinstance(partition, QueueRange) else iter(())


class _Stream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module's head."""

    def __init__(self, given: Given) -> None:
        self._pages, self._given, self._topic = _Pages(given), given, _Topic(given)
        self._target: Offset | None = None
        self._latest: Offset | None = None

    def initialOffset(self) -> Offset:
        return _offset(self._topic.places(self._given.text("startingOffsets", "latest")), "at")

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._given.text("maxMessagesPerTrigger")
        return ReadMaxRows(int(most)) if most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = _offset(self._topic.places("latest"), "end")

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        places = self._topic.places("latest")
        _check_identity(self._topic.topic, start, places["identity"])
        self._latest = _offset(places, "end")
        ends = (self._target or self._latest)["queues"]
        begins = {str(queue["queue_id"]): queue["begin"] for queue in places["queues"]}
        # A service that has just started may not have read its whole log yet: never behind what was promised before.
        news = {queue: max(end, start["queues"].get(queue, 0)) for queue, end in ends.items()}
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        firsts = {queue: max(start["queues"].get(queue, 0), begins.get(queue, 0)) for queue in news}
        return {**places["identity"], "queues": news if most is None else _shared(firsts, news, most)}

    def reportLatestOffset(self) -> Offset | None:
        return self._latest

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        identity = {name: end[name] for name in _IDENTITY}
        _check_identity(self._topic.topic, start, identity)
        ranges = [QueueRange(int(queue), start["queues"].get(queue, 0), stop, identity) for queue, stop in end["queues"].items()]
        return [each for each in ranges if each.first < each.stop]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._pages.read(partition)


def _shared(firsts: Mapping[str, int], ends: Mapping[str, int], most: int) -> dict[str, int]:
    """Ends within the limit: what is there is shared out by how much each queue has, at least one message in all."""
    news = {queue: max(0, ends[queue] - firsts[queue]) for queue in ends}
    total = sum(news.values())
    if total <= most:
        return dict(ends)
    found, left = {}, most
    for queue, count in sorted(news.items(), key=lambda item: item[1]):
        # Small queues first, so that what they leave of their share goes to the larger ones.
        share = min(count, -(-most * count // total), left)
        found[queue], left = firsts[queue] + share, left - share
    return found
