"""``escrow top``: a live view in a terminal. Plain ANSI; every frame is made for the size that the terminal has then."""

from __future__ import annotations

import argparse
import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from escrow.api import Api
from escrow.cli import exits, remote, times, topics
from escrow.cli.groups import oldest
from escrow.cli.parsers import Commands
from escrow.cli.progress import duration
from escrow.cli.render import cell, json_line, middle, table
from escrow.errors import EscrowError, NotAllowed

TEACHES: Final = f"""\
Shows what moves: rates of the last minutes, what is in doubt and for how long, producer groups,
topics with their lag, and the health of each part. q or Ctrl-C ends it.

{remote.HELP}"""

EXAMPLES: Final = f"""\
examples:
  escrow top
  escrow top --interval 5s --url https://escrow.example --token-file ops.token
  escrow top --once                              one frame, for a script or a mail
  escrow top --once --json | jq .overview.pending

{remote.EXIT_CODES}"""

BARS: Final = "▁▂▃▄▅▆▇█"
RATES: Final = ("halves", "commits", "rollbacks", "checks")
#: How often a changed size of the terminal and a key are looked for.
LOOK_S: Final = 0.2
ONCE_SIZE: Final = (120, 60)

_ENTER: Final = "\033[?1049h\033[?25l"
_LEAVE: Final = "\033[?25h\033[?1049l"
_BOLD, _DIM, _RED, _PLAIN = "\033[1m", "\033[2m", "\033[31;1m", "\033[0m"


def add_parser(subparsers: Commands) -> None:
    """Declares ``escrow top``."""
    parser = exits.add_command(
        subparsers, "top", run, summary="a live view of a running Escrow", teaches=TEACHES, examples=EXAMPLES
    )
    parser.add_argument("--interval", metavar="TIME", type=times.seconds, default=2.0, help="between two looks (default: 2s)")
    parser.add_argument("--once", action="store_true", help="print one frame and end")
    parser.add_argument("--json", action="store_true", help="with --once: what the frame shows, as one JSON object")
    remote.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """One frame, or frame after frame until q or Ctrl-C."""
    if args.json and not args.once:
        raise exits.UsageError("--json belongs to --once")
    if not args.once and not sys.stdout.isatty():
        raise exits.UsageError("stdout is no terminal: add --once for one frame")
    with remote.connect(args) as api:
        seen = look(api)
        if args.json:
            print(json_line({"overview": seen.overview, "groups": seen.groups, "topics": seen.topics, "oldest": seen.oldest}))
        elif args.once:
            print("\n".join(frame(seen, remote.url_of(args), shutil.get_terminal_size(ONCE_SIZE), colour=False)))
        else:
            _live(api, seen, args)
    return exits.OK


# --- what is seen -------------------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class Seen:
    """One look at everything; `trouble` says why the last one failed."""

    overview: dict[str, Any]
    groups: list[dict[str, Any]]
    topics: list[dict[str, Any]]
    oldest: list[dict[str, Any]]
    trouble: str = ""


def look(api: Api) -> Seen:
    """Four small requests: the edge keeps what they need."""
    return Seen(api.overview(), api.groups(), api.topics(), api.transactions({}, order="oldest", limit=20)["transactions"])


# --- one frame ----------------------------------------------------------------------------------------------------------------
Size = tuple[int, int]


def frame(seen: Seen, url: str, size: Size, *, colour: bool) -> list[str]:
    """Lines that fit into (columns, rows). What matters most stands first; lists share the rows that are left."""
    columns, rows = size
    lines = [*_head(seen, url, colour), "", *_rates(seen.overview, columns)]
    parts = [
        Section(
            "PENDING, THE OLDEST FIRST", DOUBT_HEADS, [_doubt(each) for each in seen.oldest], seen.overview["pending"], DOUBT_DROPS
        ),
        Section("PRODUCER GROUPS", GROUP_HEADS, [_group(each) for each in _busiest(seen.groups)], len(seen.groups), GROUP_DROPS),
        Section("TOPICS", topics.HEADS, [row for each in seen.topics for row in topics.rows(each)], None, TOPIC_DROPS),
    ]
    left = max(rows - len(lines) - 3 * len(parts), 0)
    for number, part in enumerate(parts):
        share = min(len(part.cells), max(left // (len(parts) - number), 0))
        left -= share
        lines += ["", *part.lines(share, columns, colour)]
    return [_cut(line, columns) for line in lines[:rows]]


@dataclass(frozen=True, slots=True)
class Section:
    """A list with its title. `total`: how many there are, fetched or not; None: as many as were fetched. `drops`: heads of
    columns that a narrow terminal leaves out, the least important first."""

    title: str
    heads: Sequence[str]
    cells: list[Any]
    total: int | None
    drops: Sequence[str]

    def lines(self, share: int, columns: int, colour: bool) -> list[str]:
        total = len(self.cells) if self.total is None else max(self.total, len(self.cells))
        more = f"  (and {total - share:,} more)" if total > share else ""
        if not share:
            return [_title(self.title, colour) + more, *(["none"] if not total else [])]
        return [_title(self.title, colour) + more, *self._fitting(share, columns)]

    def _fitting(self, share: int, columns: int) -> list[str]:
        heads, rows = list(self.heads), [list(row) for row in self.cells[:share]]
        shown = table(heads, rows).splitlines()
        for name in self.drops:
            if max(map(len, shown)) <= columns:
                break
            at = heads.index(name)
            del heads[at]
            for row in rows:
                del row[at]
            shown = table(heads, rows).splitlines()
        return shown


def _head(seen: Seen, url: str, colour: bool) -> list[str]:
    overview, findings = seen.overview, seen.overview["findings"]
    health = {"good": "WELL", "warn": "LOOK", "bad": "NOT WELL"}[overview["health"]] if not seen.trouble else "NO ANSWER"
    at = f"as of {times.shown(overview['now_ms'])[11:19]}"
    lines = [f"{_title('escrow', colour)}  {_mark(health, health != 'WELL', colour)}  {at}  {url}"]
    if seen.trouble:
        lines.append(_mark(f"no answer: {cell(seen.trouble)}; what follows is the last that was heard", True, colour))
    lines += [_mark(_finding(each, overview["now_ms"]), each["severity"] == "bad", colour) for each in findings[:FINDINGS]]
    if len(findings) > FINDINGS:
        lines.append(f"… and {len(findings) - FINDINGS} more findings")
    age = overview["oldest_pending_age_s"]
    doubt = f"pending {overview['pending']:,}" + (f", the oldest for {duration(age)}" if age is not None else "")
    return [*lines, f"{doubt}  ·  discarded {overview['discarded']:,}  ·  conflicts {overview['totals']['conflicts']:,}"]


def _finding(found: dict[str, Any], now_ms: int) -> str:
    """What is wrong, in one line: who, what, since when."""
    since = found["since_ms"]
    ago = f", for {duration(max(0, now_ms - since) / 1000)}" if since is not None else ""
    return cell(f"! {middle(found['subject'], NAME_MAX)}: {found['text']}{ago}")


def _rates(overview: dict[str, Any], columns: int) -> Iterator[str]:
    """A line for each rate: in all, now, and the last minutes as bars."""
    series = overview["series"]
    step_s, width = series["step_s"], max(10, min(columns - 34, 60))
    span = f"last {duration(step_s * max(len(series['at_ms']), 1))}"
    yield f"{'':<10} {'in all':>12} {'a second':>9}  {span}"
    for name in RATES:
        values = series[name][-width:]
        now = values[-1] / step_s if values else 0.0
        yield f"{name:<10} {overview['totals'][name]:>12,} {now:>9,.1f}  {bars(values)}"
    values = series["pending"][-width:]
    yield f"{'pending':<10} {overview['pending']:>12,} {'':>9}  {bars(values)}"


def bars(values: Sequence[float]) -> str:
    """Values as a row of bars, the largest as high as there is."""
    most = max(values, default=0)
    return "".join(BARS[min(len(BARS) - 1, int(value * len(BARS) / most))] if value else " " for value in values) if most else ""


DOUBT_HEADS: Final = ("AGE", "ATTEMPTS", "GROUP", "TOPIC", "KEY", "ID")
DOUBT_DROPS: Final = ("ID", "TOPIC", "ATTEMPTS")
GROUP_HEADS: Final = ("GROUP", "PENDING", "OLDEST", "ASKED", "LIVE")
GROUP_DROPS: Final = ("ASKED", "OLDEST")
TOPIC_DROPS: Final = ("QUEUES", "MESSAGES", "IN HAND")
#: Findings that are shown.
FINDINGS: Final = 5
NAME_MAX: Final = 32


def _doubt(found: dict[str, Any]) -> tuple[object, ...]:
    """The id last: it is long, and a narrow terminal cuts it."""
    key = cell(found["key"], 24) or None
    group, topic = middle(found["group"], NAME_MAX), middle(found["topic"], NAME_MAX)
    return duration(found["age_s"]), found["attempts"], group, topic, key, found["id"]


def _busiest(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(groups, key=lambda group: (-group["pending"], group["group"]))


def _group(group: dict[str, Any]) -> tuple[object, ...]:
    live = str(len(group["members"])) if group["members"] or not group["pending"] else "NONE"
    return middle(group["group"], NAME_MAX), group["pending"], oldest(group), group["outstanding"], live


def _title(text: str, colour: bool) -> str:
    return f"{_BOLD}{text}{_PLAIN}" if colour else text


def _mark(text: str, bad: bool, colour: bool) -> str:
    return f"{_RED}{text}{_PLAIN}" if colour and bad else text


def _cut(line: str, columns: int) -> str:
    """At most so many characters on the screen: colours take no room."""
    shown, at, out = 0, 0, []
    while at < len(line) and shown < columns:
        if line[at] == "\033":
            end = line.index("m", at) + 1
            out.append(line[at:end])
            at = end
            continue
        out.append(line[at])
        shown, at = shown + 1, at + 1
    return "".join(out) + (_PLAIN if "\033" in line else "")


# --- live ---------------------------------------------------------------------------------------------------------------------
def _live(api: Api, seen: Seen, args: argparse.Namespace) -> None:
    url = remote.url_of(args)
    with _screen() as pressed:
        try:
            while True:
                next_look_s, size = time.monotonic() + args.interval, None
                while time.monotonic() < next_look_s:
                    if size != (size := tuple(shutil.get_terminal_size())):
                        _draw(frame(seen, url, (size[0], size[1]), colour=True))
                    if pressed(min(LOOK_S, max(0.0, next_look_s - time.monotonic()))) in ("q", "Q"):
                        return
                try:
                    seen = look(api)
                except NotAllowed:
                    raise  # it will not pass
                except EscrowError as error:
                    seen.trouble = str(error)
        except KeyboardInterrupt:
            return


def _draw(lines: list[str]) -> None:
    """Over the last frame, line by line, so that nothing flickers."""
    sys.stdout.write("\033[H" + "\n".join(f"{line}\033[K" for line in lines) + "\033[J")
    sys.stdout.flush()


@contextmanager
def _screen() -> Iterator[Callable[[float], str]]:
    """The whole terminal, keys without Enter; all as it was afterwards. Gives a function that waits for a key."""
    keys = sys.stdin.isatty()
    before = termios.tcgetattr(sys.stdin) if keys else None

    def pressed(timeout_s: float) -> str:
        if not keys:
            time.sleep(timeout_s)
            return ""
        ready, _, _ = select.select([sys.stdin], [], [], timeout_s)
        return os.read(sys.stdin.fileno(), 1).decode(errors="replace") if ready else ""

    try:
        if keys:
            tty.setcbreak(sys.stdin)
        sys.stdout.write(_ENTER)
        yield pressed
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        if before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
