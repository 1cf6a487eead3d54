"""Ends: the whole rule in one table, and the bytes that remember."""

from __future__ import annotations

import pytest

from store.io import disk
from store.records import OpKind, State
from store.tables.ends import SEGMENT_BYTES, EndsTable, Verdict, byte_after, judge

OPEN = 0
ENDED = [State.COMMITTED, State.ROLLED_BACK, State.DISCARDED_MAX, State.DISCARDED_EXPIRED]
TABLE = {  # (op, open, committed, rolled back, discarded max, discarded expired)
    OpKind.COMMIT: "accepted already conflict refused refused",
    OpKind.ROLLBACK: "accepted conflict already refused refused",
    OpKind.DISCARD_MAX: "accepted conflict conflict already already",
    OpKind.DISCARD_EXPIRED: "accepted conflict conflict already already",
    OpKind.UNKNOWN: "accepted already already already already",
    OpKind.RESUME: "accepted conflict conflict accepted accepted",
}


@pytest.mark.parametrize(
    ("kind", "ended", "verdict"),
    [
        (kind, ended, Verdict(verdict))
        for kind, line in TABLE.items()
        for ended, verdict in zip([OPEN, *ENDED], line.split(), strict=True)
    ],
)
def test_the_judge_table(kind, ended, verdict):
    answer = judge(kind, int(ended))
    assert answer.verdict is verdict
    if verdict is not Verdict.ACCEPTED:
        assert answer.state == ended
    if verdict in (Verdict.REFUSED, Verdict.CONFLICT):
        assert answer.reason


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (OpKind.COMMIT, State.COMMITTED),
        (OpKind.ROLLBACK, State.ROLLED_BACK),
        (OpKind.DISCARD_MAX, State.DISCARDED_MAX),
        (OpKind.DISCARD_EXPIRED, State.DISCARDED_EXPIRED),
    ],
)
def test_an_accepted_end_answers_the_state_it_leads_to(kind, state):
    assert judge(kind, OPEN).state == state
    assert byte_after(kind, OPEN) == state


@pytest.mark.parametrize("before", [OPEN, *ENDED])
def test_what_a_byte_is_after_an_op_that_ends_nothing(before):
    assert byte_after(OpKind.UNKNOWN, before) == before
    assert byte_after(OpKind.ASKED, before) == before
    assert byte_after(OpKind.RESUME, before) == OPEN


def test_a_byte_for_each_half_and_open_where_there_is_none(tmp_path):
    ends = EndsTable(tmp_path / "ends", writable=True)
    ends.ensure(0, SEGMENT_BYTES + 1)
    ends[0], ends[SEGMENT_BYTES - 1], ends[SEGMENT_BYTES] = 2, 3, 4
    assert [ends[half] for half in (0, 1, SEGMENT_BYTES - 1, SEGMENT_BYTES, 10 * SEGMENT_BYTES)] == [2, 0, 3, 4, 0]
    assert ends.counts(0, SEGMENT_BYTES + 1) == {0: SEGMENT_BYTES - 2, 2: 1, 3: 1, 4: 1}
    assert sorted(path.name for path in (tmp_path / "ends").iterdir()) == [f"{0:020d}", f"{SEGMENT_BYTES:020d}"]
    reader = EndsTable(tmp_path / "ends")
    assert reader[SEGMENT_BYTES] == 4


def test_only_touched_files_are_flushed(tmp_path):
    ends = EndsTable(tmp_path / "ends", writable=True)
    ends.ensure(0, 2 * SEGMENT_BYTES)
    ends.file.flush()
    ends[5] = 2
    with disk.recording() as passed:
        ends.file.flush()
    assert passed == {"ends.flush": 1}


def test_a_table_may_begin_anywhere(tmp_path):
    ends = EndsTable(tmp_path / "ends", writable=True)
    ends.ensure(3 * SEGMENT_BYTES + 9, 3 * SEGMENT_BYTES + 10)
    ends[3 * SEGMENT_BYTES + 9] = 2
    assert (ends.file.begin, ends[3 * SEGMENT_BYTES + 9], ends[5]) == (3 * SEGMENT_BYTES, 2, 0)
