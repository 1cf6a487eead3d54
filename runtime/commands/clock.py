"""``escrow clock``: what time counts here, the clock alert, and the operator's word that the clock is right."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from escrow.cli import exits
from escrow.cli.parsers import Commands
from escrow.cli.render import json_line
from runtime.settings import add_arguments, load_arguments

DESCRIPTION = """\
Ages are counted in elapsed time, because a wall clock may jump. When the wall clock
differs by more than clockDriftMax (60s) from that time, Escrow deletes and discards nothing (checks,
commits, roll-backs and deliveries go on), raises the metric escrow_clock_alert and keeps the alert,
over restarts too, until the wall clock is back or an operator has looked at it and says so here.

Elapsed time is unknown while the machine is off. After a boot, the wall clock is trusted only when it
has run without a jump for clockGrace (1h); until then nothing is deleted or discarded either. That is
not an alert and needs no action.

  escrow clock            is there an alert? Shows what happened
  escrow clock confirm    the wall clock is right now: the time goes on from it
"""

EPILOG = """\
examples:
  escrow clock --data /var/lib/escrow
  timedatectl                                 look at the clock before you confirm
  escrow clock confirm --data /var/lib/escrow
  escrow clock --json | jq .drift_ms

If the wall clock is wrong, do not confirm: set it right, and the alert ends by itself. Confirm when the
wall clock is right and it was wrong before. What was stored before does not look older by the size of
the jump; nothing is discarded or deleted early because of it.

exit codes:
  0  no alert; confirm: the alert is gone
  1  there is an alert, and nothing is discarded or deleted
  2  wrong usage, or there is no such data directory
"""


def add_parser(subparsers: Commands) -> None:
    """Declares ``escrow clock [show | confirm]``. One parser for both: its flags may stand before or behind the word."""
    parser = subparsers.add_parser(
        "clock",
        help="show or confirm the clock alert, which stops discards and retention",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", nargs="?", choices=tuple(_TOOLS), default="show", help="show (the default) or confirm")
    add_arguments(parser)
    parser.add_argument(
        "--json", action="store_true", help="show: one JSON object: alert, file, reason, drift_ms, now_ms, held_s, trusted_ms"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Shows or confirms."""
    return _TOOLS[args.what](args)


def run_show(args: argparse.Namespace) -> int:
    """Says whether there is an alert, and what it is about."""
    from store.guarded_clock import ALERT_FILE, read_alert

    data_dir = _data_dir(args)
    alert, known = read_alert(data_dir / ALERT_FILE), _known(data_dir)
    if args.json:
        print(json_line({"alert": alert is not None, "file": str(data_dir / ALERT_FILE), **known, **(alert or {})}))
    elif alert is not None:
        print(_worded(alert))
    elif known.get("held_s"):
        left = f"{known['held_s']:,.0f} s"
        print(f"no clock alert; the machine was started, and nothing is discarded or deleted for {left} (clockGrace)")
    else:
        print("no clock alert: discards and retention go on")
    return exits.OK if alert is None else exits.PROBLEMS


def run_confirm(args: argparse.Namespace) -> int:
    """Removes the alert: the operator has looked."""
    from store.guarded_clock import ALERT_FILE, read_alert

    path = _data_dir(args) / ALERT_FILE
    alert = read_alert(path)
    if alert is None:
        print("no clock alert: nothing to confirm")
        return exits.OK
    path.unlink(missing_ok=True)
    reason = alert.get("reason", "unreadable alert")
    print(f"confirmed: {reason}; discards and retention go on, and the time as it is now counts")
    return exits.OK


def _data_dir(args: argparse.Namespace) -> Path:
    data_dir = load_arguments(args).data_dir
    if not data_dir.is_dir():
        raise NotADirectoryError(2, "no such data directory: name it with --data or dataDir", str(data_dir))
    return data_dir


def _known(data_dir: Path) -> dict[str, Any]:
    """The time that counts, and how long nothing is deleted yet; {} where the last state is of another boot, or none is known."""
    from runtime.clock import SystemClock, this_boot
    from store.guarded_clock import read_state

    state, steady_ms = read_state(data_dir), SystemClock().steady_ms()
    if state is None or state.boot != this_boot():
        return {}
    left_ms = 0 if state.believed else max(0, state.held_until_ms - state.elapsed_at(steady_ms))
    return {"trusted_ms": state.at(steady_ms), "held_s": left_ms / 1000}


def _worded(alert: dict[str, Any]) -> str:
    drift_s, at_ms = alert.get("drift_ms", 0) / 1000, alert.get("now_ms", 0)
    at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
    return "\n".join(
        (
            f"CLOCK ALERT: {alert.get('reason', 'the alert cannot be read')}: nothing is discarded or deleted",
            f"  drift:  {drift_s:+,.1f} s",
            f"  seen:   {at} by the wall clock of that moment",
            "  remedy: look at the clock (timedatectl). If it is wrong, set it right: the alert ends by itself.",
            "          If it is right: escrow clock confirm",
        )
    )


_TOOLS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {"show": run_show, "confirm": run_confirm}
