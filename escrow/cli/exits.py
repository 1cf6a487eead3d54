"""What all commands share: exit codes, and what a command does when it is called without a subcommand."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

OK = 0
PROBLEMS = 1  # the command worked, and found something wrong (verify, clock)
ERROR = 2  # wrong usage (argparse's own code), or an error explained in one line
INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
BROKEN_PIPE = 141  # 128 + SIGPIPE


def usage_of(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Returns a ``run`` that shows the parser's help: for a command that needs a subcommand and got none."""

    def run(_: argparse.Namespace) -> int:
        parser.print_help(sys.stderr)
        return ERROR

    return run
