"""Verify, the redo log: every batch against its CRC and the one before, and a replay of all of them in memory.

The replay is written a second time here, apart from `store/job`, so that verify does not repeat a mistake made there.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from store.arrays import Array, Ints
from store.inspect.verify.files import SegmentFiles
from store.records import ROW, STATE_MASK, State
from store.tables.redo_log import KIND_SHIFT, MARKER, MARKER_ENTRIES, MARKER_KIND, NUMBER_MASK, REDO, TOTALS, RedoKind

#: Marker fields that never go down from one batch to the next.
RISING: Final = (
    "half_cursor",
    "op_cursor",
    "round_no",
    "round_check_start",
    "check_end",
    "proposal_end",
    "discard_end",
    "quarantine_end",
)
_ROW_KINDS: Final = np.zeros(256, bool)
_ROW_KINDS[[1, 2, 4, 5, 6, 7, 8, 9]] = True
_STATES_OF_KIND: Final = {
    RedoKind.RELEASE: (State.COMMITTED, State.MEMBER),
    RedoKind.HOLE: (State.QUARANTINED, State.MEMBER),
    RedoKind.CHECK: (State.PREPARED,),
    RedoKind.PROPOSE: (State.PREPARED,),
    RedoKind.QUARANTINE: (State.QUARANTINED,),
}
_KIND_OF_QUEUE: Final = {
    "check": RedoKind.CHECK,
    "proposal": RedoKind.PROPOSE,
    "discard": RedoKind.DISCARD,
    "quarantine": RedoKind.QUARANTINE,
}
#: Queues whose places carry the reason of a discard.
_WITH_REASON: Final = frozenset({"proposal", "discard"})
#: Kinds that may speak of a member.
_MEMBER_KINDS: Final = (RedoKind.IMAGE, RedoKind.RELEASE, RedoKind.HOLE)
#: Columns of `_counts` beside the kinds, which end below: discards by reason, and what a word's state sets apart.
_BY_REASON: Final = 16
_RELEASED_MEMBERS, _NEW_MEMBERS, _SET_ASIDE = 24, 25, 26
_WINDOW_ENTRIES: Final = 1 << 20
_NUMBER_BITS: Final = (1 << KIND_SHIFT) - 1


@dataclass(slots=True)
class Places:
    """What the redo log says about one of the four numbered queues: entries first … first + len(numbers) - 1."""

    first: int = 0
    numbers: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    states: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    of_op: Any = field(default_factory=lambda: np.empty(0, bool))


class RedoScan:
    """The valid batches of a redo log. Numbers are those of 20-byte slots, from the beginning of the address space."""

    def __init__(self, files: SegmentFiles) -> None:
        self.files = files
        self.damaged = False
        #: Slots where a batch should begin and does not, and why.
        self.damage: list[tuple[int, str]] = []
        starts: list[int] = []
        slots: list[int] = []
        raw: list[bytes] = []
        self._candidates = self._find_candidates()
        at = self.begin = self._first_batch()
        while (slot := self._batch_at(at)) >= 0 or (at := self._behind_damage(at)) >= 0:
            if slot >= 0:
                starts.append(at)
                slots.append(slot)
                raw.append(self._raw(slot, MARKER_ENTRIES).tobytes())
                at = slot + MARKER_ENTRIES
        self.starts = np.array(starts, np.int64)
        self.counts = np.array(slots, np.int64) - self.starts
        self.markers = np.frombuffer(b"".join(raw), MARKER)
        #: Slot behind the last valid batch.
        self.end = int(slots[-1]) + MARKER_ENTRIES if slots else self.begin

    def _raw(self, slot: int, count: int) -> Any:
        return self.files.read(slot * REDO.itemsize, count * REDO.itemsize)

    def _find_candidates(self) -> dict[int, list[int]]:
        """Slots that look like a marker, by the slot where their batch would begin."""
        found: dict[int, list[int]] = {}
        for start in self.files.starts:
            content = self.files.segment(start)
            assert content is not None
            tags = np.frombuffer(content, REDO)["tag"]
            slots = np.flatnonzero((tags >> KIND_SHIFT) == MARKER_KIND)
            numbers = tags[slots] & NUMBER_MASK
            slots = slots + start // REDO.itemsize
            for first, slot in zip((slots - numbers).tolist(), slots.tolist(), strict=True):
                found.setdefault(first, []).append(slot)
        return found

    def _batch_at(self, at: int) -> int:
        """Slot of the marker of the valid batch that begins here, or -1."""
        for slot in self._candidates.get(at, ()):
            if self._fits(at, slot):
                return slot
        return -1

    def _fits(self, at: int, slot: int) -> bool:
        marker = self._raw(slot, MARKER_ENTRIES)
        crc = zlib.crc32(self._raw(at, slot - at), (at * REDO.itemsize) & 0xFFFFFFFF)
        crc = zlib.crc32(marker[12:], zlib.crc32(b"\0\0\0\0", zlib.crc32(marker[:8], crc)))
        return crc == int(marker[8:12].view("<u4")[0])

    def _next_valid(self, at: int) -> int:
        for start in sorted(start for start in self._candidates if start > at):
            if self._batch_at(start) >= 0:
                return start
        return -1

    def _first_batch(self) -> int:
        begin = self.files.begin // REDO.itemsize
        if begin == 0 or self._batch_at(begin) >= 0:
            return begin
        # Retention took the beginning of the batch that ran over into the first file: its marker, which ends right before the
        # first whole batch, lies partly before the file or counts entries that do.
        first = self._next_valid(begin)
        marker = first - MARKER_ENTRIES
        before = [at for at, slots in self._candidates.items() if marker in slots]
        return first if first >= 0 and (marker < begin or min(before, default=begin) < begin) else begin

    def _behind_damage(self, at: int) -> int:
        """The next valid batch behind a place without one: that place is then damaged. -1 if there is none: the log ends there."""
        following = self._next_valid(at)
        if following >= 0:
            self.report(at)
        return following

    def report(self, at: int) -> None:
        reason = (
            "a batch whose CRC does not match" if at in self._candidates else "not a batch: no marker that counts these entries"
        )
        self.files.add(at * REDO.itemsize, reason)
        self.damage.append((at, reason))
        self.damaged = True

    def entries(self, first: int, stop: int) -> Array:
        """Entries of batches first … stop - 1, one after another, without their markers."""
        parts = [
            np.frombuffer(self._raw(int(start), int(count)).tobytes(), REDO)
            for start, count in zip(self.starts[first:stop], self.counts[first:stop], strict=True)
        ]
        return np.concatenate(parts) if parts else np.empty(0, REDO)


class Replay:
    """State rows, releases and queue places as the batches of a scan give them; and whether the batches agree with each other."""

    def __init__(self, scan: RedoScan, row_begin: int) -> None:
        self.scan, self.row_begin = scan, row_begin
        self.files = scan.files
        self.half_cursor = int(scan.markers["half_cursor"][-1]) if len(scan.markers) else 0
        count = max(0, self.half_cursor - row_begin)
        self.rows = np.zeros(count, ROW)
        self.imaged, self.resumed = np.zeros(count, bool), np.zeros(count, bool)
        self.places = {name: Places() for name in _KIND_OF_QUEUE}
        self._released: list[tuple[Ints, Ints, Any, Ints]] = []
        self._queued: dict[str, list[tuple[Ints, Ints, Ints, Any]]] = {name: [] for name in self.places}
        self._before = np.zeros(1, MARKER)
        if scan.begin and len(scan.markers):
            self._before = self._guess_before()
        self._check_markers()
        first = 0
        while first < len(scan.starts):
            reach = np.searchsorted(np.cumsum(scan.counts[first:]), _WINDOW_ENTRIES) + 1
            stop = min(len(scan.starts), first + int(reach))
            self._window(first, stop)
            first = stop
        self._finish()

    # --- markers ---
    def _guess_before(self) -> Array:
        """The marker before the first batch that is left: only its sequence and the sums of what the first batch adds are known."""
        before = self.scan.markers[:1].copy()
        before["sequence"] -= 1
        entries = self.scan.entries(0, 1)
        kinds = (entries["tag"] >> KIND_SHIFT).astype(np.int64)
        counts = _counts(entries, kinds, np.zeros(len(kinds), np.int64), 1)
        for name, amount in _queue_deltas(counts).items():
            before[name] -= amount
        for number, amount in _total_deltas(counts).items():
            before["totals"][:, number] -= amount
        images = kinds == RedoKind.IMAGE
        # New rows are the run of images that ends at the cursor.
        numbers = np.unique((entries["tag"] & NUMBER_MASK)[images])
        cursor = int(before["half_cursor"][0])
        run = 0
        while run < len(numbers) and numbers[len(numbers) - 1 - run] == cursor - 1 - run:
            run += 1
        before["half_cursor"] -= run
        before["totals"][:, 0] -= run - counts[0, _NEW_MEMBERS]
        return before

    def _marker_offset(self, number: int) -> int:
        return int(self.scan.starts[number] + self.scan.counts[number]) * REDO.itemsize

    def _check_markers(self) -> None:
        markers = np.concatenate([self._before, self.scan.markers])
        wrong = [(np.diff(markers["sequence"]) != 1, "sequence", "its sequence does not follow the batch before")]
        wrong += [(np.diff(markers[name]) < 0, name, f"{name} goes back") for name in RISING]
        wrong += [
            (self.scan.markers["reserved"] != 0, "reserved", "reserved bytes are not zero"),
            (
                self.scan.markers["round_check_start"] > self.scan.markers["check_end"],
                "check_end",
                "the round begins behind the queue",
            ),
            (self.scan.markers["totals"][:, 0] > self.scan.markers["half_cursor"], "totals", "more prepares than halves"),
        ]
        for mask, name, reason in wrong:
            for number in np.flatnonzero(mask).tolist():
                if name == "sequence" and self.scan.damaged:
                    continue
                assert MARKER.fields is not None
                self.files.add(self._marker_offset(number) + MARKER.fields[name][1], f"batch: {reason}")

    # --- entries ---
    def _window(self, first: int, stop: int) -> None:
        scan = self.scan
        entries, counts = scan.entries(first, stop), scan.counts[first:stop]
        batch = np.repeat(np.arange(stop - first), counts)
        begins = np.concatenate([[0], np.cumsum(counts)[:-1]])
        slots = np.repeat(scan.starts[first:stop] - begins, counts) + np.arange(len(entries))
        kinds, numbers = (entries["tag"] >> KIND_SHIFT).astype(np.int64), entries["tag"] & NUMBER_MASK
        markers = np.concatenate([scan.markers[first - 1 : first] if first else self._before, scan.markers[first:stop]])
        self._check_entries(entries, kinds, numbers, slots, batch=batch, markers=markers)
        if not self.scan.damaged:
            self._check_counts(_counts(entries, kinds, batch, stop - first), markers, first)
        self._apply_images(entries, kinds, numbers, slots, markers["half_cursor"][:-1][batch])
        self._apply_words(entries, kinds, numbers)
        self._collect(entries, kinds, numbers, slots)

    def _wrong(self, slots: Ints, chosen: Any, at: int, reason: str) -> None:
        for slot in slots[chosen].tolist():
            self.files.add(slot * REDO.itemsize + at, reason)

    def _check_entries(self, entries: Array, kinds: Ints, numbers: Ints, slots: Ints, *, batch: Ints, markers: Array) -> None:
        self._wrong(slots, (kinds < 1) | (kinds > 11), 7, "an entry of a kind that does not exist")
        of_op = (kinds == RedoKind.MESSAGE) | (kinds == RedoKind.QUARANTINE_OP)
        limit = np.where(of_op, markers["op_cursor"][1:][batch], markers["half_cursor"][1:][batch])
        self._wrong(slots, numbers >= limit, 0, "speaks of a record that lies behind the batch's own cursor")
        states = (entries["word"] & STATE_MASK).astype(np.int64)
        for kind, possible in _STATES_OF_KIND.items():
            wrong = (kinds == kind) & ~np.isin(states, possible)
            self._wrong(slots, wrong, 8, f"{kind.name} with a word that is not {possible[0].name}")
        illegal = _ROW_KINDS[kinds & 255] & ((states == 0) | ((states == State.MEMBER) & ~np.isin(kinds, _MEMBER_KINDS)))
        self._wrong(slots, illegal, 8, "a word with a state that does not exist")
        self._wrong(slots, (kinds == RedoKind.ROW) & (entries["position"] != -1), 12, "ROW with a position")
        rest = np.flatnonzero(kinds == RedoKind.IMAGE_REST)
        image = np.flatnonzero(kinds == RedoKind.IMAGE)
        paired = len(rest) == len(image) and bool((rest == image + 1).all())
        if not paired or bool((numbers[rest] != numbers[image]).any()):
            self.files.add(int(slots[0]) * REDO.itemsize, "images and their second halves do not pair in the batches from here on")
            self.scan.damaged = True

    def _check_counts(self, counts: Ints, markers: Array, first: int) -> None:
        """What each marker adds to the one before must be what its batch holds."""
        for name, amount in _queue_deltas(counts).items():
            for number in np.flatnonzero(np.diff(markers[name]) != amount).tolist():
                assert MARKER.fields is not None
                self.files.add(self._marker_offset(first + number) + MARKER.fields[name][1], f"batch: {name} is not what it holds")
        totals = np.diff(markers["totals"], axis=0)
        new = np.diff(markers["half_cursor"]) - counts[:, _NEW_MEMBERS]
        for number in np.flatnonzero(totals[:, 0] != new).tolist():
            self.files.add(self._marker_offset(first + number) + 88, "batch: prepares are not its new halves but for members")
        for column, amount in _total_deltas(counts).items():
            for number in np.flatnonzero(totals[:, column] != amount).tolist():
                at = self._marker_offset(first + number) + 88 + 8 * column
                self.files.add(at, f"batch: the total of {TOTALS[column]} is not what it holds")

    def _apply_images(self, entries: Array, kinds: Ints, numbers: Ints, slots: Ints, cursor_before: Ints) -> None:
        image = np.flatnonzero(kinds == RedoKind.IMAGE)
        if self.scan.damaged or not len(image):
            return
        new = numbers[image] >= cursor_before[image]
        distinct, where = np.unique(numbers[image][new], return_index=True)
        if len(distinct) and len(distinct) != distinct[-1] - distinct[0] + 1:
            gap = int(np.flatnonzero(np.diff(distinct) != 1)[0])
            slot = int(slots[image[new][where[gap + 1]]])
            self.files.add(slot * REDO.itemsize, f"rows are not consecutive: half {int(distinct[gap]) + 1} has no image")
        again = np.ones(len(image), bool)
        again[np.flatnonzero(new)[where]] = False
        kept = (numbers[image] >= self.row_begin) & (numbers[image] < self.half_cursor)
        at = numbers[image] - self.row_begin
        self.resumed[at[kept & again]] = True
        self.imaged[at[kept]] = True
        chosen = _last_of_each(at, kept)
        rest = entries[image[chosen] + 1]
        rows = self.rows
        rows["commit_log_offset"][at[chosen]] = entries["position"][image[chosen]]
        rows["size_bytes"][at[chosen]] = rest["word"].astype(np.int64)
        rows["stored_at_s"][at[chosen]] = rest["position"] >> 32
        rows["group_no"][at[chosen]] = (rest["position"] & 0xFFFFFFFF).astype(np.uint32).view(np.int32)

    def _apply_words(self, entries: Array, kinds: Ints, numbers: Ints) -> None:
        kept = _ROW_KINDS[kinds & 255] & (numbers >= self.row_begin) & (numbers < self.half_cursor)
        chosen = _last_of_each(numbers, kept)
        self.rows["word"][numbers[chosen] - self.row_begin] = entries["word"][chosen]

    def _collect(self, entries: Array, kinds: Ints, numbers: Ints, slots: Ints) -> None:
        released = (kinds == RedoKind.RELEASE) | (kinds == RedoKind.HOLE) | (kinds == RedoKind.MESSAGE)
        if released.any():
            self._released.append((entries["position"][released], numbers[released], kinds[released], slots[released]))
        for name, kind in _KIND_OF_QUEUE.items():
            chosen = (kinds == kind) | ((kinds == RedoKind.QUARANTINE_OP) if kind == RedoKind.QUARANTINE else False)
            if not chosen.any():
                continue
            position = entries["position"][chosen]
            places = position & _NUMBER_BITS if name in _WITH_REASON else position
            states = position >> KIND_SHIFT if name in _WITH_REASON else np.zeros(len(position), np.int64)
            self._queued[name].append((places, numbers[chosen], states, kinds[chosen] == RedoKind.QUARANTINE_OP))
            if name in _WITH_REASON:
                bad = ~np.isin(states, (State.DISCARDED_MAX, State.DISCARDED_EXPIRED))
                self._wrong(slots[chosen], bad, 19, "the reason is not a discard")

    def _finish(self) -> None:
        parts = self._released or [(np.empty(0, np.int64),) * 4]
        position, number, kind, slot = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(position, kind="stable")
        #: All places of topic queues, sorted: position, half_offset or op_offset, kind, slot in the redo log.
        self.position, self.number, self.kind, self.slot = position[order], number[order], kind[order], slot[order]
        for again in (np.flatnonzero(np.diff(self.position) == 0) + 1).tolist():
            self.files.add(int(self.slot[again]) * REDO.itemsize + 12, "the second message at one place of a topic queue")
        self._check_ended_once()
        for name in self.places:
            self._finish_queue(name)
        self._released, self._queued = [], {}

    def _check_ended_once(self) -> None:
        of_half = np.flatnonzero(self.kind != RedoKind.MESSAGE)
        order = of_half[np.argsort(self.slot[of_half], kind="stable")]
        _, first = np.unique(self.number[order], return_index=True)
        again = np.delete(order, first)
        self._wrong(self.slot, again, 0, "the half is released a second time")
        kept = of_half[self.number[of_half] >= self.row_begin]
        states = self.rows["word"][self.number[kept] - self.row_begin] & STATE_MASK
        wanted = np.where(self.kind[kept] == RedoKind.RELEASE, int(State.COMMITTED), int(State.QUARANTINED))
        wrong = (states != wanted) & (states != State.MEMBER)
        self._wrong(self.slot, kept[wrong], 0, "a released half does not stay COMMITTED")

    def _finish_queue(self, name: str) -> None:
        if not self._queued[name]:
            return
        numbers, about, states, of_op = (np.concatenate(column) for column in zip(*self._queued[name], strict=True))
        order = np.argsort(numbers, kind="stable")
        numbers = numbers[order]
        self.places[name] = Places(int(numbers[0]), about[order], states[order], of_op[order])
        if len(numbers) != numbers[-1] - numbers[0] + 1 and not self.scan.damaged:
            self.scan.damaged = True
            self.files.add(
                0 if self.scan.begin == 0 else self.scan.begin * REDO.itemsize, f"places in the {name} queue are not consecutive"
            )

    @property
    def marker(self) -> Any:
        """The last marker; of an empty log one with zeros."""
        return self.scan.markers[-1] if len(self.scan.markers) else self._before[0]

    def pending(self) -> int:
        return int(np.count_nonzero((self.rows["word"] & STATE_MASK) == State.PREPARED))


def marker_pending(marker: Any) -> int:
    """prepares + resumes - commits - rollbacks - discards - quarantined."""
    total = dict(zip(TOTALS, marker["totals"].tolist(), strict=True))
    return int(total["prepares"] + total["resumes"] - sum(total[name] for name in TOTALS[2:7]))


def _counts(entries: Array, kinds: Ints, batch: Ints, batches: int) -> Ints:
    """Entries of each kind in each batch; and those that their reason or the state in their word sets apart, once more."""
    counted = np.bincount(batch * 32 + np.clip(kinds, 0, 15), minlength=batches * 32)
    states, discards = entries["word"] & STATE_MASK, kinds == RedoKind.DISCARD
    reasons = (entries["position"][discards] >> KIND_SHIFT) & 7
    counted += np.bincount(batch[discards] * 32 + _BY_REASON + reasons, minlength=batches * 32)
    for column, kind, state in (
        (_RELEASED_MEMBERS, RedoKind.RELEASE, State.MEMBER),
        (_NEW_MEMBERS, RedoKind.IMAGE, State.MEMBER),
        (_SET_ASIDE, RedoKind.ROW, State.QUARANTINED),
    ):
        counted += np.bincount(batch[(kinds == kind) & (states == state)] * 32 + column, minlength=batches * 32)
    return counted.reshape(batches, 32)


def _queue_deltas(counts: Any) -> dict[str, Any]:
    return {
        "check_end": counts[:, RedoKind.CHECK],
        "proposal_end": counts[:, RedoKind.PROPOSE],
        "discard_end": counts[:, RedoKind.DISCARD],
        "quarantine_end": counts[:, RedoKind.QUARANTINE] + counts[:, RedoKind.QUARANTINE_OP],
    }


def _total_deltas(counts: Any) -> dict[int, Any]:
    """Totals that a batch's entries tell by their kind alone: column of `totals` → amount."""
    return {
        TOTALS.index("commits"): counts[:, RedoKind.RELEASE] - counts[:, _RELEASED_MEMBERS],
        TOTALS.index("discards_max"): counts[:, _BY_REASON + State.DISCARDED_MAX],
        TOTALS.index("discards_expired"): counts[:, _BY_REASON + State.DISCARDED_EXPIRED],
        TOTALS.index("quarantined"): counts[:, RedoKind.QUARANTINE] + counts[:, _SET_ASIDE],
        TOTALS.index("messages"): counts[:, RedoKind.MESSAGE],
    }


def _last_of_each(numbers: Ints, kept: Any) -> Ints:
    """Indexes of the last occurrence of each number among the kept."""
    index = np.flatnonzero(kept)
    _, last = np.unique(numbers[index][::-1], return_index=True)
    return index[len(index) - 1 - last]
