"""The limit of open files, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from store.io.descriptors import FILES_FEW, few_files

ASK = """
import resource, sys
soft, hard = int(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
from store.io.descriptors import raise_file_limit
print(raise_file_limit(int(sys.argv[3])), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "limit"),
    [(200, 1000, 500, 500), (200, 300, 500, 300), (500, 1000, 200, 500), (300, 300, 500, 300)],
)
def test_the_soft_limit_is_raised_as_far_as_the_hard_one(soft: int, hard: int, wanted: int, limit: int) -> None:
    said = subprocess.run(
        [sys.executable, "-c", ASK, str(soft), str(hard), str(wanted)], capture_output=True, text=True, check=True
    ).stdout.split()
    assert said == [str(limit), str(limit)]


def test_a_limit_that_stays_low_is_told_with_its_remedy() -> None:
    assert few_files(FILES_FEW) == ""
    assert "LimitNOFILE" in few_files(1024)
