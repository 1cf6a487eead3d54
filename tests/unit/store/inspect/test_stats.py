"""Stats and rebuild: figures of the sample store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from store.admin.rebuild import rebuild
from store.directory import StoreDirectory
from store.edge.store import EdgeStore
from store.errors import NotAStore, StoreLocked
from store.inspect.stats import stats
from store.inspect.verify.store import verify
from store.job.store import JobStore
from store.messages import Message
from tests.support.sample_store import GEOMETRY, T0_MS, build_sample
from tests.support.service import Service


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stats") / "store"
    build_sample(root)
    return root


def test_counts(root: Path) -> None:
    found: dict[str, Any] = stats(root)
    assert found["store_id"] == StoreDirectory(root).store_id
    assert found["halves"] == {"begin": 0, "end": 13, "settled": 13, "lag": 0}
    assert found["ops"] == {"begin": 0, "end": 14, "settled": 14, "lag": 0}
    assert found["states"] == {
        "PREPARED": 7,
        "COMMITTED": 3,
        "ROLLED_BACK": 1,
        "DISCARDED_MAX": 0,
        "DISCARDED_EXPIRED": 1,
        "QUARANTINED": 1,
        "MEMBER": 0,
    }
    assert (found["pending"], found["oldest_pending_stored_at_s"]) == (7, T0_MS // 1000)
    assert found["totals"]["prepares"] == 13
    assert found["totals"]["messages"] == 2
    assert found["queues"] == {"check": 17, "proposal": 2, "discard": 2, "quarantine": 2}
    assert found["topics"] == {
        "paid": {"queues": 2, "messages": 2, "queue_1": "0..2"},
        "shipped": {"queues": 2, "messages": 5, "queue_0": "0..2", "queue_1": "0..3"},
    }
    assert (found["generation"], found["round_no"], found["groups"]) == (1, 3, 3)


def test_sizes(root: Path) -> None:
    files: dict[str, Any] = stats(root)["files"]  # type: ignore[assignment]
    assert files["commitlog"]["files"] == 2
    assert files["commitlog"]["size_bytes"] == 2 * 65_536
    assert files["commitlog"]["used_bytes"] == 96_785
    assert files["half"]["used_bytes"] == 13 * 20
    assert files["statetable"]["used_bytes"] == 13 * 24
    assert files["topics"]["used_bytes"] == 7 * 20
    assert files["redo"]["used_bytes"] == 142 * 20
    assert sum(kind["size_bytes"] for kind in files.values()) == sum(
        path.stat().st_size for path in root.rglob("*") if path.is_file() and path.suffix != ".lock" and path.name != "CURRENT"
    )


def test_lag_and_an_unsettled_store(tmp_path: Path) -> None:
    with EdgeStore(tmp_path / "store", geometry=GEOMETRY) as edge:
        edge.prepare([Message("g", "t", b"1"), Message("g", "t", b"2")], T0_MS)
        found: dict[str, Any] = stats(tmp_path / "store")
    assert found["halves"]["lag"] == 2
    assert (found["pending"], found["oldest_pending_stored_at_s"], found["generation"]) == (0, None, 0)


def test_not_a_store(tmp_path: Path) -> None:
    with pytest.raises(NotAStore):
        stats(tmp_path)


# --- rebuild --------------------------------------------------------------------------------------------------------------
def test_rebuild(tmp_path: Path) -> None:
    root = tmp_path / "store"
    build_sample(root)
    calls: list[tuple[int, int, str]] = []
    assert rebuild(root, lambda *call: calls.append(call)) == {
        "generation": 2,
        "batches": 10,
        "entries_replayed": 62,
        "rows": 13,
        "pending": 7,
        "topic_queues": 3,
        "redo_end": 142 * 20,
    }
    assert verify(root).problems == []
    before, after = stats(root), rebuild(root)
    assert after["generation"] == 3
    again = stats(root)
    for name in ("states", "totals", "topics", "queues", "halves"):
        assert again[name] == before[name]


def test_rebuild_after_a_power_failure(service: Service) -> None:
    """The log was flushed and the redo log, the op queue was not: what the edge would repair, a rebuild must not take for holes."""
    sent = [Message("orders", "paid", body) for body in (b"1", b"2", b"3")]
    service.edge.wait(service.edge.append_messages(sent, service.now_ms).ticket)
    service.commit(*service.send(b"4"))
    service.settle()
    service.crash()
    for path in service.edge.directory.op_queue().iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    rebuild(service.root)
    service.open()
    assert service.bodies() == [b"1", b"2", b"3", b"4"]
    assert verify(service.root).problems == []


def test_rebuild_forgets_no_dedup_key(tmp_path: Path) -> None:
    """Whatever window the edge is set to."""
    window = {"dedup_window_s": 48 * 3600}
    with Service(tmp_path / "store", edge_options=window) as service:
        (first,) = service.send(b"1", dedup_key="a")
        service.sleep(40 * 3600)
        service.send(b"2", dedup_key="b")
        service.restart(clean=True)
        service.settle()
        service.sleep(3600)
        service.send(b"3", dedup_key="c")
        service.crash()
        rebuild(service.root)
        service.open()
        assert service.send(b"1", dedup_key="a") == [first]


def test_rebuild_refuses_beside_a_writer(tmp_path: Path) -> None:
    root = tmp_path / "store"
    build_sample(root)
    for side in (EdgeStore, JobStore):
        with side(root), pytest.raises(StoreLocked):
            rebuild(root)
    assert rebuild(root)["generation"] == 2


def test_rebuild_where_no_edge_ever_was(tmp_path: Path) -> None:
    StoreDirectory(tmp_path / "store", GEOMETRY, create=True)
    with pytest.raises(NotAStore, match="the edge has never been opened here"):
        rebuild(tmp_path / "store")
    with pytest.raises(NotAStore):
        rebuild(tmp_path / "nowhere")
