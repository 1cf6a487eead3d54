"""``escrow barrier``: the table that a producer keeps in its own database."""

from __future__ import annotations

import argparse
from typing import Final

from escrow.barrier import DIALECTS, Barrier
from escrow.cli import exits
from escrow.cli.parsers import Commands

TEACHES: Final = """\
Prints the statement that creates the barrier's table, for your own migrations. It needs no running Escrow.
`Barrier.create_table` runs the same statement.
"""

EXAMPLES: Final = """\
examples:
  escrow barrier ddl postgresql | psql shop
  escrow barrier ddl mysql --table shop.escrow_barrier
"""


def add_parser(subparsers: Commands) -> None:
    """Declares ``escrow barrier``."""
    barrier = exits.add_command(
        subparsers, "barrier", run, summary="the table of escrow.Barrier in your database", teaches=TEACHES, examples=EXAMPLES
    )
    barrier.set_defaults(run=exits.usage_of(barrier))
    tools = barrier.add_commands("tools", "TOOL")
    parser = exits.add_command(tools, "ddl", run, summary="print the CREATE TABLE", teaches=TEACHES, examples=EXAMPLES)
    parser.add_argument("dialect", metavar="DIALECT", choices=list(DIALECTS), help=", ".join(DIALECTS))
    parser.add_argument("--table", default="escrow_barrier", help="its name (default: escrow_barrier)")


def run(args: argparse.Namespace) -> int:
    """Prints the statement."""
    try:
        barrier = Barrier(args.table)
    except ValueError as error:
        raise exits.UsageError(str(error)) from None
    print(f"{barrier.ddl(args.dialect)};")
    return exits.OK
