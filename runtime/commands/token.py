"""``escrow token``: who may talk to the edge. Makes, lists and revokes bearer tokens."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from escrow.cli import exits, times
from escrow.cli.render import json_line
from runtime.settings import add_arguments, load_arguments

if TYPE_CHECKING:
    from escrow.cli.parsers import CommandParser, Commands
    from runtime.settings import Settings

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
  escrow token new batch --consume 'paid:batch' --expires 90d
  escrow token list
  escrow token rotate orders-service --overlap 24h
  escrow token revoke orders-service
  escrow token access-key orders-service      # for RocketMQ's own clients
  escrow token access-keys                    # lists them
  escrow token revoke-key 0f3a5c7e9b1d2f46    # one key; revoking its token ends all of its keys
"""


def add_parser(subparsers: Commands) -> None:
    """Declares ``escrow token`` and its tools."""
    parser = subparsers.add_parser(
        "token",
        help="make, list and revoke tokens",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, tool=exits.usage_of(parser))
    tools = parser.add_commands("tools", "TOOL")
    new = _add_tool(tools, "new", run_new, "make a token and print it, once")
    new.add_argument("name", metavar="NAME", help="who will use it: shown by list, in logs and in histories")
    new.add_argument("--produce", metavar="GROUP:TOPIC", action="append", default=[], help="may send to the topic as this group")
    new.add_argument("--consume", metavar="TOPIC:GROUP", action="append", default=[], help="may read the topic as this group")
    new.add_argument("--deny-produce", metavar="GROUP:TOPIC", action="append", default=[], help="may not, whatever else allows it")
    new.add_argument("--deny-consume", metavar="TOPIC:GROUP", action="append", default=[], help="may not, whatever else allows it")
    _add_expires(new)
    new.add_argument("--operator", action="store_true", help="may resume and see everything")
    new.add_argument("--metrics", action="store_true", help="may read /metrics")
    shown = _add_tool(tools, "list", run_list, "show names, ids and roles; no token can be shown")
    shown.add_argument("--json", action="store_true", help="one JSON object a token")
    rotated = _add_tool(tools, "rotate", run_rotate, "make a new secret for a token; the old one counts for a while")
    rotated.add_argument("name", metavar="NAME_OR_ID", help="as list shows it")
    rotated.add_argument(
        "--overlap", metavar="TIME", type=times.seconds, default=86400, help="how long the old secret counts (default: 24h)"
    )
    _add_expires(rotated)
    revoked = _add_tool(tools, "revoke", run_revoke, "revoke a token")
    revoked.add_argument("name", metavar="NAME_OR_ID", help="as list shows it")
    key = _add_tool(tools, "access-key", run_access_key, "make an access key and a secret key for RocketMQ's own clients")
    key.add_argument("name", metavar="NAME", help="the token whose name and roles the holder has")
    keys = _add_tool(tools, "access-keys", run_access_keys, "list access keys and whose they are; no secret is shown")
    keys.add_argument("--json", action="store_true", help="one JSON object a key")
    ended = _add_tool(tools, "revoke-key", run_revoke_key, "revoke one access key; its token stays")
    ended.add_argument("access_key", metavar="ACCESS_KEY", help="as access-keys shows it")


def _add_expires(parser: CommandParser) -> None:
    parser.add_argument("--expires", metavar="TIME", type=times.seconds, help="it counts for this long from now on: 90d, 12h")


def _add_tool(tools: Commands, name: str, tool: Callable[[argparse.Namespace], int], summary: str) -> CommandParser:
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
    from ingest.auth import token_file
    from ingest.auth.grants import wide_rules

    settings = load_arguments(args)
    file = settings.tokens_file
    first = not file.exists()
    if not (args.produce or args.consume or args.operator or args.metrics):
        print("escrow: without a role it may do nothing: add --produce, --consume, --operator or --metrics", file=sys.stderr)
        return exits.ERROR
    rules = {rule: getattr(args, rule) for rule in RULES}
    _remove_left_keys(settings, args.name)
    token = token_file.add(
        file, args.name, **rules, operator=args.operator, metrics=args.metrics,
        made_at=_moment(0), expires_at=_expires_at(args),
    )  # fmt: skip
    print(token)
    for advice in wide_rules(rules):
        print(f"escrow: {advice}", file=sys.stderr)
    print(f"escrow: keep it now, it cannot be shown again; its hash is in {file}", file=sys.stderr)
    if first:
        print("escrow: this is the first token: from now on every request needs one", file=sys.stderr)
    return exits.OK


def _moment(after_s: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=after_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _expires_at(args: argparse.Namespace) -> str:
    return "" if args.expires is None else _moment(args.expires)


def run_rotate(args: argparse.Namespace) -> int:
    """Prints the token with its new secret alone on stdout; advice goes to stderr."""
    from ingest.auth import token_file

    file, old_until = load_arguments(args).tokens_file, _moment(args.overlap)
    token, old = token_file.rotate(file, args.name, old_until=old_until, expires_at=_expires_at(args))
    print(token)
    print(f"escrow: the old secret of {old.principal.name} counts until {old_until}; access keys stay", file=sys.stderr)
    return exits.OK


def _remove_left_keys(settings: Settings, name: str) -> None:
    """Access keys of an earlier token of this name must not count for the new one. (A name that is taken is refused later.)"""
    from ingest.auth import access_keys as keys
    from ingest.auth import token_file

    ids = {token.id for token in token_file.load(settings.tokens_file).values() if token.principal.name == name}
    if ids or not settings.access_keys_file.exists():
        return
    left = keys.remove(settings.access_keys_file, lambda key: key.token == name)
    if left:
        print(f"escrow: removed {len(left)} access keys of an earlier token {name!r}: make new ones", file=sys.stderr)


def run_list(args: argparse.Namespace) -> int:
    """Prints what is known of each token."""
    from ingest.auth import token_file

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
    return {
        "name": entry["name"],
        "id": entry["id"],
        **{rule: entry.get(rule, []) for rule in RULES},
        "operator": entry.get("operator", False),
        "metrics": entry.get("metrics", False),
        **{name: _shown(entry.get(name)) for name in ("made_at", "expires_at", "old_until")},
    }


def _shown(moment: object) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ") if isinstance(moment, datetime) else ""


def _roles(row: dict[str, Any]) -> str:
    roles = [f"{role.replace('_', '-')} {' '.join(row[role])}" for role in RULES if row[role]]
    roles += [role for role in ("operator", "metrics") if row[role]]
    return "; ".join(roles + ([f"expires {row['expires_at']}"] if row["expires_at"] else []))


def run_revoke(args: argparse.Namespace) -> int:
    """Takes the token out of its file, and its access keys out of theirs."""
    from ingest.auth import access_keys as keys
    from ingest.auth import token_file

    settings = load_arguments(args)
    token = token_file.revoke(settings.tokens_file, args.name)
    name, gone = token.principal.name, []
    if settings.access_keys_file.exists():
        gone = keys.remove(
            settings.access_keys_file, lambda key: key.token_id == token.id or (key.token, key.token_id) == (name, "")
        )
    also = f" and {len(gone)} access keys" if gone else ""
    print(f"revoked {name} ({token.id}){also}; a running edge knows within a second")
    return exits.OK


def run_access_key(args: argparse.Namespace) -> int:
    """Prints both keys on stdout, a line each; advice goes to stderr."""
    from ingest.auth import access_keys as keys
    from ingest.auth import token_file

    settings = load_arguments(args)
    known = {token.principal.name: token.id for token in token_file.load(settings.tokens_file).values()}
    if args.name not in known:
        print(f"escrow: there is no token {args.name!r}: escrow token list shows them, escrow token new makes one", file=sys.stderr)
        return exits.ERROR
    access_key, secret_key = keys.add(settings.access_keys_file, args.name, known[args.name])
    print(f"access key {access_key}\nsecret key {secret_key}")
    print(f"escrow: the secret is in {settings.access_keys_file} too, which only its owner may read", file=sys.stderr)
    return exits.OK


def run_access_keys(args: argparse.Namespace) -> int:
    """Prints whose each key is, and whether it counts."""
    from ingest.auth import access_keys as keys
    from ingest.auth import token_file

    settings = load_arguments(args)
    tokens = token_file.load(settings.tokens_file)
    names = {token.principal.name for token in tokens.values()}
    found = keys.load(settings.access_keys_file)
    for key in found:
        counts = key.token_id in tokens if key.token_id else key.token in names
        row = {"access_key": key.access_key, "token": key.token, "token_id": key.token_id, "in_use": counts}
        shown = f"{key.access_key:<20}  {key.token_id or '-':<8}  {key.token:<24}  {'in use' if counts else 'its token is gone'}"
        print(json_line(row) if args.json else shown)
    if not found and not args.json:
        print(f"no access keys in {settings.access_keys_file}")
    return exits.OK


def run_revoke_key(args: argparse.Namespace) -> int:
    """Takes one key out of the file."""
    from ingest.auth import access_keys as keys

    file = load_arguments(args).access_keys_file
    if not keys.remove(file, lambda key: key.access_key == args.access_key):
        print(f"escrow: {file} has no access key {args.access_key!r}: escrow token access-keys shows them", file=sys.stderr)
        return exits.ERROR
    print(f"revoked access key {args.access_key}; a running edge knows within a second")
    return exits.OK
