"""Transactions as functions and as blocks, ordinary messages, shared requests, check-backs, and a clean end."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from escrow import (
    Check,
    Closed,
    End,
    EndConflict,
    EndRefused,
    InvalidRequest,
    Message,
    NotAllowed,
    Outcome,
    Producer,
    TryLater,
    Unavailable,
    Unreachable,
    Verdict,
    _checking,
)
from tests.support.fake_escrow import FakeEscrow, Problem, eventually

PAID = Message("paid", "order 1")


@pytest.fixture
def producer(escrow):
    with Producer(escrow.url, "orders") as producer:
        yield producer


def said(escrow, id):
    """(outcome, remark, from_check) of every end of this half."""
    return [(end["outcome"], end.get("remark", ""), end.get("from_check", False)) for end in escrow.halves[id].ends]


# --- send_in_transaction ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("outcome", "state", "bodies"), [(Outcome.COMMIT, "COMMITTED", [b"order 1"]), (Outcome.ROLLBACK, "ROLLED_BACK", [])]
)
def test_the_outcome_of_the_local_transaction_is_said(escrow, producer, outcome, state, bodies):
    given = []

    def local(message, arg):
        given.append((message.transaction_id, message.body, arg, escrow.halves[message.transaction_id].state))
        return outcome

    result = producer.send_in_transaction(PAID, local, {"order": 1})
    assert given == [(result.id, "order 1", {"order": 1}, "PREPARED")]
    assert (result.outcome, result.half_offset, result.answer.verdict, result.error) == (outcome, 0, Verdict.ACCEPTED, None)
    assert result.committed == (outcome is Outcome.COMMIT)
    assert escrow.halves[result.id].state == state
    assert escrow.bodies("paid") == bodies


def test_a_failed_send_does_not_run_the_local_transaction(escrow, producer):
    escrow.fail("/v1/halves", Problem(403, "forbidden", "this group may not"))
    with pytest.raises(NotAllowed):
        producer.send_in_transaction(PAID, lambda *_: pytest.fail("was run"))
    assert escrow.halves == {}


def test_an_exception_says_unknown_and_is_raised_on(escrow, producer):
    def local(message, arg):
        raise RuntimeError(f"disk full at {arg}\ud800")

    with pytest.raises(RuntimeError, match="disk full"):
        producer.send_in_transaction(PAID, local, 7)
    [id] = escrow.halves
    escrow.until(lambda: escrow.halves[id].ends)
    assert said(escrow, id) == [("unknown", "RuntimeError: disk full at 7?", False)]


@pytest.mark.parametrize("returned", [None, True, "commit", 1, "x" * 5000])
def test_what_is_no_outcome_is_unknown(escrow, producer, returned):
    result = producer.send_in_transaction(PAID, lambda *_: returned)
    assert result.outcome is Outcome.UNKNOWN
    [(outcome, remark, _)] = said(escrow, result.id)
    assert outcome == "unknown"
    assert remark.startswith("the local transaction returned ")
    assert len(remark) <= 500
    assert escrow.halves[result.id].state == "PREPARED"


def test_an_end_that_cannot_be_delivered_raises_nothing(escrow, caplog):
    """The local transaction is a fact; check-back settles the half."""
    escrow.fail("/v1/ends", Problem(503, "closing"))
    with Producer(escrow.url, "orders", retry_for_s=0) as producer:
        result = producer.send_in_transaction(PAID, lambda *_: Outcome.COMMIT)
    assert (result.outcome, result.answer, result.committed) == (Outcome.COMMIT, None, False)
    assert isinstance(result.error, Unavailable)
    assert "check-back settles it" in caplog.text


def test_a_conflict_is_raised(escrow, producer):
    def local(message, _):
        producer.end(message.transaction_id, Outcome.ROLLBACK)  # as a check-back or an operator would
        return Outcome.COMMIT

    with pytest.raises(EndConflict, match="COMMIT was said, but it had ended before as ROLLED_BACK") as caught:
        producer.send_in_transaction(PAID, local)
    assert caught.value.result.answer is not None
    assert caught.value.result.answer.verdict is Verdict.CONFLICT
    assert not caught.value.result.committed


def test_a_refused_end_is_raised(escrow, producer):
    def local(message, _):
        del escrow.halves[message.transaction_id]
        return Outcome.COMMIT

    with pytest.raises(EndRefused, match="refused: unknown id"):
        producer.send_in_transaction(PAID, local)


@pytest.mark.parametrize("how", ["reset_before", "reset_after"])
@pytest.mark.parametrize("path", ["/v1/halves", "/v1/ends"])
def test_a_broken_connection_changes_nothing(escrow, producer, path, how):
    escrow.fail(path, times=2, **{how: True})
    result = producer.send_in_transaction(PAID, lambda *_: Outcome.COMMIT)
    assert result.committed
    assert len(escrow.halves) == 1
    assert escrow.bodies("paid") == [b"order 1"]


def test_each_half_has_a_dedup_key_of_its_own_unless_it_brings_one(escrow, producer):
    first, second = producer.send_half(PAID), producer.send_half(PAID)
    assert first.id != second.id
    mine = Message("paid", "order 1", dedup_key="order-1")
    assert producer.send_half(mine) == producer.send_half(mine)
    keys = [call["messages"][0]["dedup_key"] for call in escrow.calls_to("/v1/halves")]
    assert len(set(keys)) == 3
    assert keys[2:] == ["order-1", "order-1"]


# --- the with block -----------------------------------------------------------------------------------------------------------
def test_leaving_a_block_normally_commits(escrow, producer):
    with producer.transaction(PAID) as tx:
        assert escrow.halves[tx.id].state == "PREPARED"
        assert (tx.half_offset, tx.message.transaction_id) == (0, tx.id)
    assert tx.result.committed
    assert escrow.bodies("paid") == [b"order 1"]


def test_an_exception_in_a_block_says_unknown(escrow, producer):
    with pytest.raises(KeyError), producer.transaction(PAID) as tx:
        raise KeyError("stock")
    escrow.until(lambda: escrow.halves[tx.id].ends)
    assert said(escrow, tx.id) == [("unknown", "KeyError: 'stock'", False)]
    assert tx.result is None


def test_an_exception_in_a_block_rolls_back_where_that_was_asked_for(escrow, producer):
    with pytest.raises(KeyError), producer.transaction(PAID, on_error=Outcome.ROLLBACK) as tx:
        raise KeyError("stock")
    assert said(escrow, tx.id) == [("rollback", "KeyError: 'stock'", False)]
    assert tx.result.outcome is Outcome.ROLLBACK


def test_the_blocks_exception_is_heard_though_the_rollback_meets_a_conflict(escrow, producer, caplog):
    def block():
        with producer.transaction(PAID, on_error=Outcome.ROLLBACK) as tx:
            producer.end(tx.id, Outcome.COMMIT)
            raise KeyError("stock")

    with pytest.raises(KeyError):
        block()
    assert "ROLLBACK was said, but it had ended before as COMMITTED" in caplog.text


def test_commit_on_error_is_refused(producer):
    with pytest.raises(ValueError, match="on_error: COMMIT would release"):
        producer.transaction(PAID, on_error=Outcome.COMMIT)


@pytest.mark.parametrize("word", ["commit", "rollback", "unknown"])
def test_an_outcome_said_in_the_block_stands(escrow, producer, word):
    with producer.transaction(PAID) as tx:
        getattr(tx, word)()
        assert [outcome for outcome, *_ in said(escrow, tx.id)] == [word]
    assert [outcome for outcome, *_ in said(escrow, tx.id)] == [word]


def test_an_exception_after_the_outcome_was_said_says_nothing_more(escrow, producer):
    def block():
        with producer.transaction(PAID) as tx:
            tx.commit()
            raise KeyError("after")

    with pytest.raises(KeyError):
        block()
    producer.close()
    assert [outcome for outcome, *_ in said(escrow, "id-0")] == ["commit"]


def test_a_conflict_met_in_the_block_is_not_followed_by_another_word(escrow, producer):
    def block():
        with producer.transaction(PAID) as tx:
            producer.end(tx.id, Outcome.ROLLBACK)
            tx.commit()

    with pytest.raises(EndConflict):
        block()
    producer.close()
    assert [outcome for outcome, *_ in said(escrow, "id-0")] == ["rollback", "commit"]


def test_an_outcome_is_said_once(producer):
    with producer.transaction(PAID) as tx:
        tx.rollback("no stock")
        with pytest.raises(ValueError, match="ROLLBACK was said already"):
            tx.commit()


def test_a_block_that_has_not_begun_has_no_id(producer):
    tx = producer.transaction(PAID)
    with pytest.raises(ValueError, match="has not begun"):
        _ = tx.id
    with tx:
        pass
    with pytest.raises(ValueError, match="used before"), tx:
        pass


# --- the parts ----------------------------------------------------------------------------------------------------------------
def test_ordinary_messages(escrow, producer):
    assert producer.send(PAID).queue_offset == 0
    assert [position.queue_offset for position in producer.send([PAID, PAID])] == [1, 2]
    assert escrow.bodies("paid") == [b"order 1"] * 3


def test_an_ordinary_message_in_doubt_is_raised(escrow, producer):
    escrow.fail("/v1/messages", reset_after=True)
    with pytest.raises(Unreachable) as caught:
        producer.send(PAID)
    assert caught.value.maybe_done


def test_halves_and_ends_in_batches(escrow, producer):
    halves = producer.send_halves([Message("paid", f"order {number}") for number in range(3)])
    answers = producer.end_all([End(half.id, Outcome.COMMIT) for half in halves] + [End("id-9", Outcome.COMMIT)])
    assert [answer.verdict for answer in answers] == ["accepted", "accepted", "accepted", "refused"]
    assert producer.state(halves[0].id)["state"] == "COMMITTED"
    assert len(escrow.calls_to("/v1/halves")) == len(escrow.calls_to("/v1/ends")) == 1


def test_callers_share_requests(escrow, producer):
    """64 callers: while the first request is under way, the other 63 gather."""
    with ThreadPoolExecutor(64) as pool, escrow.holding("/v1/halves") as hold:
        first = pool.submit(producer.send_half, PAID)
        hold.until(1)
        rest = [pool.submit(producer.send_half, Message("paid", f"order {number}")) for number in range(63)]
        eventually(lambda: producer._engine._halves.waiting_count == 63)
        hold.release()
        ids = {future.result().id for future in [first, *rest]}
    assert len(ids) == 64
    assert [len(call["messages"]) for call in escrow.calls_to("/v1/halves")] == [1, 63]


def test_strangers_in_a_shared_request_do_not_hear_of_a_culprit(escrow, producer):
    escrow.judge = lambda message: Problem(403, "forbidden", "not your topic") if message["topic"] == "secret" else None
    topics = ["paid"] * 10 + ["secret"] + ["paid"] * 10
    with ThreadPoolExecutor(21) as pool, escrow.holding("/v1/halves") as hold:
        first = pool.submit(producer.send_half, PAID)
        hold.until(1)
        rest = [pool.submit(producer.send_half, Message(topic, "x")) for topic in topics]
        hold.release()
        errors = [type(future.exception()) for future in [first, *rest]]
    assert errors == [type(None)] * 11 + [NotAllowed] + [type(None)] * 10
    assert len(escrow.halves) == 21


def test_a_wrong_message_names_its_field(producer):
    with pytest.raises(InvalidRequest) as caught:
        producer.send_half(Message("", "x"))
    assert caught.value.field == "messages[0].topic"


def test_a_group_is_needed(escrow):
    with pytest.raises(ValueError, match="group: is empty"):
        Producer(escrow.url, "")


# --- check-backs --------------------------------------------------------------------------------------------------------------
def half_in_doubt(escrow, producer, body="order 1"):
    half = producer.send_half(Message("paid", body, key="k", properties={"p": "v"}))
    escrow.ask(half.id)
    return half.id


@pytest.mark.parametrize(("outcome", "state"), [(Outcome.COMMIT, "COMMITTED"), (Outcome.ROLLBACK, "ROLLED_BACK")])
def test_a_check_is_answered_by_the_listener(escrow, outcome, state):
    asked = []

    def on_check(check):
        asked.append(check)
        return outcome

    with Producer(escrow.url, "orders", on_check=on_check) as producer:
        id = half_in_doubt(escrow, producer)
        escrow.until(lambda: escrow.halves[id].state == state)
    assert said(escrow, id) == [(outcome.value, "", True)]
    [check] = asked
    assert isinstance(check, Check)
    assert (check.id, check.text, check.key, check.attempt, check.properties) == (id, "order 1", "k", 1, {"p": "v"})


@pytest.mark.parametrize(
    ("answer", "remark"),
    [
        (lambda check: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda check: sys.exit("out"), "SystemExit: out"),
        (lambda check: None, "on_check returned None, not an escrow.Outcome"),
        (lambda check: "commit", "on_check returned 'commit', not an escrow.Outcome"),
        (lambda check: True, "on_check returned True, not an escrow.Outcome"),
    ],
)
def test_only_an_explicit_outcome_settles(escrow, answer, remark):
    with Producer(escrow.url, "orders", on_check=answer, check_threads=1) as producer:
        for _ in range(2):  # the thread has survived the first
            id = half_in_doubt(escrow, producer)
            escrow.until(lambda id=id: escrow.halves[id].ends)
            assert said(escrow, id) == [("unknown", remark, True)]


def test_checks_go_on_after_the_server_came_back(escrow, caplog):
    with Producer(escrow.url, "orders", on_check=lambda check: Outcome.COMMIT) as producer:
        path = "/v1/groups/orders/checks"
        escrow.fail(path, Problem(503, "starting", retry_after_s=0), times=2)
        escrow.fail(path, reset_before=True, times=2)
        escrow.fail(path, raw=b"junk", times=2)
        escrow.until(lambda: escrow.polling)
        escrow.hang_up()
        escrow.until(lambda: not escrow.faults and escrow.polling)
        id = half_in_doubt(escrow, producer)
        escrow.until(lambda: escrow.halves[id].state == "COMMITTED")
    assert "no check requests for group orders" in caplog.text


def test_checks_go_on_after_the_server_was_restarted():
    with FakeEscrow() as before:
        producer = Producer(before.url, "orders", on_check=lambda check: Outcome.COMMIT)
        before.until(lambda: before.polling)
    # The producer is closed first: the answer to its last end may still be on the way.
    with FakeEscrow(port=before.port) as after, producer:
        id = half_in_doubt(after, producer)
        after.until(lambda: after.halves[id].state == "COMMITTED")


def test_a_busy_producer_takes_no_more_than_it_can_answer(escrow):
    gate = threading.Event()

    def on_check(check):
        gate.wait(60)
        return Outcome.COMMIT

    with Producer(escrow.url, "orders", on_check=on_check, check_threads=1) as producer:
        ids = [half_in_doubt(escrow, producer, f"order {number}") for number in range(30)]
        escrow.until(lambda: sum(half.attempts for half in escrow.halves.values()) == 8)
        assert len(escrow.checks["orders"]) == 22
        gate.set()
        escrow.until(lambda: all(escrow.halves[id].state == "COMMITTED" for id in ids))


def test_a_quick_producer_takes_more_at_once_and_a_slow_one_few_again(escrow, monkeypatch):
    polled: list[int] = []
    poll, gate = escrow._poll_checks, threading.Event()

    def noted(group, count, wait_s):
        polled.append(count)
        return poll(group, count, wait_s)

    def on_check(check):
        gate.wait(60)
        return Outcome.COMMIT

    def storm(producer, count):
        """So many checks wait before the first one is answered."""
        gate.clear()
        for half in producer.send_halves([Message("paid", f"order {number}") for number in range(count)]):
            escrow.ask(half.id)
        gate.set()
        escrow.until(lambda: all(half.state == "COMMITTED" for half in escrow.halves.values()))

    monkeypatch.setattr(escrow, "_poll_checks", noted)
    with Producer(escrow.url, "orders", on_check=on_check, check_threads=1) as producer:
        monkeypatch.setattr(_checking, "QUICK_S", 3600.0)  # quick, however busy this machine is
        storm(producer, 600)
        assert max(polled) > 4 * _checking.HELD_PER_WORKER
        monkeypatch.setattr(_checking, "QUICK_S", 0.0)
        monkeypatch.setattr(_checking, "SLOW_S", 0.0)
        storm(producer, 2 * _checking.HELD_MOST)
        assert polled[-1] <= _checking.HELD_PER_WORKER


def test_close_answers_the_checks_in_hand(escrow):
    begun, gate = threading.Event(), threading.Event()

    def on_check(check):
        begun.set()
        gate.wait(60)
        return Outcome.COMMIT

    producer = Producer(escrow.url, "orders", on_check=on_check)
    id = half_in_doubt(escrow, producer)
    assert begun.wait(60)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(producer.close, 60)
        escrow.until(lambda: not escrow.polling)
        gate.set()
        assert closing.result() is True
    assert escrow.halves[id].state == "COMMITTED"


def test_close_does_not_wait_for_ever(escrow):
    begun, gate = threading.Event(), threading.Event()

    def on_check(check):
        begun.set()
        gate.wait(60)

    producer = Producer(escrow.url, "orders", on_check=on_check)
    half_in_doubt(escrow, producer)
    assert begun.wait(60)
    assert producer.close(timeout_s=0.01) is False
    gate.set()
    for thread in [thread for thread in threading.enumerate() if thread.name.startswith("escrow-")]:
        thread.join(60)


def test_a_listener_may_close_its_producer(escrow):
    closed = threading.Event()

    def on_check(check):
        closing.close()
        closed.set()
        return Outcome.COMMIT

    closing = Producer(escrow.url, "orders", on_check=on_check)
    half_in_doubt(escrow, closing)
    assert closed.wait(60)
    for thread in [thread for thread in threading.enumerate() if thread.name.startswith("escrow-")]:
        thread.join(60)


def test_closed_is_closed(escrow, producer):
    assert producer.close() is True
    assert producer.close() is True
    for call in (lambda: producer.send(PAID), lambda: producer.send_half(PAID), lambda: producer.end("x", Outcome.COMMIT)):
        with pytest.raises(Closed):
            call()


FORKS = """
import os, sys, escrow
with escrow.Producer(sys.argv[1], "orders", on_check=lambda check: escrow.Outcome.COMMIT) as producer:
    consumer = escrow.Consumer(sys.argv[1], "paid", "shipping")
    producer.send(escrow.Message("paid", "from the parent"))
    consumer.take(60)
    if os.fork() == 0:
        try:
            producer.send(escrow.Message("paid", "from the child"))
        except escrow.Closed as error:
            print(error, flush=True)
        sys.exit(0)  # leaves the block, closes nothing of the parent's
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    half = producer.send_half(escrow.Message("paid", "in doubt"))
    print(half.id, flush=True)
    sys.stdin.read()
    consumer.close()
"""


def test_a_forked_child_is_told_and_does_no_harm(escrow):
    with subprocess.Popen(
        [sys.executable, "-c", FORKS, escrow.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert "make one after the fork" in process.stdout.readline()
        id = process.stdout.readline().strip()
        polls = len(escrow.calls_to("/v1/groups/orders/checks"))
        escrow.ask(id)
        escrow.until(lambda: escrow.halves[id].state == "COMMITTED")
        process.communicate("")
    assert process.returncode == 0
    assert polls == 1, "the parent's long poll went on all the time"
    assert escrow.bodies("paid") == [b"from the parent", b"in doubt"]


LEAVES = """
import sys, escrow
producer = escrow.Producer(sys.argv[1], "orders", on_check=lambda check: escrow.Outcome.UNKNOWN)
consumer = escrow.Consumer(sys.argv[1], "paid", "shipping")
producer.send(escrow.Message("paid", "x"))
message = consumer.take(60)
message.ack()
try:
    producer.send_in_transaction(escrow.Message("paid", "y"), lambda *_: 1 / 0)
except ZeroDivisionError:
    print("left without close")
"""


def test_a_program_that_closes_nothing_leaves_at_once_and_in_order(escrow):
    """What was handed in before (an ack, an UNKNOWN) has been sent nevertheless."""
    done = subprocess.run([sys.executable, "-c", LEAVES, escrow.url], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("left without close\n", "")
    [half] = escrow.halves.values()
    assert [end["outcome"] for end in half.ends] == ["unknown"]
    assert [lease.done for lease in escrow.leases["paid", "shipping"].values()] == [True]


def test_nothing_is_logged_in_a_quiet_life(escrow, caplog):
    caplog.set_level(logging.DEBUG, "escrow")
    with Producer(escrow.url, "orders", on_check=lambda check: Outcome.COMMIT) as producer:
        producer.send_in_transaction(PAID, lambda *_: Outcome.COMMIT)
    assert caplog.records == []


# --- Escrow away ----------------------------------------------------------------------------------------------------------
def test_a_half_is_given_up_sooner_than_an_end():
    """A request handler begins with it. Named patience counts for both."""
    for retry_for_s, expected in ((None, (5.0, 30.0)), (7, (7, 7))):
        with Producer("http://127.0.0.1:1", "orders", retry_for_s=retry_for_s) as producer:
            engine = producer._engine
            assert (engine.halves_limits.retry_for_s, engine.limits.retry_for_s) == expected


@pytest.mark.parametrize("problem", [Problem(503, "starting"), Problem(429, "overloaded"), None])
def test_what_may_pass_is_one_kind_of_error(escrow, problem):
    with Producer(escrow.url if problem else "http://127.0.0.1:1", "orders", retry_for_s=0) as producer:
        if problem is not None:
            escrow.fail("/v1/halves", problem)
        with pytest.raises(TryLater):
            producer.send_half(PAID)


def test_a_transaction_of_several_messages_is_refused_by_name(escrow, producer):
    with pytest.raises(TypeError, match=r"message: is .*; a transaction has one message; send_halves"):
        producer.transaction([PAID, PAID])
