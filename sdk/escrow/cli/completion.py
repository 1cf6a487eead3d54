"""``escrow completion``: completion scripts, generated from the parsers.

A script holds the tree of commands as a table, and a function that finds the cursor's place in the tree from the
words before it. Completing runs no Python.

The client has no dependency, so the scripts are made here and not by a package such as shtab.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from escrow.cli import exits
from escrow.cli.parsers import CommandParser, Commands

TEACHES: Final = """\
Prints a script that makes a shell complete escrow's commands, options and their values.
"""

EXAMPLES: Final = """\
examples:
  bash   escrow completion bash > ~/.local/share/bash-completion/completions/escrow
  zsh    escrow completion zsh > ~/.zfunc/_escrow          with fpath+=(~/.zfunc) before compinit in ~/.zshrc
  fish   escrow completion fish > ~/.config/fish/completions/escrow.fish
  once   source <(escrow completion bash)
"""


def add_parser(subparsers: Commands) -> None:
    """Declares ``escrow completion``."""
    parser = exits.add_command(
        subparsers, "completion", run, summary="print a completion script for your shell", teaches=TEACHES, examples=EXAMPLES
    )
    parser.add_argument("shell", choices=tuple(_SHELLS), help="bash, zsh or fish")


def run(args: argparse.Namespace) -> int:
    """Prints the script."""
    from escrow.cli import build_parser

    print(_SHELLS[args.shell](list(places(build_parser()))), end="")
    return exits.OK


# --- the tree of commands -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Option:
    """An option: its spellings, its help, and its values."""

    flags: tuple[str, ...]
    help: str
    takes_value: bool
    values: tuple[str, ...] = ()
    is_file: bool = False


@dataclass(slots=True)
class Place:
    """A place of the cursor: after these command words."""

    path: str
    commands: list[tuple[str, str]] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    files: bool = False


def places(parser: CommandParser, path: str = "") -> Iterator[Place]:
    """Every place of the tree, the root first."""
    here = Place(path, [(command.name, _sentence(command.summary)) for command in parser.commands])
    for action in parser.arguments:
        if action.option_strings:
            if action.help != argparse.SUPPRESS:
                here.options.append(_option(action))
        else:
            here.values += [str(choice) for choice in action.choices or ()]
            here.files |= action.type is Path
    yield here
    for command in parser.commands:
        yield from places(command.parser, f"{path} {command.name}".strip())


def _option(action: argparse.Action) -> Option:
    takes_value = action.nargs != 0
    values = tuple(str(choice) for choice in action.choices or ())
    is_file = action.type is Path or action.metavar in ("FILE", "DIR")
    return Option(tuple(action.option_strings), _sentence(action.help), takes_value, values, is_file)


def _sentence(text: str | None) -> str:
    """The start of a help text, without characters that shells treat specially."""
    begin = (text or "").replace("%%", "%").split(";")[0].split(": ")[0].split(" (")[0]
    return begin.replace("'", "").replace("[", "").replace("]", "").replace("\n", " ").strip()


# --- bash ---------------------------------------------------------------------------------------------------------------------
_BASH: Final = r"""# bash completion of escrow; made by `escrow completion bash`

# What there is at a place: commands, options, options that take a value, values, "files".
_escrow_table() {
    case "$1/$2" in
@@TABLE@@
    esac
}

_escrow() {
    local current previous word place="" skip="" i
    current="${COMP_WORDS[COMP_CWORD]}"
    previous="${COMP_WORDS[COMP_CWORD-1]}"
    for ((i = 1; i < COMP_CWORD; i++)); do
        word="${COMP_WORDS[i]}"
        if [[ -n $skip ]]; then
            skip=""
        elif [[ " $(_escrow_table "$place" takes) " == *" $word "* ]]; then
            skip=1
        elif [[ " $(_escrow_table "$place" commands) " == *" $word "* ]]; then
            place="${place:+$place }$word"
        fi
    done
    COMPREPLY=()
    local words="" files=""
    if [[ -n $skip ]]; then
        words="$(_escrow_table "$place" "value:$previous")"
        [[ $words == files ]] && words="" && files=1
    elif [[ $current == -* ]]; then
        words="$(_escrow_table "$place" options)"
    else
        words="$(_escrow_table "$place" commands) $(_escrow_table "$place" values)"
        [[ $(_escrow_table "$place" files) == files ]] && files=1
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
    if [[ -n $files ]]; then
        compopt -o filenames 2>/dev/null
        local found
        while IFS= read -r found; do COMPREPLY+=("$found"); done < <(compgen -f -- "$current")
    fi
}

complete -F _escrow escrow
"""


def _bash(tree: list[Place]) -> str:
    return _BASH.replace("@@TABLE@@", _table(tree, "        "))


def _table(tree: list[Place], indent: str) -> str:
    """The tree as the branches of a case: place/question) echo answer ;;"""
    lines = []
    for place in tree:
        takes = [flag for option in place.options if option.takes_value for flag in option.flags]
        answers = {
            "commands": " ".join(name for name, _ in place.commands),
            "options": " ".join(flag for option in place.options for flag in option.flags),
            "takes": " ".join(takes),
            "values": " ".join(place.values),
            "files": "files" if place.files else "",
        }
        for option in place.options:
            answer = "files" if option.is_file else " ".join(option.values)
            answers |= {f"value:{flag}": answer for flag in option.flags}
        lines += [
            f"{shlex.quote(f'{place.path}/{name}')}) echo {shlex.quote(answer)} ;;" for name, answer in answers.items() if answer
        ]
    return "\n".join(indent + line for line in lines)


# --- zsh ----------------------------------------------------------------------------------------------------------------------
_ZSH: Final = r"""#compdef escrow
# zsh completion of escrow; made by `escrow completion zsh`

_escrow_table() {
    case "$1/$2" in
@@TABLE@@
    esac
}

# name:sentence, one a line, of the commands and options at a place
_escrow_told() {
    case "$1/$2" in
@@TOLD@@
    esac
}

_escrow_offer() {
    local -a names told
    local line
    for line in ${(f)"$(_escrow_told "$1" "$2")"}; do
        names+=("${line%%	*}")
        told+=("${line%%	*}  ${line#*	}")
    done
    (( $#names )) && compadd -l -d told -a names
}

_escrow() {
    local place="" skip="" word previous=""
    local -i i
    for ((i = 2; i < CURRENT; i++)); do
        word="${words[i]}"
        if [[ -n $skip ]]; then
            skip=""
        elif [[ " $(_escrow_table "$place" takes) " == *" $word "* ]]; then
            skip=1 previous="$word"
        elif [[ " $(_escrow_table "$place" commands) " == *" $word "* ]]; then
            place="${place:+$place }$word"
        fi
    done
    if [[ -n $skip ]]; then
        local -a values
        values=(${=$(_escrow_table "$place" "value:$previous")})
        if [[ "$values" == files ]]; then _files; else (( $#values )) && compadd -a values; fi
    elif [[ "${words[CURRENT]}" == -* ]]; then
        _escrow_offer "$place" options
    else
        local -a values
        values=(${=$(_escrow_table "$place" values)})
        _escrow_offer "$place" commands
        (( $#values )) && compadd -a values
        [[ "$(_escrow_table "$place" files)" == files ]] && _files
    fi
    return 0
}

(( $+functions[compdef] )) && compdef _escrow escrow
"""


def _zsh(tree: list[Place]) -> str:
    told = []
    for place in tree:
        options = [(flag, option.help) for option in place.options for flag in option.flags]
        for name, lines in (("commands", place.commands), ("options", options)):
            if lines:
                text = "\n".join(f"{word}\t{sentence}" for word, sentence in lines)
                told.append(f"        {shlex.quote(f'{place.path}/{name}')}) print -r -- {shlex.quote(text)} ;;")
    return _ZSH.replace("@@TABLE@@", _table(tree, "        ")).replace("@@TOLD@@", "\n".join(told))


# --- fish ---------------------------------------------------------------------------------------------------------------------
_FISH: Final = r"""# fish completion of escrow; made by `escrow completion fish`

function __escrow_table
    switch "$argv[1]/$argv[2]"
@@TABLE@@
    end
end

# Is the cursor behind exactly these command words?
function __escrow_at
    set -l place ""
    set -l skip 0
    for word in (commandline -opc)[2..-1]
        if test $skip = 1
            set skip 0
        else if contains -- $word (__escrow_table "$place" takes | string split ' ')
            set skip 1
        else if contains -- $word (__escrow_table "$place" commands | string split ' ')
            set place (string trim "$place $word")
        end
    end
    test "$place" = "$argv[1]"
end

complete -c escrow -f
@@LINES@@
"""


def _fish(tree: list[Place]) -> str:
    table, lines = [], []
    for place in tree:
        takes = [flag for option in place.options if option.takes_value for flag in option.flags]
        for name, words in (("commands", [name for name, _ in place.commands]), ("takes", takes)):
            if words:
                table += [f"        case {shlex.quote(f'{place.path}/{name}')}", f"            echo {shlex.quote(' '.join(words))}"]
        at = f"complete -c escrow -n {shlex.quote(f'__escrow_at {shlex.quote(place.path)}')}"
        lines += [f"{at} -a {shlex.quote(name)} -d {shlex.quote(told)}" for name, told in place.commands]
        lines += [f"{at} -a {shlex.quote(value)}" for value in place.values]
        lines += [f"{at} -F"] if place.files else []
        lines += [f"{at} {_fish_option(option)}" for option in place.options]
    return _FISH.replace("@@TABLE@@", "\n".join(table)).replace("@@LINES@@", "\n".join(lines))


def _fish_option(option: Option) -> str:
    words = [f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags]
    if option.takes_value:
        words.append("-r -F" if option.is_file else f"-x -a {shlex.quote(' '.join(option.values))}" if option.values else "-x")
    return " ".join([*words, f"-d {shlex.quote(option.help)}"])


_SHELLS: Final[dict[str, Callable[[list[Place]], str]]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
