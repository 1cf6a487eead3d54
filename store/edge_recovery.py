"""How the edge finds its state again after any kind of exit.

    1  start from the checkpoint (without one: from the beginning of the log)
    2  replay what is known to have been durable, around damage: up to the end that was published
    3  replay whole batches behind it: they were written, perhaps not acknowledged
    4  cut the torn tail, of the log and of the queues over it
    5  flush what is kept, and note it in a new checkpoint
    6  publish (the caller)

Every step may be interrupted and done again: frames give the same entries, marks and positions each time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from store import disk, frames
from store.catalogue import Catalogue
from store.consume_queue import ASKED_TAG
from store.dedup import Known
from store.ends import byte_after
from store.errors import Corrupt, CursorBeyondLog
from store.frames import FrameKind
from store.progress import Progress
from store.published import EdgeSlot
from store.records import ENTRY, NO_POSITION, OpKind, queue_key_of, queue_offset_of

if TYPE_CHECKING:
    from store.edge import EdgeStore

CHECKPOINT = "edge.checkpoint"
_DEDUP_MARK = f"{frames.DEDUP_KEY}\x01".encode()
_NO_HALF = -1


@dataclass(slots=True)
class EdgeRecovery:
    """What opening had to do."""

    clean: bool = False
    frames_replayed: int = 0
    cut_at: int = 0
    cut_reason: str = ""
    damage: list[tuple[int, int, str]] = field(default_factory=list)


def recover(edge: EdgeStore, progress: Progress) -> EdgeRecovery:
    """Steps 1 to 5."""
    recovery = EdgeRecovery()
    # 1
    state = _read_checkpoint(edge, recovery)
    start, published = int(state["log_end"]), edge.page[EdgeSlot.LOG_END]
    edge.half_end, edge.op_end = int(state["half_end"]), int(state["op_end"])
    edge.next_offset = {int(key): int(value) for key, value in state["positions"]}
    edge.log.end = start
    recovery.clean = bool(state["clean"])
    if start > edge.log.file.end:
        raise CursorBeyondLog(_beyond(edge, edge.log.file.end, start))
    if recovery.clean and published > start:
        raise CursorBeyondLog(_beyond(edge, start, published))
    if not recovery.clean:
        _replay(edge, start, max(start, published), recovery, progress)
    # 5. After a clean exit too: from here on the log may grow behind the checkpoint.
    edge.write_checkpoint(clean=False)
    return recovery


def _read_checkpoint(edge: EdgeStore, recovery: EdgeRecovery) -> dict[str, Any]:
    try:
        state = disk.read_json(edge.directory.root / CHECKPOINT)
    except Corrupt as error:
        recovery.damage.append((0, 0, str(error)))
        state = None
    if state is None:
        positions = _settled_positions(edge) if edge.log.file.begin else []
        state = {"log_end": edge.log.file.begin, "half_end": 0, "op_end": 0, "positions": positions, "clean": False}
    return state


def _settled_positions(edge: EdgeStore) -> list[tuple[int, int]]:
    """Retention took the log's beginning and the checkpoint is lost: a queue without a commit in the rest goes on where it was
    settled."""
    generation = edge.directory.current_generation()
    if generation is None:
        return []
    catalogue = Catalogue(edge.directory.generation(generation) / "catalogue")
    return [(key, catalogue.extent(key)[1]) for key in catalogue.queue_keys()]


def _replay(edge: EdgeStore, start: int, durable: int, recovery: EdgeRecovery, progress: Progress) -> None:
    replay = _Replay(edge)
    total = max(edge.log.file.end - start, 1)

    def damaged(first: int, stop: int, reason: str) -> None:
        recovery.damage.append((first, stop, reason))

    def watch(at: int) -> None:
        progress(at - start, total, "reading the commit log")

    # 2
    for at, size in edge.log.salvage(start, durable, damaged):
        replay.frame(at, size)
        watch(at)
    if durable > start and replay.frames == 0 and _all_zero(edge, start, durable):
        raise CursorBeyondLog(_beyond(edge, start, durable))
    # 3
    for batch in edge.log.scan(durable):
        for at, size in batch.frames:
            replay.frame(at, size)
        watch(batch.end)
    # 4
    recovery.cut_at, recovery.cut_reason = edge.log.scan_stop, edge.log.scan_reason
    edge.log.end = edge.log.scan_stop
    edge.log.file.cut(edge.log.end)
    replay.finish()
    recovery.frames_replayed = replay.frames


def _all_zero(edge: EdgeStore, start: int, stop: int) -> bool:
    try:
        return not any(edge.log.file.view(start, stop - start))
    except IndexError:
        return True


def _beyond(edge: EdgeStore, end: int, known: int) -> str:
    return (
        f"{edge.directory.commit_log}: the log ends at {end}, but {known} was acknowledged: an older copy of the log was put "
        "here. Put the right one back, or restore a whole backup (escrow store restore)"
    )


class _Replay:
    """Rebuilds queues, ends, positions and names from frames, in log order."""

    FLUSH_EVERY = 8192

    def __init__(self, edge: EdgeStore) -> None:
        self._edge = edge
        self.frames = 0
        self._halves: list[tuple[int, int, int]] = []
        self._ops: list[tuple[int, int, int]] = []
        self._half_first, self._op_first = edge.half_end, edge.op_end

    def frame(self, at: int, size: int) -> None:
        content = self._edge.log.frame_bytes(at, size)
        kind = content[frames.KIND_AT]
        self.frames += 1
        if kind == FrameKind.HALF:
            self._half(at, size, content)
        elif kind == FrameKind.MESSAGE:
            self._message(at, size, content)
        elif kind == FrameKind.OP:
            self._op(at, size, content)

    def _half(self, at: int, size: int, content: memoryview) -> None:
        head = frames.HALF_STRUCT.unpack_from(content)
        if head[7] != self._edge.half_end:
            self._skip_halves(head[7])
        self._learn_names(head, content)
        if _DEDUP_MARK in (properties := bytes(content[frames.HALF_HEAD.itemsize + head[21] :])):
            body_crc = crc32(content[frames.HALF_HEAD.itemsize : frames.HALF_HEAD.itemsize + head[21]])
            key = frames.decode_properties(properties)[frames.DEDUP_KEY]
            self._edge.dedup.put(head[11], key, Known(head[7], head[8] // 1000, body_crc))
        self._halves.append((at, size, head[10]))
        self._edge.half_end = head[7] + 1
        if len(self._halves) >= self.FLUSH_EVERY:
            self._put_halves()

    def _message(self, at: int, size: int, content: memoryview) -> None:
        head = frames.HALF_STRUCT.unpack_from(content)
        self._learn_names(head, content)
        self._place(head[23])
        self._put_op(at, size, head[7], _NO_HALF)

    def _op(self, at: int, size: int, content: memoryview) -> None:
        head = frames.OP_STRUCT.unpack_from(content)
        half_offset, position, kind = head[9], head[10], OpKind(head[12])
        if position != NO_POSITION:
            self._place(position)
        if half_offset >= 0:
            table = self._edge.ends_table
            table.ensure(half_offset, half_offset + 1)
            table[half_offset] = byte_after(kind, table[half_offset])
        self._put_op(at, size, head[7], ASKED_TAG if kind == OpKind.ASKED else half_offset)

    def _put_op(self, at: int, size: int, op_offset: int, tag: int) -> None:
        if op_offset != self._edge.op_end:
            self._skip_ops(op_offset)
        self._ops.append((at, size, tag))
        self._edge.op_end = op_offset + 1
        if len(self._ops) >= self.FLUSH_EVERY:
            self._put_ops()

    def _place(self, position: int) -> None:
        key, following = int(queue_key_of(position)), int(queue_offset_of(position)) + 1
        self._edge.next_offset[key] = max(self._edge.next_offset.get(key, 0), following)

    def _learn_names(self, head: tuple[Any, ...], content: memoryview) -> None:
        """Names are durable before their first frame; after a lost dictionary the frames teach them again."""
        dictionary = self._edge.dictionary
        if head[11] >= len(dictionary.groups) or head[12] >= len(dictionary.topics):
            properties = frames.decode_properties(bytes(content[frames.HALF_HEAD.itemsize + head[21] :]))
            dictionary.add_group(properties[frames.PGROUP])
            dictionary.add_topic(properties[frames.REAL_TOPIC])

    # Damage ate some frames. Their entries may still stand in the queue; where they do not, a hole keeps their numbers.
    # A queue without files (a restored store whose log does not begin at 0) begins here.
    def _skip_halves(self, following: int) -> None:
        self._put_halves()
        if not self._edge.half_queue.file.starts():
            self._edge.page[EdgeSlot.HALF_BEGIN] = following
        self._edge.half_queue.reach(following)
        self._edge.half_end = self._half_first = following

    def _skip_ops(self, following: int) -> None:
        self._put_ops()
        self._edge.op_queue.reach(following)
        self._edge.op_end = self._op_first = following

    def _put_halves(self) -> None:
        if self._halves:
            self._edge.half_queue.put(self._half_first, _entries(self._halves))
            self._half_first += len(self._halves)
            self._halves = []
        self._edge.ends_table.ensure(self._half_first, self._half_first)

    def _put_ops(self) -> None:
        if self._ops:
            self._edge.op_queue.put(self._op_first, _entries(self._ops))
            self._op_first += len(self._ops)
            self._ops = []

    def finish(self) -> None:
        """Write what is left and cut the queues behind it: an entry there would point at a frame that was cut."""
        self._put_halves()
        self._put_ops()
        for queue, end in ((self._edge.half_queue, self._edge.half_end), (self._edge.op_queue, self._edge.op_end)):
            if queue.file.starts():
                queue.cut(end)


def _entries(rows: list[tuple[int, int, int]]) -> np.ndarray[Any, Any]:
    return np.array(rows, ENTRY)
