"""Where a request comes from: pages of other sites and proxies before a service without tokens are refused."""

from __future__ import annotations

import socket

import pytest

from ingest.auth.callers import check_call, check_origin, check_page, check_single
from ingest.errors import Forbidden, InvalidRequest
from tests.support.edge_world import SMALL
from tests.support.endpoint import Endpoint

OURS = {b"host": b"localhost:7480"}


@pytest.mark.parametrize("host", [b"localhost", b"LocalHost:7480", b"127.0.0.1:7480", b"[::1]:7480"])
def test_names_of_loopback_need_no_token(host):
    check_page({b"host": host}, has_tokens=False)


@pytest.mark.parametrize(
    "host",
    [
        b"",
        b"evil.example",
        b"127.0.0.1.evil.example:7480",
        b"10.0.0.1",
        b"\xff",
        b"[::1].evil.example",
        b"[::1",
        b"localhost:x.evil",
        b"127.0.0.1:80:evil",
    ],
)
def test_without_tokens_another_host_is_refused(host):
    with pytest.raises(Forbidden, match="Host"):
        check_page({b"host": host}, has_tokens=False)
    check_page({b"host": host}, has_tokens=True)  # a page in a browser has no token


@pytest.mark.parametrize("has_tokens", [False, True])
@pytest.mark.parametrize("site", [b"cross-site", b"same-site", b"Same-Site", b"", b"same-origin, cross-site"])
def test_pages_of_other_origins_are_refused(site, has_tokens):
    with pytest.raises(Forbidden, match="Sec-Fetch-Site"):
        check_page({**OURS, b"sec-fetch-site": site}, has_tokens=has_tokens)


@pytest.mark.parametrize("site", [b"same-origin", b"none", b"None"])
def test_our_own_page_and_the_address_bar_pass(site):
    check_page({**OURS, b"sec-fetch-site": site, b"origin": b"http://localhost:7480"}, has_tokens=False)


def test_programs_pass():
    check_page({**OURS, b"user-agent": b"curl/8", b"accept": b"*/*"}, has_tokens=False)


@pytest.mark.parametrize("name", [b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-port", b"x-real-ip", b"cf-ray"])
def test_a_proxy_needs_tokens(name):
    with pytest.raises(Forbidden, match="make tokens"):
        check_page({**OURS, name: b"203.0.113.9"}, has_tokens=False)
    check_page({**OURS, name: b"203.0.113.9"}, has_tokens=True)
    with pytest.raises(Forbidden, match="make tokens"):
        check_call({name.decode(): "203.0.113.9"})


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        (b"http://a.example", b"b.example"),
        (b"null", b"a"),
        (b"", b"a"),
        (b"http://a:1", b"a:2"),
        (b"http://[::1", b"[::1"),
        (b"\xff", b"a"),
    ],
)
def test_other_pages_are_refused(origin, host):
    with pytest.raises(Forbidden):
        check_origin(origin, host)


@pytest.mark.parametrize("name", [b"origin", b"sec-fetch-site", b"authorization"])
def test_a_header_that_decides_who_asks_is_there_once(name):
    check_single([(b"accept", b"a"), (b"accept", b"b"), (name, b"none")])
    with pytest.raises(InvalidRequest, match="sent twice"):
        check_single([(name, b"cross-site"), (b"accept", b"a"), (name, b"none")])


def test_the_last_of_two_headers_does_not_let_a_page_in(tmp_path):
    head = "GET /v1/topics/t/messages?group=g&consumer=c HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    with Endpoint(tmp_path, *SMALL) as endpoint, socket.create_connection(("127.0.0.1", endpoint.port)) as connection:
        connection.sendall(f"{head}Sec-Fetch-Site: cross-site\r\nSec-Fetch-Site: none\r\n\r\n".encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")
