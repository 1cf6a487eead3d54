"""``escrow topic``: make and remove topics."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, Final

from escrow.cli import exits, remote
from escrow.cli.parsers import Commands
from escrow.cli.render import json_line

TEACHES: Final = f"""\
Creates topics. This is rarely needed: the first message to a topic creates it. If autoCreateTopics is
false, only this command creates topics, and it may use the numbers that topicsReserved keeps free. The
number of queues of a topic cannot be changed later. The audit log records what is created.

{remote.HELP}"""

EXAMPLES: Final = f"""\
examples:
  escrow topic create order-paid
  escrow topic create order-paid --queues 16

{remote.EXIT_CODES}"""

REMOVE_TEACHES: Final = f"""\
Removes unused topics: all their messages have expired (fileReservedTime) or none was ever
released, and no half for them is in doubt or discarded. Any other topic stays, and the answer
says why. The name is free at once: the next message for it creates a new topic. The positions of
consumer groups are forgotten, and the topic no longer counts for the token that created it. A store numbers
32,768 topics; the number of a removed one can be used again when retention has passed the removal in
the commit log. The first removal changes the store to format 2, which earlier releases refuse.

Name topics, or use --unused for all unused topics: the command prints their number and asks for
confirmation; --yes skips that. The audit log records what is removed.

{remote.HELP}"""

REMOVE_EXAMPLES: Final = f"""\
examples:
  escrow topic remove order-padi
  escrow topic remove --unused --dry-run
  escrow topic remove --unused --made-by tenant-7 --yes

{remote.EXIT_CODES}"""

#: How long a removal may take: all halves in doubt are looked through.
REMOVE_S: Final = 300.0
SHOWN: Final = 20


def add_parser(subparsers: Commands) -> None:
    """Declares ``escrow topic`` and its tools."""
    summary = "create and remove topics"
    parser = exits.add_command(subparsers, "topic", run, summary=summary, teaches=TEACHES, examples=EXAMPLES)
    parser.set_defaults(tool=exits.usage_of(parser))
    tools = parser.add_commands("tools", "TOOL")
    create = exits.add_command(tools, "create", run, summary="create a topic", teaches=TEACHES, examples=EXAMPLES)
    create.set_defaults(tool=run_create)
    create.add_argument("topic", metavar="TOPIC", help="its name")
    create.add_argument("--queues", metavar="N", type=exits.positive, help="how many queues, at most 64 (default: queuesPerTopic)")
    create.add_argument("--json", action="store_true", help="one JSON object")
    remote.add_arguments(create)
    remove = exits.add_command(
        tools, "remove", run, summary="remove unused topics", teaches=REMOVE_TEACHES, examples=REMOVE_EXAMPLES
    )
    remove.set_defaults(tool=run_remove)
    remove.add_argument("topics", metavar="TOPIC", nargs="*", help="their names")
    remove.add_argument("--unused", action="store_true", help="all unused topics")
    remove.add_argument("--made-by", metavar="TOKEN", help="with --unused: only those that this token created")
    remove.add_argument("--dry-run", action="store_true", help="show what would be removed, and remove nothing")
    remove.add_argument("--yes", "-y", action="store_true", help="do not ask for a confirmation")
    remove.add_argument("--json", action="store_true", help="one JSON object")
    remote.add_arguments(remove)


def run(args: argparse.Namespace) -> int:
    """Runs the tool that was named."""
    tool: Callable[[argparse.Namespace], int] = args.tool
    return tool(args)


def run_create(args: argparse.Namespace) -> int:
    """Makes a topic."""
    with remote.connect(args) as api:
        answer = api.create_topic(args.topic, args.queues)
    if args.json:
        print(json_line(answer))
    else:
        what = "made" if answer["made"] else "was there before"
        print(f"{answer['topic']}: {what}, {answer['queues']} queues")
    return exits.OK


def run_remove(args: argparse.Namespace) -> int:
    """Removes topics: those that are named, or all unused ones after a dry run and a confirmation."""
    if bool(args.topics) == args.unused:
        raise exits.UsageError("name topics, or use --unused; not both")
    if args.made_by is not None and not args.unused:
        raise exits.UsageError("--made-by goes with --unused: all unused topics that this token made")
    with remote.connect(args, timeout_s=REMOVE_S) as api:
        if args.unused and not args.yes and not args.dry_run:
            _confirm(api.remove_topics(unused=True, made_by=args.made_by, dry_run=True))
        answer = api.remove_topics(args.topics, unused=args.unused, made_by=args.made_by, dry_run=args.dry_run)
    if args.json:
        print(json_line(answer))
    else:
        _tell(answer)
    return exits.PROBLEMS if answer["kept"] else exits.OK


def _confirm(dry: dict[str, Any]) -> None:
    count = int(dry["removed"])
    if not count:
        return
    if not sys.stdin.isatty():
        raise exits.UsageError(f"{count:,} topics are unused: add --yes to remove them without being asked, or --dry-run to look")
    print(_some(dry["topics"], count), file=sys.stderr)
    print(f"remove {count:,}? Type yes: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("yes", "y"):
        raise exits.UsageError("nothing was done")


def _some(names: list[str], count: int) -> str:
    return "\n".join(names[:SHOWN]) + (f"\n… and {count - SHOWN:,} more" if count > SHOWN else "")


def _tell(answer: dict[str, Any]) -> None:
    what = "would be removed" if answer["dry_run"] else "removed"
    if answer["removed"]:
        print(_some(answer["topics"], answer["removed"]))
    print(f"{answer['removed']:,} {what}")
    for kept in answer["in_the_way"]:
        print(f"{kept['topic']}: stays: {kept['reason']}", file=sys.stderr)
