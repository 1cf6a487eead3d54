"""HTTP calls over kept connections: one call is one or more attempts, until an answer, a refusal or the end of patience.

    Transport.perform
      1  take a kept connection that is still open, or connect
      2  send, read the whole answer, keep the connection
      3  an answer of 2xx is decoded; any other becomes an error of escrow.errors
      4  where that error may pass and the call may be repeated: pause with jitter, or as long as Retry-After asks, and again at 1

Whether a call may be repeated is the caller's knowledge (`Repeat`). The clock is monotonic and measures patience only.
"""

from __future__ import annotations

import json
import random
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import urlencode, urlsplit

from escrow import _msgpack
from escrow._calls import Call, Repeat
from escrow._forks import Home
from escrow._http1 import Answer, Connection, authority
from escrow.errors import BadAnswer, Closed, EscrowError, Refused, Unreachable, refusal
from escrow.messages import to_json

_T = TypeVar("_T")

#: Connections kept for the next call; more may be open while calls are under way. Escrow closes idle ones.
KEPT_MAX: Final = 256
#: How much of an answer that is no JSON is shown.
SHOWN_CHARACTERS: Final = 200
#: Statuses that may pass by themselves. A 500 is a defect: it would come again.
_PASSING: Final = frozenset({429, 502, 503, 504})


class Aborted(Unreachable):
    """A long poll that `abort_polls` ended. Stays within the SDK."""


class Backoff:
    """Pauses between attempts: each at random between nothing and a bound that doubles, so that a thousand clients that lost
    the same server do not come back as one."""

    def __init__(self, first_s: float = 0.05, most_s: float = 2.0) -> None:
        self._first_s, self._most_s, self._bound_s = first_s, most_s, first_s

    def next_s(self, at_least_s: float = 0.0) -> float:
        pause_s = at_least_s + random.uniform(0.0, self._bound_s)
        self._bound_s = min(self._bound_s * 2, self._most_s)
        return pause_s

    def reset(self) -> None:
        self._bound_s = self._first_s


def tls_context(*, ca_file: str | None = None, cert_file: str | None = None, key_file: str | None = None) -> ssl.SSLContext:
    """A context for `tls=`: an authority of your own, and a client certificate where Escrow asks for one."""
    context = ssl.create_default_context(cafile=ca_file)
    if cert_file is not None:
        context.load_cert_chain(cert_file, key_file)
    return context


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    content: bytes | None
    headers: Mapping[str, str]
    #: How long Escrow may hold the answer back; None: it is no long poll.
    wait_s: float | None


class Server:
    """Where Escrow is, and the token: what each request and each connection need to know."""

    def __init__(
        self,
        url: str,
        *,
        token: str | Callable[[], str] | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 10.0,
        retry_for_s: float = 30.0,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url: {url!r} is not like http://127.0.0.1:7480 or https://escrow.example")
        if parts.scheme == "http" and tls is not None:
            raise ValueError(f"tls: is of no use with {url!r}; write https://")
        self.host, self._prefix = parts.hostname, parts.path.rstrip("/")
        self.tls = None if parts.scheme == "http" else tls or ssl.create_default_context()
        default = 80 if self.tls is None else 443
        self.port, self.authority = parts.port or default, authority(self.host, parts.port, default)
        self.url, self._token, self.timeout_s, self.retry_for_s = url, token, timeout_s, retry_for_s
        self.home = Home()

    def request(self, call: Call[Any]) -> Request:
        target = self._prefix + call.path
        if call.query:
            target += "?" + urlencode({name: value for name, value in call.query.items() if value is not None})
        headers = {"Accept": call.accept}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token() if callable(self._token) else self._token}"
        body = None
        if call.content is not None:
            headers["Content-Type"] = call.media
            body = call.content if isinstance(call.content, bytes) else to_json(call.content)
        return Request(call.method, target, body, headers, call.wait_s)

    def no_connection(self, error: Exception) -> Unreachable:
        return Unreachable(f"{self.url}: no connection ({error})", maybe_done=False)

    def no_answer(self, request: Request, error: Exception) -> Unreachable:
        return Unreachable(f"{request.method} {self.url}: no answer ({type(error).__name__}: {error})", maybe_done=True)


class Transport:
    """Calls to one Escrow. For any number of threads."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._lock = threading.RLock()
        self._kept: list[Connection] = []
        self._polls: set[Connection] = set()
        self._poll_epoch = 0
        # Reentrant, unlike an Event: close() may come from a signal handler, in the middle of a wait.
        self._changed, self._closed = threading.Condition(self._lock), False

    # --- calls ------------------------------------------------------------------------------------------------------------
    def perform(self, call: Call[_T], give_up_at: float | None = None) -> _T:
        """What the answer says. No attempt begins after the monotonic time `give_up_at` (without it: `retry_for_s` from now) but
        the first one; each may take `timeout_s`."""
        request = self.server.request(call)
        if give_up_at is None:
            give_up_at = time.monotonic() + self.server.retry_for_s
        backoff = Backoff()
        while True:
            try:
                answer = self._attempt(request)  # 1 to 3
            except EscrowError as error:
                pause_s = pause_after(error, call.repeat, backoff)  # 4
                if pause_s is None or time.monotonic() + pause_s >= give_up_at:
                    raise
            else:
                return call.read(answer)
            if self._pause(pause_s):
                raise Closed("closed while waiting to try again")

    def _pause(self, pause_s: float) -> bool:
        """Wait; whether it was closed meanwhile."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed, pause_s)

    def _attempt(self, request: Request) -> Any:
        epoch = self._poll_epoch
        connection = self._open(self.server.timeout_s + (request.wait_s or 0.0))  # 1
        try:
            if request.wait_s is not None:
                self._enter_poll(connection, epoch)
            try:
                answer = connection.exchange(request.method, request.path, request.headers, request.content)  # 2
            finally:
                with self._lock:
                    self._polls.discard(connection)
        except (OSError, EscrowError) as error:
            connection.close()
            if self._poll_epoch != epoch and request.wait_s is not None:
                raise Aborted("the poll was ended from this side", maybe_done=True) from None
            if isinstance(error, EscrowError):
                raise
            raise self.server.no_answer(request, error) from error
        except BaseException:
            connection.close()  # an interrupt in the middle: what comes next on this connection answers no request
            raise
        self._keep(connection)
        return decoded(answer)  # 3

    # --- connections ------------------------------------------------------------------------------------------------------
    def _open(self, timeout_s: float) -> Connection:
        """A connection that answers within this time, or fails."""
        if self._closed:
            raise Closed("this producer or consumer is closed")
        self.server.home.refuse_elsewhere()
        connection = self._kept_one()
        if connection is not None:
            connection.sock.settimeout(timeout_s)
            return connection
        try:
            return Connection(self.server.host, self.server.port, self.server.tls, self.server.authority, timeout_s)
        except OSError as error:
            raise self.server.no_connection(error) from error

    def _kept_one(self) -> Connection | None:
        """The one that was used last and is still open. Nothing is due on it, so what can be read is its end."""
        while True:
            with self._lock:
                if not self._kept:
                    return None
                connection = self._kept.pop()
            if not _readable(connection.sock):
                return connection
            connection.close()

    def _keep(self, connection: Connection) -> None:
        if not connection.is_open:  # Escrow wanted it closed
            return
        with self._lock:
            if len(self._kept) < KEPT_MAX and not self._closed:
                self._kept.append(connection)
                return
        connection.close()

    # --- the end ----------------------------------------------------------------------------------------------------------
    def _enter_poll(self, connection: Connection, epoch: int) -> None:
        with self._lock:
            if self._poll_epoch != epoch:
                raise Aborted("the poll was ended before it began", maybe_done=False)
            self._polls.add(connection)

    def abort_polls(self) -> None:
        """Long polls that wait come back at once, with `Aborted`. Other calls go on."""
        with self._lock:
            self._poll_epoch += 1
            for connection in self._polls:
                with suppress(OSError):
                    # Not the TLS socket's own method: that pulls the session away under the thread which reads.
                    socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Calls that wait to try again give up; calls under way end by themselves."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.abort_polls()
        with self._lock:
            kept, self._kept = self._kept, []
        for connection in kept:
            connection.close()


def decoded(answer: Answer) -> Any:
    """What an answer of 2xx says; any other is raised."""
    try:
        found = _read(answer) if answer.body else None
    except ValueError:
        found = None
    if 200 <= answer.status < 300:
        if isinstance(found, dict):
            return found
        raise BadAnswer(f"{answer.status} with {_shown(answer.body)}: is this URL an Escrow?")
    raise _refusal(answer.status, found if isinstance(found, dict) else {}, answer.headers, answer.body)


def _read(answer: Answer) -> Any:
    return _msgpack.unpack(answer.body) if answer.headers.get("content-type") == _msgpack.MEDIA else json.loads(answer.body)


def _refusal(status: int, problem: Mapping[str, Any], headers: Mapping[str, str], answer: bytes) -> Refused:
    return refusal(
        status,
        str(problem.get("code") or f"http_{status}"),
        str(problem.get("detail") or problem.get("title") or _shown(answer)),
        title=str(problem.get("title") or ""),
        field=str(problem.get("field") or ""),
        retry_after_s=_seconds(headers.get("retry-after")),
    )


def _shown(answer: bytes) -> str:
    return repr(answer[:SHOWN_CHARACTERS].decode(errors="replace")) if answer else "an empty body"


def _seconds(header: str | None) -> float | None:
    """Retry-After, where it is a number of seconds. (A date would need two clocks that agree.)"""
    try:
        return max(0.0, float(header)) if header else None
    except ValueError:
        return None


def pause_after(error: EscrowError, repeat: Repeat, backoff: Backoff) -> float | None:
    """How long to wait before the next attempt; None: there is none."""
    if repeat is Repeat.NEVER or isinstance(error, Aborted):
        return None
    if isinstance(error, Unreachable) and (repeat is Repeat.ALWAYS or not error.maybe_done):
        return backoff.next_s()
    if isinstance(error, Refused) and error.status in _PASSING:
        return backoff.next_s(error.retry_after_s or 0.0)
    return None


def _readable(sock: socket.socket) -> bool:
    """Something lies ready on this socket, or its other end has gone."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
