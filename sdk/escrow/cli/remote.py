"""What every command that talks to a running Escrow shares: where it is, which token to show, and what to do with a refusal."""

from __future__ import annotations

import argparse
import os
import ssl
from pathlib import Path
from typing import Final

from escrow._transport import tls_context
from escrow.api import Api
from escrow.cli import exits
from escrow.cli.parsers import CommandParser
from escrow.errors import BadAnswer, EscrowError, NotAllowed, Unavailable, Unreachable

DEFAULT_URL: Final = "http://127.0.0.1:7480"
#: A person waits: an Escrow that restarts is waited for, one that is not there is said soon.
RETRY_FOR_S: Final = 3.0
TIMEOUT_S: Final = 10.0

HELP: Final = f"""\
Escrow is looked for at --url, $ESCROW_URL or {DEFAULT_URL}. Where tokens are in use: --token-file,
$ESCROW_TOKEN_FILE (a file) or $ESCROW_TOKEN (the token itself). Tokens come from: escrow token new
"""

EXIT_CODES: Final = """\
exit codes:
  0  fine
  1  Escrow said no to a part of it; the output tells which
  2  wrong usage, or an error that is explained in one line
  3  no answer at that URL, or Escrow is temporarily unavailable
  4  the token is missing, unknown, or lacks the role
"""


def add_arguments(parser: CommandParser) -> None:
    """--url, --token-file and --ca-file."""
    add = parser.adding_to(parser.add_argument_group("where Escrow is"))
    add("--url", metavar="URL", help=f"of its endpoint (default: $ESCROW_URL or {DEFAULT_URL})")
    add("--token-file", metavar="FILE", type=Path, help="holds the token (default: $ESCROW_TOKEN_FILE, $ESCROW_TOKEN)")
    add("--ca-file", metavar="FILE", help="the authority behind an https URL, if it is your own ($ESCROW_CA_FILE)")


def connect(args: argparse.Namespace, *, timeout_s: float = TIMEOUT_S) -> Api:
    """The API that the arguments name."""
    url, ca_file = url_of(args), args.ca_file or os.environ.get("ESCROW_CA_FILE")
    try:
        tls = tls_context(ca_file=ca_file) if ca_file else None
        return Api(url, token=token_of(args), tls=tls, timeout_s=timeout_s, retry_for_s=RETRY_FOR_S)
    except ssl.SSLError as error:
        raise exits.UsageError(f"{ca_file}: contains no readable certificate (PEM): {error.reason}") from error
    except ValueError as error:
        raise exits.UsageError(str(error)) from error


def url_of(args: argparse.Namespace) -> str:
    return str(args.url or os.environ.get("ESCROW_URL") or DEFAULT_URL)


def token_of(args: argparse.Namespace) -> str | None:
    """From the file that was named, or from the environment."""
    named = args.token_file or (Path(os.environ["ESCROW_TOKEN_FILE"]) if os.environ.get("ESCROW_TOKEN_FILE") else None)
    if named is None:
        return os.environ.get("ESCROW_TOKEN") or None
    token = str(named.read_text(encoding="ascii", errors="replace").strip())
    if not token or not token.isprintable() or " " in token:
        raise exits.UsageError(f"{named}: holds no token: one line, as `escrow token new` prints it")
    return token


def explain(error: EscrowError) -> tuple[str, int]:
    """(what to tell, exit code) of an error of the SDK: what is wrong, then what to do."""
    if isinstance(error, Unreachable) and error.maybe_done:
        return (
            f"{error}\nit may have been done all the same: look before you do it again (escrow tx show, tx audit)",
            exits.UNREACHABLE,
        )
    if isinstance(error, Unreachable):
        return f"{error}\nstart it with: escrow run (or make run); elsewhere: --url URL or ESCROW_URL", exits.UNREACHABLE
    if isinstance(error, Unavailable):
        return f"{error}\nescrow doctor looks for the reason; the logs are in logs/ of the data directory", exits.UNREACHABLE
    if isinstance(error, NotAllowed):
        if error.status == 401:
            remedy = "make a token with: escrow token new NAME --operator; then --token-file FILE or ESCROW_TOKEN"
        else:
            remedy = (
                "this needs a token with another role: escrow token list shows the roles, escrow token new --help how to give them"
            )
        return f"{error}\n{remedy}", exits.DENIED
    if isinstance(error, BadAnswer):
        return f"{error}\nis this URL an Escrow of this release? (--url, ESCROW_URL)", exits.ERROR
    return str(error), exits.ERROR
