"""What the job's ticker does: the clock, one tick of each shard in a thread of its own, and a look at the topics now and then."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from confluent_kafka import KafkaException

from sinks.kafka import clients
from sinks.kafka.clients import Connection
from sinks.kafka.contract import Topics
from store.errors import NoRoom
from store.guarded_clock import GuardedClock
from streaming.errors import JobStopped
from streaming.kafka.broker_time import BrokerTime
from streaming.kafka.part import Part
from streaming.kafka.room import RoomForShards
from streaming.kafka.upkeep import Upkeep
from streaming.lifecycle import Lifecycle

LOG: Final = logging.getLogger("escrow.kafka")
TOPICS_EVERY_S: Final = 2.0
#: How long is believed where a partition ended.
KNOWN_S: Final = 30.0


class LogEnds(NamedTuple):
    half: int
    op: int
    at_s: float


class Ticks:
    """A shard that waits for Kafka makes no other one wait. `end_of`: where a partition ends."""

    def __init__(
        self,
        connection: Connection,
        topics: Topics,
        parts: Mapping[int, Part],
        upkeep: Upkeep,
        *,
        lifecycle: Lifecycle,
        brokers: BrokerTime,
        clock: GuardedClock,
        room: RoomForShards,
        end_of: Callable[[str, int], int],
    ) -> None:
        self._connection, self._topics, self._parts, self._upkeep = connection, topics, parts, upkeep
        self._lifecycle, self._brokers, self._clock, self._room, self._end_of = lifecycle, brokers, clock, room, end_of
        self._pool = ThreadPoolExecutor(max_workers=64, thread_name_prefix="tick")
        self._look_s = 0.0
        self._log_ends: dict[int, LogEnds] = {}

    def on_tick(self) -> None:
        try:
            self._brokers.look()
            self._clock.look()
            for part in list(self._parts.values()):
                self._upkeep.tell_slow(part)
                if part.tick is None or part.tick.done():
                    part.tick = self._pool.submit(self._tick_once, part)
            if time.monotonic() >= self._look_s:
                self._look_s = time.monotonic() + TOPICS_EVERY_S
                self._look_at_topics()
        except KafkaException as error:  # Kafka is away: the next tick tries again
            LOG.warning("tick: %s", error.args[0].str())

    def _tick_once(self, part: Part) -> None:
        try:
            self._upkeep.work(part)
            self._room.found(part.shard.partition)
        except NoRoom as error:  # the next tick tries again
            self._room.wait(part.shard.partition, error)
        except KafkaException as error:  # Kafka is away: the next tick tries again
            LOG.warning("shard %d: %s", part.shard.partition, error.args[0].str())
        except JobStopped:
            pass
        except BaseException as error:
            self._lifecycle.fail(error)

    def _look_at_topics(self) -> None:
        """Give the other topics the partitions that the half topic has got, and note where the logs end."""
        topics = self._topics
        clients.add_partitions(self._connection, topics, clients.shard_count(self._connection.admin(), topics))
        for partition in list(self._parts):
            half_end, op_end = (self._end_of(topic, partition) for topic in (topics.half, topics.op))
            self._log_ends[partition] = LogEnds(half_end, op_end, time.monotonic())

    def log_ends(self, partition: int) -> tuple[float, float]:
        """Where its half and its op partition ended at the last look; NaN if that was too long ago. A scrape must not wait for
        Kafka."""
        known = self._log_ends.get(partition)
        if known is None or time.monotonic() - known.at_s > KNOWN_S:
            return math.nan, math.nan
        return known.half, known.op
