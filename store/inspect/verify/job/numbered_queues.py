"""Verify, check, proposal, discard and quarantine queue: every entry against the redo log."""

from __future__ import annotations

from typing import Any

import numpy as np

from store.arrays import Array
from store.inspect.verify.edge_files import EdgeFiles
from store.inspect.verify.files import SegmentFiles
from store.inspect.verify.job.placed import op_entries, rows_of
from store.inspect.verify.job_files import JobFiles
from store.inspect.verify.redo import Replay
from store.records import ENTRY
from store.tables.consume_queue import REASON_SHIFT


def compare_numbered(name: str, job: JobFiles, replay: Replay, edge: EdgeFiles) -> None:
    """One of the four: entry n as the redo log places it."""
    files, places = job.queue(name), replay.places[name]
    end = int(job.scan.markers[job.settled - 1][f"{name}_end"]) if job.settled else 0
    begin = max(files.begin // ENTRY.itemsize, places.first)
    if files.starts and job.clean:
        files.check_zero_from(end * ENTRY.itemsize, f"bytes behind the end of the {name} queue are not zero")
    if end <= begin:
        return
    if files.end < end * ENTRY.itemsize:
        files.add(files.end, f"the {name} queue ends here, before its entry {end - 1}")
        return
    chosen = slice(begin - places.first, end - places.first)
    numbers, states, of_op = places.numbers[chosen], places.states[chosen], places.of_op[chosen]
    rows, known = rows_of(replay, edge, numbers)
    wanted = np.zeros(len(numbers), ENTRY)
    wanted["commit_log_offset"], wanted["size_bytes"] = rows["commit_log_offset"], rows["size_bytes"]
    if of_op.any():
        wanted[of_op], known[of_op] = op_entries(edge, numbers[of_op])
    wanted["tags_code"] = np.where(of_op, -1 - numbers, numbers | (states << REASON_SHIFT))
    _compare_entries(files, begin, wanted, known)


def _compare_entries(files: SegmentFiles, begin: int, wanted: Array, known: Any) -> None:
    assert ENTRY.fields is not None
    found = files.records(ENTRY, begin, begin + len(wanted))
    # A rebuild leaves entries empty whose rows retention has removed.
    empty = ~known & (found == np.zeros(1, ENTRY))
    for name in ENTRY.names or ():
        differs = (found[name] != wanted[name]) & ~empty
        if name != "tags_code":
            differs &= known
        for at in np.flatnonzero(differs).tolist():
            reason = f"entry {begin + at}: {name} is {int(found[name][at])}, the redo log says {int(wanted[name][at])}"
            files.add((begin + at) * ENTRY.itemsize + ENTRY.fields[name][1], reason)
