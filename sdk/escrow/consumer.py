"""The consumer: messages of one or more topics, for one member of a consumer group.

    with escrow.Consumer("http://127.0.0.1:7480", "order-paid", "shipping") as consumer:
        for message in consumer:
            ship(message.body)

Delivery is at least once: what was not acked is delivered again, after `visibility_s` or as soon as it is given back. Make the
handler idempotent; (topic, queue_id, queue_offset) names a message for good.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from escrow._consuming import ConsumerBase
from escrow._deliveries import Delivery, Held
from escrow._fetcher import Intake
from escrow.api import Api
from escrow.errors import Closed
from escrow.messages import DeadLetter


class Consumer(ConsumerBase):
    """Takes messages and acks them. For any number of threads, each with its own `for` loop.

    topics, group     what is read, and for which group: its members share the messages
    auto_ack          True: a message is acked when the loop asks for the next one. A loop that is left by an exception, `break` or
                      close() has not acked its last message: say `message.ack()` before. False: only `message.ack()` acks
    tags              a filter: "a||b"
    start             where a group that has not read the topic before begins: "earliest", "latest", a time (ms, or RFC 3339)
    prefetch          messages of each topic that are fetched ahead of the loop
    visibility_s      how long Escrow leaves a message to us before others get it
    extend_for_s      while a message is in hand (fetched or being handled) its visibility is extended, up to this long in all;
                      0: never, and a handler that takes longer than visibility_s loses its message to another consumer
    idle_s            the loop ends after this long without a message; None: it goes on until close()
    """

    def _begin(self) -> None:
        self._intake = Intake(Api.of(self._server), self._reading)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self, timeout_s: float = 10.0) -> bool:
        """Send the acks, give back what is in hand, end the threads. Loops end. True when that was done in time."""
        return self._intake.close(timeout_s)

    def __iter__(self) -> Iterator[Delivery]:
        """Messages, until close() or, with `idle_s`, until there are none."""
        previous: Delivery | None = None
        while True:
            if previous is not None and self._auto_ack and previous.state is Held.HELD:
                previous.ack()
            try:
                previous = self.take(self._idle_s)
            except Closed:
                return
            if previous is None:
                return
            yield previous

    def take(self, timeout_s: float | None = None) -> Delivery | None:
        """The next message; None when none came in this time. It is yours to ack."""
        taker = self._intake.take()
        try:
            return taker.result(timeout_s)
        except TimeoutError:
            self._intake.put_back(taker)
            return None
        except BaseException:  # an interrupt: the message, if one has come, goes to the next one that asks
            self._intake.put_back(taker)
            raise

    def seek(self, to: str | int, *, topic: str | None = None) -> None:
        """Put the whole group to "earliest", "latest" or a time (milliseconds, or RFC 3339); for one topic or all."""
        self._intake.seek(to, self._reading.topics if topic is None else [topic])

    def dead_letters(self) -> Iterator[DeadLetter]:
        """Messages that the group was given too often, oldest first."""
        after: str | None = None
        while True:
            letters, after = self._intake.api.dead_letters(self._reading.group, after=after)
            yield from letters
            if after is None:
                return

    def replay_dead_letters(self, ids: Sequence[str]) -> int:
        """Deliver dead letters to the group again; how many will be."""
        return self._intake.api.replay_dead_letters(self._reading.group, ids)
