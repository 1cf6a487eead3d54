"""A shard in Kafka mode: the rows of one half partition, derived from its redo partition. Row number = Kafka offset of the half.

    shard.lock          held by its writer
    shard.checkpoint    JSON and its CRC, replaced as a whole: how far the files can be relied on
    statetable/0/       see state_table.py; rows of offsets that hold no half stay NONE

shard.checkpoint:
    marker          of the last batch before redo_offset
    redo_offset     batches before it in the redo partition are in the files, durably
    term            the highest that was seen
    generation      of the shard's transactional id, the highest that was seen
    groups          names of producer groups, by number; "" where the name is not known here
    undeliverable   ended halves whose message cannot be released now, see undeliverable.py
    touches         [file number, ms]: the last change of each state file
    topic_ids       what Kafka calls the topics that the offsets belong to, by name

Nothing here is truth. Batches are applied in the order of the redo partition; values are absolute, so those behind the
checkpoint are applied again after an unclean exit. Where files and redo partition do not fit together: `wipe`, and apply from its
beginning.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from store.arrays import Array, Ints
from store.directory import Geometry, Lock
from store.errors import Corrupt, NoRoom
from store.io import disk
from store.job.apply import apply_rows
from store.job.batch import Batch
from store.job.retention import Ledger
from store.job.undeliverable import Refusal, Undeliverables
from store.records import State, state_of
from store.tables import redo_log
from store.tables.redo_log import Marker, RedoKind, kinds_of, numbers_of
from store.tables.state_table import StateTable

CHECKPOINT: Final = "shard.checkpoint"
CHECKPOINT_ENTRIES: Final = 2_000_000
#: A number that no group has.
NO_GROUP: Final = 0x7FFF_FFFF
#: States in which a half's group still decides something: a discarded one can be resumed.
_OPEN: Final = np.array([int(state) for state in (State.PREPARED, State.DISCARDED_MAX, State.DISCARDED_EXPIRED)])

#: Rows of one batch that tells old rows again.
TOLD_AGAIN_ROWS: Final = 1 << 18


class ShardStore:
    """One process opens it at a time, and one thread uses it."""

    table: StateTable
    marker: Marker

    def __init__(self, root: Path, rows_per_file: int, *, checkpoint_entries: int = CHECKPOINT_ENTRIES) -> None:
        disk.make_directory(root)
        self.root, self._rows_per_file, self._checkpoint_entries = root, rows_per_file, checkpoint_entries
        #: Told when the disk is full; True: try again. `has_room`: told when a step that had to wait has succeeded.
        self.no_room: Callable[[NoRoom], bool] = lambda _: False
        self.has_room: Callable[[], None] = lambda: None
        self._lock = Lock(root / "shard.lock", "the settling job of this shard")
        try:
            self._open(disk.read_json(root / CHECKPOINT, ("marker",)))
        except Corrupt:
            self._open(None)
        except BaseException:
            self._lock.release()
            raise

    def _open(self, state: dict[str, Any] | None) -> None:
        if state is None:  # rows without a checkpoint are worth nothing
            shutil.rmtree(self.root / "statetable", ignore_errors=True)
        state = state or {}
        self.marker = redo_log.marker_from_dict(state["marker"]) if state else Marker()
        self.redo_offset = int(state.get("redo_offset", 0))
        self.term, self.generation = int(state.get("term", 0)), int(state.get("generation", 0))
        self.topic_ids: dict[str, str] = dict(state.get("topic_ids", {}))
        self.groups: list[str] = list(state.get("groups", []))
        self._numbers = {name: number for number, name in enumerate(self.groups) if name}
        self._untold: dict[int, str] = {}
        self.next_group = len(self.groups)  # the number that the next new group gets
        self.undeliverable = Undeliverables.from_rows(state.get("undeliverable", []))
        self.ledger = Ledger(Geometry(state_rows_per_file=self._rows_per_file))
        self.ledger.state_touch = {int(file): int(at) for file, at in state.get("touches", [])}
        self.table = StateTable(self.root / "statetable" / "0", self._rows_per_file, writable=True)
        self.table.count_pending()
        self._unflushed = 0

    def wipe(self) -> None:
        """Forget everything; what comes next is the beginning of the redo partition."""
        self.table.close()
        (self.root / CHECKPOINT).unlink(missing_ok=True)
        self._open(None)

    @property
    def sound(self) -> bool:
        """Whether the rows are those that the last marker speaks of. Tells nothing before the redo partition is read to its end."""
        return self.table.pending == self.marker.pending

    # --- groups ---------------------------------------------------------------------------------------------------------------
    # A row holds its group's number. Each batch carries the names of all numbers that its row images use, so a name stays in the
    # redo partition exactly as long as the rows that need it. Numbers are never given twice: a marker carries the next free one,
    # because a rebuild does not see names that no row in the redo partition uses.
    def group_no(self, name: str) -> int:
        """The number of a group; the batch that uses a new one tells it to others (`names_for`)."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = self.next_group
            self._untold[number] = name
            self.next_group += 1
        return number

    def known_group(self, name: str) -> int:
        """The number of a group; NO_GROUP where no half of it was ever here: an op cannot make one known."""
        return self._numbers.get(name, NO_GROUP)

    def names_for(self, entries: Array) -> list[tuple[int, str]]:
        """(number, name) of the groups that a batch has to tell: those of its row images, and new ones."""
        wanted = {number: self._name_of(number) for number in redo_log.group_numbers(entries).tolist()}
        return sorted((wanted | self._untold).items())

    def all_names(self) -> list[tuple[int, str]]:
        """(number, name) of every group that is known."""
        known = {number: name for number, name in enumerate(self.groups) if name}
        return sorted((known | self._untold).items())

    def _name_of(self, number: int) -> str:
        name = self._untold.get(number) or (self.groups[number] if number < len(self.groups) else "")
        if not name:
            raise Corrupt(self.root, self.redo_offset, f"the name of producer group number {number} is not known")
        return name

    def nameless(self) -> tuple[int, int] | None:
        """(half_offset, group number) of a row that may still be checked or ended and whose group's name is not known."""
        known = np.array([bool(name) for name in self.groups], np.bool_)
        for file_no in self.table.file_numbers():
            rows = self.table.rows_of(file_no)
            open_rows = np.flatnonzero(np.isin(state_of(rows["word"]), _OPEN))
            numbers = rows["group_no"][open_rows]
            good = (numbers >= 0) & (numbers < len(known))
            good[good] = known[numbers[good]]
            bad = np.flatnonzero(~good)
            if len(bad):
                return file_no * self._rows_per_file + int(open_rows[bad[0]]), int(numbers[bad[0]])
        return None

    def _learn(self, groups: Iterable[tuple[int, str]], next_group: int, redo_offset: int) -> None:
        """Names are placed by number; those between them are not known."""
        for number, name in groups:
            self.groups += [""] * (number + 1 - len(self.groups))
            if self.groups[number] not in ("", name):
                raise Corrupt(
                    self.root,
                    redo_offset,
                    f"producer group number {number} is {self.groups[number]!r} here and {name!r} in the redo partition: the "
                    "numbers of one of them were given again. Empty this directory to have it rebuilt from the redo topic",
                )
            self.groups[number] = name
            self._numbers[name] = number
            self._untold.pop(number, None)
        self.next_group = max(self.next_group, next_group, len(self.groups))

    # --- batches --------------------------------------------------------------------------------------------------------------
    def batch(self, *, half_cursor: int, op_cursor: int, now_ms: int) -> Batch:
        """Begin a batch that will move the cursors to these values."""
        return Batch(self.marker, half_cursor=half_cursor, op_cursor=op_cursor, now_ms=now_ms)

    def apply(
        self,
        entries: Array,
        marker: Marker,
        groups: Iterable[tuple[int, str]],
        refused: Iterable[tuple[int, Refusal]],
        redo_offset: int,
        *,
        next_group: int = 0,
        topic_ids: Mapping[str, str] | None = None,
    ) -> None:
        """A batch as it was read from the redo partition; `redo_offset` is behind its marker."""
        if marker.sequence <= self.marker.sequence:
            self.redo_offset = max(self.redo_offset, redo_offset)
            return
        # The first batch of an empty shard may have any sequence: retention takes the beginning of the redo partition.
        if self.marker.sequence and marker.sequence != self.marker.sequence + 1:
            raise Corrupt(self.root, redo_offset, f"batch {marker.sequence} of the redo partition follows {self.marker.sequence}")
        with disk.failpoint("apply.rows"):
            self._learn(groups, next_group, redo_offset)
            self.topic_ids.update(topic_ids or {})
            self._with_room(lambda: apply_rows(self.table, self.ledger, entries))
            kinds, numbers = kinds_of(entries), numbers_of(entries)
            self.ledger.touch_rows(numbers[kinds != RedoKind.QUARANTINE_OP], marker.now_ms)
            self._note_refused(numbers, kinds, dict(refused), marker.now_ms)
        self.marker, self.redo_offset = marker, redo_offset
        self._unflushed += len(entries) + 1
        if self._unflushed >= self._checkpoint_entries:
            try:
                self.checkpoint()
            except NoRoom:  # the redo partition has it all; only the next start takes longer
                self._unflushed = self._checkpoint_entries * 3 // 4

    def _with_room(self, step: Callable[[], None]) -> None:
        """Repeat a step as long as `no_room` says so. It may be repeated: values are absolute."""
        waited = False
        while True:
            try:
                step()
                break
            except NoRoom as error:
                waited = True
                if not self.no_room(error):
                    raise
        if waited:
            self.has_room()

    def _note_refused(self, numbers: Array, kinds: Array, refused: dict[int, Refusal], now_ms: int) -> None:
        if len(self.undeliverable) or refused:
            done = (kinds == RedoKind.RELEASE) | (kinds == RedoKind.DISCARD) | (kinds == RedoKind.IMAGE)
            self.undeliverable.note(numbers[done].tolist(), refused, now_ms)

    def pending_by_group(self) -> dict[str, tuple[int, int]]:
        """By producer group: how many halves are pending, and the second at which the oldest was stored."""
        found: dict[int, tuple[int, int]] = {}
        for file_no in self.table.scannable():
            rows = self.table.rows_of(file_no)
            at = np.flatnonzero(state_of(rows["word"]) == int(State.PREPARED))
            numbers, where, counts = np.unique(rows["group_no"][at], return_inverse=True, return_counts=True)
            oldest = np.full(len(numbers), np.iinfo(np.int64).max, np.int64)
            np.minimum.at(oldest, where, rows["stored_at_s"][at].astype(np.int64))
            for number, count, stored_at_s in zip(numbers.tolist(), counts.tolist(), oldest.tolist(), strict=True):
                before = found.get(number, (0, stored_at_s))
                found[number] = before[0] + count, min(before[1], stored_at_s)
        return {self._name_of(number): told for number, told in found.items()}

    def pending_since_before(self, stored_at_s: int, most: int = TOLD_AGAIN_ROWS) -> Iterator[Ints]:
        """Half offsets that are pending and were stored before that second, in pieces of limited size."""
        for file_no in self.table.scannable():
            for first in range(0, self._rows_per_file, most):
                rows = self.table.rows_of(file_no)[first : first + most]
                old = (state_of(rows["word"]) == int(State.PREPARED)) & (rows["stored_at_s"] < stored_at_s)
                if old.any():
                    yield np.flatnonzero(old) + (file_no * self._rows_per_file + first)

    # --- checkpoint, retention, close -------------------------------------------------------------------------------------------
    def checkpoint(self) -> None:
        self.table.flush()
        state = {
            "marker": redo_log.marker_to_dict(self.marker),
            "redo_offset": self.redo_offset,
            "term": self.term,
            "generation": self.generation,
            "topic_ids": self.topic_ids,
            "groups": self.groups + [""] * (self.next_group - len(self._untold) - len(self.groups)),
            "undeliverable": self.undeliverable.to_rows(),
            "touches": sorted(self.ledger.state_touch.items()),
        }
        disk.write_json(self.root / CHECKPOINT, state, CHECKPOINT)
        self._unflushed = 0

    def retain(self, now_ms: int, retention_ms: int, leapt_ms: int = 0) -> int:
        """Remove state files from the front that are full, hold nothing pending or undeliverable, and were not touched for long."""
        self.ledger.not_ahead_of(now_ms)
        kept = min(self.undeliverable, default=1 << 62) // self._rows_per_file
        keep = self.table.begin
        for file_no in self.table.file_numbers():
            touched_ms = self.ledger.state_touch.get(file_no, now_ms)
            whole = (file_no + 1) * self._rows_per_file <= self.marker.half_cursor
            age_ms = now_ms - leapt_ms - touched_ms
            if not whole or self.table.pending_by_file.get(file_no) or file_no >= kept or age_ms <= retention_ms:
                break
            keep = (file_no + 1) * self._rows_per_file
        removed = self.table.remove_before(keep)
        if removed:
            self.checkpoint()
        return removed

    def close(self, *, clean: bool = True) -> None:
        try:
            if clean:
                self.checkpoint()
        finally:
            self.table.close()
            self._lock.release()
