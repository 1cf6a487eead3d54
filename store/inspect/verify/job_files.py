"""Verify, the job's files: page, checkpoint, catalogue and redo log are read and checked here, the state table is opened.

Order of reading, so that a running job is no problem: page and catalogue, then the redo log, then what is derived from it. A batch
is durable in the redo log before anything of it is applied, so whatever is found applied is in the redo log; and what the page
says was applied before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from store.arrays import Ints
from store.directory import JOB_CHECKPOINT, StoreDirectory
from store.inspect.verify.files import Findings, SegmentFiles, list_directory, map_bytes, read_checked_json, slots_of
from store.inspect.verify.redo import RedoScan, Replay
from store.io.pages import JOB_MAGIC, JOB_PUBLISHED, JobSlot
from store.records import ENTRY, ROW, STATE_MASK, State
from store.tables import queue_extents
from store.tables.queue_extents import SLOT
from store.tables.redo_log import MARKER, REDO, TOTALS

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


class JobFiles:
    """The job's files, open for reading, and the replay of the redo log."""

    def __init__(self, directory: StoreDirectory, findings: Findings) -> None:
        self.directory, self.findings = directory, findings
        self.geometry = directory.geometry
        self.page_path, self.checkpoint_path = directory.root / JOB_PUBLISHED, directory.root / JOB_CHECKPOINT
        self.present = directory.transaction.exists() or self.page_path.exists() or self.checkpoint_path.exists()
        self.clean = False
        self.replay: Replay | None = None
        #: Whether the redo log is whole, so that what is derived can be held against it.
        self.comparable = False
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
        given = set(state) - {"queue_crcs", "redo_crcs"}  # earlier releases write none
        good = given == wanted and isinstance(state["marker"], dict) and set(state["marker"]) == fields
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
                self.findings.add(self.page_path, slot * 8, "an unused slot is not zero")
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
                self.catalogue.add(at + 8, f"begin {begin} and end {end} are not an extent")
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
            self.findings.add(self.checkpoint_path, 0, f"a clean exit at {noted}, but the redo log ends at {end}")
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

    # --- for the checks ---
    def queue(self, name: str) -> SegmentFiles:
        """The files of a topic queue or of a numbered queue."""
        segment_bytes = self.geometry.topic_queue_entries_per_file * ENTRY.itemsize
        return SegmentFiles(self.root / name, segment_bytes, self.findings, growing=True)

    def states(self) -> dict[str, int]:
        """Rows by state, as the redo log gives them."""
        if self.replay is None:
            return {}
        counted = np.bincount(self.replay.rows["word"] & STATE_MASK, minlength=8)
        return {state.name: int(counted[state]) for state in State if counted[state]}
