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
Makes topics. Mostly nobody needs it: the first message makes its topic. Where autoCreateTopics is
false only this makes them, and it may use the numbers that topicsReserved keeps back. A topic keeps
its number of queues for ever. What is made goes to the audit log.

{remote.HELP}"""

EXAMPLES: Final = f"""\
examples:
  escrow topic create order-paid
  escrow topic create order-paid --queues 16

{remote.EXIT_CODES}"""

REMOVE_TEACHES: Final = f"""\
Removes topics that nobody uses: all their messages have aged out (fileReservedTime) or none was ever
released, and no half for them is in doubt or discarded. Any other topic stays, and the answer says
what is in the way. The name is free at once: the next message for it makes a new topic. What consumer
groups did in it is forgotten, and it counts no more for the token that made it. A store numbers
32,768 topics; the number of a removed one can be given again when retention has passed the removal
in the commit log. The first removal makes the store one of format 2: releases before it refuse it.

Name topics, or say --unused for all that nobody uses: first it tells how many, and wants a
confirmation; --yes confirms for a script. What is removed goes to the audit log.

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
    summary = "make and remove topics"
    parser = exits.add_command(subparsers, "topic", run, summary=summary, teaches=TEACHES, examples=EXAMPLES)
    parser.set_defaults(tool=exits.usage_of(parser))
    tools = parser.add_commands("tools", "TOOL")
    create = exits.add_command(tools, "create", run, summary="make a topic", teaches=TEACHES, examples=EXAMPLES)
    create.set_defaults(tool=run_create)
    create.add_argument("topic", metavar="TOPIC", help="its name")
    create.add_argument("--queues", metavar="N", type=exits.positive, help="how many queues, at most 64 (default: queuesPerTopic)")
    create.add_argument("--json", action="store_true", help="one JSON object")
    remote.add_arguments(create)
    remove = exits.add_command(
        tools, "remove", run, summary="remove topics that nobody uses", teaches=REMOVE_TEACHES, examples=REMOVE_EXAMPLES
    )
    remove.set_defaults(tool=run_remove)
    remove.add_argument("topics", metavar="TOPIC", nargs="*", help="their names")
    remove.add_argument("--unused", action="store_true", help="all that nobody uses")
    remove.add_argument("--made-by", metavar="TOKEN", help="with --unused: only those that this token made")
    remove.add_argument("--dry-run", action="store_true", help="only tell what would be removed")
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
        raise exits.UsageError("name topics, or say --unused for all that nobody uses; one of the two")
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
