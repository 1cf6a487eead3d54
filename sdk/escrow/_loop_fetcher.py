"""What `AsyncConsumer` is built on: tasks that fetch messages, hold them and settle them (`escrow._inbox`). No threads.

The parts are those of `escrow._fetcher`: a fetching task a topic, one settler, one extender.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress

from escrow._batch_policy import Limits
from escrow._calls import Call, seek
from escrow._deliveries import Delivery, Held, Pending
from escrow._inbox import Inbox, Pace, Reading, Settling, is_final, log
from escrow._loop import LoopHome, LoopTransport
from escrow._loop_batching import LoopBatcher
from escrow._transport import Server
from escrow.errors import Closed, EscrowError
from escrow.messages import Delivered


class LoopIntake:
    """From the first `take` to `close`, in the event loop that it is made in."""

    def __init__(self, server: Server, reading: Reading) -> None:
        self.reading = reading
        self.home = LoopHome()
        self.transport = LoopTransport(server)
        self._loop = self.home.loop
        self._inbox = Inbox(reading)
        self._takers: deque[asyncio.Future[Delivery]] = deque()
        #: There may be room again.
        self._changed = asyncio.Event()
        #: Why nothing is fetched any more.
        self._error: EscrowError | None = None
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._polls: set[asyncio.Task[list[Delivered]]] = set()
        self._settler: LoopBatcher[Delivery, bool] = LoopBatcher(
            "acks", self._send, Limits(batch_max=512, retry_for_s=server.retry_for_s, timeout_s=server.timeout_s)
        )

    # --- taking -----------------------------------------------------------------------------------------------------------
    def take(self) -> asyncio.Future[Delivery]:
        """The next message. `put_back` the future if nothing will handle it."""
        if self._stopping:
            raise Closed("this consumer is closed")
        self._start()
        taker: asyncio.Future[Delivery] = self._loop.create_future()
        self._takers.append(taker)
        self._hand_out()
        return taker

    def put_back(self, taker: asyncio.Future[Delivery]) -> None:
        """Nothing waits for this any more; what it had got goes to the next one."""
        if not taker.cancel() and not taker.cancelled() and taker.exception() is None:
            self._inbox.put_back(taker.result())
            self._hand_out()

    def _hand_out(self) -> None:
        """Messages to those that wait, oldest first."""
        while self._takers:
            if self._takers[0].done():
                self._takers.popleft()
            elif (delivery := self._inbox.next(time.monotonic())) is not None:
                self._takers.popleft().set_result(delivery)
            elif self._error is not None:
                self._takers.popleft().set_exception(self._error)
            else:
                break
        self._changed.set()

    # --- fetching ---------------------------------------------------------------------------------------------------------
    def _start(self) -> None:
        if self._tasks:
            return
        self._tasks = [self._loop.create_task(self._fetch_forever(topic)) for topic in self.reading.topics]
        if self.reading.extend_for_s > 0:
            self._tasks.append(self._loop.create_task(self._extend_forever()))

    async def _fetch_forever(self, topic: str) -> None:
        pace = Pace(topic)
        while not self._stopping:
            if not (room := self._inbox.room(topic)):
                self._changed.clear()
                await self._changed.wait()
                continue
            begun_at, epoch = time.monotonic(), self._inbox.epoch
            try:
                found = await self._poll(self.reading.poll(topic, room))
            except EscrowError as error:
                if is_final(error):
                    pace.ended(error)
                    self._error = error
                    self._hand_out()
                    return
                await asyncio.sleep(pace.failed(error))
                continue
            if found is None:
                continue
            self._put(found, epoch)
            if pause_s := pace.found(len(found), time.monotonic() - begun_at):
                await asyncio.sleep(pause_s)

    async def _poll(self, call: Call[list[Delivered]]) -> list[Delivered] | None:
        """None where `_abort_polls` ended it."""
        poll = self._loop.create_task(self.transport.perform(call))
        self._polls.add(poll)
        try:
            await asyncio.wait([poll])
        finally:
            self._polls.discard(poll)
            poll.cancel()  # does nothing unless this task is cancelled
        return None if poll.cancelled() else poll.result()

    def _abort_polls(self) -> None:
        for poll in self._polls:
            poll.cancel()

    def _put(self, found: Iterable[Delivered], epoch: int) -> None:
        """Into the inbox; or back, where a seek came between. (Where the end did, `close` gives everything back.)"""
        self._give_back(self._inbox.put(found, self, epoch, time.monotonic()))
        if not self._stopping:
            self._hand_out()

    # --- settling ---------------------------------------------------------------------------------------------------------
    def settle(self, delivery: Delivery, state: Held, delay_s: float | None) -> Pending[bool]:
        if threading.get_ident() == self.home.thread:
            return Pending(self._settle(delivery, state, delay_s))
        settled: Future[bool] = Future()  # a handler in a thread of its own
        self._loop.call_soon_threadsafe(lambda: self._settle_for(settled, delivery, state, delay_s))
        return Pending(settled)

    def _settle_for(self, caller: Future[bool], delivery: Delivery, state: Held, delay_s: float | None) -> None:
        def pass_on(settled: asyncio.Future[bool]) -> None:
            if (error := settled.exception()) is not None:
                caller.set_exception(error)
            else:
                caller.set_result(settled.result())

        try:
            self._settle(delivery, state, delay_s).add_done_callback(pass_on)
        except EscrowError as error:
            caller.set_exception(error)

    def _settle(self, delivery: Delivery, state: Held, delay_s: float | None) -> asyncio.Future[bool]:
        settled: asyncio.Future[bool] = self._loop.create_future()
        if delivery.state is not Held.HELD:
            settled.set_result(delivery.state is state)
            return settled
        parcel = self._settler.submit([delivery], key=Settling(delivery.topic, delay_s, False))
        self._inbox.settle(delivery, state)
        parcel.add_done_callback(lambda done: _pass_on(done, settled))
        return settled

    def _give_back(self, deliveries: Iterable[Delivery]) -> list[asyncio.Future[bool]]:
        return [self._settle(delivery, Held.GIVEN_BACK, 0.0) for delivery in deliveries]

    async def _send(self, settling: Hashable, deliveries: Sequence[Delivery], give_up_at: float) -> list[bool]:
        assert isinstance(settling, Settling)
        asked_at = time.monotonic()
        answers = await self.transport.perform(settling.call(self.reading.group, deliveries), give_up_at)
        return self._inbox.settled(settling, deliveries, answers, asked_at)

    # --- extending --------------------------------------------------------------------------------------------------------
    async def _extend_forever(self) -> None:
        while True:
            await asyncio.sleep(self.reading.extend_every_s)
            for settling, deliveries in self._inbox.due(time.monotonic()).items():
                self._extend(settling, deliveries)

    def _extend(self, settling: Settling, deliveries: list[Delivery]) -> None:
        """Ask for more time. The answer is not waited for: where it fails, it is due again."""

        def over(_: asyncio.Future[list[bool]]) -> None:
            for delivery in deliveries:
                delivery.extending = False

        self._settler.submit(deliveries, key=settling).add_done_callback(over)

    # --- seek and the end -------------------------------------------------------------------------------------------------
    async def seek(self, to: str | int, topics: Sequence[str]) -> None:
        """The steps of `escrow._fetcher.Intake.seek`."""
        fetched = self._inbox.begin_seek(topics)  # 1
        self._abort_polls()
        given_back = self._give_back(fetched)  # 2
        try:
            await asyncio.gather(*given_back)
            for topic in topics:  # 3
                await self.transport.perform(seek(topic, self.reading.group, to))
        finally:
            self._inbox.end_seek()
            self._changed.set()

    async def close(self, timeout_s: float) -> bool:
        """The steps of `escrow._fetcher.Intake.close`."""
        give_up_at = time.monotonic() + timeout_s
        first, self._stopping = not self._stopping, True
        for task in self._tasks:  # 1
            task.cancel()
        for taker in self._takers:
            if not taker.done():
                taker.set_exception(Closed("this consumer is closed"))
        self._takers.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*self._tasks, return_exceptions=True)
        if first:
            self._give_back(self._inbox.held())  # 2
        done = await self._settler.close(max(0.0, give_up_at - time.monotonic()))  # 3
        self.transport.close()
        return done


def _pass_on(parcel: asyncio.Future[list[bool]], settled: asyncio.Future[bool]) -> None:
    error = Closed("the event loop ended") if parcel.cancelled() else parcel.exception()
    if error is not None:
        log.warning("an ack or nack was not sent (%s): the message will be delivered again", error)
    if settled.done():  # it was awaited, and that task was cancelled
        return
    if error is None:
        settled.set_result(parcel.result()[0])
    else:
        settled.set_exception(error)
        settled.exception()  # marks it as seen: an ack need not be awaited
