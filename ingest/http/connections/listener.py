"""The HTTP door: listens, and hands each connection to a `Connection` (protocol.py). All of them share a `Crowd` (room and
answers to send, crowd.py) and a `Runner` (the application, fast_path.py)."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Final

from ingest.http.connections.accepting import Accepting
from ingest.http.connections.crowd import Crowd
from ingest.http.connections.protocol import Connection
from ingest.http.connections.room import LINGERING_MAX, Room
from ingest.http.fast_path import Application, Runner
from runtime.settings import Settings

BACKLOG: Final = 2048


class Door:
    """Made in the event loop."""

    def __init__(self, application: Application, settings: Settings, room: Room | None = None) -> None:
        self.settings = settings
        connections_max = settings.max_connections if room is None else room.http
        self._crowd = Crowd(settings, connections_max, LINGERING_MAX if room is None else room.lingering)
        self._runner = Runner(application)
        self._server: asyncio.Server | None = None
        self._accepting: Accepting | None = None

    async def open(self, listening: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        if tls is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(self._make, sock=listening, backlog=BACKLOG)
        else:
            self._accepting = Accepting(self, listening, tls, self._make)
            self._accepting.start(BACKLOG)

    def _make(self) -> Connection:
        return Connection(self._crowd, self._runner)

    def beat(self) -> None:
        """Once a second."""
        self._crowd.beat()

    async def close(self, within_s: float) -> None:
        """No new connections; idle ones are closed now, the others when their answer is written."""
        if self._server is not None:
            self._server.close()
        if self._accepting is not None:
            self._accepting.close()
        for connection in self._connections():
            connection.stop()
        await self._runner.drained(within_s)
        self._crowd.send_all()  # answers that were just written
        for connection in self._connections():
            connection.close()

    def _connections(self) -> list[Connection]:
        return [member for member in self._crowd.connections if isinstance(member, Connection)]

    # --- figures ----------------------------------------------------------------------------------------------------------
    @property
    def connections(self) -> int:
        """With those whose handshake is under way."""
        return len(self._crowd.connections) + (len(self._accepting) if self._accepting is not None else 0)

    @property
    def handshakes_max(self) -> int:
        """At this moment."""
        return self._crowd.connections_max + self._crowd.lingering_max - len(self._crowd.connections)

    @property
    def running(self) -> int:
        """Requests under way."""
        return len(self._runner.running)

    @property
    def stalled(self) -> int:
        return len(self._crowd.stalled)

    @property
    def refused(self) -> int:
        return self._crowd.refused

    @refused.setter
    def refused(self, count: int) -> None:
        self._crowd.refused = count
