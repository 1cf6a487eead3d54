"""SIGKILL at every step of a life with transactions of many messages, names and joint ends: each is whole, or not there."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

from store.directory import TRANSACTIONS, StoreDirectory
from store.edge.store import Head
from store.inspect.verify.store import verify
from store.io import disk
from store.messages import Membership, Message
from store.records import OpKind
from store.tables.ends import Verdict
from tests.support.points import ways
from tests.support.service import SMALLEST, Service, read_topic

#: Bodies of what is released together.
TOGETHER = ({b"one 0", b"one 1", b"one 2"}, {b"two 0", b"two 1", b"three 0"})
TOPICS = ("paid", "shipped")


def transaction(service: Service, what: str, count: int, name: str = "") -> int:
    head = Message("orders", TOPICS[0], f"{what} 0".encode(), name=name, dedup_key=what)
    bodies = [f"{what} {ordinal}".encode() for ordinal in range(1, count)]
    members = [
        Message("orders", TOPICS[ordinal % 2], body, member=Membership(-ordinal, ordinal)) for ordinal, body in enumerate(bodies, 1)
    ]
    offset: int = service.edge.prepare([head, *members], service.now_ms)[0]
    return offset


def life(root: Path) -> None:
    """What is killed."""
    with Service(root, geometry=SMALLEST) as service:
        service.edge.prepare([Message("orders", "paid", b"plain")], service.now_ms)
        first = transaction(service, "one", 3, "daily")
        service.settle()
        service.end(first, OpKind.COMMIT, members=2)
        two, three = transaction(service, "two", 2), transaction(service, "three", 1)
        late = transaction(service, "late", 2, "daily")
        service.settle(records_max=2)
        service.end(late, OpKind.COMMIT, members=1)
        service.end(two, OpKind.COMMIT, members=1, joint=(Head(three, 0),))
        service.settle(records_max=2)


def killed(work: Callable[[], None]) -> bool:
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(status := os.waitpid(child, 0)[1]) and os.WTERMSIG(status) == signal.SIGKILL


def check(root: Path) -> None:
    """All of it or none, and it goes on: what was not reached is done now, and changes nothing where it was."""
    with Service(root, geometry=SMALLEST) as service:
        service.settle()
        released = {each.body for topic in TOPICS for each in read_topic(root, topic)}
        for whole in TOGETHER:
            assert not released & whole or released >= whole
        assert not {body for body in released if body.startswith(b"late")}
        if released:
            assert TRANSACTIONS in StoreDirectory(root).needs
        again = transaction(service, "four", 3, "daily")
        answer = service.end(again, OpKind.COMMIT, members=2)
        assert answer.verdict is (Verdict.ALREADY if b"one 0" in released else Verdict.ACCEPTED)
        service.settle()
        bodies = [each.body for topic in TOPICS for each in read_topic(root, topic)]
        assert len(bodies) == len(set(bodies))
        assert {b"four 0", b"four 1", b"four 2"} <= set(bodies) or b"one 0" in bodies
    assert verify(root).problems == []


def test_kills_at_every_step(tmp_path: Path) -> None:
    recorded = tmp_path / "recorded"
    with disk.recording() as passed:
        life(recorded)
    check(recorded)
    points, died = [(point, way) for point in sorted(passed) for way in ways(point)], 0
    assert {"format.replace", "names.create", "commitlog.write", "redo.write"} <= {point for point, _ in points}
    for number, (point, way) in enumerate(points):
        copy = tmp_path / str(number)

        def work(point: str = point, way: str = way, copy: Path = copy) -> None:
            disk.arm(point, way)
            life(copy)

        died += killed(work)
        if (copy / "format.json").exists():
            check(copy)
        shutil.rmtree(copy, ignore_errors=True)
    assert died == len(points)
