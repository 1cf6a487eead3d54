"""``escrow consume``: the messages of a topic, on stdout."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from base64 import b64encode
from collections.abc import Iterator
from typing import Final

from escrow.api import Api
from escrow.cli import exits, remote, times
from escrow.cli.parsers import Commands
from escrow.cli.render import json_line
from escrow.messages import Delivered

TEACHES: Final = f"""\
Prints the messages of TOPIC for a consumer group and acknowledges each once it is printed. Stops when
no message is left; with --follow it continues until Ctrl-C.

Members of a group share the messages: use a group of your own to see all of them without taking them
from others. --no-ack returns them at the end, so that the group gets them again (each look counts as a
delivery, and a message that was delivered too often becomes a dead letter).

{remote.HELP}"""

EXAMPLES: Final = f"""\
examples:
  escrow consume order-paid                          what is there, for the group cli
  escrow consume order-paid --group shipping --follow
  escrow consume order-paid --group look --from 15m --json | jq .text
  escrow consume order-paid --group shipping --max 1 --no-ack

{remote.EXIT_CODES}"""

#: How many messages are asked for at once, and how long they are ours: printing is quick, a reader may be slow.
BATCH: Final = 100
VISIBILITY_S: Final = 60.0
FOLLOW_WAIT_S: Final = 20.0


def add_parser(subparsers: Commands) -> None:
    """Declares ``escrow consume``."""
    parser = exits.add_command(
        subparsers, "consume", run, summary="print the messages of a topic", teaches=TEACHES, examples=EXAMPLES
    )
    parser.add_argument("topic", metavar="TOPIC", help="what is read")
    parser.add_argument("--group", metavar="GROUP", default="cli", help="the consumer group (default: cli)")
    parser.add_argument("--follow", "-f", action="store_true", help="go on until Ctrl-C")
    parser.add_argument("--max", "-n", metavar="N", type=exits.positive, help="end after N messages")
    parser.add_argument("--wait", metavar="TIME", type=times.seconds, default=1.0, help="how long to wait for more (default: 1s)")
    parser.add_argument(
        "--from",
        dest="start",
        metavar="WHERE",
        type=_start,
        help=f"where a group that has not read the topic before begins: earliest (the default), latest, or a time: {times.HELP}",
    )
    parser.add_argument("--tags", metavar="A||B", help="only messages with one of these tags")
    parser.add_argument("--no-ack", action="store_true", help="do not take them: they are given back at the end")
    parser.add_argument("--json", action="store_true", help="one JSON object a message; text is its body, or body in base64")
    remote.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Prints until there is nothing more, until --max, or until Ctrl-C."""
    with remote.connect(args) as api:
        reading = _Reading(api, args)
        try:
            for message in reading.messages():
                print(_as_json(message) if args.json else _as_text(message), flush=True)
                reading.printed(message)
        except KeyboardInterrupt:
            if not args.follow:
                raise
        finally:
            reading.close()
    return exits.OK


class _Reading:
    """One member of the group: what it was given, printed and acknowledged."""

    def __init__(self, api: Api, args: argparse.Namespace) -> None:
        self._api, self._args = api, args
        self._member = f"cli-{socket.gethostname()}-{os.getpid()}"
        #: Receipts of what is in hand: not printed yet, or printed and not to be acknowledged.
        self._in_hand: dict[str, Delivered] = {}
        self._done: list[str] = []

    def messages(self) -> Iterator[Delivered]:
        left = self._args.max
        while left is None or left > 0:
            found = self._poll(BATCH if left is None else min(left, BATCH))
            if not found and not self._args.follow:
                return
            self._in_hand |= {message.receipt: message for message in found}
            yield from found
            self._acknowledge()
            left = None if left is None else left - len(found)

    def _poll(self, most: int) -> list[Delivered]:
        args = self._args
        wait_s = FOLLOW_WAIT_S if args.follow else args.wait
        return self._api.poll_messages(
            args.topic, args.group, self._member,
            max=most, wait_s=wait_s, visibility_s=VISIBILITY_S, tags=args.tags, start=args.start,
        )  # fmt: skip

    def printed(self, message: Delivered) -> None:
        if not self._args.no_ack:
            del self._in_hand[message.receipt]
            self._done.append(message.receipt)

    def _acknowledge(self) -> None:
        done, self._done = self._done, []
        if done:
            self._api.ack(self._args.topic, self._args.group, done)

    def close(self) -> None:
        """What was printed is done, even if we were interrupted; the rest goes back to the group at once."""
        self._acknowledge()
        if self._in_hand:
            self._api.set_visibility(self._args.topic, self._args.group, list(self._in_hand), 0)


def _as_text(message: Delivered) -> str:
    """The body alone, as `escrow send --lines` would take it; what is no text is shown as base64."""
    text = _text(message.body)
    if text is None:
        return b64encode(message.body).decode()
    return text if not sys.stdout.isatty() else "".join(sign if sign.isprintable() or sign in "\n\t" else "\ufffd" for sign in text)


def _as_json(message: Delivered) -> str:
    return json_line(
        {
            **content(message.body),
            "key": message.key,
            "tags": message.tags,
            "properties": dict(message.properties),
            "topic": message.topic,
            "queue_id": message.queue_id,
            "queue_offset": message.queue_offset,
            "attempt": message.attempt,
            "born_at_ms": message.born_at_ms,
            "stored_at_ms": message.stored_at_ms,
            "transaction_id": message.transaction_id or None,
        }
    )


def content(body: bytes) -> dict[str, str]:
    """A body in JSON: as text, or in base64 where it is none."""
    text = _text(body)
    return {"text": text} if text is not None else {"body": b64encode(body).decode()}


def _text(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def _start(text: str) -> str:
    return text if text in ("earliest", "latest") else str(times.instant_ms(text))
