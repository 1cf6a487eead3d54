"""The application behind the door: finds the route, reads and decodes the body, checks who asks, encodes the answer.

    App          one application over one edge
    Exchange     one request and its answer
    Route        a line of the table in routes.py, from which /openapi.json is made too

Bodies are bounded three times: each by maxRequestSize, those of one token by tokenHeldBytesMax (`ingest.auth.shares`), all together
by maxReceivingSize. Ends have a share of their own, so that halves can never crowd them out. A body that does not arrive within
requestTimeout is given up by the port: the client has left by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

from ingest.auth import callers
from ingest.auth.access import NOBODY, Access
from ingest.auth.sessions import CSRF_HEADER, Session, Sessions, check_csrf
from ingest.capabilities import Capabilities
from ingest.errors import Forbidden, InvalidRequest, MethodNotAllowed, NotFound, Overloaded, TooLarge, Unauthorized
from ingest.http.large import LARGE_BYTES, LargeBodies
from ingest.http.problems import MEDIA, Headers, of_error
from ingest.http.request import ClientGone, Request, header_lines
from ingest.http.wire import codec

#: An answer of more than this counts for its token until the client has taken it.
LARGE_ANSWER_BYTES: Final = 64 << 10
T = TypeVar("T")
Handler = Callable[["Exchange"], Awaitable[None]]
_NOT_KEPT: Final = b"cache-control: no-store\r\nx-content-type-options: nosniff\r\n"
_MEDIA_LINES: Final = {media: f"content-type: {media}\r\n".encode() for media in (codec.JSON, codec.MSGPACK)}


@dataclass(frozen=True, slots=True)
class Route:
    """One operation. `path` has names in braces; `body` and `query` are shapes of wire/."""

    method: str
    path: str
    handler: Handler
    summary: str
    role: str
    answer: Any = None
    body: Any = None
    query: Any = None
    media: str = codec.JSON
    problems: tuple[int, ...] = ()
    share: str = "halves"
    #: Less than maxRequestSize, where nothing larger makes sense: see large.py.
    body_max_bytes: int | None = None
    #: The console may ask with the cookie of its session.
    console: bool = False
    #: Not for other programs: left out of /openapi.json.
    hidden: bool = False
    #: Of an edge that waits plainly it waits for plain futures only.
    straight: bool = False
    #: What it needs of an edge that not every edge has, by the names of `Offers.absent`.
    needs: str = ""
    operation: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "operation", f"{self.method} {self.path}")

    @property
    def segments(self) -> tuple[str, ...]:
        return tuple(self.path.split("/"))


class Receiving:
    """How many bytes of bodies are held at the moment, of one share."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes, self.bytes = most_bytes, 0

    def take(self, size: int) -> None:
        if self.bytes and self.bytes + size > self.most_bytes:
            raise Overloaded(f"{self.bytes} bytes of requests are being received, at most {self.most_bytes} may: try again")
        self.bytes += size


class App:
    """`await app(request)`: every request goes this way (see fast_path.py for what runs it)."""

    def __init__(
        self, edge: Capabilities, routes: Sequence[Route], observe: Callable[[Route | None, int, float], None], access: Access
    ) -> None:
        self.edge, self.settings, self._observe, self.access = edge, edge.settings, observe, access
        self.sessions = Sessions(self.settings.console_session_ms / 1000)
        most_bytes = self.settings.max_receiving_bytes
        self.receiving = {"halves": Receiving(most_bytes), "ends": Receiving(most_bytes)}
        self._large: LargeBodies | None = None
        self._static: dict[str, dict[str, Route]] = {}
        self._named: list[tuple[tuple[str, ...], dict[str, Route]]] = []
        for route in routes:
            self._add(route)
        #: What goes straight (fast_path.py): handlers that wait for the committer alone. Those of other edges wait for more.
        self.straight = frozenset(route.path for route in routes if route.straight and edge.waits_plainly)
        #: URLs that need no parsing.
        self.paths = {path.encode(): path for path in self._static}

    @property
    def large(self) -> LargeBodies:
        """Made by the first large body: most never see one."""
        self._large = self._large or LargeBodies(self.settings.max_messages_per_request)
        return self._large

    def _add(self, route: Route) -> None:
        if "{" not in route.path:
            self._static.setdefault(route.path, {})[route.method] = route
            return
        for segments, methods in self._named:
            if segments == route.segments:
                methods[route.method] = route
                return
        self._named.append((route.segments, {route.method: route}))

    def _find(self, path: str, method: str) -> tuple[Route, dict[str, str]]:
        methods = self._static.get(path)
        names: dict[str, str] = {}
        if methods is None:
            methods, names = self._find_named(tuple(path.split("/")))
        if methods is None:
            raise NotFound(f"{path[:128]}: there is nothing here; /openapi.json lists what there is")
        route = methods.get(method)
        if route is None:
            allowed = tuple(sorted(methods))
            raise MethodNotAllowed(f"{method} not allowed on {path[:128]}; allowed: {', '.join(allowed)}", allowed)
        return route, names

    def _find_named(self, path: tuple[str, ...]) -> tuple[dict[str, Route] | None, dict[str, str]]:
        for segments, methods in self._named:
            if len(segments) == len(path) and all(
                want == have or (want[:1] == "{" and have) for want, have in zip(segments, path, strict=True)
            ):
                names = {want[1:-1]: have for want, have in zip(segments, path, strict=True) if want[:1] == "{"}
                return methods, names
        return None, {}

    async def __call__(self, request: Request) -> None:
        began_s = perf_counter()
        exchange = Exchange(self, request)
        route = None
        try:
            route, exchange.names = self._find(request.path, request.method)
            exchange.route = route
            if route.role:
                exchange.identify(route.role)
                if (waiting := exchange.begin_share()) is not None:
                    await waiting
            await route.handler(exchange)
        except ClientGone:
            exchange.status = 499  # as nginx does: the client did not wait for the answer
        except Exception as error:
            if isinstance(error, Forbidden | Unauthorized):
                self.edge.offers.audit.denied(exchange.principal.name, route.operation if route is not None else "none", str(error))
            await exchange.refuse(error)
        finally:
            exchange.let_go()
        self._observe(route, exchange.status, perf_counter() - began_s)


class Exchange:
    """One request and its answer."""

    __slots__ = (
        "_app",
        "_held_bytes",
        "_media",
        "_share",
        "_shared_bytes",
        "_token_bytes",
        "headers",
        "names",
        "principal",
        "request",
        "route",
        "session",
        "status",
    )

    def __init__(self, app: App, request: Request) -> None:
        self._app, self.request, self.headers = app, request, request.headers
        self.names: dict[str, str] = {}
        self.route: Route | None = None
        self.principal = NOBODY
        self.session: Session | None = None
        self._media = codec.JSON
        self._share: Receiving | None = None
        self._held_bytes = self.status = 0
        self._shared_bytes, self._token_bytes = -1, 0

    @property
    def edge(self) -> Capabilities:
        return self._app.edge

    @property
    def access(self) -> Access:
        return self._app.access

    @property
    def sessions(self) -> Sessions:
        return self._app.sessions

    @property
    def secure(self) -> bool:
        return self.request.secure

    # --- who asks -------------------------------------------------------------------------------------------------------------
    def identify(self, role: str) -> None:
        """Before a byte of the body is read: who has no role for it is not listened to. What a producer or consumer may do depends
        on names: the handlers ask for that."""
        self.check_page()
        shown = self.headers.get(b"authorization")
        authorization = None if shown is None else shown.decode("latin-1")
        if authorization is None and self.route is not None and self.route.console:
            authorization = self._by_session()
        self.principal = self._app.access.principal(authorization)
        if role == "operator":
            self.principal.require_operator()
        elif role == "metrics":
            self.principal.require_metrics()
        elif self.route is not None and self.route.body is not None:
            self.principal.require_some(role)

    def identify_again(self) -> None:
        """Behind a long wait: the token that asked may have been revoked, or have expired, meanwhile."""
        assert self.route is not None
        self.identify(self.route.role)

    def begin_share(self) -> asyncio.Future[None] | None:
        """What to wait for, so that the caller's token keeps to its rate."""
        assert self.route is not None
        if not self.principal.is_limited:
            return None
        size_bytes = min(_length(self.headers.get(b"content-length")), self._app.settings.max_request_bytes)
        waiting = self._app.access.shares.begin(self.principal.name, size_bytes, patient=self.route.share == "ends")
        self._shared_bytes = size_bytes
        return waiting

    def check_page(self) -> None:
        """Where a browser sends it: is it a page of ours that asks?"""
        callers.check_page(self.headers, has_tokens=self._app.access.wants_tokens)

    def _by_session(self) -> str | None:
        """What the session of a browser stands for; it may act only with the session's second secret."""
        cookie = self.headers.get(b"cookie")
        self.session = None if cookie is None else self._app.sessions.find(cookie.decode("latin-1"))
        if self.session is None:
            return None
        if self.request.method != "GET":
            check_csrf(self.session, self.headers.get(CSRF_HEADER))
        return self.session.authorization

    # --- the request ----------------------------------------------------------------------------------------------------------
    def name(self, which: str) -> str:
        """A name in the path."""
        return self.names[which]

    def query(self, shape: type[T]) -> T:
        try:
            pairs = parse_qsl(self.request.query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=64)
        except ValueError:
            raise InvalidRequest("query: is not UTF-8 in percent-encoding, or has too many fields", "query") from None
        self._media = codec.accepted_media(self.headers.get(b"accept"), codec.JSON)
        return codec.convert(dict(pairs), shape)

    async def body(self, shape: type[T]) -> T:
        """The body, decoded. What it says of its length is believed only as far as it may go."""
        media = codec.media_type(self.headers.get(b"content-type"))
        self._media = codec.accepted_media(self.headers.get(b"accept"), media)
        content = await self._read()
        if len(content) > LARGE_BYTES:
            return await self._app.large.decode(content, media, shape)
        return codec.decode(content, media, shape)

    async def _read(self) -> bytes:
        assert self.route is not None
        self._share = self._app.receiving[self.route.share]
        self._check_size(_length(self.headers.get(b"content-length")))
        whole = self.request.take()
        if whole is not None:
            self._hold(len(whole))
            return whole
        parts = []
        while piece := await self.request.next_piece():
            self._hold(len(piece))
            parts.append(piece)
        return b"".join(parts)

    def _hold(self, size: int) -> None:
        self._check_size(self._held_bytes + size)
        assert self._share is not None
        self._share.take(size)
        self._held_bytes += size
        if self._held_bytes > self._shared_bytes >= 0:  # it had not told of them
            self.hold(min(size, self._held_bytes - self._shared_bytes))

    def hold(self, size_bytes: int, *, must: bool = False) -> None:
        """Keep so many bytes for the caller until the answer has been taken; Overloaded where its token has too many already,
        unless it `must` be."""
        if self._shared_bytes >= 0:
            assert self.route is not None
            self._app.access.shares.hold(self.principal.name, size_bytes, is_end=self.route.share == "ends", must=must)
            self._token_bytes += size_bytes

    def _check_size(self, size: int) -> None:
        assert self.route is not None
        most, own = self._app.settings.max_request_bytes, self.route.body_max_bytes
        if own is not None and own < size:
            raise TooLarge(f"body: has {size} bytes or more; {self.route.operation} takes at most {own}: send smaller batches")
        if size > most:
            raise TooLarge(f"body: has {size} bytes or more; at most {most} (maxRequestSize) are taken: send smaller batches")

    def let_go(self) -> None:
        if self._shared_bytes >= 0:
            shares, name = self._app.access.shares, self.principal.name
            if self._token_bytes:
                shares.let_go(name, self._token_bytes)
            shares.end(name, self._shared_bytes, max(0, self._held_bytes - self._shared_bytes))
            self._shared_bytes = -1
        if self._share is not None:
            self._share.bytes -= self._held_bytes
            self._held_bytes = 0

    # --- the answer -----------------------------------------------------------------------------------------------------------
    async def answer(self, content: Any, headers: Headers | None = None) -> None:
        """200, in the form that was asked for. What an operator sees is not for the browser's cache."""
        encoded, lines = codec.encode(content, self._media), _MEDIA_LINES[self._media]
        if self.route is not None and self.route.console:
            lines += _NOT_KEPT
        await self._write(200, encoded, lines + header_lines(headers) if headers else lines)

    async def write(self, status: int, content: bytes, headers: Headers) -> None:
        await self._write(status, content, header_lines(headers))

    async def _write(self, status: int, content: bytes, lines: bytes) -> None:
        is_large = len(content) > LARGE_ANSWER_BYTES
        if is_large:
            # A refusal behind a POST would say that nothing was done.
            self.hold(len(content), must=self.request.method != "GET")
        self.status = status
        if self.request.must_wait:
            await self.request.drained()
        self.request.answer(status, lines, content)
        if is_large:
            await self.request.taken()

    async def refuse(self, error: Exception) -> None:
        told, headers = of_error(error)
        if self.status:
            return  # the answer had begun: nothing can be said any more
        await self.write(told.status, codec.encode(told, codec.JSON), [(b"content-type", MEDIA), *headers])

    @asynccontextmanager
    async def attended(self) -> AsyncIterator[None]:
        """Around a long wait: ClientGone as soon as the client hangs up."""
        task = asyncio.current_task()
        assert task is not None
        if self.request.gone:
            raise ClientGone
        self.request.watch(task.cancel)
        try:
            yield
        except asyncio.CancelledError:
            if self.request.gone:
                raise ClientGone from None
            raise
        finally:
            self.request.watch(None)


def _length(value: bytes | None) -> int:
    """Content-Length; the parser has refused invalid ones."""
    return int(value) if value is not None and value.isdigit() else 0
