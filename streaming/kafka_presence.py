"""Which producer groups have a live member: those whose Kafka consumer group on the check topic has one.

Asked of Kafka when a round begins, for all groups at once; what it said is believed for a moment, because every shard asks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sinks.kafka.clients import Connection

ASK_S: Final = 20.0
KNOWN_S: Final = 1.0
GROUPS_PER_REQUEST: Final = 500


class GroupsAlive:
    """Used by the ticker's thread."""

    def __init__(self, connection: Connection, prefix: str) -> None:
        self._admin: AdminClient = connection.admin()
        self._prefix = prefix
        self._known: dict[str, tuple[bool, float]] = {}

    def of(self, groups: Sequence[str]) -> npt.NDArray[np.bool_]:
        """For each group whether somebody can be asked. Kafka out of reach: nobody."""
        now_s = time.monotonic()
        unknown = [group for group in groups if self._known.get(group, (False, 0.0))[1] < now_s]
        for first in range(0, len(unknown), GROUPS_PER_REQUEST):
            self._ask(unknown[first : first + GROUPS_PER_REQUEST])
        return np.array([self._known[group][0] for group in groups], np.bool_)

    def _ask(self, groups: list[str]) -> None:
        asked = self._admin.describe_consumer_groups([self._prefix + group for group in groups], request_timeout=ASK_S)
        for group in groups:
            answer: Any = asked[self._prefix + group]
            try:
                alive = bool(answer.result(ASK_S).members)
            except KafkaException:  # no such group, or no answer
                alive = False
            self._known[group] = (alive, time.monotonic() + KNOWN_S)
