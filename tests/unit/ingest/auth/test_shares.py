"""Shares of tokens, with a clock that the test moves."""

from __future__ import annotations

import asyncio

import pytest

from ingest.auth.shares import AT_ONCE_MAX, REQUEST_BYTES, TOKENS_MAX, WAIT_MAX_S, Shares
from ingest.errors import Overloaded, QuotaExceeded
from runtime.settings import load


class Clock:
    now_s = 1000.0

    def __call__(self):
        return self.now_s


def made(*flags):
    clock = Clock()
    return Shares(load(None, list(flags), {}), clock), clock


class Loop:
    """Notes how long a request would have to wait."""

    def __init__(self, monkeypatch):
        self.waits_s = []
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self)

    def create_future(self):
        return object()

    def call_later(self, wait_s, *_):
        self.waits_s.append(wait_s)


def test_a_second_s_worth_comes_at_once_and_the_rest_waits(monkeypatch):
    loop = Loop(monkeypatch)
    shares, clock = made("tokenRequestsMax=10")
    for _ in range(10):
        assert shares.begin("a", 0, patient=False) is None
    for _ in range(5):
        assert shares.begin("a", 0, patient=False) is not None
    assert loop.waits_s == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert shares.begin("b", 0, patient=False) is None, "another token has a share of its own"
    clock.now_s += 1.5
    for _ in range(10):
        assert shares.begin("a", 0, patient=False) is None
    assert shares.delayed == 5


def test_bytes_are_counted_too(monkeypatch):
    loop = Loop(monkeypatch)
    shares, clock = made("tokenBytesMax=1000")
    assert shares.begin("a", 1000, patient=False) is None
    assert shares.begin("a", 500, patient=False) is not None
    assert loop.waits_s == pytest.approx([0.5])
    clock.now_s += 10
    shares.end("a", 1000, more_bytes=2500)  # it came without a length
    shares.begin("a", 0, patient=False)
    assert loop.waits_s[1:] == pytest.approx([1.5])


def test_who_would_wait_too_long_is_refused_unless_it_is_an_end(monkeypatch):
    loop = Loop(monkeypatch)
    shares, _ = made("tokenBytesMax=1000")
    shares.begin("a", 1000, patient=False)
    with pytest.raises(QuotaExceeded, match="tokenBytesMax") as caught:
        shares.begin("a", 6000, patient=False)
    assert caught.value.retry_after_s == pytest.approx(6.0)
    assert shares.begin("a", 0, patient=False) is None, "what was refused is not counted"
    assert shares.begin("a", 9000, patient=True) is not None
    assert loop.waits_s == [WAIT_MAX_S]
    assert shares.refused == 1


def test_so_many_at_a_time():
    shares, _ = made("tokenInFlightMax=2")
    for _ in range(2):
        shares.begin("a", 0, patient=True)
    with pytest.raises(Overloaded, match="token a: 2 requests under way"):
        shares.begin("a", 0, patient=True)
    shares.begin("b", 0, patient=False)
    shares.end("a", 0)
    shares.begin("a", 0, patient=False)


def test_without_limits_nothing_waits():
    shares, _ = made("tokenInFlightMax=0", "tokenHeldBytesMax=0")
    assert all(shares.begin("a", 1 << 30, patient=False) is None for _ in range(5000))


def test_tokens_are_forgotten_but_not_while_something_is_under_way():
    shares, _ = made("tokenInFlightMax=1")
    shares.begin("busy", 0, patient=False)
    for number in range(2 * TOKENS_MAX):
        shares.begin(f"t{number}", 0, patient=False)
        shares.end(f"t{number}", 0)
    with pytest.raises(Overloaded):
        shares.begin("busy", 0, patient=False)


def test_a_request_is_held_until_its_time():
    async def story():
        shares = Shares(load(None, ["tokenRequestsMax=100"], {}))
        began_s = asyncio.get_running_loop().time()
        for _ in range(110):
            async with shares.held("a", 0, patient=False):
                pass
        return asyncio.get_running_loop().time() - began_s

    assert asyncio.run(story()) >= 0.1


def test_ends_do_not_run_a_token_into_debt(monkeypatch):
    Loop(monkeypatch)
    shares, clock = made("tokenRequestsMax=10", "tokenInFlightMax=0", "tokenHeldBytesMax=0")
    for _ in range(10_000):
        shares.begin("a", 0, patient=True)
    clock.now_s += WAIT_MAX_S + 1
    assert shares.begin("a", 0, patient=False) is None


MIB = 1 << 20


def test_what_is_held_for_a_token_is_one_account():
    shares, _ = made("tokenHeldBytesMax=8MiB", "maxRequestSize=1MiB")
    shares.begin("a", 4 * MIB, patient=False)
    shares.hold("a", 2 * MIB)
    for refused in (lambda: shares.hold("a", MIB), lambda: shares.begin("a", MIB, patient=False)):
        with pytest.raises(Overloaded, match=f"token a: {6 * MIB + REQUEST_BYTES} bytes .* are held .tokenHeldBytesMax"):
            refused()
    shares.begin("b", 4 * MIB, patient=False)
    shares.begin("a", MIB, patient=True)
    shares.end("a", MIB)
    shares.let_go("a", 2 * MIB)
    shares.hold("a", MIB)
    assert shares.refused == 2


def test_who_holds_nothing_may_hold_one_thing():
    shares, _ = made("tokenHeldBytesMax=1MiB")
    shares.begin("a", 4 * MIB, patient=False)
    with pytest.raises(Overloaded):
        shares.hold("a", 1)


def test_messages_of_unknown_size_wait_for_room_in_turn():
    async def receive(shares, got, number, come):
        async with shares.room("a"):
            got.append(number)
            await come.wait()

    async def story():
        shares, come = Shares(load(None, ["tokenHeldBytesMax=4MiB", "maxRequestSize=1MiB"], {})), asyncio.Event()
        got: list[int] = []
        shares.hold("a", MIB)
        tasks = [asyncio.create_task(receive(shares, got, number, come)) for number in range(6)]
        await asyncio.sleep(0)
        assert got == [0, 1], "an eighth is for ends"
        tasks[2].cancel()
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        await asyncio.sleep(0)
        assert got == [0, 1, 3]
        async with shares.room("b"):
            pass
        shares.let_go("a", MIB)
        await asyncio.sleep(0)
        assert got == [0, 1, 3, 4]
        come.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert got == [0, 1, 3, 4, 5]
        shares.hold("a", 1 << 40)

    asyncio.run(story())


@pytest.mark.parametrize(("held", "streams"), [("0", AT_ONCE_MAX), ("1MiB", 1), ("128MiB", 2), ("16GiB", AT_ONCE_MAX)])
def test_streams_that_are_listened_to_hold_a_quarter(held, streams):
    assert made(f"tokenHeldBytesMax={held}")[0].listened_max == streams
