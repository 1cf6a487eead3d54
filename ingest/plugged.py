"""The edge as the server runs it: with its check transports, and with the transaction service that somebody installed, if any.

    edge = make_edge(settings)      # an Edge, whatever is plugged in
    await edge.open()

A transaction service (`escrow.transaction_service`, sinks.interfaces.TransactionService) stands between the endpoint and the edge:
halves, commits, rollbacks and check requests go through it, wherever they come from: the endpoint, a webhook, a listener. It gets
the built-in service as `inner` and passes on to it what it does not care about. Its calls run in threads, never in the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Container, Coroutine, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from typing import Any, Final, TypeVar

from escrow.clock import Clock
from escrow.settings import Settings
from escrow.tracing import TracingError
from ingest.checks import Handover
from ingest.core import Edge, EndAnswer, EndRequest
from ingest.errors import BadId, CannotStart, EdgeError, RefusedByService, ServiceFailed
from ingest.threads import Threads
from ingest.traced import traced
from ingest.transports import Transports, public_request
from sinks import interfaces
from sinks.errors import BrokenPlugin, Refused
from sinks.plugins import check_named, find, left_out, load_one
from store.errors import StoreError
from store.frames import Message
from store.progress import Progress, no_progress

GROUP: Final = "escrow.transaction_service"
#: Calls of the service that may be under way at a time; the others wait.
SERVICE_THREADS: Final = 32
LOG: Final = logging.getLogger("escrow.edge")
T = TypeVar("T")


def make_edge(settings: Settings, *, clock: Clock | None = None) -> Edge:
    """The edge with everything that is configured."""
    try:
        check_named(settings.plugins)
    except BrokenPlugin as error:
        raise CannotStart(str(error)) from error
    plugged = bool(find(GROUP, settings.plugins))
    kind = _kafka_edge(plugged) if settings.mode == "kafka" else PluggedEdge if plugged else Edge
    try:
        edge = (traced(kind) if settings.otlp_endpoint else kind)(settings, clock=clock)
    except TracingError as error:
        raise CannotStart(str(error)) from error
    edge.parts.append(Transports(edge))
    return edge


def plugin_notices(settings: Settings) -> list[str]:
    """What an operator should know at the start: plug-ins that are installed and not used."""
    told = left_out(settings.plugins)
    if settings.mode == "kafka":
        unused = find("escrow.sinks", settings.plugins)
        told += [f"plug-in {point.name} (escrow.sinks) is not used: Kafka mode calls no sinks" for point in unused]
    return told


def _kafka_edge(plugged: bool) -> type[Edge]:
    if plugged:
        raise CannotStart(f"plugins names a plug-in of {GROUP}, and Kafka mode has no place for one: take it out of plugins")
    try:
        from ingest.kafka.edge import KafkaEdge  # noqa: PLC0415  (its client library is an extra)
    except ModuleNotFoundError as error:
        raise CannotStart(
            f"mode = kafka needs the Python package {error.name}: in a checkout of Escrow, pip install '.[server,kafka]'"
        ) from error
    return KafkaEdge


class InnerService:
    """The built-in transaction service, for plug-ins: blocks until the answer is durable. Not for the event loop's thread."""

    def __init__(self, edge: PluggedEdge) -> None:
        self._edge, self._loop = edge, asyncio.get_running_loop()

    def open(self) -> None:
        """It is open before any plug-in is made."""

    def prepare(self, halves: Sequence[Message]) -> Sequence[str]:
        return self._run(self._edge.prepare_inside(halves))

    def commit(self, ends: Sequence[interfaces.End]) -> Sequence[interfaces.Answer]:
        return self._end(ends, "commit")

    def rollback(self, ends: Sequence[interfaces.End]) -> Sequence[interfaces.Answer]:
        return self._end(ends, "rollback")

    def _end(self, ends: Sequence[interfaces.End], outcome: str) -> Sequence[interfaces.Answer]:
        requests = [EndRequest(end.group, end.transaction_id, outcome, end.from_check, end.remark) for end in ends]
        answers = self._run(self._edge.end_inside(requests))
        return [interfaces.Answer(answer.verdict, answer.reason, answer.state) for answer in answers]

    def check(self, group: str, member: str, requests: Sequence[interfaces.CheckRequest]) -> Sequence[interfaces.CheckRequest]:
        """All of them may go."""
        return requests

    def close(self) -> None:
        """The edge closes itself."""

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class _Held:
    """What a poll passes over: what its caller says, and what the service has held back meanwhile."""

    def __init__(self, passing_over: Container[int]) -> None:
        self._passing_over = passing_over
        self.half_offsets: set[int] = set()

    def __contains__(self, half_offset: object) -> bool:
        return half_offset in self.half_offsets or half_offset in self._passing_over


class PluggedEdge(Edge):
    """An edge whose transactions go through a plug-in."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        super().__init__(settings, clock=clock)
        self.service: interfaces.TransactionService | None = None
        self.service_threads: Threads
        self.service_failures = 0

    async def open(self, progress: Progress = no_progress) -> None:
        """The service is made and opened before anything can come in, the transports' answers included."""
        self.parts.insert(0, _ServicePart(self))
        await super().open(progress)

    async def prepare_inside(self, messages: Sequence[Message]) -> list[str]:
        return [id for id, _ in await super().store_halves(messages)]

    async def end_inside(self, ends: Sequence[EndRequest]) -> list[EndAnswer]:
        return await super().end(ends)

    async def store_halves(self, messages: Sequence[Message]) -> Sequence[tuple[str, int]]:
        ids = list(await self._ask("prepare", tuple(messages)))
        if len(ids) != len(messages) or not all(isinstance(id, str) for id in ids):
            raise self._broken("prepare", f"returned {len(ids)} ids for {len(messages)} halves")
        return [(id, self.half_offset_of(id)) for id in ids]

    def half_offset_of(self, id: str) -> int:
        """Of an id that the built-in service made, -1 of any other."""
        try:
            return self._sealer.open(id).half_offset
        except BadId:
            return -1

    async def end(self, ends: Sequence[EndRequest]) -> list[EndAnswer]:
        """In order; neighbours with the same outcome in one call."""
        answers: list[EndAnswer] = []
        for outcome, run in groupby(ends, key=lambda end: end.outcome):
            asked = list(run)
            answers += await (self._settle(outcome, asked) if outcome in ("commit", "rollback") else self.end_inside(asked))
        return answers

    async def _settle(self, outcome: str, ends: list[EndRequest]) -> list[EndAnswer]:
        said = [interfaces.End(end.id, end.group, end.from_check, end.remark) for end in ends]
        answers = list(await self._ask(outcome, said))
        if len(answers) != len(ends) or not all(isinstance(answer, interfaces.Answer) for answer in answers):
            raise self._broken(outcome, f"returned {len(answers)} answers for {len(ends)} ends")
        return [EndAnswer(answer.verdict, answer.reason, answer.state) for answer in answers]

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
        """What the service holds back is left alone for the rest of this poll, which waits on."""
        clock_s = asyncio.get_running_loop().time
        deadline_s, held = clock_s() + wait_s, _Held(passing_over)
        while True:
            left_s = max(deadline_s - clock_s(), 0.0)
            async with super().poll_checks(group, member, max_requests, left_s, passing_over=held, via=via) as handover:
                if not handover.requests or await self._pass(handover, held) or not left_s:
                    yield handover
                    return

    async def _pass(self, handover: Handover, held: _Held) -> bool:
        """Ask the service which of the requests may go; the others are put back. Is any left?"""
        requests = [public_request(request, self.id_of(request)) for request in handover.requests]
        passed = {request.transaction_id for request in await self._ask("check", handover.group, handover.member, requests)}
        rest = handover.keep([request.transaction_id in passed for request in requests])
        held.half_offsets.update(rest.half_offsets)
        self.put_back(rest)
        return bool(handover.requests)

    async def _ask(self, method: str, *arguments: Any) -> Any:
        """A call of the service. What the edge itself refused comes through as it is."""
        try:
            return await self.service_threads.call(getattr(self.service, method), *arguments)
        except Refused as error:
            raise RefusedByService(str(error)) from None
        except (EdgeError, StoreError):
            raise
        except Exception as error:  # whatever it does
            raise self._broken(method, f"{type(error).__name__}: {error}") from error

    def _broken(self, method: str, what: str) -> ServiceFailed:
        self.service_failures += 1
        LOG.error("the transaction service that is plugged in: %s(): %s", method, what)
        return ServiceFailed(f"the transaction service that is plugged in failed at {method}: its operator finds more in the log")


class _ServicePart:
    """Makes, opens and closes the plug-in with the edge."""

    name = "transaction_service"

    def __init__(self, edge: PluggedEdge) -> None:
        self._edge = edge

    async def open(self) -> None:
        edge = self._edge
        edge.service_threads = Threads("transaction service", SERVICE_THREADS)
        try:
            inner = InnerService(edge)
            service: Any = await asyncio.to_thread(load_one, GROUP, edge.settings.plugins, edge.settings.store_dir, inner)
            await edge.service_threads.call(service.open)
            edge.service = service
        except BrokenPlugin as error:
            raise CannotStart(str(error)) from error
        except Exception as error:  # whatever it does
            raise CannotStart(f"plug-in ({GROUP}): open(): {type(error).__name__}: {error}") from error

    def stop(self) -> None:
        """Nothing runs by itself."""

    async def close(self) -> None:
        edge = self._edge
        if edge.service is not None:
            try:
                await edge.service_threads.call(edge.service.close, timeout_s=5.0)
            except Exception as error:  # whatever it does: the edge ends all the same
                LOG.warning("plug-in (%s): close(): %s: %s", GROUP, type(error).__name__, error)
            edge.service = None
            edge.service_threads.close()

    def figures(self) -> dict[str, Any]:
        return {"failures": self._edge.service_failures}
