"""Every release opens what the earlier ones wrote: one kept store for each format version (tests/fixtures/make_fixture.py)."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from store.edge.store import EdgeStore, End
from store.inspect.dump import dump
from store.inspect.verify.store import verify
from store.job.store import JobStore
from store.messages import Message
from store.records import OpKind
from store.tables.ends import Verdict
from tests.support.sample_store import T0_MS

FIXTURES = Path(__file__).parents[2] / "fixtures"
#: Format 2 is format 1 and what `needs` names (tests/unit/store/edge/test_removal.py).
VERSIONS = (1,)


@pytest.fixture(params=VERSIONS, ids=[f"format-{version}" for version in VERSIONS])
def old_store(request, tmp_path):
    with tarfile.open(FIXTURES / f"store-format-{request.param}.tar.xz") as archive:
        archive.extractall(tmp_path / "store", filter="data")
    return tmp_path / "store"


def states(root):
    return [record["state"] for record in dump(root, what="state", topic=None, start=0, limit=None)]


EXPECTED = ["COMMITTED", "ROLLED_BACK", "PREPARED", "COMMITTED", "PREPARED", "DISCARDED_EXPIRED", "QUARANTINED", "COMMITTED"] + [
    "PREPARED"
] * 5


def test_it_is_sound_before_anybody_opens_it(old_store):
    assert verify(old_store).problems == []
    assert states(old_store) == EXPECTED


def test_it_opens_and_its_ids_still_work(old_store):
    with EdgeStore(old_store) as edge, JobStore(old_store) as job:
        assert edge.recovery.clean
        assert job.recovery.clean
        assert not job.recovery.rebuilt
        answers = edge.end(
            [End(0, OpKind.COMMIT, "orders"), End(1, OpKind.COMMIT, "orders"), End(8, OpKind.COMMIT, "Aa")], T0_MS + 1_000_000
        )
        assert [answer.verdict for answer in answers] == [Verdict.ALREADY, Verdict.CONFLICT, Verdict.ACCEPTED]
        assert list(edge.prepare([Message("orders", "paid", b"half 3", dedup_key="once")], T0_MS + 60_000)) == [3]
    assert verify(old_store).problems == []


def test_it_can_be_rebuilt(old_store):
    with EdgeStore(old_store), JobStore(old_store, rebuild=True) as job:
        assert job.recovery.rebuilt
    assert verify(old_store).problems == []
    assert states(old_store) == EXPECTED
