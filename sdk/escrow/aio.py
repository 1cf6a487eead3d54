"""The asyncio twins of `Producer` and `Consumer`. Both work in the event loop itself. Only check requests are polled for by
threads, which call plain listeners; coroutine listeners run in the event loop. Nothing here blocks it.

    async with escrow.AsyncProducer("http://127.0.0.1:7480", "orders", on_check=answer) as producer:
        async with producer.transaction(Message("order-paid", "order 42")) as tx:
            await store_order(tx.id)

Tasks that send at the same time share requests, as threads do. What is raised and when is told in `escrow.producer`. A task that
is cancelled after its half was sent says UNKNOWN: check-back settles it. Both belong to the event loop that first used them.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from escrow import _calls, _open_transactions
from escrow._arguments import require_function, require_message
from escrow._consuming import ConsumerBase
from escrow._deliveries import Delivery, Held
from escrow._loop_fetcher import LoopIntake
from escrow._loop_sender import LoopEngine
from escrow._otel import span
from escrow._producing import RETURNS_OUTCOME, Begun, ProducerBase, checked, log, refused_commit, say_unknown
from escrow.errors import Closed, EscrowError
from escrow.messages import (
    Check,
    DeadLetter,
    End,
    EndAnswer,
    Half,
    Message,
    Outcome,
    Position,
    TransactionResult,
    outcome_of,
    remark_of,
)

_T = TypeVar("_T")
_Arg = TypeVar("_Arg")

#: Answers a check; may be a coroutine function, which runs in the event loop, or a plain one, which runs in a thread.
AsyncListener = Callable[[Check], Outcome | Awaitable[Outcome | None] | None]


class AsyncProducer(ProducerBase[AsyncListener]):
    """`Producer` for asyncio: the same arguments. Check-backs are answered from `async with` (or `start()`) on."""

    _awaits = True
    _on_check: AsyncListener | None = None
    _bound: LoopEngine | None = None
    _closed = False

    def _listen_to(self, on_check: AsyncListener) -> None:
        self._on_check = on_check
        self._engine.warn_unasked("use `async with`, or await start(): on_check is not called before that")

    async def start(self) -> None:
        """Begin to answer check requests, in this event loop. `async with` does it."""
        if self._on_check is not None:
            self._listen(_in_loop(self._on_check, asyncio.get_running_loop()))
            self._on_check = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self, timeout_s: float = 10.0) -> bool:
        """Answer the checks in hand, send what was handed in, end the threads. True when that was done in time."""
        give_up_at = time.monotonic() + timeout_s
        # First the checks: a coroutine that answers one may send.
        done = await asyncio.to_thread(self._engine.close, timeout_s)
        self._closed = True
        if self._bound is not None and self._bound.home.is_here():
            done = await self._bound.close(max(0.0, give_up_at - time.monotonic())) and done
        return done

    def _here(self) -> LoopEngine:
        """The engine of this event loop."""
        if self._closed:
            raise Closed("this producer is closed")
        self._engine.home.refuse_elsewhere()
        bound = self._bound
        return bound if bound is not None and bound.home.is_here() else self._bind()

    def _bind(self) -> LoopEngine:
        """To the event loop that runs; to another one only where the one before was closed, as by a second `asyncio.run`."""
        if self._bound is not None and not self._bound.home.loop.is_closed():
            raise Closed("this producer is used in another event loop: make one in each")
        self._bound = LoopEngine(self._engine)
        return self._bound

    def _end(self, ends: Sequence[End]) -> Awaitable[list[EndAnswer]]:
        return self._here().end(ends)

    # --- transactions -----------------------------------------------------------------------------------------------------
    async def send_in_transaction(
        self,
        message: Message,
        local_transaction: Callable[[Message, _Arg], Awaitable[Outcome | None]],
        arg: _Arg = None,  # type: ignore[assignment]
    ) -> TransactionResult:
        """Send a half, await local_transaction(message, arg), say how it went: as `Producer.send_in_transaction` does."""
        require_message(message)
        require_function("local_transaction", local_transaction, RETURNS_OUTCOME, may_be_coroutine=True)
        [half] = await self._here().send_halves([message])
        try:
            with span("local transaction", transaction_id=half.id):
                returned = await local_transaction(message.with_id(half.id), arg)
        except BaseException as error:
            say_unknown(self._end, half, error)
            raise
        outcome, remark = outcome_of(returned, "the local transaction")
        return checked(await self._finish(half, outcome, remark))

    def transaction(self, message: Message, *, on_error: Outcome = Outcome.UNKNOWN) -> AsyncTransaction:
        """The same as an `async with` block; see `Producer.transaction`."""
        return AsyncTransaction(self, message, on_error)

    async def _finish(self, half: Half, outcome: Outcome, remark: str) -> TransactionResult:
        probe = _open_transactions.forget(half.id)
        if outcome is Outcome.COMMIT and await _open_transactions.is_open_async(probe):
            raise refused_commit(self._end, half)
        if self._in_background:
            return await self._here().end_in_background(half, outcome, remark, self._background)
        answer, failure = None, None
        try:
            with span("end", transaction_id=half.id, outcome=outcome):
                [answer] = await self._end([End(half.id, outcome, remark)])
        except EscrowError as error:
            failure = error
        return TransactionResult(half.id, half.half_offset, outcome, answer, remark, failure)

    # --- the parts --------------------------------------------------------------------------------------------------------
    async def send_half(self, message: Message) -> Half:
        """Store one half. End it with `end`."""
        [half] = await self._here().send_halves([message])
        return half

    async def send_halves(self, messages: Sequence[Message]) -> list[Half]:
        """Store halves, all or none."""
        return await self._here().send_halves(list(messages))

    @overload
    async def send(self, messages: Message) -> Position: ...
    @overload
    async def send(self, messages: Sequence[Message]) -> list[Position]: ...
    async def send(self, messages: Message | Sequence[Message]) -> Position | list[Position]:
        """Ordinary messages, visible at once: one, or several (all or none)."""
        if isinstance(messages, Message):
            return (await self._here().send_messages([messages]))[0]
        return await self._here().send_messages(list(messages))

    async def end(self, id: str, outcome: Outcome, *, remark: str = "") -> EndAnswer:
        """Say how a half ended. The answer is Escrow's verdict, whatever it is."""
        return (await self.end_all([End(id, outcome, remark)]))[0]

    async def end_all(self, ends: Sequence[End]) -> list[EndAnswer]:
        """Say how several halves ended; each is answered for itself."""
        ends = list(ends)
        for end in ends:
            probe = _open_transactions.forget(end.id)
            if end.outcome is Outcome.COMMIT and await _open_transactions.is_open_async(probe):
                raise _open_transactions.not_committed(end.id)
        return await self._end(ends)

    async def state(self, id: str) -> dict[str, Any]:
        """State and history of one transaction, as Escrow has them."""
        return await self._here().state(id)


class AsyncTransaction(Begun):
    """One transaction as an `async with` block; `AsyncProducer.transaction` makes it."""

    def __init__(self, producer: AsyncProducer, message: Message, on_error: Outcome) -> None:
        super().__init__(message, on_error)
        self._producer = producer

    async def __aenter__(self) -> Self:
        self._refuse_again()
        self._begin(await self._producer.send_half(self.message))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._is_over():
            return
        if error is None:
            if self.result is None:
                await self.commit()
        elif self._on_error is Outcome.UNKNOWN:
            say_unknown(self._producer._end, self._stored(), error)
        else:
            try:
                await self.rollback(remark_of(error))
            except EscrowError as failure:
                log.error("%s", failure)  # the exception that is on its way must be heard

    async def commit(self) -> TransactionResult:
        """Say COMMIT now: after the local transaction is committed, never before."""
        return await self._say(Outcome.COMMIT, "")

    async def rollback(self, remark: str = "") -> TransactionResult:
        """Say ROLLBACK now: the message will never be seen."""
        return await self._say(Outcome.ROLLBACK, remark)

    async def unknown(self, remark: str = "") -> TransactionResult:
        """Leave it to check-back. Leaving the block then says nothing more."""
        return await self._say(Outcome.UNKNOWN, remark)

    async def _say(self, outcome: Outcome, remark: str) -> TransactionResult:
        self._refuse_second()
        self.result = await self._producer._finish(self._stored(), outcome, remark)
        return checked(self.result)


class AsyncConsumer(ConsumerBase):
    """`Consumer` for asyncio: the same arguments, `async for` instead of `for`. `await message.ack()`, or do not wait for it.

    Everything runs in the event loop that first used it."""

    _bound: LoopIntake | None = None
    _closed = False

    def _here(self) -> LoopIntake:
        """The intake of this event loop."""
        if self._closed:
            raise Closed("this consumer is closed")
        self._server.home.refuse_elsewhere()
        if self._bound is None or not self._bound.home.is_here():
            if self._bound is not None and not self._bound.home.loop.is_closed():
                raise Closed("this consumer is used in another event loop: make one in each")
            self._bound = LoopIntake(self._server, self._reading)
        return self._bound

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self, timeout_s: float = 10.0) -> bool:
        """Send the acks, give back what is in hand. Loops end. True when that was done in time."""
        self._closed = True
        if self._bound is None or not self._bound.home.is_here():
            return True
        return await self._bound.close(timeout_s)

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        """Messages, until close() or, with `idle_s`, until there are none."""
        previous: Delivery | None = None
        while True:
            if previous is not None and self._auto_ack and previous.state is Held.HELD:
                previous.ack()
            try:
                previous = await self.take(self._idle_s)
            except Closed:
                return
            if previous is None:
                return
            yield previous

    async def take(self, timeout_s: float | None = None) -> Delivery | None:
        """The next message; None when none came in this time. It is yours to ack."""
        intake = self._here()
        taker = intake.take()
        try:
            async with asyncio.timeout(timeout_s):
                return await taker
        except TimeoutError:
            intake.put_back(taker)
            return None
        except asyncio.CancelledError:
            intake.put_back(taker)
            raise

    async def seek(self, to: str | int, *, topic: str | None = None) -> None:
        """Put the whole group to "earliest", "latest" or a time (milliseconds, or RFC 3339); for one topic or all."""
        await self._here().seek(to, self._reading.topics if topic is None else [topic])

    async def dead_letters(self) -> AsyncIterator[DeadLetter]:
        """Messages that the group was given too often, oldest first."""
        after: str | None = None
        while True:
            call = _calls.dead_letters(self._reading.group, after=after)
            letters, after = await self._here().transport.perform(call)
            for letter in letters:
                yield letter
            if after is None:
                return

    async def replay_dead_letters(self, ids: Sequence[str]) -> int:
        """Deliver dead letters to the group again; how many will be."""
        if not ids:
            return 0  # Escrow takes no empty list
        return await self._here().transport.perform(_calls.replay_dead_letters(self._reading.group, ids))


def _in_loop(on_check: AsyncListener, loop: asyncio.AbstractEventLoop) -> Callable[[Check], object]:
    """A listener for the check threads. A coroutine runs in the event loop; its thread waits for it."""

    def listen(check: Check) -> object:
        returned = on_check(check)
        if inspect.isawaitable(returned):
            return asyncio.run_coroutine_threadsafe(_awaited(returned), loop).result()
        return returned

    return listen


async def _awaited(awaitable: Awaitable[_T]) -> _T:
    return await awaitable
