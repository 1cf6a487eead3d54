"""How the tools of ``escrow tx`` are declared, and the ids that several of them take."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from escrow.cli import exits, remote
from escrow.cli.parsers import CommandParser, Commands


def add_tool(
    tools: Commands, name: str, tool: Callable[[argparse.Namespace], int], *, summary: str, teaches: str, examples: str
) -> CommandParser:
    """Declares a tool, with the exit codes in its help."""
    epilog = f"{examples}\n{remote.EXIT_CODES}"
    return exits.add_command(tools, name, tool, summary=summary, teaches=teaches, examples=epilog)


def add_ids(parser: CommandParser, *, optional: bool = False) -> None:
    parser.add_argument(
        "ids", metavar="ID", nargs="*" if optional else "+", help="transaction ids; - reads them from stdin, one per line"
    )
