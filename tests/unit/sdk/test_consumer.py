"""The consumer: loops, acks, nacks, extension, seek, tags, several topics, broken connections, and a clean end."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from escrow import Closed, Consumer, Message, NotAllowed, Producer
from escrow._deliveries import Held
from tests.support.fake_escrow import FakeEscrow, Problem, eventually


def put(escrow, *texts, topic="paid", **fields):
    with Producer(escrow.url, "orders") as producer:
        producer.send([Message(topic, text, **fields) for text in texts])


def leases(escrow, topic="paid", group="shipping"):
    return [(lease.done, lease.attempt) for lease in escrow.leases[topic, group].values()]


def consuming(escrow, topics="paid", **options):
    return Consumer(escrow.url, topics, "shipping", **options)


@contextmanager
def closed_after(escrow, consumer, count):
    """Ends the consumer's loops once so many messages are acked."""

    def close():
        escrow.until(lambda: sum(lease.done for group in escrow.leases.values() for lease in group.values()) >= count)
        consumer.close()

    with consumer, ThreadPoolExecutor(1) as pool:
        closing = pool.submit(close)
        yield consumer
        closing.result()


@pytest.fixture
def eager(monkeypatch):
    """Extensions are asked for every few milliseconds."""
    monkeypatch.setattr("escrow._inbox.EXTEND_AFTER", 0.0002)


def test_a_loop_gets_every_message_and_acks_it_when_it_goes_on(escrow):
    put(escrow, "a", "b", "c", key="k", tags="t", properties={"p": "v"})
    seen = []
    with closed_after(escrow, consuming(escrow), 3) as consumer:
        for message in consumer:
            seen.append((message.text, message.attempt, message.queue_offset))
    assert seen == [("a", 1, 0), ("b", 1, 1), ("c", 1, 2)]
    assert (message.key, message.tags, message.properties, message.topic) == ("k", "t", {"p": "v"}, "paid")
    assert leases(escrow) == [(True, 1)] * 3


def test_a_loop_left_by_an_exception_gives_its_message_back(escrow):
    put(escrow, "a", "b", "c")

    def handle():
        with consuming(escrow) as consumer:
            for message in consumer:
                if message.text == "b":
                    raise KeyError("b")

    with pytest.raises(KeyError):
        handle()
    assert leases(escrow) == [(True, 1), (False, 1), (False, 1)]
    with closed_after(escrow, consuming(escrow), 3) as consumer:
        assert [(message.text, message.attempt) for message in consumer] == [("b", 2), ("c", 2)]


def test_a_loop_may_end_when_there_is_nothing(escrow):
    with consuming(escrow, idle_s=0.01) as consumer:
        assert list(consumer) == []


def test_without_auto_ack_only_ack_counts(escrow):
    put(escrow, "a", "b")
    with consuming(escrow, auto_ack=False) as consumer:
        for message in consumer:
            if message.text == "b":
                break
            assert message.ack().result(60) is True
            assert message.ack().result(60) is True, "saying it again is harmless"
    assert leases(escrow) == [(True, 1), (False, 1)]


def test_a_nacked_message_comes_again_after_its_delay(escrow):
    put(escrow, "a")
    with consuming(escrow, extend_for_s=0) as consumer:
        message = consumer.take(60)
        assert message.nack(delay_s=100).result(60) is True
        assert message.state is Held.GIVEN_BACK
        assert consumer.take(0.01) is None
        escrow.advance(101)
        again = consumer.take(60)
        assert (again.text, again.attempt) == ("a", 2)
        again.nack()
        third = consumer.take(60)
        assert third.attempt == 3
        with pytest.raises(ValueError, match="delay_s: is -1"):
            third.nack(-1)


def test_an_ack_that_comes_too_late_says_so(escrow):
    put(escrow, "a")
    with consuming(escrow, visibility_s=10, extend_for_s=0) as consumer:
        message = consumer.take(60)
        escrow.advance(11)
        assert message.ack().result(60) is False


def test_a_slow_handler_keeps_its_message(escrow, eager):
    """Extended several times while it is in hand, then acked with the newest receipt."""
    put(escrow, "a")
    with consuming(escrow) as consumer:
        message = consumer.take(60)
        escrow.until(lambda: len(escrow.calls_to("/v1/topics/paid/visibility")) >= 4)
        assert message.ack().result(60) is True
    assert leases(escrow) == [(True, 1)]


def test_what_lies_fetched_is_extended_too(escrow, eager):
    put(escrow, "a", "b", "c")
    with consuming(escrow) as consumer:
        consumer.take(60)
        escrow.until(lambda: any(len(call["receipts"]) == 3 for call in escrow.calls_to("/v1/topics/paid/visibility")))


def test_extension_ends(escrow, eager):
    put(escrow, "a")
    with consuming(escrow, extend_for_s=0.05) as consumer:
        message = consumer.take(60)
        eventually(lambda: time.monotonic() - message.got_at > 0.05 and not message.extending)
        escrow.advance(31)
        again = consumer.take(60)  # nobody asked for more time, so it was delivered again
        assert (again.text, again.attempt) == ("a", 2)


def test_a_lost_message_is_known_as_lost(escrow, eager, caplog):
    put(escrow, "a")
    with consuming(escrow) as consumer:
        message = consumer.take(60)
        escrow.advance(31)
        again = consumer.take(60)
        eventually(lambda: message.state is Held.LOST)
        assert message.ack().result(60) is False
        assert again.ack().result(60) is True
    assert "its time ran out" in caplog.text


def test_what_ran_out_while_it_lay_fetched_is_not_handed_out(escrow, monkeypatch):
    put(escrow, "a", "b")
    with consuming(escrow, visibility_s=30, extend_for_s=0) as consumer:
        first = consumer.take(60)
        monkeypatch.setattr("escrow._fetcher.time.monotonic", lambda now=first.visible_at: now)
        escrow.advance(31)
        again = {consumer.take(60).attempt, consumer.take(60).attempt}
        assert again == {2}


def test_acks_are_batched(escrow):
    put(escrow, *"abcdefghij")
    with consuming(escrow) as consumer:
        messages = [consumer.take(60) for _ in range(10)]
        with escrow.holding("/v1/topics/paid/acks") as hold:
            messages[0].ack()
            hold.until(1)
            pending = [message.ack() for message in messages[1:]]
            hold.release()
            assert [ack.result(60) for ack in pending] == [True] * 9
    assert [len(call["receipts"]) for call in escrow.calls_to("/v1/topics/paid/acks")] == [1, 9]


def test_several_topics_and_tags(escrow):
    put(escrow, "a", topic="paid", tags="x")
    put(escrow, "b", topic="shipped", tags="y")
    put(escrow, "c", topic="shipped", tags="z")
    with closed_after(escrow, consuming(escrow, ["paid", "shipped"], tags="x||y"), 2) as consumer:
        assert {(message.topic, message.text) for message in consumer} == {("paid", "a"), ("shipped", "b")}


def test_a_new_group_may_begin_at_the_end(escrow):
    put(escrow, "old")
    with consuming(escrow, start="latest") as consumer:
        assert consumer.take(0.01) is None
        escrow.until(lambda: escrow.polling)
        put(escrow, "new")
        assert consumer.take(60).text == "new"


def test_seek(escrow):
    put(escrow, "a", "b", "c")
    with consuming(escrow, prefetch=2) as consumer:
        for _ in range(3):
            assert consumer.take(60).ack().result(60)
        consumer.seek("earliest")
        again = [consumer.take(60) for _ in range(3)]
        assert [message.text for message in again] == ["a", "b", "c"]
        consumer.seek("latest", topic="paid")
        assert consumer.take(0.05) is None


def test_seek_drops_what_was_fetched_before(escrow):
    put(escrow, "a", "b", "c")
    with consuming(escrow) as consumer:
        assert consumer.take(60).text == "a"
        consumer.seek("latest")
        assert consumer.take(0.05) is None
        put(escrow, "d")
        assert consumer.take(60).text == "d"


def test_no_more_than_prefetch_is_fetched(escrow):
    put(escrow, *"abcdefghijklmnopqrstuvwxyz")
    with consuming(escrow, prefetch=4) as consumer:
        consumer.take(60)
        escrow.until(lambda: not escrow.polling)
        assert sum(attempt for _, attempt in leases(escrow)) <= 5
        assert all(int(query["max"]) <= 4 for query in escrow.calls_to("/v1/topics/paid/messages"))


def test_fetching_goes_on_after_the_server_came_back(escrow, caplog):
    path = "/v1/topics/paid/messages"
    escrow.fail(path, Problem(429, "overloaded", retry_after_s=0), times=2)
    escrow.fail(path, reset_before=True, times=2)
    with consuming(escrow) as consumer:
        assert consumer.take(0.01) is None
        escrow.until(lambda: escrow.polling)
        escrow.hang_up()
        put(escrow, "a")
        assert consumer.take(60).text == "a"
    assert "no messages of paid" in caplog.text


def test_an_ack_is_repeated_when_its_answer_was_lost(escrow):
    put(escrow, "a")
    with consuming(escrow) as consumer:
        message = consumer.take(60)
        escrow.fail("/v1/topics/paid/acks", reset_after=True)
        message.ack().result(60)
    assert leases(escrow) == [(True, 1)]


def test_an_ack_that_cannot_be_sent_is_logged_and_raised_to_who_waits(escrow, caplog):
    put(escrow, "a")
    with consuming(escrow, retry_for_s=0) as consumer:
        message = consumer.take(60)
        escrow.fail("/v1/topics/paid/acks", Problem(403, "forbidden", "not your topic"))
        with pytest.raises(Exception, match="not your topic"):
            message.ack().result(60)
    assert "will be delivered again" in caplog.text


def test_close_ends_a_loop_that_waits(escrow):
    consumer = consuming(escrow)
    with ThreadPoolExecutor(1) as pool:
        looping = pool.submit(list, consumer)
        escrow.until(lambda: escrow.polling)
        assert consumer.close() is True
        assert looping.result(60) == []
    with pytest.raises(Closed):
        consumer.take(0)


def test_close_gives_back_what_was_fetched(escrow):
    put(escrow, "a", "b", "c")
    with consuming(escrow) as consumer:
        assert consumer.take(60).ack().result(60)
    with closed_after(escrow, consuming(escrow), 3) as other:
        assert [(message.text, message.attempt) for message in other] == [("b", 2), ("c", 2)]


def test_close_in_the_loop_ends_it(escrow):
    put(escrow, "a", "b")
    with consuming(escrow) as consumer:
        for message in consumer:
            message.ack()
            consumer.close()
    assert leases(escrow) == [(True, 1), (False, 1)]


def test_many_threads_share_a_consumer(escrow):
    texts = [f"order {number}" for number in range(200)]
    put(escrow, *texts)
    seen, lock = [], threading.Lock()

    def work(consumer):
        for message in consumer:
            with lock:
                seen.append(message.text)

    with closed_after(escrow, consuming(escrow, prefetch=8), 200) as consumer, ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, consumer) for _ in range(8)]:
            done.result()
    assert sorted(seen) == sorted(texts)
    assert leases(escrow) == [(True, 1)] * 200


def test_dead_letters(escrow):
    content = {"topic": "paid", "attempts": 16, "dead_at_ms": 5, "body": "YQ=="}
    escrow.dead["shipping"] = {f"{number:02}": {"id": f"{number:02}", **content} for number in range(40)}
    with consuming(escrow) as consumer:
        letters = list(consumer.dead_letters())
        assert [letter.id for letter in letters] == [f"{number:02}" for number in range(40)]
        assert (letters[0].body, letters[0].attempts, letters[0].topic) == (b"a", 16, "paid")
        assert consumer.replay_dead_letters(["03", "04"]) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"topics": []}, "topics: is"),
        ({"topics": ["a", ""]}, "topics: is"),
        ({"group": ""}, "group: is empty"),
        ({"prefetch": 0}, "prefetch: is 0"),
        ({"visibility_s": 0}, "visibility_s: is 0"),
    ],
)
def test_arguments_are_checked(arguments, said):
    with FakeEscrow() as escrow, pytest.raises(ValueError, match=said):
        Consumer(**{"url": escrow.url, "topics": "paid", "group": "shipping", **arguments})


def test_a_consumer_that_may_not_read_says_so_and_stops_trying(escrow, caplog):
    path = "/v1/topics/paid/messages"
    escrow.fail(path, Problem(403, "forbidden", "this token may not read paid"))
    put(escrow, "a", topic="shipped")
    with consuming(escrow, ["paid", "shipped"]) as consumer:
        with pytest.raises(NotAllowed, match="may not read paid"):
            list(consumer)  # what was fetched comes first
        with pytest.raises(NotAllowed):
            list(consumer)
        assert consumer.close()
    assert len(escrow.calls_to(path)) == 1
    assert "stops polling: grant its token the topic and the group" in caplog.text
