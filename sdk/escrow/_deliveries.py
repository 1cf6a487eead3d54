"""A message in hand, and what has become of it.

A delivery's states:   HELD → DONE (acked) | GIVEN_BACK (nacked, or closed) | LOST (its time ran out: another consumer gets it)
"""

from __future__ import annotations

import importlib
from collections.abc import Generator, Mapping
from concurrent.futures import Future
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from escrow.messages import Delivered

if TYPE_CHECKING:
    import asyncio

_T = TypeVar("_T")


class Pending(Generic[_T]):
    """Something under way. Ignore it, wait for it with `.result()`, or `await` it."""

    def __init__(self, future: Future[_T] | asyncio.Future[_T]) -> None:
        self._future = future

    def result(self, timeout_s: float | None = None) -> _T:
        """Wait for it, in a thread. In the event loop of an `AsyncConsumer`: await it instead."""
        if isinstance(self._future, Future):
            return self._future.result(timeout_s)
        if not self._future.done():
            raise RuntimeError("result() would block the event loop: await what ack() or nack() returned")
        return self._future.result()

    def __await__(self) -> Generator[Any, None, _T]:
        if isinstance(self._future, Future):
            asyncio: Any = importlib.import_module("asyncio")  # a program with threads alone does not load it
            awaiting: Generator[Any, None, _T] = asyncio.wrap_future(self._future).__await__()
            return awaiting
        return self._future.__await__()


class Held(Enum):
    """Where a delivery is."""

    HELD = "held"
    DONE = "done"
    GIVEN_BACK = "given back"
    LOST = "lost"


class Settles(Protocol):
    def settle(self, delivery: Delivery, state: Held, delay_s: float | None) -> Pending[bool]:
        """Say what became of a delivery: `delay_s` None is an ack. The first word counts."""


class Delivery:
    """A message in hand. Say `ack()` when it is done, `nack()` to have it delivered again."""

    def __init__(self, delivered: Delivered, intake: Settles, got_at: float, visible_at: float) -> None:
        self._intake = intake
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
        return self._intake.settle(self, Held.DONE, None)

    def nack(self, delay_s: float = 0.0) -> Pending[bool]:
        """Not done: deliver it again, after this delay."""
        if delay_s < 0:
            raise ValueError(f"delay_s: is {delay_s}, must not be negative")
        return self._intake.settle(self, Held.GIVEN_BACK, delay_s)
