"""`python -m runtime.orphan_reaper`: ends what a killed supervisor could not end.

Its stdin is a pipe from the supervisor: `+PID` names a session to watch over, `-PID` one that is over. When the pipe closes, the
supervisor is gone, and every session still named is killed. It ignores the signals of a terminal: its task begins when they end.
"""

from __future__ import annotations

import signal
import sys

from runtime.processes import kill_session


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sessions: set[int] = set()
    for line in sys.stdin:
        if line.startswith("+"):
            sessions.add(int(line[1:]))
        elif line.startswith("-"):
            sessions.discard(int(line[1:]))
    for session in sessions:
        kill_session(session)


if __name__ == "__main__":
    main()
