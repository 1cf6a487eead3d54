"""``escrow tx``: transactions in doubt, and what an operator may do about them."""

from __future__ import annotations

import argparse
import sys
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from escrow.api import Api
from escrow.cli import exits, remote, times
from escrow.cli.consume import content
from escrow.cli.parsers import CommandParser, Commands
from escrow.cli.progress import Progress, duration
from escrow.cli.render import cell, json_line, table

TEACHES: Final = f"""\
Lists transactions, shows what became of one, and settles by hand what nobody else settles. Every
action asks for a reason and goes to the audit log (escrow tx audit).

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

STATES: Final = ("pending", "discarded", "committed", "rolled_back", "quarantined", "settled", "any")
#: What an action may be spread over by a filter: what has ended is over.
IN_DOUBT: Final = ("pending", "discarded")
_STATE_FOR: Final = {"resume": "discarded"}
PAGE: Final = 1000
#: Ids of one request.
BATCH: Final = 1000
REASON_MAX: Final = 500
SAMPLE: Final = 5
#: How long an action may take: a million ends are a million records in the log.
ACTION_S: Final = 900.0
#: Beyond so many, results that are as they should be are only counted.
SHOWN_ONE_BY_ONE: Final = 20


def add_parser(subparsers: Commands) -> None:
    """Declares ``escrow tx`` and its tools."""
    parser = exits.add_command(
        subparsers, "tx", run, summary="list, show and settle transactions", teaches=TEACHES, examples=EXAMPLES
    )
    parser.set_defaults(tool=exits.usage_of(parser))
    tools = parser.add_commands("tools", "TOOL")
    _add_list(tools)
    _add_show(tools)
    _add_history(tools)
    for action, (summary, teaches) in ACTIONS.items():
        _add_action(tools, action, summary, teaches)
    _add_audit(tools)


def run(args: argparse.Namespace) -> int:
    """Runs the tool that was named."""
    tool: Callable[[argparse.Namespace], int] = args.tool
    return tool(args)


def _add_tool(
    tools: Commands, name: str, tool: Callable[[argparse.Namespace], int], *, summary: str, teaches: str, examples: str
) -> CommandParser:
    parser = exits.add_command(tools, name, run, summary=summary, teaches=teaches, examples=f"{examples}\n{remote.EXIT_CODES}")
    parser.set_defaults(tool=tool)
    return parser


# --- filters ------------------------------------------------------------------------------------------------------------------
def _add_filters(parser: CommandParser, *, states: Sequence[str] = STATES, otherwise: str = "pending") -> None:
    """The filters of the API; each that is given must fit."""
    add = parser.adding_to(parser.add_argument_group("which ones"))
    add("--state", choices=states, help=f"{', '.join(states)} (default: {otherwise})")
    add("--group", metavar="GROUP", help="of this producer group")
    add("--topic", metavar="TOPIC", help="for this topic")
    add("--key", metavar="KEY", help="with exactly this key")
    add("--search", dest="q", metavar="TEXT", help="with this text in group, topic or key, or with this id")
    add("--age-min", dest="age_min_s", metavar="TIME", type=times.whole_seconds, help="stored at least so long ago: 90s, 15m, 2h")
    add("--age-max", dest="age_max_s", metavar="TIME", type=times.whole_seconds, help="stored at most so long ago")
    add("--attempts-min", metavar="N", type=int, help="asked about at least so often")
    add("--attempts-max", metavar="N", type=int, help="asked about at most so often")
    add("--since", dest="since_ms", metavar="WHEN", type=times.instant_ms, help=f"stored then or later: {times.HELP}")
    add("--until", dest="until_ms", metavar="WHEN", type=times.instant_ms, help="stored then or before")


_FILTERS: Final = (
    "state", "group", "topic", "key", "q", "age_min_s", "age_max_s", "attempts_min", "attempts_max", "since_ms", "until_ms",
)  # fmt: skip


def _filter(args: argparse.Namespace) -> dict[str, object]:
    given = {name: getattr(args, name) for name in _FILTERS}
    return {name: value for name, value in given.items() if value is not None}


def _pages(api: Api, filter: dict[str, object], *, order: str, most: int | None) -> Iterator[list[dict[str, Any]]]:
    """Transactions that fit, a page at a time, at most so many in all."""
    cursor: str | None = None
    while most is None or most > 0:
        answer = api.transactions(filter, order=order, limit=min(most or PAGE, PAGE), cursor=cursor)
        found: list[dict[str, Any]] = answer["transactions"]
        yield found
        cursor = answer["next"]
        if cursor is None:
            return
        most = None if most is None else most - len(found)


# --- list ---------------------------------------------------------------------------------------------------------------------
def _add_list(tools: Commands) -> None:
    parser = _add_tool(
        tools,
        "list",
        run_list,
        summary="transactions that fit a filter",
        teaches="Prints transactions, the oldest first; without a filter those that are pending.",
        examples="examples:\n"
        "  escrow tx list --group orders --age-min 5m\n"
        "  escrow tx list --search 4711\n"
        "  escrow tx list --state settled --since 2026-11-16T02:00 --until 2026-11-16T03:00 --newest\n"
        "  escrow tx list --attempts-min 3 --ids | escrow tx rollback - --reason 'nobody knows them'\n"
        "  escrow tx list --all --json | jq -r '[.id, .group, .age_s] | @tsv'\n",
    )
    _add_filters(parser)
    parser.add_argument("--newest", action="store_true", help="the newest first")
    parser.add_argument("--limit", metavar="N", type=exits.positive, default=100, help="at most so many (default: 100)")
    parser.add_argument("--all", action="store_true", help="as many as there are")
    parser.add_argument("--ids", action="store_true", help="only the ids, one a line: for escrow tx commit - and its like")
    parser.add_argument("--json", action="store_true", help="one JSON object a transaction")
    remote.add_arguments(parser)


def run_list(args: argparse.Namespace) -> int:
    """Prints page after page."""
    most = None if args.all else args.limit
    shown, heads = 0, True
    with remote.connect(args) as api:
        # One more than is shown tells whether there are more.
        for page in _pages(
            api, _filter(args), order="newest" if args.newest else "oldest", most=None if most is None else most + 1
        ):
            rows = page if most is None else page[: most - shown]
            heads = _show_page(args, rows, heads=heads)
            if len(rows) < len(page):
                print(f"escrow: there are more: --limit N or --all; the first {most:,} are shown", file=sys.stderr)
            shown += len(rows)
    if not shown and not (args.json or args.ids):
        print("none: nothing fits")
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


HEADS: Final = ("ID", "STATE", "GROUP", "TOPIC", "KEY", "AGE", "ASKED")


def listed(found: dict[str, Any]) -> tuple[object, ...]:
    state = found["state"] if not found.get("reason") else f"{found['state']} ({found['reason']})"
    return (
        found["id"],
        state,
        found["group"],
        found["topic"],
        cell(found["key"], 24) or None,
        duration(found["age_s"]),
        found["attempts"],
    )


# --- show, history ------------------------------------------------------------------------------------------------------------
def _add_show(tools: Commands) -> None:
    parser = _add_tool(
        tools,
        "show",
        run_show,
        summary="one transaction with all that is known of it",
        teaches="Prints state, group, topic, key, times, place and history of transactions.",
        examples="examples:\n  escrow tx show ID\n  escrow tx show ID --message          with body and properties (an operator's)\n"
        "  escrow tx show ID --json | jq .state\n",
    )
    _add_ids(parser)
    parser.add_argument("--message", action="store_true", help="with its message: body (the first 16 KiB) and properties")
    parser.add_argument("--json", action="store_true", help="one JSON object a transaction")
    remote.add_arguments(parser)


def _add_history(tools: Commands) -> None:
    parser = _add_tool(
        tools,
        "history",
        run_history,
        summary="what happened to a transaction, event by event",
        teaches="Prints the history of transactions, one line an event: when, what, by whom, and the remark.",
        examples="examples:\n  escrow tx history ID\n  escrow tx history ID --json\n",
    )
    _add_ids(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object an event, with the id")
    remote.add_arguments(parser)


def run_show(args: argparse.Namespace) -> int:
    """Prints each; a transaction that is not there is an error of its own."""
    with remote.connect(args) as api:
        for number, id in enumerate(exits.ids_of(args.ids, sys.stdin)):
            found = _with_message(api.inspect(id)) if args.message else api.transaction(id)
            if args.json:
                print(json_line(found))
                continue
            if number:
                print()
            print("\n".join(_described(found)))
    return exits.OK


def _with_message(inspected: dict[str, Any]) -> dict[str, Any]:
    """A transaction, and its message under `message`: text, or body in base64 where it is none."""
    body = content(b64decode(inspected["body"]))
    message = {name: inspected[name] for name in ("tags", "properties", "body_bytes", "immunity_s", "outstanding", "reason")}
    return {**inspected["transaction"], "message": {**body, **message}}


def run_history(args: argparse.Namespace) -> int:
    """Prints the events of each."""
    with remote.connect(args) as api:
        for id in exits.ids_of(args.ids, sys.stdin):
            events = api.transaction(id)["history"]
            if args.json:
                for event in events:
                    print(json_line({"id": id, **event}))
            else:
                print("\n".join(_events(events)))
    return exits.OK


def _described(found: dict[str, Any]) -> Iterator[str]:
    yield f"transaction {found['id']}"
    place = "-" if found["queue_id"] is None else f"queue {found['queue_id']}, offset {found['queue_offset']}"
    for name, value in (
        ("state", f"{found['state']}{'' if found['settled'] else ' (the job has not settled it yet)'}"),
        ("group", found["group"]),
        ("topic", found["topic"]),
        ("key", found["key"]),
        ("attempts", found["attempts"]),
        ("stored at", times.shown(found["stored_at_ms"])),
        ("born at", times.shown(found["born_at_ms"])),
        ("place", place),
    ):
        yield f"  {name:<10} {cell(value) or '-'}"
    yield from _message(found["message"]) if "message" in found else ()
    yield "  history"
    yield from (f"    {line}" for line in _events(found["history"]))


def _message(message: dict[str, Any]) -> Iterator[str]:
    yield f"  {'tags':<10} {cell(message['tags']) or '-'}"
    yield f"  {'immunity':<10} {message['immunity_s']} s{', a check request is out' if message['outstanding'] else ''}"
    for name, value in message["properties"].items():
        yield f"  {'property':<10} {cell(f'{name}={value}')}"
    yield f"  {'body':<10} {message['body_bytes']:,} bytes{'' if 'text' in message else ', in base64'}:"
    yield from (f"    {cell(line) if line else ''}" for line in (message.get("text") or message.get("body", "")).splitlines())


def _events(events: Sequence[dict[str, Any]]) -> Iterator[str]:
    for event in events:
        who = " ".join(word for word in (event.get("by", ""), event.get("actor", "")) if word)
        remark = f": {event['remark']}" if event.get("remark") else ""
        yield cell(f"{times.shown(event['at_ms'])}  {event['event']}{f' by {who}' if who else ''}{remark}")


# --- actions ------------------------------------------------------------------------------------------------------------------
ACTIONS: Final = {
    "commit": (
        "release halves: their messages become visible",
        "Commits transactions by an operator's word: their messages become visible. A discarded one is\n"
        "resumed first. What has ended already stays as it ended: the first outcome wins.",
    ),
    "rollback": (
        "roll halves back: nobody will ever see them",
        "Rolls transactions back by an operator's word: nobody will ever see their messages. A discarded\n"
        "one is resumed first. What has ended already stays as it ended: the first outcome wins.",
    ),
    "check": (
        "ask the producer group now, whatever immunity and round say",
        "Has a live member of the producer group asked at once, whatever immunity and round say. It counts\n"
        "as an attempt when the request is handed over.",
    ),
    "resume": (
        "give discarded halves a new life: pending again, attempts from 0",
        "Takes discarded transactions back: they are pending again, and their attempts count from 0. Of a\n"
        "pending one the count is set back to 0.",
    ),
}


def _add_action(tools: Commands, action: str, summary: str, teaches: str) -> None:
    parser = _add_tool(
        tools,
        action,
        run_action,
        summary=summary,
        teaches=f"{teaches}\n\n"
        "Name ids, - to read ids from stdin (one a line), or a filter. By a filter the command first asks\n"
        "Escrow how many fit, shows some, and wants a confirmation; --yes confirms for a script. If more\n"
        "fit by then, nothing is done.",
        examples=f"examples:\n"
        f"  escrow tx {action} ID ID --reason 'see ticket 17'\n"
        f"  escrow tx list --key 4711 --ids | escrow tx {action} - --reason 'see ticket 17'\n"
        f"  escrow tx {action} --group orders --age-min 1h --reason 'see ticket 17' --dry-run\n"
        f"  escrow tx {action} --group orders --age-min 1h --reason 'see ticket 17' --yes --json\n",
    )
    _add_ids(parser, optional=True)
    _add_filters(parser, states=IN_DOUBT, otherwise=_STATE_FOR.get(action, "pending"))
    parser.add_argument("--reason", metavar="TEXT", help="why: it goes to the audit log (asked for on a terminal)")
    parser.add_argument("--dry-run", action="store_true", help="only tell what would be done")
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask for a confirmation")
    parser.add_argument("--json", action="store_true", help="one JSON object a result, and at last one with the counts")
    remote.add_arguments(parser)
    parser.set_defaults(action=action)


def run_action(args: argparse.Namespace) -> int:
    """By ids, or by a filter with its dry run first."""
    filter = _filter(args)
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
        print(f"Why? The reason goes to the audit log of {args.action}: ", end="", file=sys.stderr, flush=True)
        reason = sys.stdin.readline().strip()
    if not reason:
        raise exits.UsageError("every action needs a reason: --reason 'why'")
    if len(reason) > REASON_MAX:
        raise exits.UsageError(f"the reason has {len(reason)} characters; at most {REASON_MAX} are kept: shorten it")
    return reason


def _act_on_ids(args: argparse.Namespace, api: Api) -> int:
    ids = list(dict.fromkeys(exits.ids_of(args.ids, sys.stdin)))
    outcome = _Outcome(args)
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
    outcome = _Outcome(args)
    if args.dry_run or not matched:
        outcome.add(dry)
        return outcome.tell(dry=True)
    if not args.yes:
        _confirm(args, api, filter, matched)  # 2
    outcome.add(api.act(args.action, args.reason, filter=filter, expect=matched))  # 3
    return outcome.tell()


def _confirm(args: argparse.Namespace, api: Api, filter: dict[str, object], matched: int) -> None:
    if not sys.stdin.isatty():
        raise exits.UsageError(f"{matched:,} fit: add --yes to {args.action} them without being asked, or --dry-run to look first")
    sample = [row for page in _pages(api, filter, order="oldest", most=SAMPLE) for row in page]
    print(table(HEADS, [listed(each) for each in sample]), file=sys.stderr)
    if matched > len(sample):
        print(f"… and {matched - len(sample):,} more", file=sys.stderr)
    print(f"{args.action} {matched:,}? Type yes: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("yes", "y"):
        raise exits.UsageError("nothing was done")


class _Outcome:
    """What Escrow said to an action, over all its requests."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._counts: Counter[str] = Counter()
        self._matched = 0
        self._audit: list[int] = []

    def add(self, answer: dict[str, Any]) -> None:
        self._counts.update(answer["counts"])
        self._matched += int(answer["matched"])
        if answer.get("audit_no") is not None:
            self._audit.append(answer["audit_no"])
        for result in answer["results"]:
            if self._args.json:
                print(json_line(result))
            elif result["result"] != "accepted" or self._matched <= SHOWN_ONE_BY_ONE:
                told = f": {cell(result['detail'])}" if result["detail"] else ""
                word = f"would be {result['result']}" if answer["dry_run"] else result["result"]
                print(f"{result['id']}  {word}{told}")

    def tell(self, *, dry: bool = False) -> int:
        """The counts, and the exit code that they mean."""
        dry = dry or self._args.dry_run
        counts = {name: self._counts[name] for name in ("accepted", "already", "conflict", "refused")}
        if self._args.json:
            print(
                json_line(
                    {"action": self._args.action, "dry_run": dry, "matched": self._matched, "counts": counts, "audit": self._audit}
                )
            )
        elif dry:
            print(f"dry run: {self._args.action} would be tried on {self._matched:,}; nothing was done")
        else:
            words = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "nothing to do"
            note = f" (audit {', '.join(str(number) for number in self._audit[:5])})" if self._audit else ""
            print(f"{self._args.action}: {words}{note}")
        return exits.PROBLEMS if not dry and (counts["conflict"] or counts["refused"]) else exits.OK


# --- audit --------------------------------------------------------------------------------------------------------------------
def _add_audit(tools: Commands) -> None:
    parser = _add_tool(
        tools,
        "audit",
        run_audit,
        summary="who did what, and why",
        teaches="Prints the audit log, the newest first: when, who, what, why. Operators' actions, logins, seeks,\n"
        "replays, denials and changes of tokens are written down. escrow audit verify checks it.",
        examples="examples:\n  escrow tx audit\n  escrow tx audit --limit 1000 --json | jq 'select(.who == \"ada\")'\n",
    )
    parser.add_argument("--limit", metavar="N", type=exits.positive, default=50, help="at most so many (default: 50)")
    parser.add_argument("--json", action="store_true", help="one JSON object a record")
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
        print(table(heads, cells) if rows else "nothing yet: nobody has done anything that is audited")
    return exits.OK


# --- shared -------------------------------------------------------------------------------------------------------------------
def _add_ids(parser: CommandParser, *, optional: bool = False) -> None:
    parser.add_argument(
        "ids", metavar="ID", nargs="*" if optional else "+", help="transaction ids; - reads them from stdin, one a line"
    )
