"""Readers: what any process may look at while the writers write. Nothing here changes a byte.

`LogReader` reads the edge's files up to its published ends: halves and ops as packed records for the settlement, frames for
everybody.
`TopicReader` reads the job's files of the current generation and follows it when it changes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from store.arrays import Array, Ints, distinct
from store.directory import StoreDirectory
from store.errors import Corrupt, NotAStore
from store.io.pages import EDGE_MAGIC, EDGE_PUBLISHED, JOB_MAGIC, JOB_PUBLISHED, EdgeSlot, JobSlot, PublishedPage
from store.records import ASK_ROUND_MASK, HALF, NO_POSITION, OP, OpKind, State, ask_round_of, outstanding_of, queue_key, state_of
from store.tables.commit_log import CommitLog
from store.tables.consume_queue import ASKED_TAG, ConsumeQueue, GrowingQueue
from store.tables.frames import (
    CRC_FROM,
    HALF_HEAD,
    ITEM,
    MAGIC,
    OP_HEAD,
    OP_ITEMS,
    OP_JOINT,
    SYS_FLAG_MEMBER,
    Frame,
    FrameKind,
    halves_of_items,
    items_in,
)
from store.tables.journals.names import Dictionary
from store.tables.queue_extents import Catalogue
from store.tables.queue_files import QueueFiles, topic_queue_name
from store.tables.state_table import StateTable
from store.transitions import Together

_HISTORY_ENTRIES: Final = 1 << 20
#: Wall clocks step back now and then: a scan that begins at a time begins this much earlier.
CLOCK_SLACK_MS: Final = 60_000


class LogReader:
    """The edge's files, read."""

    def __init__(self, directory: StoreDirectory) -> None:
        self.directory = directory
        shape = directory.geometry
        entries = shape.log_queue_entries_per_file
        self.log = CommitLog(directory.commit_log, shape.commit_log_segment_bytes)
        self.half_queue = ConsumeQueue(directory.half_queue(), entries, "half")
        self.op_queue = ConsumeQueue(directory.op_queue(), entries, "op")
        if not (directory.root / EDGE_PUBLISHED).exists():
            raise NotAStore(f"{directory.root}: no edge has ever opened this store; start the edge first")
        self.page = PublishedPage(directory.root / EDGE_PUBLISHED, EDGE_MAGIC)

    def ends(self) -> tuple[int, int]:
        """(half_end, op_end), both flushed. The op end is read first: its ops' halves are then all before the half end."""
        op_end = self.page[EdgeSlot.OP_END]
        return self.page[EdgeSlot.HALF_END], op_end

    def halves(self, first: int, stop: int) -> Array:
        """Halves first … stop - 1 as records.HALF, CRCs checked; a corrupt one is marked, not raised."""
        entries, heads, good = self.checked_halves(first, stop)
        records = np.zeros(len(entries), HALF)
        records["half_offset"] = np.arange(first, stop)
        records["commit_log_offset"], records["size_bytes"] = entries["commit_log_offset"], entries["size_bytes"]
        records["stored_at_s"] = np.where(good, heads["stored_at_ms"] // 1000, 0)
        records["group_no"] = np.where(good, heads["group_no"], -1)
        records["immunity_s"] = np.where(good, heads["immunity_s"], 0)
        records["corrupt"] = ~good
        members = np.flatnonzero(good & (heads["sys_flag"] & SYS_FLAG_MEMBER != 0))
        if len(members):
            records["follows"][members] = records["half_offset"][members] - heads["position"][members]
            records["immunity_s"][members] = 0
        return records

    def checked_halves(self, first: int, stop: int) -> tuple[Array, Array, Any]:
        """(entries, heads, which of the frames are valid) of halves first … stop - 1, CRCs checked."""
        entries = self.half_queue.read(first, stop)
        heads, good = self._checked_heads(entries, HALF_HEAD, (FrameKind.HALF,))
        return entries, heads, good & (heads["queue_offset"] == np.arange(first, stop))

    def half_heads(self, half_offsets: Ints) -> tuple[Array, Array]:
        """(entries, heads) of halves. No CRC: for searching; heads are all zero where an entry does not point into the log."""
        entries = self.half_queue.gather(half_offsets)
        heads = np.zeros(len(entries), HALF_HEAD)
        if len(entries):
            there = self._plausible(entries, HALF_HEAD.itemsize)
            heads[there] = self._gather(entries["commit_log_offset"][there], HALF_HEAD.itemsize).view(HALF_HEAD)[:, 0]
        return entries, heads

    def ops(self, first: int, stop: int) -> Array:
        """Ops first … stop - 1 as records.OP, CRCs checked; an ASKED frame becomes one record for each half it names."""
        return self._op_records(self.op_queue.read(first, stop), np.arange(first, stop))

    def chosen_ops(self, op_offsets: Ints) -> Array:
        """The same of these ops."""
        return self._op_records(self.op_queue.gather(op_offsets), op_offsets)

    def _op_records(self, entries: Array, op_offsets: Ints) -> Array:
        heads, good = self._checked_heads(entries, OP_HEAD, (FrameKind.OP, FrameKind.MESSAGE))
        with_items = np.flatnonzero(good & (heads["frame_flags"] & OP_ITEMS != 0))
        good &= heads["queue_offset"] == op_offsets
        records = np.zeros(len(entries), OP)
        records["op_offset"] = op_offsets
        records["corrupt"] = ~good
        records["stored_at_ms"], records["size_bytes"] = heads["stored_at_ms"], entries["size_bytes"]
        for name in ("half_offset", "position", "group_no", "via"):
            records[name] = heads[name]
        records["kind"] = heads["op_kind"]
        messages = np.flatnonzero(good & (heads["kind"] == FrameKind.MESSAGE))
        if len(messages):
            self._fill_messages(records, entries, messages)
        for name in ("half_offset", "position"):
            records[name][~good] = NO_POSITION
        if len(with_items):
            self._fill_items(records, entries, heads, with_items)
        self._group_corrupt(records, entries)
        asked = np.flatnonzero(good & (heads["kind"] == FrameKind.OP) & (heads["op_kind"] == OpKind.ASKED))
        return self._expand_asked(records, entries, asked) if len(asked) else records

    def whole_ops(self, first: int, stop: int, end: int) -> int:
        """Where to cut ops first … stop - 1, which go on to `end`, so that no frame with several numbers is cut: at `stop`,
        before it, or behind a frame that begins at `first`."""
        if not first < stop < end:
            return stop
        before, (place, size, _) = (self.op_queue.entry(number) for number in (stop - 1, stop))
        if before[0] != place or not size:
            return stop
        entries = self.op_queue.read(first, min(end, stop + size // ITEM.itemsize))
        same = np.flatnonzero(entries["commit_log_offset"] == place)
        return first + int(same[0]) if same[0] else first + int(same[-1]) + 1

    def frame_start(self, first: int, op: int) -> int:
        """The first op, from `first` on, of the frame that this one is of."""
        places = self.op_queue.read(first, op + 1)["commit_log_offset"]
        return first + int(np.argmax(places == places[-1]))

    def op_heads(self, first: int, stop: int) -> tuple[Array, Array]:
        """(entries, heads) of ops first … stop - 1 that lie in the log. No CRC: for searching."""
        entries = self.op_queue.read(first, stop)
        entries = entries[self._plausible(entries, OP_HEAD.itemsize)] if len(entries) else entries
        if not len(entries):
            return entries, np.zeros(0, OP_HEAD)
        return entries, self._gather(entries["commit_log_offset"], OP_HEAD.itemsize).view(OP_HEAD)[:, 0]

    def positions(self, first: int, stop: int) -> Ints:
        """Topic positions that ops first … stop - 1 give to messages, in order. Heads only, no CRC: for searching."""
        entries, heads = self.op_heads(first, stop)
        if not len(entries):
            return np.empty(0, np.int64)
        found: Ints = np.where(heads["op_kind"] == OpKind.COMMIT, heads["position"], NO_POSITION)
        messages = np.flatnonzero((heads["kind"] == FrameKind.MESSAGE) & (entries["size_bytes"] >= HALF_HEAD.itemsize))
        found[heads["kind"] != FrameKind.OP] = NO_POSITION
        if len(messages):
            found[messages] = self._gather(entries["commit_log_offset"][messages], HALF_HEAD.itemsize).view(HALF_HEAD)[:, 0][
                "position"
            ]
        listed = np.flatnonzero((heads["frame_flags"] & OP_ITEMS != 0) & (heads["kind"] == FrameKind.OP))
        for at in listed[np.diff(entries["commit_log_offset"][listed], prepend=-1) != 0].tolist():
            items = items_in(self.log.frame_bytes(int(entries["commit_log_offset"][at]), int(entries["size_bytes"][at])))
            places = dict(zip(halves_of_items(items)[0].tolist(), items["position"].tolist(), strict=True))
            here = np.flatnonzero(entries["commit_log_offset"] == entries["commit_log_offset"][at])
            found[here] = [places.get(half_offset, NO_POSITION) for half_offset in entries["tags_code"][here].tolist()]
        given: Ints = found[(found >= 0) & (heads["magic"] == MAGIC)]
        return given

    def _fill_items(self, records: Array, entries: Array, heads: Array, at: Ints) -> None:
        """Records of frames with items. The frame tells which numbers are its own: an entry that does not lead to it, but
        should, is made good."""
        numbers = records["op_offset"]
        firsts = at[np.diff(entries["commit_log_offset"][at], prepend=-1) != 0]
        for index in firsts.tolist():
            place, size = int(entries["commit_log_offset"][index]), int(entries["size_bytes"][index])
            items, head = items_in(self.log.frame_bytes(place, size)), heads[index]
            half_offsets, follows = halves_of_items(items)
            first = int(head["queue_offset"])
            low, high = np.searchsorted(numbers, (first, first + len(items))).tolist()
            if not low <= index < high:
                continue  # a damaged entry leads here
            part, chosen = slice(low, high), numbers[low:high] - first
            records["half_offset"][part], records["follows"][part] = half_offsets[chosen], follows[chosen]
            records["position"][part] = items["position"][chosen]
            records["corrupt"][part], records["size_bytes"][part] = 0, size
            records["stored_at_ms"][part], records["group_no"][part] = head["stored_at_ms"], head["group_no"]
            records["kind"][part], records["via"][part] = head["op_kind"], head["via"]
            if head["frame_flags"] & OP_JOINT:
                records["together"][part] = np.where(chosen == 0, int(Together.FIRST), int(Together.OTHER))

    def _group_corrupt(self, records: Array, entries: Array) -> None:
        """Corrupt entries that lead to one place are of one frame; the queue still says of which halves it spoke."""
        corrupt = np.flatnonzero((records["corrupt"] != 0) & (entries["size_bytes"] > 0))
        if len(corrupt) < 2:
            return
        places = entries["commit_log_offset"][corrupt]
        after = np.flatnonzero((np.diff(places) == 0) & (np.diff(corrupt) == 1)) + 1
        others = corrupt[after]
        firsts = corrupt[np.setdiff1d(after - 1, after)]
        records["together"][others], records["together"][firsts] = Together.OTHER, Together.FIRST
        for at in (others, firsts):
            records["half_offset"][at] = entries["tags_code"][at]

    def _fill_messages(self, records: Array, entries: Array, at: Ints) -> None:
        heads = self._gather(entries["commit_log_offset"][at], HALF_HEAD.itemsize).view(HALF_HEAD)[:, 0]
        records["half_offset"][at], records["kind"][at], records["via"][at] = -1, OpKind.MESSAGE, 0
        records["position"][at], records["group_no"][at] = heads["position"], heads["group_no"]

    def _expand_asked(self, records: Array, entries: Array, asked: Ints) -> Array:
        pieces, done = [], 0
        for at in asked.tolist():
            offset, size = int(entries["commit_log_offset"][at]), int(entries["size_bytes"][at])
            content = self.log.frame_bytes(offset, size)
            detail_bytes = int(np.frombuffer(content, OP_HEAD, 1)["detail_bytes"][0])
            halves = np.frombuffer(content[OP_HEAD.itemsize + detail_bytes :], "<i8")
            expanded = np.repeat(records[at : at + 1], len(halves))
            expanded["half_offset"], expanded["group_no"] = halves, -1
            pieces += [records[done:at], expanded]
            done = at + 1
        return np.concatenate([*pieces, records[done:]])

    def tags_codes(self, commit_log_offsets: Ints) -> Ints:
        """The tags code of halves or messages at these places; 0 where the log no longer reaches back."""
        codes = np.zeros(len(commit_log_offsets), np.int64)
        self.follow(commit_log_offsets)
        there = (commit_log_offsets >= self.log.file.begin) & (commit_log_offsets < self.log.file.end)
        if there.any():
            heads = self._gather(commit_log_offsets[there], HALF_HEAD.itemsize)
            codes[there] = heads.view(HALF_HEAD)[:, 0]["tags_code"]
        return codes

    def history(self, half_offset: int, since_ms: int = 0) -> list[Frame]:
        """The readable ops about a half, in log order: its whole history, the hand-overs of its check requests included.

        The op queue is the index: a scan of its tags (20 bytes an op, tens of millions a second). ASKED frames name many halves.
        `since_ms`: when the half was stored. Nothing was said of it before, so the scan begins there.
        """
        self.op_queue.file.refresh()  # the edge removes files at its front
        found, stop = [], self.ends()[1]
        first = self._first_op_since(since_ms - CLOCK_SLACK_MS, stop)
        while first < stop:
            entries = self.op_queue.read(first, min(stop, first + _HISTORY_ENTRIES))
            for entry in entries[(entries["tags_code"] == half_offset) | (entries["tags_code"] == ASKED_TAG)]:
                frame = self._readable(entry)
                if frame is not None and (frame.fields["op_kind"] != OpKind.ASKED or half_offset in frame.asked):
                    found.append(frame)
            first += len(entries)
        return found

    def ops_since(self, at_ms: int) -> tuple[int, int]:
        """(first, stop) of the ops that were stored at or after a time, and of a few before them."""
        self.op_queue.file.refresh()
        stop = self.ends()[1]
        return self._first_op_since(at_ms - CLOCK_SLACK_MS, stop), stop

    def _first_op_since(self, at_ms: int, stop: int) -> int:
        return self._first_since(self.op_queue, at_ms, self.op_queue.begin, stop)

    def first_half_since(self, at_ms: int, first: int, stop: int) -> int:
        """The first of these halves that was stored at or after a time."""
        return self._first_since(self.half_queue, at_ms, first, stop)

    def _first_since(self, queue: ConsumeQueue, at_ms: int, first: int, stop: int) -> int:
        """By halving the queue: its entries lie in the order of their time."""
        while at_ms > 0 and first < stop:
            middle = (first + stop) // 2
            frame = self._readable(queue.read(middle, middle + 1)[0])
            if frame is None or frame.stored_at_ms >= at_ms:
                stop = middle
            else:
                first = middle + 1
        return first

    def _readable(self, entry: Any) -> Frame | None:
        try:
            return self.frame(entry)
        except Corrupt:
            return None

    def frame(self, entry: Any) -> Frame:
        """The checked frame that a queue entry points at."""
        return self.log.read(int(entry["commit_log_offset"]), int(entry["size_bytes"]))

    def _checked_heads(self, entries: Array, dtype: np.dtype[Any], kinds: tuple[FrameKind, ...]) -> tuple[Array, Any]:
        """Heads of the frames behind entries, and which of the frames are valid."""
        heads = np.zeros(len(entries), dtype)
        if not len(entries):
            return heads, np.zeros(0, bool)
        good = self._plausible(entries, dtype.itemsize)
        heads[good] = self._gather(entries["commit_log_offset"][good], dtype.itemsize).view(dtype)[:, 0]
        good &= (heads["magic"] == MAGIC) & (heads["size_bytes"] == entries["size_bytes"]) & np.isin(heads["kind"], kinds)
        self._check_crcs(entries, heads, good)
        return heads, good

    def _plausible(self, entries: Array, head_bytes: int) -> Any:
        """Entries that point into the log: the others are corrupt and must not be followed."""
        offsets, sizes = entries["commit_log_offset"], entries["size_bytes"].astype(np.int64)
        self.follow(offsets)
        within = offsets % self.log.segment_bytes + sizes <= self.log.segment_bytes
        return within & (sizes >= head_bytes) & (offsets >= self.log.file.begin) & (offsets < self.log.file.end)

    def follow(self, commit_log_offsets: Ints) -> None:
        """Look at the directory again when segments came or went that these places need."""
        begin, last = self.page[EdgeSlot.LOG_BEGIN], int(np.max(commit_log_offsets, initial=-1))
        if begin > self.log.file.begin or last >= self.log.file.end:
            self.log.file.refresh()

    def _check_crcs(self, entries: Array, heads: Array, good: Any) -> None:
        """Of a frame with several entries once."""
        crc32, chosen = zlib.crc32, np.flatnonzero(good)
        same = np.diff(entries["commit_log_offset"][chosen], prepend=-1) == 0
        every, chosen = chosen, chosen[~same] if same.any() else chosen
        offsets, sizes = entries["commit_log_offset"][chosen], entries["size_bytes"][chosen]
        found = np.zeros(len(chosen), np.int64)
        for mine, content, begins, ends in self._by_segment(offsets, sizes):
            view, seeds = memoryview(content), (offsets[mine] & 0xFFFFFFFF).tolist()
            found[mine] = [crc32(view[begin + CRC_FROM : end], seed) for begin, end, seed in zip(begins, ends, seeds, strict=True)]
        wrong = found != heads["crc"][chosen]
        good[chosen[wrong]] = False
        if len(every) > len(chosen) and wrong.any():
            good[every[np.isin(entries["commit_log_offset"][every], offsets[wrong])]] = False

    def pieces(self, offsets: Ints, sizes: Array) -> list[bytes]:
        """Copies of the bytes at many places of the log, each within one segment."""
        found = np.full(len(offsets), b"", object)
        for mine, content, begins, ends in self._by_segment(offsets, sizes):
            found[mine] = [content[begin:end] for begin, end in zip(begins, ends, strict=True)]
        copied: list[bytes] = found.tolist()
        return copied

    def _by_segment(self, offsets: Ints, sizes: Array) -> Iterator[tuple[Ints, Any, list[int], list[int]]]:
        """(which places, the segment's bytes, where in it they begin, where they end) for each segment."""
        numbers, begins = offsets // self.log.segment_bytes, offsets % self.log.segment_bytes
        ends = begins + sizes
        for number in distinct(numbers):
            mine = np.flatnonzero(numbers == number)
            yield mine, self.log.file.segment(number * self.log.segment_bytes).buffer, begins[mine].tolist(), ends[mine].tolist()

    def _gather(self, offsets: Ints, width: int) -> npt.NDArray[np.uint8]:
        """`width` bytes at each of many places of the log, as rows."""
        size = self.log.segment_bytes
        rows = np.empty((len(offsets), width), np.uint8)
        numbers = offsets // size
        for number in distinct(numbers):
            content = np.frombuffer(self.log.file.segment(number * size).buffer, np.uint8)
            # The last places of a segment cannot hold a whole head of this width.
            windows = np.lib.stride_tricks.sliding_window_view(content, width)
            chosen = np.flatnonzero(numbers == number)
            places = np.minimum(offsets[chosen] - number * size, len(windows) - 1)
            rows[chosen] = windows[places]
        return rows

    def close(self) -> None:
        for part in (self.log.file, self.half_queue, self.op_queue):
            part.close()


class TopicReader:
    """The job's files of the current generation, read. Call `follow` before each look: it reopens after a rebuild."""

    def __init__(self, directory: StoreDirectory) -> None:
        self.directory = directory
        self.page = PublishedPage(directory.root / JOB_PUBLISHED, JOB_MAGIC)
        self.generation = 0
        self._open()

    def _open(self) -> None:
        self.generation = self.page[JobSlot.GENERATION]
        self._root = self.directory.generation(self.generation)
        shape = self.directory.geometry
        self.catalogue = Catalogue(self._root / "catalogue")
        self.table = StateTable(self._root / "statetable" / "0", shape.state_rows_per_file)
        self._queues = QueueFiles(self._root, shape.topic_queue_entries_per_file)

    def follow(self) -> bool:
        """Reopen if the generation changed; find queues that are new. True when reopened."""
        if self.page[JobSlot.GENERATION] != self.generation:
            self.close()
            self._open()
            return True
        self.catalogue.refresh()
        return False

    def close(self) -> None:
        """Let go of the generation's files. Views that were handed out stay readable."""
        self.catalogue.close()
        self.table.close()
        self._queues.close()

    def queue(self, name: str) -> GrowingQueue:
        """`topics/<topic_no>/<queue_id>`, `check`, `proposal`, `discard` or `quarantine`."""
        return self._queues.queue(name)

    def let_go(self) -> None:
        """Let go of files that retention has removed."""
        self._queues.refresh()
        self.table.file.refresh()

    def rows(self, half_offsets: Ints) -> Array:
        """Rows of halves, as they are now; state files that were made since are found."""
        if len(half_offsets) and int(half_offsets.max()) >= self.table.allocated:
            self.table.file.refresh()
        return self.table.get(half_offsets)

    def words(self, half_offsets: Ints) -> npt.NDArray[np.uint32]:
        """State words of halves, as they are now."""
        if len(half_offsets) and int(half_offsets.max()) >= self.table.allocated:
            self.table.file.refresh()
        return self.table.words(half_offsets)

    def under_way(self, words: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        """Where a check request of the current round waits for its answer."""
        prepared = state_of(words) == int(State.PREPARED)
        this_round = ask_round_of(words) == np.uint32(self.page[JobSlot.ROUND_NO] & ASK_ROUND_MASK)
        return np.asarray(prepared & this_round & (outstanding_of(words) != 0))

    def topic_entries(self, topic_no: int, queue_id: int, first: int, count: int) -> tuple[int, Array]:
        """(number of the first entry, entries) of a topic's queue, at most `count` from `first` on, up to its end."""
        begin, end = self.catalogue.extent(queue_key(topic_no, queue_id))
        first = max(first, begin)
        stop = min(end, first + count)
        return first, self.queue(topic_queue_name(topic_no, queue_id)).read(first, stop)


def open_readers(root: Path) -> tuple[StoreDirectory, LogReader, TopicReader | None, Dictionary]:
    """Everything there is to read of a store; no TopicReader where no job has ever opened it."""
    directory = StoreDirectory(root)
    topics = TopicReader(directory) if (root / JOB_PUBLISHED).exists() else None
    return directory, LogReader(directory), topics, Dictionary(root / "dictionary")
