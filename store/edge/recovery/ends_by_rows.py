"""The ends table after a kill: marks that damage changed are found beside the state table, and told anew by the op log.

After an exit in order the checkpoint has the table's CRC. After a kill it says nothing: marks were set since. But the job has
settled most ops: the state of a row is the mark of its half. Where the two differ the ops of the half decide. A row may be behind
(the job, or a power failure), and may be damaged itself: then the ops agree with the mark.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from store.arrays import Ints
from store.edge.files import EdgeFiles, EdgeState
from store.errors import Corrupt, StoreError
from store.records import OpKind, State, state_of
from store.tables.ends import byte_after
from store.tables.state_table import StateTable

_PIECE: Final = 1 << 20


def mend(files: EdgeFiles, state: EdgeState) -> list[int]:
    """Set marks that are not what the ops say; of which halves."""
    settled = _differing(files, state)
    ops = _ops_about(files, state, np.array(sorted(settled), np.int64)) if settled else {}
    table, mended = files.ends_table, []
    for half_offset, base in settled.items():
        mark = _mark(files, ops.get(half_offset, []), 0 if files.op_queue.begin == 0 else base)
        if mark is not None and mark != table[half_offset]:
            table[half_offset] = mark
            mended.append(half_offset)
    return mended


def _differing(files: EdgeFiles, state: EdgeState) -> dict[int, int]:
    """The marks that rows tell, by half, where the table has others."""
    directory, found = files.directory, dict[int, int]()
    generation = directory.likely_generation()
    if generation is None:
        return found
    try:
        rows = StateTable(directory.generation(generation) / "statetable" / "0", directory.geometry.state_rows_per_file)
    except StoreError:  # the job makes it anew
        return found
    try:
        stop = min(state.half_end, rows.allocated)
        for first in range(max(state.half_begin, rows.begin, files.ends_table.file.begin), stop, _PIECE):
            half_offsets = np.arange(first, min(first + _PIECE, stop))
            states = state_of(rows.words(half_offsets)).astype(np.int64)
            known = (states >= State.PREPARED) & (states <= State.DISCARDED_EXPIRED)
            told = np.where(states == State.PREPARED, 0, states)
            marks = np.frombuffer(files.ends_table.file.view(first, len(half_offsets)), np.uint8)
            differ = np.flatnonzero(known & (told != marks))
            found |= dict(zip(half_offsets[differ].tolist(), told[differ].tolist(), strict=True))
    except (Corrupt, IndexError):
        return {}
    finally:
        rows.close()
    return found


def _ops_about(files: EdgeFiles, state: EdgeState, half_offsets: Ints) -> dict[int, list[tuple[int, int]]]:
    """(commit_log_offset, size) of the ops about these halves, in order."""
    found: dict[int, list[tuple[int, int]]] = {}
    for first in range(files.op_queue.begin, state.op_end, _PIECE):
        entries: Any = files.op_queue.read(first, min(first + _PIECE, state.op_end))
        for offset, size, half_offset in entries[np.isin(entries["tags_code"], half_offsets)].tolist():
            found.setdefault(half_offset, []).append((offset, size))
    return found


def _mark(files: EdgeFiles, ops: list[tuple[int, int]], base: int) -> int | None:
    """What ops make of a half; None where one of them cannot be read: then nothing is known better than the mark."""
    mark = base
    for offset, size in ops:
        try:
            mark = byte_after(OpKind(files.log.read(offset, size).fields["op_kind"]), mark)
        except (Corrupt, IndexError, KeyError, ValueError):
            return None
    return mark
