"""Whether a real topic can take messages now, asked before anything is sent to it.

A partition that becomes part of a Kafka transaction and cannot be written to holds that transaction's id until it can: Kafka has
to write the end of the transaction there. So what is known to be unreachable is left out from the beginning.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Set
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, ResourceType

from sinks.kafka import contract
from sinks.kafka.refusals import REFUSALS, Known

MIN_INSYNC: Final = "min.insync.replicas"
METADATA_S: Final = 10.0
#: How long the number of a real topic's partitions is cached.
TOPIC_KNOWN_S: Final = 5.0

#: By topic: how many partitions it has, and until when that is believed (monotonic seconds).
KnownTopics = dict[str, tuple[int, float]]


class RealTopics:
    """Topics that messages are released to. A topic that takes no messages is barred for the batch."""

    def __init__(
        self, producer: Producer, client: dict[str, Any], known: KnownTopics, knows: Known, own_topics: Set[str]
    ) -> None:  # fmt: skip
        self._producer, self._client, self._known, self._knows = producer, client, known, knows
        self._own_topics = own_topics

    def problem(self, topic: str, partition: int, now_s: float) -> str:
        """Why no message can go there; "" if it can. Asked before sending: a producer would wait for the topic."""
        if topic in self._knows.barred:
            return self._knows.barred[topic]
        known = self._known.get(topic)
        if known is None or known[1] < now_s:
            if not contract.is_topic_name(topic):
                return f"{topic[:80]!r} is not a valid topic name"
            if topic in self._own_topics:
                return f"topic {topic} is Escrow's own"
            found = self._producer.list_topics(topic, METADATA_S).topics[topic]
            if found.error is not None and found.error.code() not in REFUSALS:
                raise KafkaException(found.error)
            problem = f"topic {topic}: {found.error.str()}" if found.error is not None else problem_of(found, self._client)
            if problem:
                self._knows.bar({topic: problem})
                return problem
            known = self._known[topic] = (len(found.partitions), time.monotonic() + TOPIC_KNOWN_S)
        if partition >= known[0]:
            return f"topic {topic} has {known[0]} partitions, none is number {partition}"
        return ""


def problem_of(found: Any, client: dict[str, Any], timeout_s: float = METADATA_S) -> str:
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


def unwritable(client: dict[str, Any], topics: Iterable[str]) -> dict[str, str]:
    """Those of these topics that Escrow may not write to, and the reason to report."""
    admin, found, names = AdminClient(client), list[str](), list(topics)
    if not names:
        return {}
    asked = admin.describe_topics(TopicCollection(names), include_authorized_operations=True, request_timeout=METADATA_S)
    for topic, described in asked.items():
        try:
            allowed = described.result(2 * METADATA_S).authorized_operations
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                found.append(topic)
        else:
            found += [topic] if allowed and AclOperation.WRITE not in allowed else []
    return {topic: f"topic {topic}: Escrow's Kafka user may not write to it" for topic in found}


def _min_insync(client: dict[str, Any], topic: str, timeout_s: float) -> int:
    """1 where the brokers do not tell: what is sent then may be refused, or not be answered."""
    resource, admin = ConfigResource(ResourceType.TOPIC, topic), AdminClient(client)
    try:
        told: Any = admin.describe_configs([resource], request_timeout=timeout_s)[resource].result(timeout_s)
        return int(told[MIN_INSYNC].value)
    except (KafkaException, KeyError, ValueError, TimeoutError):
        return 1
