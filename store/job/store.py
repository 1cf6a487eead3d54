"""The job's side of the store: settlement batches, made durable in the redo log and then applied.

Files it writes: redo log, state table, topic queues, check, proposal, discard and quarantine queue, catalogue, job.published,
job.checkpoint.

`job.checkpoint` (JSON and its CRC, replaced as a whole) says what recovery may rely on:
    generation   whose files it speaks of
    redo_end     everything before it is applied to them, durably
    marker       of the last batch before redo_end
    clean        true when the job closed in order: redo_end is then the end of the redo log
    ledger       what retention knows, see `retention.py`
    queues       [queue key, begin, end] of the topic queues: after retention the redo log alone does not tell them

Settling, in this order: room in the redo log → batch into the redo log, flush → rows → queues → publish. Everything after the
flush is
derived and may be done again: the values are absolute.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from store.directory import JOB_CHECKPOINT, Geometry, Lock, StoreDirectory
from store.errors import BatchBeyondCursor, Corrupt, CursorBeyondLog, FlushFailed, NoRoom, StoreUnusable
from store.io import disk, growing_files
from store.io.arrays import last_of_each
from store.io.pages import JOB_MAGIC, EdgeSlot, JobSlot, PublishedPage
from store.job.retention import Ledger
from store.progress import Progress, no_progress
from store.read.readers import LogReader
from store.records import ENTRY, ROW, State, pack_words, queue_key_of, queue_offset_of, state_of, topic_of_key
from store.tables import names as dictionary
from store.tables import redo_log
from store.tables.consume_queue import REASON_SHIFT, GrowingQueue, make_entries
from store.tables.names import Dictionary
from store.tables.queue_extents import Catalogue
from store.tables.queue_files import QueueFiles, topic_queue_name
from store.tables.redo_log import MARKER_ENTRIES, REDO, TOTALS, Marker, RedoKind, RedoLog, kinds_of, numbers_of
from store.tables.state_table import StateTable

_CHECKPOINT_KEYS: Final = ("generation", "redo_end", "marker", "ledger", "clean")
#: Replaying this many entries takes well under two seconds.
CHECKPOINT_ENTRIES: Final = 2_000_000
_ROW_KINDS: Final = np.zeros(256, bool)
_ROW_KINDS[[int(kind) for kind in RedoKind if kind not in (RedoKind.IMAGE_REST, RedoKind.QUARANTINE_OP, RedoKind.MESSAGE)]] = True

#: Queues whose entries are numbered in the marker; after a rebuild they may begin with holes (size 0).
NUMBERED_QUEUES: Final = ("check", "proposal", "discard", "quarantine")

Array = np.ndarray[Any, Any]
Ints = npt.NDArray[np.int64]
TOTAL_OF_STATE: Final = {State.DISCARDED_MAX: "discards_max", State.DISCARDED_EXPIRED: "discards_expired"}


class Batch:
    """One settlement batch under construction: entries and the marker that will close them. Touches no disk."""

    def __init__(self, before: Marker, *, half_cursor: int, op_cursor: int, now_ms: int) -> None:
        self.before = before
        self.marker = before.copy()
        self.marker.half_cursor, self.marker.op_cursor, self.marker.now_ms = half_cursor, op_cursor, now_ms
        self.marker.sequence += 1
        self._parts: list[Array] = []

    @property
    def entries(self) -> Array:
        return np.concatenate(self._parts) if self._parts else np.empty(0, REDO)

    def _add(self, kind: RedoKind, numbers: Any, words: Any, positions: Any) -> None:
        if len(numbers):
            self._parts.append(redo_log.make_entries(kind, numbers, words, positions))

    def _places(self, queue: str, count: int) -> Ints:
        """The next `count` places of one of the four numbered queues."""
        end: int = getattr(self.marker, f"{queue}_end")
        setattr(self.marker, f"{queue}_end", end + count)
        return np.arange(end, end + count, dtype=np.int64)

    def begin_round(self, round_no: int) -> None:
        """Check entries from here on belong to this round; the earlier ones have lapsed."""
        self.marker.round_no, self.marker.round_check_start = round_no, self.marker.check_end

    def prepare(self, halves: Array) -> Array:
        """New rows for halves (records.HALF). The rows. Corrupt ones keep their number as QUARANTINED."""
        rows = rows_of_halves(halves)
        self._image(halves["half_offset"], rows)
        corrupt = np.flatnonzero(halves["corrupt"])
        if len(corrupt):
            positions = self._places("quarantine", len(corrupt))
            self._add(RedoKind.QUARANTINE, halves["half_offset"][corrupt], rows["word"][corrupt], positions)
        self.marker.totals["prepares"] += len(halves)
        self.marker.totals["quarantined"] += len(corrupt)
        return rows

    def _image(self, half_offsets: Any, rows: Array) -> None:
        if len(rows):
            self._parts.append(redo_log.make_images(half_offsets, rows))

    def set_words(self, half_offsets: Any, words: Any) -> None:
        """Rows whose word changes and nothing else: a roll-back is counted with `roll_back`, an asked half here."""
        self._add(RedoKind.ROW, half_offsets, words, -1)

    def release(self, half_offsets: Any, words: Any, positions: Any) -> None:
        self._add(RedoKind.RELEASE, half_offsets, words, positions)
        self.marker.totals["commits"] += len(half_offsets)

    def roll_back(self, half_offsets: Any, words: Any) -> None:
        self._add(RedoKind.ROW, half_offsets, words, -1)
        self.marker.totals["rollbacks"] += len(half_offsets)

    def hole(self, half_offsets: Any, words: Any, positions: Any) -> None:
        """Commits of quarantined halves: their place stays empty for good."""
        self._add(RedoKind.HOLE, half_offsets, words, positions)

    def discard(self, half_offsets: Any, words: Any, states: Ints) -> None:
        """Discard ops read back, in log order: the halves go to the discard queue with the reason, DISCARDED_MAX or
        DISCARDED_EXPIRED."""
        places = self._places("discard", len(half_offsets)) | (states << REASON_SHIFT)
        self._add(RedoKind.DISCARD, half_offsets, words, places)
        for state, name in TOTAL_OF_STATE.items():
            self.marker.totals[name] += int(np.count_nonzero(states == int(state)))

    def resume(self, half_offsets: Any, rows: Array, *, reopened: int) -> None:
        """Rows that are pending (again) with a new stored time; `reopened` of them were discarded before."""
        self._image(half_offsets, rows)
        self.marker.totals["resumes"] += reopened

    def tell_again(self, half_offsets: Any, rows: Array) -> None:
        """Rows as they are, so that the redo log need not keep the batch that told them before."""
        self._image(half_offsets, rows)

    def check(self, half_offsets: Any, words: Any) -> None:
        """Check requests for these halves go into the check queue."""
        self._add(RedoKind.CHECK, half_offsets, words, self._places("check", len(half_offsets)))

    def propose_discard(self, half_offsets: Any, words: Any, states: Any) -> None:
        """Proposals for the edge, which turns each into a discard op unless the half has ended meanwhile."""
        places = self._places("proposal", len(half_offsets)) | (np.asarray(states, np.int64) << REASON_SHIFT)
        self._add(RedoKind.PROPOSE, half_offsets, words, places)

    def quarantine_ops(self, op_offsets: Any) -> None:
        """Corrupt ops, reported to the edge."""
        self._add(RedoKind.QUARANTINE_OP, op_offsets, 0, self._places("quarantine", len(op_offsets)))

    def release_again(self, half_offsets: Any, words: Any) -> None:
        """Ended halves whose message Kafka refused: the same effect once more, counted before."""
        states = np.asarray(state_of(words), np.int64)
        committed = states == int(State.COMMITTED)
        self._add(RedoKind.RELEASE, half_offsets[committed], words[committed], -1)
        self._add(RedoKind.DISCARD, half_offsets[~committed], words[~committed], states[~committed] << REASON_SHIFT)

    def messages(self, op_offsets: Any, sizes: Any, positions: Any) -> None:
        """Ordinary messages, released without a half."""
        self._add(RedoKind.MESSAGE, op_offsets, sizes, positions)
        self.marker.totals["messages"] += len(op_offsets)


def rows_of_halves(halves: Array) -> Array:
    """The first row of each half."""
    rows = np.empty(len(halves), ROW)
    for name in ("commit_log_offset", "size_bytes", "stored_at_s", "group_no"):
        rows[name] = halves[name]
    state = np.where(halves["corrupt"] != 0, int(State.QUARANTINED), int(State.PREPARED))
    rows["word"] = pack_words(state, 0, halves["immunity_s"], 0, 0)
    return rows


def apply_rows(table: StateTable, ledger: Ledger, entries: Array) -> None:
    """What redo entries say of rows."""
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


@dataclass(slots=True)
class JobRecovery:
    """What opening had to do."""

    clean: bool = False
    rebuilt: bool = False
    reason: str = ""
    entries_replayed: int = 0
    cut_at: int = 0


class JobStore:
    """One process opens it at a time, and one thread uses it. The edge is opened first: it says how far the log reaches."""

    generation: int
    root: Path
    marker: Marker
    ledger: Ledger
    table: StateTable
    catalogue: Catalogue
    _unflushed: int
    _begins_for: int

    def __init__(
        self,
        root: Path,
        *,
        geometry: Geometry | None = None,
        rebuild: bool = False,
        checkpoint_entries: int = CHECKPOINT_ENTRIES,
        progress: Progress = no_progress,
    ) -> None:
        self.directory = StoreDirectory(root, geometry, create=False)
        self.checkpoint_entries = checkpoint_entries
        self._lock = Lock(root / "job.lock", "the settling job of this store")
        try:
            self.log = LogReader(self.directory)
            shape = self.directory.geometry
            self.redo = RedoLog(self.directory.redo_log(), shape.redo_entries_per_file, writable=True)
            self.page = PublishedPage(root / "job.published", JOB_MAGIC, writable=True)
            self.recovery = JobRecovery()
            self.generation = 0
            self._names = Dictionary(root / dictionary.NAME)
            #: Numbers of removed topics whose files are gone.
            self._dropped: set[int] = set()
            self._failed: StoreUnusable | None = None
            #: Told that the disk is full: wait and answer True to try again, or False, and the batch fails.
            self.no_room: Callable[[NoRoom], bool] = lambda _: False
            self._recover(rebuild, progress)
        except BaseException:
            self._lock.release()
            raise

    # --- settling -------------------------------------------------------------------------------------------------------
    def batch(self, *, half_cursor: int, op_cursor: int, now_ms: int) -> Batch:
        """Begin a batch that will move the cursors to these values."""
        if half_cursor < self.marker.half_cursor or op_cursor < self.marker.op_cursor:
            raise BatchBeyondCursor(
                f"cursors go forward only: {half_cursor}, {op_cursor} after {self.marker.half_cursor}, {self.marker.op_cursor}"
            )
        return Batch(self.marker, half_cursor=half_cursor, op_cursor=op_cursor, now_ms=now_ms)

    def commit(self, batch: Batch) -> None:
        """1 redo log, flushed · 2 applied · 3 published · 4 now and then a checkpoint."""
        self._refuse_after_failure()
        if batch.before is not self.marker:
            raise BatchBeyondCursor("the batch was begun before another one was committed")
        entries = batch.entries
        try:
            self._with_room(lambda: self.redo.append(entries, batch.marker))  # 1
            self._with_room(lambda: self._apply(entries, self.marker, batch.marker))  # 2
            self._with_room(self._extend_catalogue)
        except BaseException as error:
            # The redo log may be ahead of what is applied: only recovery can tell.
            self._failed = error if isinstance(error, StoreUnusable) else StoreUnusable(f"interrupted while settling: {error!r}")
            raise
        self._unflushed += len(entries) + MARKER_ENTRIES
        self._publish()  # 3
        if self._unflushed >= self.checkpoint_entries:  # 4
            try:
                self.checkpoint()
            except NoRoom:  # the redo log is whole all the same; only the next recovery takes longer
                self._unflushed = self.checkpoint_entries * 3 // 4

    def _with_room(self, step: Callable[[], None]) -> None:
        """Try a step again as long as `no_room` says so. Both steps of a batch may be: values and places are absolute."""
        while True:
            try:
                return step()
            except NoRoom as error:
                if not self.no_room(error):
                    raise

    def _refuse_after_failure(self) -> None:
        if self._failed is not None:
            raise StoreUnusable(f"refused since an earlier failure: {self._failed}") from self._failed

    def _apply(self, entries: Array, before: Marker, marker: Marker) -> None:
        with disk.failpoint("apply.rows"):
            apply_rows(self.table, self.ledger, entries)
        with disk.failpoint("apply.queues"):
            self._apply_queues(entries, marker)
        self.ledger.touch_logs(self.log, before, marker)
        self.marker = marker

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
            # The frame stays as long as the row: without it a repeated roll-back could not be answered "already".
            rows = self.table.get(numbers[ended])
            self.ledger.touch_places(rows["commit_log_offset"][rows["size_bytes"] > 0], marker.now_ms)
            self.ledger.touch_rows(numbers[ended], marker.now_ms)

    def _point_at_halves(self, name: str, half_offsets: Ints, entries: Array, marker: Marker) -> None:
        rows = self.table.get(half_offsets)
        tags, positions = half_offsets, entries["position"]
        if name != "check":
            tags, positions = (
                half_offsets | (positions >> REASON_SHIFT << REASON_SHIFT),
                positions & ((1 << REASON_SHIFT) - 1),
            )
        if name == "discard":
            self.ledger.touch_places(rows["commit_log_offset"], marker.now_ms)
            self.ledger.touch_rows(half_offsets, marker.now_ms)
        self._queue(name).scatter(positions, make_entries(rows["commit_log_offset"], rows["size_bytes"], tags))

    def _quarantine(self, kinds: Array, numbers: Ints, positions: Ints) -> None:
        of_half = kinds == RedoKind.QUARANTINE
        found = np.zeros(len(numbers), ENTRY)
        rows = self.table.get(numbers[of_half])
        found["commit_log_offset"][of_half], found["size_bytes"][of_half] = (
            rows["commit_log_offset"],
            rows["size_bytes"],
        )
        found[~of_half] = self._op_entries(numbers[~of_half])
        found["tags_code"] = np.where(of_half, numbers, -1 - numbers)
        self._queue("quarantine").scatter(positions, found)

    def _release(self, kinds: Array, numbers: Ints, positions: Ints, marker: Marker) -> None:
        found = np.zeros(len(numbers), ENTRY)
        of_half = kinds == RedoKind.RELEASE
        rows = self.table.get(numbers[of_half])
        found["commit_log_offset"][of_half], found["size_bytes"][of_half] = (
            rows["commit_log_offset"],
            rows["size_bytes"],
        )
        of_message = kinds == RedoKind.MESSAGE
        found[of_message] = self._op_entries(numbers[of_message])
        body = found["size_bytes"] > 0
        found["tags_code"][body] = self.log.tags_codes(found["commit_log_offset"][body])
        found["commit_log_offset"][~body] = -1
        self.ledger.touch_places(found["commit_log_offset"][body], marker.now_ms)
        self.ledger.touch_rows(numbers[kinds != RedoKind.MESSAGE], marker.now_ms)
        # By queue, and within it by place: one sort, then a write for each run of places.
        order = last_of_each(positions)
        self._release_runs(positions[order], found[order])

    def _release_runs(self, positions: Ints, entries: Array) -> None:
        """Entries at ascending positions. There may be tens of thousands of queues: little is done for each of them."""
        starts = np.flatnonzero(np.diff(positions, prepend=-2) != 1)
        stops = np.append(starts[1:], len(positions))
        keys, firsts = queue_key_of(positions[starts]), queue_offset_of(positions[starts])
        # A replay: what lies before a queue's begin, retention has taken.
        gone = np.clip(self.catalogue.begins(keys) - firsts, 0, stops - starts)
        starts, firsts = starts + gone, firsts + gone
        size, content, grown = ENTRY.itemsize, memoryview(entries.tobytes()), self._grown
        for key, first, start, stop in zip(keys.tolist(), firsts.tolist(), starts.tolist(), stops.tolist(), strict=True):
            if start < stop:
                self._queue(topic_queue_name(*topic_of_key(key))).file.write(first * size, content[start * size : stop * size])
                begin, end = grown.get(key, (first, 0))
                grown[key] = begin, max(end, first + stop - start)

    def _op_entries(self, op_offsets: Ints) -> Array:
        """Entries of the op queue; holes where it no longer reaches back."""
        found = np.zeros(len(op_offsets), ENTRY)
        there = op_offsets >= self.log.op_queue.begin
        if there.any():
            first = int(op_offsets[there].min())
            found[there] = self.log.op_queue.read(first, int(op_offsets.max()) + 1)[op_offsets[there] - first]
        return found

    def _queue(self, name: str) -> GrowingQueue:
        return self._queues.queue(name)

    def _extend_catalogue(self) -> None:
        self.catalogue.extend_many(self._grown)
        self._grown.clear()

    def _publish(self) -> None:
        marker, page = self.marker, self.page
        self._extend_catalogue()
        for slot, value in (
            (JobSlot.CHECK_END, marker.check_end),
            (JobSlot.PROPOSAL_END, marker.proposal_end),
            (JobSlot.DISCARD_END, marker.discard_end),
            (JobSlot.QUARANTINE_END, marker.quarantine_end),
            (JobSlot.ROUND_CHECK_START, marker.round_check_start),
            (JobSlot.ROUND_NO, marker.round_no),
            (JobSlot.ROW_BEGIN, self.table.begin),
            (JobSlot.LOG_LOW_WATER, self.ledger.log_low_water),
            (JobSlot.HALF_LOW_WATER, self.ledger.half_low_water),
            (JobSlot.OP_LOW_WATER, self.ledger.op_low_water),
            (JobSlot.SEQUENCE, marker.sequence),
            (JobSlot.NOW_MS, marker.now_ms),
            (JobSlot.GENERATION, self.generation),
            (JobSlot.OP_CURSOR, marker.op_cursor),
            (JobSlot.HALF_CURSOR, marker.half_cursor),
        ):
            page[slot] = value
        for number, name in enumerate(TOTALS):
            page[JobSlot.TOTALS + number] = marker.totals[name]

    def heartbeat(self, now_ms: int) -> None:
        self.page[JobSlot.HEARTBEAT_MS] = now_ms

    # --- checkpoint, retention, close -----------------------------------------------------------------------------------
    def checkpoint(self, *, clean: bool = False) -> None:
        """Flush what is derived and note how far recovery may rely on it."""
        self._refuse_after_failure()
        try:
            self._flush_derived()
        except FlushFailed as error:
            # The pages may be lost while they look clean: no later checkpoint may vouch for them.
            self._failed = error
            raise
        state = {
            "generation": self.generation,
            "redo_end": self.redo.end,
            "marker": redo_log.marker_to_dict(self.marker),
            "ledger": self.ledger.to_dict(),
            "queues": [(key, *self.catalogue.extent(key)) for key in self.catalogue.queue_keys()],
            "clean": clean,
        }
        disk.write_json(self.directory.root / JOB_CHECKPOINT, state, JOB_CHECKPOINT)
        self._unflushed = 0

    def _flush_derived(self) -> None:
        self.table.flush()
        self._queues.flush()
        self.catalogue.file.flush()

    def retain(self, now_ms: int, retention_ms: int, leapt_ms: int = 0) -> dict[str, int]:
        """Delete this side's files that nobody needs, and publish how far the edge may delete its own (see retention.py).
        `leapt_ms`: by how much the clock leapt within the last retention_ms."""
        # Rows go one cycle after their ids: the edge has said that it accepts no more ops about halves before HALF_BEGIN (it may
        # have accepted a resume after this side last looked), and all that it accepted before is settled.
        half_begin, (_, op_end) = self.log.page[EdgeSlot.HALF_BEGIN], self.log.ends()
        before = self.ledger.low_water
        low = self.ledger.advance(self, now_ms, retention_ms, leapt_ms)
        if self.ledger.low_water != before:
            try:
                self.checkpoint()  # a begin that no mark accounts for is damage
            except StoreUnusable:
                self.ledger.log_low_water, self.ledger.half_low_water, self.ledger.op_low_water = before
                raise
        # Before the checkpoint, which makes the begins durable and notes them: files go only behind a begin that stays.
        moved = self.ledger.log_low_water != self._begins_for
        if moved:
            self._raise_begins()
        first_row = min(half_begin, low) if self.marker.op_cursor >= op_end else self.table.begin
        removed = {"state": self.table.remove_before(first_row)}
        self.checkpoint()
        removed["redo"] = self._retain_redo(max(first_row, self.table.begin))
        removed["topics"] = self._retain_numbered() + (self._retain_topics() if moved else 0) + self._drop_removed()
        self._begins_for = self.ledger.log_low_water
        # The marks may have gone back: their cursor is published last, so that the edge never takes old marks for new ones.
        self._publish()
        self.page[JobSlot.MARKS_OP_CURSOR] = self.marker.op_cursor
        return removed

    def _retain_redo(self, first_row: int) -> int:
        """A redo file goes when a rebuild without it gives the same: no batch begins in it, or none that speaks of a row (from
        first_row on) or an ordinary message that is still there. The last batch stays, for its marker."""
        keep = self.redo.end
        for batch in self.redo.batches(self.redo.first_batch(), None):
            keep = batch.redo_offset
            if redo_log.speaks_of(batch.entries, first_row, self.ledger.op_low_water):
                break
        return self.redo.file.remove_before(keep)

    def _raise_begins(self) -> None:
        for queue_key in self.catalogue.queue_keys():
            begin, end = self.catalogue.extent(queue_key)
            queue = self._queue(topic_queue_name(*topic_of_key(queue_key)))
            self.catalogue.raise_begin(queue_key, self.ledger.first_readable(queue, begin, end))

    def _retain_topics(self) -> int:
        removed = 0
        for queue_key in self.catalogue.queue_keys():
            queue = self._queue(topic_queue_name(*topic_of_key(queue_key)))
            removed += queue.remove_before(self.catalogue.extent(queue_key)[0])
        return removed

    def _drop_removed(self) -> int:
        """Files of the queues of removed topics. Their extents stay: the next topic with the number goes on behind them. Before the
        marks are published: the number is another's only when the edge has deleted up to them."""
        names = self._names
        names.refresh()
        found = 0
        for topic_no in names.removed.keys() - self._dropped:
            found += self._queues.remove_topic(topic_no)
        self._dropped = set(names.removed)
        return found

    def _retain_numbered(self) -> int:
        removed = 0
        for name in NUMBERED_QUEUES:
            queue = self._queue(name)
            end = getattr(self.marker, f"{name}_end")
            if queue.file.starts() and end > queue.begin:
                removed += queue.remove_before(self.ledger.first_kept(queue, queue.begin, end))
        return removed

    def close(self) -> None:
        """Flush, note a clean exit, let go of the lock."""
        try:
            if self._failed is None:
                self.checkpoint(clean=True)
        finally:
            self._release_files()
            self._lock.release()

    def _close_generation(self) -> None:
        if self.generation:
            self.table.close()
            self.catalogue.close()
            self._queues.close()

    def _release_files(self) -> None:
        self._close_generation()
        self.redo.close()
        self.log.close()
        self._names.close()

    def __enter__(self) -> JobStore:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._release_files()
            self._lock.release()

    # --- recovery -------------------------------------------------------------------------------------------------------
    def _recover(self, rebuild: bool, progress: Progress) -> None:
        """1 checkpoint · 2 replay the redo log behind it · 3 cut its torn tail · 4 validate, or rebuild · 5 compare with the
        log · 6 publish, and note it all in a new checkpoint."""
        try:
            state = disk.read_json(self.directory.root / JOB_CHECKPOINT, _CHECKPOINT_KEYS)
            reason = "" if state else "there is no checkpoint"
        except Corrupt as error:
            state, reason = None, str(error)
        noted = state
        try:
            generation = self.directory.current_generation()
        except Corrupt as error:
            generation, state, reason = None, None, str(error)
        if state is not None and state["generation"] != generation:
            reason = f"the checkpoint speaks of generation {state['generation']}, not {generation}"
            state = None
        if rebuild:
            state, reason = None, "asked for"
        fresh = generation is None and noted is None and not self.redo.file.starts() and not self.directory.generations()
        if state is not None:
            reason = self._resume_from(state, progress)
        if reason and not fresh:
            self._rebuild(reason, noted, progress)
        elif fresh:
            self._open_generation(1, Marker(), Ledger(self.directory.geometry))
            self.directory.switch_generation(1)
        if not self.recovery.clean:
            self.redo.cut(self.redo.end)  # 3
        self._compare_with_log()  # 5
        self._publish()  # 6
        self.checkpoint()
        self._queues.doubtful = False
        self._remove_other_generations()
        self.page[JobSlot.EPOCH] += 1

    def _open_generation(self, number: int, marker: Marker, ledger: Ledger) -> None:
        self.root = self.directory.generation(number)
        self.marker, self.ledger = marker, ledger
        disk.make_directory(self.root)
        shape = self.directory.geometry
        self.table = StateTable(self.root / "statetable" / "0", shape.state_rows_per_file, writable=True)
        self.catalogue = Catalogue(self.root / "catalogue", writable=True)
        self._queues = QueueFiles(self.root, shape.topic_queue_entries_per_file, writable=True)
        # Until recovery has flushed it all: whoever was here before may have died before the names of its files were durable.
        self._queues.doubtful = True
        #: Queues that got entries: (where the first of them lies, the end), by queue key, until the catalogue has it.
        self._grown: dict[int, tuple[int, int]] = {}
        #: The log's low-water mark by which queues were last looked through: only another one moves their begins.
        self._begins_for = -1
        self._unflushed = 0
        self._first_row = 0
        self.generation = number  # last: where one of its parts cannot be opened there is none to close

    def _resume_from(self, state: dict[str, Any], progress: Progress) -> str:
        """Steps 2 and 4 from a checkpoint; "" or why it cannot be trusted."""
        self.recovery.clean = bool(state["clean"])
        marker, start = redo_log.marker_from_dict(state["marker"]), int(state["redo_end"])
        try:
            self._open_generation(int(state["generation"]), marker, Ledger.from_dict(self.directory.geometry, state["ledger"]))
            if marker.half_cursor > self.table.allocated:
                return f"the state table ends at row {self.table.allocated}, before the cursor {marker.half_cursor}"
            if start > self.redo.file.end:
                return f"the redo log's files end at {self.redo.file.end}, before {start}"
            noted = {int(key): (int(begin), int(end)) for key, begin, end in state.get("queues", [])}
            if doubt := self._doubt_of_queues(noted):
                return doubt
            self.table.count_pending()
            self._replay(start, marker.sequence, progress)
        except Corrupt as error:
            return str(error)
        if doubt := self._doubt_of_catalogue(noted):
            return doubt
        if self.page[JobSlot.SEQUENCE] > self.marker.sequence:
            return f"batch {self.page[JobSlot.SEQUENCE]} was applied, the redo log ends with {self.marker.sequence}"
        if self.table.pending != self.marker.pending:
            return f"{self.table.pending} rows are pending, {self.marker.pending} should be"
        return ""

    def _doubt_of_queues(self, noted: dict[int, tuple[int, int]]) -> str:
        """Why the queues are not what the checkpoint knew, before anything is written to them; "" where they are: each of their
        files is there and as long as what was written to it."""
        extents = {topic_queue_name(*topic_of_key(key)): extent for key, extent in noted.items() if extent[0] < extent[1]}
        if any(self.catalogue.extent(key)[1] < end for key, (_, end) in noted.items()):
            return "the catalogue lacks a queue, or a queue's end, that the checkpoint knows"
        extents |= {name: (0, end) for name in NUMBERED_QUEUES if (end := getattr(self.marker, f"{name}_end"))}
        for name, (begin, end) in extents.items():
            # Retention takes what lies before a begin, and of numbered queues what nobody needs: only their front may be gone.
            first, reach = growing_files.extent_of(
                self.root / name, self.directory.geometry.topic_queue_entries_per_file * ENTRY.itemsize
            )
            if reach < end * ENTRY.itemsize or (name not in NUMBERED_QUEUES and first > begin * ENTRY.itemsize):
                return f"{self.root / name}: a file is missing or cut off before entry {end}"
        return ""

    def _doubt_of_catalogue(self, noted: dict[int, tuple[int, int]]) -> str:
        """Why the catalogue cannot be right after the replay; "" where it can: no queue reaches further than was released to it."""
        for key in self.catalogue.queue_keys():
            known, extent = noted.get(key, (0, 0)), self.catalogue.extent(key)
            end = max(known[1], self._grown.get(key, (0, 0))[1])
            if extent[1] > end or not 0 <= extent[0] <= extent[1] or (self.recovery.clean and noted and extent != known):
                return f"{self.root / 'catalogue'}: queue {key} is {extent}, the redo log ends it at {end}"
        return ""

    def _replay(self, start: int, sequence: int | None, progress: Progress) -> None:
        """Apply all valid batches behind `start`, many at a time."""
        self.redo.end = start
        window: list[redo_log.RedoBatch] = []
        size, total = 0, max(self.redo.file.end - start, 1)
        for batch in self.redo.batches(start, sequence):
            window.append(batch)
            size += len(batch.entries)
            if size >= RedoLog.WINDOW_ENTRIES:
                self._apply_window(window[:-1])
                progress(batch.end - start, total, "replaying the redo log")
                window, size = window[-1:], 0
        self._apply_window(window[:-1])
        for last in window[-1:]:
            # Its writer may have died before its flush, or of a failed one. Nothing may be applied that is not durable.
            self.redo.file.rewrite(last.redo_offset, last.end)
            self.redo.file.flush()
        self._apply_window(window[-1:])
        self.recovery.cut_at = self.redo.end

    def _apply_window(self, window: list[redo_log.RedoBatch]) -> None:
        if window:
            entries = window[0].entries if len(window) == 1 else np.concatenate([batch.entries for batch in window])
            if self._first_row:
                entries = entries[redo_log.about(entries, self._first_row, 0)]
            self._apply(entries, self.marker, window[-1].marker)
            self.redo.end = window[-1].end
            self.recovery.entries_replayed += len(entries)

    def _rebuild(self, reason: str, noted: dict[str, Any] | None, progress: Progress) -> None:
        """State table and queues from the redo log, in a generation of their own that is switched to when it is whole."""
        self.recovery.clean, self.recovery.rebuilt, self.recovery.reason = False, True, reason
        # A number that was never in force: readers of an earlier one must notice.
        number = max(self.directory.likely_generation() or 0, int(noted["generation"]) if noted else 0) + 1
        shutil.rmtree(self.directory.generation(number), ignore_errors=True)
        self._close_generation()
        self._open_generation(number, Marker(), Ledger(self.directory.geometry))
        # Batches that are kept for later rows may speak of rows that retention has removed: they stay removed.
        self._first_row = self.log.page[EdgeSlot.HALF_BEGIN]
        start = self.redo.first_batch()
        self._replay(start, 0 if start == 0 else None, progress)
        if self.marker.half_cursor > self.table.allocated:  # no row is left, but the next one has its place
            self.table.ensure(self.marker.half_cursor - 1, self.marker.half_cursor)
        if self.table.pending != self.marker.pending:
            reason = f"replayed to {self.table.pending} pending rows, its last marker says {self.marker.pending}"
            raise Corrupt(self.redo.file.directory, self.redo.end, reason)
        self._extend_catalogue()
        # Entries that only removed redo files told of are holes: whoever reads up to the published end must find a file there.
        for name in NUMBERED_QUEUES:
            if end := getattr(self.marker, f"{name}_end"):
                self._queue(name).reach(end)
        # Messages that retention has taken from the log are not offered again.
        self.ledger.log_low_water = max(self.log.log.file.begin, self.page[JobSlot.LOG_LOW_WATER])
        self._raise_begins()
        self._retain_topics()
        self._retain_numbered()
        if noted is not None and self.marker.sequence >= max(noted["marker"]["sequence"], self.page[JobSlot.SEQUENCE]):
            self._keep_extents(noted.get("queues", []))
        self._flush_derived()
        self.directory.switch_generation(number)

    def _keep_extents(self, queues: list[tuple[int, int, int]]) -> None:
        """A topic's offsets never start again and its begin never goes back: retention may have taken the redo entries that tell.
        (Only where the redo log is whole: otherwise what is settled again must find its place.)"""
        known = set(self.catalogue.queue_keys())
        for queue_key, begin, end in queues:
            if queue_key in known:
                self._queue(topic_queue_name(*topic_of_key(queue_key))).reach(end)
                self.catalogue.extend(queue_key, begin, end)
                self.catalogue.raise_begin(queue_key, begin)
            else:
                self.catalogue.extend(queue_key, end, end)

    def _compare_with_log(self) -> None:
        half_end, op_end = self.log.ends()
        if self.marker.half_cursor > half_end or self.marker.op_cursor > op_end:
            raise CursorBeyondLog(
                f"{self.directory.root}: settled up to half {self.marker.half_cursor} and op {self.marker.op_cursor}, but the log "
                f"ends at half {half_end} and op {op_end}: an older log was put here, or the edge has not been opened since the "
                "machine failed. Open the edge first; if this stays, restore a whole backup (escrow store restore)"
            )

        if self.marker.half_cursor < self.log.half_queue.begin or self.marker.op_cursor < self.log.op_queue.begin:
            raise Corrupt(
                self.redo.file.directory,
                self.redo.end,
                f"{self.redo.stop_reason}: the redo log can be read up to half {self.marker.half_cursor} and op "
                f"{self.marker.op_cursor} only, and the logs no longer reach back that far; restore a backup "
                "(escrow store restore)",
            )

    def _remove_other_generations(self) -> None:
        for name in sorted(os.listdir(self.directory.transaction)):
            if name.startswith("generation-") and name != self.root.name:
                shutil.rmtree(self.directory.transaction / name, ignore_errors=True)
