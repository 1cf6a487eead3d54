"""Consumer pull through the edge core: hand-outs, acknowledgements, keys, tags, starts, seek, dead letters, waiting."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from datetime import UTC, datetime

import pytest

from ingest.consuming import filters
from ingest.consuming.receipts import Receipt
from ingest.errors import Closing, InvalidRequest, Standby
from store.errors import IllegalName, StoreUnusable
from store.inspect.verify.store import verify
from store.io import disk
from tests.support.edge_world import T0_MS, world

ONE_QUEUE = "queuesPerTopic=1"


@pytest.fixture
def play(play, tmp_path):
    """With one queue for each topic, and the store is whole afterwards."""

    def run(story, *flags):
        play(story, *(flags or (ONE_QUEUE,)))
        problems = verify(tmp_path / "data" / "store").problems
        assert not problems, problems

    return run


def bodies(messages):
    return [message.body for message in messages]


# --- hand-outs and acknowledgements -------------------------------------------------------------------------------------------
def test_a_message_is_handed_out_with_all_it_says(play):
    async def story(w):
        properties = {"KEYS": "k", "TAGS": "a", "x": "y"}
        await w.edge.send([w.message(body=b"hello", properties=properties, born_at_ms=7)])
        (got,) = await w.pull()
        assert (got.topic, got.queue_id, got.queue_offset, got.attempt) == ("t", 0, 0, 1)
        assert (got.key, got.tags, got.properties, got.body) == ("k", "a", {"x": "y"}, b"hello")
        assert (got.born_at_ms, got.stored_at_ms, got.half_offset) == (7, T0_MS, -1)
        await w.end(await w.half(body=b"from a half"), "commit")
        (got,) = await w.pull()
        assert (got.body, got.half_offset) == (b"from a half", 0)

    play(story)


def test_messages_come_before_they_are_settled_and_are_the_same_after(play):
    async def story(w):
        id = await w.half(body=b"one")
        await w.send(b"two")
        await w.end(id, "commit")
        assert await w.pull_bodies("early") == [b"two", b"one"]
        w.settle()
        w.edge.consumption.look()
        assert await w.pull_bodies("late") == [b"two", b"one"]

    play(story)


def test_what_is_not_acknowledged_comes_again_with_the_next_attempt(play):
    async def story(w):
        await w.send(b"m")
        (first,) = await w.pull(visibility_s=10)
        w.now_ms += 9_999
        assert await w.pull() == []
        w.now_ms += 1
        (second,) = await w.pull(visibility_s=10)
        assert (second.body, second.attempt) == (b"m", 2)
        assert await w.ack(first) == ["stale"]
        assert await w.ack(second) == ["done"]
        assert await w.ack(second) == ["done"]
        w.now_ms += 100_000
        assert await w.pull() == []

    play(story)


def test_an_acknowledgement_that_comes_late_counts_while_nobody_else_has_the_message(play):
    async def story(w):
        await w.send(b"m")
        (got,) = await w.pull(visibility_s=1)
        w.now_ms += 5_000
        assert await w.ack(got) == ["done"]
        assert await w.pull() == []

    play(story)


def test_acknowledged_out_of_order_and_after_restarts(play):
    async def story(w):
        await w.send(*[b"%d" % n for n in range(6)])
        got = await w.pull(visibility_s=10)
        assert await w.ack(got[4], got[0], got[2]) == ["done"] * 3
        await w.restart_edge()
        assert await w.pull() == []
        assert await w.ack(got[1]) == ["done"]  # its receipt is good after the restart
        w.now_ms += 10_000
        again = await w.pull()
        assert [(m.body, m.attempt) for m in again] == [(b"3", 2), (b"5", 2)]
        await w.ack(*again)
        await w.restart_edge()
        w.now_ms += 100_000
        assert await w.pull() == []
        (topic,) = w.edge.consumption.topics_and_lag()
        assert topic["groups"][0]["lag"] == 0

    play(story)


def test_the_extents_of_all_queues_are_those_of_each(play):
    """Settled queues, queues whose last messages are not settled, new ones, and one that has nothing."""

    async def story(w):
        await w.edge.operations.create_topic("empty", 3)
        await w.edge.send([w.message(topic=f"t{n}") for n in range(20)])
        w.settle()
        await w.edge.send([w.message(topic=f"t{n}") for n in range(10, 30)])
        await w.pull(topic="t12")
        tail, names = w.edge.consumption._tail, w.edge.store.dictionary
        found = tail.extents()
        for topic_no, queues in enumerate(names.queues):
            for key in range(topic_no << 6, (topic_no << 6) + queues):
                assert found.get(key, (0, 0)) == tail.extent(key)
        counts = {each["topic"]: each["messages"] for each in w.edge.operations.overview.topics()}
        assert counts == {"empty": 0, **{f"t{n}": 2 if 10 <= n < 20 else 1 for n in range(30)}}

    play(story)


def test_groups_do_not_see_each_other(play):
    async def story(w):
        await w.send(b"m")
        (mine,) = await w.pull("one")
        (theirs,) = await w.pull("two")
        assert await w.ack(mine, group="two") == ["stale"]
        assert await w.ack(theirs, group="two") == ["done"]
        assert await w.ack(mine, group="one", topic="other") == ["stale"]
        assert await w.ack(mine, group="one") == ["done"]

    play(story)


def test_one_answer_holds_no_more_than_asked_for_and_than_fits(play):
    async def story(w):
        await w.send(*[b"x" * 30_000 for _ in range(20)])
        assert len(await w.pull(count=3)) == 3
        assert len(await w.pull(count=32)) == 17  # 512 KiB
        assert len(await w.pull(count=32, group="other")) == 17
        assert len(await w.pull(count=32, group="other")) == 3

    play(story, ONE_QUEUE, "maxRequestSize=1MiB", "messagesPerPollMax=17")


def test_all_queues_of_a_topic_take_turns(play):
    async def story(w):
        await w.send(*[b"%d" % n for n in range(40)])
        seen = [message.queue_id for _ in range(4) for message in await w.pull(count=10)]
        assert sorted(seen) == [0] * 10 + [1] * 10 + [2] * 10 + [3] * 10

    play(story, "queuesPerTopic=4")


# --- visibility -----------------------------------------------------------------------------------------------------------------
def test_more_time_and_back_at_once(play):
    async def story(w):
        await w.send(b"m")
        (got,) = await w.pull(visibility_s=10)
        change = w.edge.consumption.change_visibility
        w.now_ms += 9_000
        (longer,) = await change("t", "c", [got.receipt], 10)
        assert await w.ack(got) == ["stale"]
        w.now_ms += 9_000
        assert await w.pull() == []
        assert await change("t", "c", [got.receipt], 10) == [None]
        (back,) = await change("t", "c", [longer], 0)
        assert back is not None
        (again,) = await w.pull(visibility_s=10)
        assert again.attempt == 2
        w.now_ms += 10_000
        assert await change("t", "c", [again.receipt], 10) == [None]  # too late

    play(story)


def test_more_time_survives_a_restart(play):
    async def story(w):
        await w.send(b"m")
        (got,) = await w.pull(visibility_s=10)
        (longer,) = await w.edge.consumption.change_visibility("t", "c", [got.receipt], 100)
        await w.restart_edge()
        w.now_ms += 50_000
        assert await w.pull() == []
        (again,) = await w.edge.consumption.change_visibility("t", "c", [longer], 0)
        assert [m.attempt for m in await w.pull()] == [2]
        assert await w.edge.consumption.ack("t", "c", [again]) == ["stale"]

    play(story)


def test_what_could_not_be_written_to_the_consumer_is_not_counted(play):
    async def story(w):
        await w.send(b"m")
        got = await w.pull()
        w.edge.consumption.put_back(got)
        (again,) = await w.pull()
        assert again.attempt == 1
        w.edge.consumption.put_back([again])
        await w.restart_edge()
        assert [m.attempt for m in await w.pull()] == [1]

    play(story)


# --- keys -----------------------------------------------------------------------------------------------------------------------
def test_a_key_in_hand_holds_back_later_messages_of_that_key_only(play):
    async def story(w):
        await w.send(b"a1", b"a2", b"a3", key="a")
        await w.send(b"b1", key="b")
        await w.send(b"free")
        (a1,) = await w.pull(count=1, visibility_s=10)
        assert a1.body == b"a1"
        others = await w.pull()
        assert bodies(others) == [b"b1", b"free"]
        await w.ack(a1)
        assert await w.pull_bodies() == [b"a2", b"a3"]  # several of one key in one answer, in order

    play(story)


def test_after_a_redelivery_the_earlier_comes_first(play):
    async def story(w):
        await w.send(b"a1", b"a2", b"a3", key="a")
        a1, a2 = await w.pull(count=2, visibility_s=10)
        await w.edge.consumption.change_visibility("t", "c", [a1.receipt], 0)
        assert await w.pull() == []  # a2 is still in hand
        await w.edge.consumption.change_visibility("t", "c", [a2.receipt], 0)
        assert [(m.body, m.attempt) for m in await w.pull()] == [(b"a1", 2), (b"a2", 2), (b"a3", 1)]

    play(story)


def test_keys_in_hand_are_known_after_a_restart(play):
    async def story(w):
        await w.send(b"a1", b"a2", key="a")
        await w.send(b"free")
        (a1,) = await w.pull(count=1, visibility_s=10)
        w.settle()
        await w.restart_edge()
        assert await w.pull_bodies() == [b"free"]
        await w.ack(a1)
        assert await w.pull_bodies() == [b"a2"]

    play(story)


def test_a_blocked_key_does_not_stop_the_rest_within_the_window(play):
    async def story(w):
        await w.send(*[b"a%d" % n for n in range(60)], key="a")
        await w.send(*[b"%d" % n for n in range(60)])
        (first,) = await w.pull(count=1)
        got = await w.pull(count=100)
        assert bodies(got) == [b"0", b"1", b"2", b"3"]  # 64 entries from the first that is not done
        await w.ack(*got)
        assert await w.pull() == []
        assert w.edge.consumption.figures()["tracked"] <= 64
        await w.ack(first)
        assert len(await w.pull(count=100)) == 60

    play(story, ONE_QUEUE, "lookAheadWindow=64")


# --- tags -----------------------------------------------------------------------------------------------------------------------
async def tagged(w):
    for body, tags in ((b"1", "a"), (b"2", "b"), (b"3", "c"), (b"4", ""), (b"5", "a"), (b"6", "Aa"), (b"7", "BB")):
        await w.send(body, tags=tags)


def test_tags_choose_and_what_is_not_chosen_is_done(play):
    async def story(w):
        await tagged(w)
        got = await w.pull(tags="a || b")
        assert bodies(got) == [b"1", b"2", b"5"]
        await w.ack(*got)
        assert w.edge.consumption.topics_and_lag()[0]["groups"][0]["lag"] == 0
        assert await w.pull_bodies("other", tags="BB") == [b"7"]  # not "Aa", whose hash is the same
        assert len(await w.pull("all", tags="*")) == 7

    play(story)


def test_a_filter_that_passes_over_very_much_finds_what_is_behind(play):
    async def story(w):
        for _ in range(4):
            await w.send(*[b"no"] * 1000, tags="no")
        await w.send(b"yes", tags="yes")
        await w.until(lambda: w.edge.consumption.figures()["tail_ops"] == 4001)
        assert await w.pull_bodies(tags="yes", wait_s=5) == [b"yes"]

    play(story)


def test_two_filters_in_one_group_are_refused(play, monkeypatch):
    async def story(w):
        await tagged(w)
        await w.pull(tags="a")
        with pytest.raises(InvalidRequest, match=r"^tags: 'b' differs from 'a', with which 'me' of this group reads t: use"):
            await w.pull(tags="b")
        await w.pull(tags="b", topic="another")
        monkeypatch.setattr(filters, "FILTER_HOLD_S", 0.0)
        await tagged(w)
        assert await w.pull_bodies(tags="Aa") == [b"6"]  # of those that came since: the others were passed over

    play(story)


def test_filters_are_forgotten(play, monkeypatch):
    """Whatever topics and groups somebody thinks of: what is kept of them is bounded."""

    async def story(w):
        await tagged(w)
        for number in range(50):
            await w.pull(topic=f"no-such-{number}", group=f"g{number}", tags="a")
        assert w.edge.consumption._filters.known == {}
        await w.pull(group="one", tags="a")
        await w.pull(group="two")
        assert len(w.edge.consumption._filters.known) == 2
        monkeypatch.setattr(filters, "FILTER_HOLD_S", 0.0)
        await w.pull(group="three")
        assert list(w.edge.consumption._filters.known) == [("t", "three")]

    play(story)


# --- where a group begins -------------------------------------------------------------------------------------------------------
def test_earliest_latest_and_a_time(play):
    async def story(w):
        id = await w.half(body=b"half")
        await w.send(b"1")
        w.now_ms += 10_000
        await w.send(b"2")
        w.now_ms += 10_000
        await w.end(id, "commit")  # released now, whenever it was stored
        assert await w.pull_bodies("a") == [b"1", b"2", b"half"]
        assert await w.pull_bodies("b", start="latest") == []
        assert await w.pull_bodies("c", start=str(T0_MS + 1)) == [b"2", b"half"]
        text = datetime.fromtimestamp((T0_MS + 10_001) / 1000, UTC).isoformat()
        assert await w.pull_bodies("d", start=text) == [b"half"]
        assert await w.pull_bodies("e", start=str(T0_MS + 99_999)) == []
        await w.send(b"3")
        for group in "be":
            assert await w.pull_bodies(group, start="earliest") == [b"3"]  # it has a place by now

    play(story, "queuesPerTopic=1")


def test_the_place_where_a_group_began_is_durable_before_its_first_answer(play):
    async def story(w):
        await w.send(b"1")
        assert await w.pull(start="latest") == []
        await w.restart_edge()
        await w.send(b"2")
        assert await w.pull_bodies(start="latest") == [b"2"]

    play(story)


def test_seek_to_and_fro(play):
    async def story(w):
        await w.send(b"1", b"2")
        w.now_ms += 1_000
        await w.send(b"3")

        async def seek(*to):
            return await w.edge.consumption.seek(*to)

        one, two, three = await w.pull()
        await w.ack(one, three)
        assert await seek("t", "c", "earliest") == {0: 0}
        assert await w.ack(two) == ["stale"]
        again = await w.pull()
        assert [(m.body, m.attempt) for m in again] == [(b"1", 1), (b"2", 1), (b"3", 1)]
        assert await w.ack(two) == ["stale"]
        assert await seek("t", "c", str(T0_MS + 1)) == {0: 2}
        await w.restart_edge()
        assert await w.pull_bodies() == [b"3"]
        assert await seek("t", "c", "latest") == {0: 3}
        assert await w.pull() == []
        assert await seek("t", "new", "latest") == {0: 3}
        with pytest.raises(InvalidRequest, match=r"^topic: nowhere does not exist yet"):
            await seek("nowhere", "c", "latest")

    play(story)


@pytest.mark.parametrize("text", ["", "yesterday", "2027-01-15T08:00:00", "-5", "1e9"])
def test_a_time_that_cannot_be_read_is_refused(play, text):
    async def story(w):
        with pytest.raises(InvalidRequest, match=r"^from: "):
            await w.pull(start=text)
        with pytest.raises(InvalidRequest, match=r"^to: "):
            await w.edge.consumption.seek("t", "c", text)

    play(story)


# --- waiting --------------------------------------------------------------------------------------------------------------------
def test_a_waiting_poll_gets_a_message_as_soon_as_it_is_acknowledged(play):
    async def story(w):
        await w.send(b"0")
        await w.ack(*await w.pull())
        poll = asyncio.create_task(w.pull(wait_s=20))
        await w.until(lambda: w.edge.consumption.figures()["polls_waiting"] == 1)
        await w.end(await w.half(body=b"now"), "commit")
        assert bodies(await asyncio.wait_for(poll, 1)) == [b"now"]

    play(story)


def test_polls_of_several_groups_and_consumers_are_woken(play):
    async def story(w):
        await w.send(b"0")
        for group in ("x", "y"):
            await w.ack(*await w.pull(group), group=group)
        polls = [asyncio.create_task(w.pull(group, wait_s=20, count=2)) for group in ("x", "x", "y")]
        await w.until(lambda: w.edge.consumption.figures()["polls_waiting"] == 3)
        await w.send(b"1", b"2", b"3")
        got = [bodies(await asyncio.wait_for(poll, 1)) for poll in polls]
        assert got == [[b"1", b"2"], [b"3"], [b"1", b"2"]]

    play(story)


def test_a_poll_that_was_woken_for_nothing_keeps_its_place(play):
    async def story(w):
        await w.send(b"0")
        await w.ack(*await w.pull("x"), group="x")
        polls = [asyncio.create_task(w.pull("x", wait_s=20)) for _ in range(2)]
        await w.until(lambda: w.edge.consumption.figures()["polls_waiting"] == 2)
        w.edge.consumption._waiting.wake("t", "x")
        assert w.edge.consumption.figures()["polls_waiting"] == 1
        await w.until(lambda: w.edge.consumption.figures()["polls_waiting"] == 2)
        await w.send(b"1")
        assert bodies(await asyncio.wait_for(polls[0], 1)) == [b"1"]
        await w.send(b"2")
        assert bodies(await asyncio.wait_for(polls[1], 1)) == [b"2"]

    play(story)


def test_a_poll_may_wait_for_a_topic_that_does_not_exist_and_gets_all_of_it(play):
    async def story(w):
        poll = asyncio.create_task(w.pull(wait_s=20, start="latest"))
        await w.until(lambda: w.edge.consumption.figures()["polls_waiting"] == 1)
        assert w.edge.store.dictionary.topics == []
        await w.send(b"first")
        assert bodies(await asyncio.wait_for(poll, 1)) == [b"first"]

    play(story)


def test_a_lapse_wakes_a_waiting_poll(play):
    async def story(w):
        await w.send(b"m")
        await w.pull(visibility_s=0.05)
        poll = asyncio.create_task(w.pull(wait_s=20))
        await w.until(lambda: w.edge.consumption.figures()["polls_waiting"] == 1)
        w.now_ms += 60
        assert [m.attempt for m in await asyncio.wait_for(poll, 1)] == [2]

    play(story)


def test_an_acknowledgement_wakes_whoever_waits_for_its_key(play):
    async def story(w):
        await w.send(b"a1", b"a2", key="a")
        (a1,) = await w.pull(count=1)
        poll = asyncio.create_task(w.pull(wait_s=20))
        await w.until(lambda: w.edge.consumption.figures()["polls_waiting"] == 1)
        await w.ack(a1)
        assert bodies(await asyncio.wait_for(poll, 1)) == [b"a2"]

    play(story)


def test_waiting_polls_come_back_empty_when_the_edge_stops(play):
    async def story(w):
        poll = asyncio.create_task(w.pull(wait_s=20))
        await w.until(lambda: w.edge.consumption.figures()["polls_waiting"] == 1)
        w.edge.stop()
        assert await asyncio.wait_for(poll, 1) == []
        with pytest.raises(Closing):
            await w.pull()

    play(story)


def test_a_poll_that_is_cancelled_leaves_its_messages_to_others(play):
    async def story(w):
        await w.send(b"0")
        await w.ack(*await w.pull())
        gone = asyncio.create_task(w.pull(wait_s=20))
        stays = asyncio.create_task(w.pull(wait_s=20))
        await w.until(lambda: w.edge.consumption.figures()["polls_waiting"] == 2)
        await w.send(b"m")
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert [(m.body, m.attempt) for m in await asyncio.wait_for(stays, 1)] == [(b"m", 1)]

    play(story)


# --- refusals -------------------------------------------------------------------------------------------------------------------
def test_what_is_refused(play):
    async def story(w):
        pull, poll = w.pull, w.edge.consumption.poll
        for topic in ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"):
            with pytest.raises(InvalidRequest, match=r"^topic: .* is internal"):
                await pull(topic=topic)
        for topic in ("", "a b"):
            with pytest.raises(IllegalName, match=r"^topic: "):
                await pull(topic=topic)
        with pytest.raises(IllegalName, match=r"^group: "):
            await pull("")
        with pytest.raises(InvalidRequest, match=r"^group: .* longer than 122 bytes"):
            await pull("g" * 123)
        with pytest.raises(InvalidRequest, match=r"^consumer: "):
            await poll("t", "c", "")
        for bad in ({"count": 0}, {"wait_s": -1.0}, {"wait_s": float("nan")}):
            with pytest.raises(InvalidRequest, match=r"^max: "):
                await pull(**bad)
        for seconds in (0, -1, 43_201, float("nan")):
            with pytest.raises(InvalidRequest, match=r"^visibility_s: .*maxVisibilityTime"):
                await pull(visibility_s=seconds)
        for text in ("", "zz", "1-2-3", "1-2-3-4-x", "1-2-3-4--5"):
            with pytest.raises(InvalidRequest, match=r"^receipts\[1\]: "):
                await w.edge.consumption.ack("t", "c", [Receipt(1, 2, 3, 4, 5).said(), text])
        with pytest.raises(InvalidRequest, match=r"^receipts: 0 in one request"):
            await w.edge.consumption.ack("t", "c", [])
        with pytest.raises(InvalidRequest, match=r"^tags: "):
            await pull(tags="a||")
        assert await w.edge.consumption.ack("t", "c", [Receipt(1, 2, 3, 4, 5).said()]) == ["stale"]
        assert w.edge.store.dictionary.topics == w.edge.store.dictionary.groups == []

    play(story)


def test_a_standby_gives_nothing(play):
    async def story(w):
        with pytest.raises(Standby):
            await w.pull()

    play(story, "role=standby")


# --- dead letters ---------------------------------------------------------------------------------------------------------------
async def kill(w, times=3, **rest):
    """Hand out without acknowledging until nothing comes any more."""
    for _ in range(times):
        assert await w.pull(visibility_s=1, **rest)
        w.now_ms += 1_000
    assert await w.pull() == []
    await w.until(lambda: not w.edge.consumption._burials.under_way)


def test_a_message_that_was_given_too_often_is_a_dead_letter(play):
    async def story(w):
        await w.edge.send([w.message(body=b"poison", properties={"KEYS": "k", "TAGS": "a", "x": "y"}, born_at_ms=5)])
        await kill(w)
        letters, following = await w.edge.consumption.dead_letters("c")
        assert following is None
        (letter,) = letters
        assert (letter.topic, letter.queue_id, letter.queue_offset, letter.attempts) == ("t", 0, 0, 3)
        assert (letter.key, letter.tags, letter.properties, letter.body) == ("k", "a", {"x": "y"}, b"poison")
        assert (letter.born_at_ms, letter.dead_at_ms) == (5, w.now_ms)
        assert w.edge.consumption.topics_and_lag()[0]["groups"][0]["lag"] == 0
        assert await w.edge.consumption.dead_letters("other") == ([], None)
        assert await w.pull_bodies("other") == [b"poison"]

    play(story, ONE_QUEUE, "maxDeliveries=3")


def test_what_follows_a_dying_message_of_the_same_key_waits_until_it_is_stored(play):
    async def story(w):
        await w.send(b"a1", b"a2", key="a")
        for _ in range(2):
            (a1,) = await w.pull(count=1, visibility_s=1)
            assert a1.body == b"a1"
            w.now_ms += 1_000
        got = await w.pull(wait_s=5)
        assert bodies(got) == [b"a2"]
        assert len((await w.edge.consumption.dead_letters("c"))[0]) == 1

    play(story, ONE_QUEUE, "maxDeliveries=2")


def test_a_replayed_letter_comes_to_its_group_only_and_is_closed(play):
    async def story(w):
        await w.send(b"poison", key="k", tags="a")
        await kill(w)
        other = await w.pull("other")
        await w.ack(*other, group="other")
        (letter,), _ = await w.edge.consumption.dead_letters("c")
        assert await w.edge.consumption.replay("c", [letter.id, letter.id, "0-7f"]) == 1
        assert await w.edge.consumption.replay("c", [letter.id]) == 0
        assert await w.edge.consumption.dead_letters("c") == ([], None)
        await w.restart_edge()
        assert await w.edge.consumption.dead_letters("c") == ([], None)
        assert await w.pull("other") == []
        (again,) = await w.pull()
        assert (again.body, again.key, again.tags, again.attempt, again.properties) == (b"poison", "k", "a", 1, {})
        assert again.frame.properties["PGROUP"] == "g"
        await w.ack(again)
        await w.pull("other")
        lags = {each["group"]: each["lag"] for each in w.edge.consumption.topics_and_lag()[0]["groups"]}
        assert lags == {"c": 0, "other": 0}
        with pytest.raises(InvalidRequest, match=r"^ids\[0\]: "):
            await w.edge.consumption.replay("c", ["x"])

    play(story, ONE_QUEUE, "maxDeliveries=3")


def test_dead_letters_are_listed_page_by_page(play):
    async def story(w):
        await w.send(*[b"%d" % n for n in range(7)])
        await kill(w, times=1)
        seen, following = [], ""
        for more in (True, True, False):
            letters, following = await w.edge.consumption.dead_letters("c", after=following, max_letters=3)
            seen += [letter.body for letter in letters]
            assert bool(following) == more
        assert seen == [b"%d" % n for n in range(7)]

    play(story, ONE_QUEUE, "maxDeliveries=1")


def test_dead_letters_can_be_consumed_and_do_not_die_again(play):
    async def story(w):
        await w.send(b"poison")
        await kill(w, times=1)
        for attempt in range(1, 5):
            (got,) = await w.pull(topic="%DLQ%c", visibility_s=1)
            assert got.attempt == attempt
            w.now_ms += 1_000
        await w.ack(got, topic="%DLQ%c")
        assert await w.edge.consumption.dead_letters("c") == ([], None)

    play(story, ONE_QUEUE, "maxDeliveries=1")


def test_producers_may_not_claim_to_be_dead_letters(play):
    async def story(w):
        with pytest.raises(Exception, match="__FOR_GROUP__ is set by Escrow"):
            await w.edge.send([w.message(properties={"__FOR_GROUP__": "c"})])

    play(story)


# --- what is not there ----------------------------------------------------------------------------------------------------------
def test_a_corrupt_message_is_passed_over_and_counted(tmp_path):
    async def story(w):
        await w.send(b"1", b"2" * 50, b"3")
        at = w.edge.store.op_queue.entry(1)[0]
        log = w.root / "store" / "commitlog" / "00000000000000000000"
        w.settle()
        w.edge.consumption.look()
        with log.open("r+b") as file:
            file.seek(at + 130)
            file.write(b"x")
        assert await w.pull_bodies() == [b"1", b"3"]
        assert w.edge.consumption.figures()["unreadable"] == 1

    async def run():
        async with world(tmp_path / "data", ONE_QUEUE) as w:
            await story(w)

    asyncio.run(run())


def test_what_retention_took_is_passed_over_and_counted(play):
    async def story(w):
        await w.send(b"0")
        assert len(await w.pull()) == 1
        for _ in range(30):
            await w.send(*[b"x" * 60_000] * 3)
        w.settle()
        w.now_ms += 100 * 3_600_000
        await w.send(b"last")
        for _ in range(2):
            w.settle()
            w.job.retain(w.now_ms, 72 * 3_600_000)
            await w.edge.retain()
        w.edge.consumption.look()
        begin = w.edge.consumption.topics_and_lag()[0]["queues"][0]["begin"]
        assert begin > 50
        got = [m for _ in range(10) for m in await w.pull()]
        assert got[-1].body == b"last"
        assert w.edge.consumption.figures()["retention"] == begin

    play(story)


# --- durability -----------------------------------------------------------------------------------------------------------------
def test_many_acknowledgements_share_a_flush(play):
    async def story(w):
        await w.send(*[b"%d" % n for n in range(200)])
        got = await w.pull(count=200)
        before = w.edge.consumption.figures()["journal_flushes"]
        answers = await asyncio.gather(*[w.ack(message) for message in got])
        assert answers == [["done"]] * 200
        assert w.edge.consumption.figures()["journal_flushes"] - before < 20

    play(story)


def test_a_failed_flush_ends_the_edge(tmp_path):
    async def run():
        async with world(tmp_path / "data", ONE_QUEUE) as w:
            await w.send(b"m")
            (got,) = await w.pull()
            disk.arm("consumers.flush", "EIO")
            try:
                with pytest.raises(Exception, match="reopen the store"):
                    await w.ack(got)
            finally:
                disk.arm(None)
            with pytest.raises(Exception, match=r"the store failed|earlier failure"):
                await w.ack(got)  # a second flush would prove nothing
            assert "consumers" in await asyncio.wait_for(w.edge.failed, 1)

    asyncio.run(run())


def test_a_full_disk_refuses_a_hand_out_and_counts_nothing(play):
    async def story(w):
        await w.send(b"m")
        await w.pull("c", start="latest")
        await w.edge.consumption.seek("t", "c", "earliest")
        disk.arm("consumers.write", "ENOSPC")
        try:
            with pytest.raises(Exception, match="disk is full"):
                await w.pull()
        finally:
            disk.arm(None)
        assert [m.attempt for m in await w.pull()] == [1]

    play(story)


# --- messages that cannot be read for a while -----------------------------------------------------------------------------------
@contextlib.contextmanager
def no_descriptors_left():
    """No segment of the log can be opened."""

    def refused(path, *args, **rest):
        if "commitlog" in str(path):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return really(path, *args, **rest)

    really = os.open
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", refused)
        yield


async def settled_and_restarted(w, *bodies):
    """Messages in files that the edge has not mapped."""
    await w.send(*bodies)
    w.settle()
    await w.restart_edge()


def unmap(w):
    w.edge.consumption._tail.log.log.file.close()


def test_a_new_message_that_cannot_be_read_now_is_handed_out_later(play):
    async def story(w):
        await settled_and_restarted(w, b"1", b"2")
        for _ in range(2):
            with no_descriptors_left(), pytest.raises(StoreUnusable, match="commitlog"):
                await w.pull()
        assert await w.pull_bodies() == [b"1", b"2"]
        assert w.edge.consumption.figures()["unreadable"] == 0

    play(story)


@pytest.mark.parametrize("restart", [False, True])
def test_a_message_that_came_back_and_cannot_be_read_now_is_handed_out_later(play, restart):
    async def story(w):
        await w.send(b"1", b"2", key="k")
        w.settle()
        await w.pull(visibility_s=10)
        w.now_ms += 10_000
        if restart:
            await w.restart_edge()
        unmap(w)
        with no_descriptors_left(), pytest.raises(StoreUnusable, match="commitlog"):
            await w.pull()
        assert [(m.body, m.attempt) for m in await w.pull()] == [(b"1", 2), (b"2", 2)]

    play(story)


def test_what_a_poll_has_in_hand_goes_out_though_the_next_message_cannot_be_read(play):
    async def story(w):
        large = [bytes([number]) * 60_000 for number in range(24)]
        for body in large:
            await w.send(body)
        w.settle()
        await w.restart_edge()
        await w.pull("another", count=1)  # maps the first segment
        with no_descriptors_left():
            first = await w.pull_bodies()
        assert 0 < len(first) < len(large)
        assert first + await w.pull_bodies() == large

    play(story)


def test_a_condemned_message_that_cannot_be_read_now_stays_in_hand(play):
    async def story(w):
        await w.send(b"m")
        w.settle()
        (got,) = await w.pull(visibility_s=10)
        unmap(w)
        with no_descriptors_left(), pytest.raises(StoreUnusable, match="commitlog"):
            await w.edge.consumption.condemn("t", "c", got.receipt)
        assert await w.edge.consumption.condemn("t", "c", got.receipt)
        assert len((await w.edge.consumption.dead_letters("c"))[0]) == 1

    play(story)


def test_the_journal_is_written_anew_when_it_has_grown(play, monkeypatch):
    monkeypatch.setattr("store.tables.journals.consumers.COMPACT_FROM", 500)

    async def story(w):
        for _ in range(20):
            await w.send(*[b"m"] * 50)
            await w.ack(*await w.pull(count=50))
        await w.send(b"last")
        assert (w.root / "store" / "consumers").stat().st_size < 40 * 700
        await w.restart_edge()
        assert await w.pull_bodies() == [b"last"]

    play(story)


def test_progress_beyond_the_end_of_an_older_log_is_set_back(play):
    from store.tables.journals.consumers import ConsumerKind, ConsumerRecord, Consumers

    async def story(w):
        await w.send(b"0")
        await w.pull()
        await w.edge.close()
        consumers = Consumers(w.root / "store" / "consumers", writable=True)
        consumers.append([ConsumerRecord(ConsumerKind.OFFSET, 1, 0, 9), ConsumerRecord(ConsumerKind.DONE, 1, 0, 11)])
        consumers.close()
        await w.open_edge()
        await w.send(b"1")
        assert await w.pull_bodies() == [b"1"]

    play(story)
