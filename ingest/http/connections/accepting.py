"""Accepts connections with TLS, and counts them from the first moment on: an asyncio server knows of a connection only once its
handshake is through, and a client that never begins one would hold its descriptor without being counted.

When there is no room the handshake that has waited longest is ended in favour of the new connection; without any handshake under
way the new one is hung up on. (It cannot be told why: that would need a handshake.)
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final, Protocol

from runtime.settings import Settings

ACCEPTED_AT_ONCE: Final = 64
#: Where the process, or the machine, has no descriptor left.
PAUSE_S: Final = 1.0


class Door(Protocol):
    """What is needed of the door here. `handshakes_max`: how many may be under way at this moment."""

    refused: int
    settings: Settings

    @property
    def handshakes_max(self) -> int: ...


class Accepting:
    """Of one listening socket; `make` gives the protocol of a connection that has come through."""

    def __init__(self, door: Door, listening: socket.socket, context: ssl.SSLContext, make: Callable[[], asyncio.Protocol]) -> None:
        self._door, self._listening, self._context, self._make = door, listening, context, make
        self._loop = asyncio.get_running_loop()
        #: Handshakes under way, the oldest first.
        self._shaking: dict[asyncio.Task[None], None] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._shaking)

    def start(self, backlog: int) -> None:
        self._listening.setblocking(False)
        self._listening.listen(backlog)
        self._go_on()

    def _go_on(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listening, self._accept)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._listening)
            self._listening.close()
            for task in self._shaking:
                task.cancel()

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._loop.remove_reader(self._listening)
                self._loop.call_later(PAUSE_S, self._go_on)
                return
            self._take(accepted)

    def _take(self, accepted: socket.socket) -> None:
        if len(self._shaking) >= self._door.handshakes_max:
            self._door.refused += 1
            if not self._shaking:
                accepted.close()
                return
            oldest = next(iter(self._shaking))
            del self._shaking[oldest]
            oldest.cancel()
        accepted.setblocking(False)
        task = self._loop.create_task(self._shake(accepted))
        self._shaking[task] = None
        task.add_done_callback(self._shaken)

    def _shaken(self, task: asyncio.Task[None]) -> None:
        self._shaking.pop(task, None)

    async def _shake(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._make, accepted, ssl=self._context, ssl_handshake_timeout=self._door.settings.header_timeout_ms / 1000
            )
        except OSError:  # no TLS, the wrong certificate, too slow, gone
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
            raise
