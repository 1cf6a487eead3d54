"""Calls over kept connections: errors with their code and field, what is repeated and what is not, Retry-After, TLS, the end."""

from __future__ import annotations

import os
import ssl
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from escrow import (
    Api,
    BadAnswer,
    Closed,
    End,
    InvalidRequest,
    KeyTaken,
    Message,
    NotAllowed,
    NotFound,
    Outcome,
    Overloaded,
    Refused,
    Unavailable,
    Unreachable,
    tls_context,
)
from escrow._calls import an_object
from escrow._transport import Aborted, Backoff, Server, Transport
from tests.support.fake_escrow import FakeEscrow, Problem
from tests.support.tools import require_tool

HALF = [Message("paid", b"\x00\xff")]
KEYS = ["key-1"]


@pytest.fixture
def api(escrow):
    with Api(escrow.url, retry_for_s=30) as api:
        yield api


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequest),
        (401, NotAllowed),
        (403, NotAllowed),
        (404, NotFound),
        (409, KeyTaken),
        (410, NotFound),
        (413, InvalidRequest),
        (429, Overloaded),
        (500, Unavailable),
        (503, Unavailable),
    ],
)
def test_a_problem_becomes_an_error_with_code_field_and_time(escrow, status, kind):
    escrow.fail("/v1/halves", Problem(status, "some_code", "do this", "messages[0].topic", retry_after_s=7))
    with Api(escrow.url, retry_for_s=0) as api, pytest.raises(kind) as caught:
        api.send_halves("orders", HALF)
    error = caught.value
    assert (error.status, error.code, error.detail, error.field) == (status, "some_code", "do this", "messages[0].topic")
    assert error.retry_after_s == 7
    assert str(error) == f"{status} some_code: messages[0].topic: do this"


def test_an_error_that_is_no_json_is_shown(escrow, api):
    escrow.fail("/v1/halves", Problem(400, "x"), raw=b"<html>a proxy says no</html>")
    with pytest.raises(InvalidRequest, match="http_400: '<html>a proxy says no</html>'"):
        api.send_halves("orders", HALF)


@pytest.mark.parametrize("raw", [b"<html>", b"[]", b'{"other": 1}', b'{"halves": [{}]}', b'{"halves": []}', b'{"halves": 5}'])
def test_an_answer_that_the_api_does_not_know(escrow, api, raw):
    escrow.fail("/v1/halves", raw=raw)
    with pytest.raises(BadAnswer):
        api.send_halves("orders", HALF)


def test_connections_are_kept(escrow, api):
    for _ in range(5):
        api.status()
    assert escrow.connections == 1


def test_a_connection_that_the_server_closed_is_not_used_again(escrow, api):
    """Even for a call that must not be repeated."""
    api.send_messages("orders", HALF)
    escrow.hang_up()
    api.send_messages("orders", HALF)
    assert len(escrow.bodies("paid")) == 2


@pytest.mark.parametrize("how", ["reset_before", "reset_after"])
def test_halves_with_a_key_are_stored_once_whatever_breaks(escrow, api, how):
    escrow.fail("/v1/halves", times=2, **{how: True})
    [half] = api.send_halves("orders", HALF, dedup_keys=KEYS)
    assert list(escrow.halves) == [half.id]
    assert len(escrow.calls_to("/v1/halves")) == 3


@pytest.mark.parametrize("how", ["reset_before", "reset_after"])
def test_ends_are_repeated(escrow, api, how):
    [half] = api.send_halves("orders", HALF)
    escrow.fail("/v1/ends", **{how: True})
    [answer] = api.end("orders", [End(half.id, Outcome.COMMIT)])
    assert answer.stands
    assert escrow.bodies("paid") == [b"\x00\xff"]


def test_ordinary_messages_are_not_repeated_when_the_answer_was_lost(escrow, api):
    escrow.fail("/v1/messages", reset_after=True)
    with pytest.raises(Unreachable) as caught:
        api.send_messages("orders", HALF)
    assert caught.value.maybe_done
    assert len(escrow.bodies("paid")) == 1


def test_ordinary_messages_are_repeated_when_they_were_refused_for_load(escrow, api):
    escrow.fail("/v1/messages", Problem(429, "overloaded", retry_after_s=0))
    escrow.fail("/v1/messages", Problem(503, "closing"))
    api.send_messages("orders", HALF)
    assert len(escrow.bodies("paid")) == 1


def test_a_refusal_that_will_not_pass_is_not_repeated(escrow, api):
    for status in (400, 403, 500):
        escrow.fail("/v1/halves", Problem(status, "no"))
        with pytest.raises(Refused):
            api.send_halves("orders", HALF, dedup_keys=KEYS)
    assert len(escrow.calls_to("/v1/halves")) == 3


def pauses_of(monkeypatch, transport):
    """Pauses between attempts, none of them waited for."""
    pauses: list[float] = []
    monkeypatch.setattr(transport, "_pause", pauses.append)
    return pauses


def test_retry_after_is_honoured(escrow, api, monkeypatch):
    pauses = pauses_of(monkeypatch, api.transport)
    escrow.fail("/v1/halves", Problem(503, "starting", retry_after_s=9))
    api.send_halves("orders", HALF, dedup_keys=KEYS)
    assert 9 <= pauses[0] < 10


def test_patience_ends(escrow, monkeypatch):
    """A Retry-After beyond it is not waited for."""
    escrow.fail("/v1/halves", Problem(503, "starting", retry_after_s=60))
    with Api(escrow.url, retry_for_s=30) as api, pytest.raises(Unavailable):
        api.send_halves("orders", HALF, dedup_keys=KEYS)
    assert len(escrow.calls_to("/v1/halves")) == 1


def test_nobody_there(monkeypatch):
    with FakeEscrow() as gone:
        pass
    api = Api(gone.url, retry_for_s=30)
    clock = [0.0]
    monkeypatch.setattr("escrow._transport.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(api.transport, "_pause", lambda pause_s: clock.__setitem__(0, clock[0] + pause_s))
    with pytest.raises(Unreachable) as caught:
        api.send_messages("orders", HALF)
    assert not caught.value.maybe_done
    assert 20 < clock[0] <= 30


def test_pauses_double_and_are_never_the_same():
    backoff = Backoff(first_s=1, most_s=8)
    pauses = [backoff.next_s() for _ in range(50)]
    assert all(pause <= bound for pause, bound in zip(pauses, [1, 2, 4, *[8] * 47], strict=True))
    assert len(set(pauses)) == 50
    backoff.reset()
    assert backoff.next_s() <= 1
    assert backoff.next_s(at_least_s=5) >= 5


def aborted_poll(escrow, api):
    """Begin a long poll, abort it: what it meets."""
    with ThreadPoolExecutor(1) as pool:
        polling = pool.submit(api.poll_checks, "orders", "me", wait_s=60)
        escrow.until(lambda: escrow.polling)
        api.transport.abort_polls()
        return type(polling.exception())


def test_a_long_poll_can_be_aborted_and_other_calls_go_on(escrow, api):
    assert aborted_poll(escrow, api) is Aborted
    assert api.status() == {"pending": 0}


def test_nothing_goes_after_close(escrow, api):
    api.close()
    with pytest.raises(Closed):
        api.status()


def test_not_usable_after_a_fork(escrow, api):
    api.status()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            api.status()
        except Closed as error:
            code = 0 if "after the fork" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("url", ["127.0.0.1:7480", "ftp://x", "http://", ""])
def test_a_url_that_is_none(url):
    with pytest.raises(ValueError, match=r"url: .* is not like http://"):
        Server(url)


def test_names_are_quoted_and_a_prefix_is_kept(escrow):
    with Api(escrow.url + "/proxy/", retry_for_s=0) as api, pytest.raises(NotFound):
        api.transaction("a/b?c")
    assert escrow.calls[-1][1] == "/proxy/v1/transactions/a%2Fb%3Fc"


def test_a_token_goes_along_and_may_be_renewed():
    tokens = iter(["old", "new"])
    with FakeEscrow(token="new") as escrow:
        with Api(escrow.url, retry_for_s=0) as api, pytest.raises(NotAllowed, match="401 unauthorized"):
            api.status()
        with Api(escrow.url, token=lambda: next(tokens), retry_for_s=0) as api:
            with pytest.raises(NotAllowed):
                api.status()
            assert api.status() == {"pending": 0}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """An authority, a server for 127.0.0.1, a client."""
    openssl, root = require_tool("openssl"), tmp_path_factory.mktemp("tls")

    def run(*words):
        subprocess.run([openssl, *words], cwd=root, check=True, capture_output=True)

    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    run(*new, "-x509", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2")
    (root / "ext").write_text("subjectAltName=IP:127.0.0.1")
    for name in ("server", "client"):
        run(*new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        sign = ("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "1")
        run(*sign, "-extfile", "ext", "-out", f"{name}.pem")
    return root


def test_tls_with_a_client_certificate(certificates):
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificates / "ca.pem"))
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    ca = str(certificates / "ca.pem")
    ours = tls_context(ca_file=ca, cert_file=str(certificates / "client.pem"), key_file=str(certificates / "client.key"))
    with FakeEscrow(tls=server) as escrow:
        with Api(escrow.url, tls=ours) as api:
            [half] = api.send_halves("orders", HALF)
            assert half.id in escrow.halves
            assert aborted_poll(escrow, api) is Aborted
        for wrong in (tls_context(ca_file=ca), None):
            with Api(escrow.url, tls=wrong, retry_for_s=0) as api, pytest.raises(Unreachable):
                api.status()


def test_tls_needs_https():
    with pytest.raises(ValueError, match="tls: is of no use"):
        Api("http://127.0.0.1:1", tls=tls_context())


def test_every_call_of_the_contract(escrow, api):
    [half, other] = api.send_halves(
        "orders", [Message("paid", "a", key="k", tags="t", properties={"p": "v"}), Message("paid", "b")]
    )
    assert (half.half_offset, other.half_offset) == (0, 1)
    assert [answer.verdict for answer in api.end("orders", [End(half.id, Outcome.COMMIT)] * 2)] == ["accepted", "already"]
    [conflict] = api.end("orders", [End(half.id, Outcome.ROLLBACK)])
    assert (conflict.verdict, conflict.state, conflict.stands) == ("conflict", "COMMITTED", False)
    escrow.ask(other.id)
    [check] = api.poll_checks("orders", "me")
    assert (check.id, check.topic, check.text, check.attempt, check.group) == (other.id, "paid", "b", 1, "orders")
    assert api.transaction(half.id)["state"] == "COMMITTED"
    [position] = api.send_messages("orders", [Message("paid", "c")])
    assert position.queue_offset == 0
    [first, second] = api.poll_messages("paid", "shipping", "me")
    assert (first.body, first.key, first.tags, first.properties) == (b"a", "k", "t", {"p": "v"})
    [receipt] = api.set_visibility("paid", "shipping", [first.receipt], 60)
    assert receipt is not None
    assert api.set_visibility("paid", "shipping", [first.receipt], 0.5) == [None]
    assert api.ack("paid", "shipping", [receipt, receipt, second.receipt]) == [True, False, True]
    assert len(api.seek("paid", "shipping", "earliest")) == 4
    assert len(api.poll_messages("paid", "shipping", "me", wait_s=0)) == 2
    assert api.dead_letters("shipping") == ([], None)
    assert api.replay_dead_letters("shipping", ["x"]) == 0
    assert api.status() == {"pending": 1}


def test_time_is_the_senders_unless_given(escrow, api):
    before_ms = time.time_ns() // 1_000_000
    api.send_halves("orders", [Message("paid", "a"), Message("paid", "b", born_at_ms=5, check_immunity_s=60, queue_id=2)])
    [now, given] = escrow.calls_to("/v1/halves")[0]["messages"]
    assert before_ms <= now["born_at_ms"]
    assert (given["born_at_ms"], given["check_immunity_s"], given["queue_id"]) == (5, 60, 2)
    assert "properties" not in now


def test_closing_in_the_middle_of_a_wait_does_not_wait_for_itself():
    """As a signal handler may, at the moment when the wait for the next attempt holds its lock."""
    transport = Transport(Server("http://127.0.0.1:1"))
    with transport._changed:
        transport.close()
    with pytest.raises(Closed):
        transport.perform(an_object("GET", "/"))
