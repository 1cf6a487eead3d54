"""What an endpoint waits for when it opens: that Kafka answers, that its topics are there, that the ops so far are known."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaException

from ingest.errors import CannotStart
from ingest.kafka.ended.follower import OpFollower
from ingest.kafka.keys.follower import KeyFollower
from runtime.settings import Settings
from sinks.errors import KafkaUnfit
from sinks.kafka.clients import Connection, ensure_topics
from sinks.kafka.contract import Topics
from store.errors import StoreUnusable
from store.progress import Progress

AGAIN_S: Final = 1.0
CATCH_UP_S: Final = 1.0


def make_topics(settings: Settings, connection: Connection, topics: Topics) -> None:
    """Make topics that are missing. KafkaUnfit if one that is there would lose what is needed."""
    ensure_topics(
        connection,
        topics,
        partitions=settings.kafka_partitions,
        replication=settings.kafka_replication,
        min_insync=settings.kafka_min_insync,
        retention_ms=settings.retention_ms,
        repair=settings.kafka_repair_topics,
    )


async def until_reached(settings: Settings, procedure: Callable[[], None]) -> None:
    """Call it in a thread until Kafka answers, for startTimeout: Kafka may come up after us."""
    give_up_s = time.monotonic() + settings.start_timeout_ms / 1000
    while True:
        try:
            return await asyncio.to_thread(procedure)
        except KafkaUnfit as error:
            raise CannotStart(str(error)) from error
        except (KafkaException, TimeoutError) as error:
            if time.monotonic() > give_up_s:
                reason, servers = str(error) or "no answer", settings.kafka_bootstrap_servers
                raise CannotStart(f"Kafka at {servers} does not answer ({reason}): is kafkaBootstrapServers right?") from error
        await asyncio.sleep(AGAIN_S)


async def until_keys_are_known(keys: KeyFollower, failed: asyncio.Future[str], *, patience_s: float, topic: str) -> None:
    """Wait until the dedup keys of the last dedupWindow are read."""
    waited: list[asyncio.Future[Any]] = [keys.caught_up, failed]
    await asyncio.wait(waited, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
    if failed.done():
        raise StoreUnusable(failed.result())
    if not keys.caught_up.done():
        raise CannotStart(f"the keys in {topic} could not all be read: {keys.trouble or 'Kafka gives no more of them'}")


async def until_caught_up(
    follower: OpFollower, failed: asyncio.Future[str], progress: Progress, *, patience_s: float, op_topic: str
) -> None:
    """Wait until all ops are read, as long as it takes; CannotStart if none was read for `patience_s`."""
    most, last, moved_s, caught_up = 0, -1, time.monotonic(), follower.caught_up
    while not caught_up.done():
        waited: list[asyncio.Future[Any]] = [caught_up, failed]
        await asyncio.wait(waited, timeout=CATCH_UP_S, return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            raise StoreUnusable(failed.result())
        left = follower.to_read
        if left != last:
            most, last, moved_s = max(most, left), left, time.monotonic()
        if left:
            progress(most - left, most, "ops read")
        if time.monotonic() > moved_s + patience_s:
            reason = follower.trouble or "Kafka gives no more of them"
            raise CannotStart(f"the ops in {op_topic} could not all be read: {reason}")
