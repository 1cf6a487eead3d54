"""The ``escrow`` command: the frame around its commands.

One file a command. A command's module has two functions: ``add_parser(subparsers)`` declares its arguments and its
help, ``run(args)`` does the work and returns an exit code of ``escrow.cli.exits``. A new command is a new file and one
more entry in ``COMMANDS``.

Commands import the rooms (``store``, ...) inside the function that needs them: ``escrow --help`` works on a base
install, and a command that needs more says so in one line.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from escrow import __version__
from escrow.cli import clock, config, exits, run, store, token
from escrow.settings import SettingsError

if TYPE_CHECKING:
    from escrow.cli.exits import Subparsers

__all__ = ["COMMANDS", "Command", "build_parser", "main"]


class Command(Protocol):
    """What the module of a command offers."""

    def add_parser(self, subparsers: Subparsers) -> None:
        """Declares the command's arguments and help, and ``run`` as its default."""

    def run(self, args: argparse.Namespace) -> int:
        """Does the work; returns an exit code."""


COMMANDS: tuple[Command, ...] = (run, config, token, clock, store)

# Third-party modules that come with the server extra. A command that misses one of them needs that extra.
SERVER_MODULES = frozenset({"numpy"})

DESCRIPTION = """\
Escrow holds a message until its producer's local transaction is decided.
"""

EPILOG = """\
examples:
  escrow run                      start the service; Ctrl-C stops it
  escrow config show              every setting and where it came from
  escrow token new NAME --produce GROUP
                                  a token for a client
  escrow clock                    did the wall clock jump? Are discards stopped?
  escrow store verify DIR         is this data directory sound?
  escrow store dump DIR --state   look at the rows of the state table
  escrow store --help             all tools for a data directory

exit codes:
  0  fine
  1  the command worked and found problems (verify, clock)
  2  wrong usage, or an error that is explained in one line
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; a known error becomes one line on stderr."""
    parser = build_parser()
    args = parser.parse_args(argv)
    try:
        code: int = args.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return exits.BROKEN_PIPE
    except Exception as error:
        message = _explain(error)
        if message is None:
            raise
        if args.traceback:
            traceback.print_exc()
        for line in message.splitlines():
            print(f"escrow: {line}", file=sys.stderr)
        return exits.ERROR
    return code


def build_parser() -> argparse.ArgumentParser:
    """Builds the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="escrow",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"escrow {__version__}")
    parser.add_argument("--traceback", action="store_true", help="show where an error comes from, too")
    parser.set_defaults(run=exits.usage_of(parser))
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(subparsers)
    return parser


def _explain(error: Exception) -> str | None:
    """Returns the sentence for an error that a user can do something about, or None for a defect of ours."""
    if isinstance(error, ModuleNotFoundError):
        if (error.name or "").partition(".")[0] in SERVER_MODULES:
            return "this command needs the server parts: pip install 'escrow[server]'"
        return None
    if isinstance(error, SettingsError):
        return str(error)
    if isinstance(error, OSError):
        return ": ".join(str(part) for part in (error.filename, error.strerror) if part) or str(error)
    # A room's error can only have been raised where its errors are loaded, so nothing has to be imported to know one.
    for module, root in (("store.errors", "StoreError"), ("ingest.errors", "EdgeError")):
        errors = sys.modules.get(module)
        if errors is not None and isinstance(error, getattr(errors, root)):
            return str(error) or type(error).__name__
    return None


def _silence_stdout() -> None:
    """The reader has gone (``| head``): let the interpreter's last flush go nowhere instead of complaining."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
