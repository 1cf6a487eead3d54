"""What a consumer holds, and when it fetches more. Pure: no threads, no event loop, no sockets, and time is an argument.

`escrow._fetcher` (threads) and `escrow._loop_fetcher` (asyncio) are built around it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from escrow import _calls
from escrow._calls import Call
from escrow._deliveries import Delivery, Held, Settles
from escrow._transport import Backoff
from escrow.errors import EscrowError, NotAllowed, Refused
from escrow.messages import Delivered

log: Final = logging.getLogger("escrow.consumer")

#: An empty answer sooner than this was no long poll.
TOO_SOON_S: Final = 0.05
#: Extensions are asked for when this part of the time has gone by: two may fail before a message is lost.
EXTEND_AFTER = 1 / 3


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read, for which group, and how; `Consumer` says what each means."""

    topics: Sequence[str]
    group: str
    consumer: str
    tags: str = ""
    start: str | int | None = None
    prefetch: int = 32
    visibility_s: float = 30.0
    extend_for_s: float = 600.0
    wait_s: float = 30.0

    def __post_init__(self) -> None:
        if isinstance(self.topics, str) or not self.topics or not all(self.topics):
            raise ValueError(f"topics: is {self.topics!r}, must be a list of one or more names")
        if not self.group:
            raise ValueError("group: is empty; name the consumer group whose members share these messages")
        if self.prefetch < 1:
            raise ValueError(f"prefetch: is {self.prefetch}, must be at least 1")
        if self.visibility_s <= 0:
            raise ValueError(f"visibility_s: is {self.visibility_s}, must be more than 0")

    def poll(self, topic: str, room: int) -> Call[list[Delivered]]:
        return _calls.poll_messages(
            topic, self.group, self.consumer, max=room, wait_s=self.wait_s, visibility_s=self.visibility_s, tags=self.tags,
            start=self.start,
        )  # fmt: skip

    @property
    def extend_every_s(self) -> float:
        """How often to look for messages that need more time."""
        return self.visibility_s * EXTEND_AFTER / 2


class Settling(NamedTuple):
    """What deliveries must have in common to be settled in one request."""

    topic: str
    #: None: they are done. Otherwise others may get them after this long.
    visibility_s: float | None
    #: It is more time for messages that we keep.
    extends: bool

    def call(self, group: str, deliveries: Sequence[Delivery]) -> Call[Any]:
        """Make it just before it is sent: an extension before this one has changed the receipts."""
        receipts = [delivery.receipt for delivery in deliveries]
        if self.visibility_s is None:
            return _calls.ack(self.topic, group, receipts)
        return _calls.set_visibility(self.topic, group, receipts, self.visibility_s)


class Inbox:
    """Deliveries that are fetched, and those of them that are handed out and not settled."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._fetched: deque[Delivery] = deque()
        self._held: dict[int, Delivery] = {}
        self._seeks = 0
        #: Grows with every seek: what a poll from before one brings is given back.
        self.epoch = 0

    # --- fetching and handing out -----------------------------------------------------------------------------------------
    def room(self, topic: str) -> int:
        """How many messages of this topic may be fetched now. None until half of the room is free: few large polls."""
        room = self._reading.prefetch - sum(delivery.topic == topic for delivery in self._fetched)
        return room if not self._seeks and 2 * room >= self._reading.prefetch else 0

    def put(self, found: Iterable[Delivered], intake: Settles, epoch: int, now: float) -> list[Delivery]:
        """Those to give back, where a seek came between."""
        visible_at = now + self._reading.visibility_s
        deliveries = [Delivery(delivered, intake, now, visible_at) for delivered in found]
        for delivery in deliveries:
            self._held[id(delivery)] = delivery
        if epoch != self.epoch:
            return deliveries
        self._fetched.extend(deliveries)
        return []

    def put_back(self, delivery: Delivery) -> None:
        """It was handed out, and its taker does not want it any more: the next one gets it."""
        self._fetched.appendleft(delivery)

    def next(self, now: float) -> Delivery | None:
        """The oldest one that is still ours."""
        while self._fetched:
            delivery = self._fetched.popleft()
            if delivery.state is Held.HELD and delivery.visible_at <= now:
                self._lost(delivery)
            if delivery.state is Held.HELD:
                return delivery
        return None

    # --- settling ---------------------------------------------------------------------------------------------------------
    def settle(self, delivery: Delivery, state: Held) -> None:
        delivery.state = state
        self._held.pop(id(delivery), None)

    def held(self) -> list[Delivery]:
        return list(self._held.values())

    def settled(self, settling: Settling, deliveries: Sequence[Delivery], answers: Sequence[Any], asked_at: float) -> list[bool]:
        """Whether each was still ours, by the answers to its call."""
        if settling.visibility_s is None:
            return list(answers)
        if settling.extends:
            for delivery, receipt in zip(deliveries, answers, strict=True):
                self._extended(delivery, receipt, asked_at + settling.visibility_s)
        return [receipt is not None for receipt in answers]

    def due(self, now: float) -> dict[Settling, list[Delivery]]:
        """Deliveries that need more time and may have it. They count as being extended until `extending` is False."""
        due: dict[Settling, list[Delivery]] = {}
        visibility_s = self._reading.visibility_s
        for delivery in self._held.values():
            used_s = visibility_s - (delivery.visible_at - now)
            if delivery.extending or used_s < visibility_s * EXTEND_AFTER:
                continue
            if now - delivery.got_at < self._reading.extend_for_s:
                delivery.extending = True
                due.setdefault(Settling(delivery.topic, visibility_s, True), []).append(delivery)
        return due

    def _extended(self, delivery: Delivery, receipt: str | None, visible_at: float) -> None:
        if receipt is not None:
            delivery.receipt, delivery.visible_at = receipt, visible_at
        elif delivery.state is Held.HELD:
            self._lost(delivery)

    def _lost(self, delivery: Delivery) -> None:
        log.warning("%r: its time ran out, another consumer gets it", delivery)
        self.settle(delivery, Held.LOST)

    # --- seek -------------------------------------------------------------------------------------------------------------
    def begin_seek(self, topics: Sequence[str]) -> list[Delivery]:
        """Nothing is fetched until `end_seek`. Those to give back."""
        self._seeks += 1
        self.epoch += 1
        return [delivery for delivery in self._fetched if delivery.topic in topics]

    def end_seek(self) -> None:
        self._seeks -= 1
        self._fetched = deque(delivery for delivery in self._fetched if delivery.state is Held.HELD)


def is_final(error: EscrowError) -> bool:
    """It would be the same again: this token may not read this topic, or not for this group."""
    return isinstance(error, NotAllowed) and error.status == 403


class Pace:
    """When the next poll of a topic begins after one that ended."""

    def __init__(self, topic: str) -> None:
        self._topic, self._failing = topic, ""
        self._backoff = Backoff(first_s=0.1, most_s=5.0)

    def found(self, count: int, took_s: float) -> float:
        """A pause in seconds, after a poll that brought so many and took so long."""
        self._failing = ""
        if not count and took_s < TOO_SOON_S:
            return self._backoff.next_s()
        self._backoff.reset()
        return 0.0

    def ended(self, error: EscrowError) -> None:
        remedy = "grant its token the topic and the group, and make a new consumer"
        log.error("no messages of %s: %s; this consumer stops polling: %s", self._topic, error, remedy)

    def failed(self, error: EscrowError) -> float:
        """A pause in seconds. The same failure is logged once, however long it lasts."""
        if str(error) != self._failing:
            log.warning("no messages of %s: %s; trying again", self._topic, error)
            self._failing = str(error)
        return self._backoff.next_s((error.retry_after_s or 0.0) if isinstance(error, Refused) else 0.0)
