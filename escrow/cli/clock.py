"""``escrow clock``: the clock alert, which stops discards, and the operator's word that the clock is right."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from escrow.cli import exits
from escrow.cli.render import json_line
from escrow.settings import add_arguments, load_arguments

if TYPE_CHECKING:
    from escrow.cli.exits import Subparsers

DESCRIPTION = """\
Ages are differences of wall times. When the wall clock leaves the machine's steady time by more
than clockDriftMax (60s), or stands before the last settled batch, Escrow cannot know how old a half
is. So it stops discarding (checks, commits and roll-backs go on), raises the metric
escrow_clock_alert and keeps the alert, over restarts too, until an operator has looked at the
clock and says so here.

  escrow clock            is there an alert? Shows what happened
  escrow clock confirm    the clock is right now: discards go on, and the new time counts
"""

EPILOG = """\
examples:
  escrow clock --data /var/lib/escrow
  timedatectl                                 look at the clock before you confirm
  escrow clock confirm --data /var/lib/escrow
  escrow clock --json | jq .drift_ms

Before confirming: a clock that is wrong by hours makes young halves look old, and discards them as
expired. They can be resumed, but not unasked. If the clock is still wrong, mend it first.

exit codes:
  0  no alert; confirm: the alert is gone
  1  there is an alert, and discards are stopped
  2  wrong usage, or there is no such data directory
"""


def add_parser(subparsers: Subparsers) -> None:
    """Declares ``escrow clock [show | confirm]``. One parser for both: its flags may stand before or behind the word."""
    parser = subparsers.add_parser(
        "clock",
        help="show or confirm the clock alert, which stops discards",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", nargs="?", choices=tuple(_TOOLS), default="show", help="show (the default) or confirm")
    add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="show: one JSON object: alert, file, reason, drift_ms, now_ms")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Shows or confirms."""
    return _TOOLS[args.what](args)


def run_show(args: argparse.Namespace) -> int:
    """Says whether there is an alert, and what it is about."""
    from streaming.clock import read_alert

    path = _alert_path(args)
    alert = read_alert(path)
    if args.json:
        print(json_line({"alert": alert is not None, "file": str(path), **(alert or {})}))
    elif alert is None:
        print("no clock alert: discards go on")
    else:
        print(_worded(alert))
    return exits.OK if alert is None else exits.PROBLEMS


def run_confirm(args: argparse.Namespace) -> int:
    """Removes the alert: the operator has looked."""
    from streaming.clock import read_alert

    path = _alert_path(args)
    alert = read_alert(path)
    if alert is None:
        print("no clock alert: nothing to confirm")
        return exits.OK
    path.unlink(missing_ok=True)
    print(f"confirmed: {alert.get('reason', 'unreadable alert')}; discards go on, and the time as it is now counts")
    return exits.OK


def _alert_path(args: argparse.Namespace) -> Path:
    from streaming.clock import ALERT_FILE

    data_dir = load_arguments(args).data_dir
    if not data_dir.is_dir():
        raise NotADirectoryError(2, "no such data directory: name it with --data or dataDir", str(data_dir))
    return data_dir / ALERT_FILE


def _worded(alert: dict[str, Any]) -> str:
    drift_s, at_ms = alert.get("drift_ms", 0) / 1000, alert.get("now_ms", 0)
    at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
    return "\n".join(
        (
            f"CLOCK ALERT: {alert.get('reason', 'the alert cannot be read')}: discards are stopped",
            f"  drift:  {drift_s:+,.1f} s",
            f"  seen:   {at} by the wall clock of that moment",
            "  remedy: look at the clock (timedatectl); when it is right: escrow clock confirm",
        )
    )


_TOOLS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {"show": run_show, "confirm": run_confirm}
