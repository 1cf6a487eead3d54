"""Tracing as wrappers: spans for halves, ends, check requests, answers and hand-outs (runtime/tracing.py says which and why).

Each wrapper has a `next`; without tracing there are none, and nothing is asked on the way of a request. Spans of what has happened
are made in a thread; the one of a half is begun before it is stored, since the message carries its name.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Container, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from ingest.capabilities import Capabilities, Deliveries, EndAnswer, EndRequest, Ends, Halves, Issued, Polls
from ingest.checks.delivery import Handover
from ingest.consuming.deliveries import Delivery
from ingest.consuming.reading.start_positions import EARLIEST
from runtime.settings import Settings
from runtime.tracing import TRACEPARENT, Tracer
from store.edge.append.encode import PROPERTIES_MAX_BYTES
from store.messages import Message
from store.properties import REAL_TOPIC

#: What a message must have left for its trace.
ROOM_BYTES: Final = 512
#: Contexts of halves that were stored lately: an end mostly follows soon. Others are read from their half.
KEPT_MAX: Final = 65_536


def trace(edge: Capabilities) -> None:
    """Put tracing around what this edge has."""
    tracing = Tracing(edge, edge.settings)
    edge.halves, edge.ends = TracedHalves(edge.halves, tracing), TracedEnds(edge.ends, tracing)
    edge.polls = TracedPolls(edge.polls, tracing)
    edge.parts.insert(0, tracing)


class Tracing:
    """What the wrappers share; a part of the edge."""

    name = "tracing"

    def __init__(self, edge: Capabilities, settings: Settings) -> None:
        self._edge, self.tracer = edge, Tracer(settings, "escrow-edge")
        #: By transaction id.
        self._kept: dict[str, Mapping[str, str]] = {}

    async def open(self) -> None:
        """Consumers' side is there only now, where it is at all."""
        offers = self._edge.offers
        if offers.deliveries is not None and offers.issued is not None:
            offers.deliveries = TracedDeliveries(offers.deliveries, offers.issued, self)

    def stop(self) -> None:
        """Nothing runs by itself."""

    async def close(self) -> None:
        await asyncio.to_thread(self.tracer.close)

    def figures(self) -> dict[str, Any]:
        return {}

    def now_ms(self) -> int:
        return self._edge.now_ms()

    def id_of(self, request: Any) -> str:
        return self._edge.checks.id_of(request)

    def keep(self, id: str, message: Message) -> None:
        while len(self._kept) >= KEPT_MAX:
            self._kept.pop(next(iter(self._kept)))
        self._kept.setdefault(id, {REAL_TOPIC: message.topic, **message.properties})

    def properties_of(self, id: str) -> Mapping[str, str]:
        """Of the half that an id names; none where it cannot be read (any more). In a thread."""
        kept = self._kept.get(id)
        return kept if kept is not None else self._edge.transactions.properties_of(id)

    def later(self, work: Callable[..., None], *arguments: Any) -> None:
        """In a thread, out of the way of requests. Tracing may fail; requests do not wait for it."""
        asyncio.get_running_loop().run_in_executor(None, work, *arguments).add_done_callback(asyncio.Future.exception)

    def record(self, what: str, properties: Mapping[str, str], times_ms: tuple[int, int], said: Mapping[str, Any]) -> None:
        name = f"{what} {properties.get(REAL_TOPIC, '')}".rstrip()
        self.tracer.record(name, properties, *times_ms, dict(said))


class TracedHalves:
    def __init__(self, next: Halves, tracing: Tracing) -> None:
        self.next, self._tracing = next, tracing

    async def store_halves(self, messages: Sequence[Message]) -> Sequence[tuple[str, int]]:
        tracer = self._tracing.tracer
        spans = [tracer.begin(f"half {message.topic}", message.properties, {"escrow.group": message.group}) for message in messages]
        given = [carrying(message, tracer.traceparent(span)) for message, span in zip(messages, spans, strict=True)]
        try:
            stored = await self.next.store_halves(given)
        except Exception as error:
            for span in spans:
                span.record_exception(error)
                span.end()
            raise
        for (id, _), message, span in zip(stored, given, spans, strict=True):
            span.set_attribute("escrow.transaction_id", id)
            span.end()
            self._tracing.keep(id, message)
        return stored


def carrying(message: Message, traceparent: str) -> Message:
    """The message with its trace, unless it brought one, has none, or is full."""
    if not traceparent or TRACEPARENT in message.properties:
        return message
    size_bytes = sum(len(json.dumps([name, value])) for name, value in message.properties.items())
    if size_bytes + len(message.dedup_key) * 6 + ROOM_BYTES > PROPERTIES_MAX_BYTES:
        return message
    return message._replace(properties={**message.properties, TRACEPARENT: traceparent})


class TracedEnds:
    def __init__(self, next: Ends, tracing: Tracing) -> None:
        self.next, self._tracing = next, tracing

    async def end(self, ends: Sequence[EndRequest]) -> list[EndAnswer]:
        start_ms = self._tracing.now_ms()
        answers = await self.next.end(ends)
        self._tracing.later(self._note, list(ends), answers, (start_ms, self._tracing.now_ms()))
        return answers

    def _note(self, ends: Sequence[EndRequest], answers: Sequence[EndAnswer], times_ms: tuple[int, int]) -> None:
        for end, answer in zip(ends, answers, strict=True):
            said = {
                "escrow.group": end.group, "escrow.transaction_id": end.id, "escrow.outcome": end.outcome,
                "escrow.verdict": answer.verdict, "escrow.remark": end.remark,
            }  # fmt: skip
            what = "answer" if end.from_check else "end"
            self._tracing.record(what, self._tracing.properties_of(end.id), times_ms, said)


class TracedPolls:
    def __init__(self, next: Polls, tracing: Tracing) -> None:
        self.next, self._tracing = next, tracing

    @asynccontextmanager
    async def poll_checks(
        self,
        group: str,
        member: str,
        max_requests: int = 32,
        wait_s: float = 0.0,
        *,
        passing_over: Container[int] = (),
        via: str = "poll",
    ) -> AsyncIterator[Handover]:
        async with self.next.poll_checks(group, member, max_requests, wait_s, passing_over=passing_over, via=via) as handover:
            start_ms = self._tracing.now_ms()
            yield handover
        if handover.requests:
            self._tracing.later(self._note, handover, (start_ms, self._tracing.now_ms()))

    def _note(self, handover: Handover, times_ms: tuple[int, int]) -> None:
        for request in handover.requests:
            said = {
                "escrow.group": handover.group, "escrow.member": handover.member, "escrow.attempt": request.attempt,
                "escrow.transaction_id": self._tracing.id_of(request),
            }  # fmt: skip
            self._tracing.record("check", request.frame.properties, times_ms, said)


class TracedDeliveries:
    def __init__(self, next: Deliveries, issued: Issued, tracing: Tracing) -> None:
        self.next, self._issued, self._tracing = next, issued, tracing

    async def poll(
        self,
        topic: str,
        group: str,
        consumer: str,
        *,
        max_messages: int = 32,
        wait_s: float = 0.0,
        visibility_s: float | None = None,
        tags: str = "",
        start: str = EARLIEST,
        hold: Callable[[int], None] | None = None,
    ) -> list[Delivery]:
        found = await self.next.poll(
            topic, group, consumer,
            max_messages=max_messages, wait_s=wait_s, visibility_s=visibility_s, tags=tags, start=start,
            hold=hold,
        )  # fmt: skip
        if found:
            self._tracing.later(self._note, group, consumer, found, self._tracing.now_ms())
        return found

    def _note(self, group: str, consumer: str, found: Sequence[Delivery], now_ms: int) -> None:
        for delivery in found:
            said = {
                "messaging.consumer.group.name": group, "messaging.client.id": consumer,
                "escrow.attempt": delivery.attempt, "escrow.transaction_id": self._issued.transaction_id_of(delivery),
            }  # fmt: skip
            self._tracing.tracer.record(f"consume {delivery.topic}", delivery.frame.properties, now_ms, now_ms, said)
