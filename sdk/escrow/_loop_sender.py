"""What `AsyncProducer` is built on: batches in its event loop, with the keys and limits of its `Engine`."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from typing import Any, Final

from escrow import _calls
from escrow._background import WAITING_MAX, BackgroundEnds, patient
from escrow._loop import LoopHome, LoopTransport
from escrow._loop_batching import LoopBatcher
from escrow._sender import Engine, Keyed, carried, note, size_bytes
from escrow.errors import EscrowError
from escrow.messages import End, EndAnswer, Half, Message, Outcome, Position, TransactionResult

#: So many messages, and as many ends, may be under way in an event loop, and two requests of each at least.
_UNDER_WAY: Final = 128


class LoopEngine:
    """Halves, messages and ends of an `AsyncProducer`, in shared requests, in the event loop that it is made in."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._group = engine, engine.group
        self.home = LoopHome()
        limits, under_way_max = engine.limits, max(2, _UNDER_WAY // engine.limits.batch_max)
        self._transport = LoopTransport(engine.api.transport.server)
        # Ordinary messages stay in the order that they were handed in. For halves it is their commits that count, and a task that
        # has not awaited the first commit cannot expect it to come before the second.
        self._halves: LoopBatcher[Keyed, Half] = LoopBatcher(
            "halves", self._send_halves, engine.halves_limits, under_way_max=under_way_max
        )
        self._messages: LoopBatcher[Message, Position] = LoopBatcher("messages", self._send_messages, limits)
        self._ends: LoopBatcher[End, EndAnswer] = LoopBatcher("ends", self._send_ends, limits, under_way_max=under_way_max)
        self._background_ends: LoopBatcher[End, EndAnswer] = LoopBatcher(
            "background-ends", self._send_ends, patient(limits), under_way_max=under_way_max
        )

    async def end_in_background(self, half: Half, outcome: Outcome, remark: str, ledger: BackgroundEnds) -> TransactionResult:
        """Hand in an end that is not waited for, unless too many wait before it."""
        waits = self._background_ends.waiting_count >= WAITING_MAX
        future = self._background_ends.submit([End(half.id, outcome, remark)])
        ledger.begin()
        result = TransactionResult(half.id, half.half_offset, outcome, None, remark, None, True)
        future.add_done_callback(lambda done: note(ledger, result, done))
        if not waits:
            return result
        try:
            async with asyncio.timeout(self._engine.limits.retry_for_s):
                return result._replace(answer=(await asyncio.shield(future))[0])
        except TimeoutError:  # it stays in the background
            return result
        except EscrowError as error:  # the local transaction is a fact: nothing is raised
            return result._replace(error=error)

    async def _send_halves(self, _: Hashable, keyed: Sequence[Keyed], give_up_at: float) -> list[Half]:
        messages, keys = zip(*keyed, strict=True)
        return await self._transport.perform(_calls.halves(self._group, messages, keys), give_up_at)

    async def _send_messages(self, _: Hashable, messages: Sequence[Message], give_up_at: float) -> list[Position]:
        return await self._transport.perform(_calls.messages(self._group, messages), give_up_at)

    async def _send_ends(self, _: Hashable, ends: Sequence[End], give_up_at: float) -> list[EndAnswer]:
        return await self._transport.perform(_calls.ends(self._group, ends), give_up_at)

    async def state(self, id: str) -> dict[str, Any]:
        return await self._transport.perform(_calls.transaction(id))

    def send_halves(self, messages: Sequence[Message]) -> asyncio.Future[list[Half]]:
        messages = carried(messages)
        return self._halves.submit(self._engine.keyed(messages), size_bytes=size_bytes(messages))

    def send_messages(self, messages: Sequence[Message]) -> asyncio.Future[list[Position]]:
        messages = carried(messages)
        return self._messages.submit(messages, size_bytes=size_bytes(messages))

    def end(self, ends: Sequence[End]) -> asyncio.Future[list[EndAnswer]]:
        return self._ends.submit(ends)

    async def close(self, timeout_s: float) -> bool:
        """What was handed in is sent; what could not be in time gets `Closed`."""
        batchers: tuple[LoopBatcher[Any, Any], ...] = (self._halves, self._messages, self._ends, self._background_ends)
        done = await asyncio.gather(*[batcher.close(timeout_s) for batcher in batchers])
        self._transport.close()
        return all(done)
