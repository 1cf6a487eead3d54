"""Verify, the edge's files: page, checkpoint and names are read and checked here, the others opened."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from store.arrays import Array, Ints
from store.directory import EDGE_CHECKPOINT, StoreDirectory
from store.inspect.verify.files import Findings, SegmentFiles, map_bytes, read_checked_json, slots_of
from store.inspect.verify.journals import check_journal
from store.inspect.verify.names import CheckedNames
from store.io.pages import EDGE_MAGIC, EDGE_PUBLISHED, EdgeSlot
from store.records import ENTRY
from store.tables import ends
from store.tables.frames import HALF_HEAD, HEAD, MAGIC, FrameKind

_USED_SLOTS: Final = {0, *slots_of(EdgeSlot)}
_NOTED_SLOTS: Final = (
    (EdgeSlot.LOG_END, "log_end"),
    (EdgeSlot.HALF_END, "half_end"),
    (EdgeSlot.OP_END, "op_end"),
    (EdgeSlot.HALF_BEGIN, "half_begin"),
)
_CHECKPOINT_FIELDS: Final = {"log_end", "half_end", "op_end", "half_begin", "positions", "clean"}


class EdgeFiles:
    """The edge's files, open for reading, and how far each of them may be judged."""

    def __init__(self, directory: StoreDirectory, findings: Findings, quick: bool) -> None:
        self.directory, self.findings, self.quick = directory, findings, quick
        shape, root = directory.geometry, directory.root
        self.page_path, self.checkpoint_path = root / EDGE_PUBLISHED, root / EDGE_CHECKPOINT
        self.checkpoint = self._read_checkpoint()
        self.clean = bool(self.checkpoint and self.checkpoint["clean"])
        self.op_end, self.half_end, self.log_end = self._read_page()
        self._read_names()
        self.log = SegmentFiles(directory.commit_log, shape.commit_log_segment_bytes, findings)
        queue_bytes = shape.log_queue_entries_per_file * ENTRY.itemsize
        self.half_queue = SegmentFiles(directory.half_queue(), queue_bytes, findings)
        self.op_queue = SegmentFiles(directory.op_queue(), queue_bytes, findings)
        self.ends = SegmentFiles(directory.ends(), ends.SEGMENT_BYTES, findings)
        self.half_begin, self.op_begin = self.half_queue.begin // ENTRY.itemsize, self.op_queue.begin // ENTRY.itemsize
        #: Ids of halves before it are gone.
        self.half_floor = max(int(self.page[EdgeSlot.HALF_BEGIN]), self.half_begin)
        self._keep_within_files()

    def _keep_within_files(self) -> None:
        """An end beyond its files is a problem, and not followed: it may be any number."""
        for name, slot, files, width in (
            ("log", EdgeSlot.LOG_END, self.log, 1),
            ("half", EdgeSlot.HALF_END, self.half_queue, ENTRY.itemsize),
            ("op", EdgeSlot.OP_END, self.op_queue, ENTRY.itemsize),
        ):
            end: int = getattr(self, f"{name}_end")
            if end * width > files.end:
                files.add(files.end, f"missing, or too short: {name}_end is {end}")
                if not self.clean:
                    self.findings.add(self.page_path, slot * 8, f"{name}_end is {end}, its files end at {files.end // width}")
                setattr(self, f"{name}_end", files.end // width)

    def _read_checkpoint(self) -> dict[str, Any] | None:
        state = read_checked_json(self.checkpoint_path, self.findings)
        if state is not None and not set(state) >= _CHECKPOINT_FIELDS:
            self.findings.add(self.checkpoint_path, 0, "does not have the fields of an edge's checkpoint")
            return None
        return state

    def _read_page(self) -> tuple[int, int, int]:
        """(op_end, half_end, log_end), read in this order; the checkpoint's where it knows more (after a power failure)."""
        noted = self.checkpoint or {"op_end": 0, "half_end": 0, "log_end": 0}
        content = map_bytes(self.page_path)
        if content is None or len(content) != 4096:
            size = 0 if content is None else len(content)
            self.findings.add(self.page_path, size, "missing" if content is None else f"has {size} bytes, not 4096")
            self.page = np.zeros(512, np.int64)
            return noted["op_end"], noted["half_end"], noted["log_end"]
        slots = content.view("<i8")
        op_end, half_end, log_end = int(slots[EdgeSlot.OP_END]), int(slots[EdgeSlot.HALF_END]), int(slots[EdgeSlot.LOG_END])
        self.page = slots.copy()
        if self.page[0] != EDGE_MAGIC:
            self.findings.add(self.page_path, 0, "not a published page of the edge: wrong magic")
        for slot in sorted(set(range(512)) - _USED_SLOTS):
            if self.page[slot]:
                self.findings.add(self.page_path, slot * 8, "an unused slot is not zero")
        if self.clean:
            self._check_page(noted)
            return noted["op_end"], noted["half_end"], noted["log_end"]
        return max(op_end, noted["op_end"]), max(half_end, noted["half_end"]), max(log_end, noted["log_end"])

    def _check_page(self, noted: dict[str, Any]) -> None:
        for slot, name in _NOTED_SLOTS:
            if int(self.page[slot]) != noted[name]:
                self.findings.add(self.page_path, slot * 8, f"{name} is {int(self.page[slot])}, the checkpoint says {noted[name]}")
        if self.page[EdgeSlot.EPOCH] < 1:
            self.findings.add(self.page_path, EdgeSlot.EPOCH * 8, "the epoch is less than 1")
        if int(self.page[EdgeSlot.VISIBLE_END]) not in (0, noted["log_end"]):  # 0: written by a release that did not know it
            reason = f"visible_end is {int(self.page[EdgeSlot.VISIBLE_END])}, the log ends at {noted['log_end']}"
            self.findings.add(self.page_path, EdgeSlot.VISIBLE_END * 8, reason)

    def _read_names(self) -> None:
        records = check_journal(self.directory.root / "dictionary", self.findings, self.clean)
        names = CheckedNames(self.directory, self.findings, records)
        self.groups, self.topics = names.groups, names.topics
        #: Number of queues of each topic, by topic_no.
        self.queues = names.queues
        #: How many topics had each number before.
        self.editions = names.editions

    def check_behind_ends(self) -> None:
        """After an exit in order, nothing lies behind the ends, and the begins are where the files begin."""
        if self.clean:
            self._check_begins()
        if not self.clean or self.quick:
            return
        self.log.check_zero_from(self.log_end, "bytes behind the end of the log are not zero")
        self.half_queue.check_zero_from(self.half_end * ENTRY.itemsize, "bytes behind the end of the half queue are not zero")
        self.op_queue.check_zero_from(self.op_end * ENTRY.itemsize, "bytes behind the end of the op queue are not zero")

    def _check_begins(self) -> None:
        half_begin = int(self.page[EdgeSlot.HALF_BEGIN])
        good = self.half_begin <= half_begin <= max(self.half_end, self.half_begin)
        wanted = (
            (EdgeSlot.LOG_BEGIN, int(self.page[EdgeSlot.LOG_BEGIN]) == self.log.begin, self.log.begin),
            (EdgeSlot.OP_BEGIN, int(self.page[EdgeSlot.OP_BEGIN]) == self.op_begin, self.op_begin),
            (EdgeSlot.HALF_BEGIN, good, self.half_begin),
        )
        for slot, fits, begin in wanted:
            if not fits:
                self.findings.add(self.page_path, slot * 8, f"{int(self.page[slot])} is not where the files begin ({begin})")

    # --- frames by place ---
    def gather(self, offsets: Ints, dtype: np.dtype[Any]) -> Array:
        """Heads at many places of the log; zeros where they do not lie in it."""
        heads = np.zeros(len(offsets), dtype)
        if not len(offsets):
            return heads
        size, width = self.log.segment_bytes, dtype.itemsize
        numbers = offsets // size
        for number in np.unique(numbers).tolist():
            content = self.log.segment(number * size)
            if content is None:
                continue
            chosen = np.flatnonzero((numbers == number) & (offsets - number * size <= size - width))
            windows = np.lib.stride_tricks.sliding_window_view(content, width)
            heads[chosen] = windows[offsets[chosen] - number * size].view(dtype)[:, 0]
        return heads

    def tags_at(self, offsets: Ints) -> Ints:
        return np.asarray(self.gather(offsets, HALF_HEAD)["tags_code"], np.int64)

    def frames_known(self, offsets: Ints, sizes: Ints) -> Any:
        heads = self.gather(offsets, HEAD)
        kinds = np.isin(heads["kind"], (FrameKind.HALF, FrameKind.MESSAGE))
        return (heads["magic"] == MAGIC) & (heads["size_bytes"].astype(np.int64) == sizes) & kinds
