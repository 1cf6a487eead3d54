"""Backup and restore, killed at every step: half a backup is no backup, half a restore is no store, or all of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from store.admin.backup import backup, restore
from store.edge.store import EdgeStore
from store.errors import NotAStore
from store.io import disk
from store.job.store import JobStore
from tests.support.check_store import check_verify
from tests.support.children import Child, Teller
from tests.support.history import History
from tests.support.service import Service, drop

RETENTION_S = 600


def worn_store(root: Path) -> dict[int, int]:
    """A store whose first commits retention has taken, ops and all. The next place of every topic queue."""
    service = Service(root)
    service.commit(*service.send(*[b"x" * 300] * 100, queue_id=1))
    service.settle()
    for _ in range(4):
        service.sleep(RETENTION_S + 10)
        service.commit(*service.send(*[b"y" * 300] * 100, queue_id=0))
        service.settle()
        service.retain(RETENTION_S)
    assert service.edge.op_queue.begin > 100, "the ops of queue 1 are gone"
    places = dict(service.edge.next_offset)
    service.close()
    return places


def killed(act: Callable[[], object], point: str, way: str, nth: int) -> bool:
    def main(_teller: Teller) -> None:
        disk.arm(point, way, nth)
        act()

    with Child(History(), main) as child:
        child.finish()
        return child.was_killed


def steps(act: Callable[[], object]) -> dict[str, int]:
    with disk.recording() as passed:
        act()
        return dict(passed)


def test_kill_during_backup(fast_path: Path) -> None:
    root, dest = fast_path / "store", fast_path / "backup"
    worn_store(root)
    passed = steps(lambda: backup(root, dest))
    for point, passes in passed.items():
        for nth in sorted({1, 2, passes}):
            for way in ("kill", "torn") if point.endswith(".replace") else ("kill",):
                shutil.rmtree(dest, ignore_errors=True)
                if killed(lambda: backup(root, dest), point, way, nth) and not (dest / "backup.json").exists():
                    with pytest.raises(NotAStore):
                        restore(dest, fast_path / "restored")
                    assert not (fast_path / "restored").exists()
    check_verify(root)


def test_kill_during_restore(fast_path: Path) -> None:
    root, kept, path = fast_path / "store", fast_path / "backup", fast_path / "restored"
    places = worn_store(root)
    backup(root, kept)
    passed = steps(lambda: restore(kept, path))
    unmade = whole = 0
    for point, passes in sorted(passed.items()):
        for nth in sorted({1, passes}):
            shutil.rmtree(path, ignore_errors=True)
            if not killed(lambda: restore(kept, path), point, "kill", nth):
                continue
            if not (path / "format.json").exists():
                unmade += 1
                if path.exists() and any(path.iterdir()):
                    with pytest.raises(NotAStore):
                        EdgeStore(path)
                continue
            whole += 1
            edge = EdgeStore(path)
            assert {**edge.next_offset, **places} == edge.next_offset, f"{point} at {nth}: places would be given again"
            job = JobStore(path)
            assert (job.marker.half_cursor, edge.half_end) == (500, 500), f"{point} at {nth}"
            drop(job)
            edge.close()
            with Service(path) as service:
                service.settle()
                assert len(service.bodies()) == 100, f"{point} at {nth}"
    assert unmade
    assert whole
