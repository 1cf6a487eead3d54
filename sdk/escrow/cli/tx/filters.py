"""Filters: which transactions a tool is about, and their pages."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any, Final

from escrow.api import Api
from escrow.cli import times
from escrow.cli.parsers import CommandParser

STATES: Final = ("pending", "discarded", "committed", "rolled_back", "quarantined", "settled", "any")
PAGE: Final = 1000


def add_filters(parser: CommandParser, *, states: Sequence[str] = STATES, otherwise: str = "pending") -> None:
    """The filters of the API; each that is given must fit."""
    add = parser.adding_to(parser.add_argument_group("which ones"))
    add("--state", choices=states, help=f"{', '.join(states)} (default: {otherwise})")
    add("--group", metavar="GROUP", help="of this producer group")
    add("--topic", metavar="TOPIC", help="for this topic")
    add("--key", metavar="KEY", help="with exactly this key")
    add("--search", dest="q", metavar="TEXT", help="with this text in group, topic or key, or with this id")
    add("--age-min", dest="age_min_s", metavar="TIME", type=times.whole_seconds, help="stored at least this long ago: 90s, 15m, 2h")
    add("--age-max", dest="age_max_s", metavar="TIME", type=times.whole_seconds, help="stored at most this long ago")
    add("--attempts-min", metavar="N", type=int, help="checked at least this often")
    add("--attempts-max", metavar="N", type=int, help="checked at most this often")
    add("--since", dest="since_ms", metavar="WHEN", type=times.instant_ms, help=f"stored then or later: {times.HELP}")
    add("--until", dest="until_ms", metavar="WHEN", type=times.instant_ms, help="stored then or before")
    add("--cause", metavar="CAUSE", help="in doubt for this reason: unasked, unanswered, 'unknown:…' as escrow tx causes tells it")
    add("--online", choices=("yes", "no"), help="of groups with a live member, or without one")


_FILTERS: Final = (
    "state", "group", "topic", "key", "q", "age_min_s", "age_max_s", "attempts_min", "attempts_max", "since_ms", "until_ms",
    "cause", "online",
)  # fmt: skip


def filter_of(args: argparse.Namespace) -> dict[str, object]:
    given = {name: getattr(args, name) for name in _FILTERS}
    given["online"] = {"yes": True, "no": False}.get(given["online"])
    return {name: value for name, value in given.items() if value is not None}


def pages(api: Api, filter: dict[str, object], *, order: str, most: int | None) -> Iterator[list[dict[str, Any]]]:
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
