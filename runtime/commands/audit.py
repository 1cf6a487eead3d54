"""``escrow audit``: is the audit log what was written?"""

from __future__ import annotations

import argparse
import sys

from escrow.cli import exits
from escrow.cli.parsers import Commands
from escrow.cli.render import json_line
from runtime.settings import add_arguments, load_arguments

DESCRIPTION = """\
The audit log holds what operators did, logins, seeks, replays, denials and changes of tokens
(escrow tx audit shows it). Each record carries the hash of the one before it, and once a minute
the last hash goes into the commit log.
"""

VERIFY = """\
Holds every record against the hash that the next one carries, against the hashes in the commit
log, and the file against what the edge noted of it when it stopped. Reads the data directory,
also beside a running service. Exits with 0 if all agree; otherwise it prints the first record
that differs and exits with 1. Keep the hash that it prints on another machine, and pass it with
--expect the next time: then a change of older records is found even if the whole data directory
was rewritten.
"""

EPILOG = """\
examples:
  escrow audit verify --data /var/lib/escrow
  escrow audit verify --expect 1432:9f86d081884c7d65…
"""


def add_parser(subparsers: Commands) -> None:
    """Declares ``escrow audit`` and its tool."""
    form = argparse.RawDescriptionHelpFormatter
    parser = subparsers.add_parser(
        "audit", help="verify the audit log", description=DESCRIPTION, epilog=EPILOG, formatter_class=form
    )
    parser.set_defaults(run=run, tool=exits.usage_of(parser))
    tools = parser.add_commands("tools", "TOOL")
    verify = tools.add_parser("verify", help="check the chain of records", description=VERIFY, epilog=EPILOG, formatter_class=form)
    verify.add_argument("--expect", metavar="RECORDS:HASH", type=_head, help="what an earlier run printed")
    verify.add_argument("--json", action="store_true", help="one JSON object")
    add_arguments(verify)
    verify.set_defaults(tool=run_verify)


def _head(text: str) -> tuple[int, str]:
    records, _, sha256 = text.partition(":")
    if not records.isdecimal() or len(sha256) != 64:
        raise argparse.ArgumentTypeError("write RECORDS:HASH, as escrow audit verify printed it")
    return int(records), sha256


def run(args: argparse.Namespace) -> int:
    """Runs the tool that was named."""
    found: int = args.tool(args)
    return found


def run_verify(args: argparse.Namespace) -> int:
    """Prints the head of the chain, or the first record at which it breaks."""
    from store.edge.recovery import journal_heads
    from store.errors import Corrupt
    from store.read.audit_anchors import anchors_of
    from store.tables.journals.audit import NAME, Head, check_chain

    root = load_arguments(args).store_dir
    anchors = anchors_of(root)
    expected = [] if args.expect is None else [Head(*args.expect)]
    try:
        head = check_chain(root / NAME, [*anchors, *expected])
        journal_heads.check_one(root, NAME)
    except Corrupt as error:
        print(f"escrow: {error}", file=sys.stderr)
        return exits.ERROR
    if args.json:
        print(json_line({"records": head.records, "sha256": head.sha256, "anchors": len(anchors)}))
    else:
        told = f"; {len(anchors)} anchors in the commit log agree" if anchors else "; no anchor in the commit log yet"
        print(f"{head.records} records, all linked{told}\n{head.records}:{head.sha256}")
    return exits.OK
