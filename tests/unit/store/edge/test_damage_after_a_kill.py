"""Damage to the edge's files that nothing but another file can tell: after a kill, and where a file is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from store.errors import Corrupt
from store.records import OpKind, State
from tests.support.service import SMALLEST, Service

DAY_S = 86_400


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(tmp_path / "store", SMALLEST, edge_options={"default_queues": 1, "dedup_window_s": DAY_S})


def fill(service: Service) -> list[int]:
    """Halves in several segments of the log."""
    return [service.send_one(b"x" * 3000) for _ in range(60)]


@pytest.mark.parametrize("settled", [True, False])
def test_a_flipped_mark_is_told_anew_by_the_ops(service: Service, settled: bool) -> None:
    halves = service.send(*[b"%d" % number for number in range(20)])
    service.commit(*halves[:8])
    service.roll_back(*halves[8:12])
    service.operate(halves[12], OpKind.DISCARD_MAX)
    service.operate(halves[13], OpKind.DISCARD_MAX, OpKind.RESUME)
    service.settle()
    before = [service.edge.end_of(half) for half in halves]
    service.restart(clean=False)
    if not settled:  # the row of this half is behind its mark
        service.commit(halves[15])
        before[15] = int(State.COMMITTED)
    service.crash()
    (path,) = (service.root / "ends" / "0").iterdir()
    content = bytearray(path.read_bytes())
    for half in (halves[0], halves[9], halves[12], halves[13], halves[17]):
        content[half] ^= 1
    path.write_bytes(content)
    service.open()
    assert [service.edge.end_of(half) for half in halves] == before
    ((_, _, reason),) = service.edge.recovery.damage
    assert str(path.parent) in reason
    service.close()


def test_marks_that_are_right_are_left_alone_whatever_the_rows_say(service: Service) -> None:
    """As after a power failure: rows are behind."""
    halves = service.send(b"1", b"2")
    service.settle()
    rows = next((service.root / "transaction").glob("generation-*/statetable/0/*"))
    older = rows.read_bytes()
    service.commit(halves[0])
    service.settle()
    service.crash()
    rows.write_bytes(older)
    service.open()
    assert service.edge.end_of(halves[0]) == State.COMMITTED
    assert service.edge.recovery.damage == []
    service.close()


@pytest.mark.parametrize("clean", [True, False])
def test_a_lost_first_segment_of_the_log_is_refused_by_name(service: Service, clean: bool) -> None:
    fill(service)
    paths = sorted((service.root / "commitlog").iterdir())
    assert len(paths) > 2
    if clean:
        service.close()
    else:
        service.restart(clean=False).crash()
    kept = paths[0].read_bytes()
    paths[0].unlink()
    with pytest.raises(Corrupt, match="escrow store restore") as refusal:
        service.open()
    assert str(paths[0]) in str(refusal.value)
    paths[0].write_bytes(kept)
    service.open().close()


def test_segments_that_retention_removes_are_not_missed(service: Service) -> None:
    service.commit(*fill(service))
    service.settle()
    service.sleep(3 * DAY_S)
    service.send_one()
    service.settle()
    for _ in range(2):
        service.retain(DAY_S)
    assert service.edge.log.file.begin > 0
    service.restart(clean=False)
    service.restart(clean=True)
    assert service.edge.recovery.damage == []
    service.close()


def test_a_cut_segment_of_the_log_is_named_with_its_remedy(service: Service) -> None:
    fill(service)
    service.close()
    path = sorted((service.root / "commitlog").iterdir())[1]
    path.write_bytes(path.read_bytes()[:5000])
    service.open()
    ((_, _, reason),) = service.edge.recovery.damage
    assert f"{path}: cut off at 5000" in reason
    assert "escrow store restore" in reason
    service.close()
