"""``escrow dead-letters``: messages that a consumer group was given too often, and giving them to it again."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Final

from escrow.api import Api
from escrow.cli import exits, remote, times
from escrow.cli.consume import content
from escrow.cli.parsers import CommandParser, Commands
from escrow.cli.progress import Progress
from escrow.cli.render import cell, json_line, table
from escrow.messages import DeadLetter

TEACHES: Final = f"""\
A message that a consumer group was handed maxDeliveries times (16) without acknowledging it becomes a
dead letter of that group. Mend the consumer, then replay them: the group gets each once more.

{remote.HELP}"""

EXAMPLES: Final = f"""\
examples:
  escrow dead-letters list shipping
  escrow dead-letters list shipping --json | jq 'select(.topic == "order-paid") | .id'
  escrow dead-letters replay shipping ID ID
  escrow dead-letters replay shipping --all

{remote.EXIT_CODES}"""

PAGE: Final = 256


def add_parser(subparsers: Commands) -> None:
    """Declares ``escrow dead-letters`` and its tools."""
    parser = exits.add_command(
        subparsers, "dead-letters", run, summary="messages that were delivered too often", teaches=TEACHES, examples=EXAMPLES
    )
    parser.set_defaults(tool=exits.usage_of(parser))
    tools = parser.add_commands("tools", "TOOL")
    listing = _add_tool(tools, "list", run_list, "print a group's dead letters, oldest first")
    listing.add_argument("--limit", metavar="N", type=exits.positive, help="at most this many (default: all)")
    replay = _add_tool(tools, "replay", run_replay, "deliver dead letters to the group again")
    replay.add_argument("ids", metavar="ID", nargs="*", help="as list shows them; - reads them from stdin, one a line")
    replay.add_argument("--all", action="store_true", help="all of the group's")


def _add_tool(tools: Commands, name: str, tool: Callable[[argparse.Namespace], int], summary: str) -> CommandParser:
    teaches = f"{summary[0].upper()}{summary[1:]}.\n\n{remote.HELP}"
    parser = exits.add_command(tools, name, run, summary=summary, teaches=teaches, examples=EXAMPLES)
    parser.set_defaults(tool=tool)
    parser.add_argument("group", metavar="GROUP", help="the consumer group")
    parser.add_argument("--json", action="store_true", help="JSON: an object a letter, or the number that was replayed")
    remote.add_arguments(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Runs the tool that was named."""
    tool: Callable[[argparse.Namespace], int] = args.tool
    return tool(args)


def run_list(args: argparse.Namespace) -> int:
    """Prints the letters."""
    rows: list[tuple[object, ...]] = []
    with remote.connect(args) as api:
        for number, letter in enumerate(_letters(api, args.group)):
            if number == args.limit:
                break
            if args.json:
                print(_as_json(letter))
            else:
                rows.append(
                    (letter.id, times.shown(letter.dead_at_ms), letter.topic, letter.key, letter.attempts, _begin(letter.body))
                )
    if not args.json:
        print(table(("ID", "SINCE", "TOPIC", "KEY", "ATTEMPTS", "BODY"), rows) if rows else f"no dead letters of {args.group}")
    return exits.OK


def run_replay(args: argparse.Namespace) -> int:
    """Replays what is named."""
    if bool(args.ids) == args.all:
        raise exits.UsageError("name ids (or - for stdin), or say --all, one of the two")
    replayed = 0
    with remote.connect(args) as api, Progress() as progress:
        # All of them are found first: a letter that dies again at once must not be met twice.
        ids = [letter.id for letter in _letters(api, args.group)] if args.all else list(exits.ids_of(args.ids, sys.stdin))
        for first in range(0, len(ids), PAGE):
            replayed += api.replay_dead_letters(args.group, ids[first : first + PAGE])
            progress(first, len(ids), "replayed")
    print(json_line({"replayed": replayed}) if args.json else f"{replayed:,} will be delivered to {args.group} again")
    return exits.OK


def _letters(api: Api, group: str) -> Iterator[DeadLetter]:
    after: str | None = None
    while True:
        letters, after = api.dead_letters(group, max=PAGE, after=after)
        yield from letters
        if after is None:
            return


def _as_json(letter: DeadLetter) -> str:
    return json_line(
        {
            "id": letter.id,
            **content(letter.body),
            "topic": letter.topic,
            "key": letter.key,
            "tags": letter.tags,
            "properties": dict(letter.properties),
            "attempts": letter.attempts,
            "dead_at_ms": letter.dead_at_ms,
            "born_at_ms": letter.born_at_ms,
        }
    )


def _begin(body: bytes) -> str:
    return cell(body[:200].decode(errors="replace"), 40)
