"""Follows the keys topic, `read_committed`, from dedupWindow ago on: every endpoint knows what any of them wrote under a dedup key.

The order of a partition decides which of two halves of one key counts, as with ops: an endpoint that has written one answers
when it has read its own record back.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from ingest.kafka.keys.record import KeyRecord, decode
from ingest.kafka.records.halves import reading
from sinks.kafka.clients import Connection, bounds_of

POLL_S: Final = 0.5
ASK_S: Final = 10.0
AGAIN_S: Final = 0.5
_AT_ONCE: Final = 4096
LOG: Final = logging.getLogger("escrow.edge")


class KeyFollower:
    """Made in the event loop, runs in a thread. `learn` is called in the event loop, with records in their partition's order."""

    def __init__(
        self,
        connection: Connection,
        topic: str,
        since_ms: int,
        fail: Callable[[str], None],
        learn: Callable[[Sequence[KeyRecord]], None],
    ) -> None:
        self._topic, self._since_ms, self._fail, self._learn = topic, since_ms, fail, learn
        self._loop = asyncio.get_running_loop()
        self._consumer = Consumer(reading(connection))
        self._behind: dict[int, int] = {}  # partition: where it ended when we began
        self._stopping = threading.Event()
        self.partitions = 0
        self.trouble = ""
        #: Done when all keys that were there at the start are known.
        self.caught_up: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="kafka-keys", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        self._stopping.set()
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._consumer.close)

    # --- in the thread --------------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        begun = False
        while not self._stopping.is_set():
            try:
                if not begun:
                    self._begin()
                    begun = True
                self._follow()
                self.trouble = ""
            except KafkaException as error:
                self.trouble = f"dedup keys cannot be read: {error.args[0].str()}"
                self._stopping.wait(AGAIN_S)
            except BaseException as error:  # a defect: without this thread no request with a dedup key is answered
                LOG.exception("following %s", self._topic)
                self._loop.call_soon_threadsafe(self._fail, f"{type(error).__name__}: {error}")
                return

    def _begin(self) -> None:
        """1 where each partition ends · 2 where it was dedupWindow ago."""
        found = self._consumer.list_topics(self._topic, timeout=ASK_S).topics[self._topic].partitions
        ends = {partition: bounds_of(self._consumer, self._topic, partition, ASK_S) for partition in found}  # 1
        asked = [TopicPartition(self._topic, partition, self._since_ms) for partition in found]
        starts = self._consumer.offsets_for_times(asked, timeout=ASK_S)  # 2
        places = [
            TopicPartition(self._topic, each.partition, each.offset if each.offset >= 0 else ends[each.partition][1])
            for each in starts
        ]
        self._behind = {each.partition: ends[each.partition][1] for each in places if each.offset < ends[each.partition][1]}
        self._consumer.assign(places)
        self.partitions = len(found)
        self._note_caught_up()

    def _follow(self) -> None:
        first = self._consumer.poll(POLL_S)
        if first is None:
            return
        messages: list[Any] = [first, *self._consumer.consume(_AT_ONCE, 0)]
        records = [record for message in messages if message.error() is None and (record := decode(message)) is not None]
        if records and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._learn, records)
        for message in messages:
            error = message.error()
            if error is None and message.offset() + 1 < self._behind.get(message.partition(), 0):
                continue
            if error is None or error.code() == KafkaError._PARTITION_EOF:
                self._behind.pop(message.partition(), None)
            else:
                raise KafkaException(error)
        self._note_caught_up()

    def _note_caught_up(self) -> None:
        if not self._behind and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._is_caught_up)

    def _is_caught_up(self) -> None:
        if not self.caught_up.done():
            self.caught_up.set_result(None)
