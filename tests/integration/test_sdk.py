"""The SDK against a real edge, over HTTP, with real files: transactions, check-backs, consumers, kills. No Spark: the job is
tests.support.standin_job."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from escrow import (
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    End,
    EndConflict,
    InvalidRequest,
    KeyTaken,
    Message,
    NotFound,
    Outcome,
    Producer,
    Verdict,
)
from store.inspect.verify.store import verify
from tests.support.fake_escrow import eventually
from tests.support.live import live

COUNT = 40


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    data = tmp_path_factory.mktemp("sdk") / "data"
    with live(data) as running:
        yield running
    assert verify(data / "store").problems == []


@pytest.fixture
def topic(request):
    return request.node.name.replace("[", "-").replace("]", "")


@pytest.fixture
def producer(service):
    with Producer(service.url, "orders") as producer:
        yield producer


def taken(consumer):
    message = consumer.take(60)
    assert message is not None, "nothing came"
    return message


def consumed(service, topic, count, **options):
    """So many messages, acked."""
    with Consumer(service.url, topic, "readers", **options) as consumer:
        found = [taken(consumer) for _ in range(count)]
        assert all(message.ack().result(60) for message in found)
        return found


def test_exactly_the_commits_arrive(service, producer, topic):
    outcomes = {f"order {number}": [Outcome.COMMIT, Outcome.ROLLBACK, None][number % 3] for number in range(COUNT)}

    def transact(body):
        return producer.send_in_transaction(Message(topic, body, key=body, properties={"p": "v"}), lambda *_: outcomes[body])

    with ThreadPoolExecutor(8) as pool:
        results = dict(zip(outcomes, pool.map(transact, outcomes), strict=True))
    expected = sorted(body for body, outcome in outcomes.items() if outcome is Outcome.COMMIT)
    found = consumed(service, topic, len(expected))
    assert sorted(message.text for message in found) == expected
    for message in found:
        assert message.transaction_id == results[message.text].id
        assert (message.key, message.properties) == (message.text, {"p": "v"})
    producer.end_all([End(result.id, Outcome.ROLLBACK) for result in results.values() if result.outcome is Outcome.UNKNOWN])


def test_the_first_outcome_stands(producer, topic):
    half = producer.send_half(Message(topic, b"\x00\xff"))
    assert producer.end(half.id, Outcome.ROLLBACK).verdict is Verdict.ACCEPTED
    assert producer.end(half.id, Outcome.ROLLBACK).verdict is Verdict.ALREADY
    answer = producer.end(half.id, Outcome.COMMIT)
    assert (answer.verdict, answer.stands) == (Verdict.CONFLICT, False)
    assert "ROLLED_BACK" in answer.state.upper()
    assert producer.state(half.id)["id"] == half.id
    with pytest.raises(NotFound):
        producer.state("forged")
    assert producer.end("forged", Outcome.COMMIT).verdict is Verdict.REFUSED


def test_a_conflict_is_raised(producer, topic):
    def local(message, _):
        producer.end(message.transaction_id, Outcome.ROLLBACK)
        return Outcome.COMMIT

    with pytest.raises(EndConflict):
        producer.send_in_transaction(Message(topic, "x"), local)


def test_refusals_name_the_field(producer, topic):
    with pytest.raises(InvalidRequest) as caught:
        producer.send_half(Message("", "x"))
    assert caught.value.field == "messages[0].topic"
    producer.send_half(Message(topic, "x", dedup_key=topic))
    with pytest.raises(KeyTaken):
        producer.send_half(Message(topic, "y", dedup_key=topic))
    for half in [producer.send_half(Message(topic, "x", dedup_key=topic))]:
        producer.end(half.id, Outcome.ROLLBACK)


def test_strangers_do_not_hear_of_a_culprit(service, topic):
    """A linger makes them share a request; the culprit is alone in hearing of it."""
    with Producer(service.url, "orders", linger_s=0.05) as producer, ThreadPoolExecutor(16) as pool:
        messages = [Message(topic if number % 5 else "", f"{number}") for number in range(40)]
        futures = [pool.submit(producer.send, message) for message in messages]
        errors = [future.exception() is not None for future in futures]
    assert errors == [not message.topic for message in messages]
    assert len(consumed(service, topic, 32)) == 32


@pytest.mark.parametrize("outcome", [Outcome.COMMIT, Outcome.ROLLBACK])
def test_a_check_back_is_answered(service, topic, outcome):
    asked = []

    def on_check(check):
        asked.append(check)
        return outcome

    group = f"group-{topic}"
    with Producer(service.url, group, on_check=on_check) as producer:
        half = producer.send_half(Message(topic, "in doubt", key="k"))
        eventually(lambda: producer.state(half.id)["outcome"] == outcome.value)
        events = [(event["event"], event.get("by", "")) for event in producer.state(half.id)["history"]]
    assert (asked[0].id, asked[0].text, asked[0].attempt, asked[0].key) == (half.id, "in doubt", 1, "k")
    assert events[0][0] == "prepared"
    assert events[-1][0] == ("committed" if outcome is Outcome.COMMIT else "rolled_back")


def test_a_listener_that_fails_is_asked_again_and_its_history_tells(service, topic):
    answers = iter([ZeroDivisionError("first time"), Outcome.COMMIT])

    def on_check(check):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with Producer(service.url, f"group-{topic}", on_check=on_check) as producer:
        half = producer.send_half(Message(topic, "in doubt"))
        eventually(lambda: producer.state(half.id)["outcome"] == "commit")
        history = producer.state(half.id)["history"]
    assert "ZeroDivisionError: first time" in [event.get("remark", "") for event in history]


def test_order_redelivery_and_seek(service, producer, topic):
    producer.send([Message(topic, f"{number}", key="same") for number in range(5)])
    with Consumer(service.url, topic, "readers") as consumer:
        seen = []
        for message in consumer:
            if message.text == "2" and message.attempt == 1:
                message.nack()
                continue
            seen.append((message.text, message.attempt))
            if len(seen) == 5:
                message.ack().result(60)
                break
        assert {text for text, _ in seen} == set("01234")
        assert dict(seen)["2"] == 2
        consumer.seek("earliest")
        assert taken(consumer).text == "0"


def test_a_slow_handler_keeps_its_message(service, producer, topic, monkeypatch):
    monkeypatch.setattr("escrow._inbox.EXTEND_AFTER", 0.01)
    producer.send(Message(topic, "slow"))
    with Consumer(service.url, topic, "readers", visibility_s=5) as consumer:
        message = taken(consumer)
        first = message.receipt
        eventually(lambda: message.receipt != first)
        assert message.ack().result(60) is True


def test_asyncio(service, topic):
    async def main():
        async def commit(message, _):
            await asyncio.sleep(0)
            return Outcome.COMMIT

        async with AsyncProducer(service.url, "orders") as producer:
            messages = [Message(topic, f"order {number}") for number in range(COUNT)]
            results = await asyncio.gather(*[producer.send_in_transaction(message, commit) for message in messages])
        assert all(result.committed for result in results)
        found = set()
        async with AsyncConsumer(service.url, topic, "readers") as consumer:
            async for message in consumer:
                found.add(message.text)
                if len(found) == COUNT:
                    assert await message.ack()
                    break
        return found

    assert asyncio.run(main()) == {f"order {number}" for number in range(COUNT)}


def until_more(placed, count):
    before = len(placed)
    eventually(lambda: len(placed) >= before + count)


def test_kills_of_the_edge_lose_and_double_nothing(tmp_path):
    """Callers go on through three kills: each transaction commits once, and the consumer sees each message."""
    with live(tmp_path / "data") as running:
        placed: list[str] = []
        stop = threading.Event()

        def work(worker):
            number = 0
            while not stop.is_set():
                body = f"{worker}-{number}"
                result = sending.send_in_transaction(Message("paid", body), lambda *_: Outcome.COMMIT)
                assert result.committed, result
                placed.append(body)
                number += 1

        with Producer(running.url, "orders", retry_for_s=60, on_check=lambda check: Outcome.COMMIT) as sending:
            with ThreadPoolExecutor(8) as pool:
                working = [pool.submit(work, worker) for worker in range(8)]
                try:
                    for _ in range(3):
                        until_more(placed, 50)
                        running.kill_edge()
                        running.start_edge()
                    until_more(placed, 1)
                finally:
                    stop.set()
                for done in working:
                    done.result()
            with Consumer(running.url, "paid", "readers", prefetch=256) as consumer:
                found: list[str] = []
                while len(set(found)) < len(placed):
                    message = taken(consumer)
                    found.append(message.text)
                    message.ack()
                assert sorted(found) == sorted(placed), "once each"
    assert verify(tmp_path / "data" / "store").problems == []


# --- ends in the background -----------------------------------------------------------------------------------------------
def found_of(running, count):
    """The texts of so many different messages."""
    with Consumer(running.url, "paid", "readers", prefetch=256) as consumer:
        found: list[str] = []
        while len(set(found)) < count:
            message = taken(consumer)
            found.append(message.text)
            message.ack()
        return found


def test_kills_of_the_edge_lose_no_background_end(tmp_path):
    """Callers go on through three kills, and none of them waits for an end."""
    with live(tmp_path / "data") as running:
        placed: list[str] = []
        stop = threading.Event()

        def work(worker):
            number = 0
            while not stop.is_set():
                body = f"{worker}-{number}"
                assert sending.send_in_transaction(Message("paid", body), lambda *_: Outcome.COMMIT).in_background
                placed.append(body)
                number += 1

        options: Any = {"retry_for_s": 60, "on_check": lambda check: Outcome.COMMIT, "end": "background"}
        with Producer(running.url, "orders", **options) as sending, ThreadPoolExecutor(8) as pool:
            working = [pool.submit(work, worker) for worker in range(8)]
            try:
                for _ in range(3):
                    until_more(placed, 50)
                    running.kill_edge()
                    running.start_edge()
                until_more(placed, 1)
            finally:
                stop.set()
            for done in working:
                done.result()
            assert sending.close(60)
            assert sending.ends == (0, len(placed), 0, 0, 0), "each was answered"
        assert sorted(found_of(running, len(placed))) == sorted(placed), "once each"
    assert verify(tmp_path / "data" / "store").problems == []


def test_a_kill_of_the_edge_loses_no_background_end_of_tasks(tmp_path):
    async def commit(*_):
        return Outcome.COMMIT

    async def main(running):
        options: Any = {"retry_for_s": 60, "on_check": lambda check: Outcome.COMMIT, "end": "background"}
        async with AsyncProducer(running.url, "orders", **options) as sending:

            async def work(worker):
                for number in range(COUNT):
                    await sending.send_in_transaction(Message("paid", f"{worker}-{number}"), commit)

            working = [asyncio.create_task(work(worker)) for worker in range(8)]
            while sending.ends.ended < 50:
                await asyncio.sleep(0.005)
            await asyncio.to_thread(running.kill_edge)
            await asyncio.to_thread(running.start_edge)
            await asyncio.gather(*working)
            assert await sending.close(60)
            assert sending.ends == (0, 8 * COUNT, 0, 0, 0)

    with live(tmp_path / "data") as running:
        asyncio.run(main(running))
        placed = [f"{worker}-{number}" for worker in range(8) for number in range(COUNT)]
        assert sorted(found_of(running, len(placed))) == sorted(placed)


def test_check_back_settles_what_a_closed_producer_could_not_send(tmp_path):
    """The edge is dead when the local transaction has committed, and when the producer is closed."""
    with live(tmp_path / "data") as running:
        lost = Producer(running.url, "orders", on_check=lambda check: Outcome.UNKNOWN, end="background")
        with lost.transaction(Message("paid", "order 1")) as tx:
            running.kill_edge()
        assert tx.result is not None
        assert tx.result.in_background
        assert lost.close(0.5) is False
        eventually(lambda: lost.ends.undelivered == 1)
        running.start_edge()
        with Producer(running.url, "orders", on_check=lambda check: Outcome.COMMIT):
            assert found_of(running, 1) == ["order 1"]
