"""Processes and what they leave behind: sessions, and dying with one's parent. Standard library only.

Each part of the service leads a session of its own, so that everything it starts (a JVM, Spark's Python workers, which make
process groups of their own) can be found and ended with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
_PROC = Path("/proc")


def die_with_parent(parent: int) -> None:
    """From now on the kernel kills this process when its parent dies (Linux; elsewhere the guard sees to it)."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it died before we had asked
            os.kill(os.getpid(), signal.SIGKILL)


def session_members(session: int) -> list[int]:
    """Processes of a session that are still alive; where there is no /proc, its first group as a negative number."""
    if not (_PROC / "self" / "stat").exists():
        return [-session] if _group_alive(session) else []
    members = []
    for name in os.listdir(_PROC):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # pid (name) state ppid group session …; the name may hold blanks and brackets
                state, _parent, _group, of_session, *_ = (_PROC / name / "stat").read_text().rpartition(")")[2].split()
                if int(of_session) == session and state not in ("Z", "X"):
                    members.append(int(name))
    return members


def _group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    return True


def kill_session(session: int, timeout_s: float = 2.0) -> int:
    """Kill everything in a session until nothing is left; how many processes there were."""
    deadline = time.monotonic() + timeout_s
    killed: set[int] = set()
    while True:
        members = session_members(session)
        killed.update(members)
        for process in members:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        if not members or time.monotonic() > deadline:
            return len(killed)
        time.sleep(0.01)
