"""``escrow tx commit``, ``rollback``, ``check`` and ``resume``: what an operator may do."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final

from escrow.api import Api
from escrow.cli import exits, remote, times
from escrow.cli.parsers import Commands
from escrow.cli.progress import Progress, duration
from escrow.cli.render import cell, table
from escrow.cli.tx.filters import add_filters, filter_of, pages
from escrow.cli.tx.outcome import Outcome
from escrow.cli.tx.rows import HEADS, listed
from escrow.cli.tx.tool import add_ids, add_tool

#: States that an action by filter may select: other transactions have ended.
IN_DOUBT: Final = ("pending", "discarded")
_STATE_FOR: Final = {"resume": "discarded"}
#: Ids per request.
BATCH: Final = 1000
REASON_MAX: Final = 500
SAMPLE: Final = 5
#: Timeout of an action: a million ends are a million records in the log.
ACTION_S: Final = 900.0

ACTIONS: Final = {
    "commit": (
        "release halves: their messages become visible",
        "Commits transactions: their messages become visible. A discarded transaction is resumed first. One\n"
        "that has already ended is not changed: the first outcome wins.",
    ),
    "rollback": (
        "roll halves back: their messages are never delivered",
        "Rolls transactions back: their messages are never delivered. A discarded transaction is resumed\n"
        "first. One that has already ended is not changed: the first outcome wins.",
    ),
    "check": (
        "send a check request now, regardless of immunity and round",
        "Sends a check request to a live member of the producer group now, regardless of immunity and round.\n"
        "It counts as an attempt when the request is delivered.",
    ),
    "resume": (
        "make discarded halves pending again, with 0 attempts",
        "Makes discarded transactions pending again, with 0 attempts. The attempts of a transaction that is\n"
        "still pending are set to 0.",
    ),
}


def add_actions(tools: Commands) -> None:
    """Declares ``escrow tx commit``, ``rollback``, ``check`` and ``resume``."""
    for action, (summary, teaches) in ACTIONS.items():
        _add_action(tools, action, summary, teaches)


def _add_action(tools: Commands, action: str, summary: str, teaches: str) -> None:
    parser = add_tool(
        tools,
        action,
        run_action,
        summary=summary,
        teaches=f"{teaches}\n\n"
        "Name ids, - to read ids from stdin (one per line), or a filter. With a filter, the command counts\n"
        "the matches, shows some of them and asks for confirmation; --yes skips that. If more transactions\n"
        "match by then, nothing is done.",
        examples=f"examples:\n"
        f"  escrow tx {action} ID ID --reason 'see ticket 17'\n"
        f"  escrow tx list --key 4711 --ids | escrow tx {action} - --reason 'see ticket 17'\n"
        f"  escrow tx {action} --group orders --age-min 1h --reason 'see ticket 17' --dry-run\n"
        f"  escrow tx {action} --group orders --age-min 1h --reason 'see ticket 17' --yes --json\n",
    )
    add_ids(parser, optional=True)
    add_filters(parser, states=IN_DOUBT, otherwise=_STATE_FOR.get(action, "pending"))
    parser.add_argument("--reason", metavar="TEXT", help="written to the audit log (asked for on a terminal)")
    parser.add_argument("--dry-run", action="store_true", help="show what would be done, and do nothing")
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask for a confirmation")
    parser.add_argument("--json", action="store_true", help="one JSON object per result, then one with the counts")
    remote.add_arguments(parser)
    parser.set_defaults(action=action)


def run_action(args: argparse.Namespace) -> int:
    """Acts on ids, or on a filter after a dry run."""
    filter = filter_of(args)
    if bool(args.ids) == bool(filter):
        raise exits.UsageError(
            "name ids (or - for stdin), or a filter, not both" if filter else "name ids, - for stdin, or a filter such as --group"
        )
    args.reason = _reason(args)
    filter.setdefault("state", _STATE_FOR.get(args.action, "pending"))
    with remote.connect(args, timeout_s=ACTION_S) as api:
        return _act_on_ids(args, api) if args.ids else _act_on_filter(args, api, filter)


def _reason(args: argparse.Namespace) -> str:
    reason: str = (args.reason or "").strip()
    if not reason and args.dry_run:
        return "dry run"
    if not reason and sys.stdin.isatty() and "-" not in args.ids:
        print(f"Reason for {args.action} (goes to the audit log): ", end="", file=sys.stderr, flush=True)
        reason = sys.stdin.readline().strip()
    if not reason:
        raise exits.UsageError("every action needs a reason: --reason TEXT")
    if len(reason) > REASON_MAX:
        raise exits.UsageError(f"the reason has {len(reason)} characters; at most {REASON_MAX} are allowed: shorten it")
    return reason


def _act_on_ids(args: argparse.Namespace, api: Api) -> int:
    ids = list(dict.fromkeys(exits.ids_of(args.ids, sys.stdin)))
    outcome = Outcome(args)
    with Progress() as progress:
        for first in range(0, len(ids), BATCH):
            batch = ids[first : first + BATCH]
            outcome.add(api.act(args.action, args.reason, ids=batch, dry_run=args.dry_run))
            progress(first + len(batch), len(ids), args.action)
    return outcome.tell()


def _act_on_filter(args: argparse.Namespace, api: Api, filter: dict[str, object]) -> int:
    """1 how many fit · 2 show some, ask · 3 do it, for no more than that."""
    dry = api.act(args.action, args.reason, filter=filter, dry_run=True)  # 1
    matched = int(dry["matched"])
    outcome = Outcome(args)
    if args.dry_run or not matched:
        if not args.json:
            _preview(args, dry, filter)
        outcome.add(dry)
        return outcome.tell(dry=True)
    if not args.yes:
        _preview(args, dry, filter)
        _confirm(args, api, filter, matched)  # 2
    outcome.add(api.act(args.action, args.reason, filter=filter, expect=matched))  # 3
    return outcome.tell()


def _preview(args: argparse.Namespace, dry: dict[str, Any], filter: dict[str, object]) -> None:
    """Whom it is about: the filter, the groups, the ages."""
    print(f"{args.action} by {' '.join(f'{name}={cell(value)}' for name, value in filter.items())}: {int(dry['matched']):,} match")
    preview, now_ms = dry.get("preview"), times.now_ms()
    if preview is None or not dry["matched"]:
        return
    oldest, newest = (duration((now_ms - preview[name]) / 1000) for name in ("oldest_ms", "newest_ms"))
    print(f"  stored between {oldest} and {newest} ago")
    rows = [(each["group"], each["count"], each["online"] or "nobody") for each in preview["groups"]]
    print(table(("GROUP", "COUNT", "ONLINE"), rows))
    if preview["groups_more"]:
        print(f"… and {preview['groups_more']:,} more groups")


def _confirm(args: argparse.Namespace, api: Api, filter: dict[str, object], matched: int) -> None:
    if not sys.stdin.isatty():
        raise exits.UsageError(f"{matched:,} match: add --yes to {args.action} them, or --dry-run to look first")
    sample = [row for page in pages(api, filter, order="oldest", most=SAMPLE) for row in page]
    print(table(HEADS, [listed(each) for each in sample]), file=sys.stderr)
    if matched > len(sample):
        print(f"… and {matched - len(sample):,} more", file=sys.stderr)
    print(f"{args.action} {matched:,}? Type yes: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("yes", "y"):
        raise exits.UsageError("nothing was done")
