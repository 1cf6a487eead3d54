"""Where a request comes from, by its headers: is it a page in a browser, or a proxy, that has no business here?

    Host                a service without tokens is called by a name of loopback, or a page could reach it under a
                        name of its own that resolves to 127.0.0.1 (DNS rebinding)
    Origin              browsers send it with requests that a page makes by script and with every POST: it must be ours
    Sec-Fetch-Site      browsers send it with every request to loopback or over TLS, also with the GET of an <img> or
                        of a link on a page: `same-origin` is our own page, `none` is a typed address. Polls are
                        GETs and change something: they take messages, and they record checks as asked
    forwarding headers  a service without tokens takes every caller on loopback for a user of this machine; behind a proxy
                        on this machine every caller is on loopback

Programs send none of the browsers' headers and pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

from ingest.auth.access import is_loopback
from ingest.errors import Forbidden, InvalidRequest

#: What proxies, meshes, tunnels and networks of caches add to a request that they pass on.
FORWARDING: Final = frozenset(
    {"forwarded", "via", "x-forwarded", "forwarded-for", "x-real-ip", "x-real-port", "cdn-loop"}
    | {
        f"x-forwarded-{rest}"
        for rest in (
            "access-token", "by", "client-cert", "client-ip", "email", "for", "groups", "host", "method", "path", "port", "prefix",
            "preferred-username", "proto", "protocol", "scheme", "server", "ssl", "tls-client-cert", "uri", "url", "user",
        )
    }
    | {f"x-original-{rest}" for rest in ("for", "forwarded-for", "host", "method", "proto", "uri", "url")}
    | {f"x-envoy-{rest}" for rest in ("attempt-count", "external-address", "internal", "original-path", "peer-metadata")}
    | {"cf-connecting-ip", "cf-ray", "client-ip", "fastly-client-ip", "fly-client-ip", "true-client-ip", "x-appengine-user-ip"}
    | {"x-arr-log-id", "x-azure-clientip", "x-client-ip", "x-cluster-client-ip", "x-proxyuser-ip", "tailscale-user-login"}
)  # fmt: skip
_FORWARDING_BYTES: Final = frozenset(name.encode() for name in FORWARDING)
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]+))(?::[0-9]{0,5})?")
#: Headers of which there may be one: with two of them, this service and a proxy could each go by another one.
_SINGLE: Final = frozenset({b"host", b"origin", b"sec-fetch-site", b"authorization"})
_OWN_SITES: Final = (b"same-origin", b"none")


def check_page(headers: Mapping[bytes, bytes], *, has_tokens: bool) -> None:
    """Forbidden if a page of another site asks, or a proxy for a caller that cannot be told from others."""
    host = headers.get(b"host", b"")
    if not has_tokens:
        check_host(host.decode("latin-1"))
        check_forwarding(_FORWARDING_BYTES, headers)
    origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
    if site is not None and site.lower() not in _OWN_SITES:
        raise Forbidden(
            "Sec-Fetch-Site: requests of pages of other origins are refused; call Escrow from your server, with a token"
        )
    if origin is not None:
        check_origin(origin, host)


def check_single(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """InvalidRequest where a header that decides who asks is there twice."""
    seen: set[bytes] = set()
    for name, _ in headers:
        if name in seen and name in _SINGLE:
            raise InvalidRequest(f"{name.decode('latin-1')}: sent twice: send it once", "headers")
        seen.add(name)


def check_call(metadata: Mapping[str, str]) -> None:
    """The same for a gRPC call to a service without tokens. No page can make one: browsers ask first (CORS)."""
    check_forwarding(FORWARDING, metadata)


def check_host(host: str) -> None:
    if not _is_loopback_host(host):
        raise Forbidden("Host: not a loopback name; call 127.0.0.1 or localhost, or make tokens (escrow token new)")


def check_forwarding(forwarding: frozenset[Any], headers: Mapping[Any, Any]) -> None:
    if not forwarding.isdisjoint(headers):
        raise Forbidden(
            "a proxy passed this on (Forwarded, X-Forwarded-For, X-Real-IP or Via is there), and without tokens its "
            "callers cannot be told apart: make tokens (escrow token new)"
        )


def check_origin(origin: bytes, host: bytes) -> None:
    """Browsers say from which page a request comes; other pages have no business here."""
    try:
        place = urlsplit(origin.decode("latin-1")).netloc
    except ValueError:
        place = ""
    if not place or place.lower() != host.decode("latin-1").lower():
        raise Forbidden(
            "Origin: requests of other pages are not served; behind a proxy, have it pass on the Host header as it came"
        )


@lru_cache(maxsize=256)
def _is_loopback_host(host: str) -> bool:
    """Remembered: it is asked at every request, mostly with the same name."""
    return is_loopback(_host_name(host))


def _host_name(host: str) -> str:
    """The name in a Host header, without its port; empty where it is no host."""
    found = _HOST.fullmatch(host)
    return "" if found is None else (found[1] or found[2]).lower()
