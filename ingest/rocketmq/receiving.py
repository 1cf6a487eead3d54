"""The message of a call, received once it is known who calls.

Every handler of the service takes a stream, also for calls with one message: gRPC receives the whole message before it calls a
unary handler, so it would be in memory before the caller is known. What is not received stays with its sender (HTTP/2's flow
control).

One signer has RECEIVED_AT_ONCE messages on the way; more of them wait their turn. Each must arrive within requestTimeout.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc.aio

from ingest.rocketmq import messaging_pb2 as pb
from ingest.rocketmq.codes import Refused

RECEIVED_AT_ONCE: Final = 16


class _Turns:
    """Of one signer; `calls` have a turn or wait for one."""

    __slots__ = ("calls", "free")

    def __init__(self) -> None:
        self.calls, self.free = 0, asyncio.Semaphore(RECEIVED_AT_ONCE)


class Receiving:
    """For one event loop."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._turns: dict[str, _Turns] = {}

    @property
    def signers(self) -> int:
        """Those that have a message on the way."""
        return len(self._turns)

    async def message(self, signer: str, context: Any) -> Any:
        """The call's message. Refused where there is none, where it cannot be decoded, and where it takes too long."""
        turns = self._turns.setdefault(signer, _Turns())
        turns.calls += 1
        try:
            async with asyncio.timeout(self._timeout_s), turns.free:
                found = await context.read()
        except TimeoutError:
            text = f"the message of this call was not here within {self._timeout_s:g} s (requestTimeout): send it again"
            raise Refused(pb.REQUEST_TIMEOUT, text) from None
        finally:
            turns.calls -= 1
            if not turns.calls:
                del self._turns[signer]
        if found is None or found is grpc.aio.EOF:
            raise Refused(pb.BAD_REQUEST, "these bytes are not the message that this call takes")
        return found
