"""What `Consumer` is built on: threads that fetch messages, hold them and settle them (`escrow._inbox`).

fetchers     one thread a topic: long-polls while there is room, and puts what comes into the inbox
settler      acks, give-backs and extensions in shared requests, one after another: so an extension, which changes a
             receipt, never crosses an ack of the same message
extender     asks for more time for messages in hand
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from concurrent.futures import Future

from escrow._batch_policy import Limits
from escrow._batching import Batcher
from escrow._deliveries import Delivery, Held, Pending
from escrow._exits import close_at_exit
from escrow._inbox import Inbox, Pace, Reading, Settling, is_final, log
from escrow._transport import Aborted
from escrow.api import Api
from escrow.errors import Closed, EscrowError
from escrow.messages import Delivered


class Intake:
    """From the first `take` to `close`. For any number of threads."""

    def __init__(self, api: Api, reading: Reading) -> None:
        self.api, self.reading = api, reading
        server = api.transport.server
        self._changed = threading.Condition(threading.RLock())
        self._inbox = Inbox(reading)
        self._takers: deque[Future[Delivery]] = deque()
        #: Why nothing is fetched any more.
        self._error: EscrowError | None = None
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._settler: Batcher[Delivery, bool] = Batcher(
            "acks", self._send, Limits(batch_max=512, retry_for_s=server.retry_for_s, timeout_s=server.timeout_s)
        )
        close_at_exit(self)

    # --- taking -----------------------------------------------------------------------------------------------------------
    def take(self) -> Future[Delivery]:
        """The next message. Cancel the future, or `put_back` what it has got, if nothing will handle it."""
        taker: Future[Delivery] = Future()
        with self._changed:
            if self._stopping.is_set():
                raise Closed("this consumer is closed")
            self._start()
            self._takers.append(taker)
            self._hand_out()
        return taker

    def put_back(self, taker: Future[Delivery]) -> None:
        """Nothing waits for this any more; what it had got goes to the next one."""
        if not taker.cancel() and taker.exception() is None:
            with self._changed:
                self._inbox.put_back(taker.result())
                self._hand_out()

    def _hand_out(self) -> None:
        """Messages to those that wait, oldest first."""
        while self._takers and (delivery := self._inbox.next(time.monotonic())) is not None:
            taker = self._next_taker()
            if taker is None:
                self._inbox.put_back(delivery)
                return
            taker.set_result(delivery)
        while self._error is not None and (taker := self._next_taker()) is not None:
            taker.set_exception(self._error)
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
            for topic in self.reading.topics
        ]
        if self.reading.extend_for_s > 0:
            self._threads.append(threading.Thread(target=self._extend_forever, name="escrow-extend", daemon=True))
        for thread in self._threads:
            thread.start()

    def _fetch_forever(self, topic: str) -> None:
        pace = Pace(topic)
        while room := self._wait_for_room(topic):
            begun_at, epoch = time.monotonic(), self._inbox.epoch
            try:
                found = self.api.transport.perform(self.reading.poll(topic, room))
            except Aborted:
                continue
            except EscrowError as error:
                if is_final(error):
                    pace.ended(error)
                    self._fail(error)
                    return
                if not self._stopping.is_set():
                    self._stopping.wait(pace.failed(error))
                continue
            self._put(found, epoch)
            self._stopping.wait(pace.found(len(found), time.monotonic() - begun_at))

    def _fail(self, error: EscrowError) -> None:
        """Callers that wait for a message get this, now and from now on, when nothing is left that was fetched."""
        with self._changed:
            self._error = error
            self._hand_out()

    def _wait_for_room(self, topic: str) -> int:
        """How many messages may be fetched; 0 when the consumer stops."""
        with self._changed:
            while not self._stopping.is_set():
                if room := self._inbox.room(topic):
                    return room
                self._changed.wait()
            return 0

    def _put(self, found: Iterable[Delivered], epoch: int) -> None:
        """Into the inbox; or back, where a seek came between. (Where the end did, `close` gives everything back.)"""
        with self._changed:
            self._give_back(self._inbox.put(found, self, epoch, time.monotonic()))
            if not self._stopping.is_set():
                self._hand_out()

    # --- settling ---------------------------------------------------------------------------------------------------------
    def settle(self, delivery: Delivery, state: Held, delay_s: float | None) -> Pending[bool]:
        return Pending(self._settle(delivery, state, delay_s))

    def _settle(self, delivery: Delivery, state: Held, delay_s: float | None) -> Future[bool]:
        settled: Future[bool] = Future()
        with self._changed:
            if delivery.state is not Held.HELD:
                settled.set_result(delivery.state is state)
                return settled
            parcel = self._settler.submit([delivery], key=Settling(delivery.topic, delay_s, False))
            self._inbox.settle(delivery, state)
        parcel.add_done_callback(lambda done: _pass_on(done, settled))
        return settled

    def _give_back(self, deliveries: Iterable[Delivery]) -> list[Future[bool]]:
        return [self._settle(delivery, Held.GIVEN_BACK, 0.0) for delivery in deliveries]

    def _send(self, settling: Hashable, deliveries: Sequence[Delivery], give_up_at: float) -> list[bool]:
        """One request, in the settler's thread."""
        assert isinstance(settling, Settling)
        asked_at = time.monotonic()
        answers = self.api.transport.perform(settling.call(self.reading.group, deliveries), give_up_at)
        with self._changed:
            return self._inbox.settled(settling, deliveries, answers, asked_at)

    # --- extending --------------------------------------------------------------------------------------------------------
    def _extend_forever(self) -> None:
        while not self._stopping.wait(self.reading.extend_every_s):
            with self._changed:
                for settling, deliveries in self._inbox.due(time.monotonic()).items():
                    self._extend(settling, deliveries)

    def _extend(self, settling: Settling, deliveries: list[Delivery]) -> None:
        """Ask for more time. The answer is not waited for: where it fails, it is due again."""

        def over(_: Future[list[bool]]) -> None:
            for delivery in deliveries:
                delivery.extending = False

        self._settler.submit(deliveries, key=settling).add_done_callback(over)

    # --- seek and the end -------------------------------------------------------------------------------------------------
    def seek(self, to: str | int, topics: Sequence[str]) -> None:
        """Put the group elsewhere:

        1  nothing is fetched, and what polls under way bring is given back
        2  what lies in the inbox is given back
        3  seek, and fetch again
        """
        with self._changed:  # 1
            fetched = self._inbox.begin_seek(topics)
            self.api.transport.abort_polls()
            given_back = self._give_back(fetched)  # 2
        try:
            for future in given_back:
                future.result()
            for topic in topics:  # 3
                self.api.seek(topic, self.reading.group, to)
        finally:
            with self._changed:
                self._inbox.end_seek()
                self._changed.notify_all()

    def close(self, timeout_s: float) -> bool:
        """In this order, within this time:

        1  no more fetches; callers that wait for a message get `Closed`
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
                self._give_back(self._inbox.held())  # 2
        done = self._settler.close(max(0.0, give_up_at - time.monotonic()))  # 3
        self._settler.abandon()
        self.api.close()
        return done and not any(thread.is_alive() for thread in self._threads)


def _pass_on(parcel: Future[list[bool]], settled: Future[bool]) -> None:
    error = parcel.exception()
    if error is None:
        settled.set_result(parcel.result()[0])
        return
    log.warning("an ack or nack was not sent (%s): the message will be delivered again", error)
    settled.set_exception(error)
