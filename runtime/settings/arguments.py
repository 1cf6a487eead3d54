"""--config, --data and --set: the flags of every process and command that takes settings."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from runtime.settings.load import CONFIG_VARIABLE, DEFAULT_FILE, load
from runtime.settings.values import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags to a parser."""
    found_by = f"settings file (default: ${CONFIG_VARIABLE} or {DEFAULT_FILE})"
    parser.add_argument("--config", metavar="FILE", type=Path, help=found_by)
    parser.add_argument("--data", metavar="DIR", help="data directory; same as --set dataDir=DIR")
    parser.add_argument("--set", dest="settings", metavar="KEY=VALUE", action="append", default=[], help="one setting; repeatable")


def load_arguments(args: argparse.Namespace, environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from the flags of `add_arguments`."""
    flags = [*args.settings, *([f"dataDir={args.data}"] if args.data is not None else [])]
    return load(args.config, flags, environ)


def from_arguments(argv: Sequence[str] | None = None, prog: str | None = None) -> Settings:
    """Settings of a process that takes no other arguments."""
    parser = argparse.ArgumentParser(prog=prog)
    add_arguments(parser)
    return load_arguments(parser.parse_args(argv))
