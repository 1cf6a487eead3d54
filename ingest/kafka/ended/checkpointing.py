"""When an endpoint writes a checkpoint of an ends table, and of which op offset (checkpoints.py has the format)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from ingest.kafka.ended.checkpoints import Saver, Snapshot
from ingest.kafka.ended.table import Ends
from ingest.kafka.ended.unjudged import Unjudged

#: A checkpoint comes early after so many ops: a start that has to read them all keeps what it has read if it is interrupted.
CHECKPOINT_OPS: Final = 200_000
#: The shortest time between two checkpoints of a partition.
AGAIN_S: Final = 0.5
#: How often to look whether one is due.
DUE_S: Final = 0.1
#: For the last checkpoint, when the endpoint stops.
CLOSE_S: Final = 5.0


class Checkpointing:
    """Used by the follower's thread. `figures` may be asked from any thread."""

    def __init__(self, saver: Saver, interval_s: float) -> None:
        self._saver, self._interval_s = saver, interval_s
        self._bindings: dict[int, bytes] = {}
        self._saved: dict[int, tuple[int, float]] = {}  # partition: position and time of its last checkpoint
        self._saving: set[int] = set()
        self._looked_s = -DUE_S

    def add(self, partition: int, binding: bytes, op_offset: int) -> None:
        """A partition is followed from this op on."""
        self._bindings[partition] = binding
        self._saved[partition] = (op_offset, time.monotonic())

    def order_due(self, positions: Mapping[int, int], tables: Mapping[int, Ends], unjudged: Unjudged) -> None:
        """Order the checkpoints that are due now."""
        if time.monotonic() - self._looked_s >= DUE_S:
            self._order(positions, tables, unjudged, self._interval_s)
            self._looked_s = time.monotonic()

    def order_all(self, positions: Mapping[int, int], tables: Mapping[int, Ends], unjudged: Unjudged) -> None:
        """Order a checkpoint of every partition that has moved: the endpoint stops."""
        self._order(positions, tables, unjudged, 0.0)

    def _order(self, positions: Mapping[int, int], tables: Mapping[int, Ends], unjudged: Unjudged, interval_s: float) -> None:
        """Not for a partition whose ops wait: they are in no chunk yet and lie below its position."""
        self._note_written(tables)
        now_s, waiting = time.monotonic(), unjudged.partitions
        for partition, position in positions.items():
            at, ordered_s = self._saved[partition]
            early = position - at >= CHECKPOINT_OPS and now_s - ordered_s >= AGAIN_S
            due = position > at and (now_s - ordered_s >= interval_s or early)
            if due and partition not in self._saving and partition not in waiting:
                self._saving.add(partition)
                self._saved[partition] = (at, now_s)
                ends = tables[partition]
                chunks = ends.take(all_of_them=not self._saver.holds(partition))
                self._saver.save(Snapshot(partition, self._bindings[partition], position, chunks, ends.numbers))

    def _note_written(self, tables: Mapping[int, Ends]) -> None:
        while self._saver.done:
            snapshot, written = self._saver.done.popleft()
            self._saving.discard(snapshot.partition)
            if written:
                self._saved[snapshot.partition] = (snapshot.op_offset, self._saved[snapshot.partition][1])
            elif snapshot.partition in tables:
                tables[snapshot.partition].changed_again(snapshot.chunks)

    def figures(self, positions: Mapping[int, int]) -> dict[str, Any]:
        since = [at - self._saved.get(partition, (0, 0.0))[0] for partition, at in list(positions.items())]
        saver = self._saver
        return {"written": saver.written, "failures": saver.failures, "trouble": saver.trouble, "ops_since": sum(since)}

    def close(self) -> None:
        self._saver.close(CLOSE_S)
