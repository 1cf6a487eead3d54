"""What the edge tells Prometheus, read when somebody asks. docs/metrics.md explains each name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from escrow.metrics import Figure
from ingest.app import App
from ingest.core import Edge
from ingest.door import Door

_ANSWERS = ("accepted", "already", "conflict", "refused")
_QUOTAS = ("rate", "pending", "pending_age")


def edge_figures(edge: Edge, door: Door, app: App) -> Iterator[Figure]:
    status = edge.counts()
    yield _one("escrow_halves_stored", "counter", "Halves made durable", status["halves"])
    yield _one("escrow_messages_stored", "counter", "Ordinary messages made durable", status["messages"])
    yield _each("escrow_ends", "Ends answered, by verdict", "verdict", status["answers"], _ANSWERS)
    yield _one("escrow_checks_handed_over", "counter", "Check requests handed to a member", status["asked"])
    yield _one("escrow_checks_lapsed", "counter", "Check requests that nobody took in their round", status["checks"]["lapsed"])
    yield _one("escrow_checks_waiting", "gauge", "Check requests that wait for a member", status["checks"]["requests_waiting"])
    yield _one("escrow_polls_waiting", "gauge", "Long polls for checks that wait", status["checks"]["polls_waiting"])
    yield _one("escrow_discarded", "counter", "Proposals that became discards", status["discarded"])
    yield _one("escrow_ops_reopened", "counter", "Halves reopened because their end could not be read", status["reopened"])
    yield _one("escrow_flushes", "counter", "Flushes of the commit log; many requests share one", status["flushes"])
    yield _one("escrow_queued_bytes", "gauge", "Bytes that wait for a flush", status["queued_bytes"])
    yield _one("escrow_refused_for_load", "counter", "Requests refused because too much waited", status["refused_for_load"])
    yield from _consumers(status["consumption"])
    yield _each("escrow_quota_refused", "Halves and messages refused by a quota", "quota", status["quotas"]["refused"], _QUOTAS)
    couriers = status["transports"]["couriers"] if "transports" in status else []
    yield _one("escrow_courier_handed_over", "counter", "Check requests that couriers delivered", _sum(couriers, "handed_over"))
    yield _one("escrow_courier_failures", "counter", "Deliveries of couriers that failed", _sum(couriers, "failures"))
    yield _one(
        "escrow_couriers_broken", "gauge", "Couriers whose circuit is open", sum(each["state"] != "closed" for each in couriers)
    )
    yield _one("escrow_connections", "gauge", "Open connections", door.connections)
    yield _one("escrow_requests_running", "gauge", "Requests that are being answered", len(door.state.tasks))
    yield _one("escrow_connections_refused", "counter", "Connections refused or ended for their manners", door.refused)
    yield _one("escrow_connections_stalled", "gauge", "Connections whose client does not take its answer", len(door.stalled))
    yield (
        "escrow_receiving_bytes", "gauge", "Bodies being received",
        [({"share": name}, share.bytes) for name, share in app.receiving.items()],
    )  # fmt: skip
    yield _one(
        "escrow_edge_healthy", "gauge", "0 = something that the edge does beside requests fails; its log tells", status["healthy"]
    )


def _consumers(found: dict[str, int]) -> Iterator[Figure]:
    yield _one("escrow_consumer_polls", "counter", "Polls for messages", found["polls"])
    yield _one("escrow_consumer_handed_out", "counter", "Messages handed to consumers", found["handed_out"])
    yield _one("escrow_consumer_redelivered", "counter", "Messages handed out again", found["again"])
    yield _one("escrow_consumer_done", "counter", "Messages acknowledged", found["done"])
    yield _one("escrow_consumer_stale_receipts", "counter", "Acknowledgements that came too late", found["stale"])
    yield _one("escrow_dead_letters", "counter", "Messages that became dead letters", found["dead"])
    yield _one("escrow_dead_letters_replayed", "counter", "Dead letters given to their group again", found["replayed"])


def _sum(couriers: list[dict[str, Any]], what: str) -> int:
    return sum(each[what] for each in couriers)


def _each(name: str, text: str, label: str, found: Mapping[str, int], known: Sequence[str]) -> Figure:
    """A counter with one label of few fixed values."""
    return name, "counter", text, [({label: value}, float(found.get(value, 0))) for value in known]


def _one(name: str, kind: str, text: str, value: float) -> Figure:
    return name, kind, text, [({}, float(value))]
