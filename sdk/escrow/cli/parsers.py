"""Parsers that know their own commands and arguments, so that `completion` can list them.

argparse keeps both to itself. `CommandParser` records every action that its public methods return, and `Commands`
the name and summary of every command.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


class Group(Protocol):
    """A group of arguments of a parser."""

    def add_argument(self, *names: str, **options: Any) -> argparse.Action: ...


class CommandParser(argparse.ArgumentParser):
    """An ArgumentParser with a list of its arguments and commands."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.arguments: list[argparse.Action] = []
        self.commands: list[CommandEntry] = []
        super().__init__(*args, **options)  # adds --help

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        action = super().add_argument(*names, **options)
        self.arguments.append(action)
        return action

    def adding_to(self, group: Group) -> Callable[..., argparse.Action]:
        """`add_argument` of a group of this parser."""

        def add(*names: str, **options: Any) -> argparse.Action:
            action = group.add_argument(*names, **options)
            self.arguments.append(action)
            return action

        return add

    def add_commands(self, title: str, metavar: str) -> Commands:
        """Lets the parser have commands; call it once."""
        return Commands(self, title, metavar)


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command of a parser."""

    name: str
    summary: str
    parser: CommandParser


class Commands:
    """The commands of a parser."""

    def __init__(self, parser: CommandParser, title: str, metavar: str) -> None:
        self._into = parser.commands
        self._subparsers = parser.add_subparsers(title=title, metavar=metavar, parser_class=CommandParser)

    def add_parser(self, name: str, *, help: str, **options: Any) -> CommandParser:
        """Declares a command. `help` is its line in the list of commands."""
        parser = self._subparsers.add_parser(name, help=help, **options)
        self._into.append(CommandEntry(name, help, parser))
        return parser
