"""How the ends table is checked when the edge opens, and rebuilt if it is lost.

A half whose mark is lost could end a second time, the other way round. So the table is used only when its files are all there in
full, and, after an exit in order, when its CRC is what the checkpoint says. Otherwise it is rebuilt: from the op frames;
and where retention has taken ops of halves that are still there, from the redo log, which has settled those ops.
"""

from __future__ import annotations

import contextlib
import zlib
from typing import Any, Final

import numpy as np

from store.directory import TRANSACTIONS, StoreDirectory
from store.edge.files import EdgeFiles, EdgeState
from store.errors import Corrupt
from store.records import OpKind, State, state_of
from store.tables.ends import EndsTable, byte_after
from store.tables.frames import SYS_FLAG_MEMBER
from store.tables.redo_log import RedoKind, RedoLog, kinds_of, numbers_of

Marks = np.ndarray[Any, np.dtype[np.uint8]]
_PIECE: Final = 65_536
_OF_A_HALF: Final = np.zeros(256, bool)
_OF_A_HALF[[int(kind) for kind in RedoKind if kind not in (RedoKind.IMAGE_REST, RedoKind.QUARANTINE_OP, RedoKind.MESSAGE)]] = True


def crc_of(ends_table: EndsTable, stop: int) -> list[int]:
    """[first half, stop, CRC of their marks], for the checkpoint."""
    table = ends_table.file
    first, crc = table.begin, 0
    for at in range(first, stop, table.segment_bytes):
        crc = zlib.crc32(table.view(at, min(table.segment_bytes, stop - at)), crc)
    return [first, stop, crc]


def is_known(checkpoint: dict[str, Any]) -> bool:
    """Whether the checkpoint says anything of the table. Not where all is read from the beginning of the log: then the table is
    worked out, too, whatever lies there."""
    return bool(checkpoint["half_end"] or checkpoint["clean"])


def why_doubted(files: EdgeFiles, half_begin: int, checkpoint: dict[str, Any]) -> str:
    """Why the table cannot be used as it is; "" where it can. Before anything writes to it."""
    directory = files.directory.ends()
    first, stop = max(half_begin, int(checkpoint.get("half_begin", 0))), int(checkpoint["half_end"])
    table = files.ends_table.file
    if first >= stop:
        return ""
    if not table.starts() or table.begin > first or table.end < stop:
        return f"{directory}: files are missing"
    if any(path.stat().st_size != table.segment_bytes for path in directory.iterdir()):
        return f"{directory}: a file was cut off"
    noted = checkpoint.get("ends")
    comparable = checkpoint["clean"] and noted and noted[:2] == [table.begin, stop]
    return f"{directory}: is not what was here" if comparable and crc_of(files.ends_table, stop) != noted else ""


def work_out(files: EdgeFiles, state: EdgeState) -> None:
    """Rebuild every mark. Corrupt if neither ops nor the redo log have them all. Ends and queues are recovered by now."""
    table, first, stop = files.ends_table, state.half_begin, state.half_end
    marks: Marks = np.zeros(stop - first, np.uint8)
    table.ensure(first, stop)
    op_first, half_first = files.op_queue.begin, first
    if op_first or files.log.file.begin:
        marks, op_first, half_first = _settled_marks(files, state)
    if TRANSACTIONS in files.directory.needs:
        _mark_members(files, max(half_first, first), stop, marks[max(half_first - first, 0) :])
    for op_offset in range(op_first, state.op_end, _PIECE):
        _replay(files, state, op_offset, min(op_offset + _PIECE, state.op_end), marks)
    table.put(first, marks)


def _mark_members(files: EdgeFiles, first: int, stop: int, marks: Marks) -> None:
    """Of halves first … stop - 1: no op tells that one is a member, its frame does."""
    for half_offset in range(first, stop):
        with contextlib.suppress(Corrupt, IndexError):
            if files.read_half(half_offset).fields["sys_flag"] & SYS_FLAG_MEMBER:
                marks[half_offset - first] = State.MEMBER


def _replay(files: EdgeFiles, state: EdgeState, op_offset: int, op_stop: int, marks: Marks) -> None:
    for commit_log_offset, size, half_offset in files.op_queue.read(op_offset, op_stop).tolist():
        at = half_offset - state.half_begin
        if size and 0 <= at < len(marks):
            try:
                op = files.log.read(commit_log_offset, size)
            except Corrupt:  # the job reports it, and the half is settled by check-back
                continue
            marks[at] = byte_after(OpKind(op.fields["op_kind"]), int(marks[at]))


def _settled_marks(files: EdgeFiles, state: EdgeState) -> tuple[Marks, int, int]:
    """(marks of the halves from half_begin on as the redo log tells them, the first op and the first half that it does not know
    of). The redo log speaks of every half that is still there, and is the truth of how ops were settled."""
    directory, first = files.directory, state.half_begin
    marks, op_cursor, half_cursor = np.zeros(state.half_end - first, np.uint8), 0, first
    redo = RedoLog(directory.redo_log(), directory.geometry.redo_entries_per_file)
    try:
        for batch in redo.batches(redo.first_batch(), None):
            kinds, half_offsets = kinds_of(batch.entries), numbers_of(batch.entries)
            chosen = np.flatnonzero(_OF_A_HALF[kinds] & (half_offsets >= first) & (half_offsets < state.half_end))
            states = state_of(batch.entries["word"][chosen])
            ended = ((states >= State.COMMITTED) & (states <= State.DISCARDED_EXPIRED)) | (states == State.MEMBER)
            marks[half_offsets[chosen] - first] = np.where(ended, states, 0)
            op_cursor, half_cursor = batch.marker.op_cursor, batch.marker.half_cursor
    finally:
        redo.close()
    if op_cursor < files.op_queue.begin:
        raise _refusal(files.directory)
    return marks, op_cursor, half_cursor


def _refusal(directory: StoreDirectory) -> Corrupt:
    return Corrupt(
        directory.ends(),
        0,
        "lost: retention has taken ops that would tell how halves ended, and the redo log does not tell it either. Put the "
        "directory back, or restore a backup (escrow store restore)",
    )
