"""An installed transaction service as a wrapper: it stands between the ports and the edge.

A transaction service (`escrow.transaction_service`, sinks.interfaces.TransactionService) gets halves, commits, rollbacks and check
requests, wherever they come from: an endpoint, a webhook, a listener. It gets the built-in service as `inner` and passes on to it
what it does not care about. Its calls run in threads, never in the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Container, Coroutine, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from typing import Any, Final, TypeVar

from ingest.capabilities import Capabilities, Checks, EndAnswer, EndRequest, Ends, Halves, Polls, Transactions
from ingest.checks.delivery import Handover
from ingest.checks.plugin_couriers import public_request
from ingest.errors import BadId, CannotStart, EdgeError, RefusedByService, ServiceFailed
from ingest.threads import Threads
from runtime.settings import Settings
from sinks import interfaces
from sinks.errors import BrokenPlugin, Refused
from sinks.plugins import load_one
from store.errors import StoreError
from store.messages import Message

GROUP: Final = "escrow.transaction_service"
#: Calls of the service that may be under way at a time; the others wait.
SERVICE_THREADS: Final = 32
LOG: Final = logging.getLogger("escrow.edge")
T = TypeVar("T")


def plug_in(edge: Capabilities) -> None:
    """Put the service around what this edge has; made and opened before anything can come in, the transports' answers included."""
    service = Service(edge.settings, InnerService(edge.halves, edge.ends))
    edge.halves = PluggedHalves(edge.halves, service, edge.transactions)
    edge.ends = PluggedEnds(edge.ends, service)
    edge.polls = PluggedPolls(edge.polls, service, edge.checks)
    edge.parts.insert(0, service)


class InnerService:
    """The built-in transaction service, for plug-ins: blocks until the answer is durable. Not for the event loop's thread."""

    def __init__(self, halves: Halves, ends: Ends) -> None:
        self._halves, self._ends = halves, ends
        self.loop: asyncio.AbstractEventLoop

    def open(self) -> None:
        """It is open before any plug-in is made."""

    def prepare(self, halves: Sequence[Message]) -> Sequence[str]:
        return [id for id, _ in self._run(self._halves.store_halves(halves))]

    def commit(self, ends: Sequence[interfaces.End]) -> Sequence[interfaces.Answer]:
        return self._end(ends, "commit")

    def rollback(self, ends: Sequence[interfaces.End]) -> Sequence[interfaces.Answer]:
        return self._end(ends, "rollback")

    def _end(self, ends: Sequence[interfaces.End], outcome: str) -> Sequence[interfaces.Answer]:
        requests = [EndRequest(end.group, end.transaction_id, outcome, end.from_check, end.remark) for end in ends]
        answers = self._run(self._ends.end(requests))
        return [interfaces.Answer(answer.verdict, answer.reason, answer.state) for answer in answers]

    def check(self, group: str, member: str, requests: Sequence[interfaces.CheckRequest]) -> Sequence[interfaces.CheckRequest]:
        """All of them may go."""
        return requests

    def close(self) -> None:
        """The edge closes itself."""

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()


class _Held:
    """What a poll passes over: what its caller says, and what the service has held back meanwhile."""

    def __init__(self, passing_over: Container[int]) -> None:
        self._passing_over = passing_over
        self.half_offsets: set[int] = set()

    def __contains__(self, half_offset: object) -> bool:
        return half_offset in self.half_offsets or half_offset in self._passing_over


class Service:
    """The plug-in and its threads; a part of the edge, which makes, opens and closes it."""

    name = "transaction_service"

    def __init__(self, settings: Settings, inner: InnerService) -> None:
        self._settings, self._inner = settings, inner
        self._made: Any = None
        self._threads: Threads
        self.failures = 0

    async def open(self) -> None:
        settings, self._inner.loop = self._settings, asyncio.get_running_loop()
        self._threads = Threads("transaction service", SERVICE_THREADS)
        try:
            made: Any = await asyncio.to_thread(load_one, GROUP, settings.plugins, settings.store_dir, self._inner)
            await self._threads.call(made.open)
            self._made = made
        except BrokenPlugin as error:
            raise CannotStart(str(error)) from error
        except Exception as error:  # whatever it does
            raise CannotStart(f"plug-in ({GROUP}): open(): {type(error).__name__}: {error}") from error

    def stop(self) -> None:
        """Nothing runs by itself."""

    async def close(self) -> None:
        if self._made is not None:
            try:
                await self._threads.call(self._made.close, timeout_s=5.0)
            except Exception as error:  # whatever it does: the edge ends all the same
                LOG.warning("plug-in (%s): close(): %s: %s", GROUP, type(error).__name__, error)
            self._made = None
            self._threads.close()

    def figures(self) -> dict[str, Any]:
        return {"failures": self.failures}

    async def ask(self, method: str, *arguments: Any) -> Any:
        """A call of the service. What the edge itself refused comes through as it is."""
        try:
            return await self._threads.call(getattr(self._made, method), *arguments)
        except Refused as error:
            raise RefusedByService(str(error)) from None
        except (EdgeError, StoreError):
            raise
        except Exception as error:  # whatever it does
            raise self.broken(method, f"{type(error).__name__}: {error}") from error

    def broken(self, method: str, what: str) -> ServiceFailed:
        self.failures += 1
        LOG.error("the transaction service that is plugged in: %s(): %s", method, what)
        return ServiceFailed(f"the transaction service that is plugged in failed at {method}: its operator finds more in the log")


class PluggedHalves:
    def __init__(self, next: Halves, service: Service, transactions: Transactions) -> None:
        self.next, self._service, self._transactions = next, service, transactions

    async def store_halves(self, messages: Sequence[Message]) -> Sequence[tuple[str, int]]:
        """The service calls `next`, by its `inner`."""
        ids = list(await self._service.ask("prepare", tuple(messages)))
        if len(ids) != len(messages) or not all(isinstance(id, str) for id in ids):
            raise self._service.broken("prepare", f"returned {len(ids)} ids for {len(messages)} halves")
        return [(id, self._half_offset_of(id)) for id in ids]

    def _half_offset_of(self, id: str) -> int:
        """Of an id that the built-in service made, -1 of any other."""
        try:
            return self._transactions.half_offset_of(id)
        except BadId:
            return -1


class PluggedEnds:
    def __init__(self, next: Ends, service: Service) -> None:
        self.next, self._service = next, service

    async def end(self, ends: Sequence[EndRequest]) -> list[EndAnswer]:
        """In order; neighbours with the same outcome in one call. UNKNOWN is no matter of the service."""
        answers: list[EndAnswer] = []
        for outcome, run in groupby(ends, key=lambda end: end.outcome):
            asked = list(run)
            answers += await (self._settle(outcome, asked) if outcome in ("commit", "rollback") else self.next.end(asked))
        return answers

    async def _settle(self, outcome: str, ends: list[EndRequest]) -> list[EndAnswer]:
        said = [interfaces.End(end.id, end.group, end.from_check, end.remark) for end in ends]
        answers = list(await self._service.ask(outcome, said))
        if len(answers) != len(ends) or not all(isinstance(answer, interfaces.Answer) for answer in answers):
            raise self._service.broken(outcome, f"returned {len(answers)} answers for {len(ends)} ends")
        return [EndAnswer(answer.verdict, answer.reason, answer.state) for answer in answers]


class PluggedPolls:
    def __init__(self, next: Polls, service: Service, checks: Checks) -> None:
        self.next, self._service, self._checks = next, service, checks

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
            async with self.next.poll_checks(group, member, max_requests, left_s, passing_over=held, via=via) as handover:
                if not handover.requests or await self._pass(handover, held) or not left_s:
                    yield handover
                    return

    async def _pass(self, handover: Handover, held: _Held) -> bool:
        """Ask the service which of the requests may go; the others are put back. Is any left?"""
        requests = [public_request(request, self._checks.id_of(request)) for request in handover.requests]
        passed = {request.transaction_id for request in await self._service.ask("check", handover.group, handover.member, requests)}
        rest = handover.keep([request.transaction_id in passed for request in requests])
        held.half_offsets.update(rest.half_offsets)
        self._checks.put_back(rest)
        return bool(handover.requests)
