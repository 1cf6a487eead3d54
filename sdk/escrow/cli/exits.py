"""What all commands share: exit codes, how a command is declared, arguments that many have."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

from escrow.cli.parsers import CommandParser, Commands

OK = 0
PROBLEMS = 1  # the command worked, and found something wrong (verify, clock, doctor), or Escrow said no to part of it (tx, send)
ERROR = 2  # wrong usage (argparse's own code), or an error explained in one line
UNREACHABLE = 3  # no answer at that URL, or Escrow is temporarily unavailable
DENIED = 4  # the token is missing, unknown, or lacks the role
INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
BROKEN_PIPE = 141  # 128 + SIGPIPE


class UsageError(Exception):
    """Wrong usage; the text says what to do instead."""


def usage_of(parser: CommandParser) -> Callable[[argparse.Namespace], int]:
    """Returns a ``run`` that shows the parser's help: for a command that needs a subcommand and got none."""

    def run(_: argparse.Namespace) -> int:
        parser.print_help(sys.stderr)
        return ERROR

    return run


def add_command(
    subparsers: Commands, name: str, run: Callable[[argparse.Namespace], int], *, summary: str, teaches: str, examples: str
) -> CommandParser:
    """Declares a command, or a tool of one, with help that is shown as it was written."""
    parser = subparsers.add_parser(
        name, help=summary, description=teaches, epilog=examples, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(run=run)
    return parser


def positive(text: str) -> int:
    """An argparse type: a whole number from 1 on."""
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def ids_of(given: Sequence[str], stdin: TextIO) -> Iterator[str]:
    """Ids as they were named; - stands for those on stdin: the first word of each line."""
    for id in given:
        if id == "-":
            yield from (words[0] for line in stdin if (words := line.split()))
        else:
            yield id
