"""``escrow store``: look at a data directory, check it, rebuild it, back it up.

The work is done in the room ``store``; this file knows the arguments, the words and the exit codes. ``store`` is
imported inside each function, so that help works on a base install.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

from escrow.cli import exits
from escrow.cli.parsers import CommandParser, Commands
from escrow.cli.progress import Progress
from escrow.cli.render import json_line, text_line, text_report

DESCRIPTION = """\
Tools for one data directory. verify, dump, stats and backup only read, and may run
beside a running Escrow; rebuild, repair and restore write, and refuse to run beside one.
"""

EPILOG = """\
examples:
  escrow store verify data                    every file against every other
  escrow store verify data --json | jq .problems
  escrow store dump data --half --limit 10    the first ten halves
  escrow store dump data --topic orders --from 5000 --json
  escrow store stats data                     what is in there, and how large
  escrow store backup data /backups/today     copy it while it runs
  escrow store restore /backups/today data2   and bring it back elsewhere
  escrow store rebuild data                   derive tables and queues again
  escrow store repair data                    go on with what is left of damaged journals

Each tool has help of its own: escrow store verify --help
"""


def add_parser(subparsers: Commands) -> None:
    """Declares ``escrow store`` and its tools."""
    parser = subparsers.add_parser(
        "store",
        help="verify, dump, rebuild, back up and restore a data directory",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, tool=exits.usage_of(parser))
    tools = parser.add_commands("tools", "TOOL")
    _add_verify(tools)
    _add_dump(tools)
    _add_stats(tools)
    _add_rebuild(tools)
    _add_repair(tools)
    _add_backup(tools)
    _add_restore(tools)


def run(args: argparse.Namespace) -> int:
    """Runs the tool that was named."""
    tool: Callable[[argparse.Namespace], int] = args.tool
    return tool(args)


# verify


def _add_verify(tools: Commands) -> None:
    parser = _add_tool(
        tools,
        "verify",
        run_verify,
        summary="check every file against every other",
        teaches="Reads every file of DIR and holds it against the others. Prints one line for each problem:\n"
        "file, offset in bytes, reason. Changes nothing. Exit code 0: sound; 1: problems were found;\n"
        "2: DIR could not be read at all.",
    )
    _add_directory(parser)
    _add_json(parser, "one JSON object: ok, problems, summary")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="heads, ends and counts only: no frame's checksum is computed",
    )


def run_verify(args: argparse.Namespace) -> int:
    """Prints the problems, then the summary."""
    from store.inspect.verify.store import verify

    report = verify(args.directory, quick=args.quick)
    problems = [{"file": str(p.file), "offset": p.offset, "reason": p.reason} for p in report.problems]
    if args.json:
        print(json_line({"ok": not problems, "problems": problems, "summary": report.summary}))
    else:
        for problem in problems:
            print(f"{problem['file']}:{problem['offset']}: {problem['reason']}")
        if report.summary:
            print(text_report(report.summary))
        print(f"{args.directory}: {_counted(len(problems), 'problem')}" if problems else f"{args.directory}: sound")
    return exits.PROBLEMS if problems else exits.OK


# dump


def _add_dump(tools: Commands) -> None:
    parser = _add_tool(
        tools,
        "dump",
        run_dump,
        summary="print records, one line each",
        teaches="Prints the records of one file family in their own order, one line each: key=value for\n"
        "people, JSON lines with --json (bytes as base64, never cut). Without a choice: the halves.",
    )
    _add_directory(parser)
    add = parser.adding_to(parser.add_mutually_exclusive_group())
    for name, help_text in (
        ("half", "halves, in half offset order (the default)"),
        ("op", "ops, in the order that decides who ended what"),
        ("state", "rows of the state table; the row number is the half offset"),
        ("redo", "entries and batch markers of the redo log"),
        ("check", "the check queue: requests to producers"),
        ("proposal", "discards that the checker proposed"),
        ("discard", "halves that were put aside, with the reason"),
        ("quarantine", "corrupt halves and ops"),
        ("ends", "how each half ended, as the edge answers it"),
        ("dictionary", "names and numbers of groups and topics"),
        ("consumers", "how far consumer groups have read"),
        ("audit", "what operators did"),
    ):
        add(f"--{name}", dest="what", action="store_const", const=name, help=help_text)
    add("--topic", metavar="T", help="the queue entries of real topic T")
    _add_json(parser, "JSON lines, one object a record")
    parser.add_argument(
        "--from",
        dest="start",
        metavar="N",
        type=_count,
        default=0,
        help="begin at number N: the half offset, op offset, row, redo entry or queue offset (default 0)",
    )
    parser.add_argument("--limit", metavar="N", type=_count, default=None, help="stop after N records (default: all)")


def run_dump(args: argparse.Namespace) -> int:
    """Prints each record as it comes."""
    from store.inspect.dump import dump

    what = "topic" if args.topic is not None else args.what or "half"
    render = json_line if args.json else text_line
    for record in dump(args.directory, what=what, topic=args.topic, start=args.start, limit=args.limit):
        print(render(record))
    return exits.OK


# stats


def _add_stats(tools: Commands) -> None:
    parser = _add_tool(
        tools,
        "stats",
        run_stats,
        summary="counts, cursors and sizes",
        teaches="Prints what DIR holds: counts by state, cursors, topics and sizes on disk.",
    )
    _add_directory(parser)
    _add_json(parser, "one JSON object")


def run_stats(args: argparse.Namespace) -> int:
    """Prints the figures."""
    from store.inspect.stats import stats

    figures = stats(args.directory)
    print(json_line(figures) if args.json else text_report(figures))
    return exits.OK


# rebuild


def _add_rebuild(tools: Commands) -> None:
    parser = _add_tool(
        tools,
        "rebuild",
        run_rebuild,
        summary="derive state table and queues again from the logs",
        teaches="Builds the state table and the queues again, from the redo log and the commit log, in a new\n"
        "generation directory, and switches to it by rename: interrupted, it has changed nothing.\n"
        "Row numbers and queue offsets stay what they were, so every id that was issued still works.\n"
        "Stop Escrow first: rebuild refuses to run beside a writer.",
    )
    _add_directory(parser)


def run_rebuild(args: argparse.Namespace) -> int:
    """Rebuilds, with progress."""
    from store.admin.rebuild import rebuild

    with Progress() as progress:
        result = rebuild(args.directory, progress=progress)
    return _done(f"rebuilt {args.directory}", result)


# repair


def _add_repair(tools: Commands) -> None:
    parser = _add_tool(
        tools,
        "repair",
        run_repair,
        summary="go on with what is left of damaged journals",
        teaches="Escrow refuses to start when DIR's consumers (what consumer groups have read) or audit (what\n"
        "operators did) is damaged, cut off or gone: nothing else tells what was in them. Put them back\n"
        "from a backup if you can. Otherwise repair rewrites them with every record that can be read,\n"
        "and keeps the damaged file in DIR/lost+found. Consumer groups may then get messages again;\n"
        "a group without any record left begins where a new one does. The dictionary and everything\n"
        "derived is mended by the next start and needs no repair. Stop Escrow first.",
    )
    _add_directory(parser)
    _add_json(parser, "one JSON object: what was mended, by file")


def run_repair(args: argparse.Namespace) -> int:
    """Prints what was mended."""
    from store.admin.repair import repair

    mended = repair(args.directory)
    if args.json:
        print(json_line(mended))
        return exits.OK
    for name, told in mended.items():
        kept = f"; as it was: {told['original']}" if "original" in told else ""
        print(f"{name}: {_counted(told['records_left'], 'record')} left, damaged at byte {told['damaged_at']}{kept}")
    if not mended:
        print(f"{args.directory}: nothing to repair")
    return exits.OK


# backup and restore


def _add_backup(tools: Commands) -> None:
    parser = _add_tool(
        tools,
        "backup",
        run_backup,
        summary="copy a data directory, also while it is in use",
        teaches="Copies DIR to DEST, which must not exist yet or be empty. Escrow may go on running: the copy\n"
        "holds everything that was acknowledged before the command began.",
    )
    _add_directory(parser)
    parser.add_argument("dest", metavar="DEST", type=Path, help="where the backup goes")


def run_backup(args: argparse.Namespace) -> int:
    """Backs up, with progress."""
    from store.admin.backup import backup

    with Progress() as progress:
        result = backup(args.directory, args.dest, progress=progress)
    return _done(f"backed up {args.directory} to {args.dest}", result)


def _add_restore(tools: Commands) -> None:
    parser = _add_tool(
        tools,
        "restore",
        run_restore,
        summary="bring a backup back",
        teaches="Copies BACKUP to DIR, which must not exist yet or be empty: restore never overwrites data.\n"
        "What was acknowledged after the backup began may be missing from it: ids that were issued since\n"
        "then are refused with that reason, and their messages have to be sent again. Ids from before\n"
        "the backup go on counting, with the same key file. The store gets a new store id.",
    )
    parser.add_argument("backup", metavar="BACKUP", type=Path, help="a directory that `escrow store backup` wrote")
    _add_directory(parser)


def run_restore(args: argparse.Namespace) -> int:
    """Restores, with progress."""
    from store.admin.backup import restore

    with Progress() as progress:
        result = restore(args.backup, args.directory, progress=progress)
    return _done(f"restored {args.backup} to {args.directory}", result)


# what the tools share


def _add_tool(
    tools: Commands, name: str, tool: Callable[[argparse.Namespace], int], *, summary: str, teaches: str
) -> CommandParser:
    parser = tools.add_parser(name, help=summary, description=teaches, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.set_defaults(tool=tool)
    return parser


def _add_directory(parser: CommandParser) -> None:
    parser.add_argument("directory", metavar="DIR", type=Path, help="the data directory")


def _add_json(parser: CommandParser, help_text: str) -> None:
    parser.add_argument("--json", action="store_true", help=help_text)


def _done(sentence: str, result: Mapping[str, object]) -> int:
    print(sentence)
    if result:
        print(text_report(result))
    return exits.OK


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
