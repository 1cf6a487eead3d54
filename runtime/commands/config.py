"""``escrow config``: what the settings are, where each came from, and whether they are right."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from escrow.cli import exits, remote
from escrow.cli.parsers import CommandParser, Commands
from escrow.cli.render import json_line
from runtime.settings import Settings, add_arguments, load_arguments, template

EPILOG = """\
examples:
  escrow config show                          every setting and where it came from
  escrow config show --running                the same of the running service
  escrow config show --json | jq .transactionTimeOut
  escrow config check --config my.toml        is this file right? Exit code 0 or 2; warnings on stderr
  escrow config template > my.toml            a file with every key and its default
"""


def add_parser(subparsers: Commands) -> None:
    """Declares ``escrow config`` and its tools."""
    parser = subparsers.add_parser(
        "config",
        help="show and check the settings",
        description="Settings come from a file, then the environment, then flags: each is stronger than the one before.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, tool=exits.usage_of(parser))
    tools = parser.add_commands("tools", "TOOL")
    show = _add_tool(tools, "show", run_show, "print the effective values and where each came from")
    show.add_argument("--json", action="store_true", help="one JSON object: key → value, from, variable")
    show.add_argument("--running", action="store_true", help="ask the running service for its settings (operator's token)")
    remote.add_arguments(show)
    _add_tool(tools, "check", run_check, "check the settings, print what is wrong")
    template_parser = tools.add_parser("template", help="print a file with every key and its default")
    template_parser.set_defaults(tool=run_template)


def _add_tool(tools: Commands, name: str, tool: Callable[[argparse.Namespace], int], summary: str) -> CommandParser:
    parser = tools.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    add_arguments(parser)
    parser.set_defaults(tool=tool)
    return parser


def run(args: argparse.Namespace) -> int:
    """Runs the tool that was named."""
    tool: Callable[[argparse.Namespace], int] = args.tool
    return tool(args)


def run_show(args: argparse.Namespace) -> int:
    """Prints the settings, secrets masked: those of this shell, or with --running those that the service uses."""
    if args.running:
        return _show_running(args)
    settings = load_arguments(args)
    _warn(settings)
    if args.json:
        shown = {
            key.name: {"value": value, "from": str(origin), "variable": key.variable} for key, value, origin in settings.effective()
        }
        print(json_line(shown))
        return exits.OK
    print(f"# {_which_file(settings)}, as a start from here would read it; --running asks the service what it uses")
    _print_rows([(key.name, _shown(value), str(origin)) for key, value, origin in settings.effective()])
    return exits.OK


def _show_running(args: argparse.Namespace) -> int:
    with remote.connect(args) as api:
        found = api.settings()
    if args.json:
        told = {each["key"]: {name: each[name] for name in ("value", "from", "variable")} for each in found["settings"]}
        print(json_line(told))
        return exits.OK
    file = f"settings file {found['file']}" if found["file"] else "no settings file"
    print(f"# {file}, as the service at {remote.url_of(args)} uses it")
    _print_rows([(each["key"], _shown(each["value"]), each["from"]) for each in found["settings"]])
    return exits.OK


def _print_rows(rows: list[tuple[str, str, str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, value, origin in rows:
        print(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {origin}")


def run_check(args: argparse.Namespace) -> int:
    """Loading is the check: SettingsError says what is wrong."""
    settings = load_arguments(args)
    _warn(settings)
    print(f"{_which_file(settings)}: fine{', but see the warnings' if settings.warnings else ''}")
    return exits.OK


def run_template(_: argparse.Namespace) -> int:
    """Prints conf/escrow.toml as this release has it."""
    print(template(), end="")
    return exits.OK


def _warn(settings: Settings) -> None:
    for warning in settings.warnings:
        print(f"escrow: warning: {warning}", file=sys.stderr)


def _which_file(settings: Settings) -> str:
    return f"settings file {settings.file}" if settings.file else "no settings file"


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) or '""'
