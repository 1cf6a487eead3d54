"""The message of a call, received once it is known who calls.

Every handler of the service takes a stream, also for calls with one message: gRPC receives the whole message before it calls a
unary handler, so it would be in memory before the caller is known. What is not received stays with its sender (HTTP/2's flow
control).

One signer has RECEIVED_AT_ONCE messages on the way, or as many as its token may hold (`ingest.auth.shares`); more of them wait
their
turn. Each must arrive within requestTimeout.

A stream (Telemetry) begins with a command, which is received like any call's message. Later ones come when the client likes, or
never, and waiting for one lets gRPC take a whole message in. So RECEIVED_AT_ONCE streams of a signer are listened to at a
time, or fewer where its token may hold less; each gives its place to the next one when a command has come. What the others send
stays with them until then.

A token has as many streams, and as many calls whose message is not here yet, as it may have requests (tokenInFlightMax): or one
token could take up all calls of the edge (grpcMaxCalls).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from typing import Any, Final

import grpc.aio

from ingest.auth.access import Principal
from ingest.auth.shares import AT_ONCE_MAX, REQUEST_BYTES, Shares
from ingest.rocketmq import messaging_pb2 as pb
from ingest.rocketmq.codes import Refused

RECEIVED_AT_ONCE: Final = AT_ONCE_MAX


class _Turns:
    """Of one signer; `calls` have a turn or wait for one."""

    __slots__ = ("calls", "free", "listening")

    def __init__(self, listened_max: int) -> None:
        self.calls, self.free, self.listening = 0, asyncio.Semaphore(RECEIVED_AT_ONCE), asyncio.Semaphore(listened_max)


class Receiving:
    """For one event loop. `calls_max`: of one token, 0 = no limit. `shares`: what tokens hold is counted there."""

    def __init__(self, timeout_s: float, calls_max: int = 0, shares: Shares | None = None) -> None:
        self._timeout_s, self._calls_max, self._shares = timeout_s, calls_max, shares
        self._turns: dict[str, _Turns] = {}
        self._streams: Counter[str] = Counter()

    @property
    def signers(self) -> int:
        """Those that have a message on the way, or a stream."""
        return len(self._turns)

    async def message(self, principal: Principal, context: Any) -> Any:
        """The call's message. Refused where there is none, where it cannot be decoded, and where it takes too long."""
        with self._turn(principal) as turns:
            if principal.is_limited and self._calls_max and turns.calls - self._streams[principal.name] > self._calls_max:
                raise _too_many(principal, "calls whose message is not here yet")
            try:
                async with asyncio.timeout(self._timeout_s), turns.free, self._room(principal):
                    found = await context.read()
            except TimeoutError:
                text = f"the message of this call was not here within {self._timeout_s:g} s (requestTimeout): send it again"
                raise Refused(pb.REQUEST_TIMEOUT, text) from None
        if found is None or found is grpc.aio.EOF:
            raise Refused(pb.BAD_REQUEST, "these bytes are not the message that this call takes")
        return found

    def _room(self, principal: Principal) -> AbstractAsyncContextManager[None]:
        """For the message that is to come."""
        if self._shares is None or not principal.is_limited:
            return nullcontext()
        return self._shares.room(principal.name)

    @contextmanager
    def stream(self, principal: Principal) -> Iterator[None]:
        """Around a stream."""
        with self._turn(principal):
            self._streams[principal.name] += 1
            try:
                if principal.is_limited and self._calls_max and self._streams[principal.name] > self._calls_max:
                    raise _too_many(principal, "streams")
                with self._held(principal):
                    yield
            finally:
                self._streams[principal.name] -= 1
                if not self._streams[principal.name]:
                    del self._streams[principal.name]

    @contextmanager
    def _held(self, principal: Principal) -> Iterator[None]:
        """What a stream takes as long as it is open."""
        if self._shares is None or not principal.is_limited:
            yield
            return
        self._shares.hold(principal.name, REQUEST_BYTES)
        try:
            yield
        finally:
            self._shares.let_go(principal.name, REQUEST_BYTES)

    async def commands(self, principal: Principal, context: Any) -> AsyncIterator[Any]:
        """What comes down a stream, as long as it does; None is what cannot be decoded. The first one as `message` takes it."""
        yield await self.message(principal, context)
        turns = self._turns[principal.name]  # `stream` holds it
        while True:
            async with turns.listening:
                found = await context.read()
            if found is grpc.aio.EOF:
                return
            yield found

    @contextmanager
    def _turn(self, principal: Principal) -> Iterator[_Turns]:
        turns = self._turns.get(principal.name)
        if turns is None:
            counted = self._shares if principal.is_limited else None
            turns = _Turns(RECEIVED_AT_ONCE if counted is None else counted.listened_max)
            self._turns[principal.name] = turns
        turns.calls += 1
        try:
            yield turns
        finally:
            turns.calls -= 1
            if not turns.calls:
                del self._turns[principal.name]


def _too_many(principal: Principal, what: str) -> Refused:
    return Refused(pb.TOO_MANY_REQUESTS, f"token {principal.name}: has too many {what} (tokenInFlightMax): end some of them first")
