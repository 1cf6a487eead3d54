"""A file of the state table that was cut off is told, and the table made anew: zeros would pass for rows that nobody wrote."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.service import SMALLEST, Service


@pytest.mark.parametrize("clean", [True, False])
def test_a_cut_state_table_is_told_and_made_anew(tmp_path, clean):
    service = Service(tmp_path / "store", SMALLEST)
    service.roll_back(*service.send(*(b"%d" % number for number in range(40))))
    service.settle()
    words = service.job.table.get(np.arange(40))["word"].tolist()
    (service.close if clean else service.crash)()
    (path,) = service.root.glob("transaction/generation-*/statetable/0/*")
    with path.open("r+b") as file:
        file.truncate(24 * 20)
    service.open()
    assert service.job.recovery.rebuilt
    assert "statetable/0: a file was cut off" in service.job.recovery.reason
    assert service.job.table.get(np.arange(40))["word"].tolist() == words
    service.close()
