"""`AsyncConsumer` in its event loop: without threads, and with everything that `Consumer` does."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from escrow import AsyncConsumer, AsyncProducer, Closed, Message, NotAllowed, Producer
from escrow._deliveries import Held
from tests.support.fake_escrow import Problem


@pytest.fixture
def eager(monkeypatch):
    """Extensions are asked for every few milliseconds."""
    monkeypatch.setattr("escrow._inbox.EXTEND_AFTER", 0.0002)


async def put(escrow, *texts, topic="paid", **fields):
    async with AsyncProducer(escrow.url, "orders") as producer:
        await producer.send([Message(topic, text, **fields) for text in texts])


async def until(escrow, true):
    """Wait for the fake in a thread, so that the loop goes on."""
    return await asyncio.to_thread(escrow.until, true)


def consuming(escrow, topics="paid", **options):
    return AsyncConsumer(escrow.url, topics, "shipping", **options)


async def taken(consumer):
    message = await consumer.take(60)
    assert message is not None
    return message


def leases(escrow):
    return [(lease.done, lease.attempt) for lease in escrow.leases["paid", "shipping"].values()]


def run(scene):
    """Nothing may be left under way."""

    async def main():
        await scene()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_no_thread_is_used(escrow):
    with Producer(escrow.url, "orders") as producer:
        producer.send(Message("paid", "a"))

    async def scene():
        async with consuming(escrow) as consumer:
            message = await taken(consumer)
            assert await message.ack() is True
            assert await message.ack() is True, "saying it again is harmless"
            await consumer.seek("earliest")
            assert [letter async for letter in consumer.dead_letters()] == []
            names = [thread.name for thread in threading.enumerate()]
            assert not [name for name in names if name.startswith(("escrow-", "asyncio_"))]

    run(scene)


def test_a_loop_acks_when_it_goes_on_and_gives_back_when_it_is_left(escrow):
    async def scene():
        await put(escrow, "a", "b", "c")

        async def fails():
            async with consuming(escrow) as consumer:
                async for message in consumer:
                    if message.text == "b":
                        raise KeyError("b")

        with pytest.raises(KeyError):
            await fails()
        assert leases(escrow) == [(True, 1), (False, 1), (False, 1)]
        async with consuming(escrow, idle_s=0.2) as consumer:
            assert [(message.text, message.attempt) async for message in consumer] == [("b", 2), ("c", 2)]

    run(scene)


def test_a_nacked_message_comes_again_after_its_delay(escrow):
    async def scene():
        await put(escrow, "a")
        async with consuming(escrow, extend_for_s=0) as consumer:
            message = await taken(consumer)
            assert await message.nack(delay_s=100) is True
            assert message.state is Held.GIVEN_BACK
            assert await consumer.take(0.01) is None
            escrow.advance(101)
            assert (await taken(consumer)).attempt == 2

    run(scene)


def test_a_slow_handler_keeps_its_message(escrow, eager):
    async def scene():
        await put(escrow, "a")
        async with consuming(escrow) as consumer:
            message = await taken(consumer)
            await until(escrow, lambda: len(escrow.calls_to("/v1/topics/paid/visibility")) >= 4)
            assert await message.ack() is True

    run(scene)
    assert leases(escrow) == [(True, 1)]


def test_a_lost_message_is_known_as_lost(escrow, eager, caplog):
    async def scene():
        await put(escrow, "a")
        async with consuming(escrow) as consumer:
            message = await taken(consumer)
            escrow.advance(31)
            again = await taken(consumer)
            while message.state is not Held.LOST:
                await asyncio.sleep(0.005)
            assert await message.ack() is False
            assert await again.ack() is True

    run(scene)
    assert "its time ran out" in caplog.text


def test_acks_share_requests(escrow):
    async def scene():
        await put(escrow, *"abcdefghij")
        async with consuming(escrow) as consumer:
            messages = [await taken(consumer) for _ in range(10)]
            assert await asyncio.gather(*[message.ack() for message in messages]) == [True] * 10

    run(scene)
    assert [len(call["receipts"]) for call in escrow.calls_to("/v1/topics/paid/acks")] == [10]


def test_a_handler_in_a_thread_acks_and_waits(escrow):
    async def scene():
        await put(escrow, "a", "b")
        async with consuming(escrow) as consumer:
            message = await taken(consumer)
            assert await asyncio.to_thread(lambda: message.ack().result(60)) is True
            other = await taken(consumer)
            with pytest.raises(RuntimeError, match="await"):
                other.ack().result()

    run(scene)
    assert leases(escrow) == [(True, 1), (True, 1)]


def test_an_ack_that_cannot_be_sent_is_logged_and_raised_to_a_task_that_waits(escrow, caplog):
    async def scene():
        await put(escrow, "a")
        async with consuming(escrow, retry_for_s=0) as consumer:
            message = await taken(consumer)
            escrow.fail("/v1/topics/paid/acks", Problem(403, "forbidden", "not your topic"))
            with pytest.raises(Exception, match="not your topic"):
                await message.ack()

    run(scene)
    assert "will be delivered again" in caplog.text


def test_several_topics_and_tags(escrow):
    async def scene():
        await put(escrow, "a", topic="paid", tags="x")
        await put(escrow, "b", "c", topic="shipped", tags="y")
        await put(escrow, "d", topic="shipped", tags="z")
        async with consuming(escrow, ["paid", "shipped"], tags="x||y") as consumer:
            found = [await taken(consumer) for _ in range(3)]
        assert sorted(message.text for message in found) == ["a", "b", "c"]

    run(scene)


def test_seek_drops_what_was_fetched_before(escrow):
    async def scene():
        await put(escrow, "a", "b", "c")
        async with consuming(escrow) as consumer:
            assert (await taken(consumer)).text == "a"
            await consumer.seek("latest")
            assert await consumer.take(0.05) is None
            await put(escrow, "d")
            assert (await taken(consumer)).text == "d"

    run(scene)


def test_no_more_than_prefetch_is_fetched(escrow):
    async def scene():
        await put(escrow, *"abcdefghijklmnopqrstuvwxyz")
        async with consuming(escrow, prefetch=4) as consumer:
            for _ in range(5):
                await taken(consumer)
        assert all(int(query["max"]) <= 4 for query in escrow.calls_to("/v1/topics/paid/messages"))

    run(scene)


def test_fetching_goes_on_after_the_server_came_back(escrow, caplog):
    async def scene():
        path = "/v1/topics/paid/messages"
        escrow.fail(path, Problem(429, "overloaded", retry_after_s=0), times=2)
        escrow.fail(path, reset_before=True, times=2)
        async with consuming(escrow) as consumer:
            assert await consumer.take(0.01) is None
            await until(escrow, lambda: escrow.polling)
            escrow.hang_up()
            await put(escrow, "a")
            assert (await taken(consumer)).text == "a"

    run(scene)
    assert "no messages of paid" in caplog.text


def test_many_tasks_share_a_consumer(escrow):
    texts = [f"order {number}" for number in range(200)]
    seen = []

    async def scene():
        await put(escrow, *texts)
        async with consuming(escrow, prefetch=8) as consumer:

            async def work():
                async for message in consumer:
                    seen.append(message.text)
                    if len(seen) == len(texts):
                        await message.ack()
                        await consumer.close()

            await asyncio.gather(*[work() for _ in range(8)])

    run(scene)
    assert sorted(seen) == sorted(texts)


@pytest.mark.filterwarnings("ignore:unclosed")  # the first loop ends before the consumer is closed
def test_closed_and_in_another_loop(escrow):
    consumer = AsyncConsumer(escrow.url, "paid", "shipping", idle_s=0.01)

    async def read():
        return [message.text async for message in consumer]

    assert [asyncio.run(read()), asyncio.run(read())] == [[], []], "one loop after another"
    gc.collect()

    async def main():
        await read()
        with pytest.raises(Closed, match="another event loop"):
            await asyncio.to_thread(asyncio.run, consumer.take())
        assert await consumer.close()
        with pytest.raises(Closed, match="closed"):
            await consumer.take()

    asyncio.run(main())
    gc.collect()


def test_a_consumer_that_may_not_read_says_so_and_stops_trying(escrow, caplog):
    path = "/v1/topics/paid/messages"
    escrow.fail(path, Problem(403, "forbidden", "this token may not read paid"))

    async def scene():
        async with consuming(escrow) as consumer:
            for _ in range(2):
                with pytest.raises(NotAllowed, match="may not read paid"):
                    await consumer.take(60)

    run(scene)
    assert len(escrow.calls_to(path)) == 1
    assert "stops polling" in caplog.text
