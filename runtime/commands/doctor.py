"""``escrow doctor``: what is wrong with this machine, its settings and its data, and what to do about it. ``checkup`` looks."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from typing import Final

from escrow.cli import exits
from escrow.cli.parsers import Commands
from escrow.cli.render import cell, json_line
from runtime.commands import checkup
from runtime.commands.checkup import Finding, Level
from runtime.settings import Settings, SettingsError, add_arguments, load_arguments

TEACHES: Final = """\
Looks at everything that Escrow needs: Python and its packages, Java, memory, the settings, the data
directory (space, rights, how long a flush takes), plug-ins, keys and tokens, the clock, ports, limits,
Kafka where it is used, and the service itself if it runs. It changes nothing but for a test file that it
removes again. Run it as the user that Escrow runs as.

Every line is ok, warn or FAIL. What is not ok says why, and what to do.
"""

EXAMPLES: Final = """\
examples:
  escrow doctor
  escrow doctor --data /var/lib/escrow --config /etc/escrow.toml
  escrow doctor --quiet                          only what is not ok
  escrow doctor --json | jq '.findings[] | select(.level == "fail")'

exit codes:
  0  nothing is wrong (there may be warnings)
  1  something is wrong: Escrow would not start, or would not be safe
  2  wrong usage
"""

_COLOURS: Final = {Level.OK: "\033[32m", Level.WARN: "\033[33m", Level.FAIL: "\033[31;1m"}
_WORDS: Final = {Level.OK: "ok", Level.WARN: "warn", Level.FAIL: "FAIL"}


def add_parser(subparsers: Commands) -> None:
    """Declares ``escrow doctor``."""
    parser = exits.add_command(
        subparsers,
        "doctor",
        run,
        summary="find problems of this machine, its settings and its data",
        teaches=TEACHES,
        examples=EXAMPLES,
    )
    parser.add_argument("--quiet", action="store_true", help="only what is not ok")
    parser.add_argument("--json", action="store_true", help="one JSON object: ok, findings (level, what, says, remedy)")
    add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Prints what is found as it is found."""
    found = []
    for finding in _findings(args):
        found.append(finding)
        if not args.json and not (args.quiet and finding.level is Level.OK):
            print(_line(finding), flush=True)
    fails = sum(finding.level is Level.FAIL for finding in found)
    warns = sum(finding.level is Level.WARN for finding in found)
    if args.json:
        told = [{"level": str(each.level), "what": each.what, "says": each.says, "remedy": each.remedy} for each in found]
        print(json_line({"ok": not fails, "findings": told}))
    elif fails or warns or not args.quiet:
        print(f"{_counted(fails, 'problem')}, {_counted(warns, 'warning')}")
    return exits.PROBLEMS if fails else exits.OK


def _findings(args: argparse.Namespace) -> Iterator[Finding]:
    settings, wrong = _settings(args)
    yield from wrong
    yield from checkup.machine(settings)
    if settings is None:
        yield Finding(Level.WARN, "the rest", "was not checked: it depends on the settings", "correct the settings first")
    else:
        yield from checkup.plugins(settings)
        yield from checkup.installation(settings)


def _settings(args: argparse.Namespace) -> tuple[Settings | None, list[Finding]]:
    try:
        settings = load_arguments(args)
    except SettingsError as error:
        remedy = "escrow config check looks again; escrow config template shows every key"
        return None, [Finding(Level.FAIL, "settings", problem, remedy) for problem in error.problems]
    where = str(settings.file) if settings.file else "no settings file: every key has its default"
    found = [Finding(Level.OK, "settings", where)]
    return settings, found + [Finding(Level.WARN, "settings", warning, "write the unit") for warning in settings.warnings]


def _line(finding: Finding) -> str:
    word = f"{_WORDS[finding.level]:<4}"
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        word = f"{_COLOURS[finding.level]}{word}\033[0m"
    remedy = f"\n     {'':<14} do: {cell(finding.remedy)}" if finding.remedy and finding.level is not Level.OK else ""
    return f"{word} {finding.what:<14} {cell(finding.says)}{remedy}"


def _counted(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
