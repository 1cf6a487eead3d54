"""The table of figures: what a benchmark prints becomes rows, and nothing else on the page changes."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from benchmarks.results import HEADER, RESULTS, Figure, Run, figures_of, row_of, updated
from tests.support.pages import ROOT

RUN = Run("abc1234", "2026-11-18", "0.5")
PAGE = f"""# Results

{HEADER}
|---|---|---|---|---|---|---|
| `store.one` | ≥ 0.5 | 0.6 | 0.5 to 0.7 | 1111111 | 2026-01-01 | 2.0 |
| `store.two` | | 7 | | 1111111 | 2026-01-01 | 2.0 |
| `ingest.one` | ≤ 2 | 1 | | 1111111 | 2026-01-01 | 2.0 |

Prose, and another table.

| campaign | what |
|---|---|
| `store.one` | stays |
"""


def test_figures_are_told_from_other_lines():
    output = ["load 0.50, 2 cores", "store.one 0.7", "store.two 1234567 (1 to 2, 3 runs)", "x.y is not", "store.one 0.8\n"]
    assert figures_of(output) == [Figure("store.one", "0.8"), Figure("store.two", "1234567", "1 to 2, 3 runs")]


def test_a_row_keeps_its_goal_and_gets_the_rest():
    page = updated(PAGE, [Figure("store.one", "0.75")], RUN)
    assert "| `store.one` | ≥ 0.5 | 0.75 | | abc1234 | 2026-11-18 | 0.5 |" in page
    assert page.replace("0.75 | | abc1234 | 2026-11-18 | 0.5", "0.6 | 0.5 to 0.7 | 1111111 | 2026-01-01 | 2.0") == PAGE


def test_a_new_figure_comes_behind_its_kind():
    lines = updated(PAGE, [Figure("store.three", "1234567"), Figure("new.one", "1")], RUN).splitlines()
    at = lines.index("| `store.three` | | 1,234,567 | | abc1234 | 2026-11-18 | 0.5 |")
    assert lines[at - 1].startswith("| `store.two`")
    assert lines[at + 2].startswith("| `new.one`")
    assert lines[at + 3] == ""


@pytest.mark.parametrize(("status", "written"), [(0, True), (1, False)])
def test_a_benchmark_writes_its_rows_itself_unless_it_fails(tmp_path, status, written):
    (tmp_path / "measuring.py").write_text(f"print('store.two 9')\nraise SystemExit({status})\n")
    page = tmp_path / "RESULTS.md"
    page.write_text(PAGE)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.results", "--page", str(page), "measuring"],
        cwd=ROOT, env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    assert "store.two 9" in done.stdout
    assert ("| `store.two` | | 9 |" in page.read_text()) is written


def test_the_page_has_one_row_for_each_figure():
    table = RESULTS.read_text().partition(HEADER)[2].partition("\n\n")[0].splitlines()[2:]
    names = [re.match(r"\| `([a-z]+\.[a-z0-9_]+)` \|", row) for row in table]
    assert all(names)
    assert len({name[1] for name in names if name}) == len(table) > 30
    assert {row.count("|") for row in table} == {row_of(Figure("a.b", "1"), RUN).count("|")} == {HEADER.count("|")}
