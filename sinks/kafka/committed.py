"""Offsets that consumer groups have committed, of many groups at once.

By kafka-python: librdkafka asks for one group at a time, and ends the process when it loses the broker while it looks for a group's
coordinator on behalf of an admin request (see groups.py).

The client asks each group's coordinator, and fails as a whole when one of them does not answer. Then groups are asked in smaller
sets, by COORDINATORS: those of a set have one coordinator. A set that failed is left out and asked again by itself, one set a
call, so that a dead coordinator costs the groups of the others one timeout at most.
"""

from __future__ import annotations

import time
from typing import Any, Final

from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import KafkaError

from sinks.kafka.clients import Connection

#: (producer group, partition of the check topic)
Lane = tuple[str, int]
#: Kafka's offsets.topic.num.partitions. With another number a set may have several coordinators: more groups wait, no more.
COORDINATORS: Final = 50
#: When a set that failed is asked again; twice as long after each failure.
AGAIN_S: Final = 1.0
AGAIN_MAX_S: Final = 30.0


class Unanswered(Exception):
    """Kafka did not say."""


class _Failed:
    """A set of groups whose coordinator did not answer."""

    def __init__(self, now_s: float) -> None:
        self.pause_s = AGAIN_S
        self.again_s = now_s + self.pause_s

    def again(self, now_s: float) -> None:
        self.pause_s = min(2 * self.pause_s, AGAIN_MAX_S)
        self.again_s = now_s + self.pause_s


class CommittedReader:
    """Used by one thread."""

    def __init__(self, connection: Connection, topic: str, prefix: str) -> None:
        self._connection, self._topic, self._prefix = connection, topic, prefix
        self._admin: Any = None
        self._failed: dict[int, _Failed] = {}
        #: Why some groups' offsets are not known; "" if all are.
        self.trouble = ""

    def read(self, lanes: set[Lane]) -> dict[Lane, int]:
        """The committed offset of each; -1 if the group has committed none. Lanes whose coordinator does not answer are left
        out. Unanswered if nothing is known of any."""
        sets: dict[int, set[Lane]] = {}
        for lane in lanes:
            sets.setdefault(home_of(self._prefix + lane[0]), set()).add(lane)
        self._failed = {home: failed for home, failed in self._failed.items() if home in sets}
        known = self._read_healthy({home: each for home, each in sets.items() if home not in self._failed})
        known |= self._read_one_failed(sets)
        if not self._failed:
            self.trouble = ""
        if not known and lanes:
            raise Unanswered(self.trouble)
        return known

    def _read_healthy(self, sets: dict[int, set[Lane]]) -> dict[Lane, int]:
        """All at once; set by set if that fails."""
        if not sets:
            return {}
        try:
            return self._ask(set().union(*sets.values()))
        except Unanswered:
            known: dict[Lane, int] = {}
            for home, lanes in sets.items():
                try:
                    known |= self._ask(lanes)
                except Unanswered:
                    self._failed[home] = _Failed(time.monotonic())
            return known

    def _read_one_failed(self, sets: dict[int, set[Lane]]) -> dict[Lane, int]:
        """The set that failed and has waited longest."""
        due = min(self._failed, key=lambda home: self._failed[home].again_s, default=None)
        if due is None or self._failed[due].again_s > time.monotonic():
            return {}
        try:
            known = self._ask(sets[due])
        except Unanswered:
            self._failed[due].again(time.monotonic())
            return {}
        del self._failed[due]
        return known

    def _ask(self, lanes: set[Lane]) -> dict[Lane, int]:
        asked: dict[str, list[TopicPartition]] = {}
        for group, partition in lanes:
            asked.setdefault(self._prefix + group, []).append(TopicPartition(self._topic, partition))
        try:
            if self._admin is None:
                self._admin = KafkaAdminClient(**self._connection.kafka_python())
            found = self._admin.list_group_offsets(asked)
        except (KafkaError, OSError) as error:
            self.close()
            self.trouble = f"{type(error).__name__}: {error}"
            raise Unanswered(self.trouble) from error
        known = {}
        for group, partition in lanes:
            place = found.get(self._prefix + group, {}).get(TopicPartition(self._topic, partition))
            known[group, partition] = int(place.offset) if place is not None else -1
        return known

    def close(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()


def home_of(group: str) -> int:
    """The partition of Kafka's offsets topic that a consumer group is kept in; its leader is the group's coordinator."""
    number = 0
    for unit in _utf16(group):
        number = (31 * number + unit) & 0xFFFFFFFF
    signed = number - (1 << 32) if number >> 31 else number
    return 0 if number == 1 << 31 else abs(signed) % COORDINATORS


def _utf16(text: str) -> list[int]:
    """Java's characters."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    return [encoded[at] << 8 | encoded[at + 1] for at in range(0, len(encoded), 2)]
