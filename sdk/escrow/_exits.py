"""Producers and consumers that were not closed when the interpreter ends; and names for them."""

from __future__ import annotations

import atexit
import os
import secrets
import socket
import weakref
from typing import Final, Protocol

#: How long leaving the interpreter may be held up by a producer or consumer that was not closed.
_EXIT_S: Final = 2.0


class Closable(Protocol):
    def close(self, timeout_s: float) -> bool: ...


_open: Final[weakref.WeakSet[Closable]] = weakref.WeakSet()


def close_at_exit(thing: Closable) -> None:
    """The threads are daemons and would be frozen in the middle of something; closing them first is cleaner."""
    _open.add(thing)


def was_closed(thing: Closable) -> None:
    _open.discard(thing)


def _close_all() -> None:
    for thing in list(_open):
        thing.close(_EXIT_S)


atexit.register(_close_all)
# A forked child has the parent's producers, but none of their threads; ending must not shut the parent's sockets down.
os.register_at_fork(after_in_child=_open.clear)


def own_name() -> str:
    """A unique name for this member or consumer, which an operator can find."""
    return f"{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(4)}"
