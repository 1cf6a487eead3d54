"""A worker that is quick takes a handful of checks; one that is slow keeps nobody's answer back; a culprit stands alone."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from escrow import _checking
from escrow._checking import CheckLoop
from escrow.errors import refusal
from escrow.messages import Check, EndAnswer, Outcome, Verdict


def check(number):
    return Check(f"id-{number}", "orders", "paid", b"x", "", "", {}, attempt=1, born_at_ms=0, stored_at_ms=0)


class World:
    """What the loop asks and tells: one page of questions; every answer stands, but a parcel with the culprit is refused."""

    def __init__(self, count, culprit=None):
        self._pages, self._culprit = [[check(number) for number in range(count)]], culprit
        self.parcels, self.refused = [], []
        self.all_said, self._count = threading.Event(), count
        self.transport = SimpleNamespace(abort_polls=lambda: None)

    def poll_checks(self, group, member, *, max, wait_s):
        if not self._pages:
            self.all_said.wait(60)
        return self._pages.pop()[:max] if self._pages else []

    def end(self, ends):
        said: Future[list[EndAnswer]] = Future()
        if self._culprit in [end.id for end in ends]:
            self.refused.append(ends)
            said.set_exception(refusal(400, "bad", "not this one"))
        else:
            self.parcels.append([end.id for end in ends])
            said.set_result([EndAnswer(Verdict.ACCEPTED, "", "") for _ in ends])
        told = sum(map(len, self.parcels)) + sum(len(each) == 1 for each in self.refused)
        if told == self._count:
            self.all_said.set()
        return said


def run(world, listener):
    """One worker that was quick so far."""
    loop = CheckLoop(world, "orders", "me", listener, world.end, workers=1, wait_s=0.0)
    loop._held_max = _checking.HELD_MOST
    loop.start()
    assert world.all_said.wait(60)
    assert loop.stop(time.monotonic() + 60)


def commit(_):
    return Outcome.COMMIT


def test_a_quick_worker_says_its_answers_together(monkeypatch):
    monkeypatch.setattr(_checking, "HANDFUL_S", 3600.0)
    world = World(_checking.HANDFUL + 8)
    run(world, commit)
    assert [len(parcel) for parcel in world.parcels] == [_checking.HANDFUL, 8]


def test_a_slow_one_says_each_answer_at_once(monkeypatch):
    monkeypatch.setattr(_checking, "HANDFUL_S", 0.0)
    world = World(20)
    run(world, commit)
    assert world.parcels == [[f"id-{number}"] for number in range(20)]


@pytest.mark.parametrize("culprit", ["id-0", "id-11", "id-19"])
def test_the_others_do_not_hear_of_a_culprit(monkeypatch, culprit):
    monkeypatch.setattr(_checking, "HANDFUL_S", 3600.0)
    world = World(20, culprit)
    run(world, commit)
    assert sorted(id for parcel in world.parcels for id in parcel) == sorted({f"id-{n}" for n in range(20)} - {culprit})
    assert [len(each) for each in world.refused] == [20, 1]


def test_a_listener_that_fails_is_unknown_and_the_rest_is_answered(monkeypatch):
    monkeypatch.setattr(_checking, "HANDFUL_S", 3600.0)
    heard = []

    def listener(asked):
        if asked.id == "id-3":
            raise SystemExit("no database")
        return Outcome.ROLLBACK

    class Heard(World):
        def end(self, ends):
            heard.extend(ends)
            return super().end(ends)

    run(Heard(8), listener)
    assert {each.id for each in heard if each.outcome is Outcome.UNKNOWN} == {"id-3"}
    assert len(heard) == 8
