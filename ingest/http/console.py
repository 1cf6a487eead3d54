"""The console's pages: files that come with the package, served by the endpoint at `/`. They hold no data: what they show they get
from the operator's API, with the session of the user who is logged in.

The policy (CSP) lets a page run nothing but our files and talk to this server only: text in a message stays text.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.metadata import version
from importlib.resources import files
from typing import Final, NamedTuple

from ingest.auth.sessions import clear_cookie
from ingest.errors import Forbidden, NotFound, Unauthorized
from ingest.http.app import Exchange, Route
from ingest.http.wire import operators

INDEX: Final = "index.html"
_MEDIA: Final = {
    "css": b"text/css; charset=utf-8",
    "html": b"text/html; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    b"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS: Final = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    (b"cache-control", b"no-cache"),
)


class Asset(NamedTuple):
    content: bytes
    media: bytes
    etag: bytes


@lru_cache(maxsize=1)
def assets() -> dict[str, Asset]:
    """All files by name, read once."""
    found = {}
    for file in files("ingest.http").joinpath("assets").iterdir():
        media = _MEDIA.get(file.name.rpartition(".")[2])
        if media is not None:
            content = file.read_bytes()
            found[file.name] = Asset(content, media, b'"%s"' % hashlib.sha256(content).hexdigest()[:32].encode())
    return found


async def _serve(exchange: Exchange, name: str) -> None:
    asset = assets().get(name)
    if asset is None:
        raise NotFound(f"{name[:64]}: the console has no such file")
    headers = [(b"content-type", asset.media), (b"etag", asset.etag), *_HEADERS]
    known = exchange.headers.get(b"if-none-match") == asset.etag
    await exchange.write(304 if known else 200, b"" if known else asset.content, headers)


async def get_index(exchange: Exchange) -> None:
    await _serve(exchange, INDEX)


async def get_file(exchange: Exchange) -> None:
    await _serve(exchange, exchange.name("file"))


# --- sessions ---------------------------------------------------------------------------------------------------------------
async def get_session(exchange: Exchange) -> None:
    """Not a refusal without a login: every first visit would look like an error."""
    try:
        exchange.identify("operator")
    except (Unauthorized, Forbidden):
        await exchange.answer(_shown(exchange, ""))
        return
    await exchange.answer(_shown(exchange, exchange.principal.name))


async def post_session(exchange: Exchange) -> None:
    """Log in. Before the token is looked at: does the request come from a page of ours?"""
    exchange.check_page()
    given = await exchange.body(operators.LoginIn)
    authorization = f"Bearer {given.token.strip()}"
    exchange.principal = exchange.access.principal(authorization)
    exchange.principal.require_operator()
    async with exchange.edge.offers.audit.action(exchange.principal.name, "login", "console"):
        exchange.session = exchange.sessions.begin(authorization)
    cookie = exchange.sessions.set_cookie(exchange.session, exchange.secure)
    await exchange.answer(_shown(exchange, exchange.principal.name), [(b"set-cookie", cookie)])


async def delete_session(exchange: Exchange) -> None:
    if exchange.session is not None:
        exchange.sessions.end(exchange.session)
        exchange.session = None
    await exchange.answer(_shown(exchange, ""), [(b"set-cookie", clear_cookie(exchange.secure))])


def _shown(exchange: Exchange, name: str) -> operators.SessionOut:
    session, settings = exchange.session, exchange.edge.settings
    return operators.SessionOut(
        name=name,
        csrf=session.csrf if session is not None and name else "",
        open=exchange.access.is_open,
        left_s=exchange.sessions.left_s(session) if session is not None else 0.0,
        version=version("escrow-mq-server"),
        check_max=settings.check_count_max,
        runbook_base_url=settings.runbook_base_url,
        trace_link_template=settings.trace_link_template,
    )


ROUTES: Final = (
    Route("GET", "/", get_index, "The console", "", media="text/html", hidden=True),
    Route("GET", "/console/session", get_session, "Who is logged in", "", operators.SessionOut, console=True, hidden=True),
    Route("POST", "/console/session", post_session, "Log in", "", operators.SessionOut, operators.LoginIn, share="ends",
          body_max_bytes=64 << 10, hidden=True),
    Route("DELETE", "/console/session", delete_session, "Log out", "operator", operators.SessionOut, console=True, hidden=True),
    Route("GET", "/console/{file}", get_file, "A file of the console", "", media="text/javascript", hidden=True),
)  # fmt: skip
