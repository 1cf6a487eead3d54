"""``escrow token``: who may talk to the edge. Makes, lists and revokes bearer tokens."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from escrow.cli import exits
from escrow.cli.render import json_line
from escrow.settings import add_arguments, load_arguments

if TYPE_CHECKING:
    from escrow.cli.exits import Subparsers

DESCRIPTION = """\
Clients show a token with every request: Authorization: Bearer escrow_…
Each has roles.

  --produce GROUP:TOPIC       send halves and messages to the topic as this producer group; end
                              its transactions, answer its checks and see them
  --consume TOPIC:GROUP       read the topic as this consumer group: acknowledge, seek, replay
  --deny-produce GROUP:TOPIC  refuse what another rule would allow; likewise --deny-consume
  --operator                  resume, see every transaction, the status and the metrics
  --metrics                   read /metrics only

A * at the end of a name stands for any rest. Each option may be given several times. Without a
second name a rule allows every topic (every consumer group): write it, or * if all are meant.

A token is printed once. The file (setting tokensFile) keeps a hash, so a lost token cannot be
looked up: make another one and revoke the old one. A running edge takes a change up within a
second. As soon as there is one token, every request needs one; before, only loopback is served.
"""

#: Fields of a token that hold rules, and the options that set them.
RULES = ("produce", "consume", "deny_produce", "deny_consume")

EPILOG = """\
examples:
  escrow token new orders-service --produce 'orders*:order-*' --consume invoices:billing
  escrow token new reports --consume '*:reports' --deny-consume 'salaries*'
  escrow token new ops --operator
  escrow token new prometheus --metrics
  escrow token list
  escrow token revoke orders-service
  escrow token access-key orders-service      # for RocketMQ's own clients
"""


def add_parser(subparsers: Subparsers) -> None:
    """Declares ``escrow token`` and its tools."""
    parser = subparsers.add_parser(
        "token",
        help="make, list and revoke tokens",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, tool=exits.usage_of(parser))
    tools = parser.add_subparsers(title="tools", metavar="TOOL")
    new = _add_tool(tools, "new", run_new, "make a token and print it, once")
    new.add_argument("name", metavar="NAME", help="who will use it: shown by list, in logs and in histories")
    new.add_argument("--produce", metavar="GROUP:TOPIC", action="append", default=[], help="may send to the topic as this group")
    new.add_argument("--consume", metavar="TOPIC:GROUP", action="append", default=[], help="may read the topic as this group")
    new.add_argument("--deny-produce", metavar="GROUP:TOPIC", action="append", default=[], help="may not, whatever else allows it")
    new.add_argument("--deny-consume", metavar="TOPIC:GROUP", action="append", default=[], help="may not, whatever else allows it")
    new.add_argument("--operator", action="store_true", help="may resume and see everything")
    new.add_argument("--metrics", action="store_true", help="may read /metrics")
    shown = _add_tool(tools, "list", run_list, "show names, ids and roles; no token can be shown")
    shown.add_argument("--json", action="store_true", help="one JSON object a token")
    revoked = _add_tool(tools, "revoke", run_revoke, "take a token out of use")
    revoked.add_argument("name", metavar="NAME_OR_ID", help="as list shows it")
    key = _add_tool(tools, "access-key", run_access_key, "make an access key and a secret key for RocketMQ's own clients")
    key.add_argument("name", metavar="NAME", help="the token whose name and roles the holder has")


def _add_tool(tools: Subparsers, name: str, tool: Callable[[argparse.Namespace], int], summary: str) -> argparse.ArgumentParser:
    parser = tools.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    add_arguments(parser)
    parser.set_defaults(tool=tool)
    return parser


def run(args: argparse.Namespace) -> int:
    """Runs the tool that was named."""
    tool: Callable[[argparse.Namespace], int] = args.tool
    return tool(args)


def run_new(args: argparse.Namespace) -> int:
    """Prints the token alone on stdout, so that it can be piped into a secret store; advice goes to stderr."""
    from ingest import token_file
    from ingest.grants import wide_rules

    file = load_arguments(args).tokens_file
    first = not file.exists()
    if not (args.produce or args.consume or args.operator or args.metrics):
        print("escrow: without a role it may do nothing: add --produce, --consume, --operator or --metrics", file=sys.stderr)
        return exits.ERROR
    made_at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    rules = {rule: getattr(args, rule) for rule in RULES}
    token = token_file.add(file, args.name, **rules, operator=args.operator, metrics=args.metrics, made_at=made_at)
    print(token)
    for advice in wide_rules(rules):
        print(f"escrow: {advice}", file=sys.stderr)
    print(f"escrow: keep it now, it cannot be shown again; its hash is in {file}", file=sys.stderr)
    if first:
        print("escrow: this is the first token: from now on every request needs one", file=sys.stderr)
    return exits.OK


def run_list(args: argparse.Namespace) -> int:
    """Prints what is known of each token."""
    from ingest import token_file

    file = load_arguments(args).tokens_file
    tokens = token_file.load(file).values()
    rows = [_row(dict(token.entry)) for token in tokens]
    for row in rows:
        print(json_line(row) if args.json else f"{row['id']}  {row['made_at']:<20}  {row['name']:<24}  {_roles(row)}")
    for token in tokens:
        for advice in token.wide:
            print(f"escrow: {token.principal.name}: {advice}", file=sys.stderr)
    if not rows and not args.json:
        print(f"no tokens in {file}" if file.exists() else f"no tokens: {file} does not exist, and only loopback is served")
    return exits.OK


def _row(entry: dict[str, Any]) -> dict[str, Any]:
    made_at = entry.get("made_at")
    return {
        "name": entry["name"],
        "id": entry["id"],
        **{rule: entry.get(rule, []) for rule in RULES},
        "operator": entry.get("operator", False),
        "metrics": entry.get("metrics", False),
        "made_at": made_at.strftime("%Y-%m-%dT%H:%M:%SZ") if isinstance(made_at, datetime) else "",
    }


def _roles(row: dict[str, Any]) -> str:
    roles = [f"{role.replace('_', '-')} {' '.join(row[role])}" for role in RULES if row[role]]
    return "; ".join(roles + [role for role in ("operator", "metrics") if row[role]])


def run_revoke(args: argparse.Namespace) -> int:
    """Takes the token out of the file."""
    from ingest import token_file

    file = load_arguments(args).tokens_file
    token = token_file.revoke(file, args.name)
    print(f"revoked {token.principal.name} ({token.id}); a running edge knows within a second")
    return exits.OK


def run_access_key(args: argparse.Namespace) -> int:
    """Prints both keys on stdout, a line each; advice goes to stderr."""
    from ingest import token_file
    from ingest.rocketmq import keys

    settings = load_arguments(args)
    known = [token.principal.name for token in token_file.load(settings.tokens_file).values()]
    if args.name not in known:
        print(f"escrow: there is no token {args.name!r}: escrow token list shows them, escrow token new makes one", file=sys.stderr)
        return exits.ERROR
    access_key, secret_key = keys.add(settings.access_keys_file, args.name)
    print(f"access key {access_key}\nsecret key {secret_key}")
    print(f"escrow: the secret is in {settings.access_keys_file} too, which nobody else may read", file=sys.stderr)
    return exits.OK
