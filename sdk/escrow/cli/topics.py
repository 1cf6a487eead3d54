"""``escrow topics``: topics, and how far their consumer groups have read."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, Final

from escrow.cli import exits, remote
from escrow.cli.parsers import Commands
from escrow.cli.render import json_line, table

TEACHES: Final = f"""\
Prints every topic with its queues and messages, and one line per consumer group: messages not yet
acknowledged (lag), messages being processed, and dead letters.

{remote.HELP}"""

EXAMPLES: Final = f"""\
examples:
  escrow topics
  escrow topics order-paid
  escrow topics --json | jq '.consumers[] | select(.lag > 1000)'

{remote.EXIT_CODES}"""


def add_parser(subparsers: Commands) -> None:
    """Declares ``escrow topics``."""
    parser = exits.add_command(
        subparsers, "topics", run, summary="topics, and how far consumers have read", teaches=TEACHES, examples=EXAMPLES
    )
    parser.add_argument("topics", metavar="TOPIC", nargs="*", help="only these")
    parser.add_argument("--json", action="store_true", help="one JSON object a topic")
    remote.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the topics."""
    with remote.connect(args) as api:
        found = api.topics()
    known = {topic["topic"] for topic in found}
    for name in args.topics:
        if name not in known:
            raise exits.UsageError(f"{name}: no such topic; there are: {', '.join(sorted(known)) or 'none yet'}")
    found = [topic for topic in found if not args.topics or topic["topic"] in args.topics]
    if args.json:
        for topic in found:
            print(json_line(topic))
    else:
        print(table(HEADS, [row for topic in found for row in rows(topic)]) if found else "no topic yet")
    return exits.OK


HEADS: Final = ("TOPIC", "QUEUES", "MESSAGES", "CONSUMER GROUP", "LAG", "IN HAND", "DEAD")


def rows(topic: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    """A line for each consumer group; one without, where no group reads the topic."""
    first = (topic["topic"], topic["queues"], topic["messages"])
    if not topic["consumers"]:
        yield (*first, None, None, None, None)
    for each in topic["consumers"]:
        yield (*first, each["group"], each["lag"], each["in_hand"], each["dead_letters"])
        first = ("", "", "")
