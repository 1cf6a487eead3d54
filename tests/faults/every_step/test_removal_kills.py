"""SIGKILL at every step of a removal, of the retention that frees a number, and of its next use: nobody gets another's message."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from store.directory import TOPIC_REMOVAL, StoreDirectory
from store.edge.removal import remove_topics
from store.edge.store import EdgeStore
from store.inspect.verify.store import verify
from store.io import disk
from store.messages import Message
from tests.support.points import ways
from tests.support.service import SMALLEST, Service, read_topic

DAY_S = 86_400
OLD, NEW, OTHER = "old", "new", "filler"


def send(service: Service, topic: str, *bodies: bytes) -> None:
    service.edge.wait(service.edge.append_messages([Message("g", topic, body) for body in bodies], service.now_ms).ticket)
    service.settle()


def age_out(service: Service) -> None:
    send(service, OTHER, *[b"x" * 30_000] * 2)
    service.sleep(3 * DAY_S)
    send(service, OTHER, b"x" * 30_000)
    for _ in range(3):
        service.retain(DAY_S)


def life(root: Path, now_ms: int) -> None:
    """What is killed: the topic goes, its number is freed, and the next topic gets it."""
    with Service(root, geometry=SMALLEST, now_ms=now_ms) as service:
        remove_topics(service.edge, [OLD])
        age_out(service)
        age_out(service)
        send(service, NEW, b"new 1", b"new 2")


@pytest.fixture
def prepared(tmp_path: Path) -> tuple[Path, int]:
    """A store whose topic `old` had messages that have aged out; and the time there."""
    root = tmp_path / "store"
    with Service(root, geometry=SMALLEST) as service:
        send(service, OLD, *[b"old %d" % number for number in range(8)])
        age_out(service)
        age_out(service)
        now_ms = service.now_ms
    return root, now_ms


def killed(work: Callable[[], None]) -> bool:
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(status := os.waitpid(child, 0)[1]) and os.WTERMSIG(status) == signal.SIGKILL


def points_of(prepared: tuple[Path, int], tmp_path: Path) -> list[tuple[str, str]]:
    copy = tmp_path / "recorded"
    shutil.copytree(prepared[0], copy)
    with disk.recording() as passed:
        life(copy, prepared[1])
    return [(point, way) for point in sorted(passed) for way in ways(point)]


def check(root: Path, now_ms: int) -> None:
    """Old or new, whole, and it goes on: the removal can be repeated, the number used, the messages read."""
    with Service(root, geometry=SMALLEST, now_ms=now_ms + 30 * DAY_S * 1000) as service:
        service.settle()
        known = service.edge.dictionary
        if known.removed or any(known.editions):
            assert TOPIC_REMOVAL in StoreDirectory(root).needs
        for topic in (OLD, NEW):
            assert all(each.body.startswith(topic.encode()) for each in read_topic(root, topic))
        remove_topics(service.edge, [OLD])
        assert known.topic_no(OLD) is None
        age_out(service)
        age_out(service)
        send(service, NEW, b"new 3")
        bodies = [each.body for each in read_topic(root, NEW)]
        assert bodies.count(b"new 3") == 1
        assert all(each.queue_offset >= 2 for each in read_topic(root, NEW) if known.topic_no(NEW) == 0)
    assert verify(root).problems == []


def test_kills_at_every_step(prepared: tuple[Path, int], tmp_path: Path) -> None:
    root, now_ms = prepared
    with EdgeStore(root) as edge:
        assert edge.dictionary.topic_no(OLD) == 0
    points, died = points_of(prepared, tmp_path), 0
    assert {"format.replace", "dictionary.write", "directory.remove"} <= {point for point, _ in points}
    for number, (point, way) in enumerate(points):
        copy = tmp_path / str(number)
        shutil.copytree(root, copy)

        def work(point: str = point, way: str = way, copy: Path = copy) -> None:
            disk.arm(point, way)
            life(copy, now_ms)

        died += killed(work)
        check(copy, now_ms)
        shutil.rmtree(copy)
    assert died >= len(points) * 9 // 10
