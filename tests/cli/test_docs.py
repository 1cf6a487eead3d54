"""docs/cli.md: its commands run as they stand, one after another, and it names every command and every filter that there is."""

from __future__ import annotations

import stat
import subprocess
import sys

import pytest

from escrow.cli import build_parser
from escrow.cli.completion import places
from runtime.commands.export import schema
from tests.support.pages import blocks
from tests.support.shell import PATIENCE_S, ROOT

PAGE = (ROOT / "docs" / "cli.md").read_text()
BLOCKS = [block.text for block in blocks("docs/cli.md") if block.run_by == "tests/cli/test_docs.py"]


def test_the_blocks_run_as_they_stand(shell, tmp_path):
    program = tmp_path / "bin" / "escrow"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m escrow "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    environ = {**shell.environ, "PATH": f"{program.parent}:{shell.environ['PATH']}"}
    assert len(BLOCKS) >= 5
    for block in BLOCKS:
        done = subprocess.run(
            ["sh", "-eux", "-c", block], capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path, env=environ, check=False
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("place", [place.path for place in places(build_parser()) if place.path])
def test_every_command_is_in_the_table(place):
    command, _, tool = place.partition(" ")
    [row] = [line for line in PAGE.splitlines() if line.startswith(f"| `escrow {command}`")]
    assert not tool or f"`{tool}`" in row


def test_every_filter_and_column_is_named():
    filters = next(place for place in places(build_parser()) if place.path == "tx list")
    named = {flag for option in filters.options for flag in option.flags if flag.startswith("--")}
    assert {flag for flag in named if f"`{flag}`" not in PAGE} <= {
        "--help", "--newest", "--limit", "--all", "--ids", "--json", "--url", "--token-file", "--ca-file",
    }  # fmt: skip
    assert {field.name for field in schema() if f"`{field.name}`" not in PAGE} == set()
