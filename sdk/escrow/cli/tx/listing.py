"""``escrow tx list``: transactions that fit a filter."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from escrow.cli import exits, remote
from escrow.cli.parsers import Commands
from escrow.cli.render import json_line, table
from escrow.cli.tx.filters import add_filters, filter_of, pages
from escrow.cli.tx.rows import HEADS, listed
from escrow.cli.tx.tool import add_tool


def add_list(tools: Commands) -> None:
    parser = add_tool(
        tools,
        "list",
        run_list,
        summary="transactions that fit a filter",
        teaches="Prints transactions, the oldest first; without a filter those that are pending.",
        examples="examples:\n"
        "  escrow tx list --group orders --age-min 5m\n"
        "  escrow tx list --search 4711\n"
        "  escrow tx list --state settled --since 2026-11-16T02:00 --until 2026-11-16T03:00 --newest\n"
        "  escrow tx list --attempts-min 3 --ids | escrow tx rollback - --reason 'unknown to the shop'\n"
        "  escrow tx list --all --json | jq -r '[.id, .group, .age_s] | @tsv'\n",
    )
    add_filters(parser)
    parser.add_argument("--newest", action="store_true", help="the newest first")
    parser.add_argument("--limit", metavar="N", type=exits.positive, default=100, help="at most this many (default: 100)")
    parser.add_argument("--all", action="store_true", help="no limit")
    parser.add_argument("--ids", action="store_true", help="only the ids, one per line: input for escrow tx commit -")
    parser.add_argument("--json", action="store_true", help="one JSON object per transaction")
    remote.add_arguments(parser)


def run_list(args: argparse.Namespace) -> int:
    """Prints page after page."""
    most = None if args.all else args.limit
    shown, heads = 0, True
    with remote.connect(args) as api:
        # One more than is shown tells whether there are more.
        for page in pages(
            api, filter_of(args), order="newest" if args.newest else "oldest", most=None if most is None else most + 1
        ):
            rows = page if most is None else page[: most - shown]
            heads = _show_page(args, rows, heads=heads)
            if len(rows) < len(page):
                print(f"escrow: only the first {most:,} are shown: use --limit N or --all", file=sys.stderr)
            shown += len(rows)
    if not shown and not (args.json or args.ids):
        print("no transaction matches")
    return exits.OK


def _show_page(args: argparse.Namespace, rows: list[dict[str, Any]], *, heads: bool) -> bool:
    """Prints the rows; whether heads are still to be printed."""
    if args.ids or args.json:
        for row in rows:
            print(row["id"] if args.ids else json_line(row))
    elif rows:
        lines = table(HEADS, [listed(each) for each in rows]).splitlines()
        print("\n".join(lines if heads else lines[1:]))
        return False
    return heads
