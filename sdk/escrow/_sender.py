"""What `Producer` is built on: one set of connections, batches and threads.

An `AsyncProducer` sends in its event loop (`escrow._loop_sender`); its check-backs are answered by the threads of an `Engine`."""

from __future__ import annotations

import itertools
import logging
import secrets
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any, Final, Protocol

from escrow._arguments import require_message
from escrow._background import WAITING_MAX, BackgroundEnds, patient
from escrow._batch_policy import Limits
from escrow._batching import Batcher
from escrow._checking import CheckLoop
from escrow._exits import close_at_exit, own_name, was_closed
from escrow._otel import carrying
from escrow.api import Api
from escrow.errors import EscrowError
from escrow.messages import Check, End, EndAnswer, Half, Message, Outcome, Position, TransactionResult

log: Final = logging.getLogger("escrow.producer")

#: What a message needs on the wire besides its body, roughly: for the size of a request.
_MESSAGE_BYTES: Final = 256
#: A message and the dedup_key under which it is sent, again and again if need be.
Keyed = tuple[Message, str]


class Engine:
    """Halves, messages and ends in shared requests; check requests in the background."""

    def __init__(self, api: Api, group: str, limits: Limits, halves: Limits) -> None:
        if not group:
            raise ValueError("group: is empty; name the producer group that ends these transactions and is asked about them")
        self.api, self.group, self.limits, self.halves_limits = api, group, limits, halves
        self.home = api.transport.server.home
        #: 96 bits in 16 characters: a key is stored with its half.
        self._key_prefix, self._key_numbers = secrets.token_urlsafe(12), itertools.count()
        self._halves: Batcher[Keyed, Half] = Batcher("halves", self._send_halves, halves)
        self._messages: Batcher[Message, Position] = Batcher("messages", self._send_messages, limits)
        self._ends: Batcher[End, EndAnswer] = Batcher("ends", self._send_ends, limits)
        self._background_ends: Batcher[End, EndAnswer] = Batcher("background-ends", self._send_ends, patient(limits))
        self._checks: CheckLoop | None = None
        self._unasked: list[str] = []
        self.warn_unasked("pass on_check, or see that another member, a webhook or a check listener answers for this group")
        close_at_exit(self)

    # --- in the batchers' threads, or in the callers' -----------------------------------------------------------------------
    def _send_halves(self, _: Hashable, keyed: Sequence[Keyed], give_up_at: float) -> list[Half]:
        messages, keys = zip(*keyed, strict=True)
        return self.api.send_halves(self.group, messages, dedup_keys=keys, give_up_at=give_up_at)

    def _send_messages(self, _: Hashable, messages: Sequence[Message], give_up_at: float) -> list[Position]:
        return self.api.send_messages(self.group, messages, give_up_at=give_up_at)

    def _send_ends(self, _: Hashable, ends: Sequence[End], give_up_at: float) -> list[EndAnswer]:
        return self.api.end(self.group, ends, give_up_at=give_up_at)

    # --- for producers ----------------------------------------------------------------------------------------------------
    def send_halves(self, messages: Sequence[Message]) -> list[Half]:
        messages = carried(messages)
        return self._halves.answers(self.keyed(messages), size_bytes=size_bytes(messages))

    def keyed(self, messages: Sequence[Message]) -> list[Keyed]:
        """Halves, each with its key. A new key is this engine's random name and a number: no other half of the group has it."""
        if self._unasked:
            self._say_unasked()
        return [(message, message.dedup_key or f"{self._key_prefix}.{next(self._key_numbers):x}") for message in messages]

    def warn_unasked(self, remedy: str) -> None:
        """As long as nothing listens to checks, the first half says so, with this remedy."""
        self._unasked = [remedy]

    def _say_unasked(self) -> None:
        try:
            remedy = self._unasked.pop()
        except IndexError:
            return  # another thread says it
        log.warning("group %s: this producer sends halves and cannot be asked about them; %s", self.group, remedy)

    def send_messages(self, messages: Sequence[Message]) -> list[Position]:
        messages = carried(messages)
        return self._messages.answers(messages, size_bytes=size_bytes(messages))

    def end(self, ends: Sequence[End]) -> list[EndAnswer]:
        return self._ends.answers(ends)

    def end_soon(self, ends: Sequence[End]) -> Future[list[EndAnswer]]:
        """The same in the background."""
        return self._ends.submit(ends)

    def end_in_background(self, half: Half, outcome: Outcome, remark: str, ledger: BackgroundEnds) -> TransactionResult:
        """Hand in an end that is not waited for, unless too many wait before it."""
        waits = self._background_ends.waiting_count >= WAITING_MAX
        future = self._background_ends.submit([End(half.id, outcome, remark)])
        ledger.begin()
        result = TransactionResult(half.id, half.half_offset, outcome, None, remark, None, True)
        future.add_done_callback(lambda done: note(ledger, result, done))
        if not waits:
            return result
        try:
            return result._replace(answer=future.result(self.limits.retry_for_s)[0])
        except TimeoutError:  # it stays in the background
            return result
        except EscrowError as error:  # the local transaction is a fact: nothing is raised
            return result._replace(error=error)

    def listen(self, listener: Callable[[Check], object], member: str | None, *, threads: int, wait_s: float) -> None:
        """Begin to answer check requests."""
        self._unasked.clear()
        self._checks = CheckLoop(
            self.api, self.group, member or own_name(), listener, self.end_soon, workers=threads, wait_s=wait_s
        )
        self._checks.start()

    @property
    def _batchers(self) -> tuple[Batcher[Any, Any], ...]:
        return self._halves, self._messages, self._ends, self._background_ends

    def close(self, timeout_s: float) -> bool:
        """In this order, within this time:

        1  no more check requests; those in hand are answered
        2  everything that was handed in is sent
        3  what could not be sent in time gets `Closed`, the connections are closed
        """
        if self.home.is_left:
            return True
        give_up_at = time.monotonic() + timeout_s
        done = self._checks is None or self._checks.stop(give_up_at)  # 1
        for batcher in self._batchers:  # 2
            done = batcher.close(max(0.0, give_up_at - time.monotonic())) and done
        for batcher in self._batchers:  # 3
            batcher.abandon()
        self.api.close()
        was_closed(self)
        return done


class _Answers(Protocol):
    """A future of a thread or of an event loop."""

    def cancelled(self) -> bool: ...
    def exception(self) -> BaseException | None: ...
    def result(self) -> list[EndAnswer]: ...


def note(ledger: BackgroundEnds, result: TransactionResult, done: _Answers) -> None:
    """What came of a background end, by the future that had it."""
    if done.cancelled():
        ledger.settle(result, None, None)
    elif (error := done.exception()) is not None:
        ledger.settle(result, None, error)
    else:
        ledger.settle(result, done.result(), None)


def carried(messages: Sequence[Message]) -> Sequence[Message]:
    for message in messages:  # mostly one
        require_message(message)
    return carrying(messages)


def size_bytes(messages: Sequence[Message]) -> int:
    size_bytes = _MESSAGE_BYTES * len(messages)
    for message in messages:  # mostly one
        size_bytes += len(message.body)
    return size_bytes
