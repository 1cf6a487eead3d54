"""Writes conf/grafana/dashboards/*.json: `make pages`. A test compares the files with what is described here.

A panel is one line of what it shows, why, in which unit, and its queries; where it stands on its board follows from the order.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

PLACE: Final = Path(__file__).parents[1] / "conf" / "grafana" / "dashboards"
#: Grafana's own number of the form of a dashboard.
SCHEMA: Final = 41
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
WIDTH: Final = 24
I: Final = 'instance=~"$instance"'  # noqa: E741 - stands in nearly every query
RATE: Final = "[$__rate_interval]"
GREEN, AMBER, RED = "green", "orange", "red"


@dataclass(frozen=True)
class Panel:
    """`queries`: (PromQL, legend). `steps`: colours from a value on."""

    title: str
    text: str
    unit: str
    queries: list[tuple[str, str]]
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    steps: list[tuple[str, float | None]] = field(default_factory=list)
    stack: bool = False
    maps: dict[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    title: str
    panels: list[Panel]


@dataclass(frozen=True)
class Variable:
    name: str
    label: str
    query: str


@dataclass(frozen=True)
class Board:
    uid: str
    title: str
    text: str
    rows: list[Row]
    variables: list[Variable] = field(default_factory=list)


INSTANCE: Final = Variable("instance", "Escrow", "label_values(escrow_build_info, instance)")
GROUP: Final = Variable("group", "producer group", f"label_values(escrow_group_pending{{{I}}}, group)")
TOPIC: Final = Variable("topic", "topic", f"label_values(escrow_consumer_lag{{{I}}}, topic)")
READERS: Final = Variable("readers", "consumer group", f'label_values(escrow_consumer_lag{{{I}, topic=~"$topic"}}, group)')
G: Final = f'{I}, group=~"$group"'
ACCEPTED: Final = f'{I}, verdict="accepted"'
L: Final = f'{I}, topic=~"$topic", group=~"$readers"'


def stat(title: str, text: str, unit: str, query: str, steps: list[tuple[str, float | None]], **rest: Any) -> Panel:
    return Panel(title, text, unit, [(query, "")], "stat", 4, 4, steps, **rest)


def quantiles(metric: str, by: str = "") -> list[tuple[str, str]]:
    """Median and 99th percentile of a histogram, by a label if given."""
    labels = ", ".join(filter(None, ("le", by)))
    shown = f"{{{{{by}}}}} " if by else ""
    rate = f"sum by ({labels}) (rate({metric}_bucket{{{I}}}{RATE}))"
    return [(f"histogram_quantile({q}, {rate})", f"{shown}p{round(q * 100)}") for q in (0.5, 0.99)]


def rate(metric: str, by: str = "", where: str = I) -> str:
    return f"sum{f' by ({by}) ' if by else ' '}(rate({metric}{{{where}}}{RATE}))"


UP: Final = {"0": ("down", RED), "1": ("up", GREEN)}

TRANSACTIONS: Final = Board(
    "escrow-transactions",
    "Escrow · transactions",
    "What is in doubt and why; what became of the rest.",
    [
        Row("Now", [
            stat("Pending", "Halves that wait for their end.", "short", f"sum(escrow_pending{{{I}}})", [(GREEN, None)]),
            stat("Oldest in doubt", "Age of the oldest pending half. With the defaults nobody waits longer than eight minutes "
                 "if somebody of its group can be asked.", "s", f"max(escrow_oldest_pending_age_seconds{{{I}}})",
                 [(GREEN, None), (AMBER, 300), (RED, 900)]),
            stat("Groups without a member", "Producer groups with halves past transactionTimeOut and nobody to ask.", "short",
                 f"sum(escrow_groups_unattended{{{I}}})", [(GREEN, None), (RED, 1)]),
            stat("Discards, 1 h", "Halves put aside for an operator within the last hour.", "short",
                 f"sum(increase(escrow_discards_total{{{I}}}[1h]))", [(GREEN, None), (RED, 1)]),
            stat("Conflicts, 1 h", "Ends that said the opposite of what their transaction had become, within the last hour.", "short",
                 f'sum(increase(escrow_ends_total{{{I}, verdict="conflict"}}[1h]))', [(GREEN, None), (RED, 1)]),
            stat("Clock", "Whether discards and retention are stopped because the wall clock jumped.", "short", f"max(escrow_clock_alert{{{I}}})",
                 [(GREEN, None), (RED, 1)], maps={"0": ("trusted", GREEN), "1": ("jumped", RED)}),
        ]),
        Row("Flow", [
            Panel("Halves and what became of them", "Halves stored a second, and transactions ended a second by outcome. In a steady "
                  "service the ends add up to the halves.", "ops",
                  [(rate("escrow_halves_stored_total"), "halves"), (rate("escrow_settled_total", "outcome"), "{{outcome}}")], width=12),
            Panel("Pending", "Halves that wait for their end, over time: a plateau is normal, a slope is not.", "short",
                  [(f"sum by (instance) (escrow_pending{{{I}}})", "{{instance}}")], width=12),
            Panel("Time to a decision", "From the half's storing to its end's storing: the producer's own transaction, or a check.",
                  "s", quantiles("escrow_decision_seconds")),
            Panel("Time to the topic", "From the commit's storing to the message in its settled queue. Consumers get it earlier.",
                  "s", quantiles("escrow_release_seconds")),
            Panel("Ends by verdict", "accepted: it counted. already: said before, harmless. conflict: the opposite was said. refused: "
                  "not known, not yours, or discarded.", "ops", [(rate("escrow_ends_total", "verdict"), "{{verdict}}")]),
        ]),
        Row("In doubt", [
            Panel("Pending by producer group", "The groups with the most pending halves; (other) is the sum of the rest.", "short",
                  [(f"sum by (group) (escrow_group_pending{{{G}}})", "{{group}}")], stack=True, width=12),
            Panel("Oldest pending half by group", "How long the oldest half of each group has waited.", "s",
                  [(f"max by (group) (escrow_group_oldest_pending_age_seconds{{{G}}})", "{{group}}")], width=12,
                  steps=[(GREEN, None), (AMBER, 300), (RED, 900)]),
            Panel("Groups with a live member", "1 = somebody can be asked. A group that is red and has old halves will not get out of "
                  "doubt by itself.", "short", [(f"min by (group) (escrow_group_live{{{G}}})", "{{group}}")], "state-timeline",
                  steps=[(RED, None), (GREEN, 1)], maps={"0": ("nobody", RED), "1": ("live", GREEN)}),
            Panel("Check requests", "Emitted by the job, handed to a member, lapsed because nobody took them in their round.", "ops",
                  [(rate("escrow_checks_emitted_total"), "emitted"), (rate("escrow_checks_handed_over_total"), "handed over"),
                   (rate("escrow_checks_lapsed_total"), "lapsed")]),
            Panel("Waiting for somebody to ask", "Due halves that are held because their group has no live member; requests that wait "
                  "for a member.", "short",
                  [(f"sum(escrow_checks_held{{{I}}})", "held"), (f"sum(escrow_checks_waiting{{{I}}})", "waiting")]),
        ]),
        Row("Who decided, who was refused", [
            Panel("Decided by", "Who said what became of a transaction: its producer, an answer to a check, an operator, the checker.",
                  "ops", [(rate("escrow_settled_total", "via"), "{{via}}")], stack=True),
            Panel("Discards by reason", "check_max: asked transactionCheckMax times without an answer. expired: older than "
                  "fileReservedTime.", "short",
                  [(f"sum by (reason) (increase(escrow_discards_total{{{I}}}{RATE}))", "{{reason}}")]),
            Panel("Refused by quotas and load", "Halves that were not taken; their producers were told when to try again.", "ops",
                  [(rate("escrow_quota_refused_total", "quota"), "quota: {{quota}}"), (rate("escrow_refused_for_load_total"), "load")]),
            Panel("Webhooks and transports", "Check requests that couriers delivered or failed to deliver.", "ops",
                  [(rate("escrow_courier_handed_over_total"), "delivered"), (rate("escrow_courier_failures_total"), "failed")], width=12),
            Panel("Broken couriers", "Webhooks and transports that pause after too many failures.", "short",
                  [(f"sum(escrow_couriers_broken{{{I}}})", "broken"), (f"sum(escrow_couriers{{{I}}})", "all")], width=12),
        ]),
    ],
    [INSTANCE, GROUP],
)  # fmt: skip

STREAMING: Final = Board(
    "escrow-streaming",
    "Escrow · streaming",
    "The Spark job that settles: is it alive, does it keep up, where does its time go.",
    [
        Row("Now", [
            stat("Job", "Whether the edge sees signs of life of the job.", "short", f"min(escrow_job_up{{{I}}})",
                 [(RED, None), (GREEN, 1)], maps=UP),
            stat("Query", "Whether Spark runs the streaming query.", "short", f"min(escrow_query_up{{{I}}})",
                 [(RED, None), (GREEN, 1)], maps=UP),
            stat("Behind", "Age of the oldest durable record that is not settled.", "s", f"max(escrow_unsettled_age_seconds{{{I}}})",
                 [(GREEN, None), (AMBER, 5), (RED, 30)]),
            stat("Records behind", "Durable records that are not settled.", "short", f"sum(escrow_unsettled_records{{{I}}})",
                 [(GREEN, None), (AMBER, 100_000)]),
            stat("Batches a second", "Micro-batches that Spark reported.", "ops", rate("escrow_spark_batches_total"), [(GREEN, None)]),
            stat("Job started", "When the job's process began.", "dateTimeFromNow",
                 f'max(process_start_time_seconds{{{I}, job=~".*job"}}) * 1000', [(GREEN, None)]),
        ]),
        Row("Does it keep up", [
            Panel("Records through the stream", "Halves and ops that batches brought, a second.", "ops",
                  [(rate("escrow_records_read_total", "queue"), "{{queue}}")]),
            Panel("Records behind", "Durable and not settled, by queue, as the edge sees it.", "short",
                  [(f"sum by (queue) (escrow_unsettled_records{{{I}}})", "{{queue}}")]),
            Panel("Age of the oldest unsettled record", "How far behind the job is in time.", "s",
                  [(f"max by (instance) (escrow_unsettled_age_seconds{{{I}}})", "{{instance}}")],
                  steps=[(GREEN, None), (AMBER, 5), (RED, 30)]),
        ]),
        Row("Where the time goes", [
            Panel("Phases of a batch", "Median and 99th percentile of Escrow's own phases.", "s",
                  quantiles("escrow_batch_phase_seconds", "phase"), width=12),
            Panel("Spark's phases", "The same for Spark's: triggerExecution is the whole of a micro-batch. One batch a second is sampled.",
                  "s", quantiles("escrow_spark_phase_seconds", "phase"), width=12),
            Panel("Redo log", "One batch into the redo log, flushed.", "s", quantiles("escrow_redo_flush_seconds")),
            Panel("Check rounds", "Rounds gone through, and check requests emitted, a second.", "ops",
                  [(rate("escrow_check_rounds_total"), "rounds"), (rate("escrow_checks_emitted_total"), "requests")]),
            Panel("Ops without effect, and failed sinks", "Ends that had been said before, contradictions, late answers; and calls of "
                  "plug-in sinks that failed.", "ops",
                  [(rate("escrow_ops_without_effect_total", "why"), "{{why}}"), (rate("escrow_sink_errors_total"), "sink errors")]),
        ]),
        Row("Spark", [
            Panel("Heap", "Heap of Spark's driver, and its limit (sparkDriverMemory).", "bytes",
                  [(f"max by (area) (escrow_jvm_heap_bytes{{{I}}})", "{{area}}")]),
            Panel("Garbage collection", "Share of the time that Java spends collecting.", "percentunit",
                  [(rate("escrow_jvm_gc_seconds_total", "instance"), "{{instance}}")],
                  steps=[(GREEN, None), (AMBER, 0.1), (RED, 0.2)]),
            Panel("Python workers", "Resident memory of the Python processes that Spark has started.", "bytes",
                  [(f"max by (instance) (escrow_spark_python_worker_bytes{{{I}}})", "{{instance}}")]),
            Panel("Rows", "Rows of a batch, a second: as they came in, and while it ran. In embedded mode a row holds many records.",
                  "ops", [(f"max by (rate) (escrow_spark_rows_per_second{{{I}}})", "{{rate}}")], width=12),
            Panel("Executors", "Executors, and Python processes on the driver's machine.", "short",
                  [(f"max by (instance) (escrow_spark_executors{{{I}}})", "executors"),
                   (f"max by (instance) (escrow_spark_python_workers{{{I}}})", "Python processes")], width=12),
        ]),
        Row("The process", [
            Panel("Processor", "Cores in use by the job's Python process; Java comes on top.", "short",
                  [(rate("process_cpu_seconds_total", "instance", f'{I}, job=~".*job"'), "{{instance}}")], width=12),
            Panel("Memory", "Resident memory of the job's Python process, mapped files of the store included.", "bytes",
                  [(f'max by (instance) (process_resident_memory_bytes{{{I}, job=~".*job"}})', "{{instance}}")], width=12),
        ]),
    ],
    [INSTANCE],
)  # fmt: skip

STORE: Final = Board(
    "escrow-store",
    "Escrow · store",
    "Flushes, files and the disk.",
    [
        Row("Now", [
            stat("Disk free", "Share of the data directory's file system that is free.", "percentunit",
                 f"min(escrow_disk_free_bytes{{{I}}} / escrow_disk_size_bytes{{{I}}})", [(RED, None), (AMBER, 0.1), (GREEN, 0.2)]),
            stat("Free", "The same in bytes.", "bytes", f"min(escrow_disk_free_bytes{{{I}}})", [(GREEN, None)]),
            stat("Store", "All files of the store.", "bytes", f"sum(escrow_store_bytes{{{I}}})", [(GREEN, None)]),
            stat("Flush, p99", "One flush in a hundred takes longer.", "s",
                 f"histogram_quantile(0.99, sum by (le) (rate(escrow_flush_seconds_bucket{{{I}}}{RATE})))",
                 [(GREEN, None), (AMBER, 0.1), (RED, 0.25)]),
            stat("Waiting for a flush", "Bytes that were sent and are not durable yet.", "bytes", f"sum(escrow_queued_bytes{{{I}}})",
                 [(GREEN, None), (AMBER, 32 << 20)]),
            stat("Corrupt records", "Records that failed their check since the store was made.", "short",
                 f'sum(escrow_transactions_total{{{I}, event="quarantined"}})', [(GREEN, None), (RED, 1)]),
        ]),
        Row("Flushes", [
            Panel("Time of a flush", "What every acknowledgement waits for.", "s", quantiles("escrow_flush_seconds")),
            Panel("Flushes a second", "Flushes of the commit log.", "ops", [(rate("escrow_flushes_total"), "flushes")]),
            Panel("Records a flush", "Halves, messages and accepted ends that shared one flush: the more load, the more.", "short",
                  [(f"({rate('escrow_halves_stored_total')} + {rate('escrow_messages_stored_total')} + "
                    f"{rate('escrow_ends_total', where=ACCEPTED)}) / {rate('escrow_flushes_total')}",
                    "records")]),
        ]),
        Row("Files", [
            Panel("Size by part", "Files are made in full size; they grow in steps.", "bytes",
                  [(f"sum by (part) (escrow_store_bytes{{{I}}})", "{{part}}")], stack=True),
            Panel("Room on the disk", "Free bytes, and where six hours at the pace of the last hour would lead.", "bytes",
                  [(f"min(escrow_disk_free_bytes{{{I}}})", "free"),
                   (f"min(predict_linear(escrow_disk_free_bytes{{{I}}}[1h], 6 * 3600))", "in six hours")]),
            Panel("Files that retention removed", "Nothing pending points into them, and all in them is older than fileReservedTime.",
                  "short", [(f"sum by (part) (increase(escrow_retention_files_removed_total{{{I}}}{RATE}))", "{{part}}")]),
            Panel("Redo log", "One batch into the redo log, flushed.", "s", quantiles("escrow_redo_flush_seconds")),
            Panel("Set aside", "Corrupt records, and halves that were reopened because the record of their end was one.", "short",
                  [(f"sum by (queue) (increase(escrow_quarantined_total{{{I}}}{RATE}))", "{{queue}}"),
                   (f"sum(increase(escrow_ops_reopened_total{{{I}}}{RATE}))", "reopened")]),
            Panel("Since the store was made", "What became of all halves, as the redo log has it.", "short",
                  [(f"sum by (event) (escrow_transactions_total{{{I}}})", "{{event}}")]),
        ]),
    ],
    [INSTANCE],
)  # fmt: skip

ENDPOINT: Final = Board(
    "escrow-endpoint",
    "Escrow · endpoint and consumers",
    "Requests, connections, and how far consumer groups are.",
    [
        Row("Requests", [
            Panel("Requests a second", "By operation.", "reqps", [(rate("escrow_http_requests_total", "operation"), "{{operation}}")],
                  width=12),
            Panel("By status", "4xx: the client was wrong, or refused. 5xx: Escrow failed.", "reqps",
                  [(rate("escrow_http_requests_total", "status"), "{{status}}")], width=12),
            Panel("Time of a request, p99", "By operation; long polls take as long as they wait.", "s",
                  [(f"histogram_quantile(0.99, sum by (le, operation) (rate(escrow_http_request_seconds_bucket{{{I}}}{RATE})))",
                    "{{operation}}")]),
            Panel("Connections", "Open ones, requests being answered, and clients that do not take their answer.", "short",
                  [(f"sum(escrow_connections{{{I}}})", "open"), (f"sum(escrow_requests_running{{{I}}})", "requests running"),
                   (f"sum(escrow_connections_stalled{{{I}}})", "stalled")]),
            Panel("Bodies", "Being received, and waiting for a flush.", "bytes",
                  [(f"sum by (share) (escrow_receiving_bytes{{{I}}})", "receiving {{share}}"),
                   (f"sum(escrow_queued_bytes{{{I}}})", "queued")]),
            Panel("Refused connections", "Too many, too slow, or not HTTP.", "ops", [(rate("escrow_connections_refused_total"), "refused")]),
            Panel("Processor", "Cores in use by the edge; one is all that Python's loop can use.", "short",
                  [(rate("process_cpu_seconds_total", "instance", f'{I}, job=~".*edge"'), "{{instance}}")],
                  steps=[(GREEN, None), (AMBER, 0.8), (RED, 0.95)]),
            Panel("Open files", "Of how many the edge may have.", "short",
                  [(f'sum(process_open_fds{{{I}, job=~".*edge"}})', "open"), (f'sum(process_max_fds{{{I}, job=~".*edge"}})', "allowed")]),
        ]),
        Row("Consumers", [
            Panel("Lag", "Messages that a consumer group has not done.", "short",
                  [(f"sum by (topic, group) (escrow_consumer_lag{{{L}}})", "{{topic}} / {{group}}")], width=12),
            Panel("In hand", "Handed out, neither acknowledged nor lapsed.", "short",
                  [(f"sum by (topic, group) (escrow_consumer_in_hand{{{L}}})", "{{topic}} / {{group}}")], width=12),
            Panel("Hand-outs", "Messages handed out, of these again, and acknowledged.", "ops",
                  [(rate("escrow_consumer_handed_out_total"), "handed out"), (rate("escrow_consumer_redelivered_total"), "again"),
                   (rate("escrow_consumer_done_total"), "done")]),
            Panel("What goes wrong", "Acknowledgements that came too late, dead letters, messages passed over.", "ops",
                  [(rate("escrow_consumer_stale_receipts_total"), "late"), (rate("escrow_dead_letters_total"), "dead letters"),
                   (rate("escrow_consumer_passed_over_total", "why"), "passed over: {{why}}")]),
            Panel("Polls", "For messages and for checks: a second, and waiting now.", "short",
                  [(rate("escrow_consumer_polls_total"), "messages a second"), (rate("escrow_check_polls_total"), "checks a second"),
                   (f"sum(escrow_consumer_polls_waiting{{{I}}})", "waiting for messages"),
                   (f"sum(escrow_check_polls_waiting{{{I}}})", "waiting for checks")]),
        ]),
    ],
    [INSTANCE, TOPIC, READERS],
)  # fmt: skip

SHARD: Final = Variable("shard", "shard", f"label_values(escrow_kafka_shard_pending{{{I}}}, shard)")
S: Final = f'{I}, shard=~"$shard"'
KAFKA: Final = Board(
    "escrow-kafka",
    "Escrow · Kafka mode",
    "Shards, releases into Kafka, and who is master.",
    [
        Row("Now", [
            stat("Masters", "Drivers that hold the lease. More than one cannot last: Kafka fences the older.", "short",
                 f"sum(escrow_kafka_master{{{I}}})", [(RED, None), (GREEN, 1), (RED, 2)]),
            stat("Pending", "Halves that wait for their end, in all shards.", "short", f"sum(escrow_kafka_shard_pending{{{S}}})",
                 [(GREEN, None)]),
            stat("Oldest in doubt", "Age of the oldest pending half.", "s", f"max(escrow_oldest_pending_age_seconds{{{I}}})",
                 [(GREEN, None), (AMBER, 300), (RED, 900)]),
            stat("Records behind", "Records in Kafka that are not settled.", "short", f"sum(escrow_kafka_records_behind{{{S}}})",
                 [(GREEN, None), (AMBER, 100_000)]),
            stat("Undeliverable", "Committed messages that Kafka does not take now: topic out of reach, too large, no right, no such topic.", "short",
                 f"sum(escrow_kafka_undeliverable{{{S}}})", [(GREEN, None), (RED, 1)]),
            stat("Failed tasks, 1 h", "Release tasks that failed and were repeated; nothing is lost or doubled by it.", "short",
                 f"sum(increase(escrow_kafka_task_failures_total{{{S}}}[1h]))", [(GREEN, None), (AMBER, 1)]),
        ]),
        Row("Shards", [
            Panel("Pending by shard", "Halves that wait for their end.", "short",
                  [(f"sum by (shard) (escrow_kafka_shard_pending{{{S}}})", "shard {{shard}}")], stack=True),
            Panel("Behind by shard", "Records in Kafka that are not settled, by shard and queue.", "short",
                  [(f"sum by (shard, queue) (escrow_kafka_records_behind{{{S}}})", "shard {{shard}} {{queue}}")]),
            Panel("Undeliverable by shard", "They are tried again; the rest goes on meanwhile.", "short",
                  [(f"sum by (shard) (escrow_kafka_undeliverable{{{S}}})", "shard {{shard}}")]),
        ]),
        Row("Releases", [
            Panel("Messages a second", "Written to real topics, by shard.", "ops",
                  [(rate("escrow_kafka_released_messages_total", "shard", S), "shard {{shard}}")], stack=True),
            Panel("Bytes a second", "Bodies written to real topics, by shard.", "Bps",
                  [(rate("escrow_kafka_released_bytes_total", "shard", S), "shard {{shard}}")], stack=True),
            Panel("Failed tasks", "Release tasks that failed and were repeated, a second.", "ops",
                  [(rate("escrow_kafka_task_failures_total", "shard", S), "shard {{shard}}")]),
            Panel("Time to the topic", "From the commit in the op topic to its settlement.", "s", quantiles("escrow_release_seconds")),
            Panel("Settled", "Transactions ended a second, by outcome.", "ops", [(rate("escrow_settled_total", "outcome"), "{{outcome}}")]),
            Panel("Phases of a batch", "collect: rows from Kafka to the driver. settle: decide, write, and wait for the Kafka transaction.",
                  "s", quantiles("escrow_batch_phase_seconds", "phase")),
        ]),
    ],
    [INSTANCE, SHARD],
)  # fmt: skip

BOARDS: Final = (TRANSACTIONS, STREAMING, STORE, ENDPOINT, KAFKA)


# --- JSON ------------------------------------------------------------------------------------------------------------------------
def dashboard(board: Board) -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0
    for row in board.rows:
        panels.append(_row(row.title, len(panels) + 1, y))
        y += 1
        x = height = 0
        for panel in row.panels:
            if x + panel.width > WIDTH:
                x, y = 0, y + height
            panels.append(_panel(panel, len(panels) + 1, x, y))
            x, height = x + panel.width, panel.height
        y += height
    return {
        "uid": board.uid,
        "title": board.title,
        "description": board.text,
        "tags": ["escrow"],
        "schemaVersion": SCHEMA,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source(), *(_variable(each) for each in board.variables)]},
        "links": [
            {"type": "dashboards", "tags": ["escrow"], "title": "Escrow", "asDropdown": True, "includeVars": True, "keepTime": True}
        ],
        "annotations": {"list": [_alerts()]},
        "panels": panels,
    }


def _source() -> dict[str, Any]:
    return {"name": "datasource", "label": "data source", "type": "datasource", "query": "prometheus"}


def _variable(variable: Variable) -> dict[str, Any]:
    return {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": variable.query, "refId": variable.name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _alerts() -> dict[str, Any]:
    """Firing alerts as marks on every chart."""
    expr = f'ALERTS{{alertname=~"Escrow.*", alertstate="firing", {I}}}'
    return {"name": "alerts", "datasource": SOURCE, "enable": True, "iconColor": RED, "expr": expr, "titleFormat": "{{alertname}}"}


def _row(title: str, number: int, y: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": "row",
        "title": title,
        "collapsed": False,
        "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1},
        "panels": [],
    }


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0, "custom": {}}
    if panel.steps:
        defaults["thresholds"] = {"mode": "absolute", "steps": [{"color": colour, "value": value} for colour, value in panel.steps]}
        defaults["color"] = {"mode": "thresholds" if panel.kind != "timeseries" else "palette-classic"}
    if panel.maps:
        options = {
            value: {"text": text, "color": colour, "index": at} for at, (value, (text, colour)) in enumerate(panel.maps.items())
        }
        defaults["mappings"] = [{"type": "value", "options": options}]
    if panel.kind == "timeseries":
        defaults["custom"] = {"fillOpacity": 30 if panel.stack else 8, "showPoints": "never", "stacking": _stacking(panel)}
        if panel.steps:
            defaults["custom"]["thresholdsStyle"] = {"mode": "line"}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _options(panel),
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": expr, "legendFormat": legend or "__auto"}
            for at, (expr, legend) in enumerate(panel.queries)
        ],
    }


def _stacking(panel: Panel) -> dict[str, str]:
    return {"mode": "normal" if panel.stack else "none", "group": "A"}


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        return {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "colorMode": "background",
            "graphMode": "area",
        }
    if panel.kind == "state-timeline":
        return {"showValue": "never", "legend": {"showLegend": False}}
    return {
        "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi"},
    }


def text_of(board: Board) -> str:
    return json.dumps(dashboard(board), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for each in BOARDS:
        (PLACE / f"{each.uid}.json").write_text(text_of(each))
