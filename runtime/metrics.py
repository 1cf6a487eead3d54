"""Names of all metrics. Each process makes its own set once and serves it on its own port; the SDK does not import this.

    JobMetrics    the streaming job      streaming/service.py, streaming/spark/listener.py
    KafkaMetrics  and in Kafka mode      streaming/kafka/service.py
    EdgeMetrics   the edge               ingest/server.py, ingest/http/metrics.py

Labels have few fixed values. Names that users choose (a group, a topic) appear for at most metricsNamesMax of them, and the rest
under OTHER; an id or a member never does. docs/metrics.md has every name, and a test that compares.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

#: (name, "counter" or "gauge", help, [(labels, value), …]) of a metric that is read at every scrape.
Figure = tuple[str, str, str, list[tuple[dict[str, str], float]]]
#: What the names beyond metricsNamesMax are summed up under. No group and no topic can be called this.
OTHER: Final = "(other)"

#: A batch takes tens of milliseconds; a backlog or a round a second.
_BATCH_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
#: A decision takes as long as a local transaction, or until a check asks.
_DECISION_S: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 86_400.0)


class BulkHistogram(Collector):
    """A histogram that takes many values at once, already counted by bucket: observing one by one would cost more than settling."""

    def __init__(self, name: str, documentation: str, buckets: Iterable[float], registry: CollectorRegistry) -> None:
        self.name, self.documentation = name, documentation
        self.bounds = (*buckets, float("inf"))
        self._counts, self._sum = [0] * len(self.bounds), 0.0
        registry.register(self)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self._sum += value

    def add(self, counts: Iterable[int], total: float) -> None:
        """`counts` of values by bucket (as in `bounds`), and their sum."""
        self._counts = [mine + theirs for mine, theirs in zip(self._counts, counts, strict=True)]
        self._sum += total

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self.name, self.documentation)
        family.add_metric([], _cumulative(self.bounds, self._counts), self._sum)
        yield family


def _cumulative(bounds: Iterable[float], counts: Iterable[int]) -> list[tuple[str, int]]:
    """Buckets as Prometheus wants them: each with all values up to its bound."""
    running, buckets = 0, []
    for bound, count in zip(bounds, counts, strict=True):
        running += count
        buckets.append(("+Inf" if bound == float("inf") else repr(bound), running))
    return buckets


class WatchedCounter(Collector):
    """A counter with one label that is counted elsewhere and read at every scrape."""

    def __init__(self, name: str, documentation: str, label: str, registry: CollectorRegistry) -> None:
        self._name, self._documentation, self._label = name, documentation, label
        self._read: dict[str, Callable[[], float]] = {}
        registry.register(self)

    def watch(self, value: str, read: Callable[[], float]) -> None:
        self._read[value] = read

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(self._name, self._documentation, labels=[self._label])
        for value, read in self._read.items():
            family.add_metric([value], read())
        yield family


def _about_the_process(registry: CollectorRegistry) -> None:
    """What every process reports: its release, and Prometheus' usual metrics of a process."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # when each series began: not needed
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    try:
        release = version("escrow-mq-server")
    except PackageNotFoundError:  # run from a tree that was never installed
        release = "unknown"
    Gauge("escrow_build_info", "1, with the release that runs", ["version"], registry=registry).labels(release).set(1)


class JobMetrics:
    """Metrics of the streaming job. `watch` ties the gauges to where their values are read at every scrape."""

    OUTCOMES: Final = ("commit", "rollback", "discard_max", "discard_expired")
    VIAS: Final = ("producer", "check", "operator", "checker")
    REASONS: Final = ("check_max", "expired")
    QUEUES: Final = ("half", "op")
    RATES: Final = ("input", "processed")

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        _about_the_process(registry)
        self._settlement(registry)
        self._checks(registry)
        self._batches(registry)
        self._store(registry)
        self._spark(registry)
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        """A series that appears with its first event hides that event from rate() and increase()."""
        for via in self.VIAS:
            for outcome in self.OUTCOMES:
                self.settled.labels(outcome, via)
        for reason in self.REASONS:
            self.proposals.labels(reason)
            self.discards.labels(reason)
        for rate in self.RATES:
            self.spark_rows.labels(rate)
        for area in ("used", "max"):
            self.jvm_heap.labels(area)
        for queue in self.QUEUES:
            self.quarantined.labels(queue)
            self.records.labels(queue)

    def _settlement(self, registry: CollectorRegistry) -> None:
        self.pending = Gauge("escrow_pending", "Halves that wait for their end", registry=registry)
        self.oldest_pending = Gauge(
            "escrow_oldest_pending_age_seconds", "Age of the oldest pending half; 0 = none", registry=registry
        )
        self.totals = WatchedCounter(
            "escrow_transactions", "What became of halves since the store was made, as in the redo log", "event", registry
        )
        self.settled = Counter(
            "escrow_settled", "Transactions ended, by outcome and by who said it", ["outcome", "via"], registry=registry
        )
        self.ops_without_effect = Counter(
            "escrow_ops_without_effect", "Ops that changed nothing, by why", ["why"], registry=registry
        )
        self.messages = Counter("escrow_messages_released", "Ordinary messages released without a half", registry=registry)
        self.quarantined = Counter("escrow_quarantined", "Corrupt records set aside", ["queue"], registry=registry)
        self.decision_s = BulkHistogram("escrow_decision_seconds", "Half stored to end stored", _DECISION_S, registry)
        self.release_s = BulkHistogram("escrow_release_seconds", "Commit stored to message in its topic", _BATCH_S, registry)

    def _checks(self, registry: CollectorRegistry) -> None:
        self.rounds = Counter("escrow_check_rounds", "Check rounds gone through", registry=registry)
        self.checks = Counter("escrow_checks_emitted", "Check requests put into the check queue", registry=registry)
        self.held = Gauge("escrow_checks_held", "Due halves of the last round whose group has no live member", registry=registry)
        self.proposals = Counter("escrow_discard_proposals", "Discards proposed to the edge", ["reason"], registry=registry)
        self.discards = Counter("escrow_discards", "Halves moved to the discard topic", ["reason"], registry=registry)
        self.clock_alert = Gauge(
            "escrow_clock_alert", "1 = the wall clock jumped: nothing is discarded or deleted", registry=registry
        )
        self.clock_held = Gauge(
            "escrow_clock_held_seconds", "Until discards and retention go on after a start of the machine",
            registry=registry,
        )  # fmt: skip
        self.clock_drift = Gauge("escrow_clock_drift_seconds", "Wall clock minus the time that counts here", registry=registry)

    def _batches(self, registry: CollectorRegistry) -> None:
        self.phase_s = Histogram("escrow_batch_phase_seconds", "Phases of a batch", ["phase"], buckets=_BATCH_S, registry=registry)
        self.redo_flush_s = Histogram(
            "escrow_redo_flush_seconds", "One batch into the redo log, flushed", buckets=_BATCH_S, registry=registry
        )
        self.records = Counter("escrow_records_read", "Records that came through the stream", ["queue"], registry=registry)
        self.behind = Gauge("escrow_records_behind", "Published records not yet settled", ["queue"], registry=registry)
        self.sink_errors = Counter("escrow_sink_errors", "Calls of a sink that failed", registry=registry)

    def _store(self, registry: CollectorRegistry) -> None:
        self.store_bytes = Gauge("escrow_store_bytes", "Size of the store's files", ["part"], registry=registry)
        self.files_removed = Counter("escrow_retention_files_removed", "Files that retention removed", ["part"], registry=registry)

    def _spark(self, registry: CollectorRegistry) -> None:
        self.spark_phase_s = Histogram(
            "escrow_spark_phase_seconds", "Spark's own phases of a micro-batch", ["phase"], buckets=_BATCH_S, registry=registry
        )
        self.spark_batches = Counter("escrow_spark_batches", "Micro-batches that Spark reported", registry=registry)
        self.spark_batch_id = Gauge("escrow_spark_batch_id", "The last micro-batch that Spark reported", registry=registry)
        self.query_up = Gauge("escrow_query_up", "1 = the streaming query runs", registry=registry)
        self.spark_rows = Gauge(
            "escrow_spark_rows_per_second", "Rows of the last sampled batch: as they came in, as they were processed", ["rate"],
            registry=registry,
        )  # fmt: skip
        self._java(registry)

    def _java(self, registry: CollectorRegistry) -> None:
        self.spark_executors = Gauge("escrow_spark_executors", "Executors that Spark has; 1 in local mode", registry=registry)
        self.jvm_heap = Gauge("escrow_jvm_heap_bytes", "Heap of Spark's driver: used, max", ["area"], registry=registry)
        self.jvm_gc = WatchedCounter(
            "escrow_jvm_gc_seconds", "Time that Spark's Java has spent collecting garbage", "process", registry
        )
        self.python_workers = Gauge("escrow_spark_python_workers", "Python processes that Spark has started", registry=registry)
        self.python_worker_bytes = Gauge(
            "escrow_spark_python_worker_bytes", "Resident memory of these Python processes together", registry=registry
        )

    def watch(self, gauge: Gauge, read: Callable[[], float], **labels: str) -> None:
        """Read the gauge's value at every scrape."""
        (gauge.labels(**labels) if labels else gauge).set_function(read)

    def count_all(self, counter: Counter, label: str, counts: Mapping[Any, int]) -> None:
        for value, count in counts.items():
            if count:
                counter.labels(**{label: str(value)}).inc(count)


class KafkaMetrics:
    """What the job tells in Kafka mode besides, by shard: a half partition, of which there are few."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=registry)

        self.master = gauge("escrow_kafka_master", "1 = this driver holds the lease, 0 = it is a standby")
        self.no_room = gauge("escrow_job_no_room", "1 = the job waits for room on the disk and settles nothing")
        self.pending = gauge("escrow_kafka_shard_pending", "Halves that wait for their end", "shard")
        self.behind = gauge("escrow_kafka_records_behind", "Records in Kafka that are not settled", "shard", "queue")
        self.undeliverable = gauge(
            "escrow_kafka_undeliverable", "Committed messages that Kafka does not take now; tried again", "shard"
        )
        self.undeliverable_age = gauge(
            "escrow_kafka_undeliverable_retention_used",
            "Age of the oldest of their halves, as a share of the time that the half topic keeps it",
            "shard",
        )
        self.held_back = gauge(
            "escrow_kafka_held_back", "1 = as many messages are set aside as may be, and nothing is released", "shard"
        )
        self.task_s = gauge("escrow_kafka_task_seconds", "For how long the release at work has been at work; 0 = none is", "shard")
        self.released = WatchedCounter("escrow_kafka_released_messages", "Messages written to real topics", "shard", registry)
        self.released_bytes = WatchedCounter("escrow_kafka_released_bytes", "Their bodies", "shard", registry)
        self.failures = WatchedCounter(
            "escrow_kafka_task_failures", "Release tasks that failed and were repeated", "shard", registry
        )


#: A flush takes what the disk takes: tens of microseconds to a second.
_FLUSH_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
#: An acknowledgement takes a flush; a long poll up to its wait.
_REQUEST_BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, float("inf"))


class _Operation:
    """Requests of one operation: how many by class of status, and how long they took."""

    __slots__ = ("counts", "statuses", "total_s")

    def __init__(self) -> None:
        self.statuses = [0] * 6
        self.counts = [0] * len(_REQUEST_BOUNDS)
        self.total_s = 0.0


class _Call:
    """gRPC calls of one method: how many by status code, and how long they took."""

    __slots__ = ("codes", "counts", "total_s")

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}
        self.counts = [0] * len(_REQUEST_BOUNDS)
        self.total_s = 0.0


class EdgeMetrics(Collector):
    """Metrics of the edge. Requests are counted with plain numbers as they are answered: a Counter and a Histogram with their locks
    and labels would cost each request several microseconds. Everything else is read from the edge at every scrape: `figures` in
    the event loop (`look`), `files`, which may wait for the disk, in the thread that writes the page."""

    def __init__(
        self,
        registry: CollectorRegistry,
        figures: Callable[[], Iterable[Figure]],
        files: Callable[[], Iterable[Figure]] = tuple,
    ) -> None:
        self.registry, self._figures, self._files = registry, figures, files
        self._operations: dict[str, _Operation] = {}
        self._seen: list[Figure] = []
        _about_the_process(registry)
        self.flush_s = BulkHistogram("escrow_flush_seconds", "One flush of the commit log", _FLUSH_S, registry)
        self._calls: dict[str, _Call] = {}
        registry.register(self)

    def look(self) -> None:
        """Read what belongs to the event loop, in it."""
        self._seen = list(self._figures())

    def observe(self, operation: str, status: int, seconds: float) -> None:
        """One request; always from the event loop."""
        found = self._operations.get(operation)
        if found is None:
            found = self._operations[operation] = _Operation()
        found.statuses[status // 100] += 1
        found.counts[bisect_left(_REQUEST_BOUNDS, seconds)] += 1
        found.total_s += seconds

    def observe_call(self, method: str, code: str, seconds: float) -> None:
        """One gRPC call; always from the event loop. A stream counts when it ends."""
        found = self._calls.get(method)
        if found is None:
            found = self._calls[method] = _Call()
        found.codes[code] = found.codes.get(code, 0) + 1
        found.counts[bisect_left(_REQUEST_BOUNDS, seconds)] += 1
        found.total_s += seconds

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._grpc_calls()
        for name, kind, text, values in (*self._seen, *self._files()):
            family: Any = (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(
                name, text, labels=list(values[0][0]) if values else []
            )
            for labels, value in values:
                family.add_metric(list(labels.values()), value)
            yield family

    def _requests(self) -> Iterator[Metric]:
        answered = CounterMetricFamily(
            "escrow_http_requests", "Requests answered, by operation and class of status", labels=["operation", "status"]
        )
        took = HistogramMetricFamily(
            "escrow_http_request_seconds", "From the head of a request to its answer", labels=["operation"]
        )
        for operation, found in list(self._operations.items()):
            for status, count in enumerate(found.statuses):
                if count:
                    answered.add_metric([operation, f"{status}xx"], count)
            took.add_metric([operation], _cumulative(_REQUEST_BOUNDS, found.counts), found.total_s)
        yield answered
        yield took

    def _grpc_calls(self) -> Iterator[Metric]:
        answered = CounterMetricFamily(
            "escrow_grpc_requests", "Calls of RocketMQ clients answered, by method and status code", labels=["method", "code"]
        )
        took = HistogramMetricFamily("escrow_grpc_request_seconds", "From a call to its last answer", labels=["method"])
        for method, found in list(self._calls.items()):
            for code, count in list(found.codes.items()):
                answered.add_metric([method, code], count)
            took.add_metric([method], _cumulative(_REQUEST_BOUNDS, found.counts), found.total_s)
        yield answered
        yield took
