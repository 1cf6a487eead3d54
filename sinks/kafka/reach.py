"""Whether a real topic can take messages now, asked before anything is sent to it.

A partition that becomes part of a Kafka transaction and cannot be written to holds that transaction's id until it can: Kafka has
to write the end of the transaction there. So what is known to be unreachable is left out from the beginning.
"""

from __future__ import annotations

from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

MIN_INSYNC: Final = "min.insync.replicas"


def problem_of(found: Any, client: dict[str, Any], timeout_s: float) -> str:
    """Why a topic, as the client describes it, takes no messages; "" if it should."""
    partitions = found.partitions
    leaderless = [number for number, each in partitions.items() if each.leader < 0]
    if leaderless:
        return f"topic {found.topic}: {len(leaderless)} of {len(partitions)} partitions have no leader, first {leaderless[0]}"
    reduced = [each for each in partitions.values() if len(each.isrs) < len(each.replicas)]
    if not reduced:
        return ""
    # As in the broker, a topic never needs more copies than it has.
    wanted = _min_insync(client, found.topic, timeout_s)
    short = [each.id for each in reduced if len(each.isrs) < min(wanted, len(each.replicas))]
    return f"topic {found.topic}: partition {short[0]} has fewer copies in sync than {MIN_INSYNC}={wanted}" if short else ""


def _min_insync(client: dict[str, Any], topic: str, timeout_s: float) -> int:
    """1 where the brokers do not tell: what is sent then may be refused, or not be answered."""
    resource, admin = ConfigResource(ResourceType.TOPIC, topic), AdminClient(client)
    try:
        told: Any = admin.describe_configs([resource], request_timeout=timeout_s)[resource].result(timeout_s)
        return int(told[MIN_INSYNC].value)
    except (KafkaException, KeyError, ValueError, TimeoutError):
        return 1
