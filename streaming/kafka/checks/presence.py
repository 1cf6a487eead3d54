"""Which producer groups have a live member: those whose Kafka consumer group on the check topic has one.

Asked of Kafka when a round begins, for all groups at once. Shards whose rounds begin together share an answer, but nobody is given
one that was asked for before: a member that has joined since would not be asked for a whole interval. Where no broker answers, the
round waits: if all groups counted as absent, they would be held for an interval.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from confluent_kafka.admin import AdminClient

from sinks.kafka import groups
from sinks.kafka.clients import Connection

LOG: Final = logging.getLogger("escrow.kafka")
ASK_S: Final = 10.0
#: After no answer Kafka is asked again this much later at the earliest.
AGAIN_S: Final = 1.0


class GroupsAlive:
    """Used by the tickers' threads."""

    def __init__(self, connection: Connection, prefix: str) -> None:
        self._admin: AdminClient = connection.admin()
        self._prefix = prefix
        self._found = groups.Members({}, whole=False, answered=False)
        self._asked_s = -1.0
        self._again_s = -1.0
        self._lock = threading.Lock()

    def of(self, producer_groups: Sequence[str]) -> npt.NDArray[np.bool_] | None:
        """For each group whether it has a member. A group whose coordinator is out of reach has none. None: no broker answers."""
        found = self._ask() if producer_groups else groups.Members({}, whole=True)
        if not found.answered:
            return None
        return np.array([bool(group) and found.live.get(self._prefix + group, False) for group in producer_groups], np.bool_)

    def known(self) -> Callable[[str], bool] | None:
        """For a producer group whether it had a member when Kafka was last asked; None: not known."""
        found = self._found
        return (lambda group: found.live.get(self._prefix + group, False)) if found.answered and found.whole else None

    def _ask(self) -> groups.Members:
        came_s = time.monotonic()
        with self._lock:
            if self._asked_s <= came_s and self._again_s <= came_s:  # what another thread has asked since is good here, too
                self._asked_s, answered = time.monotonic(), self._found.answered
                self._found = groups.members(self._admin, ASK_S)
                if not self._found.answered:
                    self._again_s = time.monotonic() + AGAIN_S
                    if answered:
                        LOG.warning("Kafka does not list its consumer groups: check rounds wait until it does")
            return self._found
