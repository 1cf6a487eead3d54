"""What RocketMQ's clients need to know of ids in Kafka mode."""

from __future__ import annotations

from typing import Any

from ingest.errors import BadId


class KafkaIssued:
    """`epoch` grows with every start of the endpoint."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def group_of(self, _id: str) -> str:
        """An id names a place; its group is sealed and not in it. Whoever ends it has to name the group."""
        raise BadId("id: does not tell its producer group")

    def transaction_id_of(self, _delivery: Any) -> str | None:
        """Consumers read from Kafka: nothing is delivered here."""
        return None
