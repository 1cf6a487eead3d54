"""The ``escrow`` command: the frame around its commands.

One file a command. A command's module has two functions: ``add_parser(subparsers)`` declares its arguments and its
help, ``run(args)`` does the work and returns an exit code of ``escrow.cli.exits``. A new command is a new file and one
more entry in ``COMMANDS``.

Commands that need the server are in ``runtime.commands`` and come with escrow-mq-server. ``escrow --help`` works
without it, and such a command then says in one line what to install.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol

from escrow import __version__
from escrow.cli import (
    barrier,
    completion,
    consume,
    dead_letters,
    demo,
    exits,
    explain,
    groups,
    remote,
    send,
    top,
    topic,
    topics,
    tx,
)  # fmt: skip
from escrow.cli.parsers import CommandParser, Commands
from escrow.errors import EscrowError

__all__ = ["COMMANDS", "Command", "build_parser", "main"]


class Command(Protocol):
    """What the module of a command offers."""

    def add_parser(self, subparsers: Commands) -> None:
        """Declares the command's arguments and help, and ``run`` as its default."""

    def run(self, args: argparse.Namespace) -> int:
        """Does the work; returns an exit code."""


#: Commands that come with the server, and what each is for.
SERVER_COMMANDS: Final = {
    "run": "start the service: edge and streaming job",
    "doctor": "find problems of this machine, its settings and its data",
    "audit": "check the audit log",
    "export": "write the history of transactions as Parquet",
    "store": "inspect, check, rebuild and back up a data directory",
    "clock": "show and confirm the clock alert",
    "config": "show and check the settings",
    "token": "create, list and revoke bearer tokens",
}
SERVER_MISSING: Final = "needs escrow-mq-server; in a checkout of Escrow: pip install ./sdk ."
#: What is created for the server's users is for them alone, as in runtime.settings.
PRIVATE_UMASK: Final = 0o077


class Absent:
    """Stands for a command of the server where the server is not installed: says what to install."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def add_parser(self, subparsers: Commands) -> None:
        # No prefix of options: whatever is given, the answer is the same.
        parser = subparsers.add_parser(self.__name__, help=SERVER_COMMANDS[self.__name__], prefix_chars="\0", add_help=False)
        parser.add_argument("given", nargs="*", help=argparse.SUPPRESS)
        parser.set_defaults(run=self.run)

    def run(self, args: argparse.Namespace) -> int:
        raise exits.UsageError(f"escrow {self.__name__} {SERVER_MISSING}")


def _of_server(name: str) -> Command:
    """The module of this command; where the server is not installed, what says so."""
    try:
        command: Command = importlib.import_module(f"runtime.commands.{name}")
    except ModuleNotFoundError as error:
        if error.name not in ("runtime", "runtime.commands"):
            raise
        return Absent(name)
    return command


run, doctor, audit, export, store, clock, config, token = map(_of_server, SERVER_COMMANDS)
COMMANDS: tuple[Command, ...] = (
    run, demo, doctor, top, tx, explain, audit, send, consume, groups, topics, topic, dead_letters, barrier, export, store,
    clock, config, token, completion,
)  # fmt: skip

# Third-party modules that the server depends on. A command that misses one of them needs the server.
SERVER_MODULES = frozenset({"httptools", "httpx", "msgspec", "numpy", "prometheus_client", "pyarrow", "pyspark", "uvloop"})

DESCRIPTION = """\
Escrow holds a message until its producer's local transaction is decided.
"""

EPILOG = """\
examples:
  escrow run                      start the service; Ctrl-C stops it
  escrow demo                     run sample producers and consumers, and show what happens
  escrow top                      a live view of it
  escrow tx list --age-min 1m     transactions in doubt for more than a minute
  escrow doctor                   find problems of this machine, with remedies
  escrow store verify DIR         is this data directory sound?

Every command has its own help with examples: escrow tx --help, escrow tx commit --help

exit codes:
  0    fine
  1    the command ran and found problems, or Escrow refused a part of it
  2    wrong usage, or an error that is explained in one line
  3    no answer at that URL, or Escrow is temporarily unavailable
  4    the token is missing, unknown, or lacks the role
  130  interrupted (Ctrl-C)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; a known error becomes one line on stderr."""
    parser = build_parser()
    args = parser.parse_args(argv)
    others = os.umask(PRIVATE_UMASK)
    try:
        code: int = args.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return exits.BROKEN_PIPE
    except Exception as error:
        explained = _explain(error)
        if explained is None:
            raise
        if args.traceback:
            traceback.print_exc()
        message, code = explained
        for line in message.splitlines():
            print(f"escrow: {line}", file=sys.stderr)
    finally:
        os.umask(others)
    return code


def build_parser() -> CommandParser:
    """Builds the parser of all commands."""
    parser = CommandParser(
        prog="escrow",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"escrow {__version__}")
    parser.add_argument("--traceback", action="store_true", help="also show the traceback of an error")
    parser.set_defaults(run=exits.usage_of(parser))
    subparsers = parser.add_commands("commands", "COMMAND")
    for command in COMMANDS:
        command.add_parser(subparsers)
    return parser


def _explain(error: Exception) -> tuple[str, int] | None:
    """(the sentence, the exit code) for an error that a user can do something about, or None for a defect of ours."""
    if isinstance(error, EscrowError):
        return remote.explain(error)
    if isinstance(error, ModuleNotFoundError):
        if (error.name or "").partition(".")[0] in SERVER_MODULES:
            return f"this command {SERVER_MISSING}", exits.ERROR
        return None
    if isinstance(error, exits.UsageError):
        return str(error), exits.ERROR
    if isinstance(error, OSError):
        return ": ".join(str(part) for part in (error.filename, error.strerror) if part) or str(error), exits.ERROR
    # A room's error can only have been raised where its errors are loaded, so nothing has to be imported to know one.
    for module, root in (("runtime.settings", "SettingsError"), ("store.errors", "StoreError"), ("ingest.errors", "EdgeError")):
        errors = sys.modules.get(module)
        if errors is not None and isinstance(error, getattr(errors, root)):
            return str(error) or type(error).__name__, exits.ERROR
    return None


def _silence_stdout() -> None:
    """The reader has gone (``| head``): let the interpreter's last flush go nowhere instead of complaining."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
