"""``escrow topic``: make a topic."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from escrow.cli import exits, remote
from escrow.cli.render import json_line

if TYPE_CHECKING:
    from escrow.cli.exits import Subparsers

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


def add_parser(subparsers: Subparsers) -> None:
    """Declares ``escrow topic`` and its tools."""
    parser = exits.add_command(subparsers, "topic", run, summary="make a topic", teaches=TEACHES, examples=EXAMPLES)
    parser.set_defaults(tool=exits.usage_of(parser))
    tools = parser.add_subparsers(title="tools", metavar="TOOL")
    create = exits.add_command(tools, "create", run, summary="make a topic", teaches=TEACHES, examples=EXAMPLES)
    create.set_defaults(tool=run_create)
    create.add_argument("topic", metavar="TOPIC", help="its name")
    create.add_argument("--queues", metavar="N", type=exits.positive, help="how many queues, at most 64 (default: queuesPerTopic)")
    create.add_argument("--json", action="store_true", help="one JSON object")
    remote.add_arguments(create)


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
