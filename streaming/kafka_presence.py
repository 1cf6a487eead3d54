"""Which producer groups have a live member: those whose Kafka consumer group on the check topic has one.

Asked of Kafka when a round begins, for all groups at once; what it said is believed for a moment, because every shard asks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from confluent_kafka.admin import AdminClient

from sinks.kafka import groups
from sinks.kafka.clients import Connection

ASK_S: Final = 10.0
KNOWN_S: Final = 1.0


class GroupsAlive:
    """Used by the ticker's thread."""

    def __init__(self, connection: Connection, prefix: str) -> None:
        self._admin: AdminClient = connection.admin()
        self._prefix = prefix
        self._live: dict[str, bool] = {}
        self._known_until_s = 0.0

    def of(self, producer_groups: Sequence[str]) -> npt.NDArray[np.bool_]:
        """For each group whether somebody can be asked. Kafka, or the group's coordinator, out of reach: nobody."""
        if producer_groups and time.monotonic() >= self._known_until_s:
            self._live = groups.members(self._admin, ASK_S).live
            self._known_until_s = time.monotonic() + KNOWN_S
        return np.array([bool(group) and self._live.get(self._prefix + group, False) for group in producer_groups], np.bool_)
