"""``escrow export``: the history of transactions as Parquet, for Spark, DuckDB, pandas and their like.

It reads the mapped files of the data directory, as ``escrow store dump`` does: millions of rows in seconds, beside a running Escrow
and without a request to it. Memory is bounded: rows go through in chunks, and what is known of ends lies in a mapped scratch file.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from escrow.cli import exits, times
from escrow.cli.progress import Progress
from escrow.cli.render import json_line
from runtime.settings import Settings, add_arguments, load_arguments

if TYPE_CHECKING:
    import pyarrow as pa

    from escrow.cli.parsers import Commands
    from store.read.export_scan import Chunk, History, Wanted

TEACHES: Final = """\
Writes the history of transactions to FILE, one row each: what is in the data directory, which is all
that is younger than fileReservedTime (72h) and some that is older. It reads the files of the data
directory on this machine; Escrow may go on running meanwhile. The columns are in docs/cli.md.
"""

EXAMPLES: Final = """\
examples:
  escrow export history.parquet --data /var/lib/escrow
  escrow export night.parquet --since 2026-11-15T22:00 --until 2026-11-16T06:00
  escrow export doubt.parquet --state pending --group orders --group shop

  duckdb -c "SELECT id, topic, duration_s FROM 'history.parquet' WHERE duration_s > 60"

exit codes:
  0  written
  2  wrong usage, or an error that is explained in one line; FILE is as it was before
"""

STATES: Final = {
    "pending": ("PREPARED",),
    "committed": ("COMMITTED",),
    "rolled_back": ("ROLLED_BACK",),
    "discarded": ("DISCARDED_MAX", "DISCARDED_EXPIRED"),
    "quarantined": ("QUARANTINED",),
    "settled": ("COMMITTED", "ROLLED_BACK", "DISCARDED_MAX", "DISCARDED_EXPIRED"),
}


def add_parser(subparsers: Commands) -> None:
    """Declares ``escrow export``."""
    parser = exits.add_command(
        subparsers, "export", run, summary="write the history of transactions as Parquet", teaches=TEACHES, examples=EXAMPLES
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="where to: replaced when all is written")
    parser.add_argument("--since", metavar="WHEN", type=times.instant_ms, default=0, help=f"stored then or later: {times.HELP}")
    parser.add_argument("--until", metavar="WHEN", type=times.instant_ms, help="stored before then")
    parser.add_argument("--group", metavar="GROUP", action="append", help="of this producer group; may be repeated")
    parser.add_argument("--topic", metavar="TOPIC", action="append", help="for this topic; may be repeated")
    parser.add_argument("--state", choices=(*STATES, "any"), default="any", help=f"{', '.join(STATES)}, or any (the default)")
    parser.add_argument("--json", action="store_true", help="one JSON object when it is done: file, rows, bytes")
    add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Writes the file under another name, and puts it in its place when it is whole."""
    from store.read.export_scan import History, Wanted
    from store.records import State

    settings = load_arguments(args)
    states = None if args.state == "any" else [State[name] for name in STATES[args.state]]
    wanted = Wanted(args.since, args.until, args.group, args.topic, states)
    directory = args.file.absolute().parent
    with _scratch(directory) as table, _replaced(args.file) as temporary:
        history = History(settings.store_dir, table)
        try:
            _refuse_unknown(history, wanted)
            seal = _sealer(settings, history.directory.store_id)
            if seal is None:
                print(f"escrow: {settings.keys_file}: no keys of transaction ids: the column id stays empty", file=sys.stderr)
            rows = _write(temporary, history, seal, wanted)
        finally:
            history.close()
    size_bytes = args.file.stat().st_size
    if args.json:
        print(json_line({"file": str(args.file), "rows": rows, "size_bytes": size_bytes}))
    else:
        print(f"{args.file}: {rows:,} transactions, {size_bytes:,} bytes")
    return exits.OK


def _refuse_unknown(history: History, wanted: Wanted) -> None:
    """A name that was mistyped must not look like an empty night."""
    for what, given, known in (("group", wanted.groups, history.groups), ("topic", wanted.topics, history.topics)):
        for name in given or ():
            if name not in known:
                raise exits.UsageError(f"{name}: no such {what} here; there are: {', '.join(known[:10]) or 'none yet'}")


@contextmanager
def _scratch(directory: Path) -> Iterator[Callable[[int], Any]]:
    """Makes mapped tables without a name beside the output: their pages go to the disk when memory is short, and with us."""
    import numpy as np

    from store.read.export_scan import ENDED

    with tempfile.TemporaryFile(dir=directory) as file:

        def table(count: int) -> Any:
            if not count:
                return np.zeros(0, ENDED)
            file.truncate(count * ENDED.itemsize)
            return np.memmap(file, ENDED, "r+", shape=(count,))

        yield table


@contextmanager
def _replaced(file: Path) -> Iterator[Path]:
    temporary = file.with_name(f".{file.name}.{os.getpid()}.new")
    try:
        yield temporary
        temporary.replace(file)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def _sealer(settings: Settings, store_id: str) -> Callable[[int, int], str] | None:
    """Makes ids as the edge does; None where the keys are not here, as beside a bare copy of a store."""
    from ingest.ids import Sealer, load_keys

    if not settings.id_keys and not settings.keys_file.exists():
        return None
    return Sealer(load_keys(settings.keys_file, settings.id_keys)[0], store_id).seal


def _write(file: Path, history: History, seal: Callable[[int, int], str] | None, wanted: Wanted) -> int:
    """Rows written. Each chunk is a row group."""
    import pyarrow.parquet as pq

    rows, arrow = 0, schema()
    with pq.ParquetWriter(file, arrow, compression="zstd") as writer, Progress() as progress:
        for chunk in history.chunks(wanted, progress):
            writer.write_table(_columns(chunk, history, seal, arrow))
            rows += len(chunk.half_offsets)
    return rows


def schema() -> pa.Schema:
    """The columns: docs/cli.md explains them."""
    import pyarrow as pa

    text, time = pa.string(), pa.timestamp("ms", tz="UTC")
    return pa.schema(
        [
            ("id", text), ("group", text), ("topic", text), ("key", text), ("tags", text), ("state", text), ("reason", text),
            ("settled_by", text), ("stored_at", time), ("born_at", time), ("settled_at", time), ("duration_s", pa.float64()),
            ("attempts", pa.int32()), ("immunity_s", pa.int64()), ("body_bytes", pa.int64()), ("queue_id", pa.int32()),
            ("queue_offset", pa.int64()), ("half_offset", pa.int64()),
        ]
    )  # fmt: skip


def _columns(chunk: Chunk, history: History, seal: Callable[[int, int], str] | None, arrow: pa.Schema) -> pa.Table:
    import numpy as np
    import pyarrow as pa

    from store.records import QUEUE_ID_BITS, State, Via, queue_key_of, queue_offset_of

    heads, ended, state = chunk.heads, chunk.ended, chunk.ended["state"]
    unread = ~chunk.valid  # corrupt, or taken out of the log by retention: neither times nor names
    open_still = np.isin(state, (State.PREPARED, State.QUARANTINED))
    untold = open_still | (ended["settled_at_ms"] == 0)  # retention has taken its op, too: only the row is left
    no_place = untold | (state != State.COMMITTED)
    duration_s = (ended["settled_at_ms"] - heads["stored_at_ms"]) / 1000
    ids = [None] * len(state) if seal is None else [
        None if bad else seal(half, group)
        for half, group, bad in zip(chunk.half_offsets.tolist(), heads["group_no"].tolist(), unread.tolist(), strict=True)
    ]  # fmt: skip
    columns: dict[str, Any] = {
        "id": pa.array(ids, pa.string()),
        "group": _named(heads["group_no"], history.groups, unread),
        "topic": _named(heads["topic_no"], history.topics, unread),
        "key": pa.array(chunk.keys.tolist(), pa.string()),
        "tags": pa.array(chunk.tags.tolist(), pa.string()),
        "state": _named(state, STATE_WORDS, state == 0),
        "reason": _named(state, REASON_WORDS, ~np.isin(state, (State.DISCARDED_MAX, State.DISCARDED_EXPIRED))),
        "settled_by": _named(ended["via"], [via.name.lower() for via in Via], untold),
        "stored_at": pa.array(heads["stored_at_ms"], mask=unread),
        "born_at": pa.array(heads["born_at_ms"], mask=unread | (heads["born_at_ms"] == 0)),
        "settled_at": pa.array(ended["settled_at_ms"], mask=untold),
        "duration_s": pa.array(duration_s, mask=untold | unread),
        "attempts": pa.array(chunk.attempts),
        "immunity_s": pa.array(heads["immunity_s"], mask=unread),
        "body_bytes": pa.array(heads["body_bytes"], mask=unread),
        "queue_id": pa.array(queue_key_of(ended["position"]) & ((1 << QUEUE_ID_BITS) - 1), mask=no_place),
        "queue_offset": pa.array(queue_offset_of(ended["position"]), mask=no_place),
        "half_offset": pa.array(chunk.half_offsets),
    }
    return pa.table([columns[field.name].cast(field.type) for field in arrow], schema=arrow)


#: By number of store.records.State.
STATE_WORDS: Final = ["", "pending", "committed", "rolled_back", "discarded", "discarded", "quarantined", "member"]
REASON_WORDS: Final = ["", "", "", "", "check_max", "expired"]


def _named(numbers: Any, names: list[str], missing: Any) -> Any:
    """Numbers as names; null where `missing` says so."""
    import numpy as np
    import pyarrow as pa

    indices = pa.array(np.where(missing, 0, numbers).astype(np.int32), mask=np.asarray(missing))
    return pa.DictionaryArray.from_arrays(indices, pa.array(names, pa.string())).dictionary_decode()
