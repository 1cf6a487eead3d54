"""Callers share requests; nobody waits in vain; nobody hears of another's mistake; a caller's own list stays together."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from escrow._batch_policy import BATCH_BYTES_MAX, Limits
from escrow._batching import Batcher
from escrow.errors import Closed, InvalidRequest, Unreachable, refusal


class Sender:
    """What a batcher sends to: notes the requests; refuses those with a negative number; waits when told."""

    def __init__(self):
        self.requests, self.error = [], None
        self.gate, self.entered = threading.Event(), threading.Semaphore(0)
        self.gate.set()

    def __call__(self, key, items, give_up_at):
        self.requests.append((key, list(items)))
        self.entered.release()
        assert self.gate.wait(60)
        if self.error is not None:
            raise self.error
        if any(item < 0 for item in items):
            raise refusal(400, "bad", "negative")
        return [item * 10 for item in items]

    @property
    def sizes(self):
        return [len(items) for _, items in self.requests]


@pytest.fixture
def sender():
    return Sender()


@pytest.fixture
def batcher(sender):
    made = Batcher("test", sender)
    yield made
    sender.gate.set()
    made.close(60)


def busy(batcher, sender):
    """A request is under way until the gate opens."""
    sender.gate.clear()
    future = batcher.submit([0])
    assert sender.entered.acquire(timeout=60)
    return future


def test_one_caller_alone_is_sent_at_once_and_alone(sender):
    """Whatever the linger: this one would take an hour."""
    batcher = Batcher("test", sender, Limits(linger_s=3600))
    assert [batcher.submit([number]).result(60) for number in range(3)] == [[0], [10], [20]]
    assert sender.sizes == [1, 1, 1]
    assert batcher.close(60)


def test_those_who_come_during_a_request_share_the_next(batcher, sender):
    first = busy(batcher, sender)
    later = [batcher.submit([number]) for number in range(1, 21)]
    sender.gate.set()
    assert first.result(60) == [0]
    assert [future.result(60) for future in later] == [[number * 10] for number in range(1, 21)]
    assert sender.sizes == [1, 20]


def test_who_lingers_goes_when_the_request_is_full(sender):
    batcher = Batcher("test", sender, Limits(linger_s=3600, batch_max=4))
    busy(batcher, sender)
    early = [batcher.submit([number]) for number in (1, 2, 3)]
    sender.gate.set()
    rest = batcher.submit([4])
    assert [future.result(60) for future in [*early, rest]] == [[10], [20], [30], [40]]
    assert sender.sizes == [1, 4]
    assert batcher.close(60)


def test_closing_ends_the_linger(sender):
    batcher = Batcher("test", sender, Limits(linger_s=3600))
    busy(batcher, sender)
    waiting = batcher.submit([1])
    sender.gate.set()
    assert batcher.close(60)
    assert waiting.result(0) == [10]


@pytest.mark.parametrize("batch_max", [1, 3, 8])
def test_a_request_has_at_most_so_many(sender, batch_max):
    batcher = Batcher("test", sender, Limits(batch_max=batch_max))
    busy(batcher, sender)
    futures = [batcher.submit([number]) for number in range(20)]
    sender.gate.set()
    assert [future.result(60) for future in futures] == [[number * 10] for number in range(20)]
    assert max(sender.sizes) == batch_max
    assert batcher.close(60)


def test_with_requests_of_one_each_caller_makes_his_own_at_once(sender):
    batcher = Batcher("test", sender, Limits(batch_max=1))
    sender.gate.clear()
    with ThreadPoolExecutor(8) as pool:
        callers = [pool.submit(batcher.answers, [number]) for number in range(8)]
        for _ in callers:
            assert sender.entered.acquire(timeout=60), "all of them are under way together"
        sender.gate.set()
        assert [caller.result(60) for caller in callers] == [[number * 10] for number in range(8)]
    assert sorted(sender.requests) == [(None, [number]) for number in range(8)]
    assert batcher.answers([]) == []
    with pytest.raises(InvalidRequest):
        batcher.answers([-1])
    assert batcher.close(60)


def test_closing_waits_for_callers_that_make_their_own_request(sender):
    batcher = Batcher("test", sender, Limits(batch_max=1))
    sender.gate.clear()
    with ThreadPoolExecutor(2) as pool:
        caller = pool.submit(batcher.answers, [1])
        assert sender.entered.acquire(timeout=60)
        assert not batcher.close(0.01)
        closing = pool.submit(batcher.close, 60)
        sender.gate.set()
        assert closing.result(60)
        assert caller.result(60) == [10]
    with pytest.raises(Closed):
        batcher.answers([2])


def test_closing_in_the_middle_of_ones_own_request_does_not_wait_for_it(sender):
    """As a signal handler may."""
    closed = []

    def send(key, items, give_up_at):
        closed.append(alone.close(60))
        return items

    alone: Batcher[int, int] = Batcher("test", send, Limits(batch_max=1))
    assert alone.answers([1]) == [1]
    assert closed == [True]


def test_closing_in_the_middle_of_ones_own_request_waits_for_others_no_longer_than_they_take(sender):
    other_began, closing = threading.Event(), threading.Event()

    def send(key, items, give_up_at):
        if items == [2]:
            other_began.set()
            assert closing.wait(60)
        else:
            assert other_began.wait(60)
            threading.Timer(0.05, closing.set).start()
            assert alone.close(3600), "an hour: it is told when the other one is through"
        return items

    alone: Batcher[int, int] = Batcher("test", send, Limits(batch_max=1))
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(alone.answers, [2])
        assert pool.submit(alone.answers, [1]).result(60) == [1]
        assert other.result(60) == [2]


def test_a_request_has_at_most_so_many_bytes_but_a_large_parcel_goes(batcher, sender):
    busy(batcher, sender)
    for size_bytes in (BATCH_BYTES_MAX // 2, BATCH_BYTES_MAX // 2, 1, 5 * BATCH_BYTES_MAX):
        last = batcher.submit([1], size_bytes=size_bytes)
    sender.gate.set()
    last.result(60)
    assert sender.sizes == [1, 2, 1, 1]


def test_a_parcel_is_never_cut(sender):
    batcher = Batcher("test", sender, Limits(batch_max=4))
    busy(batcher, sender)
    futures = [batcher.submit(list(range(size))) for size in (3, 3, 9)]
    sender.gate.set()
    assert [len(future.result(60)) for future in futures] == [3, 3, 9]
    assert sender.sizes == [1, 3, 3, 9]
    assert batcher.close(60)


def test_only_the_culprit_hears_of_it(batcher, sender):
    """A hundred strangers, two of them wrong; one of these with a list of his own, which fails whole."""
    busy(batcher, sender)
    parcels = [[number] for number in range(1, 101)]
    parcels[4], parcels[63] = [-1], [7, -7, 8]
    futures = [batcher.submit(parcel) for parcel in parcels]
    sender.gate.set()
    for parcel, future in zip(parcels, futures, strict=True):
        if min(parcel) < 0:
            with pytest.raises(InvalidRequest):
                future.result(60)
        else:
            assert future.result(60) == [item * 10 for item in parcel]
    assert len(sender.requests) < 40, "halving finds the culprits in fewer requests than one for each"


@pytest.mark.parametrize(
    "error", [refusal(429, "overloaded", ""), refusal(401, "unauthorized", ""), Unreachable("gone", maybe_done=True)]
)
def test_what_concerns_all_is_said_to_all(batcher, sender, error):
    busy(batcher, sender)
    futures = [batcher.submit([number]) for number in range(1, 6)]
    sender.error = error
    sender.gate.set()
    for future in futures:
        assert future.exception(60) is error
    assert sender.sizes == [1, 5]


def test_an_unforeseen_error_reaches_the_callers_and_the_thread_goes_on(batcher, sender):
    sender.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        batcher.submit([1]).result(60)
    sender.error = None
    assert batcher.submit([1]).result(60) == [10]


def test_keys_do_not_share_and_do_not_starve(batcher, sender):
    busy(batcher, sender)
    futures = [batcher.submit([number], key="ab"[number % 2]) for number in range(10)]
    sender.gate.set()
    for future in futures:
        future.result(60)
    assert sender.requests[1:] == [("a", [0, 2, 4, 6, 8]), ("b", [1, 3, 5, 7, 9])]


def test_cancelled_before_it_was_taken_it_is_not_sent(batcher, sender):
    busy(batcher, sender)
    cancelled, kept = batcher.submit([1]), batcher.submit([2])
    assert cancelled.cancel()
    sender.gate.set()
    assert kept.result(60) == [20]
    assert sender.requests[1] == (None, [2])


def test_who_waited_too_long_hears_it_and_is_not_sent(sender, monkeypatch):
    batcher = Batcher("test", sender, Limits(retry_for_s=30, timeout_s=10))
    clock = [0.0]
    monkeypatch.setattr("escrow._batching.time.monotonic", lambda: clock[0])
    busy(batcher, sender)
    late = batcher.submit([1])
    clock[0] = 39.0
    patient = batcher.submit([2])
    clock[0] = 40.0
    sender.gate.set()
    error = late.exception(60)
    assert isinstance(error, Unreachable)
    assert not error.maybe_done
    assert patient.result(60) == [20]
    assert sender.requests[1:] == [(None, [2])]
    assert batcher.close(60)


def test_close_sends_what_waits_and_then_nothing_more(batcher, sender):
    busy(batcher, sender)
    waiting = batcher.submit([1])
    sender.gate.set()
    assert batcher.close(60)
    assert waiting.result(0) == [10]
    with pytest.raises(Closed):
        batcher.submit([2])


def test_what_is_abandoned_hears_it(batcher, sender):
    first = busy(batcher, sender)
    waiting = batcher.submit([1])
    assert not batcher.close(0)
    batcher.abandon()
    with pytest.raises(Closed):
        waiting.result(60)
    sender.gate.set()
    assert first.result(60) == [0]


def test_nothing_is_nothing(batcher, sender):
    assert batcher.submit([]).result(0) == []
    assert sender.requests == []


@pytest.mark.parametrize(("name", "value"), [("batch_max", 0), ("linger_s", -1)])
def test_arguments_are_checked(sender, name, value):
    with pytest.raises(ValueError, match=f"{name}: is {value}"):
        Batcher("test", sender, Limits(**{name: value}))


def test_many_callers_each_get_their_own(batcher, sender):
    """Random parcels from many threads, some of them wrong: every answer belongs to its question."""
    seed = Random().randrange(1 << 32)
    print(f"seed {seed}")
    rng = Random(seed)
    plans = [[[rng.randrange(-1, 50) for _ in range(rng.randrange(1, 4))] for _ in range(40)] for _ in range(16)]

    def call(parcels):
        for parcel in parcels:
            if min(parcel) < 0:
                with pytest.raises(InvalidRequest):
                    batcher.submit(parcel).result(60)
            else:
                assert batcher.submit(parcel).result(60) == [item * 10 for item in parcel]

    with ThreadPoolExecutor(16) as pool:
        for done in [pool.submit(call, parcels) for parcels in plans]:
            done.result()
    sent = sum(len(items) for _, items in sender.requests)
    assert sent >= sum(len(parcel) for parcels in plans for parcel in parcels)


# --- waking one another -------------------------------------------------------------------------------------------------------
def test_one_who_was_interrupted_holds_nobody_up(batcher, sender):
    """He is in the middle of a row of waiting threads when an exception takes him away: those behind him wake all the same."""
    sender.gate.clear()
    first = batcher.submit([0])
    assert sender.entered.acquire(timeout=60)
    futures = [batcher.submit([number]) for number in range(1, 6)]
    results = {}
    threads = [threading.Thread(target=lambda n=n, f=f: results.update({n: f.result()})) for n, f in enumerate(futures, 1)]
    for thread in threads:
        thread.start()
    while not all(future._waits for future in futures):
        threading.Event().wait(0.01)
    taken = futures[1]
    taken._gate, taken._waits = threading.Lock(), True  # a gate at which nobody waits: whoever was there has gone
    taken._gate.acquire()
    sender.gate.set()
    for thread in (threads[0], *threads[2:]):
        thread.join(60)
        assert not thread.is_alive()
    assert first.result() == [0]
    assert results[5] == [50]


def test_several_threads_may_wait_for_one_parcel(batcher, sender):
    sender.gate.clear()
    future = batcher.submit([7])
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(future.result) for _ in range(4)]
        sender.gate.set()
        assert [each.result(60) for each in waiting] == [[70]] * 4
