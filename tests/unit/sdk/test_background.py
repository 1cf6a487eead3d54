"""`end="background"`: the call returns when the local transaction is decided, and the end is delivered all the same."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from escrow import AsyncProducer, EndConflict, EndCounts, EndRefused, Message, Outcome, Producer
from tests.support.fake_escrow import FakeEscrow, Problem, eventually

PAID = Message("paid", "order 1")


def unknown(check):
    return Outcome.UNKNOWN


def sending(escrow, **options):
    return Producer(escrow.url, "orders", **{"end": "background", "on_check": unknown, **options})


def sending_tasks(escrow, **options):
    return AsyncProducer(escrow.url, "orders", **{"end": "background", "on_check": unknown, **options})


def commit(*_):
    return Outcome.COMMIT


async def commit_task(*_):
    return Outcome.COMMIT


async def until(true):
    await asyncio.to_thread(eventually, true)


def test_a_call_returns_before_its_end_is_answered_and_close_waits_for_it(escrow):
    with escrow.holding("/v1/ends") as hold, sending(escrow) as producer, ThreadPoolExecutor(1) as pool:
        result = producer.send_in_transaction(PAID, commit)
        assert (result.in_background, result.answer, result.error) == (True, None, None)
        assert not result.committed, "not known yet"
        with producer.transaction(PAID) as tx:
            pass
        assert tx.result.in_background
        hold.until(1)
        assert producer.ends.waiting == 2
        closing = pool.submit(producer.close, 60)
        hold.release()
        assert closing.result(60) is True
        assert producer.ends == EndCounts(waiting=0, ended=2, conflicts=0, refused=0, undelivered=0)
    assert [half.state for half in escrow.halves.values()] == ["COMMITTED"] * 2


def test_a_task_returns_before_its_end_is_answered_and_close_waits_for_it(escrow):
    async def main():
        with escrow.holding("/v1/ends") as hold:
            async with sending_tasks(escrow) as producer:
                result = await producer.send_in_transaction(PAID, commit_task)
                assert result.in_background
                async with producer.transaction(PAID) as tx:
                    await tx.rollback("sold out")
                assert producer.ends.waiting == 2
                closing = asyncio.create_task(producer.close(60))
                await asyncio.to_thread(hold.until, 1)
                hold.release()
                assert await closing is True
                assert producer.ends.ended == 2

    asyncio.run(main())
    assert [half.state for half in escrow.halves.values()] == ["COMMITTED", "ROLLED_BACK"]


def test_ends_share_requests(escrow):
    with escrow.holding("/v1/ends") as hold, sending(escrow) as producer:
        producer.send_in_transaction(PAID, commit)
        hold.until(1)
        for _ in range(20):
            producer.send_in_transaction(PAID, commit)
        hold.release()
        eventually(lambda: producer.ends.ended == 21)
    assert [len(call["ends"]) for call in escrow.calls_to("/v1/ends")] == [1, 20]


def test_an_end_is_retried_until_it_is_answered(escrow):
    """Whatever `retry_for_s` is: that is the patience of callers that wait."""
    escrow.fail("/v1/ends", reset_before=True, times=2)
    escrow.fail("/v1/ends", Problem(503, "starting"), times=2)
    with sending(escrow, retry_for_s=0) as producer:
        producer.send_in_transaction(PAID, commit)
        eventually(lambda: producer.ends.ended == 1)


def test_a_task_retries_an_end_until_it_is_answered(escrow):
    async def main():
        escrow.fail("/v1/ends", reset_before=True, times=2)
        async with sending_tasks(escrow, retry_for_s=0) as producer:
            await producer.send_in_transaction(PAID, commit_task)
            await until(lambda: producer.ends.ended == 1)

    asyncio.run(main())


def test_a_conflict_goes_to_the_callback_and_is_counted(escrow, caplog):
    told = []

    def note(error):
        told.append(error)
        raise KeyError("in the callback")

    with sending(escrow, on_not_ended=note) as producer:
        with producer.transaction(PAID) as lost:
            producer.end(lost.id, Outcome.ROLLBACK)
        with producer.transaction(PAID) as gone:
            escrow.halves.pop(gone.id)
        eventually(lambda: producer.ends.conflicts + producer.ends.refused == 2)
        assert producer.ends == EndCounts(waiting=0, ended=0, conflicts=1, refused=1, undelivered=0)
        producer.send_in_transaction(PAID, commit)
    assert [type(error) for error in told] == [EndConflict, EndRefused]
    assert [error.result.id for error in told] == [lost.id, gone.id]
    assert producer.ends.ended == 1, "it goes on"
    assert "in the callback" in caplog.text


def test_a_conflict_of_a_task_goes_to_the_callback_in_its_loop(escrow):
    told = []

    async def main():
        async with sending_tasks(escrow, on_not_ended=lambda error: told.append(threading.current_thread())) as producer:
            async with producer.transaction(PAID) as lost:
                await producer.end(lost.id, Outcome.ROLLBACK)
            await until(lambda: producer.ends.conflicts == 1)

    asyncio.run(main())
    assert told == [threading.main_thread()]


def test_a_server_that_is_gone_holds_close_up_no_longer_than_its_timeout(caplog):
    with FakeEscrow() as escrow:
        producer = sending(escrow)
        with producer.transaction(PAID):
            escrow.stop()
    assert producer.ends.waiting == 1
    assert producer.close(0.05) is False
    eventually(lambda: producer.ends == EndCounts(waiting=0, ended=0, conflicts=0, refused=0, undelivered=1))
    eventually(lambda: "escrow-background-ends" not in [thread.name for thread in threading.enumerate()])
    assert "check-back settles it" in caplog.text


def test_a_server_that_is_gone_holds_close_of_a_task_up_no_longer_than_its_timeout(caplog):
    async def main():
        with FakeEscrow() as escrow:
            producer = sending_tasks(escrow)
            await producer.start()
            async with producer.transaction(PAID):
                await asyncio.to_thread(escrow.stop)
        assert await producer.close(0.05) is False
        assert producer.ends.undelivered == 1

    asyncio.run(main())
    assert "check-back settles it" in caplog.text


def test_too_many_make_a_call_wait(escrow, monkeypatch):
    monkeypatch.setattr("escrow._sender.WAITING_MAX", 0)
    monkeypatch.setattr("escrow._loop_sender.WAITING_MAX", 0)
    with sending(escrow) as producer:
        assert producer.send_in_transaction(PAID, commit).committed

    async def main():
        async with sending_tasks(escrow) as producer:
            assert (await producer.send_in_transaction(PAID, commit_task)).committed
            assert producer.ends.ended == 1

    asyncio.run(main())


def test_a_call_that_waits_for_its_end_does_so_for_retry_for_s_and_raises_nothing(monkeypatch):
    """Escrow went away between half and end. The local transaction is a fact; its end stays in the background."""
    monkeypatch.setattr("escrow._sender.WAITING_MAX", 0)
    monkeypatch.setattr("escrow._loop_sender.WAITING_MAX", 0)

    def gone(fake):
        fake.__exit__(None, None, None)
        return Outcome.COMMIT

    first = FakeEscrow().__enter__()
    producer = sending(first, retry_for_s=0.2)
    result = producer.send_in_transaction(PAID, lambda _, fake: gone(fake), first)
    assert (result.answer, result.in_background, producer.ends.waiting) == (None, True, 1)
    producer.close(0.1)

    async def main():
        second = FakeEscrow().__enter__()

        async def gone_task(_, fake):
            return gone(fake)

        producer = sending_tasks(second, retry_for_s=0.2)
        result = await producer.send_in_transaction(PAID, gone_task, second)
        assert (result.answer, result.in_background, producer.ends.waiting) == (None, True, 1)
        await producer.close(0.1)

    asyncio.run(main())


@pytest.mark.parametrize("kind", [Producer, AsyncProducer])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"end": "background"}, "end: .* on_check"),
        ({"end": "later", "on_check": unknown}, "end: is 'later'"),
        ({"on_not_ended": print}, 'on_not_ended: .* end="background"'),
    ],
)
def test_arguments_are_checked(kind, options, said):
    with pytest.raises(ValueError, match=said):
        kind("http://127.0.0.1:1", "orders", **options)
