"""The asyncio twins: the same engine, awaited. The event loop never waits for a socket."""

from __future__ import annotations

import asyncio
import threading

import pytest

from escrow import AsyncConsumer, AsyncProducer, EndConflict, Message, NotAllowed, Outcome
from tests.support.fake_escrow import Problem

PAID = Message("paid", "order 1")


def run(main):
    return asyncio.run(main())


async def until(escrow, true):
    """Wait for the fake in a thread, so that the loop goes on."""
    return await asyncio.to_thread(escrow.until, true)


async def taken(consumer):
    message = await consumer.take(60)
    assert message is not None
    return message


def outcomes(escrow, id="id-0"):
    return [end["outcome"] for end in escrow.halves[id].ends]


@pytest.mark.parametrize("outcome", [Outcome.COMMIT, Outcome.ROLLBACK, None])
def test_a_local_transaction_is_awaited_and_its_outcome_said(escrow, outcome):
    async def local(message, arg):
        await asyncio.sleep(0)
        assert (message.transaction_id, arg) == ("id-0", 7)
        return outcome

    async def main():
        async with AsyncProducer(escrow.url, "orders") as producer:
            return await producer.send_in_transaction(PAID, local, 7)

    result = run(main)
    assert result.outcome is (outcome or Outcome.UNKNOWN)
    assert outcomes(escrow) == [(outcome or Outcome.UNKNOWN).value]


def test_a_failed_send_runs_nothing(escrow):
    async def main():
        escrow.fail("/v1/halves", Problem(403, "forbidden"))
        async with AsyncProducer(escrow.url, "orders") as producer:
            with pytest.raises(NotAllowed):
                await producer.send_in_transaction(PAID, lambda *_: pytest.fail("was run"))

    run(main)


def test_an_exception_and_a_cancellation_say_unknown(escrow):
    async def fails(message, arg):
        raise KeyError("stock")

    async def hangs(message, arg):
        await asyncio.Event().wait()

    async def main():
        async with AsyncProducer(escrow.url, "orders") as producer:
            with pytest.raises(KeyError):
                await producer.send_in_transaction(PAID, fails)
            task = asyncio.create_task(producer.send_in_transaction(PAID, hangs))
            await until(escrow, lambda: len(escrow.halves) == 2)
            await asyncio.sleep(0)
            while task.cancelling() == 0:
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    run(main)
    assert outcomes(escrow, "id-0") == ["unknown"]
    assert outcomes(escrow, "id-1") in (["unknown"], []), "cancelled before the answer to the half came: nobody knew its id"


def test_blocks(escrow):
    async def main():
        async with AsyncProducer(escrow.url, "orders") as producer:
            async with producer.transaction(PAID) as committed:
                assert committed.half_offset == 0
            assert committed.result is not None
            assert committed.result.committed
            with pytest.raises(KeyError):
                async with producer.transaction(PAID):
                    raise KeyError("stock")
            with pytest.raises(KeyError):
                async with producer.transaction(PAID, on_error=Outcome.ROLLBACK):
                    raise KeyError("stock")
            async with producer.transaction(PAID) as told:
                await told.rollback("no stock")
            with pytest.raises(EndConflict):
                async with producer.transaction(PAID) as lost:
                    await producer.end(lost.id, Outcome.ROLLBACK)

    run(main)
    said = [outcomes(escrow, f"id-{number}") for number in range(5)]
    assert said == [["commit"], ["unknown"], ["rollback"], ["rollback"], ["rollback", "commit"]]


def test_tasks_share_requests(escrow):
    async def main():
        async with AsyncProducer(escrow.url, "orders") as producer:
            with escrow.holding("/v1/halves") as hold:
                first = asyncio.create_task(producer.send_half(PAID))
                await asyncio.to_thread(hold.until, 1)
                rest = [asyncio.create_task(producer.send_half(Message("paid", f"{number}"))) for number in range(63)]
                await asyncio.sleep(0)  # all of them have handed in
                cancelled = rest.pop()
                cancelled.cancel()
                await asyncio.sleep(0)
                hold.release()
                halves = await asyncio.gather(first, *rest)
        assert cancelled.cancelled()
        return halves

    halves = run(main)
    assert len({half.id for half in halves}) == 63
    assert [len(call["messages"]) for call in escrow.calls_to("/v1/halves")] == [1, 62]


def test_ordinary_messages_and_states(escrow):
    async def main():
        async with AsyncProducer(escrow.url, "orders") as producer:
            assert (await producer.send(PAID)).queue_offset == 0
            assert len(await producer.send([PAID, PAID])) == 2
            half = await producer.send_half(PAID)
            return await producer.state(half.id)

    assert run(main)["state"] == "PREPARED"


@pytest.mark.parametrize("kind", ["coroutine", "plain"])
def test_checks_are_answered(escrow, kind):
    threads = []

    async def coroutine(check):
        threads.append(threading.current_thread())
        return Outcome.COMMIT

    def plain(check):
        threads.append(threading.current_thread())
        return Outcome.COMMIT

    async def main():
        async with AsyncProducer(escrow.url, "orders", on_check=coroutine if kind == "coroutine" else plain) as producer:
            half = await producer.send_half(PAID)
            escrow.ask(half.id)
            await until(escrow, lambda: escrow.halves[half.id].state == "COMMITTED")

    run(main)
    assert (threads == [threading.main_thread()]) == (kind == "coroutine")


def test_a_coroutine_that_fails_is_unknown(escrow):
    async def on_check(check):
        raise KeyError("x")

    async def main():
        async with AsyncProducer(escrow.url, "orders", on_check=on_check) as producer:
            half = await producer.send_half(PAID)
            escrow.ask(half.id)
            await until(escrow, lambda: escrow.halves[half.id].ends)

    run(main)
    assert outcomes(escrow) == ["unknown"]


def test_consuming(escrow):
    async def main():
        async with AsyncProducer(escrow.url, "orders") as producer:
            await producer.send([Message("paid", text) for text in "abc"])
        seen = []
        async with AsyncConsumer(escrow.url, "paid", "shipping") as consumer:
            async for message in consumer:
                seen.append(message.text)
                if message.text == "c":
                    assert await message.ack() is True
                    break
        async with AsyncConsumer(escrow.url, "paid", "shipping", idle_s=0.01) as consumer:
            assert [message async for message in consumer] == []
        return seen

    assert run(main) == ["a", "b", "c"]
    assert [lease.done for lease in escrow.leases["paid", "shipping"].values()] == [True] * 3


def test_a_cancelled_take_loses_no_message(escrow):
    async def main():
        async with AsyncConsumer(escrow.url, "paid", "shipping") as consumer:
            waiting = asyncio.create_task(consumer.take())
            await until(escrow, lambda: escrow.polling)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            async with AsyncProducer(escrow.url, "orders") as producer:
                await producer.send(PAID)
            message = await taken(consumer)
            assert (message.text, message.attempt) == ("order 1", 1)
            # The message has come, and the task is cancelled before it hears of it.
            assert await message.nack() is True
            late = asyncio.create_task(consumer.take())
            await asyncio.sleep(0)
            await until(escrow, lambda: [lease.attempt for lease in escrow.leases["paid", "shipping"].values()] == [2])
            late.cancel()
            try:
                again = await late or await taken(consumer)
            except asyncio.CancelledError:
                again = await taken(consumer)
            assert again.attempt == 2

    run(main)


def test_seek_dead_letters_and_the_end_of_a_loop(escrow):
    async def main():
        async with AsyncProducer(escrow.url, "orders") as producer:
            await producer.send(PAID)
        async with AsyncConsumer(escrow.url, "paid", "shipping") as consumer:
            assert await (await taken(consumer)).ack()
            await consumer.seek("earliest")
            assert await (await taken(consumer)).ack()
            assert [letter async for letter in consumer.dead_letters()] == []
            assert await consumer.replay_dead_letters(["x"]) == 0

            async def loop():
                return [message async for message in consumer]

            looping = asyncio.create_task(loop())
            await until(escrow, lambda: escrow.polling)
            assert await consumer.close() is True
            return await looping

    assert run(main) == []
