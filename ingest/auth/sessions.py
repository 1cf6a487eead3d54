"""Sessions of operators who look at the console in a browser.

A login with an operator's token sets a cookie: a random id that no script can read and that the browser sends to
this server only (HttpOnly, SameSite=Strict). Only this process knows what it stands for, and forgets it at its end.
Every request checks the token again, so revoking it ends its sessions.

A browser sends the cookie with every request. So an action also needs the session's second secret in a header, which
only a page of ours can know; and if the browser says which page a request comes from, it must be ours
(`ingest.auth.callers`).
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ingest.errors import Forbidden

COOKIE: Final = "escrow_session"
CSRF_HEADER: Final = b"x-escrow-csrf"
#: Beyond it the session that was used least lately ends.
SESSIONS_MAX: Final = 256
#: An idle session ends after this share of its lifetime.
IDLE_SHARE: Final = 0.25


@dataclass(slots=True)
class Session:
    """`authorization`: the header that the token would have come in."""

    id: str
    csrf: str
    authorization: str
    began_s: float
    used_s: float


class Sessions:
    """For one event loop."""

    def __init__(self, life_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.life_s, self._clock_s = life_s, clock_s
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, authorization: str) -> Session:
        now_s = self._clock_s()
        session = Session(secrets.token_urlsafe(32), secrets.token_urlsafe(32), authorization, now_s, now_s)
        self._sessions[session.id] = session
        if len(self._sessions) > SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        return session

    def find(self, cookie_header: str) -> Session | None:
        """The session of a request, by its Cookie header."""
        session = self._sessions.get(id_in(cookie_header))
        if session is None:
            return None
        now_s = self._clock_s()
        if now_s - session.began_s >= self.life_s or now_s - session.used_s >= self.life_s * IDLE_SHARE:
            self.end(session)
            return None
        session.used_s = now_s
        self._sessions[session.id] = self._sessions.pop(session.id)  # the one that was used last stands last
        return session

    def left_s(self, session: Session) -> float:
        return max(0.0, session.began_s + self.life_s - self._clock_s())

    def end(self, session: Session) -> None:
        self._sessions.pop(session.id, None)

    def set_cookie(self, session: Session, secure: bool) -> bytes:
        return _cookie(session.id, int(self.life_s), secure)


def clear_cookie(secure: bool) -> bytes:
    return _cookie("", 0, secure)


def _cookie(value: str, life_s: int, secure: bool) -> bytes:
    text = f"{COOKIE}={value}; Path=/; Max-Age={life_s}; HttpOnly; SameSite=Strict"
    return (text + "; Secure" if secure else text).encode()


def id_in(cookie_header: str) -> str:
    for part in cookie_header.split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE:
            return value
    return ""


def check_csrf(session: Session, shown: bytes | None) -> None:
    """Before anything that changes something."""
    if shown is None or not hmac.compare_digest(shown, session.csrf.encode()):
        raise Forbidden("X-Escrow-CSRF: is missing, or not of this session: load the console again")
