"""The ends table worked out anew where retention has taken the ops: from the redo log, or a refusal by name."""

from __future__ import annotations

import shutil

import pytest

from store.errors import Corrupt
from store.records import OpKind, State
from store.tables.ends import Verdict
from tests.support.service import SMALLEST, Service, verdicts

DAY_S = 86_400
PENDING = 170


@pytest.fixture(params=[True, False], ids=["clean", "killed"])
def worn(request, tmp_path):
    """Retention has taken the first halves and ops. Of those that are left one is pending, and two ended without being settled."""
    service = Service(tmp_path / "store", SMALLEST)
    halves = service.send(*[b"%d" % number + bytes(400) for number in range(100)])
    halves += service.send(*[b"%d" % number + bytes(400) for number in range(100, 203)])
    service.settle()
    service.commit(*halves[:170])
    service.roll_back(*halves[171:200])
    service.operate(halves[200], OpKind.DISCARD_MAX)
    service.settle()
    service.sleep(3 * DAY_S)
    for _ in range(3):
        service.settle()
        service.retain(DAY_S)
    assert service.edge.log.file.begin > 0
    assert 0 < service.edge.half_begin < PENDING
    service.commit(halves[201])
    service.roll_back(halves[202])
    if request.param:
        service.close()
    else:
        service.crash()
    return service


def test_marks_are_those_of_the_redo_log_and_of_the_ops_behind_it(worn):
    ends = worn.root / "ends" / "0"
    before = next(ends.iterdir()).read_bytes()
    shutil.rmtree(ends)
    worn.open()
    assert any("rebuilt" in reason for _, _, reason in worn.edge.recovery.damage)
    first = worn.edge.half_begin  # ids before it are gone
    assert next(ends.iterdir()).read_bytes()[first:] == before[first:]
    assert worn.edge.end_of(first) == State.COMMITTED
    assert verdicts(worn.commit(171, 200, 201, 202)) == [Verdict.CONFLICT, Verdict.REFUSED, Verdict.ALREADY, Verdict.CONFLICT]
    assert verdicts(worn.commit(PENDING)) == [Verdict.ACCEPTED]


def test_without_the_redo_log_it_is_refused_by_name(worn):
    shutil.rmtree(worn.root / "ends")
    shutil.rmtree(worn.root / "transaction" / "redolog")
    with pytest.raises(Corrupt, match="restore a backup"):
        worn.open()
