"""What a producer refuses before it sends anything, and what it logs about checks: threads and asyncio alike."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

import pytest

from escrow import AsyncProducer, Message, Outcome, Producer

PAID = Message("paid", "order 1")


async def later(*_):
    return Outcome.COMMIT


def commit(*_):
    return Outcome.COMMIT


WRONG_TRANSACTIONS = [
    (PAID, None, "local_transaction: is None"),
    (PAID, Outcome.COMMIT, "local_transaction: is <Outcome.COMMIT"),
    ("order 1", commit, "message: is 'order 1'"),
    (None, commit, "message: is None"),
]
WRONG_BLOCKS = [
    ("order 1", Outcome.UNKNOWN, "message: is 'order 1'"),
    (PAID, None, "on_error: is None"),
    (PAID, "unknown", "on_error: is 'unknown'"),
    (PAID, "commit", "on_error: is 'commit'"),
    (PAID, ValueError, "on_error: is <class 'ValueError'>"),
]


# --- refused before the half is sent ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("message", "local", "said"), [*WRONG_TRANSACTIONS, (PAID, later, "local_transaction: .*AsyncProducer")])
def test_a_wrong_transaction_is_refused_by_name_before_its_half_is_sent(escrow, message, local, said):
    with Producer(escrow.url, "orders") as producer, pytest.raises(TypeError, match=said):
        producer.send_in_transaction(message, local)
    assert escrow.halves == {}


@pytest.mark.parametrize(("message", "local", "said"), WRONG_TRANSACTIONS)
def test_asyncio_refuses_the_same(escrow, message, local, said):
    async def main():
        async with AsyncProducer(escrow.url, "orders") as producer:
            with pytest.raises(TypeError, match=said):
                await producer.send_in_transaction(message, local)

    asyncio.run(main())
    assert escrow.halves == {}


@pytest.mark.parametrize("kind", [Producer, AsyncProducer])
@pytest.mark.parametrize(("message", "on_error", "said"), WRONG_BLOCKS)
def test_a_wrong_block_is_refused_by_name_when_it_is_made(escrow, kind, message, on_error, said):
    """A text that looks like an outcome is none: "unknown" and None were taken for ROLLBACK once."""
    with pytest.raises(TypeError, match=said):
        kind(escrow.url, "orders").transaction(message, on_error=on_error)
    assert escrow.halves == {}


@pytest.mark.parametrize("send", ["send_half", "send_halves", "send"])
def test_a_message_that_is_none_is_named(escrow, send):
    given = "order 1" if send == "send_half" else ["order 1"]
    with Producer(escrow.url, "orders") as producer, pytest.raises(TypeError, match="message: is 'order 1'"):
        getattr(producer, send)(given)

    async def main():
        async with AsyncProducer(escrow.url, "orders") as producer:
            with pytest.raises(TypeError, match="message: is 'order 1'"):
                await getattr(producer, send)(given)

    asyncio.run(main())


@pytest.mark.parametrize("kind", [Producer, AsyncProducer])
@pytest.mark.parametrize("on_check", [Outcome.COMMIT, "commit", 7])
def test_a_listener_that_cannot_be_called_is_refused(escrow, kind, on_check):
    with pytest.raises(TypeError, match="on_check: is "):
        kind(escrow.url, "orders", on_check=on_check)


def test_a_coroutine_listens_to_an_async_producer_only(escrow):
    with pytest.raises(TypeError, match=r"on_check: .*AsyncProducer"):
        Producer(escrow.url, "orders", on_check=later)  # type: ignore[arg-type]


def test_whatever_can_be_called_is_taken(escrow):
    class Local:
        def __call__(self, message, arg):
            return Outcome.COMMIT

        def run(self, message, arg):
            return Outcome.COMMIT

    with Producer(escrow.url, "orders", on_check=commit) as producer:
        for local in (Local(), Local().run, partial(commit, 1), commit):
            assert producer.send_in_transaction(PAID, local).committed

    async def main():
        async with AsyncProducer(escrow.url, "orders", on_check=later) as producer:
            for local in (later, partial(later, 1), lambda *_: later()):
                assert (await producer.send_in_transaction(PAID, local)).committed

    asyncio.run(main())


# --- nobody can be asked ----------------------------------------------------------------------------------------------------
def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_producer_without_a_listener_says_once_that_it_cannot_be_asked(escrow, caplog):
    with Producer(escrow.url, "orders") as producer:
        producer.send(PAID)
        assert warnings(caplog) == []  # an ordinary message is never asked about
        producer.send_half(PAID)
        producer.send_in_transaction(PAID, commit)
    [said] = warnings(caplog)
    assert "group orders" in said
    assert "pass on_check" in said


def test_an_async_producer_says_so_too(escrow, caplog):
    async def main():
        async with AsyncProducer(escrow.url, "orders") as producer:
            await asyncio.gather(*[producer.send_half(PAID) for _ in range(3)])

    asyncio.run(main())
    [said] = warnings(caplog)
    assert "pass on_check" in said


def test_an_async_producer_that_was_not_started_says_how(escrow, caplog):
    async def main():
        producer = AsyncProducer(escrow.url, "orders", on_check=later)
        await producer.send_half(PAID)
        await producer.close()

    asyncio.run(main())
    [said] = warnings(caplog)
    assert "async with" in said


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_who_can_be_asked_is_not_warned(escrow, caplog, kind):
    async def main():
        async with AsyncProducer(escrow.url, "orders", on_check=later) as producer:
            await producer.send_half(PAID)

    if kind == "asyncio":
        asyncio.run(main())
    else:
        with Producer(escrow.url, "orders", on_check=commit) as producer:
            producer.send_half(PAID)
    assert warnings(caplog) == []


# --- what was answered to a check -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("outcome", "level"), [(Outcome.COMMIT, logging.DEBUG), (Outcome.ROLLBACK, logging.INFO), (Outcome.UNKNOWN, logging.INFO)]
)
@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_answers_to_checks_are_logged(escrow, caplog, outcome, level, kind):
    caplog.set_level(logging.DEBUG, "escrow.checks")

    async def answer(check):
        return outcome

    async def main():
        async with AsyncProducer(escrow.url, "orders", on_check=answer) as producer:
            half = await producer.send_half(PAID)
            escrow.ask(half.id)
            await asyncio.to_thread(escrow.until, lambda: escrow.halves[half.id].ends)
            return half.id

    if kind == "asyncio":
        id = asyncio.run(main())
    else:
        with Producer(escrow.url, "orders", on_check=lambda check: outcome) as producer:
            id = producer.send_half(PAID).id
            escrow.ask(id)
            escrow.until(lambda: escrow.halves[id].ends)
    [said] = [record for record in caplog.records if id in record.getMessage()]
    assert said.levelno == level
    assert outcome.name in said.getMessage()
