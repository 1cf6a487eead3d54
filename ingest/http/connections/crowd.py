"""All connections of the HTTP door together: how many there are, who makes room for a new one, whose answers go out next.

full            the connection that has been idle longest is closed; an incomplete head is not a request yet. If every
                connection has a request under way, the new one is refused with 503
does not read   each such client holds an answer; beyond STALLED_MAX of them, the one that has stalled longest is aborted
"""

from __future__ import annotations

import asyncio
from email.utils import formatdate
from enum import Enum
from http import HTTPStatus
from typing import Final, Protocol

from runtime.settings import Settings

#: Each holds an answer, which may be megabytes.
STALLED_MAX: Final = 64


class Member(Protocol):
    """What the crowd asks of a connection."""

    def send(self) -> None: ...
    def make_room(self) -> None: ...
    def abort(self) -> None: ...


class Admission(Enum):
    TAKEN = 1
    #: There is time to say why.
    REFUSED = 2
    ABORTED = 3


class Crowd:
    """For one door."""

    def __init__(self, settings: Settings, connections_max: int, lingering_max: int) -> None:
        self.settings, self.connections_max, self.lingering_max = settings, connections_max, lingering_max
        self.connections: set[Member] = set()
        #: Without a request under way, the one that has been so longest first.
        self.idle: dict[Member, None] = {}
        self.stalled: dict[Member, None] = {}
        self.refused = 0
        #: Status line and date of answers, by status.
        self.begins: dict[int, bytes] = {}
        self._date = b""
        self._to_send: list[Member] = []
        self._loop = asyncio.get_running_loop()
        self.beat()

    def beat(self) -> None:
        """Once a second: the Date of answers."""
        self._date = formatdate(usegmt=True).encode()
        self.begins.clear()

    def begin_of(self, status: int) -> bytes:
        phrase = HTTPStatus(status).phrase.encode()
        begin = self.begins[status] = b"HTTP/1.1 %d %b\r\ndate: %b\r\n" % (status, phrase, self._date)
        return begin

    # --- room -------------------------------------------------------------------------------------------------------------
    def admit(self, member: Member) -> Admission:
        self.connections.add(member)
        count = len(self.connections)
        if count <= self.connections_max:
            return Admission.TAKEN
        if self.idle:
            self.refused += 1
            longest = next(iter(self.idle))
            del self.idle[longest]
            longest.make_room()
            return Admission.TAKEN
        return Admission.REFUSED if count <= self.connections_max + self.lingering_max else Admission.ABORTED

    def leave(self, member: Member) -> None:
        self.connections.discard(member)
        self.idle.pop(member, None)
        self.stalled.pop(member, None)

    def stall(self, member: Member) -> None:
        self.stalled[member] = None
        if len(self.stalled) > STALLED_MAX:
            next(iter(self.stalled)).abort()

    # --- answers ----------------------------------------------------------------------------------------------------------
    def collect(self, member: Member) -> None:
        """It has something to send. The answers of one turn of the loop go out together: a system call in between, with a client
        that wakes up and falls asleep again, was a third of all work."""
        if not self._to_send:
            self._loop.call_soon(self.send_all)
        self._to_send.append(member)

    def send_all(self) -> None:
        members, self._to_send = self._to_send, []
        for member in members:
            member.send()
