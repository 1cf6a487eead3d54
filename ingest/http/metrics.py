"""What the edge tells Prometheus, read at each request. docs/metrics.md explains each name.

`Figures.look` reads numbers of the event loop and is called in it; `Figures.files` looks at files and is called in a thread.
Names that users choose are bounded by metricsNamesMax: the busiest are named, the others summed up.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ingest.capabilities import Backlog, Capabilities, Consuming, JobState
from ingest.http.app import App
from ingest.http.connections.listener import Door
from runtime.metrics import OTHER, Figure

T = TypeVar("T")

_ANSWERS = ("accepted", "already", "conflict", "refused")
_QUOTAS = ("rate", "pending", "pending_age")
_PASSED_OVER = ("holes", "filtered", "unreadable", "retention")


class Figures:
    """Of one edge."""

    def __init__(self, edge: Capabilities, door: Door, app: App) -> None:
        self._edge, self._door, self._app = edge, door, app
        self._job = JobState("absent", 0, 0)
        self._live: set[str] = set()

    def look(self) -> Iterator[Figure]:
        """In the event loop; keeps what `files` needs of it."""
        edge = self._edge
        self._job, self._live = edge.figures.job_state(), edge.checks.live_groups()
        status = edge.figures.counts()
        yield _one("escrow_halves_stored", "counter", "Halves made durable", status["halves"])
        yield _one("escrow_messages_stored", "counter", "Ordinary messages made durable", status["messages"])
        yield _each("escrow_ends", "Ends answered, by verdict", "verdict", status["answers"], _ANSWERS)
        if (operators := status.get("operator_answers")) is not None:
            yield _each("escrow_operator_ends", "Ends by operators, by verdict", "verdict", operators, _ANSWERS)
            yield _conflicts(status["conflicts_by_group"], edge.settings.metrics_names_max)
        yield _each("escrow_quota_refused", "Requests refused by a quota", "quota", status["quotas"]["refused"], _QUOTAS)
        yield _one("escrow_refused_for_load", "counter", "Requests refused because too much waited", status["refused_for_load"])
        yield from _checks(status)
        yield from _couriers(status)
        if "kafka" in status:
            yield from _kafka(status)
        if (consuming := edge.offers.consuming) is not None:
            yield from _embedded(status)
            yield from _consumers(consuming, status["consumption"], edge.settings.metrics_names_max)
        yield from _connections(self._door, self._app)
        yield from _rocketmq(status.get("rocketmq", {}))
        yield _one("escrow_edge_healthy", "gauge", "0 = something that the edge does beside requests fails", status["healthy"])
        alive = self._job.state in ("running", "no_room")
        yield _one("escrow_job_up", "gauge", "1 = the edge sees signs of life of the job", alive)
        if edge.offers.backlog is not None:
            no_room = self._job.state == "no_room"
            yield _one("escrow_job_no_room", "gauge", "1 = the job waits for room on the disk and settles nothing", no_room)

    def files(self) -> Iterator[Figure]:
        """In a thread: what has to be looked up in files, or in the tables of all groups. Without a store (Kafka mode) only the
        job knows what is pending and unsettled: it tells that, and nothing is told here."""
        backlog = self._edge.offers.backlog
        if backlog is not None:
            yield from _groups(self._edge, backlog, self._live)
            yield from _unsettled(backlog, self._job, self._edge.now_ms())
        disk = os.statvfs(self._edge.settings.data_dir)
        yield _one("escrow_disk_free_bytes", "gauge", "Room left where the data directory lies", disk.f_bavail * disk.f_frsize)
        yield _one("escrow_disk_size_bytes", "gauge", "Size of that file system", disk.f_blocks * disk.f_frsize)


def _conflicts(by_group: Mapping[str, int], names_max: int) -> Figure:
    named, rest = _split(sorted(by_group.items(), key=lambda pair: (-pair[1], pair[0])), names_max)
    rows = [({"group": group}, float(count)) for group, count in named]
    if rest:
        rows.append(({"group": OTHER}, float(sum(count for _, count in rest))))
    return "escrow_group_conflicts", "counter", "Ends of a producer group that contradicted how the transaction ended", rows


def _embedded(status: Mapping[str, Any]) -> Iterator[Figure]:
    """What only an edge with a store has."""
    yield _one("escrow_flushes", "counter", "Flushes of the commit log; many requests share one", status["flushes"])
    yield _one("escrow_queued_bytes", "gauge", "Bytes that wait for a flush", status["queued_bytes"])
    yield _one("escrow_proposals_accepted", "counter", "Discard proposals that became discards", status["discarded"])
    yield _one(
        "escrow_proposals_passed_over", "counter", "Discard proposals of halves that had ended", status["proposals_passed_over"]
    )
    yield _one("escrow_ops_reopened", "counter", "Halves reopened because their end could not be read", status["reopened"])
    names = status["names"]
    yield _one("escrow_topics", "gauge", "Topics that are there", names["topics"])
    yield _one(
        "escrow_topic_numbers_used", "gauge", "Numbers of topics, and of removed ones that the log still tells of",
        names["topic_numbers_used"],
    )  # fmt: skip
    yield _one("escrow_topic_numbers", "gauge", "Numbers that there are for topics", names["topics_max"])


def _kafka(status: Mapping[str, Any]) -> Iterator[Figure]:
    """What only an edge in Kafka mode has."""
    kafka = status["kafka"]
    yield _one("escrow_kafka_reachable", "gauge", "Kafka mode: 1 = Kafka takes what the edge writes", kafka["reachable"])
    yield _one(
        "escrow_kafka_failures", "counter", "Kafka mode: times that Kafka took too long or did not answer", kafka["failures"]
    )
    yield _one("escrow_kafka_queued_records", "gauge", "Kafka mode: records on their way to Kafka", status["queued_records"])
    yield _one("escrow_kafka_ops_read", "counter", "Kafka mode: op records followed", sum(kafka["ops_read"].values()))
    kept = kafka["checkpoints"]
    yield _one("escrow_kafka_checkpoints", "counter", "Kafka mode: checkpoints written to the ends topic", kept["written"])
    yield _one("escrow_kafka_checkpoint_failures", "counter", "Kafka mode: checkpoints not written", kept["failures"])
    yield _one("escrow_kafka_ops_since_checkpoint", "gauge", "Kafka mode: ops that the next start reads", kept["ops_since"])


def _checks(status: Mapping[str, Any]) -> Iterator[Figure]:
    checks = status["checks"]
    yield _one("escrow_checks_handed_over", "counter", "Check requests handed to a member", status["asked"])
    yield _one("escrow_checks_lapsed", "counter", "Check requests that were not taken in their round", checks["lapsed"])
    yield _one("escrow_checks_waiting", "gauge", "Check requests that wait for a member", checks["requests_waiting"])
    yield _one("escrow_check_polls", "counter", "Polls for check requests", checks["polls"])
    yield _one("escrow_check_polls_waiting", "gauge", "Long polls for checks that wait", checks["polls_waiting"])


def _rocketmq(found: Mapping[str, int]) -> Iterator[Figure]:
    yield _one("escrow_grpc_clients", "gauge", "RocketMQ clients that were heard of lately", found.get("clients", 0))
    yield _one("escrow_grpc_streams", "gauge", "Their telemetry streams that are open", found.get("streams", 0))


def _couriers(status: Mapping[str, Any]) -> Iterator[Figure]:
    couriers = status["transports"]["couriers"] if "transports" in status else []
    service = status.get("transaction_service", {"failures": 0})
    yield _one("escrow_couriers", "gauge", "Couriers: webhooks, plug-in transports and listeners", len(couriers))
    yield _one(
        "escrow_couriers_broken", "gauge", "Couriers whose circuit is open", sum(each["state"] != "closed" for each in couriers)
    )
    yield _one("escrow_courier_handed_over", "counter", "Check requests that couriers delivered", _sum(couriers, "handed_over"))
    yield _one("escrow_courier_failures", "counter", "Deliveries of couriers that failed", _sum(couriers, "failures"))
    yield _one(
        "escrow_courier_answers_lost", "counter", "Answers of couriers that could not be kept", _sum(couriers, "answers_lost")
    )
    yield _one(
        "escrow_plugin_service_failures", "counter", "Calls of a plugged-in transaction service that failed", service["failures"]
    )


def _consumers(consuming: Consuming, found: Mapping[str, int], names_max: int) -> Iterator[Figure]:
    yield _one("escrow_consumer_polls", "counter", "Polls for messages", found["polls"])
    yield _one("escrow_consumer_polls_waiting", "gauge", "Long polls for messages that wait", found["polls_waiting"])
    yield _one("escrow_consumer_handed_out", "counter", "Messages handed to consumers", found["handed_out"])
    yield _one("escrow_consumer_redelivered", "counter", "Messages handed out again", found["again"])
    yield _one("escrow_consumer_done", "counter", "Messages acknowledged", found["done"])
    yield _one("escrow_consumer_stale_receipts", "counter", "Acknowledgements that came too late", found["stale"])
    yield _each("escrow_consumer_passed_over", "Messages that a consumer group was not given", "why", found, _PASSED_OVER)
    yield _one("escrow_dead_letters", "counter", "Messages that became dead letters", found["dead"])
    yield _one("escrow_dead_letters_replayed", "counter", "Dead letters given to their group again", found["replayed"])
    yield _one(
        "escrow_tail_ops", "gauge", "Released messages that consumers may have and the job has not settled", found["tail_ops"]
    )
    lags = sorted(consuming.lags().items(), key=lambda pair: (-pair[1][0], pair[0]))
    named, rest = _split(lags, names_max)
    rows = [({"topic": topic, "group": group}, figures) for (topic, group), figures in named]
    if rest:
        rows.append(({"topic": OTHER, "group": OTHER}, (sum(lag for _, (lag, _) in rest), sum(each for _, (_, each) in rest))))
    yield "escrow_consumer_lag", "gauge", "Messages that a consumer group has not done", [(names, lag) for names, (lag, _) in rows]
    yield "escrow_consumer_in_hand", "gauge", "Messages handed out and not done", [(names, each) for names, (_, each) in rows]


def _connections(door: Door, app: App) -> Iterator[Figure]:
    yield _one("escrow_connections", "gauge", "Open connections", door.connections)
    yield _one("escrow_requests_running", "gauge", "Requests that are being answered", door.running)
    shares = app.access.shares
    yield _one("escrow_requests_delayed", "counter", "Requests that waited for their token's rate", shares.delayed)
    yield _one("escrow_requests_over_share", "counter", "Requests refused for their token's share", shares.refused)
    yield _one("escrow_connections_refused", "counter", "Connections refused or ended for their manners", door.refused)
    yield _one("escrow_connections_stalled", "gauge", "Connections whose client does not take its answer", door.stalled)
    yield (
        "escrow_receiving_bytes", "gauge", "Bodies being received",
        [({"share": name}, share.bytes) for name, share in app.receiving.items()],
    )  # fmt: skip


# --- in a thread ------------------------------------------------------------------------------------------------------------------
def _unsettled(backlog: Backlog, job: JobState, now_ms: int) -> Iterator[Figure]:
    yield (
        "escrow_unsettled_records", "gauge", "Durable records that the job has not settled",
        [({"queue": "half"}, job.halves_behind), ({"queue": "op"}, job.ops_behind)],
    )  # fmt: skip
    oldest_ms = backlog.oldest_unsettled_ms(job)
    age_s = max(now_ms - oldest_ms, 0) / 1000 if oldest_ms is not None else 0.0
    yield _one("escrow_unsettled_age_seconds", "gauge", "Age of the oldest record that the job has not settled; 0 = none", age_s)


def _groups(edge: Capabilities, backlog: Backlog, live: set[str]) -> Iterator[Figure]:
    """Producer groups that have, or had since the start, pending halves: those with the most first."""
    pending, ages = backlog.pending_by_group(), backlog.oldest_age_s()
    active = set(pending) | set(backlog.ended_by_group())
    timeout_s = edge.settings.transaction_timeout_ms / 1000
    alone = {group for group in pending if group not in live and ages.get(group, 0) > timeout_s}
    named, rest = _split(sorted(active, key=lambda group: (-pending.get(group, 0), group)), edge.settings.metrics_names_max)
    rows = [(group, pending.get(group, 0), ages.get(group, 0), group in live) for group in named]
    if rest:
        oldest = max(ages.get(group, 0) for group in rest)
        rows.append((OTHER, sum(pending.get(group, 0) for group in rest), oldest, not alone.intersection(rest)))
    labels = [{"group": row[0]} for row in rows]
    for at, (name, text) in enumerate(
        (
            ("escrow_group_pending", "Pending halves of a producer group"),
            ("escrow_group_oldest_pending_age_seconds", "Age of the oldest pending half of a producer group; 0 = none"),
            ("escrow_group_live", "1 = the producer group has a live member"),
        ),
        1,
    ):
        yield name, "gauge", text, [(label, float(row[at])) for label, row in zip(labels, rows, strict=True)]
    yield _one("escrow_groups_unattended", "gauge", "Groups with halves past transactionTimeOut and no live member", len(alone))


# --- lines ----------------------------------------------------------------------------------------------------------------------
def _split(items: Sequence[T], most: int) -> tuple[Sequence[T], Sequence[T]]:
    return items[:most], items[most:]


def _sum(couriers: list[dict[str, Any]], what: str) -> int:
    return sum(each[what] for each in couriers)


def _each(name: str, text: str, label: str, found: Mapping[str, int], known: Sequence[str]) -> Figure:
    """A counter with one label of few fixed values."""
    return name, "counter", text, [({label: value}, float(found.get(value, 0))) for value in known]


def _one(name: str, kind: str, text: str, value: float) -> Figure:
    return name, kind, text, [({}, float(value))]
