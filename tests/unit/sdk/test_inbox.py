"""What a consumer holds: room, hand-outs, extensions, seeks and pauses. Time is what the test says."""

from __future__ import annotations

import pytest

from escrow._deliveries import Held, Pending
from escrow._inbox import Inbox, Pace, Reading, Settling
from escrow.errors import Overloaded, Unreachable
from escrow.messages import Delivered


class Intake:
    def settle(self, delivery, state, delay_s) -> Pending[bool]:
        raise AssertionError("nothing is settled here")


def delivered(number, topic="paid"):
    return Delivered(topic, f"receipt-{number}", 0, number, 1, b"", "", "", {}, 0, 0)


def inbox(**options):
    return Inbox(Reading(("paid", "shipped"), "shipping", "me", **options))


def put(box, count, topic="paid", now=0.0, epoch=None):
    return box.put([delivered(number, topic) for number in range(count)], Intake(), box.epoch if epoch is None else epoch, now)


def test_a_poll_waits_until_half_of_the_room_is_free():
    box = inbox(prefetch=4)
    assert box.room("paid") == 4
    put(box, 3)
    assert (box.room("paid"), box.room("shipped")) == (0, 4), "each topic has room of its own"
    box.next(0.0)
    assert box.room("paid") == 2


def test_what_ran_out_while_it_lay_there_is_not_handed_out():
    box = inbox(visibility_s=30)
    put(box, 2, now=0.0)
    put(box, 1, now=20.0)
    found = box.next(30.0)
    assert (found.got_at, found.visible_at) == (20.0, 50.0)
    assert box.next(30.0) is None
    assert box.held() == [found]


def test_more_time_is_asked_for_after_a_third_and_not_for_ever():
    box = inbox(visibility_s=30, extend_for_s=100)
    put(box, 2, now=0.0)
    assert box.due(9.9) == {}
    [(settling, deliveries)] = box.due(10.0).items()
    assert settling == Settling("paid", 30, True)
    assert len(deliveries) == 2
    assert box.due(10.0) == {}, "it is asked for already"
    for delivery in deliveries:
        delivery.extending = False
    assert box.settled(settling, deliveries, ["new", None], asked_at=10.0) == [True, False]
    first, second = deliveries
    assert (first.receipt, first.visible_at, first.state) == ("new", 40.0, Held.HELD)
    assert second.state is Held.LOST
    assert box.due(19.9) == {}
    assert box.due(20.0) == {settling: [first]}
    first.extending = False
    assert box.due(100.0) == {}


def test_what_a_poll_from_before_a_seek_brings_is_given_back():
    box = inbox()
    put(box, 1)
    epoch = box.epoch
    assert [delivery.topic for delivery in box.begin_seek(["paid"])] == ["paid"]
    assert box.begin_seek(["shipped"]) == []
    assert box.room("shipped") == 0
    assert len(put(box, 2, epoch=epoch)) == 2
    box.end_seek()
    assert box.room("shipped") == 0, "another one is under way"
    box.end_seek()
    assert box.room("shipped") > 0


def test_a_pause_follows_a_failure_and_an_answer_that_came_too_soon(caplog):
    pace = Pace("paid")
    assert pace.found(3, took_s=0.0) == 0.0
    assert pace.found(0, took_s=1.0) == 0.0
    assert 0.0 < pace.found(0, took_s=0.0) <= 0.1
    error = Unreachable("gone", maybe_done=False)
    assert max(pace.failed(error) for _ in range(20)) <= 5.0
    assert pace.failed(Overloaded(429, "overloaded", "", retry_after_s=9)) >= 9.0
    assert caplog.text.count("gone") == 1, "said once"


@pytest.mark.parametrize(
    ("answers", "settling", "held"),
    [([True, False], Settling("paid", None, False), [True, False]), (["r", None], Settling("paid", 0.0, False), [True, False])],
)
def test_an_answer_says_whether_a_delivery_was_still_ours(answers, settling, held):
    box = inbox()
    put(box, 2)
    assert box.settled(settling, box.held(), answers, 0.0) == held
