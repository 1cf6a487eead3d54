"""Tokens, TLS and quotas through the real endpoint."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ingest.auth import token_file
from tests.support.certificates import Authority
from tests.support.distributions import installer
from tests.support.edge_client import EdgeClient, RemoteError
from tests.support.edge_process import HALF, cannot_start, edge
from tests.support.endpoint import until

HALVES = {"messages": [HALF]}


def new(data, name, produce=(), consume=(), **roles):
    given = {"operator": False, "metrics": False, **roles}
    return token_file.add(data / "keys" / "tokens.toml", name, produce, consume, made_at="2026-01-02T03:04:05Z", **given)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """(port, token by name) of an edge with tokens that listens everywhere."""
    data = tmp_path_factory.mktemp("guarded") / "data"
    tokens = {
        "g": new(data, "g", ["g"]),
        "other": new(data, "other", ["h*"]),
        "narrow": new(data, "narrow", ["n:n-*"], ["orders:mine"]),
        "ops": new(data, "ops", operator=True),
        "prometheus": new(data, "prometheus", metrics=True),
    }
    with edge(data, "listenAddress=0.0.0.0") as (_, port):
        yield data, port, tokens


def told(guarded, who, method, path, content=None):
    """200, or (status, code)."""
    _, port, tokens = guarded
    with EdgeClient(port, token=tokens.get(who, "")) as client:
        status, headers, body = client.raw(method, path, content)
    if status == 200:
        return 200
    if status == 401:
        assert headers["www-authenticate"].startswith("Bearer")
    return status, json.loads(body)["code"]


UNAUTHORIZED, FORBIDDEN = (401, "unauthorized"), (403, "forbidden")


def test_everybody_may_ask_whether_it_lives(guarded):
    for path in ("/livez", "/readyz", "/openapi.json"):
        assert told(guarded, "nobody", "GET", path) == 200


@pytest.mark.parametrize(
    ("method", "path", "content", "may"),
    [
        ("POST", "/v1/halves", HALVES, {"g"}),
        ("POST", "/v1/messages", HALVES, {"g"}),
        ("GET", "/v1/groups/g/checks?member=m", None, {"g"}),
        ("POST", "/v1/ends", {"ends": [{"group": "g", "id": "x", "outcome": "commit"}]}, {"g"}),
        ("POST", "/v1/operator/actions", {"action": "resume", "ids": ["x"], "reason": "r"}, {"ops"}),
        ("GET", "/v1/operator/overview", None, {"ops"}),
        ("GET", "/v1/operator/transactions", None, {"ops"}),
        ("GET", "/v1/operator/audit", None, {"ops"}),
        ("GET", "/v1/operator/groups", None, {"ops"}),
        ("GET", "/v1/operator/topics", None, {"ops"}),
        ("POST", "/v1/operator/topics", {"topic": "made"}, {"ops"}),
        ("POST", "/v1/operator/topics/remove", {"topics": ["made"], "dry_run": True}, {"ops"}),
        ("GET", "/v1/status", None, {"ops"}),
        ("GET", "/metrics", None, {"ops", "prometheus"}),
    ],
)
def test_who_may_what(guarded, method, path, content, may):
    assert told(guarded, "nobody", method, path, content) == UNAUTHORIZED
    for who in ("g", "other", "ops", "prometheus"):
        assert told(guarded, who, method, path, content) == (200 if who in may else FORBIDDEN), who


def test_a_batch_with_a_foreign_group_is_refused_whole(guarded):
    assert told(guarded, "g", "POST", "/v1/halves", {"messages": [HALF, {**HALF, "group": "h"}]}) == FORBIDDEN


@pytest.mark.parametrize("path", ["/v1/halves", "/v1/messages"])
def test_a_group_sends_only_to_the_topics_of_its_rules(guarded, path):
    own = {**HALF, "group": "n", "topic": "n-1"}
    assert told(guarded, "narrow", "POST", path, {"messages": [own]}) == 200
    assert told(guarded, "narrow", "POST", path, {"messages": [own, {**own, "topic": "payments"}]}) == FORBIDDEN
    assert told(guarded, "g", "POST", path, {"messages": [{**HALF, "topic": "%DLQ%mine"}]}) == FORBIDDEN


def test_a_topic_is_read_only_as_the_groups_of_its_rules(guarded):
    """Nobody polls, acknowledges, holds, seeks or replays for another team's consumer group."""
    receipt = "0-0-0-1-1"
    for group, may in (("mine", True), ("billing", False)):
        for method, path, content in (
            ("GET", f"/v1/topics/orders/messages?group={group}&consumer=c", None),
            ("POST", "/v1/topics/orders/acks", {"group": group, "receipts": [receipt]}),
            ("POST", "/v1/topics/orders/visibility", {"group": group, "receipts": [receipt], "visibility_s": 0}),
            ("POST", "/v1/topics/orders/seek", {"group": group, "to": "latest"}),
        ):
            assert (told(guarded, "narrow", method, path, content) != FORBIDDEN) is may, path
        assert told(guarded, "narrow", "GET", f"/v1/groups/{group}/dead-letters") == FORBIDDEN
        assert told(guarded, "narrow", "POST", f"/v1/groups/{group}/dead-letters/replay", {"ids": ["0-0"]}) == FORBIDDEN


def test_a_topic_is_read_by_place_only_with_a_rule_for_it(guarded):
    for path in ("queues", "queues/0/messages"):
        assert told(guarded, "nobody", "GET", f"/v1/topics/orders/{path}") == UNAUTHORIZED
        assert told(guarded, "narrow", "GET", f"/v1/topics/orders/{path}") != FORBIDDEN
        for topic in ("payments", "%25DLQ%25billing"):
            assert told(guarded, "narrow", "GET", f"/v1/topics/{topic}/{path}") == FORBIDDEN, topic


def test_a_transaction_is_shown_to_its_producer_and_to_operators(guarded):
    _, port, tokens = guarded
    with EdgeClient(port, token=tokens["g"]) as client:
        (id,) = client.prepare([HALF])
    path = f"/v1/transactions/{id}"
    assert [told(guarded, who, "GET", path) for who in ("nobody", "g", "other", "ops")] == [UNAUTHORIZED, 200, FORBIDDEN, 200]


def test_who_resumed_stands_in_the_history(guarded):
    _, port, tokens = guarded
    with EdgeClient(port, token=tokens["g"]) as client:
        (id,) = client.prepare([HALF])
    with EdgeClient(port, token=tokens["ops"]) as client:
        client.act("resume", [id])
        assert [event.get("actor") for event in client.transaction(id)["history"] if event["event"] == "resumed"] == ["ops"]


def test_nobody_unknown_sends_a_body_for_nothing(guarded):
    """Refused by its head, before the body is there."""
    _, port, _ = guarded
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.putrequest("POST", "/v1/halves")
    connection.putheader("content-length", "1000")
    connection.endheaders()
    assert connection.getresponse().status == 401
    connection.close()


def test_a_revoked_token_is_refused_within_a_second_or_so(guarded):
    data, port, _ = guarded
    token = new(data, "short", ["g"])
    deadline_s = time.monotonic() + 10
    with EdgeClient(port, token=token) as client:
        while client.raw("POST", "/v1/halves", HALVES)[0] != 200:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        token_file.revoke(data / "keys" / "tokens.toml", "short")
        while client.raw("POST", "/v1/halves", HALVES)[0] != 401:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)


def test_a_poll_that_waits_shows_nothing_to_a_token_that_was_revoked(guarded):
    """What comes after that goes to somebody else."""
    data, port, tokens = guarded
    short, mine = new(data, "short-poll", [], ["late:mine"]), new(data, "late", ["g:late"], ["late:mine"])
    path = "/v1/topics/late/messages?group=mine&consumer=c"
    clients = [EdgeClient(port, token=token) for token in (short, short, mine, tokens["ops"])]
    with clients[0] as client, clients[1] as revoked, clients[2] as other, clients[3] as operator:
        until(lambda: client.raw("GET", path)[0] == 200 == other.raw("GET", path)[0])
        with ThreadPoolExecutor(1) as waiting:
            answer = waiting.submit(client.raw, "GET", path + "&wait_s=30")
            until(lambda: operator.status()["consumption"]["polls_waiting"] == 1)
            token_file.revoke(data / "keys" / "tokens.toml", "short-poll")
            until(lambda: revoked.raw("GET", path)[0] == 401)
            other.send([{"group": "g", "topic": "late", "text": "secret"}])
            status, _, content = answer.result()
            assert (status, b"secret" in content, b"c2VjcmV0" in content) == (401, False, False)
        assert [each["body"] for each in other.consume("late", "mine")] == [b"secret"]


def test_no_secret_in_any_log(guarded):
    data, _, tokens = guarded
    text = "".join(path.read_text(errors="replace") for path in (data / "logs").glob("*") if path.is_file())
    assert not any(token in text for token in tokens.values())


def test_a_foreign_host_header_without_tokens(tmp_path):
    with edge(tmp_path / "data") as (_, port), EdgeClient(port) as client:
        assert client.raw("GET", "/v1/status", headers={"Host": "evil.example"})[0] == 403
        assert client.raw("GET", "/v1/status")[0] == 200


POLL = "/v1/topics/paid/messages?group=billing&consumer=c&visibility_s=43200"
PROXIES = ("Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP")


def test_no_page_of_another_site_takes_messages(tmp_path):
    """A poll is a GET, which any page can make a browser send."""
    with edge(tmp_path / "data") as (_, port), EdgeClient(port) as client:
        client.send([{"group": "g", "topic": "paid", "text": str(number)} for number in range(3)])
        for site in ("cross-site", "same-site", "", "nonsense"):
            headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
            for path in (POLL, "/v1/groups/g/checks?member=m", "/v1/operator/overview"):
                assert client.raw("GET", path, headers=headers)[0] == 403, (site, path)
        for site in ("same-origin", "none"):
            assert client.raw("GET", "/v1/operator/overview", headers={"Sec-Fetch-Site": site})[0] == 200
        assert len(client.consume("paid", "billing")) == 3


def test_without_tokens_nobody_is_served_through_a_proxy(tmp_path):
    """Everybody behind it would be taken for a user of this machine."""
    act = {"action": "rollback", "reason": "x", "filter": {"state": "pending"}, "dry_run": True}
    data = tmp_path / "data"
    with edge(data) as (_, port), EdgeClient(port) as client:
        for name in PROXIES:
            status, _, content = client.raw("POST", "/v1/operator/actions", act, headers={name: "203.0.113.9"})
            assert (status, "escrow token new" in json.loads(content)["detail"]) == (403, True), name
        assert client.raw("GET", "/livez", headers={"X-Forwarded-For": "203.0.113.9"})[0] == 200
    token = new(data, "ops", operator=True)
    with edge(data) as (_, port), EdgeClient(port, token=token) as client:
        assert client.raw("POST", "/v1/operator/actions", act, headers={"X-Forwarded-For": "203.0.113.9"})[0] == 200


def test_quota_is_429_with_a_time_to_wait(tmp_path):
    with edge(tmp_path / "data", "groupRateMax=2") as (_, port), EdgeClient(port) as client:
        ids = client.prepare([HALF] * 2)
        with pytest.raises(RemoteError) as caught:
            client.prepare([HALF] * 2)
        assert (caught.value.status, caught.value.code) == (429, "quota")
        assert 1 <= int(caught.value.headers["retry-after"]) <= 2
        assert client.end("g", ids[0], "commit")["verdict"] == "accepted"


def test_a_broken_plug_in_ends_the_start_with_one_line(tmp_path, monkeypatch):
    installer(tmp_path / "site", monkeypatch)("mine", "[escrow.check_listeners]\nmine = theirs:Made\n", theirs="class Made: pass")
    code, said = cannot_start(tmp_path / "data", "plugins=mine", PYTHONPATH=str(tmp_path / "site"))
    assert code == 2
    assert "plug-in mine = theirs:Made (escrow.check_listeners) of mine 1.2: is no CheckListener" in said


# --- TLS ---
def test_https(tmp_path):
    authority = Authority(tmp_path)
    pair = authority.issue("edge")
    with edge(tmp_path / "data", f"tlsCertFile={pair.cert}", f"tlsKeyFile={pair.key}") as (_, port):
        trusting = ssl.create_default_context(cafile=str(authority.cert))
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=trusting, timeout=10)
        connection.request("POST", "/v1/halves", json.dumps(HALVES), {"content-type": "application/json"})
        assert connection.getresponse().status == 200
        connection.close()


def test_what_cannot_be_used_keeps_it_from_starting(tmp_path):
    data = tmp_path / "data"
    (data / "keys").mkdir(parents=True)
    for flags, says in (
        ((f"tlsCertFile={tmp_path / 'x'}", f"tlsKeyFile={tmp_path / 'x'}"), "tlsCertFile: "),
        ((f"groupsFile={tmp_path / 'groups.toml'}",), "rate: no such field"),
        ((f"tokensFile={tmp_path / 'tokens.toml'}",), "not valid TOML"),
    ):
        (tmp_path / "groups.toml").write_text("[groups.g]\nrate = 1\n")
        (tmp_path / "tokens.toml").write_text("[[token")
        code, said = cannot_start(data, *flags)
        assert code == 2
        assert says in said
        assert not (data / "store").exists(), "nothing was touched"
