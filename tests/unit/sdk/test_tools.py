"""A program that is not there: skipped at home, failed in CI. And the script that installs them has nothing to do."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.tools import find_tool, require_tool

SCRIPT = Path(__file__).parents[3] / "scripts" / "test_tools.sh"


def test_what_is_there_is_found():
    assert Path(require_tool("sh")).is_file()


@pytest.mark.parametrize(("ci", "raised"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_what_is_missing_skips_or_fails(monkeypatch, ci, raised):
    monkeypatch.setenv("CI", ci)
    with pytest.raises(raised, match="no-such-tool is not installed"):
        require_tool("no-such-tool")


def test_debians_hidden_programs_are_found(monkeypatch, tmp_path):
    for version in ("9.6", "15", "16"):
        program = tmp_path / version / "bin" / "hidden"
        program.parent.mkdir(parents=True)
        program.write_text("")
        program.chmod(0o755)
    monkeypatch.setattr("tests.support.tools.ELSEWHERE", (f"{tmp_path}/*/bin",))
    assert find_tool("hidden") == str(tmp_path / "16" / "bin" / "hidden")


def test_the_script_lists_what_is_missing_and_only_that():
    listed = subprocess.run(["sh", str(SCRIPT), "--list"], capture_output=True, text=True, check=True).stdout.split()
    assert ("postgresql" in listed) == (find_tool("initdb") is None)
