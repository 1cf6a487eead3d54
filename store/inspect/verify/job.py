"""Verify, the job's side: redo log, state table, topic queues, the four numbered queues, catalogue, page and checkpoint.

Order of reading, so that a running job is no problem: page and catalogue, then the redo log, then what is derived from it. A batch
is durable in the redo log before anything of it is applied, so whatever is found applied is in the log; and what the page tells
was applied before. Batches between the two may or may not be applied yet: what they touch is not compared.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from store.directory import JOB_CHECKPOINT, StoreDirectory
from store.inspect.verify.edge_files import EdgeFiles
from store.inspect.verify.files import (
    Array,
    Findings,
    Ints,
    SegmentFiles,
    check_names,
    list_directory,
    map_bytes,
    read_checked_json,
    slots_of,
)
from store.inspect.verify.redo import RedoScan, Replay, marker_pending
from store.io.pages import JOB_MAGIC, JobSlot
from store.records import ENTRY, ROW, STATE_MASK, State, queue_key_of, queue_offset_of, topic_of_key
from store.tables import queue_extents
from store.tables.consume_queue import REASON_SHIFT
from store.tables.queue_extents import SLOT
from store.tables.queue_files import topic_queue_name
from store.tables.redo_log import KIND_SHIFT, MARKER, NUMBER_MASK, REDO, TOTALS, RedoKind

NUMBERED: Final = ("check", "proposal", "discard", "quarantine")
_MARKER_FIELDS: Final = tuple(name for name in MARKER.names or () if name not in ("tag", "crc", "reserved", "totals"))
#: Page slot of each marker field that never goes down.
_PUBLISHED: Final = (
    (JobSlot.CHECK_END, "check_end"),
    (JobSlot.PROPOSAL_END, "proposal_end"),
    (JobSlot.DISCARD_END, "discard_end"),
    (JobSlot.QUARANTINE_END, "quarantine_end"),
    (JobSlot.ROUND_CHECK_START, "round_check_start"),
    (JobSlot.ROUND_NO, "round_no"),
    (JobSlot.OP_CURSOR, "op_cursor"),
    (JobSlot.SEQUENCE, "sequence"),
    (JobSlot.HALF_CURSOR, "half_cursor"),
    (JobSlot.SEQUENCE, "sequence"),
)
_USED_SLOTS: Final = {0, *range(JobSlot.TOTALS, JobSlot.TOTALS + len(TOTALS)), *slots_of(JobSlot)}
GENERATION_NAMES: Final = ("statetable", "topics", *NUMBERED, "catalogue")


class JobSide:
    """Reads the job's files; `compare` holds them against each other once the edge's are known, too."""

    def __init__(self, directory: StoreDirectory, findings: Findings) -> None:
        self.directory, self.findings = directory, findings
        self.geometry = directory.geometry
        self.page_path, self.checkpoint_path = directory.root / "job.published", directory.root / JOB_CHECKPOINT
        self.present = directory.transaction.exists() or self.page_path.exists() or self.checkpoint_path.exists()
        self.clean = False
        self.replay: Replay | None = None
        self.comparable = False
        #: Ids of halves before it are gone.
        self.half_floor = 0
        self.counts: dict[str, object] = {}
        if self.present:
            self._read()

    # --- reading ---
    def _read(self) -> None:
        self.checkpoint = self._read_checkpoint()
        self.clean = bool(self.checkpoint and self.checkpoint["clean"])
        self.page = self._read_page()
        self.generation = self._read_generation()
        self.root = self.directory.generation(self.generation)
        shape = self.geometry
        self.catalogue = SegmentFiles(self.root / "catalogue", queue_extents.SLOTS_PER_FILE * SLOT.itemsize, self.findings)
        self.extents = self._read_catalogue()
        self.table = SegmentFiles(self.root / "statetable" / "0", shape.state_segment_bytes, self.findings)
        self.redo_files = SegmentFiles(self.directory.redo_log(), shape.redo_segment_bytes, self.findings)
        self.scan = RedoScan(self.redo_files)
        self._check_redo_end()
        self.replay = Replay(self.scan, self.table.begin // ROW.itemsize)
        self._check_page()
        self.comparable = not self.scan.damaged

    def _read_checkpoint(self) -> dict[str, Any] | None:
        before = len(self.findings.problems())
        state = read_checked_json(self.checkpoint_path, self.findings)
        if state is None:
            if len(self.findings.problems()) == before and (self.directory.transaction / "CURRENT").exists():
                self.findings.note(self.checkpoint_path, "missing: the job will rebuild when it opens")
            return None
        wanted = {"generation", "redo_end", "marker", "ledger", "queues", "clean"}
        fields = {*_MARKER_FIELDS, "totals"}
        good = set(state) == wanted and isinstance(state["marker"], dict) and set(state["marker"]) == fields
        if not good or not isinstance(state["redo_end"], int) or not isinstance(state["clean"], bool):
            self.findings.add(self.checkpoint_path, 0, "does not have the fields of a job's checkpoint")
            return None
        return state

    def _read_page(self) -> Ints:
        content = map_bytes(self.page_path)
        if content is None or len(content) != 4096:
            size = 0 if content is None else len(content)
            self.findings.add(self.page_path, size, "missing" if content is None else f"has {size} bytes, not 4096")
            return np.zeros(512, np.int64)
        page = content.view("<i8").copy()
        if page[0] != JOB_MAGIC:
            self.findings.add(self.page_path, 0, "not a published page of the job: wrong magic")
        for slot in sorted(set(range(512)) - _USED_SLOTS):
            if page[slot]:
                self.findings.add(self.page_path, slot * 8, "a slot that nobody uses is not zero")
        return page

    def _read_generation(self) -> int:
        path = self.directory.transaction / "CURRENT"
        names = [name for name in list_directory(self.directory.transaction, self.findings) if name.startswith("generation-")]
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            if names:
                self.findings.add(path, 0, "missing, although there are generations")
            return 0
        text = content.decode("ascii", "replace").rstrip("\n").removeprefix("generation-")
        number = int(text) if text.isascii() and text.isdecimal() else 0
        if not number or content != self.directory.generation(number).name.encode() + b"\n":
            self.findings.add(path, 0, "does not name a generation")
        elif not self.directory.generation(number).is_dir():
            self.findings.add(path, 0, f"names {self.directory.generation(number).name}, which does not exist")
        for name in names:
            if number and name != self.directory.generation(number).name:
                self._leftover(self.directory.transaction / name)
        return number

    def _leftover(self, path: Path) -> None:
        what = "a generation that is not in force"
        if self.clean:
            self.findings.add(path, 0, f"{what}: the job removes it when it opens")
        else:
            self.findings.note(path, f"{what}: being built, or left over")

    def _read_catalogue(self) -> dict[int, tuple[int, int, int]]:
        """queue key → (begin, end, place of its slot), copied."""
        slots = self.catalogue.records(SLOT, 0, self.catalogue.end // SLOT.itemsize).copy()
        free = np.flatnonzero(slots["key_plus_1"] == 0)
        used = int(free[0]) if len(free) else len(slots)
        found: dict[int, tuple[int, int, int]] = {}
        for number, (key_plus_1, begin, end) in enumerate(slots[:used].tolist()):
            at = number * SLOT.itemsize
            if key_plus_1 < 0 or key_plus_1 - 1 in found:
                self.catalogue.add(at, "a queue that was named before" if key_plus_1 > 0 else "a queue key that does not exist")
                continue
            if not 0 <= begin <= end:
                self.catalogue.add(at + 8, f"begin {begin} and end {end} are no extent")
            found[key_plus_1 - 1] = (begin, end, at)
        if self.clean:
            self.catalogue.check_zero_from(used * SLOT.itemsize, "bytes behind the last slot are not zero")
        return found

    # --- redo log against page and checkpoint ---
    def _check_redo_end(self) -> None:
        end, state = self.scan.end * REDO.itemsize, self.checkpoint
        if state is None:
            return
        noted = int(state["redo_end"])
        if noted > end:
            self.scan.report(self.scan.end)
            return
        if self.clean and noted < end:
            self.findings.add(self.checkpoint_path, 0, f"a clean exit at {noted}, but the redo log goes on to {end}")
        if self.clean and noted == end:
            self.redo_files.check_zero_from(end, "bytes behind the last batch are not zero")
        if state["generation"] != self.generation and self.clean:
            reason = f"speaks of generation {state['generation']}, CURRENT of {self.generation}"
            self.findings.add(self.checkpoint_path, 0, reason)
        self._check_noted_marker(noted, state["marker"])

    def _check_noted_marker(self, noted: int, marker: dict[str, Any]) -> None:
        ends = (self.scan.starts + self.scan.counts) * REDO.itemsize + MARKER.itemsize
        at = np.flatnonzero(ends == noted)
        if len(at):
            found = self.scan.markers[at[0]]
        elif noted == self.scan.begin * REDO.itemsize and noted == 0:
            found = np.zeros(1, MARKER)[0]
        else:
            if not self.scan.damaged:
                self.findings.add(self.checkpoint_path, 0, f"redo_end {noted} is not the end of a batch")
            return
        for name in _MARKER_FIELDS:
            if marker[name] != int(found[name]):
                self.findings.add(self.checkpoint_path, 0, f"{name} is {marker[name]}, the redo log says {int(found[name])}")
        if [marker["totals"].get(name) for name in TOTALS] != found["totals"].tolist():
            self.findings.add(self.checkpoint_path, 0, "the totals are not those of the redo log")

    def _check_page(self) -> None:
        """The page against the last marker; `settled` becomes the number of batches that were applied when it was read."""
        assert self.replay is not None
        markers, last = self.scan.markers, self.replay.marker
        self.settled = len(markers) if self.clean else self._noted_batches()
        values = [(slot, name, last[name], markers[name]) for slot, name in _PUBLISHED]
        values += [
            (JobSlot.TOTALS + number, name, last["totals"][number], markers["totals"][:, number])
            for number, name in enumerate(TOTALS)
        ]
        if self.clean:
            values.append((JobSlot.NOW_MS, "now_ms", last["now_ms"], markers["now_ms"]))
        for slot, name, newest, column in values:
            value = int(self.page[slot])
            if value > int(newest) or (self.clean and value != int(newest)):
                if not self.scan.damaged:
                    self.findings.add(self.page_path, slot * 8, f"{name} is {value}, the redo log says {int(newest)}")
            elif name != "now_ms" and len(column) and value > 0:
                self.settled = max(self.settled, int(np.searchsorted(column, value)) + 1)
        if self.clean:
            self._check_page_alone()

    def _noted_batches(self) -> int:
        if self.checkpoint is None:
            return 0
        return int(np.searchsorted(self.scan.starts * REDO.itemsize, int(self.checkpoint["redo_end"])))

    def _check_page_alone(self) -> None:
        page = self.page
        low = self.checkpoint["ledger"]["low_water"] if self.checkpoint else [0, 0, 0]
        wanted = [
            (JobSlot.GENERATION, self.generation, "the generation in force"),
            (JobSlot.ROW_BEGIN, self.table.begin // ROW.itemsize, "the first row of the state table"),
            (JobSlot.LOG_LOW_WATER, low[0], "the checkpoint's low-water mark"),
            (JobSlot.HALF_LOW_WATER, low[1], "the checkpoint's low-water mark"),
            (JobSlot.OP_LOW_WATER, low[2], "the checkpoint's low-water mark"),
        ]
        for slot, value, what in wanted:
            if int(page[slot]) != value:
                self.findings.add(self.page_path, slot * 8, f"{int(page[slot])} is not {what} ({value})")
        if page[JobSlot.EPOCH] < 1:
            self.findings.add(self.page_path, JobSlot.EPOCH * 8, "the epoch is less than 1")

    # --- derived files against the redo log ---
    def compare(self, edge: EdgeFiles) -> None:
        """State table, queues and catalogue against the replay."""
        if not self.present or not self.comparable:
            return
        assert self.replay is not None
        self.half_floor = edge.half_floor
        self._compare_pending()
        self._compare_table()
        for name in NUMBERED:
            self._compare_numbered(name, edge)
        self._compare_topics(edge)
        self._check_directories()

    def _compare_pending(self) -> None:
        assert self.replay is not None
        replay = self.replay
        missing = np.flatnonzero(~replay.imaged)
        if self.scan.begin:
            # Of rows whose ids are gone no image need be left.
            missing = missing[missing + replay.row_begin >= self.half_floor]
        for row in missing.tolist():
            at = (row + replay.row_begin) * ROW.itemsize
            self.table.add(at, f"row {row + replay.row_begin} has no image in the redo log: a rebuild would lose it")
        pending, wanted = replay.pending(), marker_pending(replay.marker)
        if pending != wanted and len(self.scan.markers):
            at = int(self.scan.starts[-1] + self.scan.counts[-1]) * REDO.itemsize + 88
            self.redo_files.add(at, f"{pending} rows are pending, the totals say {wanted}")
        self.counts["pending"] = pending

    def _compare_table(self) -> None:
        assert self.replay is not None
        replay, first = self.replay, self.replay.row_begin
        if self.table.end < replay.half_cursor * ROW.itemsize and not self._forgiven(np.array([replay.half_cursor - 1]))[0]:
            self.table.add(self.table.end, f"the table ends here, before the cursor {replay.half_cursor}")
        rows_per_file = self.geometry.state_rows_per_file
        for start in self.table.starts:
            low = start // ROW.itemsize
            stop = min(low + rows_per_file, replay.half_cursor)
            found = self.table.records(ROW, low, max(low, stop))
            wanted = replay.rows[low - first : max(low, stop) - first]
            wrong = np.flatnonzero(found != wanted)
            # Rows whose ids are gone stay until their file goes. The redo log need not know them, nor a rebuild make them again.
            unjudged = (wrong + low < self.half_floor) & (~replay.imaged[wrong + low - first] | (found[wrong] == np.zeros(1, ROW)))
            wrong = wrong[~unjudged]
            if len(wrong):
                wrong = wrong[~self._forgiven(wrong + low)]
            for row in wrong.tolist():
                self._report_row(row + low, found[row], wanted[row])
        if self.clean:
            self.table.check_zero_from(replay.half_cursor * ROW.itemsize, "a row behind the cursor is not NONE")

    def _report_row(self, row: int, found: Any, wanted: Any) -> None:
        assert ROW.fields is not None
        for name in ROW.names or ():
            if found[name] != wanted[name]:
                reason = f"row {row}: {name} is {int(found[name])}, the redo log says {int(wanted[name])}"
                self.table.add(row * ROW.itemsize + ROW.fields[name][1], reason)

    def _forgiven(self, numbers: Ints) -> Any:
        """Rows that a batch touches which was perhaps being applied while we looked."""
        if self.clean:
            return np.zeros(len(numbers), bool)
        now = RedoScan(SegmentFiles(self.directory.redo_log(), self.geometry.redo_segment_bytes, Findings()))
        last = int(self.scan.markers["sequence"][self.settled - 1]) if self.settled else 0
        first = int(np.searchsorted(now.markers["sequence"], last, side="right"))
        entries = now.entries(first, len(now.starts))
        of_row = (entries["tag"] >> KIND_SHIFT) < RedoKind.QUARANTINE_OP
        return np.isin(numbers, (entries["tag"] & NUMBER_MASK)[of_row])

    def _settled_marker(self) -> Any:
        return self.scan.markers[self.settled - 1] if self.settled else np.zeros(1, MARKER)[0]

    def _rows_of(self, numbers: Ints) -> tuple[Array, Any]:
        """(rows, which of them are known) of halves."""
        assert self.replay is not None
        known = (numbers >= max(self.replay.row_begin, self.half_floor)) & (numbers < self.replay.half_cursor)
        known[known] = self.replay.imaged[numbers[known] - self.replay.row_begin]
        rows = np.zeros(len(numbers), ROW)
        rows[known] = self.replay.rows[numbers[known] - self.replay.row_begin]
        return rows, known

    @staticmethod
    def _op_entries(edge: EdgeFiles, numbers: Ints) -> tuple[Array, Any]:
        known = numbers >= edge.op_begin
        found = np.zeros(len(numbers), ENTRY)
        if known.any():
            first, last = int(numbers[known].min()), int(numbers.max())
            found[known] = edge.op_queue.records(ENTRY, first, last + 1)[numbers[known] - first]
        return found, known

    def _queue_files(self, name: str) -> SegmentFiles:
        segment_bytes = self.geometry.topic_queue_entries_per_file * ENTRY.itemsize
        return SegmentFiles(self.root / name, segment_bytes, self.findings, growing=True)

    def _compare_numbered(self, name: str, edge: EdgeFiles) -> None:
        """Check, proposal, discard or quarantine queue: entry n as the redo log places it."""
        assert self.replay is not None
        files, places = self._queue_files(name), self.replay.places[name]
        end = int(self._settled_marker()[f"{name}_end"])
        begin = max(files.begin // ENTRY.itemsize, places.first)
        if files.starts and self.clean:
            files.check_zero_from(end * ENTRY.itemsize, f"bytes behind the end of the {name} queue are not zero")
        if end <= begin:
            return
        if files.end < end * ENTRY.itemsize:
            files.add(files.end, f"the {name} queue ends here, before its entry {end - 1}")
            return
        chosen = slice(begin - places.first, end - places.first)
        numbers, states, of_op = places.numbers[chosen], places.states[chosen], places.of_op[chosen]
        rows, known = self._rows_of(numbers)
        wanted = np.zeros(len(numbers), ENTRY)
        wanted["commit_log_offset"], wanted["size_bytes"] = rows["commit_log_offset"], rows["size_bytes"]
        if of_op.any():
            wanted[of_op], known[of_op] = self._op_entries(edge, numbers[of_op])
        wanted["tags_code"] = np.where(of_op, -1 - numbers, numbers | (states << REASON_SHIFT))
        self._compare_entries(files, begin, wanted, known)

    def _compare_entries(self, files: SegmentFiles, begin: int, wanted: Array, known: Any) -> None:
        assert ENTRY.fields is not None
        found = files.records(ENTRY, begin, begin + len(wanted))
        # A rebuild leaves empty what was said of rows that retention had removed.
        empty = ~known & (found == np.zeros(1, ENTRY))
        for name in ENTRY.names or ():
            differs = (found[name] != wanted[name]) & ~empty
            if name != "tags_code":
                differs &= known
            for at in np.flatnonzero(differs).tolist():
                reason = f"entry {begin + at}: {name} is {int(found[name][at])}, the redo log says {int(wanted[name][at])}"
                files.add((begin + at) * ENTRY.itemsize + ENTRY.fields[name][1], reason)

    def _compare_topics(self, edge: EdgeFiles) -> None:
        """Every topic queue, entry by entry, and the catalogue's extents."""
        assert self.replay is not None
        replay = self.replay
        keys = queue_key_of(replay.position)
        firsts = np.flatnonzero(np.concatenate([[True], np.diff(keys) != 0])) if len(keys) else np.empty(0, np.int64)
        bounds = dict(zip(keys[firsts].tolist(), np.split(np.arange(len(keys)), firsts[1:]), strict=False))
        # What batches behind the settled ones place may not be there yet.
        settled_slot = self.scan.end if self.settled >= len(self.scan.starts) else int(self.scan.starts[self.settled])
        total = 0
        for key in sorted(set(bounds) | set(self.extents)):
            places = bounds.get(key, np.empty(0, np.int64))
            total += self._compare_topic(key, places, replay.slot[places] < settled_slot, edge)
        self.counts["topic_queues"], self.counts["topic_entries"] = len(self.extents), total

    def _compare_topic(self, key: int, places: Ints, settled: Any, edge: EdgeFiles) -> int:
        assert self.replay is not None
        offsets = queue_offset_of(self.replay.position[places])
        sure_end = int(offsets[settled].max()) + 1 if settled.any() else 0
        if key not in self.extents:
            if settled.any() and sure_end > 0:
                self.catalogue.add(0, f"topic queue {topic_queue_name(*topic_of_key(key))} is not in the catalogue")
            return 0
        begin, end, slot = self.extents[key]
        topic_no, queue_id = topic_of_key(key)
        # An earlier topic with this number may have had more queues: they are empty.
        earlier = topic_no < len(edge.editions) and edge.editions[topic_no] > 0 and begin == end
        if topic_no >= len(edge.queues) or (queue_id >= edge.queues[topic_no] and not earlier):
            self.catalogue.add(slot, f"topic {topic_no}, queue {queue_id}: no such queue")
            return 0
        if not len(places) and not self.scan.begin and self.clean:
            self.catalogue.add(slot, f"topic {topic_no}, queue {queue_id}: the redo log knows nothing of it")
        newest_end = int(offsets.max()) + 1 if len(offsets) else 0
        if end < sure_end or (len(offsets) and end > newest_end):
            self.catalogue.add(slot + 16, f"the queue ends at {end}, the redo log says {newest_end}")
            end = min(end, newest_end) if len(offsets) else end
        first_known = int(offsets.min()) if len(offsets) else end
        if begin > first_known and not self._retained(edge):
            self.catalogue.add(slot + 8, f"the queue begins at {begin}, the redo log says {first_known}")
        files = self._queue_files(topic_queue_name(*topic_of_key(key)))
        if self.clean:
            files.check_zero_from(end * ENTRY.itemsize, "bytes behind the end of the topic queue are not zero")
        # The job raises the begin before it removes a file: what the slot says now, after the files were listed, counts.
        begin = max(begin, int(self.catalogue.records(SLOT, slot // SLOT.itemsize, slot // SLOT.itemsize + 1)["begin"][0]))
        low = max(begin, files.begin // ENTRY.itemsize)
        if begin < files.begin // ENTRY.itemsize:
            self.catalogue.add(slot + 8, f"the queue begins at {begin}, its first file at {files.begin // ENTRY.itemsize}")
        if end > low and files.end < end * ENTRY.itemsize:
            files.add(files.end, f"the queue ends here, before its entry {end - 1}")
            return 0
        if end > low:
            chosen = (offsets >= low) & (offsets < end)
            self._compare_placed(files, low, end, places[chosen], edge)
        return end - begin

    def _retained(self, edge: EdgeFiles) -> bool:
        """Whether retention has ever moved a mark: only then may a queue begin behind its first entry."""
        low = self.checkpoint["ledger"]["low_water"] if self.checkpoint else (1,)
        return bool(self.page[JobSlot.MARKS_OP_CURSOR] or any(low) or edge.log.begin or self.scan.begin or self.table.begin)

    def _compare_placed(self, files: SegmentFiles, low: int, end: int, places: Ints, edge: EdgeFiles) -> None:
        """Entries low … end - 1: what the redo log knows, exactly; the others must be holes or point at a frame."""
        assert self.replay is not None
        kind, number = self.replay.kind[places], self.replay.number[places]
        wanted, known = np.zeros(len(places), ENTRY), np.ones(len(places), bool)
        of_half, of_message = kind == RedoKind.RELEASE, kind == RedoKind.MESSAGE
        rows, row_known = self._rows_of(number[of_half])
        wanted["commit_log_offset"][of_half], wanted["size_bytes"][of_half] = rows["commit_log_offset"], rows["size_bytes"]
        known[of_half] = row_known
        wanted[of_message], known[of_message] = self._op_entries(edge, number[of_message])
        wanted["tags_code"] = edge.tags_at(wanted["commit_log_offset"])
        wanted["commit_log_offset"][kind == RedoKind.HOLE] = -1
        wanted["tags_code"][kind == RedoKind.HOLE] = 0
        found = files.records(ENTRY, low, end)
        at = queue_offset_of(self.replay.position[places]) - low
        self._compare_known(files, low, found, at[known], wanted=wanted[known], log_begin=edge.log.begin)
        rest = np.ones(end - low, bool)
        rest[at[known]] = False
        self._check_unknown(files, low, found, np.flatnonzero(rest), edge)

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

    def _check_unknown(self, files: SegmentFiles, low: int, found: Array, at: Ints, edge: EdgeFiles) -> None:
        """Entries of which the redo log no longer tells, or never did (the place of a corrupt op stays empty)."""
        assert self.replay is not None
        entries = found[at]
        hole = (entries["size_bytes"] == 0) & (entries["tags_code"] == 0) & np.isin(entries["commit_log_offset"], (0, -1))
        gone = (entries["commit_log_offset"] >= 0) & (entries["commit_log_offset"] < edge.log.begin)
        lost = self.scan.begin > 0 or max(self.replay.row_begin, self.half_floor) > 0 or edge.op_begin > 0
        good = hole if not lost else hole | gone | edge.frames_known(entries["commit_log_offset"], entries["size_bytes"])
        for index in np.flatnonzero(~good).tolist():
            number = int(at[index]) + low
            files.add(number * ENTRY.itemsize, f"entry {number}: the redo log knows nothing of it")
        holes = int(np.count_nonzero(hole))
        corrupt_ops = int(np.count_nonzero(self.replay.places["quarantine"].of_op))
        if not lost and holes > corrupt_ops:
            number = int(at[np.argmax(hole)]) + low
            files.add(number * ENTRY.itemsize, f"entry {number}: empty, and no corrupt op explains it")

    def _check_directories(self) -> None:
        transaction = self.directory.transaction
        names = list_directory(transaction, Findings())
        check_names(transaction, ["CURRENT", "redolog", *(name for name in names if name.startswith("generation-"))], self.findings)
        check_names(transaction / "redolog", [self.directory.redo_log().parent.name], self.findings)
        check_names(self.directory.redo_log().parent, ["0"], self.findings)
        check_names(self.root, GENERATION_NAMES, self.findings)
        check_names(self.root / "statetable", ["0"], self.findings)
        if not self.clean:
            return
        topics: dict[str, list[str]] = {}
        for key in self.extents:
            topic_no, queue_id = topic_of_key(key)
            topics.setdefault(str(topic_no), []).append(str(queue_id))
        check_names(self.root / "topics", topics, self.findings)
        for topic, queues in topics.items():
            check_names(self.root / "topics" / topic, queues, self.findings)

    def states(self) -> dict[str, int]:
        """Rows by state, as the redo log gives them."""
        if self.replay is None:
            return {}
        counted = np.bincount(self.replay.rows["word"] & STATE_MASK, minlength=8)
        return {state.name: int(counted[state]) for state in State if counted[state]}
