"""What `Consumer` and `AsyncConsumer` both stand on: fetches messages, holds them, settles them.

    fetchers     one thread a topic: long-polls while there is room, and puts what comes into the inbox
    settler      acks, give-backs and extensions in shared requests, one after another: so an extension, which changes a
                 receipt, never crosses an ack of the same message
    extender     asks for more time for messages in hand

A delivery's ways:   HELD → DONE (acked) | GIVEN_BACK (nacked, or closed) | LOST (its time ran out: somebody else has it now)
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from escrow._batching import Batcher
from escrow._sender import close_at_exit, own_name
from escrow._transport import Aborted, Backoff
from escrow.api import Api
from escrow.errors import Closed, EscrowError, Refused
from escrow.messages import Delivered

log: Final = logging.getLogger("escrow.consumer")

_T = TypeVar("_T")

#: An empty answer sooner than this was no long poll.
_TOO_SOON_S: Final = 0.05
#: Extensions are asked for when this part of the time has gone by: two may fail before a message is lost.
_EXTEND_AFTER: Final = 1 / 3


class Pending(Generic[_T]):
    """Something under way. Ignore it, wait for it with `.result()`, or `await` it."""

    def __init__(self, future: Future[_T]) -> None:
        self._future = future

    def result(self, timeout_s: float | None = None) -> _T:
        return self._future.result(timeout_s)

    def __await__(self) -> Generator[Any, None, _T]:
        return asyncio.wrap_future(self._future).__await__()


class Held(Enum):
    """Where a delivery is."""

    HELD = "held"
    DONE = "done"
    GIVEN_BACK = "given back"
    LOST = "lost"


class Delivery:
    """A message in hand. Say `ack()` when it is done, `nack()` to have it delivered again."""

    def __init__(self, delivered: Delivered, intake: Intake, got_at: float, visible_at: float) -> None:
        self._delivered, self._intake = delivered, intake
        self.state = Held.HELD
        self.receipt = delivered.receipt
        #: Monotonic: when it was fetched, and when others may get it unless more time is asked for.
        self.got_at, self.visible_at = got_at, visible_at
        self.extending = False
        self.topic, self.queue_id, self.queue_offset = delivered.topic, delivered.queue_id, delivered.queue_offset
        #: How often the group has been given this message, this time included.
        self.attempt = delivered.attempt
        self.body, self.key, self.tags = delivered.body, delivered.key, delivered.tags
        self.properties: Mapping[str, str] = delivered.properties
        self.born_at_ms, self.stored_at_ms = delivered.born_at_ms, delivered.stored_at_ms
        #: Of the half that it was; empty for an ordinary message.
        self.transaction_id = delivered.transaction_id

    def __repr__(self) -> str:
        return f"<{self.topic} {self.queue_id}/{self.queue_offset}, attempt {self.attempt}, {self.state.value}>"

    @property
    def text(self) -> str:
        return self.body.decode()

    def ack(self) -> Pending[bool]:
        """Done. Goes out with others in the background; `.result()` or `await` waits for it and says False where it came too late:
        the message has been, or will be, delivered again."""
        return Pending(self._intake.settle(self, Held.DONE, None))

    def nack(self, delay_s: float = 0.0) -> Pending[bool]:
        """Not done: deliver it again, after this delay."""
        return Pending(self._intake.settle(self, Held.GIVEN_BACK, delay_s))


class Intake:
    """From `start` to `close`. For any number of threads and tasks."""

    def __init__(
        self,
        url: str,
        topics: Sequence[str],
        group: str,
        *,
        consumer: str | None = None,
        token: str | Callable[[], str] | None = None,
        tls: ssl.SSLContext | None = None,
        tags: str = "",
        start: str | int | None = None,
        prefetch: int = 32,
        visibility_s: float = 30.0,
        extend_for_s: float = 600.0,
        wait_s: float = 30.0,
        timeout_s: float = 10.0,
        retry_for_s: float = 30.0,
    ) -> None:
        _check_arguments(topics, group, prefetch, visibility_s)
        self.api = Api(url, token=token, tls=tls, timeout_s=timeout_s, retry_for_s=retry_for_s)
        self.topics, self.group, self.consumer = tuple(topics), group, consumer or own_name()
        self._tags, self._from, self._prefetch, self._wait_s = tags, start, prefetch, wait_s
        self._visibility_s, self._extend_for_s = visibility_s, extend_for_s
        self._changed = threading.Condition(threading.RLock())
        self._inbox: deque[Delivery] = deque()
        self._takers: deque[Future[Delivery]] = deque()
        self._held: dict[int, Delivery] = {}
        self._seeks = self._epoch = 0
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._settler: Batcher[Delivery, bool] = Batcher(
            "acks", self._send, batch_max=512, retry_for_s=retry_for_s, timeout_s=timeout_s
        )
        close_at_exit(self)

    # --- taking -----------------------------------------------------------------------------------------------------------
    def take(self) -> Future[Delivery]:
        """The next message. Cancel the future, or `put_back` what it has got, if nobody will handle it."""
        taker: Future[Delivery] = Future()
        with self._changed:
            if self._stopping.is_set():
                raise Closed("this consumer is closed")
            self._start()
            self._takers.append(taker)
            self._hand_out()
        return taker

    def put_back(self, taker: Future[Delivery]) -> None:
        """Nobody waits for this any more; what it had got goes to the next one."""
        if not taker.cancel() and taker.exception() is None:
            with self._changed:
                self._inbox.appendleft(taker.result())
                self._hand_out()

    def _hand_out(self) -> None:
        """Messages to those who wait, oldest first; those whose time ran out while they lay here are left out."""
        while self._takers and self._inbox:
            delivery = self._inbox.popleft()
            if delivery.state is Held.HELD and delivery.visible_at <= time.monotonic():
                self._lost(delivery)
            if delivery.state is not Held.HELD:
                continue
            taker = self._next_taker()
            if taker is None:
                self._inbox.appendleft(delivery)
                return
            taker.set_result(delivery)
        self._changed.notify_all()

    def _next_taker(self) -> Future[Delivery] | None:
        while self._takers:
            taker = self._takers.popleft()
            if taker.set_running_or_notify_cancel():
                return taker
        return None

    # --- fetching ---------------------------------------------------------------------------------------------------------
    def _start(self) -> None:
        if self._threads:
            return
        self._threads = [
            threading.Thread(target=self._fetch_forever, args=(topic,), name=f"escrow-fetch-{topic}", daemon=True)
            for topic in self.topics
        ]
        if self._extend_for_s > 0:
            self._threads.append(threading.Thread(target=self._extend_forever, name="escrow-extend", daemon=True))
        for thread in self._threads:
            thread.start()

    def _fetch_forever(self, topic: str) -> None:
        backoff, failing = Backoff(first_s=0.1, most_s=5.0), ""
        while room := self._wait_for_room(topic):
            begun_at, epoch = time.monotonic(), self._epoch
            try:
                found = self._fetch(topic, room)
            except Aborted:
                continue
            except EscrowError as error:
                if str(error) != failing and not self._stopping.is_set():
                    log.warning("no messages of %s: %s; trying again", topic, error)
                    failing = str(error)
                retry_after_s = error.retry_after_s if isinstance(error, Refused) else None
                self._stopping.wait(backoff.next_s(retry_after_s or 0.0))
                continue
            failing = ""
            self._put(found, epoch)
            if found or time.monotonic() - begun_at >= _TOO_SOON_S:
                backoff.reset()
            else:
                self._stopping.wait(backoff.next_s())

    def _wait_for_room(self, topic: str) -> int:
        """How many messages may be fetched; 0 when the consumer stops. Waits until half of the room is free: few large polls."""
        with self._changed:
            while not self._stopping.is_set():
                room = self._prefetch - sum(delivery.topic == topic for delivery in self._inbox)
                if not self._seeks and 2 * room >= self._prefetch:
                    return room
                self._changed.wait()
            return 0

    def _fetch(self, topic: str, room: int) -> list[Delivered]:
        return self.api.poll_messages(
            topic,
            self.group,
            self.consumer,
            max=room,
            wait_s=self._wait_s,
            visibility_s=self._visibility_s,
            tags=self._tags,
            start=self._from,
        )

    def _put(self, found: Iterable[Delivered], epoch: int) -> None:
        """Into the inbox; or back, where a seek or the end came between."""
        now = time.monotonic()
        with self._changed:
            deliveries = [Delivery(delivered, self, now, now + self._visibility_s) for delivered in found]
            for delivery in deliveries:
                self._held[id(delivery)] = delivery
            if epoch != self._epoch or self._stopping.is_set():
                self._give_back(deliveries)
                return
            self._inbox.extend(deliveries)
            self._hand_out()

    # --- settling ---------------------------------------------------------------------------------------------------------
    def settle(self, delivery: Delivery, state: Held, delay_s: float | None) -> Future[bool]:
        """Say what became of a delivery: `delay_s` None is an ack. The first word counts."""
        if delay_s is not None and delay_s < 0:
            raise ValueError(f"delay_s: is {delay_s}, must not be negative")
        settled: Future[bool] = Future()
        with self._changed:
            if delivery.state is not Held.HELD:
                settled.set_result(delivery.state is state)
                return settled
            parcel = self._settler.submit([delivery], key=(delivery.topic, delay_s, False))
            delivery.state = state
            self._held.pop(id(delivery), None)
        parcel.add_done_callback(lambda done: _pass_on(done, settled))
        return settled

    def _give_back(self, deliveries: Iterable[Delivery]) -> list[Future[bool]]:
        return [self.settle(delivery, Held.GIVEN_BACK, 0.0) for delivery in deliveries]

    def _send(self, key: Hashable, deliveries: Sequence[Delivery], give_up_at: float) -> list[bool]:
        """One request, in the settler's thread. The receipts are read here: an extension before this one has changed them."""
        assert isinstance(key, tuple)
        topic, visibility_s, extends = key
        receipts = [delivery.receipt for delivery in deliveries]
        if visibility_s is None:
            return self.api.ack(topic, self.group, receipts, give_up_at=give_up_at)
        asked_at = time.monotonic()
        answers = self.api.set_visibility(topic, self.group, receipts, visibility_s, give_up_at=give_up_at)
        if extends:
            with self._changed:
                for delivery, receipt in zip(deliveries, answers, strict=True):
                    self._extended(delivery, receipt, asked_at + visibility_s)
        return [receipt is not None for receipt in answers]

    # --- extending --------------------------------------------------------------------------------------------------------
    def _extend_forever(self) -> None:
        while not self._stopping.wait(self._visibility_s * _EXTEND_AFTER / 2):
            with self._changed:
                for topic, deliveries in self._due(time.monotonic()).items():
                    self._extend(topic, deliveries)

    def _extend(self, topic: str, deliveries: list[Delivery]) -> None:
        """Ask for more time. Nobody waits for the answer: where it fails, it is due again."""

        def over(_: Future[list[bool]]) -> None:
            for delivery in deliveries:
                delivery.extending = False

        for delivery in deliveries:
            delivery.extending = True
        self._settler.submit(deliveries, key=(topic, self._visibility_s, True)).add_done_callback(over)

    def _due(self, now: float) -> dict[str, list[Delivery]]:
        """Deliveries that need more time and may have it, by topic."""
        due: dict[str, list[Delivery]] = {}
        for delivery in self._held.values():
            used_s = self._visibility_s - (delivery.visible_at - now)
            if delivery.extending:
                continue
            if used_s >= self._visibility_s * _EXTEND_AFTER and now - delivery.got_at < self._extend_for_s:
                due.setdefault(delivery.topic, []).append(delivery)
        return due

    def _extended(self, delivery: Delivery, receipt: str | None, visible_at: float) -> None:
        if receipt is not None:
            delivery.receipt, delivery.visible_at = receipt, visible_at
        elif delivery.state is Held.HELD:
            self._lost(delivery)

    def _lost(self, delivery: Delivery) -> None:
        log.warning("%r: its time ran out, somebody else gets it", delivery)
        delivery.state = Held.LOST
        self._held.pop(id(delivery), None)

    # --- seek and the end -------------------------------------------------------------------------------------------------
    def seek(self, to: str | int, topics: Sequence[str]) -> None:
        """Put the group elsewhere:

        1  nobody fetches, and what fetches under way bring is given back
        2  what lies in the inbox is given back
        3  seek, and fetch again
        """
        with self._changed:  # 1
            self._seeks += 1
            self._epoch += 1
            self.api.transport.abort_polls()
            given_back = self._give_back([delivery for delivery in self._inbox if delivery.topic in topics])  # 2
        try:
            for future in given_back:
                future.result()
            for topic in topics:  # 3
                self.api.seek(topic, self.group, to)
        finally:
            with self._changed:
                self._seeks -= 1
                self._inbox = deque(delivery for delivery in self._inbox if delivery.state is Held.HELD)
                self._changed.notify_all()

    def close(self, timeout_s: float) -> bool:
        """In this order, within this time:

        1  no more fetches; who waits for a message hears `Closed`
        2  what is in hand and not settled is given back, so that others get it now
        3  acks and give-backs are sent, the connections are closed
        """
        if self.api.transport.server.home.is_left:
            return True
        give_up_at = time.monotonic() + timeout_s
        with self._changed:
            first = not self._stopping.is_set()
            self._stopping.set()
            takers, self._takers = self._takers, deque()
            self._changed.notify_all()
        self.api.transport.abort_polls()  # 1
        for taker in takers:
            if taker.set_running_or_notify_cancel():
                taker.set_exception(Closed("this consumer is closed"))
        for thread in self._threads:
            thread.join(max(0.0, give_up_at - time.monotonic()))
        if first:
            with self._changed:
                self._give_back(list(self._held.values()))  # 2
        done = self._settler.close(max(0.0, give_up_at - time.monotonic()))  # 3
        self._settler.abandon()
        self.api.close()
        return done and not any(thread.is_alive() for thread in self._threads)


def _check_arguments(topics: Sequence[str], group: str, prefetch: int, visibility_s: float) -> None:
    if isinstance(topics, str) or not topics or not all(topics):
        raise ValueError(f"topics: is {topics!r}, must be a list of one or more names")
    if not group:
        raise ValueError("group: is empty; name the consumer group whose members share these messages")
    if prefetch < 1:
        raise ValueError(f"prefetch: is {prefetch}, must be at least 1")
    if visibility_s <= 0:
        raise ValueError(f"visibility_s: is {visibility_s}, must be more than 0")


def _pass_on(parcel: Future[list[bool]], settled: Future[bool]) -> None:
    error = parcel.exception()
    if error is None:
        settled.set_result(parcel.result()[0])
        return
    log.warning("an ack or nack was not sent (%s): the message will be delivered again", error)
    settled.set_exception(error)
