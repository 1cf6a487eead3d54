"""``escrow tx conflicts`` and ``causes``: ends that were not taken; halves in doubt, folded by cause."""

from __future__ import annotations

import argparse

from escrow.cli import exits, remote, times
from escrow.cli.parsers import Commands
from escrow.cli.progress import duration
from escrow.cli.render import cell, json_line, table
from escrow.cli.tx.tool import add_tool


def add_conflicts(tools: Commands) -> None:
    parser = add_tool(
        tools,
        "conflicts",
        run_conflicts,
        summary="ends that contradicted how a transaction had ended",
        teaches="Prints ends that were not taken, the newest first: who said what of which transaction, and what that\n"
        "transaction was. The first outcome stands.",
        examples="examples:\n  escrow tx conflicts\n  escrow tx conflicts --group orders --by producer\n"
        "  escrow tx conflicts --json | jq -r .id | sort | uniq -c\n",
    )
    parser.add_argument("--group", metavar="GROUP", help="of this producer group")
    parser.add_argument("--by", choices=("producer", "operator"), help="said by producers, or by operators")
    parser.add_argument("--limit", metavar="N", type=exits.positive, default=100, help="at most this many (default: 100)")
    parser.add_argument("--json", action="store_true", help="one JSON object per conflict")
    remote.add_arguments(parser)


def run_conflicts(args: argparse.Namespace) -> int:
    """Prints them."""
    with remote.connect(args) as api:
        found = api.conflicts(group=args.group, by=args.by, limit=args.limit)
    if args.json:
        for each in found:
            print(json_line(each))
        return exits.OK
    heads = ("WHEN", "VERDICT", "GROUP", "BY", "WHO", "SAID", "IT WAS", "REMARK", "ID")
    rows = [
        (
            times.shown(each["at_ms"]), each["verdict"], each["group"], each["by"], each["who"], each["said"],
            each["state"].lower(), cell(each["remark"], 40) or None, each["id"],
        )
        for each in found
    ]  # fmt: skip
    print(table(heads, rows) if rows else "no conflict is known")
    return exits.OK


def add_causes(tools: Commands) -> None:
    parser = add_tool(
        tools,
        "causes",
        run_causes,
        summary="transactions in doubt, folded by group and cause",
        teaches="Prints why transactions are in doubt: for each group, how many wait for the same reason. Numbers in\n"
        "remarks are shown as #. The cause is a filter of escrow tx list and of the actions: --cause.",
        examples="examples:\n  escrow tx causes\n  escrow tx causes --state discarded\n"
        "  escrow tx list --group orders --cause unanswered\n",
    )
    parser.add_argument("--state", choices=("pending", "discarded"), default="pending", help="which ones (default: pending)")
    parser.add_argument("--json", action="store_true", help="one JSON object per group and cause")
    remote.add_arguments(parser)


def run_causes(args: argparse.Namespace) -> int:
    """Prints them, the largest first."""
    with remote.connect(args) as api:
        found = api.causes(args.state)
    if args.json:
        for each in found:
            print(json_line(each))
        return exits.OK
    now_ms = times.now_ms()
    rows = [
        (each["count"], each["group"], cell(each["cause"], 60), each["attempts_max"], duration((now_ms - each["oldest_ms"]) / 1000))
        for each in found
    ]
    print(table(("COUNT", "GROUP", "CAUSE", "ATTEMPTS", "OLDEST"), rows) if rows else f"nothing is {args.state}")
    return exits.OK
