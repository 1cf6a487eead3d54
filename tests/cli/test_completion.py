"""`escrow completion`: the scripts, in the shells that they are for."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.support.tools import require_tool

#: Each asks for every line of ASKED in one process; "= line" precedes the answer to it.
BASH = """
source {script}
asked() {{ COMP_WORDS=("$@") COMP_CWORD=$(( $# - 1 )); _escrow; echo "= $*"; printf '%s\\n' "${{COMPREPLY[@]}}"; }}
"""
#: zsh completes only at its line editor: what it would be offered is caught instead.
ZSH = """
compadd() {{ [[ $1 == -l ]] && shift 3; [[ $1 == -a ]] && print -rl -- ${{(P)2}}; }}
_files() {{ print -rl -- *; }}
source {script}
asked() {{ words=("$@") CURRENT=$#; print -r -- "= $*"; _escrow; }}
"""
FISH = """
source {script}
function asked; echo "= $argv"; complete -C "$argv"; end
"""

ASKED = {
    "escrow t": {"top", "topic", "topics", "tx", "token"},
    "escrow tx ro": {"rollback"},
    "escrow --traceback tx commit --group list --reas": {"--reason"},
    "escrow tx list --state dis": {"discarded"},
    "escrow completion f": {"fish"},
    "escrow send --file bod": {"body.txt"},
    "escrow store verify --js": {"--json"},
}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    from escrow.cli import build_parser
    from escrow.cli.completion import _SHELLS, places

    directory = tmp_path_factory.mktemp("completion")
    (directory / "body.txt").touch()
    for name, make in _SHELLS.items():
        (directory / name).write_text(make(list(places(build_parser()))))
    return directory


def offered(shell, scripts):
    """What the shell offers, by the line that was typed."""
    program = require_tool(shell)
    text = {"bash": BASH, "zsh": ZSH, "fish": FISH}[shell].format(script=scripts / shell)
    text += "\n".join(f"asked {line}" for line in ASKED)
    flags = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    done = subprocess.run([program, *flags, "-c", text], capture_output=True, text=True, cwd=scripts, timeout=120, check=False)
    assert done.stderr == ""
    found: dict[str, set[str]] = {}
    for line in done.stdout.splitlines():
        if line.startswith("= "):
            begin = line[2:].rsplit(" ", 1)[1]
            current = found.setdefault(line[2:], set())
        elif line.startswith(begin):
            current.add(line.split("\t")[0])
    return found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_is_offered(shell, scripts):
    assert offered(shell, scripts) == ASKED


def test_the_command_prints_the_script(alone, refused, scripts):
    assert alone("completion", "zsh") == (scripts / "zsh").read_text()
    assert "invalid choice" in refused("completion", "tcsh")


def test_every_option_of_the_usage_is_offered():
    """An argument that is added to a group without `CommandParser.adding_to` would be missing here."""
    from escrow.cli import build_parser

    def check(parser):
        offered = {flag for action in parser.arguments for flag in action.option_strings}
        shown = set(re.findall(r"--[a-z-]+", parser.format_usage()))
        assert shown <= offered, parser.prog
        return 1 + sum(check(command.parser) for command in parser.commands)

    assert check(build_parser()) > 40
