"""Processes that can be killed: forked from the test's own, so that they start at once, and telling what they do through a pipe.

What a child did counts only when its parent has read about it: `intend` before, `acknowledge` after. Every event is one
unbuffered write, so a SIGKILL loses nothing that was told.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from tests.support.history import Action, History

_HEAD = struct.Struct("<I")
#: A child that tells nothing for so long hangs.
PATIENCE_S = 60


class Teller:
    """The child's end: plays actions and tells about them."""

    def __init__(self, fd: int, history: History) -> None:
        self._fd, self.history = fd, history

    def tell(self, *event: Any) -> None:
        content = pickle.dumps(event)
        data = _HEAD.pack(len(content)) + content
        while data:
            data = data[os.write(self._fd, data) :]

    def play(self, action: Action, perform: Callable[[Action], Any]) -> None:
        self.history.intend(action)
        self.tell("intend", action)
        result = perform(action)
        self.history.acknowledge(action, result)
        self.tell("acknowledge", action, result)


class Child:
    """The parent's end. Use as a context: whatever happens, the process is gone afterwards."""

    def __init__(self, history: History, main: Callable[[Teller], None]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.history = history
        self._fd, theirs = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._fd)
            _live(theirs, history, main)
        os.close(theirs)
        # poll, not select: a long campaign has descriptors beyond what select can name.
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self.status: int | None = None
        self._rest = b""

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()
        os.close(self._fd)

    def kill(self) -> None:
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        if self.status is None:
            self.status = os.waitpid(self.pid, 0)[1]
        return self.status

    @property
    def was_killed(self) -> bool:
        status = self.wait()
        return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL

    def events(self) -> Iterator[tuple[Any, ...]]:
        """What it tells, until its end. What is told becomes part of the history here."""
        while True:
            if not self._poll.poll(PATIENCE_S * 1000):
                raise AssertionError(f"child {self.pid} hangs")
            data = os.read(self._fd, 1 << 16)
            if not data:
                return
            self._rest += data
            yield from self._told()

    def ready_events(self) -> Iterator[tuple[Any, ...]]:
        """What it has told so far."""
        while self._poll.poll(0):
            data = os.read(self._fd, 1 << 16)
            if not data:
                self.wait()
                return
            self._rest += data
            yield from self._told()

    def _told(self) -> Iterator[tuple[Any, ...]]:
        while len(self._rest) >= _HEAD.size and len(self._rest) >= (size := _HEAD.size + _HEAD.unpack_from(self._rest)[0]):
            event = pickle.loads(self._rest[_HEAD.size : size])
            self._rest = self._rest[size:]
            self._learn(event)
            yield event

    def _learn(self, event: tuple[Any, ...]) -> None:
        kind, *rest = event
        if kind == "intend":
            self.history.intend(rest[0])
        elif kind == "acknowledge":
            self.history.acknowledge(rest[0], rest[1])
        elif kind == "failed":
            raise AssertionError(f"the child failed:\n{rest[0]}")

    def finish(self) -> None:
        """Read to its end."""
        for _ in self.events():
            pass
        self.wait()


def _live(fd: int, history: History, main: Callable[[Teller], None]) -> None:
    """The whole life of the child."""
    code = 1
    try:
        teller = Teller(fd, history)
        try:
            main(teller)
            code = 0
        except BaseException:
            teller.tell("failed", traceback.format_exc())
    finally:
        os._exit(code)
