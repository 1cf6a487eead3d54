"""Where to begin to follow an op partition, and what is known of its halves then: from the checkpoint, if there is one to rely on,
else from the first op.

An end may be answered only by who knows all ops about its half. Ops that retention, or somebody, has taken and that are in no
checkpoint are a gap. An op is written after its half: halves stored after the first op that is still there have lost none. Of
those before it, the ones older than fileReservedTime are past their time: the job has discarded what nobody ended. The others make
the gap one that matters, until they are as old: nobody knows how they ended.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from ingest.kafka.ended.checkpoints import Checkpoint, Unusable, binding_of, checkpoint_of, numbers_in, read_all
from ingest.kafka.ended.table import Ends
from ingest.kafka.records.halves import reading
from sinks.kafka.clients import Connection, bounds_of, topic_ids
from sinks.kafka.contract import Topics

ASK_S: Final = 10.0
#: By how much the clocks of two brokers may differ.
SKEW_MS: Final = 60_000
LOG: Final = logging.getLogger("escrow.edge")


@dataclass(frozen=True, slots=True)
class Gap:
    """Nobody knows all ops of halves below `known_from`. They are as old as fileReservedTime at `until_ms`."""

    partition: int
    known_from: int
    until_ms: int

    def matters(self, now_ms: int) -> bool:
        return now_ms < self.until_ms

    @property
    def text(self) -> str:
        until = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(self.until_ms / 1000))
        return (
            f"ops before the first one in op partition {self.partition} are gone from Kafka and in no checkpoint: how halves "
            f"below offset {self.known_from} ended is not known. Ends about them are not answered before {until}, when they "
            "are older than fileReservedTime; all others are"
        )


@dataclass(frozen=True, slots=True)
class Beginning:
    """Follow op partition `partition` from `op_offset` on, with these ends; `op_end`: where it ended now."""

    partition: int
    op_offset: int
    op_end: int
    ends: Ends
    binding: bytes
    gap: Gap | None = None


class Beginner:
    """Reads with clients of its own, in a thread of its own. KafkaException where Kafka does not answer."""

    def __init__(self, connection: Connection, topics: Topics, reserved_ms: int, now_ms: Callable[[], int]) -> None:
        self._connection, self._topics, self._reserved_ms, self._now_ms = connection, topics, reserved_ms, now_ms
        self._admin: AdminClient = connection.admin()

    def ids(self) -> tuple[str, str]:
        """What Kafka calls half and op topic: others of the same names have other ids."""
        found = topic_ids(self._admin, [self._topics.half, self._topics.op])
        return found[self._topics.half], found[self._topics.op]

    def begin(self, partitions: Iterable[int]) -> list[Beginning]:
        """1 what the ends topic has · 2 for each partition: the checkpoint, or none · 3 whether ops are missing before it."""
        ids, stored = self.ids(), read_all(self._connection, self._topics.ends, partitions)  # 1
        consumer = Consumer(reading(self._connection))
        try:
            return [self._begin_one(consumer, partition, ids, stored[partition]) for partition in stored]
        finally:
            consumer.close()

    def _begin_one(self, consumer: Consumer, partition: int, ids: tuple[str, str], stored: dict[bytes, bytes]) -> Beginning:
        binding = binding_of(*ids, partition)
        low, end = bounds_of(consumer, self._topics.op, partition, ASK_S)
        half_low, half_end = bounds_of(consumer, self._topics.half, partition, ASK_S)
        checkpoint = self._usable(partition, stored, binding, half_low, end)  # 2
        ends = Ends(checkpoint.chunks, checkpoint.through) if checkpoint else Ends()
        ends.changed_again(numbers_in(stored) - set(ends.numbers))  # nobody's: taken away with the next checkpoint
        begin, gap = checkpoint.op_offset if checkpoint else 0, None
        if begin < low:  # 3
            gap = self._gap(consumer, partition, low, end, (half_low, half_end))
        return Beginning(partition, max(begin, low), end, ends, binding, gap)

    def _usable(self, partition: int, stored: dict[bytes, bytes], binding: bytes, half_low: int, op_end: int) -> Checkpoint | None:
        try:
            checkpoint = checkpoint_of(stored, binding, half_low)
            if checkpoint is not None and checkpoint.op_offset > op_end:
                raise Unusable(f"it is at op {checkpoint.op_offset}, and the op partition ends at {op_end}: Kafka has lost ops")
        except Unusable as error:
            LOG.warning(
                "op partition %d: the checkpoint in %s is of no use, all ops are read: %s", partition, self._topics.ends, error
            )
            return None
        return checkpoint

    def _gap(self, consumer: Consumer, partition: int, low: int, end: int, half_bounds: tuple[int, int]) -> Gap | None:
        """None where no half is there that may have lost an op."""
        first_ms = self._first_op_ms(consumer, partition, low, end) + SKEW_MS
        [found] = consumer.offsets_for_times([TopicPartition(self._topics.half, partition, first_ms)], timeout=ASK_S)
        known_from = found.offset if found.offset >= 0 else half_bounds[1]
        return Gap(partition, known_from, first_ms + self._reserved_ms) if known_from > half_bounds[0] else None

    def _first_op_ms(self, consumer: Consumer, partition: int, low: int, end: int) -> int:
        """When the first op that is still there was written; now, where there is none."""
        consumer.assign([TopicPartition(self._topics.op, partition, low)])
        give_up_s = time.monotonic() + ASK_S
        try:
            while low < end and time.monotonic() < give_up_s:
                message = consumer.poll(0.5)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    return int(message.timestamp()[1])
                if error.code() == KafkaError._PARTITION_EOF:
                    break
            else:
                if low < end:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{self._topics.op} could not be read"))
        finally:
            consumer.unassign()
        return self._now_ms()
