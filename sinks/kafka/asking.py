"""Where the requests of a batch lie in the check topic: read back on an executor, after the batch, beside the shard's work.

The driver compares these places with what the members of a group have committed: a request counts when one has taken it. Delivery
reports would tell the places, too, but Kafka's client gives them for all messages or for none, releases included.
"""

from __future__ import annotations

import time
from typing import Any, Final

import numpy as np
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from sinks.kafka import contract
from sinks.kafka.clients import NO_GROUP, bounds_of
from sinks.kafka.redo import take
from sinks.kafka.task import Requested, Target
from store.arrays import Array

#: How long to look for requests. Those that are not found are asked about again, and not counted.
LOOK_S: Final = 10.0
#: How long it waits to be told where a partition ends.
ENDS_S: Final = 2.0
#: A request and its place.
PLACED: Final = np.dtype([("half_offset", "<i8"), ("partition", "<i4"), ("offset", "<i8")])

#: Partition of the check topic → offset.
Ends = dict[int, int]


def _reader(client: dict[str, Any]) -> Consumer:
    """Sees what is not committed yet: all of it is ours, and it is asked for when it was."""
    fixed = {"isolation.level": "read_uncommitted", "enable.auto.commit": False, "auto.offset.reset": "error"}
    return Consumer({**client, **fixed, "group.id": NO_GROUP, "fetch.wait.max.ms": 10})


def ends_of(client: dict[str, Any], topic: str) -> Ends:
    """Where each partition of the check topic ends: what is written now comes behind. {}: that cannot be told now, and no batch
    waits for it."""
    reader = _reader(client)
    try:
        partitions = reader.list_topics(topic, ENDS_S).topics[topic].partitions
        return {partition: bounds_of(reader, topic, partition, ENDS_S)[1] for partition in partitions}
    except KafkaException:
        return {}
    finally:
        reader.close()


def places_of(target: Target, requested: Requested) -> Array:
    """The places (PLACED) of a batch's requests. Kafka out of reach: none."""
    wanted, topic = requested.half_offsets, target.topics.check
    if not requested.since:
        return np.empty(0, PLACED)
    reader, give_up_s, found = _reader(target.client), time.monotonic() + LOOK_S, dict[int, tuple[int, int]]()
    try:
        reader.assign([TopicPartition(topic, partition, at) for partition, at in requested.since.items()])
        while len(found) < len(wanted) and time.monotonic() < give_up_s:
            for message in take(reader, 1000, 1.0):
                half_offset = _about(message, target.partition)
                if half_offset in wanted:
                    found[half_offset] = message.partition() or 0, message.offset() or 0
    except KafkaException:
        found.clear()
    finally:
        reader.close()
    return np.array([(half_offset, *place) for half_offset, place in found.items()], PLACED)


def _about(message: Message, half_partition: int) -> int:
    """The half that a request is about; -1 where it is another shard's, or none."""
    if message.error() is not None:
        return -1
    headers = contract.headers_of(message)
    # The last: what a producer put into its half stands before what the job says.
    own = {name: value for name, value in headers if name in (contract.HALF_PARTITION, contract.HALF_OFFSET)}
    if contract.half_offset_of(own.get(contract.HALF_PARTITION)) != half_partition:
        return -1
    return contract.half_offset_of(own.get(contract.HALF_OFFSET))
