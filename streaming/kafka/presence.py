"""Which producer groups have a live member: those whose Kafka consumer group on the check topic has one.

Asked of Kafka when a round begins, for all groups at once. Shards whose rounds begin together share an answer, but nobody is given
one that was asked for before: a member that has joined since would not be asked for a whole interval.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from confluent_kafka.admin import AdminClient

from sinks.kafka import groups
from sinks.kafka.clients import Connection

ASK_S: Final = 10.0


class GroupsAlive:
    """Used by the tickers' threads."""

    def __init__(self, connection: Connection, prefix: str) -> None:
        self._admin: AdminClient = connection.admin()
        self._prefix = prefix
        self._live: dict[str, bool] = {}
        self._asked_s = -1.0
        self._lock = threading.Lock()

    def of(self, producer_groups: Sequence[str]) -> npt.NDArray[np.bool_]:
        """For each group whether somebody can be asked. Kafka, or the group's coordinator, out of reach: nobody."""
        live = self._ask() if producer_groups else {}
        return np.array([bool(group) and live.get(self._prefix + group, False) for group in producer_groups], np.bool_)

    def _ask(self) -> dict[str, bool]:
        came_s = time.monotonic()
        with self._lock:
            if self._asked_s <= came_s:  # what another thread has asked since is good for this one, too
                self._asked_s = time.monotonic()
                self._live = groups.members(self._admin, ASK_S).live
            return self._live
