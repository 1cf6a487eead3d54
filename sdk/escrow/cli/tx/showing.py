"""``escrow tx show`` and ``history``: one transaction and what happened to it."""

from __future__ import annotations

import argparse
import sys
from base64 import b64decode
from collections.abc import Iterator, Sequence
from typing import Any

from escrow.cli import exits, remote, times
from escrow.cli.consume import content
from escrow.cli.parsers import Commands
from escrow.cli.render import cell, json_line
from escrow.cli.tx.tool import add_ids, add_tool


def add_show(tools: Commands) -> None:
    parser = add_tool(
        tools,
        "show",
        run_show,
        summary="show one transaction in full",
        teaches="Prints state, group, topic, key, times, place and history of transactions.",
        examples="examples:\n  escrow tx show ID\n"
        "  escrow tx show ID --message          with body and properties (needs the operator role)\n"
        "  escrow tx show ID --json | jq .state\n",
    )
    add_ids(parser)
    parser.add_argument("--message", action="store_true", help="with its message: body (the first 16 KiB) and properties")
    parser.add_argument("--json", action="store_true", help="one JSON object per transaction")
    remote.add_arguments(parser)


def add_history(tools: Commands) -> None:
    parser = add_tool(
        tools,
        "history",
        run_history,
        summary="what happened to a transaction, event by event",
        teaches="Prints the history of transactions, one line per event: time, event, who, remark.",
        examples="examples:\n  escrow tx history ID\n  escrow tx history ID --json\n",
    )
    add_ids(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object per event, with the id")
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
