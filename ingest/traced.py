"""The edge with tracing: spans for halves, ends, check requests, answers and hand-outs (escrow/tracing.py says which and why).

A class of its own on top of the edge, so that without tracing nothing is asked on the way of a request. Spans of what has happened
are made in a thread; the one of a half is begun before it is stored, since the message carries its name.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Container, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from escrow.clock import Clock
from escrow.settings import Settings
from escrow.tracing import TRACEPARENT, Tracer
from ingest.checks import Handover
from ingest.core import Edge, EndAnswer, EndRequest
from ingest.deliveries import Delivery
from ingest.errors import BadId
from store.edge import PROPERTIES_MAX_BYTES
from store.errors import StoreError
from store.frames import REAL_TOPIC, Message
from store.progress import Progress, no_progress
from store.reader import LogReader

#: What a message must have left for its trace.
ROOM_BYTES: Final = 512
#: Contexts of halves that were stored lately: an end mostly follows soon. Others are read from their frame.
KEPT_MAX: Final = 65_536


class TracedEdge(Edge):
    """On top of any edge: `traced` puts it there."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        super().__init__(settings, clock=clock)
        self.tracer = Tracer(settings, "escrow-edge")
        self._kept: dict[int, Mapping[str, str]] = {}
        self._reader: LogReader | None = None
        self._reading = threading.Lock()

    async def open(self, progress: Progress = no_progress) -> None:
        await super().open(progress)
        self.consumption.handed_out = self._handed_out

    async def close(self) -> None:
        await super().close()
        await asyncio.to_thread(self._close_tracing)

    def _close_tracing(self) -> None:
        with self._reading:
            if self._reader is not None:
                self._reader.close()
                self._reader = None
        self.tracer.close()

    # --- halves -----------------------------------------------------------------------------------------------------------------
    async def store_halves(self, messages: Sequence[Message]) -> Sequence[tuple[str, int]]:
        spans = [
            self.tracer.begin(f"half {message.topic}", message.properties, {"escrow.group": message.group}) for message in messages
        ]
        given = [self._carrying(message, self.tracer.traceparent(span)) for message, span in zip(messages, spans, strict=True)]
        try:
            stored = await super().store_halves(given)
        except Exception as error:
            for span in spans:
                span.record_exception(error)
                span.end()
            raise
        for (id, half_offset), message, span in zip(stored, given, spans, strict=True):
            span.set_attribute("escrow.transaction_id", id)
            span.end()
            self._keep(half_offset, message)
        return stored

    def _carrying(self, message: Message, traceparent: str) -> Message:
        """The message with its trace, unless it brought one, has none, or is full."""
        if not traceparent or TRACEPARENT in message.properties:
            return message
        size_bytes = sum(len(json.dumps([name, value])) for name, value in message.properties.items())
        if size_bytes + len(message.dedup_key) * 6 + ROOM_BYTES > PROPERTIES_MAX_BYTES:
            return message
        return message._replace(properties={**message.properties, TRACEPARENT: traceparent})

    def _keep(self, half_offset: int, message: Message) -> None:
        if half_offset >= 0:
            while len(self._kept) >= KEPT_MAX:
                self._kept.pop(next(iter(self._kept)))
            self._kept.setdefault(half_offset, {REAL_TOPIC: message.topic, **message.properties})

    # --- ends and checks --------------------------------------------------------------------------------------------------------
    async def end(self, ends: Sequence[EndRequest]) -> list[EndAnswer]:
        start_ms = self.now_ms()
        answers = await super().end(ends)
        self._later(self._note_ends, list(ends), answers, start_ms, self.now_ms())
        return answers

    def _note_ends(self, ends: Sequence[EndRequest], answers: Sequence[EndAnswer], start_ms: int, end_ms: int) -> None:
        for end, answer in zip(ends, answers, strict=True):
            properties = self._properties_of(end.id)
            said = {
                "escrow.group": end.group, "escrow.transaction_id": end.id, "escrow.outcome": end.outcome,
                "escrow.verdict": answer.verdict, "escrow.remark": end.remark,
            }  # fmt: skip
            name = "answer" if end.from_check else "end"
            self.tracer.record(f"{name} {properties.get(REAL_TOPIC, '')}".rstrip(), properties, start_ms, end_ms, said)

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
        async with super().poll_checks(group, member, max_requests, wait_s, passing_over=passing_over, via=via) as handover:
            start_ms = self.now_ms()
            yield handover
        if handover.requests:
            self._later(self._note_checks, handover, start_ms, self.now_ms())

    def _note_checks(self, handover: Handover, start_ms: int, end_ms: int) -> None:
        for request in handover.requests:
            said = {
                "escrow.group": handover.group, "escrow.member": handover.member, "escrow.attempt": request.attempt,
                "escrow.transaction_id": self.id_of(request),
            }  # fmt: skip
            properties = request.frame.properties
            self.tracer.record(f"check {properties.get(REAL_TOPIC, '')}".rstrip(), properties, start_ms, end_ms, said)

    # --- hand-outs --------------------------------------------------------------------------------------------------------------
    def _handed_out(self, group: str, consumer: str, found: Sequence[Delivery]) -> None:
        self._later(self._note_hand_outs, group, consumer, found, self.now_ms())

    def _note_hand_outs(self, group: str, consumer: str, found: Sequence[Delivery], now_ms: int) -> None:
        for delivery in found:
            said = {
                "messaging.consumer.group.name": group, "messaging.client.id": consumer, "escrow.attempt": delivery.attempt,
                "escrow.transaction_id": self.transaction_id_of(delivery),
            }  # fmt: skip
            self.tracer.record(f"consume {delivery.topic}", delivery.frame.properties, now_ms, now_ms, said)

    # --- in threads -------------------------------------------------------------------------------------------------------------
    def _later(self, work: Callable[..., None], *arguments: Any) -> None:
        """Not in anybody's way; what goes wrong there concerns nobody."""
        asyncio.get_running_loop().run_in_executor(None, work, *arguments).add_done_callback(asyncio.Future.exception)

    def _properties_of(self, id: str) -> Mapping[str, str]:
        """Of the half that an id names; none where it cannot be read (any more)."""
        try:
            half_offset = self._sealer.open(id).half_offset
            kept = self._kept.get(half_offset)
            return kept if kept is not None else self._read(half_offset)
        except (BadId, StoreError, IndexError):
            return {}

    def _read(self, half_offset: int) -> Mapping[str, str]:
        with self._reading:
            if self._reader is None:
                self._reader = LogReader(self.store.directory)
            return self._reader.frame(self._reader.half_queue.read(half_offset, half_offset + 1)[0]).properties


def traced(base: type[Edge]) -> type[Edge]:
    """This kind of edge, with tracing on top."""
    return type("TracedEdge", (TracedEdge, base), {}) if base is not Edge else TracedEdge
