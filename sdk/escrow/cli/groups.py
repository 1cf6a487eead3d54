"""``escrow groups``: producer groups, what they have pending, and which members answer for them."""

from __future__ import annotations

import argparse
from typing import Any, Final

from escrow.cli import exits, remote, times
from escrow.cli.parsers import Commands
from escrow.cli.progress import duration
from escrow.cli.render import json_line, table

TEACHES: Final = f"""\
Prints every producer group: its halves in doubt, the age of the oldest, its unanswered check requests
and its live members, which receive check requests. The halves of a group without live members are
held: this costs no attempts, but they stay pending until a member connects or they expire.

{remote.HELP}"""

EXAMPLES: Final = f"""\
examples:
  escrow groups
  escrow groups --members                       live members, and how each is asked
  escrow groups --alone                         only groups with pending halves and no live member
  escrow groups --json | jq 'select(.pending > 1000)'

{remote.EXIT_CODES}"""


def add_parser(subparsers: Commands) -> None:
    """Declares ``escrow groups``."""
    parser = exits.add_command(
        subparsers,
        "groups",
        run,
        summary="producer groups: what is pending, live members",
        teaches=TEACHES,
        examples=EXAMPLES,
    )
    parser.add_argument("--members", action="store_true", help="one line per live member")
    parser.add_argument(
        "--alone", action="store_true", help="only groups with pending halves and no live member; exit code 1 if any"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per group")
    remote.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the groups."""
    with remote.connect(args) as api:
        groups = api.groups()
    if args.alone:
        groups = [group for group in groups if group["pending"] and not group["members"]]
    if args.json:
        for group in groups:
            print(json_line(group))
    elif groups:
        print(_members(groups) if args.members else _table(groups))
    else:
        print("no group has pending halves and no live member" if args.alone else "no producer group yet")
    return exits.PROBLEMS if args.alone and groups else exits.OK


def _table(groups: list[dict[str, Any]]) -> str:
    heads = ("GROUP", "PENDING", "OLDEST", "ASKED", "LIVE")
    return table(
        heads, [(each["group"], each["pending"], oldest(each), each["outstanding"], len(each["members"])) for each in groups]
    )


def _members(groups: list[dict[str, Any]]) -> str:
    rows = [
        (each["group"], member["member"], member["via"], times.shown(member["last_seen_ms"]))
        for each in groups
        for member in each["members"]
    ]
    return table(("GROUP", "MEMBER", "VIA", "LAST SEEN"), rows)


def oldest(group: dict[str, Any]) -> str:
    """The age of its oldest half in doubt."""
    return "-" if group["oldest_age_s"] is None else duration(group["oldest_age_s"])
