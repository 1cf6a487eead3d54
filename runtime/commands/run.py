"""``escrow run``: start the service and keep it running. The work is done in ``runtime.supervisor``."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from escrow.cli.parsers import Commands
from runtime.settings import add_arguments, load_arguments

DESCRIPTION = """\
Starts Escrow in the foreground: the edge, which takes messages, and the streaming job, which
settles them. A part that dies is started again. Stop it with Ctrl-C or SIGTERM: what was
acknowledged is safe, and nothing is left running.
"""

EPILOG = """\
examples:
  escrow run                                  settings from conf/escrow.toml, if it is there
  escrow run --data /var/lib/escrow --set listenPort=7500
  ESCROW_TRANSACTION_TIME_OUT=10s escrow run

escrow config show lists every setting. Output of the parts: logs/ in the data directory.
"""


def add_parser(subparsers: Commands) -> None:
    """Declares ``escrow run``."""
    parser = subparsers.add_parser(
        "run",
        help="start the service: edge and streaming job",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    # For tests: other modules in the place of the parts.
    parser.add_argument("--edge-module", default="ingest.server", help=argparse.SUPPRESS)
    parser.add_argument("--job-module", default="streaming.job", help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs until a signal."""
    from runtime import supervisor
    from runtime.part import EDGE, JOB

    specs = (replace(EDGE, module=args.edge_module), replace(JOB, module=args.job_module))
    settings = load_arguments(args)
    for warning in settings.warnings:
        _say(f"warning: {warning}")
    return supervisor.run(settings, specs, _say)


def _say(line: str) -> None:
    print(f"escrow: {line}", file=sys.stderr, flush=True)
