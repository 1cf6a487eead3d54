"""Batches and calls in an event loop: what `escrow._batching` and `escrow._transport` are for threads, and by the same rules.

A task that sends through threads costs three times as much: each hand-over takes locks, and the threads fight with the loop for the
interpreter (measured: 65 against 22 µs of the client for a transaction of 64 tasks). So nothing here leaves the loop.

A request takes what waits when the loop comes round: tasks that were answered together, and go on at once, share the next one.
Where several may be under way, another one begins when it would be full: smaller ones cost more than it brings that they overlap
(64 tasks in two requests instead of one, measured: 94 instead of 70 µs of both sides for a transaction).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from escrow._batching import BATCH_BYTES_MAX, check_limits, is_of_one
from escrow._http1 import Answer, answering, request_of
from escrow._transport import KEPT_MAX, Backoff, Request, Server, decoded, pause_after
from escrow.api import Posting
from escrow.errors import Closed, EscrowError, Unreachable

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


class LoopConnection(asyncio.Protocol):
    """One connection; one request after another."""

    def __init__(self, authority: str, loop: asyncio.AbstractEventLoop) -> None:
        self._authority, self._loop = authority, loop
        self._came = bytearray()
        self._ended = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._wire: asyncio.Transport | None = None

    @classmethod
    async def open(cls, server: Server) -> LoopConnection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(server.authority, loop), server.host, server.port, ssl=server.tls)
        return connection

    @property
    def is_open(self) -> bool:
        """Nothing is due on it between two requests, so what has come is its end, or nobody's."""
        return self._wire is not None and not (self._ended or self._came)

    def close(self) -> None:
        self._ended = True
        if self._wire is not None:
            self._wire.abort()
            self._wire = None

    async def exchange(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        """Any error, and a cancellation, leaves a connection that is of no more use: close it."""
        if self._wire is None:
            raise ConnectionResetError("the connection was closed")
        self._wire.write(request_of(self._authority, method, target, headers, body))
        reading = answering()
        room = next(reading)
        while True:
            try:
                room = reading.send(await self._fill(room))
            except StopIteration as end:
                answer: Answer = end.value
                break
        if not answer.keeps:
            self.close()
        return answer

    async def _fill(self, room: memoryview) -> int:
        while not self._came:
            if self._error is not None:
                raise self._error
            if self._ended:
                return 0
            self._waiter = self._loop.create_future()
            await self._waiter
        count = min(len(room), len(self._came))
        room[:count] = self._came[:count]
        del self._came[:count]
        return count

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- what the loop tells ----------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._wire = transport

    def data_received(self, data: bytes) -> None:
        self._came += data
        self._wake()

    def eof_received(self) -> None:
        self._ended = True
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._ended, self._error, self._wire = True, error, None
        self._wake()


class LoopTransport:
    """Calls to one Escrow, as `Transport` makes them, from the tasks of one event loop."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._kept: list[LoopConnection] = []
        self._closed = False

    async def post(self, posting: Posting[_Answer], give_up_at: float | None = None) -> list[_Answer]:
        """What each item is answered; patience and repetition as in `Transport.call`."""
        request = self._server.request("POST", posting.path, content=posting.content, media=posting.media)
        if give_up_at is None:
            give_up_at = time.monotonic() + self._server.retry_for_s
        backoff = Backoff()
        while True:
            try:
                return posting.answers(await self._attempt(request))
            except EscrowError as error:
                pause_s = pause_after(error, posting.repeat, backoff)
                if pause_s is None or time.monotonic() + pause_s >= give_up_at:
                    raise
            await asyncio.sleep(pause_s)

    async def _attempt(self, request: Request) -> Any:
        if self._closed:
            raise Closed("this producer is closed")
        connection: LoopConnection | None = None
        try:
            async with asyncio.timeout(self._server.timeout_s):
                connection = self._kept_one() or await LoopConnection.open(self._server)
                answer = await connection.exchange(request.method, request.path, request.headers, request.content)
        except OSError as error:  # a TimeoutError is one
            if connection is None:
                raise self._server.no_connection(error) from error
            connection.close()
            raise self._server.no_answer(request, error) from error
        except BaseException:
            if connection is not None:
                connection.close()  # an answer may still come: it belongs to nobody
            raise
        if connection.is_open:
            self._keep(connection)
        return decoded(answer)

    def _kept_one(self) -> LoopConnection | None:
        """The one that was used last and is still open."""
        while self._kept:
            connection = self._kept.pop()
            if connection.is_open:
                return connection
            connection.close()
        return None

    def _keep(self, connection: LoopConnection) -> None:
        if len(self._kept) < KEPT_MAX and not self._closed:
            self._kept.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Calls under way end by themselves; none begins."""
        self._closed = True
        for connection in self._kept:
            connection.close()
        self._kept.clear()


@dataclass(slots=True)
class _Parcel(Generic[_Item, _Answer]):
    items: Sequence[_Item]
    size_bytes: int
    came_at: float
    #: Nothing was under way when it came: it does not linger.
    at_once: bool
    future: asyncio.Future[list[_Answer]]


class LoopBatcher(Generic[_Item, _Answer]):
    """`await submit(items)` are the answers, in order; a parcel is all or none. Made and used in one event loop.

    send(items, give_up_at) makes one request; its time ends at the monotonic time `give_up_at`.
    """

    def __init__(
        self,
        name: str,
        send: Callable[[Sequence[_Item], float], Awaitable[Sequence[_Answer]]],
        *,
        linger_s: float,
        batch_max: int,
        retry_for_s: float,
        timeout_s: float,
        under_way_max: int = 1,
    ) -> None:
        check_limits(linger_s, batch_max)
        self._name, self._send = name, send
        self._linger_s, self._batch_max, self._under_way_max = linger_s, batch_max, under_way_max
        self._retry_for_s, self._late_after_s = retry_for_s, retry_for_s + timeout_s
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Parcel[_Item, _Answer]] = deque()
        self._waiting_items = self._waiting_bytes = 0
        self._under_way: dict[asyncio.Task[None], list[_Parcel[_Item, _Answer]]] = {}
        self._next: asyncio.Handle | None = None
        #: Until then the next one waits for company, and would leave if it were full.
        self._lingers = False
        self._closing = False
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, items: Sequence[_Item], *, size_bytes: int = 0) -> asyncio.Future[list[_Answer]]:
        """Answers to these items. Cancelling the future helps until they are taken."""
        if self._closing:
            raise Closed(f"{self._name}: closed")
        future: asyncio.Future[list[_Answer]] = self._loop.create_future()
        if not items:
            future.set_result([])
            return future
        self._waiting.append(_Parcel(items, size_bytes, time.monotonic(), self._idle.is_set(), future))
        self._waiting_items += len(items)
        self._waiting_bytes += size_bytes
        self._idle.clear()
        if self._next is None or (self._lingers and self._is_full()):
            self._arrange()
        return future

    def _is_full(self) -> bool:
        """What waits is enough for a request."""
        return self._waiting_items >= self._batch_max or self._waiting_bytes >= BATCH_BYTES_MAX

    async def close(self, timeout_s: float) -> bool:
        """What was handed in is still sent; what could not be in this time hears `Closed`. True when everything was."""
        self._closing = True
        self._arrange()
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
            return True
        except TimeoutError:
            return False
        finally:
            self._abandon()

    def _abandon(self) -> None:
        if self._next is not None:
            self._next.cancel()
        for request in self._under_way:
            request.cancel()
        for parcel in self._waiting:
            self._fail(parcel, Closed(f"{self._name}: closed before this was sent"))
        self._waiting.clear()
        self._waiting_items = self._waiting_bytes = 0

    def _arrange(self) -> None:
        """Have the next request sent: when the loop comes round, or when the oldest parcel has lingered."""
        if not self._waiting or len(self._under_way) >= self._under_way_max:
            return
        if self._under_way and not self._is_full() and not self._closing:
            return
        if self._next is not None:
            self._next.cancel()
        oldest = self._waiting[0]
        lingers_s = oldest.came_at + self._linger_s - time.monotonic()
        self._lingers = not (oldest.at_once or lingers_s <= 0 or self._closing or self._is_full())
        self._next = self._loop.call_later(lingers_s, self._go) if self._lingers else self._loop.call_soon(self._go)

    def _go(self) -> None:
        self._next = None
        self._begin()
        while self._waiting and self._is_full() and len(self._under_way) < self._under_way_max:
            self._begin()
        self._arrange()

    def _begin(self) -> None:
        parcels = self._take()
        request = self._loop.create_task(self._deliver(parcels))
        self._under_way[request] = parcels
        request.add_done_callback(self._over)

    def _over(self, request: asyncio.Task[None]) -> None:
        parcels = self._under_way.pop(request)
        if request.cancelled():  # maybe before it began: we were closed, or the event loop ends and nothing may begin any more
            for parcel in parcels:
                self._fail(parcel, Closed(f"{self._name}: closed before this was answered"))
            self._abandon()
        self._arrange()
        if not self._waiting and not self._under_way:
            self._idle.set()

    def _take(self) -> list[_Parcel[_Item, _Answer]]:
        """As many as make one request."""
        taken: list[_Parcel[_Item, _Answer]] = []
        count = size_bytes = 0
        while self._waiting:
            parcel = self._waiting[0]
            count, size_bytes = count + len(parcel.items), size_bytes + parcel.size_bytes
            if taken and (count > self._batch_max or size_bytes > BATCH_BYTES_MAX):
                break
            self._waiting.popleft()
            self._waiting_items -= len(parcel.items)
            self._waiting_bytes -= parcel.size_bytes
            if parcel.future.cancelled():
                count, size_bytes = count - len(parcel.items), size_bytes - parcel.size_bytes
            else:
                taken.append(parcel)
        return taken

    async def _deliver(self, parcels: list[_Parcel[_Item, _Answer]]) -> None:
        """Send parcels as one request, or as few as the culprits among them allow."""
        patient = self._without_late(parcels)
        if not patient:
            return
        try:
            items = [item for parcel in patient for item in parcel.items]
            answers = await self._send(items, patient[-1].came_at + self._retry_for_s)
        except Exception as error:
            if len(patient) > 1 and is_of_one(error):
                middle = len(patient) // 2
                await self._deliver(patient[:middle])
                await self._deliver(patient[middle:])
                return
            for parcel in patient:
                self._fail(parcel, error)
        else:
            at = 0
            for parcel in patient:
                if not parcel.future.done():  # its task was cancelled
                    parcel.future.set_result(list(answers[at : at + len(parcel.items)]))
                at += len(parcel.items)

    def _without_late(self, parcels: list[_Parcel[_Item, _Answer]]) -> list[_Parcel[_Item, _Answer]]:
        """A task whose time went by while others were being served is told so, and nothing of its is sent."""
        late_from = time.monotonic() - self._late_after_s
        for parcel in parcels:
            if parcel.came_at <= late_from:
                message = f"{self._name}: could not be sent within {self._late_after_s} s"
                self._fail(parcel, Unreachable(message, maybe_done=False))
        return [parcel for parcel in parcels if not parcel.future.done()]

    @staticmethod
    def _fail(parcel: _Parcel[_Item, _Answer], error: BaseException) -> None:
        if not parcel.future.done():
            parcel.future.set_exception(error)
            parcel.future.exception()  # whoever does not wait for it any more has nothing to be reminded of
