"""``escrow explain``: why a transaction is still in doubt, and what can be done about it now."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any, Final

from escrow.cli import exits, remote, times
from escrow.cli.parsers import Commands
from escrow.cli.progress import duration
from escrow.cli.render import cell, json_line

TEACHES: Final = f"""\
Tells why a transaction is in doubt: who of its group is online, what was answered last, how many checks it
has had and when the next one comes, when it would be discarded, and what commit and rollback would do now.

{remote.HELP}"""

EXAMPLES: Final = f"""\
examples:
  escrow explain ID
  escrow tx list --group orders --ids | escrow explain -
  escrow explain ID --json | jq .why

{remote.EXIT_CODES}"""


def add_parser(subparsers: Commands) -> None:
    """Declares ``escrow explain``."""
    parser = exits.add_command(
        subparsers, "explain", run, summary="why a transaction is still in doubt", teaches=TEACHES, examples=EXAMPLES
    )
    parser.add_argument("ids", metavar="ID", nargs="+", help="transaction ids; - reads them from stdin, one per line")
    parser.add_argument("--json", action="store_true", help="one JSON object per transaction")
    remote.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Explains each."""
    with remote.connect(args) as api:
        for number, id in enumerate(exits.ids_of(args.ids, sys.stdin)):
            found = api.explain(id)
            if args.json:
                print(json_line(found))
                continue
            if number:
                print()
            print("\n".join(explained(found, times.now_ms())))
    return exits.OK


def explained(found: dict[str, Any], now_ms: int) -> Iterator[str]:
    """Lines: the reasons first, then the facts."""
    yield f"transaction {found['id']}: {found['state']}"
    yield from (f"  {cell(sentence)}" for sentence in found["why"])
    answer = found["last_answer"]
    asked = f"{found['attempts']} of {found['attempts_max']}" + (", a request is out" if found["outstanding"] else "")
    for name, value in (
        ("group", found["group"]),
        ("online", ", ".join(found["members"]) or _nobody(found)),
        ("attempts", asked),
        ("last asked", _when(found["last_asked_ms"], now_ms)),
        ("last answer", "-" if answer is None else f"UNKNOWN, {_when(answer['at_ms'], now_ms)}: {answer['remark'] or 'no remark'}"),
        ("next check", _next_check(found, now_ms)),
        ("expires", _when(found["discard_ms"], now_ms)),
        ("commit", found["commit"]),
        ("rollback", found["rollback"]),
    ):
        yield f"  {name:<12} {cell(value)}"
    for each in found["conflicts"]:
        who = f"{each['by']} {each['who']}"
        yield f"  {each['verdict']:<12} {cell(f'''{_when(each['at_ms'], now_ms)}: {who} said {each['said']}. {each['remark']}''')}"


def _nobody(found: dict[str, Any]) -> str:
    seen = found["last_seen_ms"]
    return "nobody since the edge started" if seen is None else f"nobody since {times.shown(seen)}"


def _next_check(found: dict[str, Any], now_ms: int) -> str:
    at_ms = found["next_check_ms"]
    if at_ms is None:
        return "when a member comes online" if found["state"] == "PREPARED" else "-"
    return "at the next round" if at_ms <= now_ms else f"not before {_when(at_ms, now_ms)}"


def _when(at_ms: int | None, now_ms: int) -> str:
    if at_ms is None:
        return "-"
    ago = f"{duration((now_ms - at_ms) / 1000)} ago" if at_ms <= now_ms else f"in {duration((at_ms - now_ms) / 1000)}"
    return f"{times.shown(at_ms)} ({ago})"
