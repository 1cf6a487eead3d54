"""The batch policy alone: what goes together, when, what is divided, what is late. Time is what the test says."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from escrow._batch_policy import BATCH_BYTES_MAX, NEVER, BatchPolicy, Limits
from escrow.errors import InvalidRequest, Overloaded, Unreachable, refusal

BAD = refusal(400, "bad", "negative")


@dataclass(eq=False)
class Caller:
    """What a test hands in, and what it was told."""

    items: list[int] = field(default_factory=lambda: [1])
    key: object = None
    cancelled: bool = False
    told: list[object] = field(default_factory=list)


def claim(caller: Caller) -> bool:
    return not caller.cancelled


def policy(under_way_max=1, reunion_max_s=0.0, **limits) -> BatchPolicy[int, Caller]:
    return BatchPolicy("test", Limits(**limits), claim, under_way_max=under_way_max, reunion_max_s=reunion_max_s)


def add(batches, items=(1,), now=0.0, **rest):
    caller = Caller(list(items), rest.get("key"))
    batches.add(caller.items, caller, now, **rest)
    return caller


def tell(settled):
    for caller, answers, error in settled:
        caller.told.append(list(answers) if error is None else error)


def served(batch, now=0.0):
    """What a server does: it refuses a request with a negative item. The requests."""
    requests = []
    while (request := batch.next(now)) is not None:
        tell(batch.late)
        requests.append(request.items)
        tell(batch.failed(BAD) if min(request.items) < 0 else batch.answered([item * 10 for item in request.items]))
    tell(batch.late)
    return requests


# --- when -----------------------------------------------------------------------------------------------------------------
def test_a_single_caller_never_waits():
    batches = policy(linger_s=9, reunion_max_s=9)
    assert batches.due_at() == NEVER
    for now in (0.0, 5.0):
        add(batches, now=now)
        assert batches.due_at() <= now
        batches.over(batches.take(), took_s=4.0, now=now)
        assert batches.is_idle


def test_what_comes_during_a_request_lingers_from_when_it_came():
    batches = policy(linger_s=9, batch_max=3)
    add(batches)
    first = batches.take()
    add(batches, now=2.0)
    assert batches.due_at() == NEVER, "one is under way"
    batches.over(first, 3.0, 3.0)
    assert batches.due_at() == 11.0
    add(batches, [1, 2], now=4.0)
    assert batches.due_at() <= 4.0, "it is full"


def test_a_request_waits_for_those_that_were_answered_together_but_not_long():
    batches = policy(reunion_max_s=0.5)
    for _ in range(3):
        add(batches)
    batches.over(batches.take(), took_s=1.0, now=1.0)
    add(batches, now=1.0)
    assert batches.due_at() == 1.25, "a quarter of what the last one took"
    add(batches, now=1.1)
    assert batches.due_at() == 1.25
    add(batches, now=1.1)
    assert batches.due_at() <= 1.1, "all three are back"
    batches.over(batches.take(), took_s=100.0, now=101.1)
    add(batches, now=101.1)
    assert batches.due_at() == pytest.approx(101.6), "at most reunion_max_s"


def test_another_request_begins_beside_one_only_when_it_is_full():
    batches = policy(under_way_max=2, batch_max=2)
    add(batches)
    first = batches.take()
    add(batches)
    assert batches.due_at() == NEVER
    add(batches)
    assert batches.due_at() == 0.0
    batches.take()
    add(batches, [1, 2])
    assert batches.due_at() == NEVER, "two are under way"
    batches.over(first, 0.0, 0.0)
    assert batches.due_at() == 0.0


def test_closing_waits_for_no_company():
    batches = policy(linger_s=9)
    add(batches)
    batches.over(batches.take(), 0.0, 0.0)
    add(batches)
    batches.take()
    add(batches)
    batches.closing = True
    assert batches.due_at() == NEVER, "but for the request under way"


def test_what_is_abandoned_is_returned_and_gone():
    batches = policy()
    left = [add(batches), add(batches, key="b")]
    assert batches.abandon() == left
    assert batches.is_idle
    assert batches.due_at() == NEVER


# --- together -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("sizes", "taken"),
    [([1, 1, 1, 1, 1], [4, 1]), ([3, 3], [3, 3]), ([9, 1], [9, 1]), ([2, 2, 1], [4, 1])],
)
def test_a_request_has_batch_max_items_and_no_parcel_is_divided(sizes, taken):
    batches = policy(batch_max=4)
    for size in sizes:
        add(batches, range(size))
    found = []
    while batches.waiting_count:
        batch = batches.take()
        found.append(sum(map(len, served(batch))))
        batches.over(batch, 0.0, 0.0)
    assert found == taken


def test_a_request_has_at_most_so_many_bytes_but_a_large_parcel_goes():
    batches = policy()
    for size_bytes in (BATCH_BYTES_MAX // 2, BATCH_BYTES_MAX // 2, 1, 5 * BATCH_BYTES_MAX):
        add(batches, size_bytes=size_bytes)
    assert batches.due_at() == 0.0, "it is full"
    assert [batches.take().count for _ in range(3)] == [2, 1, 1]


def test_keys_do_not_share_and_do_not_starve():
    batches = policy(batch_max=2)
    for number in range(6):
        add(batches, [number], key="ab"[number % 2])
    found = []
    while batches.waiting_count:
        batch = batches.take()
        found.append((batch.key, *served(batch)))
    assert found == [("a", [0, 2]), ("b", [1, 3]), ("a", [4]), ("b", [5])]


# --- divided and late -----------------------------------------------------------------------------------------------------
def test_what_concerns_all_is_said_to_all():
    batches = policy()
    callers = [add(batches) for _ in range(5)]
    batch = batches.take()
    assert batch.next(0.0) is not None
    error = Overloaded(429, "overloaded", "")
    tell(batch.failed(error))
    assert batch.next(0.0) is None
    assert [caller.told for caller in callers] == [[error]] * 5


def test_halving_finds_the_cause_in_few_requests():
    batches = policy()
    callers = [add(batches, [number or -1]) for number in range(64)]
    assert len(served(batches.take())) == 13, "twice the height of the tree, and the first"
    assert callers[0].told == [BAD]
    assert [caller.told for caller in callers[1:]] == [[[number * 10]] for number in range(1, 64)]


def test_what_becomes_late_while_the_cause_is_looked_for_is_not_sent():
    batches = policy(retry_for_s=30, timeout_s=10)
    early, late = add(batches, [-1], now=0.0), add(batches, [2], now=1.0)
    batch = batches.take()
    request = batch.next(39.0)
    assert request is not None
    assert request.give_up_at == 31.0, "as long as the youngest has"
    tell(batch.failed(BAD))
    assert batch.next(40.5) is not None, "the second: the first is late"
    tell(batch.late)
    tell(batch.answered([20]))
    assert batch.next(50.0) is None
    [error] = early.told
    assert isinstance(error, Unreachable)
    assert not error.maybe_done
    assert late.told == [[20]]


@given(st.lists(st.lists(st.integers(-2, 9), min_size=1, max_size=5), min_size=1, max_size=40))
def test_every_parcel_is_told_once_and_only_those_with_a_cause_hear_of_it(parcels):
    batches = policy(batch_max=1000)
    callers = [add(batches, items) for items in parcels]
    served(batches.take())
    for caller in callers:
        [told] = caller.told
        if min(caller.items) < 0:
            assert isinstance(told, InvalidRequest)
        else:
            assert told == [item * 10 for item in caller.items]


# --- all of it ------------------------------------------------------------------------------------------------------------
class Callers(RuleBasedStateMachine):
    """Any order of parcels, cancellations, requests, answers, failures and pauses."""

    def __init__(self):
        super().__init__()
        self.limits = Limits(linger_s=0.5, batch_max=4, retry_for_s=3.0, timeout_s=1.0)
        self.batches: BatchPolicy[int, Caller] = BatchPolicy("test", self.limits, claim, under_way_max=2, reunion_max_s=0.2)
        self.now = 0.0
        self.callers: list[Caller] = []
        self.came: dict[Caller, float] = {}
        self.under_way: list = []
        self.sent: list[Caller] = []

    @rule(items=st.lists(st.integers(-1, 5), min_size=1, max_size=6), key=st.sampled_from("ab"), kib=st.integers(0, 1024))
    def add(self, items, key, kib):
        caller = Caller(items, key)
        self.batches.add(items, caller, self.now, key=key, size_bytes=kib << 10)
        self.callers.append(caller)
        self.came[caller] = self.now

    @rule(number=st.integers(0))
    @precondition(lambda self: self.callers)
    def cancel(self, number):
        self.callers[number % len(self.callers)].cancelled = True

    @rule(seconds=st.sampled_from([0.01, 0.1, 0.6, 2.0, 5.0]))
    def wait(self, seconds):
        self.now += seconds

    @rule()
    def go(self):
        """As a transport does: send what is due."""
        while self.batches.due_at() <= self.now:
            batch = self.batches.take()
            assert len({caller.key for caller in batch.futures}) <= 1, "keys are not mixed"
            items = sum(len(caller.items) for caller in batch.futures)
            assert items <= self.limits.batch_max or batch.count == 1
            assert not any(caller.cancelled for caller in batch.futures)
            self.sent += batch.futures
            self.under_way.append((batch, self.now))

    @rule(how=st.sampled_from(["served", "overloaded"]))
    @precondition(lambda self: self.under_way)
    def answer(self, how):
        batch, begun_at = self.under_way.pop(0)
        if how == "served":
            served(batch, self.now)
        elif batch.next(self.now) is not None:
            tell(batch.late)
            tell(batch.failed(Overloaded(429, "overloaded", "")))
            assert batch.next(self.now) is None
        else:
            tell(batch.late)
        self.batches.over(batch, self.now - begun_at, self.now)

    @invariant()
    def each_is_told_once_what_is_its_own(self):
        for caller in self.callers:
            assert len(caller.told) <= 1
            for told in caller.told:
                if isinstance(told, list):
                    assert told == [item * 10 for item in caller.items]
                    assert min(caller.items) >= 0
                elif isinstance(told, InvalidRequest):
                    assert min(caller.items) < 0
                elif isinstance(told, Unreachable):
                    assert self.now >= self.came[caller] + 4.0

    @invariant()
    def those_of_a_key_are_sent_in_the_order_that_they_came(self):
        for key in "ab":
            mine = [caller for caller in self.sent if caller.key == key]
            assert mine == [caller for caller in self.callers if caller in set(mine)]

    def teardown(self):
        """Closed, everything is settled, in the end."""
        self.batches.closing = True
        for _ in range(2 * len(self.callers) + 4):
            self.go()
            if self.under_way:
                self.answer("served")
        assert self.batches.is_idle
        assert all(caller.told or caller.cancelled for caller in self.callers)


TestCallers = Callers.TestCase
