"""Halves to the half topic, ordinary messages to their real topic. What could not be released later is refused now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from ingest.kafka.keys.once import SendOnce
from ingest.kafka.reach import Reach
from ingest.kafka.records.messages import RealTopics, check_message, half_record, message_record
from ingest.kafka.records.places import Place
from ingest.kafka.writer import Writer
from store.errors import InvalidRecord
from store.messages import Message


class Storing:
    """Looks at messages, then writes them. Quotas stand between the two (`ingest.edge.quotas.Limited`)."""

    def __init__(
        self,
        writer: Writer,
        reach: Reach,
        real_topics: RealTopics,
        send_once: SendOnce,
        *,
        half_topic: str,
        max_body_bytes: int,
        now_ms: Callable[[], int],
    ) -> None:
        self._writer, self._reach, self._real_topics, self._send_once = writer, reach, real_topics, send_once
        self._half_topic, self._max_body_bytes, self._now_ms = half_topic, max_body_bytes, now_ms
        self.counts: Counter[str] = Counter()

    async def require_fit(self, messages: Sequence[Message]) -> None:
        """Size, topic and right are checked now: a half that is accepted can be released later."""
        self._reach.require()
        half = await self._real_topics.look_at(self._half_topic)
        for number, message in enumerate(messages):
            try:
                check_message(message, await self._real_topics.get(message.topic), half, self._max_body_bytes)
            except InvalidRecord as error:
                error.number = number
                raise

    async def prepare(self, messages: Sequence[Message], _appended: Callable[[], None] | None = None) -> list[Place]:
        """Halves whose dedup key was seen lately are not written again."""
        return await self._send_once.store(messages, self._now_ms() // 1000, self._write_halves)

    async def _write_halves(self, messages: Sequence[Message]) -> list[Place]:
        now_ms = self._now_ms()
        written = await self._writer.write([half_record(message, self._half_topic, now_ms) for message in messages])
        self.counts["halves"] += len(written)
        return [Place(*place) for place in written]

    async def send(self, messages: Sequence[Message]) -> list[tuple[int, int]]:
        now_ms = self._now_ms()
        places = await self._writer.write([message_record(message, now_ms) for message in messages])
        self.counts["messages"] += len(places)
        return places
