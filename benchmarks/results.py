"""Runs benchmarks and keeps the table of figures in benchmarks/RESULTS.md: one row a figure, the newest value.

    python -m benchmarks.results benchmarks.store            run it, show what it prints, write its figures down
    python -m benchmarks.results --dry benchmarks.sdk        the same, and only show the rows

A benchmark tells its figures as lines `NAME VALUE`, or `NAME VALUE (SPREAD)`, with NAME such as `store.append_over_raw`
(`benchmarks.support.report` prints them). A row keeps its goal, which is written by hand; value, spread, commit, date and load are
replaced. A new figure gets a row behind the last one of its kind. A benchmark that fails changes nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

RESULTS: Final = Path(__file__).parent / "RESULTS.md"
HEADER: Final = "| figure | goal | value | spread | commit | date | load |"
_FIGURE: Final = re.compile(r"([a-z]+\.[a-z0-9_]+) (-?[0-9][0-9.,e+-]*)(?: \((.+)\))?")


class Figure(NamedTuple):
    name: str
    value: str
    spread: str = ""


class Run(NamedTuple):
    """Under what the figures were measured."""

    commit: str
    date: str
    load: str


def figures_of(output: Iterable[str]) -> list[Figure]:
    """The figures among the lines that a benchmark printed; the last one of a name counts."""
    found = {}
    for line in output:
        if told := _FIGURE.fullmatch(line.strip()):
            found[told[1]] = Figure(told[1], told[2], told[3] or "")
    return list(found.values())


def row_of(figure: Figure, run: Run, goal: str = "") -> str:
    cells = (f"`{figure.name}`", goal, _readable(figure.value), figure.spread, run.commit, run.date, run.load)
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def updated(page: str, figures: Sequence[Figure], run: Run) -> str:
    """The page with the rows of these figures replaced or added."""
    lines = page.splitlines()
    begin = lines.index(HEADER) + 2
    end = next((at for at in range(begin, len(lines)) if not lines[at].startswith("|")), len(lines))
    rows = lines[begin:end]
    for figure in figures:
        _put(rows, figure, run)
    return "\n".join([*lines[:begin], *rows, *lines[end:]]) + "\n"


def _put(rows: list[str], figure: Figure, run: Run) -> None:
    names = [row.split("`")[1] for row in rows]
    if figure.name in names:
        at = names.index(figure.name)
        rows[at] = row_of(figure, run, goal=rows[at].split("|")[2].strip())
        return
    kind = figure.name.partition(".")[0]
    alike = [at for at, name in enumerate(names) if name.partition(".")[0] == kind]
    rows.insert(alike[-1] + 1 if alike else len(rows), row_of(figure, run))


def _readable(value: str) -> str:
    """1234567 → 1,234,567"""
    return f"{int(value):,}" if value.isdigit() else value


def this_run(root: Path = RESULTS.parents[1]) -> Run:
    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/RESULTS.md", ":!docs")
    commit = git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    return Run(commit, datetime.now(UTC).date().isoformat(), f"{os.getloadavg()[0]:.1f}")


def play(words: Sequence[str]) -> tuple[int, list[str]]:
    """Run a benchmark module; its status, and the lines of its output, which are shown as they come."""
    with subprocess.Popen([sys.executable, "-u", "-m", *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    return process.returncode, lines


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.results", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry", action="store_true", help="show the rows, do not write them")
    parser.add_argument("--page", type=Path, default=RESULTS, help="another page than benchmarks/RESULTS.md")
    parser.add_argument("benchmark", nargs=argparse.REMAINDER, help="a module, and its arguments")
    given = parser.parse_args()
    if not given.benchmark:
        parser.error("name a benchmark, such as benchmarks.store")
    run = this_run()
    status, output = play(given.benchmark)
    figures = figures_of(output)
    if status == 0 and figures:
        for figure in figures:
            print(row_of(figure, run))
        if not given.dry:
            given.page.write_text(updated(given.page.read_text(), figures, run))
    return status


if __name__ == "__main__":
    raise SystemExit(main())
