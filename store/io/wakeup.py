"""Wake: how one process tells another that there is something new to read, without polling.

A unix datagram socket in the store's directory, bound by the process that waits: `job.wake` by the job's source,
`edge.wake` by the edge. A wake carries no news, the published pages do: it may be lost, repeated or come for
nothing. So the waiting process looks at the pages after each wake, and again after a while without one; the
sender never waits and never fails.

Binding takes the place over from an earlier process (a process that was killed leaves its socket behind).
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from pathlib import Path
from typing import Final

JOB_WAKE: Final = "job.wake"
EDGE_WAKE: Final = "edge.wake"
#: What sun_path holds on every system that we know.
_PATH_MAX_BYTES: Final = 100


class _Address:
    """A socket's path, however long: beyond the system's limit it is reached through the open directory (Linux)."""

    def __init__(self, path: Path) -> None:
        self._fd = -1
        self.text = str(path)
        if len(os.fsencode(path)) > _PATH_MAX_BYTES:
            self._fd = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
            self.text = f"/proc/self/fd/{self._fd}/{path.name}"

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Waker:
    """Wakes the process that waits at the path. It is not an error if no process waits there, or a slow one."""

    def __init__(self, path: Path) -> None:
        self._address = _Address(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendto(b"!", self._address.text)

    def close(self) -> None:
        self._socket.close()
        self._address.close()


class Sleeper:
    """Waits at the path."""

    def __init__(self, path: Path) -> None:
        address = _Address(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        try:
            path.unlink(missing_ok=True)
            self._socket.bind(address.text)
        finally:
            address.close()
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def wait(self, timeout_s: float) -> bool:
        """Sleep until woken, at most timeout_s; whether woken. All wakes so far are taken together."""
        # poll, not select: an edge with many connections has descriptors beyond what select can name.
        woken = bool(self._poll.poll(timeout_s * 1000))
        with contextlib.suppress(BlockingIOError):
            while woken:
                self._socket.recv(1)
        return woken

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()
