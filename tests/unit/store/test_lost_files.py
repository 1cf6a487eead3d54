"""Files that went missing: derived ones are made anew, and what cannot be is a typed error, never an IndexError."""

from __future__ import annotations

import pytest

from checker.policy import Policy
from store.directory import Geometry
from store.edge.store import EdgeStore, End
from store.errors import Corrupt, CursorBeyondLog
from store.inspect.verify.store import verify
from store.io.pages import EDGE_MAGIC, EdgeSlot, PublishedPage
from store.job.store import JobStore
from store.messages import Message
from store.records import OpKind
from streaming.settlement.settle import Settler, read_feed

SMALL = Geometry(64 * 1024, 64, 64, 64, 64)
NOW_MS = 1_700_000_000_000


@pytest.fixture
def store(tmp_path):
    """200 halves, every second one committed; settled and closed."""
    with EdgeStore(tmp_path, geometry=SMALL, default_queues=1) as edge, JobStore(tmp_path) as job:
        settler = Settler(job, Policy())
        for _ in range(10):
            halves = edge.prepare([Message("g", "t", b"x" * 100, dedup_key=f"{edge.half_end + n}") for n in range(20)], NOW_MS)
            edge.end([End(half, OpKind.COMMIT, "g") for half in halves[::2]], NOW_MS)
            settler.settle(read_feed(job.log, job.marker.half_cursor, job.marker.op_cursor), NOW_MS)
    return tmp_path


def last_file(directory):
    return max(directory.iterdir())


@pytest.mark.parametrize("queue", ["half/0", "op/0"])
def test_a_lost_queue_file_is_made_anew_from_the_log(store, queue):
    before = [path.read_bytes() for path in sorted((store / queue).iterdir())]
    last_file(store / queue).unlink()
    EdgeStore(store).close()
    assert [path.read_bytes() for path in sorted((store / queue).iterdir())] == before
    with EdgeStore(store):
        JobStore(store).close()
    assert verify(store).problems == []


@pytest.mark.parametrize("lost", ["catalogue", "statetable/0"])
def test_a_lost_derived_file_of_the_job_makes_it_rebuild(store, lost):
    last_file(store / "transaction" / "generation-000001" / lost).unlink()
    with EdgeStore(store), JobStore(store) as job:
        assert job.recovery.rebuilt
        assert job.catalogue.extent(0) == (0, 100)
        assert job.marker.pending == job.table.pending == 100
    assert verify(store).problems == []


def test_a_lost_redo_file_is_settled_again_from_the_logs(store):
    last_file(store / "transaction/redolog/TRANSACTION_REDOLOG_TOPIC_XXXX/0").unlink()
    with EdgeStore(store), JobStore(store) as job:
        assert job.recovery.rebuilt
        Settler(job, Policy()).settle(read_feed(job.log, job.marker.half_cursor, job.marker.op_cursor), NOW_MS)
        assert job.catalogue.extent(0) == (0, 100)
        assert job.marker.pending == job.table.pending == 100
    assert verify(store).problems == []


def test_a_truncated_dedup_file_is_named(store):
    path = last_file(store / "dedup")
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(Corrupt, match="dedup keys"):
        EdgeStore(store)


def test_a_published_end_beyond_all_files_is_refused_at_once(store):
    page = PublishedPage(store / "edge.published", EDGE_MAGIC, writable=True)
    page[EdgeSlot.LOG_END] = 1 << 60
    with pytest.raises(CursorBeyondLog):
        EdgeStore(store)
