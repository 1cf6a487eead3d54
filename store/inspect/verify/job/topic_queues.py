"""Verify, topic queues and the catalogue: every entry against the redo log and its frame, every extent against both."""

from __future__ import annotations

from typing import Any

import numpy as np

from store.arrays import Array, Ints
from store.inspect.verify.edge_files import EdgeFiles
from store.inspect.verify.files import SegmentFiles
from store.inspect.verify.job.placed import op_entries, rows_of
from store.inspect.verify.job_files import JobFiles
from store.inspect.verify.redo import Replay
from store.io.pages import JobSlot
from store.records import ENTRY, queue_key_of, queue_offset_of, topic_of_key
from store.tables.queue_extents import SLOT
from store.tables.queue_files import topic_queue_name
from store.tables.redo_log import RedoKind


class TopicQueues:
    """All topic queues of the generation in force."""

    def __init__(self, job: JobFiles, replay: Replay, edge: EdgeFiles) -> None:
        self._job, self._replay, self._edge = job, replay, edge

    def compare(self) -> int:
        """Every queue, entry by entry, and its extent in the catalogue. Returns how many entries there are."""
        replay = self._replay
        keys = queue_key_of(replay.position)
        firsts = np.flatnonzero(np.concatenate([[True], np.diff(keys) != 0])) if len(keys) else np.empty(0, np.int64)
        bounds = dict(zip(keys[firsts].tolist(), np.split(np.arange(len(keys)), firsts[1:]), strict=False))
        # What batches behind the settled ones place may not be there yet.
        scan, settled = self._job.scan, self._job.settled
        settled_slot = scan.end if settled >= len(scan.starts) else int(scan.starts[settled])
        total = 0
        for key in sorted(set(bounds) | set(self._job.extents)):
            places = bounds.get(key, np.empty(0, np.int64))
            total += self._compare_topic(key, places, replay.slot[places] < settled_slot)
        return total

    def _compare_topic(self, key: int, places: Ints, settled: Any) -> int:
        offsets = queue_offset_of(self._replay.position[places])
        sure_end = int(offsets[settled].max()) + 1 if settled.any() else 0
        if key not in self._job.extents:
            if settled.any() and sure_end > 0:
                self._job.catalogue.add(0, f"topic queue {topic_queue_name(*topic_of_key(key))} is not in the catalogue")
            return 0
        begin, end, slot = self._job.extents[key]
        topic_no, queue_id = topic_of_key(key)
        # An earlier topic with this number may have had more queues: they are empty.
        earlier = topic_no < len(self._edge.editions) and self._edge.editions[topic_no] > 0 and begin == end
        if topic_no >= len(self._edge.queues) or (queue_id >= self._edge.queues[topic_no] and not earlier):
            self._job.catalogue.add(slot, f"topic {topic_no}, queue {queue_id}: no such queue")
            return 0
        if not len(places) and not self._job.scan.begin and self._job.clean:
            self._job.catalogue.add(slot, f"topic {topic_no}, queue {queue_id}: the redo log knows nothing of it")
        newest_end = int(offsets.max()) + 1 if len(offsets) else 0
        if end < sure_end or (len(offsets) and end > newest_end):
            self._job.catalogue.add(slot + 16, f"the queue ends at {end}, the redo log says {newest_end}")
            end = min(end, newest_end) if len(offsets) else end
        first_known = int(offsets.min()) if len(offsets) else end
        if begin > first_known and not self._retained():
            self._job.catalogue.add(slot + 8, f"the queue begins at {begin}, the redo log says {first_known}")
        files = self._job.queue(topic_queue_name(*topic_of_key(key)))
        if self._job.clean:
            files.check_zero_from(end * ENTRY.itemsize, "bytes behind the end of the topic queue are not zero")
        # The job raises the begin before it removes a file: what the slot says now, after the files were listed, counts.
        begin = max(begin, int(self._job.catalogue.records(SLOT, slot // SLOT.itemsize, slot // SLOT.itemsize + 1)["begin"][0]))
        low = max(begin, files.begin // ENTRY.itemsize)
        if begin < files.begin // ENTRY.itemsize:
            self._job.catalogue.add(slot + 8, f"the queue begins at {begin}, its first file at {files.begin // ENTRY.itemsize}")
        if end > low and files.end < end * ENTRY.itemsize:
            files.add(files.end, f"the queue ends here, before its entry {end - 1}")
            return 0
        if end > low:
            chosen = (offsets >= low) & (offsets < end)
            self._compare_placed(files, low, end, places[chosen])
        return end - begin

    def _retained(self) -> bool:
        """Whether retention has ever moved a mark: only then may a queue begin behind its first entry."""
        job = self._job
        low = job.checkpoint["ledger"]["low_water"] if job.checkpoint else (1,)
        moved = job.page[JobSlot.MARKS_OP_CURSOR] or any(low)
        return bool(moved or self._edge.log.begin or job.scan.begin or job.table.begin)

    def _compare_placed(self, files: SegmentFiles, low: int, end: int, places: Ints) -> None:
        """Entries low … end - 1: what the redo log knows, exactly; the others must be holes or point at a frame."""
        kind, number = self._replay.kind[places], self._replay.number[places]
        wanted, known = np.zeros(len(places), ENTRY), np.ones(len(places), bool)
        of_half, of_message = kind == RedoKind.RELEASE, kind == RedoKind.MESSAGE
        rows, row_known = rows_of(self._replay, self._edge, number[of_half])
        wanted["commit_log_offset"][of_half], wanted["size_bytes"][of_half] = rows["commit_log_offset"], rows["size_bytes"]
        known[of_half] = row_known
        wanted[of_message], known[of_message] = op_entries(self._edge, number[of_message])
        wanted["tags_code"] = self._edge.tags_at(wanted["commit_log_offset"])
        wanted["commit_log_offset"][kind == RedoKind.HOLE] = -1
        wanted["tags_code"][kind == RedoKind.HOLE] = 0
        found = files.records(ENTRY, low, end)
        at = queue_offset_of(self._replay.position[places]) - low
        self._compare_known(files, low, found, at[known], wanted=wanted[known], log_begin=self._edge.log.begin)
        rest = np.ones(end - low, bool)
        rest[at[known]] = False
        self._check_unknown(files, low, found, np.flatnonzero(rest))

    def _compare_known(self, files: SegmentFiles, low: int, found: Array, at: Ints, *, wanted: Array, log_begin: int) -> None:
        assert ENTRY.fields is not None
        in_log = wanted["commit_log_offset"] >= log_begin
        for name in ENTRY.names or ():
            differs = found[name][at] != wanted[name]
            if name == "tags_code":
                # Where the log no longer reaches back, the tags that were read before stay or are 0 after a rebuild.
                differs &= in_log | (wanted["commit_log_offset"] < 0)
            for index in np.flatnonzero(differs).tolist():
                number = int(at[index]) + low
                reason = f"entry {number}: {name} is {int(found[name][at[index]])}, the redo log says {int(wanted[name][index])}"
                files.add(number * ENTRY.itemsize + ENTRY.fields[name][1], reason)

    def _check_unknown(self, files: SegmentFiles, low: int, found: Array, at: Ints) -> None:
        """Entries of which the redo log no longer tells, or never did (the place of a corrupt op stays empty)."""
        entries = found[at]
        hole = (entries["size_bytes"] == 0) & (entries["tags_code"] == 0) & np.isin(entries["commit_log_offset"], (0, -1))
        gone = (entries["commit_log_offset"] >= 0) & (entries["commit_log_offset"] < self._edge.log.begin)
        lost = self._job.scan.begin > 0 or max(self._replay.row_begin, self._edge.half_floor) > 0 or self._edge.op_begin > 0
        good = hole if not lost else hole | gone | self._edge.frames_known(entries["commit_log_offset"], entries["size_bytes"])
        for index in np.flatnonzero(~good).tolist():
            number = int(at[index]) + low
            files.add(number * ENTRY.itemsize, f"entry {number}: the redo log knows nothing of it")
        holes = int(np.count_nonzero(hole))
        corrupt_ops = int(np.count_nonzero(self._replay.places["quarantine"].of_op))
        if not lost and holes > corrupt_ops:
            number = int(at[np.argmax(hole)]) + low
            files.add(number * ENTRY.itemsize, f"entry {number}: empty, and no corrupt op explains it")
