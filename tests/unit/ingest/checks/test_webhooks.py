"""Webhooks against real loopback servers: signed, counted on 2xx only, settled by an explicit verdict only."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import re
import socket
import ssl
import struct
from pathlib import Path

import pytest

from ingest.checks import breaker, couriers, transports, webhook_courier
from ingest.checks.webhooks import ANSWER_MAX_BYTES, sign, verdict_of
from store.records import OpKind, State
from store.tables.presence import Presence
from tests.support.certificates import Authority
from tests.support.edge_world import world
from tests.support.webhook_server import answers, receiver, says

ROOT = Path(__file__).parents[4]
SECRET = "a secret of the orders group"


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Nothing waits long."""
    monkeypatch.setattr(couriers, "POLL_S", 0.05)
    monkeypatch.setattr(couriers, "PAUSE_S", 0.02)
    monkeypatch.setattr(transports, "LOOK_S", 0.02)
    monkeypatch.setattr(webhook_courier, "BACKOFF_S", (0.01, 0.02))
    monkeypatch.setattr(breaker, "PAUSE_S", 0.2)
    monkeypatch.setenv("ESCROW_SECRET_G", SECRET)


def configure(w_or_path, url, group="g", **more):
    path = w_or_path if isinstance(w_or_path, Path) else w_or_path.root
    path.mkdir(parents=True, exist_ok=True)
    given = {"url": url, "secret_env": "ESCROW_SECRET_G", "timeout": "2s", **more}
    lines = [f"{key} = {value}" if isinstance(value, int) else f'{key} = "{value}"' for key, value in given.items() if value]
    with (path / "groups.toml").open("a") as file:
        file.write(f'[groups."{group}".webhook]\n' + "\n".join(lines) + "\n")


@pytest.fixture
def play(tmp_path):
    """A receiver with these manners, an edge that posts to it."""

    def run(story, *manners, tls=None, flags=(), place="", **more):
        async def live():
            async with receiver(*manners, tls=tls) as server:
                configure(tmp_path / place / "data", server.url, **more)
                async with world(tmp_path / place / "data", *flags) as w:
                    await asyncio.wait_for(story(w, server), 30)

        asyncio.run(live())

    return run


async def due(w, count=1):
    """Halves, and a round that asks about them."""
    ids = [await w.half(body=b"hello", properties={"KEYS": "order-1", "x": "y"}, topic="orders") for _ in range(count)]
    await live(w)
    await ask(w)
    return ids


async def ask(w):
    w.now_ms += 9_000
    await live(w)
    w.round(after_ms=1_000)


async def live(w):
    presence = Presence(w.settings.store_dir / "presence")
    await w.until(lambda: presence.live(w.now_ms, 1, 1).tolist() == [True])


def courier(w):
    (found,) = w.edge.parts[-1]._couriers.values()
    return found


def state(w, half_offset=0):
    return State(w.edge.store.end_of(half_offset))


async def asked(w, *more):
    """Until the ops are: handed over, then what else."""
    want = [(OpKind.ASKED, 0), *[(kind, 0) for kind in more]]
    await w.until(lambda: w.ops() == want)


# --- the good case ---
@pytest.mark.parametrize(
    ("outcome", "kind"), [("commit", OpKind.COMMIT), ("rollback", OpKind.ROLLBACK), ("unknown", OpKind.UNKNOWN)]
)
def test_an_explicit_verdict_settles(play, outcome, kind):
    async def story(w, server):
        (id,) = await due(w)
        await asked(w, kind)
        (request,) = server.requests
        assert request.line == "POST /checks HTTP/1.1"
        check = request.check
        assert base64.b64decode(check.pop("body")) == b"hello"
        assert check == {
            "group": "g", "id": id, "topic": "orders", "key": "order-1", "tags": "", "properties": {"x": "y"}, "attempt": 1,
            "born_at_ms": check["born_at_ms"], "stored_at_ms": check["stored_at_ms"],
        }  # fmt: skip
        headers = request.headers
        assert headers["escrow-check-id"] == f"{id}.1"
        assert headers["content-type"] == "application/json"
        signed = headers["escrow-timestamp"].encode() + b"." + request.body
        assert headers["escrow-signature"] == "v1=" + hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
        figures = (await w.edge.status())["transports"]["couriers"][0]
        assert (figures["state"], figures["handed_over"], figures["failures"]) == ("closed", 1, 0)
        assert figures["by"] == f"webhook http://127.0.0.1:{server.port}", "no path, no query"

    play(story, says(kind.name.lower()))


def test_the_answer_stands_in_the_history_as_a_checks(play):
    async def story(w, server):
        (id,) = await due(w)
        await asked(w, OpKind.COMMIT)
        history = (await w.edge.transaction(id)).history
        assert [(event.event, event.by) for event in history][1:] == [("asked", "check"), ("committed", "check")]

    play(story, says("commit"))


def test_many_at_a_time_but_not_more_than_allowed(play):
    async def slowly(request, writer):
        await asyncio.sleep(0.02)
        await says("commit")(request, writer)

    async def story(w, server):
        await due(w, 40)
        await w.until(lambda: all(state(w, number) == State.COMMITTED for number in range(40)), timeout_s=20)
        assert 2 <= server.most_at_once <= 3
        assert len(server.requests) == 40

    play(story, slowly, concurrency=3)


def test_a_poller_of_the_group_and_the_webhook_share_the_work(play):
    async def story(w, server):
        ids = await due(w, 30)
        polled = await w.poll(count=10)
        for id in polled:
            await w.end(id, "commit", from_check=True)
        await w.until(lambda: all(state(w, number) == State.COMMITTED for number in range(30)), timeout_s=20)
        posted = [request.check["id"] for request in server.requests]
        assert sorted(posted + polled) == sorted(ids), "each asked once"

    play(story, says("commit"))


# --- junk ---
@pytest.mark.parametrize(
    "content",
    [
        b"", b"ok", b"\xff", b"null", b"true", b'"commit"', b"[]", b"{}", b'{"outcome": "COMMIT"}', b'{"outcome": null}',
        b'{"outcome": "commit", "x": 1}', b'{"outcome": ["commit"]}', b'{"Outcome": "commit"}', b"[" * 60_000,
        b"<html>logged out</html>", b" " * (ANSWER_MAX_BYTES + 1) + b'{"outcome": "commit"}',
    ],
)  # fmt: skip
def test_a_200_with_junk_is_unknown_with_a_remark(play, content):
    async def story(w, server):
        (id,) = await due(w)
        await asked(w, OpKind.UNKNOWN)
        assert state(w) == State.NONE
        (event,) = [event for event in (await w.edge.transaction(id)).history if event.event == "unknown"]
        assert event.remark.startswith("webhook: answered")
        assert courier(w).unclear == 1
        assert w.row(0) == (State.PREPARED, 1), "handed over: it counts"

    play(story, answers(200, content))


def test_204_is_unknown():
    assert verdict_of(b"").outcome == "unknown"
    assert verdict_of(b' {"outcome":"commit"}\n').outcome == "commit"
    assert verdict_of(None).outcome == "unknown"


def test_a_body_without_end_is_cut_off(play):
    async def endless(request, writer):
        writer.write(b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            await writer.drain()

    async def story(w, server):
        await due(w)
        await asked(w, OpKind.UNKNOWN)

    play(story, endless)


# --- what reaches nobody ---
async def _reset(_, writer):
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _hang_up(_, writer):
    writer.close()


async def _half_an_answer(_, writer):
    writer.write(b'HTTP/1.1 200 X\r\ncontent-length: 100\r\n\r\n{"outcome": "commit"}')
    await writer.drain()
    writer.close()


async def _not_http(_, writer):
    writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
    await writer.drain()
    writer.close()


@pytest.mark.parametrize(
    "trouble",
    [_reset, _hang_up, _half_an_answer, _not_http, *[answers(code, {"outcome": "rollback"}) for code in (408, 425, 429, 500, 503)]],
)
def test_what_may_pass_is_tried_again(play, trouble):
    async def story(w, server):
        await due(w)
        await asked(w, OpKind.COMMIT)
        assert len(server.requests) == 3
        assert len({request.headers["escrow-check-id"] for request in server.requests}) == 1, "the same question"
        assert courier(w).figures()["handed_over"] == 1

    play(story, trouble, trouble, says("commit"))


@pytest.mark.parametrize(
    "refusal", [answers(code, {"outcome": "commit"}, location="/elsewhere") for code in (301, 302, 307, 308, 400, 401, 404, 410)]
)
def test_what_will_not_pass_is_given_back_at_once_and_not_counted(play, refusal):
    async def story(w, server):
        (id,) = await due(w)
        await w.until(lambda: courier(w).failures == 1)
        await asyncio.sleep(0.15)
        assert len(server.requests) == 1, "neither followed nor repeated in this round"
        assert server.requests[0].line == "POST /checks HTTP/1.1"
        assert w.ops() == []
        assert w.row(0) == (State.PREPARED, 0)
        assert await w.poll(member="somebody else") == [id], "another member gets it, in this round still"

    play(story, refusal)


def test_slow_and_stalled(play):
    async def stalled(request, writer):
        writer.write(b"HTTP/1.1 200 X\r\ncontent-length: 21\r\n\r\n{")
        await writer.drain()
        await asyncio.sleep(60)

    async def drop_by_drop(request, writer):
        writer.write(b"HTTP/1.1 200 X\r\ncontent-length: 2100\r\n\r\n")
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.01)

    async def story(w, server):
        await due(w)
        await w.until(lambda: state(w) == State.COMMITTED, timeout_s=20)
        assert len(server.requests) == 3

    play(story, stalled, drop_by_drop, says("commit"), timeout="1s")


def test_it_is_asked_again_in_the_next_round(play):
    async def story(w, server):
        await due(w)
        await w.until(lambda: courier(w).failures == 1)
        w.now_ms += 30_000
        await ask(w)
        await asked(w, OpKind.COMMIT)

    play(story, answers(404), says("commit"))


def test_no_more_attempts_at_what_has_ended(play, monkeypatch):
    monkeypatch.setattr(webhook_courier, "BACKOFF_S", (0.2, 0.2))

    async def story(w, server):
        (id,) = await due(w)
        await w.until(lambda: len(server.requests) == 1)
        await w.end(id, "commit")
        await w.until(lambda: courier(w).failures == 1)
        assert len(server.requests) == 1

    play(story, answers(503))


def test_nobody_listens(play):
    async def story(w, server):
        configure(w, "http://127.0.0.1:9/", group="dead")
        await w.until(lambda: len(w.edge.parts[-1]._couriers) == 2, timeout_s=10)
        await w.half("dead")
        w.now_ms += 9_000
        await asyncio.sleep(0.2)
        w.round(after_ms=1_000)
        dead = next(each for each in w.edge.parts[-1]._couriers.values() if each.group == "dead")
        await w.until(lambda: dead.failures >= 1)
        assert "no answer: ConnectError" in dead.last_failure

    play(story, says("commit"))


# --- the breaker ---
def test_after_failures_in_a_row_the_group_is_not_live_until_a_try_succeeds(play):
    async def story(w, server):
        await due(w, 6)
        await w.until(lambda: courier(w).breaker.state == "open")
        seen = len(server.requests)
        assert courier(w).breaker.failures == breaker.FAILURES_MAX
        presence = Presence(w.settings.store_dir / "presence")
        w.now_ms += 60_000
        await asyncio.sleep(0.1)
        assert presence.live(w.now_ms, 1, 1).tolist() == [False], "open: nobody is live"
        assert len(server.requests) == seen
        await live(w)
        assert courier(w).breaker.state == "half-open"
        w.round(after_ms=1_000)
        await w.until(lambda: courier(w).breaker.state == "closed")
        await w.until(lambda: all(state(w, number) == State.COMMITTED for number in range(6)))

    play(story, *[answers(404)] * 5, says("commit"), concurrency=1)


def test_a_try_that_fails_opens_it_for_longer():
    now_s = [0.0]
    found = breaker.Breaker(lambda: now_s[0])
    for _ in range(breaker.FAILURES_MAX - 1):
        found.failed()
    assert found.state == "closed"
    found.failed()
    assert (found.state, found.wait_s) == ("open", breaker.PAUSE_S)
    found.failed()  # one that was still under way
    assert found.wait_s == breaker.PAUSE_S
    pauses = []
    for _ in range(12):
        now_s[0] += found.wait_s
        assert found.state == "half-open"
        found.failed()
        pauses.append(found.wait_s)
    assert pauses[:2] == pytest.approx([breaker.PAUSE_S * 2, breaker.PAUSE_S * 4])
    assert pauses[-1] == pytest.approx(breaker.PAUSE_MAX_S)
    now_s[0] += found.wait_s
    found.succeeded()
    assert (found.state, found.wait_s) == ("closed", 0.0)


def test_one_poisonous_half_does_not_hold_up_the_others(play):
    async def picky(request, writer):
        await (answers(500) if request.check["key"] == "poison" else says("commit"))(request, writer)

    async def story(w, server):
        await w.half(properties={"KEYS": "poison"})
        for _ in range(20):
            await w.half()
        await ask(w)
        await w.until(lambda: all(state(w, number) == State.COMMITTED for number in range(1, 21)), timeout_s=20)
        await asyncio.sleep(0.2)
        assert sum(request.check["key"] == "poison" for request in server.requests) == 3, "three attempts a round"
        assert courier(w).breaker.state == "closed"

    play(story, picky)


# --- configuration ---
def test_the_file_is_followed(play):
    async def story(w, server):
        async with receiver(says("rollback")) as other:
            await w.until(lambda: w.edge.parts[-1]._couriers)
            assert courier(w).client.webhook.url == server.url
            (w.root / "groups.toml").unlink()
            configure(w, other.url)
            await w.until(lambda: len(w.edge.parts[-1]._couriers) == 1 and courier(w).client.webhook.url == other.url, timeout_s=10)
            await due(w)
            await asked(w, OpKind.ROLLBACK)
            (w.root / "groups.toml").write_text("")
            await w.until(lambda: not w.edge.parts[-1]._couriers, timeout_s=10)

    play(story, says("commit"))


def test_the_secret_from_a_file_which_may_change(tmp_path, play):
    async def story(w, server):
        await due(w)
        await asked(w, OpKind.UNKNOWN)
        secret.write_text("another secret of this group")
        w.now_ms += 30_000
        await ask(w)
        await w.until(lambda: len(server.requests) == 2)
        for request, text in zip(server.requests, (SECRET, secret.read_text()), strict=True):
            assert request.headers["escrow-signature"] == sign(text, int(request.headers["escrow-timestamp"]), request.body)

    (tmp_path / "data").mkdir()
    secret = tmp_path / "data" / "g.secret"
    secret.write_text(SECRET + "\n")
    play(story, says("unknown"), secret_env="", secret_file="g.secret")


@pytest.mark.parametrize(("content", "says_so"), [(None, "FileNotFoundError"), ("short", "has fewer than 16 characters")])
def test_a_secret_that_cannot_be_used(tmp_path, play, content, says_so):
    async def story(w, server):
        await due(w)
        await w.until(lambda: courier(w).failures == 1)
        assert says_so in courier(w).last_failure
        assert "short" not in courier(w).last_failure
        assert server.requests == []

    (tmp_path / "data").mkdir()
    if content:
        (tmp_path / "data" / "g.secret").write_text(content)
    play(story, says("commit"), secret_env="", secret_file="g.secret")


def test_no_secret_and_no_body_in_the_log(play, caplog):
    async def story(w, server):
        await due(w)
        await w.until(lambda: courier(w).failures == 1)
        assert SECRET not in caplog.text + str(await w.edge.status())
        assert "hello" not in caplog.text
        assert caplog.text.count("check delivery to group g") == 1

    with caplog.at_level(logging.DEBUG, "escrow"):
        play(story, answers(404))


def test_a_standby_posts_nothing(play):
    async def story(w, server):
        await asyncio.sleep(0.1)
        assert w.edge.parts[-1]._couriers == {}

    play(story, says("commit"), flags=("role=standby",))


def test_stopping_does_not_wait_for_a_stalled_receiver(play):
    async def stalled(request, writer):
        await asyncio.sleep(60)

    async def story(w, server):
        await due(w)
        await w.until(lambda: len(server.requests) == 1)
        began_s = asyncio.get_running_loop().time()
        await w.restart_edge()
        assert asyncio.get_running_loop().time() - began_s < 5
        assert w.ops() == [], "not counted"

    play(story, stalled, timeout="60s")


# --- TLS ---
def test_https_with_an_authority_of_ones_own(tmp_path, play):
    authority = Authority(tmp_path)
    pair = authority.issue("hook")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pair.cert, pair.key)

    async def trusted(w, server):
        await due(w)
        await asked(w, OpKind.COMMIT)

    async def not_trusted(w, server):
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        await due(w)
        await w.until(lambda: courier(w).failures == 1)
        assert server.requests == []

    play(trusted, says("commit"), tls=tls, ca_file=authority.cert, place="a")
    play(not_trusted, says("commit"), tls=tls, place="b")


def test_an_authority_that_cannot_be_read_is_named(tmp_path):
    async def story(w, server):
        await w.until(lambda: "g" in w.edge.parts[-1].figures()["broken"])
        assert "ca_file" in w.edge.parts[-1].figures()["broken"]["g"]

    async def run():
        configure(tmp_path / "data", "https://127.0.0.1:1/", ca_file="none.pem")
        async with world(tmp_path / "data") as w:
            await story(w, None)

    asyncio.run(run())


# --- the docs ---
def test_the_verification_of_the_docs():
    text = (ROOT / "docs" / "producers-webhooks.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict = {}
    exec(code, names)  # what the page tells people to paste
    genuine, body = names["genuine"], b'{"id": "x"}'
    headers = {"Escrow-Timestamp": "1000", "Escrow-Signature": sign(SECRET, 1000, body)}
    assert genuine(SECRET, headers, body, now_s=1010)
    assert not genuine(SECRET, headers, body + b" ", now_s=1010)
    assert not genuine("another", headers, body, now_s=1010)
    assert not genuine(SECRET, headers, body, now_s=2000), "an old one, sent again"
    assert not genuine(SECRET, {**headers, "Escrow-Timestamp": "1001"}, body, now_s=1010)
    assert not genuine(SECRET, {}, body, now_s=1010)
    assert not genuine(SECRET, {**headers, "Escrow-Timestamp": "x"}, body, now_s=1010)
