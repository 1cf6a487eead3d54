"""Tasks share requests by the rules that threads do (test_batching.py), and full requests overlap."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from escrow import AsyncProducer, Message, Outcome
from escrow._batch_policy import BATCH_BYTES_MAX, Limits
from escrow._loop_batching import LoopBatcher
from escrow.errors import Closed, InvalidRequest, Unreachable, refusal
from tests.support.fake_escrow import Problem


class Sender:
    """What a batcher sends to: notes the requests; refuses those with a negative number; waits when told."""

    def __init__(self):
        self.requests, self.error, self.entered = [], None, asyncio.Semaphore(0)
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, key, items, give_up_at):
        self.requests.append(list(items))
        self.entered.release()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        if any(item < 0 for item in items):
            raise refusal(400, "bad", "negative")
        return [item * 10 for item in items]

    @property
    def sizes(self):
        return [len(items) for items in self.requests]


def play(scene, under_way_max=1, **limits):
    """Run scene(batcher, sender) in a loop; nothing may be left under way."""

    async def main():
        sender = Sender()
        batcher = LoopBatcher("test", sender, Limits(**limits), under_way_max=under_way_max)
        async with asyncio.timeout(60):
            await scene(batcher, sender)
            sender.gate.set()
            await batcher.close(60)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


async def busy(batcher, sender):
    """A request is under way until the gate opens."""
    sender.gate.clear()
    future = batcher.submit([0])
    await sender.entered.acquire()
    return future


def test_one_caller_alone_is_sent_at_once_and_alone():
    async def scene(batcher, sender):
        for number in range(3):
            assert await batcher.submit([number, 7]) == [number * 10, 70]
            await asyncio.sleep(0)  # its request is over
        assert sender.sizes == [2, 2, 2]

    play(scene, linger_s=3600)


def test_those_who_come_during_a_request_share_the_next():
    async def scene(batcher, sender):
        first = await busy(batcher, sender)
        rest = [batcher.submit([number]) for number in range(1, 6)]
        sender.gate.set()
        assert await first == [0]
        assert await asyncio.gather(*rest) == [[10], [20], [30], [40], [50]]
        assert sender.requests == [[0], [1, 2, 3, 4, 5]]

    play(scene)


def test_those_who_come_in_one_turn_of_the_loop_share():
    async def scene(batcher, sender):
        await asyncio.gather(*[batcher.submit([number]) for number in range(20)])
        assert sender.sizes == [20]

    play(scene)


def test_who_lingers_goes_when_the_request_is_full_or_the_batcher_closes():
    async def scene(batcher, sender):
        first = await busy(batcher, sender)
        rest = [batcher.submit([number]) for number in range(4)]
        sender.gate.set()
        await first
        await asyncio.gather(*rest)
        later = batcher.submit([8])
        await asyncio.sleep(0)
        assert not later.done()
        assert await batcher.close(60)
        assert await later == [80]
        assert sender.sizes == [1, 4, 1]

    play(scene, linger_s=3600, batch_max=4)


def test_who_lingers_goes_in_time():
    async def scene(batcher, sender):
        first = await busy(batcher, sender)
        second = batcher.submit([1])
        sender.gate.set()
        assert await first + await second == [0, 10]

    play(scene, linger_s=0.01)


@pytest.mark.parametrize("batch_max", [1, 3, 10])
def test_a_request_has_at_most_so_many(batch_max):
    async def scene(batcher, sender):
        assert await asyncio.gather(*[batcher.submit([number]) for number in range(10)]) == [[n * 10] for n in range(10)]
        assert max(sender.sizes) == batch_max
        assert [item for request in sender.requests for item in request] == list(range(10))

    play(scene, batch_max=batch_max)


def test_a_request_has_at_most_so_many_bytes_but_a_large_parcel_goes_and_none_is_cut():
    async def scene(batcher, sender):
        await asyncio.gather(*[batcher.submit([number], size_bytes=BATCH_BYTES_MAX // 2) for number in range(4)])
        assert await batcher.submit([1, 2, 3, 4], size_bytes=BATCH_BYTES_MAX * 2) == [10, 20, 30, 40]
        assert sender.sizes == [2, 2, 4]

    play(scene, batch_max=3)


def test_only_the_culprit_hears_of_it():
    async def scene(batcher, sender):
        parcels = [batcher.submit([number, number]) for number in (1, 2, -3, 4, -5, 6)]
        answers = await asyncio.gather(*parcels, return_exceptions=True)
        assert [type(answer) for answer in answers] == [list, list, InvalidRequest, list, InvalidRequest, list]

    play(scene)


@pytest.mark.parametrize(
    "error", [refusal(401, "who", ""), refusal(429, "load", ""), Unreachable("gone", maybe_done=True), KeyError("x")]
)
def test_what_concerns_all_is_said_to_all_and_it_goes_on(error):
    async def scene(batcher, sender):
        sender.error = error
        found = await asyncio.gather(*[batcher.submit([number]) for number in range(4)], return_exceptions=True)
        assert found == [error] * 4
        assert sender.sizes == [4]
        sender.error = None
        assert await batcher.submit([1]) == [10]

    play(scene)


def test_cancelled_before_it_was_taken_it_is_not_sent_and_afterwards_nobody_minds():
    async def scene(batcher, sender):
        first = await busy(batcher, sender)
        waiting = [batcher.submit([number]) for number in (1, 2, 3)]
        waiting[1].cancel()
        first.cancel()
        sender.gate.set()
        assert (await waiting[0], await waiting[2]) == ([10], [30])
        assert sender.requests == [[0], [1, 3]]
        only = await busy(batcher, sender)
        alone = batcher.submit([5])
        alone.cancel()
        sender.gate.set()
        await only
        assert await batcher.close(60)
        assert sender.requests == [[0], [1, 3], [0]]

    play(scene)


def test_who_waited_too_long_hears_it_and_is_not_sent(monkeypatch):
    async def scene(batcher, sender):
        now = [1000.0]
        monkeypatch.setattr("escrow._loop.time.monotonic", lambda: now[0])
        first = await busy(batcher, sender)
        late = batcher.submit([1])
        now[0] += 35
        patient = batcher.submit([2])
        now[0] += 6
        sender.gate.set()
        await first
        with pytest.raises(Unreachable, match="within 40") as told:
            await late
        assert not told.value.maybe_done
        assert await patient == [20]
        assert sender.requests == [[0], [2]]

    play(scene)


def test_close_sends_what_waits_and_then_nothing_more():
    async def scene(batcher, sender):
        first = await busy(batcher, sender)
        rest = batcher.submit([1])
        closing = asyncio.create_task(batcher.close(60))
        await asyncio.sleep(0)
        with pytest.raises(Closed):
            batcher.submit([2])
        sender.gate.set()
        assert await closing
        assert (await first, await rest) == ([0], [10])

    play(scene)


def test_what_cannot_be_sent_in_time_hears_it():
    async def scene(batcher, sender):
        first = await busy(batcher, sender)
        rest = batcher.submit([1])
        assert not await batcher.close(0)
        for future in (first, rest):
            with pytest.raises(Closed):
                await future

    play(scene)


def test_when_the_loop_ends_nothing_more_begins():
    """asyncio.run cancels what is left: the request under way, and nobody sends what waited behind it."""
    sent: list[Any] = []
    told: list[Any] = []

    async def send(key, items, give_up_at):
        sent.append(items)
        await asyncio.Event().wait()

    async def main():
        batcher = LoopBatcher("test", send)

        async def ask(number):
            try:
                await batcher.submit([number])
            except (Closed, asyncio.CancelledError) as error:
                told.append(type(error))
                raise

        tasks = [asyncio.create_task(ask(0))]
        while not sent:
            await asyncio.sleep(0)
        tasks.append(asyncio.create_task(ask(1)))
        left = batcher.submit([2])
        left.add_done_callback(lambda future: told.append(type(future.exception())))
        await asyncio.sleep(0)

    asyncio.run(main())
    gc.collect()
    assert sent == [[0]]
    assert sorted(map(str, told)) == sorted(map(str, [asyncio.CancelledError, asyncio.CancelledError, Closed]))


def test_another_request_begins_beside_the_one_under_way_when_it_is_full_and_no_third():
    async def scene(batcher, sender):
        sender.gate.clear()
        crowd = [batcher.submit([number]) for number in range(20)]
        await sender.entered.acquire()
        await sender.entered.acquire()
        for _ in range(10):
            await asyncio.sleep(0)
        assert sender.sizes == [8, 8], "and the last four wait"
        sender.gate.set()
        assert await asyncio.gather(*crowd) == [[number * 10] for number in range(20)]
        assert sender.sizes == [8, 8, 4]

    play(scene, under_way_max=2, batch_max=8)


@pytest.mark.parametrize(("items", "size_bytes"), [(8, 0), (1, BATCH_BYTES_MAX)])
def test_a_request_is_full_by_its_items_or_its_bytes(items, size_bytes):
    async def scene(batcher, sender):
        sender.gate.clear()
        parcels = [batcher.submit([number] * items, size_bytes=size_bytes) for number in range(3)]
        await sender.entered.acquire()
        await sender.entered.acquire()
        sender.gate.set()
        assert await asyncio.gather(*parcels) == [[number * 10] * items for number in range(3)]
        assert sender.sizes == [items] * 3

    play(scene, under_way_max=2, batch_max=8)


def test_who_comes_while_a_request_is_under_way_waits_for_company():
    async def scene(batcher, sender):
        sender.gate.clear()
        first = batcher.submit([0])
        await sender.entered.acquire()
        others = [batcher.submit([number]) for number in range(1, 8)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert sender.sizes == [1]
        sender.gate.set()
        assert await asyncio.gather(first, *others) == [[number * 10] for number in range(8)]
        assert sender.sizes == [1, 7]

    play(scene, under_way_max=2, batch_max=8)


def test_with_requests_of_one_nobody_waits_for_another():
    async def scene(batcher, sender):
        sender.gate.clear()
        crowd = [batcher.submit([number]) for number in range(20)]
        for _ in crowd:
            await sender.entered.acquire()
        sender.gate.set()
        assert await asyncio.gather(*crowd) == [[number * 10] for number in range(20)]
        assert sender.sizes == [1] * 20

    play(scene, under_way_max=256, batch_max=1)


def test_nothing_is_nothing():
    async def scene(batcher, sender):
        assert await batcher.submit([]) == []
        assert sender.requests == []

    play(scene)


# --- the producer's own ---------------------------------------------------------------------------------------------------
def test_no_thread_sends(escrow):
    """(The check of conftest.py sees threads that are left; this one sees those that are there.)"""

    async def main():
        async with AsyncProducer(escrow.url, "orders") as producer:
            half = await producer.send_half(Message("paid", "x"))
            await producer.end(half.id, Outcome.COMMIT)
            await producer.send(Message("paid", "y"))
            assert producer._engine._halves._thread is producer._engine._ends._thread is producer._engine._messages._thread is None

    asyncio.run(main())


def test_what_may_pass_is_tried_again_and_a_half_is_stored_once(escrow):
    async def main():
        escrow.fail("/v1/halves", Problem(503, "starting"))
        async with AsyncProducer(escrow.url, "orders") as producer:
            assert (await producer.send_half(Message("paid", "x"))).half_offset == 0

    asyncio.run(main())
    first, second = escrow.calls_to("/v1/halves")
    assert first == second


def test_nobody_there():
    async def main():
        async with AsyncProducer("http://127.0.0.1:1", "orders", retry_for_s=0) as producer:
            with pytest.raises(Unreachable, match="no connection") as told:
                await producer.send(Message("paid", "x"))
            assert not told.value.maybe_done

    asyncio.run(main())


def test_an_answer_that_does_not_come_in_time(escrow):
    async def main():
        async with AsyncProducer(escrow.url, "orders", timeout_s=0.05, retry_for_s=0) as producer:
            with escrow.holding("/v1/messages") as hold:
                with pytest.raises(Unreachable, match="no answer") as told:
                    await producer.send(Message("paid", "x"))
                hold.release()
            assert told.value.maybe_done

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:unclosed")  # the first loop ends, and nobody has closed the producer in it
def test_closed_and_in_another_loop(escrow):
    producer = AsyncProducer(escrow.url, "orders")

    async def send():
        return (await producer.send(Message("paid", "x"))).queue_offset

    assert [asyncio.run(send()), asyncio.run(send())] == [0, 1], "one loop after another"
    gc.collect()

    async def main():
        await send()
        with pytest.raises(Closed, match="another event loop"):
            await asyncio.to_thread(asyncio.run, send())
        assert await producer.close()
        with pytest.raises(Closed, match="closed"):
            await send()

    asyncio.run(main())
    gc.collect()
