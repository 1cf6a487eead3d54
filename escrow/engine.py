"""What `Producer` and `AsyncProducer` both stand on: one set of connections, batches and threads. Everything returns a future."""

from __future__ import annotations

import atexit
import itertools
import os
import secrets
import socket
import ssl
import time
import weakref
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Final, Protocol

from escrow.api import Api
from escrow.batching import Batcher
from escrow.carried import carrying
from escrow.checking import CheckLoop
from escrow.messages import Check, End, EndAnswer, Half, Message, Position

#: What a message needs on the wire besides its body, roughly: for the size of a request.
_MESSAGE_BYTES: Final = 256
#: How long leaving the interpreter may be held up by a producer or consumer that nobody closed.
_EXIT_S: Final = 2.0


class Closable(Protocol):
    def close(self, timeout_s: float) -> bool: ...


_open: Final[weakref.WeakSet[Closable]] = weakref.WeakSet()


def close_at_exit(thing: Closable) -> None:
    """The threads are daemons and would be frozen in the middle of something; closing them first is cleaner."""
    _open.add(thing)


def _close_all() -> None:
    for thing in list(_open):
        thing.close(_EXIT_S)


atexit.register(_close_all)
# A forked child has the parent's producers, but none of their threads; ending must not shut the parent's sockets down.
os.register_at_fork(after_in_child=_open.clear)


def own_name() -> str:
    """A name for this member or consumer that nobody else has, and that an operator can find."""
    return f"{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(4)}"


#: A message and the dedup_key under which it is sent, again and again if need be.
_Keyed = tuple[Message, str]


class Engine:
    """Halves, messages and ends in shared requests; check requests in the background."""

    def __init__(
        self,
        url: str,
        group: str,
        *,
        token: str | Callable[[], str] | None = None,
        tls: ssl.SSLContext | None = None,
        linger_s: float = 0.0,
        batch_max: int = 256,
        timeout_s: float = 10.0,
        retry_for_s: float = 30.0,
    ) -> None:
        if not group:
            raise ValueError("group: is empty; name the producer group that ends these transactions and is asked about them")
        self.group = group
        #: 96 bits in 16 characters: a key is stored with its half.
        self._key_prefix, self._key_numbers = secrets.token_urlsafe(12), itertools.count()
        self.api = Api(url, token=token, tls=tls, timeout_s=timeout_s, retry_for_s=retry_for_s)
        patience = {"linger_s": linger_s, "retry_for_s": retry_for_s, "timeout_s": timeout_s}
        self._halves: Batcher[_Keyed, Half] = Batcher("halves", self._send_halves, batch_max=batch_max, **patience)
        self._messages: Batcher[Message, Position] = Batcher("messages", self._send_messages, batch_max=batch_max, **patience)
        self._ends: Batcher[End, EndAnswer] = Batcher("ends", self._send_ends, batch_max=batch_max, **patience)
        self._checks: CheckLoop | None = None
        close_at_exit(self)

    # --- in the batchers' threads -----------------------------------------------------------------------------------------
    def _send_halves(self, _: Hashable, keyed: Sequence[_Keyed], give_up_at: float) -> list[Half]:
        messages, keys = zip(*keyed, strict=True)
        return self.api.send_halves(self.group, messages, dedup_keys=keys, give_up_at=give_up_at)

    def _send_messages(self, _: Hashable, messages: Sequence[Message], give_up_at: float) -> list[Position]:
        return self.api.send_messages(self.group, messages, give_up_at=give_up_at)

    def _send_ends(self, _: Hashable, ends: Sequence[End], give_up_at: float) -> list[EndAnswer]:
        return self.api.end(self.group, ends, give_up_at=give_up_at)

    # --- for the faces ----------------------------------------------------------------------------------------------------
    def send_halves(self, messages: Sequence[Message]) -> Future[list[Half]]:
        messages = carrying(messages)
        keyed = [(message, message.dedup_key or self._new_key()) for message in messages]
        return self._halves.submit(keyed, size_bytes=_size_bytes(messages))

    def _new_key(self) -> str:
        """A key that no other half of this group has: this engine's own random name, and a number."""
        return f"{self._key_prefix}.{next(self._key_numbers):x}"

    def send_messages(self, messages: Sequence[Message]) -> Future[list[Position]]:
        messages = carrying(messages)
        return self._messages.submit(messages, size_bytes=_size_bytes(messages))

    def end(self, ends: Sequence[End]) -> Future[list[EndAnswer]]:
        return self._ends.submit(ends)

    def listen(self, listener: Callable[[Check], object], member: str | None, *, threads: int, wait_s: float) -> None:
        """Begin to answer check requests."""
        self._checks = CheckLoop(self.api, self.group, member or own_name(), listener, self.end, workers=threads, wait_s=wait_s)
        self._checks.start()

    def close(self, timeout_s: float) -> bool:
        """In this order, within this time:

        1  no more check requests; those in hand are answered
        2  everything that was handed in is sent
        3  what could not be sent in time hears `Closed`, the connections are closed
        """
        if self.api.transport.is_foreign:
            return True
        give_up_at = time.monotonic() + timeout_s
        done = self._checks is None or self._checks.stop(give_up_at)  # 1
        for batcher in (self._halves, self._messages, self._ends):  # 2
            done = batcher.close(max(0.0, give_up_at - time.monotonic())) and done
        for left in (self._halves, self._messages, self._ends):  # 3
            left.abandon()
        self.api.close()
        _open.discard(self)
        return done


def _size_bytes(messages: Sequence[Message]) -> int:
    return sum(len(message.body) + _MESSAGE_BYTES for message in messages)
