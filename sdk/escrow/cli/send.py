"""``escrow send``: a message, a half, or many of them, from the command line."""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final

from escrow.api import Api
from escrow.cli import exits, remote
from escrow.cli.parsers import Commands
from escrow.cli.progress import Progress
from escrow.cli.render import json_line
from escrow.messages import End, EndAnswer, Half, Message, Outcome, Position

TEACHES: Final = f"""\
Sends one message to TOPIC: BODY, or the content of --file (- is stdin). With --lines each line is a
message; they are sent in batches, and each batch is stored completely or not at all.

An ordinary message is visible at once. With --half it is a half: stored durably, and not visible
until it is committed. Its transaction id is printed; end it with --then, with escrow tx commit ID, or
let Escrow ask the producer group.

{remote.HELP}"""

EXAMPLES: Final = f"""\
examples:
  escrow send order-paid 'order 42' --key 42 --tags eu
  escrow send order-paid --file order.json --property source=shop
  escrow send order-paid --lines --file orders.txt
  escrow send order-paid 'order 43' --half --group orders        prints the transaction id
  escrow send order-paid 'order 44' --half --then commit
  id=$(escrow send order-paid 'order 45' --half --json | jq -r .id)

{remote.EXIT_CODES}"""

#: Messages of one request, and what it may hold of bodies: below the endpoint's defaults.
BATCH_MESSAGES: Final = 500
BATCH_BYTES: Final = 4 << 20


def add_parser(subparsers: Commands) -> None:
    """Declares ``escrow send``."""
    parser = exits.add_command(
        subparsers, "send", run, summary="send a message, a half, or many of them", teaches=TEACHES, examples=EXAMPLES
    )
    parser.add_argument("topic", metavar="TOPIC", help="where it goes")
    parser.add_argument("body", metavar="BODY", nargs="?", help="its content as text; or name a --file")
    parser.add_argument("--file", metavar="FILE", type=Path, help="take the content from there; - is stdin")
    parser.add_argument("--lines", action="store_true", help="every line of the file (or stdin) is a message")
    parser.add_argument("--group", metavar="GROUP", default="cli", help="the producer group (default: cli)")
    parser.add_argument("--key", metavar="KEY", default="", help="messages with the same key keep their order")
    parser.add_argument("--tags", metavar="TAGS", default="", help="for the consumers' filter")
    parser.add_argument(
        "--property", metavar="NAME=VALUE", dest="properties", action="append", type=_property, default=[], help="may be repeated"
    )
    parser.add_argument("--half", action="store_true", help="store it as a half: invisible until it ends")
    parser.add_argument(
        "--then", metavar="OUTCOME", choices=("commit", "rollback"), help="with --half: end it at once: commit or rollback"
    )
    parser.add_argument("--immunity", metavar="SECONDS", type=int, help="with --half: grace before the first check")
    parser.add_argument("--json", action="store_true", help="one JSON object a message: id or place, and the verdict")
    remote.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Sends batch after batch, and tells what became of each message."""
    _check(args)
    sender = _Sender(args)
    with ExitStack() as stack:
        api = stack.enter_context(remote.connect(args))
        bodies = _bodies(args, stack)
        progress = stack.enter_context(Progress())
        sent = 0
        for batch in _batches(bodies):
            sender.send(api, batch)
            sent += len(batch)
            progress(sent, 0, "messages sent")
    return exits.PROBLEMS if sender.refused else exits.OK


def _check(args: argparse.Namespace) -> None:
    if not args.half and (args.then or args.immunity is not None):
        raise exits.UsageError("--then and --immunity belong to a half: add --half")
    if args.body is not None and (args.file is not None or args.lines):
        raise exits.UsageError("give BODY, or a file and --lines, not both")
    if args.body is None and args.file is None and sys.stdin.isatty():
        raise exits.UsageError("there is nothing to send: give BODY, --file FILE, or pipe it in")


def _bodies(args: argparse.Namespace, stack: ExitStack) -> Iterator[bytes]:
    if args.body is not None:
        return iter([args.body.encode("utf-8", "surrogateescape")])
    from_stdin = args.file is None or str(args.file) == "-"
    source: BinaryIO = sys.stdin.buffer if from_stdin else stack.enter_context(args.file.open("rb"))
    if args.lines:
        return (line.rstrip(b"\r\n") for line in source)
    return iter([source.read()])


def _batches(bodies: Iterator[bytes]) -> Iterator[list[bytes]]:
    """At most so many messages and, but for a single large one, so many bytes at a time."""
    batch: list[bytes] = []
    size = 0
    for body in bodies:
        if batch and (len(batch) >= BATCH_MESSAGES or size + len(body) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(body)
        size += len(body)
    if batch:
        yield batch


class _Sender:
    """Sends batches as the arguments say, and prints the outcome of each message."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args, self.refused = args, 0
        self._show: Callable[[dict[str, object]], None] = (lambda found: print(json_line(found))) if args.json else _show

    def _message(self, body: bytes) -> Message:
        args = self._args
        return Message(args.topic, body, args.key, args.tags, dict(args.properties), check_immunity_s=args.immunity)

    def send(self, api: Api, bodies: list[bytes]) -> None:
        messages = [self._message(body) for body in bodies]
        if not self._args.half:
            for place in api.send_messages(self._args.group, messages):
                self._show(_place(self._args.topic, place))
            return
        # With a key of its own each: what is repeated after a lost answer is not stored twice.
        halves = api.send_halves(self._args.group, messages, dedup_keys=[secrets.token_hex(16) for _ in messages])
        answers = self._end(api, halves)
        for half, answer in zip(halves, answers, strict=True):
            self._show(_half(half, answer))

    def _end(self, api: Api, halves: list[Half]) -> list[EndAnswer | None]:
        if not self._args.then:
            return [None] * len(halves)
        answers = api.end(self._args.group, [End(half.id, Outcome(self._args.then)) for half in halves])
        self.refused += sum(not answer.stands for answer in answers)
        return list(answers)


def _place(topic: str, place: Position) -> dict[str, object]:
    return {"topic": topic, "queue_id": place.queue_id, "queue_offset": place.queue_offset}


def _half(half: Half, answer: EndAnswer | None) -> dict[str, object]:
    ended = {} if answer is None else {"verdict": str(answer.verdict), "state": answer.state}
    return {
        "id": half.id,
        "half_offset": half.half_offset,
        **ended,
        **({"reason": answer.reason} if answer and answer.reason else {}),
    }


def _show(found: dict[str, object]) -> None:
    """One line a message: its id, alone, so that a script can take it; or its place."""
    if "id" not in found:
        print(f"{found['topic']}/{found['queue_id']}@{found['queue_offset']}")
    elif "verdict" not in found:
        print(found["id"])
    else:
        print(f"{found['id']}  {found['verdict']}: {found['state']}{' ' if 'reason' in found else ''}{found.get('reason', '')}")


def _property(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise argparse.ArgumentTypeError(f"{text!r} is not like NAME=VALUE")
    return name, value
