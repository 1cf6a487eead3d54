"""``escrow tx audit``: the audit log."""

from __future__ import annotations

import argparse

from escrow.cli import exits, remote, times
from escrow.cli.parsers import Commands
from escrow.cli.render import json_line, table
from escrow.cli.tx.filters import PAGE
from escrow.cli.tx.tool import add_tool


def add_audit(tools: Commands) -> None:
    parser = add_tool(
        tools,
        "audit",
        run_audit,
        summary="who did what, and why",
        teaches="Prints the audit log, the newest first: time, who, action, reason. It records operators' actions,\n"
        "logins, seeks, replays, denials and token changes. escrow audit verify checks it.",
        examples="examples:\n  escrow tx audit\n  escrow tx audit --limit 1000 --json | jq 'select(.who == \"ada\")'\n",
    )
    parser.add_argument("--limit", metavar="N", type=exits.positive, default=50, help="at most this many (default: 50)")
    parser.add_argument("--json", action="store_true", help="one JSON object per record")
    remote.add_arguments(parser)


def run_audit(args: argparse.Namespace) -> int:
    """Prints record after record."""
    left, before, rows = args.limit, None, []
    with remote.connect(args) as api:
        while left > 0:
            answer = api.audit(limit=min(left, PAGE), before=before)
            for record in answer["records"]:
                if args.json:
                    print(json_line(record))
                rows.append(record)
            left, before = left - len(answer["records"]), answer["next"]
            if before is None:
                break
    if not args.json:
        heads = ("NO", "WHEN", "WHO", "ACTION", "TARGET", "RESULT", "REASON")
        cells = [
            (
                str(each["no"]),
                times.shown(each["at_ms"]),
                each["who"],
                each["action"],
                each["target"],
                each["result"],
                each["reason"],
            )
            for each in rows
        ]
        print(table(heads, cells) if rows else "the audit log is empty")
    return exits.OK
