"""Messages that cannot be released now: why, what waits behind them, and what one refusal says about others.

A message is set aside with everything behind it of the same **lane**: messages of one key of one topic, or, without a key, of one
partition that the producer named. Messages without both have no order: nothing waits behind them.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from confluent_kafka import KafkaError

from sinks.kafka import contract
from store.job.undeliverable import NO_LANE, Refusal

BEHIND: Final = "it waits behind another message of its key"
#: Errors that say "not this message"; all others say "not now".
REFUSALS: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._INVALID_DIFFERENT_RECORD,  # another record of its batch is bad
    }
)
#: Errors that say only that something else went wrong before.
UNEXPLAINED: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._STATE})
_LANE_BYTES: Final = 8


def lane_of(topic: str, key: bytes | None, partition: int) -> int:
    """A number for the messages that must keep their order. `partition` -1: the producer named none."""
    if key is None and partition < 0:
        return NO_LANE
    which = b"\0k" + key if key is not None else b"\0p%d" % partition
    found = int.from_bytes(hashlib.blake2b(topic.encode() + which, digest_size=_LANE_BYTES).digest(), "little")
    return found or 1


class Held:
    """Refused messages, and the lanes in which later messages wait behind them."""

    def __init__(self, packed_lanes: bytes) -> None:
        """`packed_lanes` (uint64): of messages that earlier batches set aside."""
        self.lanes: set[int] = set(np.frombuffer(packed_lanes, "<u8").tolist())
        self._places: dict[int, tuple[int, str, int]] = {}  # half offset: lane, topic, stored_at_ms

    def hold(self, half_offset: int, half: Any) -> None:
        """Later messages of its lane wait. One whose body is gone (None) is never sent: it holds back nothing."""
        if half is None:
            return
        headers = contract.headers_of(half)
        topic = contract.topic_of(contract.first_header(headers, contract.TOPIC))
        partition = contract.number_of(contract.first_header(headers, contract.PARTITION), -1)
        lane = lane_of(topic, half.key(), partition)
        self._places[half_offset] = lane, topic, int(half.timestamp()[1])
        if lane != NO_LANE:
            self.lanes.add(lane)

    def refusal(self, half_offset: int, reason: str) -> Refusal:
        """What the redo partition remembers of a refused message."""
        return Refusal(reason, *self._places.get(half_offset, ()))


class Failure(NamedTuple):
    """The error that Kafka reported for a message, and what of the message may have caused it."""

    error: KafkaError
    topic: str
    value: bytes
    has_key: bool


class Known:
    """What refusals have taught within one batch: others like them need not be tried, one transaction each."""

    def __init__(self, now_ms: int, barred: Mapping[str, str] | None = None) -> None:
        """`barred`: topics that take nothing for now, as the driver knows, and why."""
        self._now_ms = now_ms
        self.barred: dict[str, str] = dict(barred or {})
        self.anything = bool(self.barred)  # asked for each message
        self.packs = False  # something was too large as it is: it is tried compressed
        self._too_large: dict[str, int] = {}  # topic: the smallest body that was too large, in compressed bytes
        self._wants_keys: set[str] = set()
        self._too_early: dict[str, int] = {}  # topic: the latest time that was too early
        self._too_late: dict[str, int] = {}  # topic: the earliest that was too late

    def refuse(self, failure: Failure, at_ms: int) -> None:
        """`at_ms`: its time, 0 where Kafka gave it."""
        self.anything = True
        code, topic = failure.error.code(), failure.topic
        if code == KafkaError.MSG_SIZE_TOO_LARGE:
            size_bytes = _packed_bytes(failure.value)
            self._too_large[topic] = min(size_bytes, self._too_large.get(topic, size_bytes))
        elif code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            self.barred[topic] = failure.error.str()
        elif code == KafkaError.INVALID_RECORD and not failure.has_key:  # a compacted topic
            self._wants_keys.add(topic)
        elif code == KafkaError.INVALID_TIMESTAMP and at_ms > self._now_ms:
            self._too_late[topic] = min(at_ms, self._too_late.get(topic, at_ms))
        elif code == KafkaError.INVALID_TIMESTAMP:
            self._too_early[topic] = max(at_ms, self._too_early.get(topic, at_ms))

    def bar(self, reasons: Mapping[str, str]) -> bool:
        """Nothing goes to these topics; False where that was known."""
        new = {topic: reason for topic, reason in reasons.items() if topic not in self.barred}
        self.barred.update(new)
        self.anything = self.anything or bool(new)
        return bool(new)

    def problem(self, topic: str, value: bytes, has_key: bool, at_ms: int) -> str:
        """Why a message would be refused as others were; "" where nothing speaks against it. `at_ms` 0: Kafka gives the time."""
        limit = self._too_large.get(topic)
        if limit is not None and len(value) >= limit and _packed_bytes(value) >= limit:
            return f"too large for topic {topic}, as another of {limit} bytes (compressed) was"
        if not has_key and topic in self._wants_keys:
            return f"topic {topic} does not take messages without a key"
        if at_ms and not self._too_early.get(topic, 0) < at_ms < self._too_late.get(topic, at_ms + 1):
            return f"topic {topic} does not take messages of the time {at_ms}: it is too far from now"
        return self.barred.get(topic, "")


def _packed_bytes(value: bytes) -> int:
    """About what a body has when it is compressed; not more than it has as it is."""
    return min(len(value), len(zlib.compress(value, 1)))
