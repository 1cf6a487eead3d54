"""Stats: what a store holds, in figures. Reads only, takes no lock, may run beside the writers.

Sizes: `size_bytes` is the length of the files, `allocated_bytes` what they take on the disk, `used_bytes` what has been written of
them. Files are made full-size, so `used_bytes` is the one that grows with every record.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import numpy as np

from store.directory import EDGE_CHECKPOINT, FORMAT_FILE, JOB_CHECKPOINT, StoreDirectory
from store.inspect.verify.files import Findings, SegmentFiles, map_bytes, read_checked_json
from store.io.pages import EDGE_PUBLISHED, JOB_PUBLISHED, EdgeSlot, JobSlot
from store.records import ENTRY, ROW, STATE_MASK, State, topic_of_key
from store.tables import queue_extents
from store.tables.delivery_cursors import CURSORS
from store.tables.journals.names import Dictionary
from store.tables.queue_files import NUMBERED_QUEUES
from store.tables.redo_log import TOTALS

_ROWS_AT_ONCE: Final = 1 << 20


def stats(path: Path) -> dict[str, object]:
    """Figures of the store in `path`."""
    return _Stats(path).figures()


class _Stats:
    def __init__(self, path: Path) -> None:
        self.directory = StoreDirectory(path)
        self.edge, self.job = _page(path / EDGE_PUBLISHED), _page(path / JOB_PUBLISHED)
        self.generation = int(self.job[JobSlot.GENERATION])
        self.root = self.directory.generation(self.generation)
        self.names = Dictionary(path / "dictionary")

    def figures(self) -> dict[str, object]:
        edge, job = self.edge, self.job
        half_end, op_end = int(edge[EdgeSlot.HALF_END]), int(edge[EdgeSlot.OP_END])
        half_cursor, op_cursor = int(job[JobSlot.HALF_CURSOR]), int(job[JobSlot.OP_CURSOR])
        return {
            "format": self.directory.format,
            "store_id": self.directory.store_id,
            "halves": {
                "begin": int(edge[EdgeSlot.HALF_BEGIN]),
                "end": half_end,
                "settled": half_cursor,
                "lag": half_end - half_cursor,
            },
            "ops": {"begin": int(edge[EdgeSlot.OP_BEGIN]), "end": op_end, "settled": op_cursor, "lag": op_end - op_cursor},
            "log": {"begin": int(edge[EdgeSlot.LOG_BEGIN]), "end": int(edge[EdgeSlot.LOG_END])},
            **self._rows(),
            "totals": {name: int(job[JobSlot.TOTALS + number]) for number, name in enumerate(TOTALS)},
            "round_no": int(job[JobSlot.ROUND_NO]),
            "now_ms": int(job[JobSlot.NOW_MS]),
            "queues": {name: int(job[slot]) for name, slot in NUMBERED_QUEUES.items()},
            "topics": self._topics(),
            "groups": len(self.names.groups),
            "generation": self.generation,
            "files": self._files(half_end, op_end, half_cursor),
        }

    def _rows(self) -> dict[str, object]:
        """Rows by state, how many are pending, and since when the oldest of them waits."""
        table = SegmentFiles(self.root / "statetable" / "0", self.directory.geometry.state_segment_bytes, Findings())
        counts, oldest_s = np.zeros(8, np.int64), 0
        stop = min(int(self.job[JobSlot.HALF_CURSOR]), table.end // ROW.itemsize)
        for low in range(table.begin // ROW.itemsize, stop, _ROWS_AT_ONCE):
            rows = table.records(ROW, low, min(low + _ROWS_AT_ONCE, stop))
            states = rows["word"] & STATE_MASK
            counts += np.bincount(states, minlength=8)
            pending = rows["stored_at_s"][states == State.PREPARED]
            if len(pending):
                oldest_s = min(oldest_s, int(pending.min())) if oldest_s else int(pending.min())
        return {
            "states": {state.name: int(counts[state]) for state in State if state != State.NONE},
            "pending": int(counts[State.PREPARED]),
            "oldest_pending_stored_at_s": oldest_s or None,
        }

    def _extents(self) -> list[tuple[int, int, int]]:
        """(queue key, begin, end) of every topic queue."""
        slots = SegmentFiles(self.root / "catalogue", queue_extents.SLOTS_PER_FILE * queue_extents.SLOT.itemsize, Findings())
        found = slots.records(queue_extents.SLOT, 0, slots.end // queue_extents.SLOT.itemsize)
        return [(key_plus_1 - 1, begin, end) for key_plus_1, begin, end in found[found["key_plus_1"] > 0].tolist()]

    def _topics(self) -> dict[str, object]:
        found: dict[str, dict[str, object]] = {
            name: {"queues": self.names.queues[topic_no], "messages": 0} for topic_no, name in self.names.living_topics()
        }
        for key, begin, end in sorted(self._extents()):
            topic_no, queue_id = topic_of_key(key)
            if topic_no < len(self.names.topics) and topic_no not in self.names.removed:
                topic = found[self.names.topics[topic_no]]
                topic["messages"] = int(str(topic["messages"])) + end - begin
                topic[f"queue_{queue_id}"] = f"{begin}..{end}"
        return dict(found)

    def _files(self, half_end: int, op_end: int, half_cursor: int) -> dict[str, object]:
        directory, root, entry = self.directory, self.directory.root, ENTRY.itemsize
        checkpoint = read_checked_json(root / "job.checkpoint", Findings()) or {}
        topics = sum((end - begin) * entry for _, begin, end in self._extents())
        kinds: dict[str, tuple[list[Path], int]] = {
            "commitlog": ([directory.commit_log], int(self.edge[EdgeSlot.LOG_END])),
            "half": ([directory.half_queue()], half_end * entry),
            "op": ([directory.op_queue()], op_end * entry),
            "ends": ([directory.ends()], half_end),
            "redo": ([directory.redo_log()], int(checkpoint.get("redo_end", 0))),
            "statetable": ([self.root / "statetable" / "0"], half_cursor * ROW.itemsize),
            **{name: ([self.root / name], int(self.job[slot]) * entry) for name, slot in NUMBERED_QUEUES.items()},
        }
        found: dict[str, object] = {name: _measure(places, end) for name, (places, end) in kinds.items()}
        found["topics"] = {**_measure([self.root / "topics"], None), "used_bytes": topics}
        found["catalogue"] = {
            **_measure([self.root / "catalogue"], None),
            "used_bytes": len(self._extents()) * queue_extents.SLOT.itemsize,
        }
        small = ("dictionary", "consumers", "audit", "presence", "dedup", "names")
        others = (EDGE_PUBLISHED, JOB_PUBLISHED, CURSORS, EDGE_CHECKPOINT, JOB_CHECKPOINT, FORMAT_FILE)
        found |= {name: _measure([root / name], None) for name in small}
        found["other"] = _measure([root / name for name in others], None)
        return found


def _measure(places: list[Path], end: int | None) -> dict[str, object]:
    """Files under some places; `end` is the logical offset up to which they are written (None: they are used whole)."""
    files = [file for place in places for file in _walk(place)]
    found = [(path, status) for path in files if (status := _status(path)) is not None]
    size = sum(status.st_size for _, status in found)
    begin = min((int(path.name) for path, _ in found if path.name.isdecimal()), default=0) if end is not None else 0
    return {
        "files": len(found),
        "size_bytes": size,
        "allocated_bytes": sum(status.st_blocks * 512 for _, status in found),
        "used_bytes": size if end is None else min(max(0, end - begin), size),
    }


def _walk(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    return [Path(folder) / name for folder, _, names in os.walk(place) for name in names]


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _page(path: Path) -> Any:
    content = map_bytes(path)
    return content.view("<i8").copy() if content is not None and len(content) == 4096 else np.zeros(512, np.int64)


__all__ = ["stats"]
