"""Verify, what a queue entry should point at: halves by the rows of the replay, ops by the op queue."""

from __future__ import annotations

from typing import Any

import numpy as np

from store.arrays import Array, Ints
from store.inspect.verify.edge_files import EdgeFiles
from store.inspect.verify.redo import Replay
from store.records import ENTRY, ROW


def rows_of(replay: Replay, edge: EdgeFiles, numbers: Ints) -> tuple[Array, Any]:
    """(rows, which of them are known) of halves."""
    known = (numbers >= max(replay.row_begin, edge.half_floor)) & (numbers < replay.half_cursor)
    known[known] = replay.imaged[numbers[known] - replay.row_begin]
    rows = np.zeros(len(numbers), ROW)
    rows[known] = replay.rows[numbers[known] - replay.row_begin]
    return rows, known


def op_entries(edge: EdgeFiles, numbers: Ints) -> tuple[Array, Any]:
    """(entries of the op queue, which of them are known) of ops."""
    known = numbers >= edge.op_begin
    found = np.zeros(len(numbers), ENTRY)
    if known.any():
        first, last = int(numbers[known].min()), int(numbers.max())
        found[known] = edge.op_queue.records(ENTRY, first, last + 1)[numbers[known] - first]
    return found, known
