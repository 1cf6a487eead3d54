"""The asyncio twins of `Producer` and `Consumer`. The producer sends in the event loop itself; checks are answered, and messages
consumed, by the same threads as there, whose futures are awaited. Nothing here blocks the event loop.

    async with escrow.AsyncProducer("http://127.0.0.1:7480", "orders", on_check=answer) as producer:
        async with producer.transaction(Message("order-paid", "order 42")) as tx:
            await store_order(tx.id)

Tasks that send at the same time share requests, as threads do. What is raised and when is told in `escrow.producer`. A task that
is cancelled after its half was sent says UNKNOWN: check-back settles it. A producer belongs to the event loop that first used it.
"""

from __future__ import annotations

import asyncio
import inspect
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self, TypeVar, overload
from weakref import WeakKeyDictionary

from escrow._arguments import require_function, require_message
from escrow._fetcher import Delivery, Held, Intake
from escrow._otel import span
from escrow._sender import Engine, LoopEngine
from escrow.consumer import as_topics
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
from escrow.producer import RETURNS_OUTCOME, Begun, checked, log, say_unknown

_T = TypeVar("_T")
_Arg = TypeVar("_Arg")

#: Answers a check; may be a coroutine function, which runs in the event loop, or a plain one, which runs in a thread.
AsyncListener = Callable[[Check], Outcome | Awaitable[Outcome | None] | None]


class AsyncProducer:
    """`Producer` for asyncio: the same arguments. Check-backs are answered from `async with` (or `start()`) on."""

    def __init__(
        self,
        url: str,
        group: str,
        *,
        on_check: AsyncListener | None = None,
        token: str | Callable[[], str] | None = None,
        tls: ssl.SSLContext | None = None,
        linger_s: float = 0.0,
        batch_max: int = 256,
        timeout_s: float = 10.0,
        retry_for_s: float = 30.0,
        member: str | None = None,
        check_threads: int = 4,
        check_wait_s: float = 30.0,
    ) -> None:
        if on_check is not None:
            require_function("on_check", on_check, "it gets a Check and returns an Outcome", may_be_coroutine=True)
        self._engine = Engine(
            url,
            group,
            token=token,
            tls=tls,
            linger_s=linger_s,
            batch_max=batch_max,
            timeout_s=timeout_s,
            retry_for_s=retry_for_s,
        )
        if on_check is not None:
            self._engine.warn_unasked("use `async with`, or await start(): on_check is not called before that")
        self._on_check, self._member = on_check, member
        self._check_threads, self._check_wait_s = check_threads, check_wait_s
        self._bound: LoopEngine | None = None
        self._home, self._closed = self._engine.api.transport.server.home, False

    @property
    def group(self) -> str:
        return self._engine.group

    async def start(self) -> None:
        """Begin to answer check requests, in this event loop. `async with` does it."""
        if self._on_check is not None:
            listener = _in_loop(self._on_check, asyncio.get_running_loop())
            self._engine.listen(listener, self._member, threads=self._check_threads, wait_s=self._check_wait_s)
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
        if self._bound is not None and self._bound.is_here():
            done = await self._bound.close(max(0.0, give_up_at - time.monotonic())) and done
        return done

    def _here(self) -> LoopEngine:
        """The engine of this event loop."""
        if self._closed:
            raise Closed("this producer is closed")
        self._home.refuse_elsewhere()
        bound = self._bound
        return bound if bound is not None and bound.is_here() else self._bind()

    def _bind(self) -> LoopEngine:
        """To the event loop that runs; to another one only where the one before was closed, as by a second `asyncio.run`."""
        if self._bound is not None and not self._bound.loop.is_closed():
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
        return await self._end(list(ends))

    async def state(self, id: str) -> dict[str, Any]:
        """State and history of one transaction, as Escrow has them."""
        return await asyncio.to_thread(self._engine.api.transaction, id)


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
        """Say ROLLBACK now: nobody will ever see the message."""
        return await self._say(Outcome.ROLLBACK, remark)

    async def unknown(self, remark: str = "") -> TransactionResult:
        """Leave it to check-back. Leaving the block then says nothing more."""
        return await self._say(Outcome.UNKNOWN, remark)

    async def _say(self, outcome: Outcome, remark: str) -> TransactionResult:
        self._refuse_second()
        self.result = await self._producer._finish(self._stored(), outcome, remark)
        return checked(self.result)


class AsyncConsumer:
    """`Consumer` for asyncio: the same arguments, `async for` instead of `for`. `await message.ack()`, or do not wait for it."""

    def __init__(
        self,
        url: str,
        topics: str | Sequence[str],
        group: str,
        *,
        auto_ack: bool = True,
        consumer: str | None = None,
        token: str | Callable[[], str] | None = None,
        tls: ssl.SSLContext | None = None,
        tags: str = "",
        start: str | int | None = None,
        prefetch: int = 32,
        visibility_s: float = 30.0,
        extend_for_s: float = 600.0,
        idle_s: float | None = None,
        wait_s: float = 30.0,
        timeout_s: float = 10.0,
        retry_for_s: float = 30.0,
    ) -> None:
        self._auto_ack, self._idle_s = auto_ack, idle_s
        self._intake = Intake(
            url,
            as_topics(topics),
            group,
            consumer=consumer,
            token=token,
            tls=tls,
            tags=tags,
            start=start,
            prefetch=prefetch,
            visibility_s=visibility_s,
            extend_for_s=extend_for_s,
            wait_s=wait_s,
            timeout_s=timeout_s,
            retry_for_s=retry_for_s,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self, timeout_s: float = 10.0) -> bool:
        """Send the acks, give back what is in hand, end the threads. Loops end. True when that was done in time."""
        return await asyncio.to_thread(self._intake.close, timeout_s)

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
        taker = self._intake.take()
        try:
            async with asyncio.timeout(timeout_s):
                return await _wait(taker)
        except TimeoutError:
            self._intake.put_back(taker)
            return None
        except asyncio.CancelledError:
            self._intake.put_back(taker)
            raise

    async def seek(self, to: str | int, *, topic: str | None = None) -> None:
        """Put the whole group to "earliest", "latest" or a time (milliseconds, or RFC 3339); for one topic or all."""
        await asyncio.to_thread(self._intake.seek, to, self._intake.topics if topic is None else [topic])

    async def dead_letters(self) -> AsyncIterator[DeadLetter]:
        """Messages that the group was given too often, oldest first."""
        after: str | None = None
        while True:
            letters, after = await asyncio.to_thread(self._intake.api.dead_letters, self._intake.group, after=after)
            for letter in letters:
                yield letter
            if after is None:
                return

    async def replay_dead_letters(self, ids: Sequence[str]) -> int:
        """Deliver dead letters to the group again; how many will be."""
        return await asyncio.to_thread(self._intake.api.replay_dead_letters, self._intake.group, ids)


class _Arrivals:
    """Results that the engine's threads bring to tasks of one event loop. Those that come together wake it once: a wake for each
    costs more than all the rest of a message."""

    def __init__(self) -> None:
        self._arrived: deque[tuple[asyncio.Future[Any], Future[Any]]] = deque()
        self._called = False

    def wait(self, future: Future[_T]) -> Awaitable[_T]:
        """Await an engine's future. Cancelling takes what has not been sent yet out of its batch."""
        waiter: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        waiter.add_done_callback(lambda waiter: future.cancel() if waiter.cancelled() else None)
        future.add_done_callback(lambda future: self._arrive(waiter, future))
        return waiter

    def _arrive(self, waiter: asyncio.Future[Any], future: Future[Any]) -> None:
        self._arrived.append((waiter, future))
        if not self._called:
            self._called = True
            with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                waiter.get_loop().call_soon_threadsafe(self._hand_out)

    def _hand_out(self) -> None:
        self._called = False  # first: what arrives from now on calls again
        while self._arrived:
            waiter, future = self._arrived.popleft()
            if waiter.done():
                continue
            if future.cancelled():
                waiter.cancel()
            elif (error := future.exception()) is not None:
                waiter.set_exception(error)
            else:
                waiter.set_result(future.result())


#: By event loop, which a producer may outlive.
_arrivals: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _Arrivals]] = WeakKeyDictionary()


def _wait(future: Future[_T]) -> Awaitable[_T]:
    loop = asyncio.get_running_loop()
    arrivals = _arrivals.get(loop)
    if arrivals is None:
        arrivals = _arrivals[loop] = _Arrivals()
    return arrivals.wait(future)


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
