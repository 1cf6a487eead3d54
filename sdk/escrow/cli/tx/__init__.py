"""``escrow tx``: transactions in doubt, and what an operator may do about them. One file per tool."""

from __future__ import annotations

import argparse
from typing import Final

from escrow.cli import exits, remote
from escrow.cli.parsers import Commands
from escrow.cli.tx import actions, audit, conflicts, listing, showing

TEACHES: Final = f"""\
Lists transactions, shows what became of one, and settles by hand what its producer does not settle.
Every action needs a reason and is written to the audit log (escrow tx audit).

{remote.HELP}"""

EXAMPLES: Final = """\
examples:
  escrow tx list                                  what is in doubt, the oldest first
  escrow tx show ID                               one transaction with its history
  escrow tx commit ID --reason 'paid, see ticket 17'
  escrow tx rollback --group orders --age-min 1h --reason 'shop is gone' --dry-run
  escrow tx list --state discarded --ids | escrow tx resume - --reason 'orders is back'
  escrow tx audit                                 who did what, and why

Each tool has help of its own: escrow tx commit --help
"""


def add_parser(subparsers: Commands) -> None:
    """Declares ``escrow tx`` and its tools."""
    parser = exits.add_command(
        subparsers, "tx", run, summary="list, show and settle transactions", teaches=TEACHES, examples=EXAMPLES
    )
    parser.set_defaults(run=exits.usage_of(parser))
    tools = parser.add_commands("tools", "TOOL")
    listing.add_list(tools)
    showing.add_show(tools)
    showing.add_history(tools)
    conflicts.add_causes(tools)
    conflicts.add_conflicts(tools)
    actions.add_actions(tools)
    audit.add_audit(tools)


def run(args: argparse.Namespace) -> int:
    """Runs the tool that was named."""
    code: int = args.run(args)
    return code
