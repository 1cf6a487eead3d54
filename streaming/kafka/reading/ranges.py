"""Which offsets the stream reads: where it begins, and where each micro-batch ends."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from sinks.kafka import clients
from sinks.kafka.contract import Topics
from store.errors import CursorBeyondLog
from streaming.kafka.part import Ends, Part

LOG: Final = logging.getLogger("escrow.kafka")
WATERMARK_S: Final = 30.0


def start_of(parts: Mapping[int, Part], topics: Topics, watcher: Consumer, admin: AdminClient) -> Ends:
    """Where the stream begins: behind what is settled, for all partitions that Spark will find."""
    start: Ends = {topics.half: {}, topics.op: {}}
    for partition, part in parts.items():
        marker = part.shard.marker
        for topic, cursor in ((topics.half, marker.half_cursor), (topics.op, marker.op_cursor)):
            begin, end = clients.bounds_of(watcher, topic, partition)
            _require_records(topic, partition, cursor, (begin, end))
            start[topic][partition] = max(begin, cursor)
    found = admin.list_topics(topics.op, timeout=WATERMARK_S).topics[topics.op].partitions
    for partition in set(found) - set(parts):  # the op topic may have more partitions than there are shards
        start[topics.op][partition] = 0
    return start


def _require_records(topic: str, partition: int, cursor: int, bounds: tuple[int, int]) -> None:
    begin, end = bounds
    if cursor > end:
        raise CursorBeyondLog(
            f"partition {partition} of {topic} ends at {end} and is settled up to {cursor}: the topic was made anew, "
            "or has lost records; Escrow cannot go on with it"
        )
    if begin > cursor > 0:
        text = "records %d … %d of %s, partition %d, were deleted before they were settled"
        LOG.error(text, cursor, begin, topic, partition)


def ends_of(checkpoint: Path, batch_id: int) -> Ends:
    """Where the ranges of a batch end. Spark writes that down before it runs it; rows cannot tell, because offsets have holes."""
    text = (checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[-1]
    return {topic: {int(partition): int(at) for partition, at in found.items()} for topic, found in json.loads(text).items()}
