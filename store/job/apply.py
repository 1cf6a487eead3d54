"""Apply a batch: its redo entries become rows of the state table and entries of the queues.

Values and places are absolute, so a batch may be applied again.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from store.arrays import Array, Ints, last_of_each
from store.io import disk
from store.job.derived import DerivedFiles
from store.job.retention import Ledger
from store.read.readers import LogReader
from store.records import ENTRY, ROW, queue_key_of, queue_offset_of
from store.tables.consume_queue import REASON_SHIFT, make_entries
from store.tables.redo_log import Marker, RedoKind, kinds_of, numbers_of
from store.tables.state_table import StateTable

_ROW_KINDS: Final = np.zeros(256, bool)
_ROW_KINDS[[int(kind) for kind in RedoKind if kind not in (RedoKind.IMAGE_REST, RedoKind.QUARANTINE_OP, RedoKind.MESSAGE)]] = True


class Applier:
    """Writes batches into the derived files."""

    def __init__(self, files: DerivedFiles, log: LogReader) -> None:
        self._files, self._log = files, log

    def apply(self, entries: Array, marker: Marker) -> None:
        """Rows first: queue entries point where the rows say."""
        files = self._files
        with disk.failpoint("apply.rows"):
            apply_rows(files.table, files.ledger, entries)
        with disk.failpoint("apply.queues"):
            self._apply_queues(entries, marker)
        files.ledger.touch_logs(self._log, files.marker, marker)
        files.marker = marker

    def _apply_queues(self, entries: Array, marker: Marker) -> None:
        kinds, numbers = kinds_of(entries), numbers_of(entries)
        for kind, name in ((RedoKind.CHECK, "check"), (RedoKind.PROPOSE, "proposal"), (RedoKind.DISCARD, "discard")):
            chosen = np.flatnonzero(kinds == kind)
            if len(chosen):
                self._point_at_halves(name, numbers[chosen], entries[chosen], marker)
        chosen = np.flatnonzero((kinds == RedoKind.QUARANTINE) | (kinds == RedoKind.QUARANTINE_OP))
        if len(chosen):
            self._quarantine(kinds[chosen], numbers[chosen], entries["position"][chosen])
        released = np.flatnonzero((kinds == RedoKind.RELEASE) | (kinds == RedoKind.HOLE) | (kinds == RedoKind.MESSAGE))
        if len(released):
            self._release(kinds[released], numbers[released], entries["position"][released], marker)
        ended = np.flatnonzero(kinds == RedoKind.ROW)
        if len(ended):
            # The frame stays as long as the row. Without it, a repeated roll-back could not be answered "already".
            rows = self._files.table.get(numbers[ended])
            self._files.ledger.touch_places(rows["commit_log_offset"][rows["size_bytes"] > 0], marker.now_ms)
            self._files.ledger.touch_rows(numbers[ended], marker.now_ms)

    def _point_at_halves(self, name: str, half_offsets: Ints, entries: Array, marker: Marker) -> None:
        rows = self._files.table.get(half_offsets)
        tags, positions = half_offsets, entries["position"]
        if name != "check":
            tags, positions = (
                half_offsets | (positions >> REASON_SHIFT << REASON_SHIFT),
                positions & ((1 << REASON_SHIFT) - 1),
            )
        if name == "discard":
            self._files.ledger.touch_places(rows["commit_log_offset"], marker.now_ms)
            self._files.ledger.touch_rows(half_offsets, marker.now_ms)
        self._files.queue(name).scatter(positions, make_entries(rows["commit_log_offset"], rows["size_bytes"], tags))

    def _quarantine(self, kinds: Array, numbers: Ints, positions: Ints) -> None:
        of_half = kinds == RedoKind.QUARANTINE
        found = np.zeros(len(numbers), ENTRY)
        rows = self._files.table.get(numbers[of_half])
        found["commit_log_offset"][of_half], found["size_bytes"][of_half] = (
            rows["commit_log_offset"],
            rows["size_bytes"],
        )
        found[~of_half] = self._op_entries(numbers[~of_half])
        found["tags_code"] = np.where(of_half, numbers, -1 - numbers)
        self._files.queue("quarantine").scatter(positions, found)

    def _release(self, kinds: Array, numbers: Ints, positions: Ints, marker: Marker) -> None:
        found = np.zeros(len(numbers), ENTRY)
        of_half = kinds == RedoKind.RELEASE
        rows = self._files.table.get(numbers[of_half])
        found["commit_log_offset"][of_half], found["size_bytes"][of_half] = (
            rows["commit_log_offset"],
            rows["size_bytes"],
        )
        of_message = kinds == RedoKind.MESSAGE
        found[of_message] = self._op_entries(numbers[of_message])
        body = found["size_bytes"] > 0
        found["tags_code"][body] = self._log.tags_codes(found["commit_log_offset"][body])
        found["commit_log_offset"][~body] = -1
        self._files.ledger.touch_places(found["commit_log_offset"][body], marker.now_ms)
        self._files.ledger.touch_rows(numbers[kinds != RedoKind.MESSAGE], marker.now_ms)
        # By queue, and within it by place: one sort, then a write for each run of places.
        order = last_of_each(positions)
        self._release_runs(positions[order], found[order])

    def _release_runs(self, positions: Ints, entries: Array) -> None:
        """Entries at ascending positions. There may be tens of thousands of queues, so each costs little."""
        starts = np.flatnonzero(np.diff(positions, prepend=-2) != 1)
        stops = np.append(starts[1:], len(positions))
        keys, firsts = queue_key_of(positions[starts]), queue_offset_of(positions[starts])
        # In a replay, retention may have removed what lies before a queue's begin.
        gone = np.clip(self._files.catalogue.begins(keys) - firsts, 0, stops - starts)
        starts, firsts = starts + gone, firsts + gone
        size, content, grown = ENTRY.itemsize, memoryview(entries.tobytes()), self._files.grown
        for key, first, start, stop in zip(keys.tolist(), firsts.tolist(), starts.tolist(), stops.tolist(), strict=True):
            if start < stop:
                self._files.topic_queue(key).file.write(first * size, content[start * size : stop * size])
                begin, end = grown.get(key, (first, 0))
                grown[key] = begin, max(end, first + stop - start)

    def _op_entries(self, op_offsets: Ints) -> Array:
        """Entries of the op queue; holes where it no longer reaches back."""
        found = np.zeros(len(op_offsets), ENTRY)
        there = op_offsets >= self._log.op_queue.begin
        if there.any():
            first = int(op_offsets[there].min())
            found[there] = self._log.op_queue.read(first, int(op_offsets.max()) + 1)[op_offsets[there] - first]
        return found


def apply_rows(table: StateTable, ledger: Ledger, entries: Array) -> None:
    """Write what redo entries say of rows."""
    kinds = kinds_of(entries)
    images = np.flatnonzero(kinds == RedoKind.IMAGE)
    if len(images):
        _put_images(table, ledger, entries[images], entries[images + 1])
    chosen = np.flatnonzero(_ROW_KINDS[kinds])
    if len(chosen) > len(images):
        numbers = numbers_of(entries)[chosen]
        last = last_of_each(numbers)
        table.set_words(numbers[last], entries["word"][chosen][last])


def _put_images(table: StateTable, ledger: Ledger, images: Array, rest: Array) -> None:
    numbers = numbers_of(images)
    last = last_of_each(numbers)
    rows = np.empty(len(last), ROW)
    rows["commit_log_offset"], rows["word"] = images["position"][last], images["word"][last]
    rows["size_bytes"] = rest["word"][last].astype(np.int32)
    rows["stored_at_s"] = rest["position"][last] >> 32
    rows["group_no"] = (rest["position"][last] & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
    numbers = numbers[last]
    first, stop = int(numbers.min()), int(numbers.max()) + 1
    table.ensure(first, stop)
    table.put(numbers, rows)
    ledger.touch_rows(numbers, int(rows["stored_at_s"].max()) * 1000)
