"""Bodies of halves, read from the half partition by the task that releases, discards or checks them."""

from __future__ import annotations

import time
from typing import Any, Final

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from sinks.kafka import clients, redo
from sinks.kafka.task import DEADLINE_S
from store.arrays import Array

#: Offsets that are read along rather than skipped: a seek empties the client's read-ahead.
GAP_MAX: Final = 256
#: Reading ahead is not worth it with fewer halves than these left. (There may be none: offsets have holes.)
AHEAD_MIN: Final = 1_000
NOWHERE: Final = -1 - GAP_MAX


class Bodies:
    """A consumer of one half partition. It is made at the first read.

    A client that exists for a while before it is assigned a partition waits for most of a second until it looks for the
    partition's leader.
    """

    def __init__(self, client: dict[str, Any]) -> None:
        self._client = client
        self.consumer: Consumer | None = None
        self._position = NOWHERE  # of the consumer in the half partition

    def read(self, topic: str, partition: int, wanted: Array) -> dict[int, Message]:
        """The messages at these sorted offsets; offsets that are no longer in the partition are left out."""
        found: dict[int, Message] = {}
        for run in np.split(wanted, np.flatnonzero(np.diff(wanted) > GAP_MAX) + 1):
            found |= self._read_range(topic, partition, set(run.tolist()))
        return found

    def rest(self) -> None:
        """Stop reading ahead.

        A client at the end of a partition asks for more fifty times a second; one whose queue is full looks at it every
        5 ms. Assigning the partition again costs a client that has read before 5 ms; resuming a paused one, a second.
        """
        if self.consumer is not None and self._position != NOWHERE:
            self.consumer.unassign()
            self._position = NOWHERE

    def is_near_end(self, half: TopicPartition) -> bool:
        """Whether it reads, and little was left to read when it last looked."""
        if self.consumer is None or self._position == NOWHERE:
            return False
        return self._position > self.consumer.get_watermark_offsets(half, cached=True)[1] - AHEAD_MIN

    def close(self) -> None:
        if self.consumer is not None:
            self.consumer.close()

    def _opened(self) -> Consumer:
        if self.consumer is None:
            options = {"group.id": clients.NO_GROUP, "enable.auto.commit": False, "auto.offset.reset": "error"}
            queue = {
                "queued.max.messages.kbytes": 32 << 10,
                "fetch.message.max.bytes": 4 << 20,
                "fetch.wait.max.ms": 20,
                "fetch.queue.backoff.ms": 5,  # the default: a client whose queue was full fetches nothing for a second
            }
            self.consumer = Consumer({**self._client, **options, **queue})
        return self.consumer

    def _read_range(self, topic: str, partition: int, wanted: set[int]) -> dict[int, Message]:
        consumer, first, stop = self._opened(), min(wanted), max(wanted) + 1
        if not first - GAP_MAX <= self._position <= first:
            consumer.assign([TopicPartition(topic, partition, first)])
        self._position = first
        give_up_s = time.monotonic() + DEADLINE_S
        found: dict[int, Message] = {}
        while len(found) < len(wanted) and self._position < stop:
            for message in redo.take(consumer, min(10_000, stop - self._position), 1.0):
                error, offset = message.error(), message.offset()
                if error is None and offset is not None:
                    self._position = offset + 1
                    if offset in wanted:
                        found[offset] = message
                elif error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:  # retention took the beginning
                    self._position = clients.bounds_of(consumer, topic, partition)[0]
                    consumer.assign([TopicPartition(topic, partition, self._position)])
            if time.monotonic() > give_up_s:
                problem = f"no half {self._position} within {DEADLINE_S:.0f} s"
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, problem))
        return found
