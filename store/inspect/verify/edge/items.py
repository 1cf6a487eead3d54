"""Verify, items: what ops say that end several halves, one line for each half."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from store.arrays import Array, Ints
from store.inspect.verify.edge.halves import Halves
from store.inspect.verify.edge_files import EdgeFiles
from store.records import NO_POSITION, OpKind
from store.tables.frames import ITEM, OP_HEAD, OP_ITEMS

_KIND_SHIFT: Final = 56


class Told(NamedTuple):
    """How many numbers each frame takes; and for each number which of its frame's it is, and what the frame says there."""

    counts: Ints
    number: Ints
    half_offset: Ints
    position: Ints
    member: Any


class Items:
    def __init__(self, edge: EdgeFiles, halves: Halves) -> None:
        self._edge, self._halves = edge, halves

    def told(self, offsets: Ints, ops: Array, of_message: Any) -> Told:
        """What these frames say; of a frame without items what its head does."""
        counts = np.ones(len(ops), np.int64)
        with_items = np.flatnonzero(~of_message & (ops["frame_flags"] & OP_ITEMS != 0))
        read = {at: self._read(int(offsets[at]), ops[at]) for at in with_items.tolist()}
        for at, items in read.items():
            counts[at] = len(items)
        starts = np.cumsum(counts) - counts
        index = np.arange(int(counts.sum())) - np.repeat(starts, counts)
        half_offset, position = (np.repeat(ops[name], counts) for name in ("half_offset", "position"))
        member = np.zeros(len(index), bool)
        for at, items in read.items():
            part = slice(int(starts[at]), int(starts[at] + counts[at]))
            half_offset[part], position[part] = items["what"] & ((1 << _KIND_SHIFT) - 1), items["position"]
            member[part] = items["what"] >> _KIND_SHIFT == 1
            self._check(int(offsets[at]), ops[at], items, half_offset[part], member[part])
        return Told(counts, index, half_offset, position, member)

    def _read(self, offset: int, op: Any) -> Array:
        begin, size = OP_HEAD.itemsize + int(op["detail_bytes"]), int(op["size_bytes"])
        count = max((size - begin) // ITEM.itemsize, 0)
        items = np.frombuffer(self._edge.log.read(offset + begin, count * ITEM.itemsize).tobytes(), ITEM)
        if len(items):
            return items
        return np.array([(op["half_offset"], op["position"])], ITEM)  # reported: the rest does not fill the frame

    def _check(self, offset: int, op: Any, items: Array, half_offset: Ints, member: Any) -> None:
        log, halves, begin = self._edge.log, self._halves, self._edge.half_begin
        at = offset + OP_HEAD.itemsize + int(op["detail_bytes"])
        if member[0] or int(half_offset[0]) != int(op["half_offset"]) or int(items["position"][0]) != int(op["position"]):
            log.add(at, "the first item is not the half that the op speaks of")
        if ((items["what"] >> _KIND_SHIFT) & ~1).any():
            log.add(at, "an item of an unknown kind")
        if ((items["position"] != NO_POSITION) != (op["op_kind"] == OpKind.COMMIT)).any():
            log.add(at + 8, "a place that does not fit the kind")
        if len(np.unique(half_offset)) < len(half_offset):
            log.add(at, "one half is named twice")
        head = -1
        for number, half in enumerate(half_offset.tolist()):
            if not member[number]:
                head = half
            elif begin <= half < self._edge.half_end and halves.seen(half - begin) and halves.head[half - begin] != head:
                log.add(at + number * ITEM.itemsize, f"half {half} is no member of {head}")
