"""The console's door, through the real endpoint: what is served to whom, sessions, the second secret, pages of others; and who may
do what of an operator's work, role by role."""

from __future__ import annotations

import http.client
import json
import re
from itertools import product
from typing import Any

import pytest

from ingest.auth import token_file
from ingest.auth.sessions import COOKIE, SESSIONS_MAX, Sessions
from ingest.http import console, routes
from tests.support.edge_process import HALF, edge
from tests.support.endpoint import until

OPERATIONS = {
    "GET /v1/operator/overview": None,
    "GET /v1/operator/transactions": None,
    "GET /v1/operator/transactions/{id}": None,
    "POST /v1/operator/actions": {"action": "resume", "ids": ["{id}"], "reason": "r"},
    "GET /v1/operator/audit": None,
    "GET /v1/operator/groups": None,
    "GET /v1/operator/topics": None,
    "POST /v1/operator/topics": {"topic": "made"},
    "POST /v1/operator/topics/remove": {"topics": ["made"], "dry_run": True},
    "GET /v1/operator/tables/{table}": None,
    "GET /v1/operator/transactions/{id}/body": None,
    "GET /v1/operator/transactions/{id}/explain": None,
    "GET /v1/operator/causes": None,
    "GET /v1/operator/conflicts": None,
    "GET /v1/operator/groups/{group}": None,
    "GET /v1/operator/dead-letters": None,
    "GET /v1/operator/dead-letters/{group}": None,
    "POST /v1/operator/dead-letters/{group}/replay": {"reason": "r", "dry_run": True},
    "GET /v1/operator/settings": None,
    "GET /v1/status": None,
    "DELETE /console/session": None,
}
ROLES: dict[str, dict[str, Any]] = {
    "anonymous": {},
    "producer": {"produce": ["*"]},
    "consumer": {"consume": ["*"]},
    "metrics": {"metrics": True},
    "operator": {"operator": True},
}


def add(data, name, produce=(), consume=(), **roles):
    given = {"operator": False, "metrics": False, **roles}
    return token_file.add(
        data / "keys" / "tokens.toml", name, list(produce), list(consume), made_at="2026-01-02T03:04:05Z", **given
    )


class Browser:
    """Sends what a browser sends: its cookie, and from which page."""

    def __init__(self, port):
        self.port, self.cookie, self.csrf = port, "", ""

    def ask(self, method, path, content=None, **headers):
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookie and "cookie" not in sent:
            sent["cookie"] = f"{COOKIE}={self.cookie}"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, None if content is None else json.dumps(content), sent)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, dict(answer.getheaders()), body

    def log_in(self, token):
        status, headers, body = self.ask("POST", "/console/session", {"token": token})
        assert status == 200, body
        self.cookie = headers["set-cookie"].partition(";")[0].removeprefix(f"{COOKIE}=")
        self.csrf = json.loads(body)["csrf"]
        return headers["set-cookie"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """(data, port, token by role, id of a half)."""
    data = tmp_path_factory.mktemp("console") / "data"
    tokens = {role: add(data, role, **roles) if roles else "" for role, roles in ROLES.items()}
    with edge(data) as (_, port):
        bearer = {"authorization": f"Bearer {tokens['producer']}"}
        _, _, body = Browser(port).ask("POST", "/v1/halves", {"messages": [HALF]}, **bearer)
        yield data, port, tokens, json.loads(body)["halves"][0]["id"]


# --- role by role -------------------------------------------------------------------------------------------------------------
def test_the_list_of_operations_is_whole():
    known = {route.operation for route in routes.make_routes(None) if route.role == "operator"}
    assert known == set(OPERATIONS)


@pytest.mark.parametrize(("role", "operation"), list(product(ROLES, OPERATIONS)))
def test_only_operators_see_and_act(guarded, role, operation):
    _, port, tokens, id = guarded
    names = {"{id}": id, "{group}": HALF["group"], "{table}": "transactions"}
    method, path = re.sub(r"\{\w+\}", lambda found: names[found[0]], operation).split()
    content = OPERATIONS[operation]
    content = content and json.loads(json.dumps(content).replace("{id}", id))
    headers = {"authorization": f"Bearer {tokens[role]}"} if tokens[role] else {}
    status, _, body = Browser(port).ask(method, path, content, **headers)
    assert status == {"anonymous": 401, "operator": 200}.get(role, 403)
    if status != 200:
        assert b"history" not in body
        assert set(json.loads(body)) <= {"status", "code", "title", "detail", "field"}


@pytest.mark.parametrize("role", sorted(set(ROLES) - {"operator"}))
def test_only_operators_log_in(guarded, role):
    _, port, tokens, _ = guarded
    status, headers, _ = Browser(port).ask("POST", "/console/session", {"token": tokens[role]})
    assert status == (401 if role == "anonymous" else 403)
    assert "set-cookie" not in headers
    assert json.loads(Browser(port).ask("GET", "/console/session")[2])["name"] == ""


def test_what_roles_may_not_do_changes_nothing(guarded):
    _, port, tokens, id = guarded
    for role in sorted(set(ROLES) - {"operator"}):
        headers = {"authorization": f"Bearer {tokens[role]}"} if tokens[role] else {}
        Browser(port).ask("POST", "/v1/operator/actions", {"action": "commit", "ids": [id], "reason": "r"}, **headers)
    _, _, body = Browser(port).ask("GET", f"/v1/transactions/{id}", authorization=f"Bearer {tokens['operator']}")
    assert json.loads(body)["state"] == "PREPARED"


# --- the pages ------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", ["/", *[f"/console/{name}" for name in sorted(console.assets())]])
def test_files_run_nothing_but_themselves_and_name_nobody_else(guarded, path):
    status, headers, body = Browser(guarded[1]).ask("GET", path)
    assert status == 200
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
    hosts = set(re.findall(rb"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", body))
    assert hosts <= {b"http://www.w3.org"}, "the name of SVG, which nobody fetches"
    assert Browser(guarded[1]).ask("GET", path, if_none_match=headers["etag"])[0] == 304


def test_no_inline_script_and_no_parsed_html():
    page = console.assets()["index.html"].content.decode()
    assert re.findall(r"<script(?![^>]* src=)", page) == []
    assert re.findall(r" (?:on\w+|style)=", page) == []
    scripts = b"".join(asset.content for name, asset in console.assets().items() if name.endswith(".js")).decode()
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|DOMParser", scripts) == []


def test_files_that_are_not_there(guarded):
    for path in ("/console/nothing.js", "/console/..%2Fconsole.py", "/console/index.html/x"):
        assert Browser(guarded[1]).ask("GET", path)[0] == 404


def test_the_console_can_be_switched_off(tmp_path):
    with edge(tmp_path / "data", "consoleEnable=false") as (_, port):
        assert [Browser(port).ask("GET", path)[0] for path in ("/", "/console/app.js", "/console/session")] == [404] * 3
        assert Browser(port).ask("GET", "/v1/operator/overview")[0] == 200


def test_without_tokens_nobody_logs_in(tmp_path):
    with edge(tmp_path / "data") as (_, port):
        found = json.loads(Browser(port).ask("GET", "/console/session")[2])
        assert (found["name"], found["open"]) == ("anonymous", True)
        act = {"action": "resume", "ids": ["x"], "reason": "r"}
        assert Browser(port).ask("POST", "/v1/operator/actions", act)[0] == 200
        assert Browser(port).ask("POST", "/v1/operator/actions", act, origin="http://evil.example")[0] == 403
        assert Browser(port).ask("POST", "/v1/halves", {"messages": [HALF]}, origin="null")[0] == 403
        assert Browser(port).ask("GET", "/v1/operator/overview", host="evil.example")[0] == 403


# --- sessions -------------------------------------------------------------------------------------------------------------------
def test_a_session_sees_acts_and_ends(guarded):
    _, port, tokens, id = guarded
    browser = Browser(port)
    cookie = browser.log_in(tokens["operator"])
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    assert browser.ask("GET", "/v1/operator/overview")[0] == 200
    act = {"action": "resume", "ids": [id], "reason": "r"}
    assert browser.ask("POST", "/v1/operator/actions", act, x_escrow_csrf=browser.csrf)[0] == 200
    status, headers, _ = browser.ask("DELETE", "/console/session", x_escrow_csrf=browser.csrf)
    assert (status, "Max-Age=0" in headers["set-cookie"]) == (200, True)
    assert browser.ask("GET", "/v1/operator/overview")[0] == 401


def test_an_action_needs_the_second_secret_and_a_page_of_ours(guarded):
    _, port, tokens, id = guarded
    browser, other = Browser(port), Browser(port)
    browser.log_in(tokens["operator"])
    other.log_in(tokens["operator"])
    act = {"action": "commit", "ids": [id], "reason": "r"}
    refused = [
        {},
        {"x_escrow_csrf": ""},
        {"x_escrow_csrf": other.csrf},
        {"x_escrow_csrf": browser.csrf, "origin": "http://evil.example"},
        {"x_escrow_csrf": browser.csrf, "origin": "null"},
        {"x_escrow_csrf": browser.csrf, "origin": f"http://127.0.0.1:{port + 1}"},
    ]
    for headers in refused:
        assert browser.ask("POST", "/v1/operator/actions", act, **headers)[0] == 403, headers
    assert browser.ask("DELETE", "/console/session")[0] == 403
    assert browser.ask("POST", "/console/session", {"token": tokens["operator"]}, origin="http://evil.example")[0] == 403
    assert browser.ask("GET", f"/v1/operator/transactions/{id}")[2].count(b'"PREPARED"') == 1
    headers = {"x_escrow_csrf": browser.csrf, "origin": f"http://127.0.0.1:{port}"}
    assert browser.ask("POST", "/v1/operator/actions", {**act, "dry_run": True}, **headers)[0] == 200


def test_a_session_is_good_for_the_console_only(guarded):
    _, port, tokens, _ = guarded
    browser = Browser(port)
    browser.log_in(tokens["operator"])
    for method, path, content in (
        ("POST", "/v1/halves", {"messages": [HALF]}),
        ("GET", "/v1/groups/g/checks?member=m", None),
        ("GET", "/v1/status", None),
        ("GET", "/metrics", None),
    ):
        assert browser.ask(method, path, content, x_escrow_csrf=browser.csrf)[0] == 401, path


@pytest.mark.parametrize("cookie", ["escrow_session=", "escrow_session=x", "x=y; escrow_session=zz", ";;;", "escrow_session"])
def test_a_cookie_of_nobody_is_nobody(guarded, cookie):
    assert Browser(guarded[1]).ask("GET", "/v1/operator/overview", cookie=cookie)[0] == 401


def test_a_revoked_token_ends_its_sessions(tmp_path):
    data = tmp_path / "data"
    token, file = add(data, "ada", operator=True), data / "keys" / "tokens.toml"
    with edge(data) as (_, port):
        browser = Browser(port)
        browser.log_in(token)
        file.write_text("")
        until(lambda: browser.ask("GET", "/v1/operator/overview")[0] == 401)


def test_sessions_end_by_age_by_idleness_and_by_number():
    now = [0.0]
    sessions = Sessions(100.0, lambda: now[0])

    def cookie(session):
        return f"a=b; {COOKIE}={session.id}"

    first = sessions.begin("Bearer x")
    for now[0] in (24.0, 48.0, 72.0, 96.0):
        assert sessions.find(cookie(first)) is first
    now[0] = 100.0
    assert sessions.find(cookie(first)) is None
    idle = sessions.begin("Bearer x")
    now[0] = 125.0
    assert sessions.find(cookie(idle)) is None
    used = sessions.begin("Bearer x")
    made = [sessions.begin("Bearer x")]
    for _ in range(SESSIONS_MAX):
        made.append(sessions.begin("Bearer x"))
        assert sessions.find(cookie(used)) is used
    assert len(sessions) == SESSIONS_MAX
    assert sessions.find(cookie(made[0])) is None
    assert sessions.left_s(used) == 100.0
