"""A torn tail that the owner of its journal has not cut yet never counts as flushed, whoever opens the store meanwhile."""

from __future__ import annotations

import shutil

import pytest

from store.admin.backup import backup, restore
from store.admin.rebuild import rebuild
from store.directory import Geometry
from store.edge.store import EdgeStore
from store.job.store import JobStore
from store.messages import Message
from store.tables.journals.audit import Audit, AuditRecord
from store.tables.journals.consumers import ConsumerKind, ConsumerRecord, Consumers

SMALL = Geometry(commit_log_segment_bytes=1 << 20)
NOW_MS = 1_800_000_000_000
RECORD = ConsumerRecord(ConsumerKind.OFFSET, 0, 0, 1)


@pytest.fixture(params=["consumers", "audit"])
def torn(request, tmp_path):
    """A killed store, one of whose journals has a torn tail."""
    root = tmp_path / "store"
    edge = EdgeStore(root, geometry=SMALL, default_queues=1)
    JobStore(root).close()
    edge.wait(edge.append_messages([Message("g", "t", b"x")], NOW_MS).ticket)
    consumers, audit = Consumers(root / "consumers", writable=True), Audit(root / "audit", writable=True)
    consumers.append([RECORD])
    audit.append(AuditRecord(1, "ada", "resume", "1", "", "done"))
    consumers.close()
    audit.close()
    edge._release()  # as kill -9 leaves it
    with (root / request.param).open("ab") as file:
        file.write(b"\x20\x00\x00\x00\x01\x02")
    return root


def opens(root):
    with EdgeStore(root):
        consumers, audit = Consumers(root / "consumers", writable=True), Audit(root / "audit", writable=True)
        assert consumers.progress[0, 0].offset == 1
        assert [each.actor for each in audit.records()] == ["ada"]
        consumers.close()
        audit.close()


def test_after_a_start_that_failed_later(torn):
    EdgeStore(torn).close()
    opens(torn)
    opens(torn)


def test_after_a_rebuild(torn):
    rebuild(torn)
    opens(torn)


def test_after_a_restore(torn, tmp_path):
    backup(torn, tmp_path / "backup")
    shutil.rmtree(torn)
    restore(tmp_path / "backup", torn)
    opens(torn)
