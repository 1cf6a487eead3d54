"""Offsets that consumer groups have committed, of many groups at once.

By kafka-python: librdkafka asks for one group at a time, and ends the process when it loses the broker while it looks for a group's
coordinator on behalf of an admin request (see groups.py).
"""

from __future__ import annotations

from typing import Any

from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import KafkaError

from sinks.kafka.clients import Connection

#: (producer group, partition of the check topic)
Lane = tuple[str, int]


class Unanswered(Exception):
    """Kafka did not say."""


class CommittedReader:
    """Used by one thread."""

    def __init__(self, connection: Connection, topic: str, prefix: str) -> None:
        self._connection, self._topic, self._prefix = connection, topic, prefix
        self._admin: Any = None

    def read(self, lanes: set[Lane]) -> dict[Lane, int]:
        """The committed offset of each; -1 where the group has committed none."""
        asked: dict[str, list[TopicPartition]] = {}
        for group, partition in lanes:
            asked.setdefault(self._prefix + group, []).append(TopicPartition(self._topic, partition))
        try:
            if self._admin is None:
                self._admin = KafkaAdminClient(**self._connection.kafka_python())
            found = self._admin.list_group_offsets(asked)
        except (KafkaError, OSError) as error:
            self.close()
            raise Unanswered(f"{type(error).__name__}: {error}") from error
        known = {}
        for group, partition in lanes:
            place = found.get(self._prefix + group, {}).get(TopicPartition(self._topic, partition))
            known[group, partition] = int(place.offset) if place is not None else -1
        return known

    def close(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()
