"""Verify, the edge's side: commit log, half and op queue, ends, dictionary, page, checkpoint, and the small files.

The log is walked frame by frame up to its published end; everything else is held against what the walk finds, on columns, some
hundred thousand frames at a time. A running edge is no problem: op end, half end and log end are read in this order, so each covers
the one before, and nothing behind them is judged. An exit in order leaves the checkpoint `clean`; then every byte is judged.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from store.directory import EDGE_CHECKPOINT, StoreDirectory
from store.inspect.verify.files import Array, Findings, Ints, SegmentFiles, map_bytes, read_checked_json, slots_of
from store.inspect.verify.job import EdgeFiles, JobSide
from store.inspect.verify.names import CheckedNames
from store.io import journal
from store.io.pages import EDGE_MAGIC, EdgeSlot, JobSlot
from store.records import (
    ENTRY,
    IMMUNITY_MAX_S,
    NO_POSITION,
    STATE_MASK,
    OpKind,
    State,
    Via,
    immunity_of,
    queue_key_of,
    queue_offset_of,
    topic_of_key,
)
from store.tables import ends, frames
from store.tables.frames import HALF_HEAD, HEAD, MAGIC, OP_HEAD, FrameKind
from store.tables.queue_files import topic_queue_name
from store.tables.redo_log import RedoKind

_HEAD: Final = struct.Struct("<IIHBBHH")
_MAGIC: Final = MAGIC.to_bytes(2, "little")
_BLOCK_FRAMES: Final = 1 << 18
_PIECE_BYTES: Final = 1 << 16
_UNSEEN: Final = -2
_USED_SLOTS: Final = {0, *slots_of(EdgeSlot)}
_NOTED_SLOTS: Final = (
    (EdgeSlot.LOG_END, "log_end"),
    (EdgeSlot.HALF_END, "half_end"),
    (EdgeSlot.OP_END, "op_end"),
    (EdgeSlot.HALF_BEGIN, "half_begin"),
)
_CHECKPOINT_FIELDS: Final = {"log_end", "half_end", "op_end", "half_begin", "positions", "clean"}
_ASKED_TAG: Final = -2
_TAG: Final = frames.PropertyFinder(frames.TAGS)
_SETTLING: Final = (OpKind.COMMIT, OpKind.ROLLBACK, OpKind.DISCARD_MAX, OpKind.DISCARD_EXPIRED, OpKind.RESUME)
#: Byte of the ends table after an op of each kind; RESUME opens again.
_BYTE_AFTER: Final = np.zeros(16, np.uint8)
_BYTE_AFTER[1:5] = (State.COMMITTED, State.ROLLED_BACK, State.DISCARDED_MAX, State.DISCARDED_EXPIRED)


class LogWalk:
    """Frames of the log in order, in blocks; damage is reported and walked around."""

    def __init__(self, files: SegmentFiles, quick: bool) -> None:
        self.files, self.quick = files, quick
        self.damaged: list[tuple[int, int]] = []
        self.frames = 0

    def blocks(self, begin: int, end: int) -> Iterator[Ints]:
        """commit_log_offsets of valid frames (PAD aside), a block at a time; never across a segment."""
        size = self.files.segment_bytes
        for start in range(begin - begin % size, end, size):
            content = self.files.segment(start)
            if content is None:
                if start < self.files.begin or start >= self.files.end:
                    self.files.add(start, "the segment is missing, although the log reaches into it")
                self._damage(start, min(start + size, end), "")
                continue
            yield from self._segment(memoryview(content.data), start, min(size, end - start))

    def _segment(self, content: memoryview, start: int, limit: int) -> Iterator[Ints]:
        found: list[int] = []
        unpack, crc32, size_of_segment = _HEAD.unpack_from, zlib.crc32, self.files.segment_bytes
        at, pad, half, message, op = 0, FrameKind.PAD, FrameKind.HALF, FrameKind.MESSAGE, FrameKind.OP
        while at < limit:
            if size_of_segment - at < HEAD.itemsize:
                self._check_rest(content, start, at)
                break
            crc, size, magic, kind, reserved, length, index = unpack(content, at)
            reason = ""
            if magic != MAGIC or size < HEAD.itemsize or at + size > limit:
                reason = "zeros where a frame belongs" if not (crc or size or magic) else "not a frame"
                if magic == MAGIC:
                    reason = f"a frame cannot have {size} bytes here"
            elif not self.quick and crc32(content[at + 4 : at + (size if kind != pad else 32)], (start + at) & 0xFFFFFFFF) != crc:
                reason = "the frame's CRC does not match its bytes"
            elif reserved or index >= length or kind not in (half, op, message, pad):
                reason = "a frame with a head that no writer makes"
            if reason:
                following = self._next_valid(content, start, at + 1, limit)
                self._damage(start + at, start + following, reason)
                at = following
                continue
            if kind == pad:
                self._check_pad(content, start, at, size)
            else:
                found.append(start + at)
                if len(found) >= _BLOCK_FRAMES:
                    self.frames += len(found)
                    yield np.array(found, np.int64)
                    found = []
            at += size
        if found:
            self.frames += len(found)
            yield np.array(found, np.int64)

    def _damage(self, start: int, stop: int, reason: str) -> None:
        if reason:
            self.files.add(start, reason)
        self.damaged.append((start, stop))

    def _check_pad(self, content: memoryview, start: int, at: int, size: int) -> None:
        if at + size != self.files.segment_bytes:
            self.files.add(start + at, "a PAD that does not reach the end of its segment")
        self._check_rest(content, start, at + HEAD.itemsize)

    def _check_rest(self, content: memoryview, start: int, at: int) -> None:
        rest = np.frombuffer(content[at:], np.uint8)
        if not self.quick and rest.any():
            self.files.add(start + at + int(np.argmax(rest != 0)), "bytes of padding that are not zero")

    def _next_valid(self, content: memoryview, start: int, at: int, limit: int) -> int:
        """The next valid frame from `at` on, by its magic and its CRC; `limit` if there is none."""
        while (at := _find_magic(content, at + frames.MAGIC_AT, limit) - frames.MAGIC_AT) + HEAD.itemsize <= limit:
            crc, size, _, kind, *_ = _HEAD.unpack_from(content, at)
            covered = HEAD.itemsize if kind == FrameKind.PAD else size
            fits = HEAD.itemsize <= size <= limit - at
            if fits and zlib.crc32(content[at + frames.CRC_FROM : at + covered], (start + at) & 0xFFFFFFFF) == crc:
                return at
            at += 1
        return limit

    def damage_begins(self, offset: int) -> bool:
        return any(start == offset for start, _ in self.damaged)

    def touched_by_damage(self, offset: int) -> bool:
        return any(start <= offset < stop for start, stop in self.damaged)


class EdgeSide(EdgeFiles):
    """Reads the edge's files and holds them against the log, the replayed rows and each other."""

    def __init__(self, directory: StoreDirectory, job: JobSide, findings: Findings, quick: bool) -> None:
        self.directory, self.job, self.findings, self.quick = directory, job, findings, quick
        shape, root = directory.geometry, directory.root
        self.page_path, self.checkpoint_path = root / "edge.published", root / EDGE_CHECKPOINT
        self.checkpoint = self._read_checkpoint()
        self.clean = bool(self.checkpoint and self.checkpoint["clean"])
        self.op_end, self.half_end, self.log_end = self._read_page()
        self.read_names()
        self.log = SegmentFiles(directory.commit_log, shape.commit_log_segment_bytes, findings)
        queue_bytes = shape.log_queue_entries_per_file * ENTRY.itemsize
        self.half_queue = SegmentFiles(directory.half_queue(), queue_bytes, findings)
        self.op_queue = SegmentFiles(directory.op_queue(), queue_bytes, findings)
        self.ends = SegmentFiles(directory.ends(), ends.SEGMENT_BYTES, findings)
        self.half_begin, self.op_begin = self.half_queue.begin // ENTRY.itemsize, self.op_queue.begin // ENTRY.itemsize
        self.half_floor = max(int(self.page[EdgeSlot.HALF_BEGIN]), self.half_begin)
        self._keep_within_files()
        self._prepare()

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

    def _prepare(self) -> None:
        # One item for each half that the queue still has; ops by number, too.
        halves = max(0, self.half_end - self.half_begin)
        self.half_key = np.full(halves, _UNSEEN, np.int32)
        self.half_group = np.full(halves, -1, np.int32)
        self.byte, self.byte_settled = np.zeros(halves, np.uint8), np.zeros(halves, np.uint8)
        self.ended = np.zeros(halves, bool)
        self.op_seen = np.zeros(max(0, self.op_end - self.op_begin), bool)
        self.following = {"half": 0 if not self.log.begin else None, "op": 0 if not self.log.begin else None}
        self.next_offset: dict[int, int] = {}
        self.noted: dict[str, Any] = {"half": self.following["half"], "op": self.following["op"], "positions": {}}
        self.released_seen = np.zeros(len(self.job.replay.position) if self.job.replay else 0, bool)
        self.exempt: set[int] = set()
        self._exempt_damage = -1
        self.asked = 0
        self.ops_by_kind = np.zeros(16, np.int64)
        self._batch_open = (0, 0)

    # --- reading page, checkpoint, names ---
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
                self.findings.add(self.page_path, slot * 8, "a slot that nobody uses is not zero")
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

    def read_names(self) -> None:
        records = check_journal(self.directory.root / "dictionary", self.findings, self.clean)
        names = CheckedNames(self.directory, self.findings, records)
        self.groups, self.topics, self.queues, self.editions = names.groups, names.topics, names.queues, names.editions

    # --- the walk ---
    def walk(self) -> None:
        """The whole log against queues, rows and names; then what is left over."""
        self.log_walk = LogWalk(self.log, self.quick)
        if self.log_end > self.log.begin or not self.log.starts:
            for offsets in self.log_walk.blocks(self.log.begin, self.log_end):
                self._block(offsets)
        elif self.log_end < self.log.begin:
            self.findings.add(self.page_path, EdgeSlot.LOG_END * 8, f"the log ends at {self.log_end}, before its first segment")
        self._check_entries_left()
        self._check_ends()
        self._check_noted()
        self._check_released()
        self._check_behind_ends()

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

    def _block(self, offsets: Ints) -> None:
        heads = self.gather(offsets, HEAD)
        self._check_batches(offsets, heads)
        of_half = heads["kind"] == FrameKind.HALF
        if of_half.any():
            self._halves(offsets[of_half], self.gather(offsets[of_half], HALF_HEAD))
        if not of_half.all():
            self._ops(offsets[~of_half], heads[~of_half])

    def _check_batches(self, offsets: Ints, heads: Array) -> None:
        """Batches whole: indexes run from 0 to length - 1, one frame right behind the other."""
        length, index = heads["batch_length"].astype(np.int64), heads["batch_index"].astype(np.int64)
        before_length = np.concatenate([[self._batch_open[0]], length[:-1]])
        before_index = np.concatenate([[self._batch_open[1] - 1], index[:-1]])
        # What the frame before leaves to come: the next index of its batch, or a new batch.
        expected = np.where(before_index + 1 < before_length, before_index + 1, 0)
        wrong = (index != expected) | ((expected > 0) & (length != before_length))
        for at in np.flatnonzero(wrong).tolist():
            if not self._near_damage(int(offsets[at])):
                reason = f"frame {int(index[at])} of a batch of {int(length[at])} where frame {int(expected[at])} belongs"
                self.log.add(int(offsets[at]), reason)
        self._batch_open = (int(length[-1]), int(index[-1]) + 1)

    def _near_damage(self, offset: int) -> bool:
        return any(stop <= offset for _, stop in self.log_walk.damaged) or self.log_walk.touched_by_damage(offset)

    def _numbered(self, what: str, offsets: Ints, numbers: Ints) -> None:
        """Queue offsets of one kind of frame, consecutive over the whole log; a gap needs damage before it."""
        following = self.following[what]
        before = np.concatenate([[numbers[0] - 1 if following is None else following - 1], numbers[:-1]])
        for at in np.flatnonzero(numbers != before + 1).tolist():
            if int(numbers[at]) <= int(before[at]) or not self._near_damage(int(offsets[at])):
                self.log.add(int(offsets[at]) + 16, f"{what} {int(numbers[at])} where {int(before[at]) + 1} belongs")
        self.following[what] = int(numbers[-1]) + 1
        if self.checkpoint and (early := offsets < self.checkpoint["log_end"]).any():
            self.noted[what] = int(numbers[early][-1]) + 1

    # --- halves ---
    def _halves(self, offsets: Ints, heads: Array) -> None:
        numbers = heads["queue_offset"]
        self._numbered("half", offsets, numbers)
        self._check_message_heads(offsets, heads)
        self._wrong(offsets, heads["position"] != NO_POSITION, 112, "a half with a topic position")
        self._wrong(offsets, heads["sys_flag"] != frames.SYS_FLAG_PREPARED, 58, "a half without the PREPARED flag")
        inside = (numbers >= self.half_begin) & (numbers < self.half_end)
        at = numbers[inside] - self.half_begin
        self.half_key[at] = heads["topic_no"][inside] << 6 | heads["queue_id"][inside]
        self.half_group[at] = heads["group_no"][inside]
        self._compare_queue(self.half_queue, "half", offsets[inside], heads[inside], heads["tags_code"][inside])
        self._compare_rows(offsets, heads)
        if not self.quick:
            self._check_tails(offsets, heads)

    def _wrong(self, offsets: Ints, mask: Any, at: int, reason: str) -> None:
        for offset in offsets[mask].tolist():
            self.log.add(offset + at, reason)

    def _check_message_heads(self, offsets: Ints, heads: Array) -> None:
        size = HALF_HEAD.itemsize + heads["body_bytes"].astype(np.int64) + heads["properties_bytes"]
        self._wrong(offsets, size != heads["size_bytes"], 104, "body and properties do not fill the frame")
        self._wrong(offsets, (heads["group_no"] < 0) | (heads["group_no"] >= len(self.groups)), 48, "a group that has no name")
        known = (heads["topic_no"] >= 0) & (heads["topic_no"] < len(self.topics))
        self._wrong(offsets, ~known, 52, "a topic that has no name")
        queues = np.array([*self.queues, 0])[np.where(known, heads["topic_no"], len(self.queues))]
        self._wrong(offsets, known & (heads["queue_id"] >= queues), 56, "a queue that the topic does not have")

    def _check_tails(self, offsets: Ints, heads: Array) -> None:
        """Names in the properties must be the dictionary's; the tags code that of the tags."""
        prefixes: dict[tuple[int, int], bytes] = {}
        columns = (heads[name].tolist() for name in ("group_no", "topic_no", "body_bytes", "properties_bytes", "tags_code"))
        start = int(offsets[0]) - int(offsets[0]) % self.log.segment_bytes
        segment = self.log.segment(start)
        assert segment is not None, "a block of frames lies in one segment"
        raw = memoryview(segment.data)
        for offset, group_no, topic_no, body, size, code in zip(offsets.tolist(), *columns, strict=True):
            prefix = prefixes.get((group_no, topic_no))
            if prefix is None:
                if not (0 <= group_no < len(self.groups) and 0 <= topic_no < len(self.topics)):
                    continue
                own = {frames.PGROUP: self.groups[group_no], frames.REAL_TOPIC: self.topics[topic_no]}
                prefix = prefixes[group_no, topic_no] = frames.encode_properties(own)
            at = offset - start + HALF_HEAD.itemsize + body
            content = bytes(raw[at : at + size])
            if not code and content.startswith(prefix) and _TAG.find(content) is None:
                continue
            self._check_properties(offset, offset + HALF_HEAD.itemsize + body, content, prefix, code)

    def _check_properties(self, offset: int, at: int, content: bytes, prefix: bytes, code: int) -> None:
        try:
            properties = frames.decode_properties(content)
        except ValueError:
            self.log.add(at, "properties that cannot be read")
            return
        own = frames.decode_properties(prefix)
        if any(properties.get(name) != value for name, value in own.items()):
            self.log.add(at, f"{frames.PGROUP} or {frames.REAL_TOPIC} is not what the dictionary has for the frame's numbers")
        if frames.tags_code(properties.get(frames.TAGS, "")) != code:
            self.log.add(offset + 40, "the tags code is not that of TAGS")

    def _compare_queue(self, queue: SegmentFiles, what: str, offsets: Ints, heads: Array, tags: Any) -> None:
        """Entries of the half or op queue against the frames they stand for."""
        numbers = heads["queue_offset"]
        if not len(numbers):
            return
        assert ENTRY.fields is not None
        if queue.end < (int(numbers.max()) + 1) * ENTRY.itemsize:
            queue.add(queue.end, f"missing, or too short: the {what} queue ends before {what} {int(numbers.max())}")
            return
        first = int(numbers.min())
        entries = queue.records(ENTRY, first, int(numbers.max()) + 1)[numbers - first]
        wanted = (("commit_log_offset", offsets), ("size_bytes", heads["size_bytes"]), ("tags_code", tags))
        for name, values in wanted:
            for at in np.flatnonzero(entries[name] != values).tolist():
                number = int(numbers[at])
                reason = f"{what} {number}: {name} is {int(entries[name][at])}, the log says {int(values[at])}"
                queue.add(number * ENTRY.itemsize + ENTRY.fields[name][1], reason)

    def _compare_rows(self, offsets: Ints, heads: Array) -> None:
        """Rows as the redo log gives them against the frames of their halves."""
        replay = self.job.replay
        if replay is None or not self.job.comparable:
            return
        numbers = heads["queue_offset"]
        settled = (numbers >= replay.row_begin) & (numbers < replay.half_cursor)
        numbers, offsets, heads = numbers[settled], offsets[settled], heads[settled]
        rows, resumed = replay.rows[numbers - replay.row_begin], replay.resumed[numbers - replay.row_begin]
        known = replay.imaged[numbers - replay.row_begin]
        readable = (rows["word"] & STATE_MASK) != State.QUARANTINED
        immunity = np.minimum(heads["immunity_s"], IMMUNITY_MAX_S)
        wrong = {
            "commit_log_offset": (0, rows["commit_log_offset"] != offsets),
            "size_bytes": (8, rows["size_bytes"] != heads["size_bytes"].astype(np.int64)),
            "stored_at_s": (12, readable & ~resumed & (rows["stored_at_s"] != heads["stored_at_ms"] // 1000)),
            "group_no": (16, readable & (rows["group_no"] != heads["group_no"])),
            "immunity_s": (20, readable & (immunity_of(rows["word"]) != immunity)),
        }
        for name, (at, mask) in wrong.items():
            for number in numbers[mask & known].tolist():
                self.job.table.add(number * 24 + at, f"row {number}: {name} in the redo log is not what the half's frame says")

    # --- ops ---
    def _ops(self, offsets: Ints, heads: Array) -> None:
        numbers = heads["queue_offset"]
        self._numbered("op", offsets, numbers)
        of_message = heads["kind"] == FrameKind.MESSAGE
        ops = self.gather(offsets, OP_HEAD)
        tags = np.where(of_message, -1, np.where(ops["op_kind"] == OpKind.ASKED, _ASKED_TAG, ops["half_offset"]))
        inside = (numbers >= self.op_begin) & (numbers < self.op_end)
        self.op_seen[numbers[inside] - self.op_begin] = True
        self._compare_queue(self.op_queue, "op", offsets[inside], heads[inside], tags[inside])
        positions = np.where(ops["op_kind"] == OpKind.COMMIT, ops["position"], NO_POSITION)
        if of_message.any():
            messages = self.gather(offsets[of_message], HALF_HEAD)
            self._check_message_heads(offsets[of_message], messages)
            keys = messages["topic_no"].astype(np.int64) << 6 | messages["queue_id"]
            self._wrong(
                offsets[of_message], queue_key_of(messages["position"]) != keys, 112, "a message with another queue's place"
            )
            if not self.quick:
                self._check_tails(offsets[of_message], messages)
            positions[of_message] = messages["position"]
        real = ~of_message
        self._check_op_heads(offsets[real], ops[real])
        placed = positions != NO_POSITION
        about = np.where(of_message, -1, ops["half_offset"])
        self._check_positions(offsets[placed], positions[placed], of_message[placed])
        self._match_released(offsets[placed], numbers[placed], positions[placed], about[placed], of_message[placed])
        self._apply_ends(offsets[real], ops[real])
        self.ops_by_kind += np.bincount(np.where(of_message, OpKind.MESSAGE, ops["op_kind"]) & 15, minlength=16)

    def _check_op_heads(self, offsets: Ints, ops: Array) -> None:
        kind, half = ops["op_kind"], ops["half_offset"]
        self._wrong(offsets, (kind < OpKind.COMMIT) | (kind > OpKind.RESUME), 52, "an op of a kind that does not exist")
        self._wrong(offsets, ops["via"] > max(Via), 53, "an op from nobody: via does not exist")
        of_asked = kind == OpKind.ASKED
        rest = ops["size_bytes"].astype(np.int64) - OP_HEAD.itemsize - ops["detail_bytes"]
        self._wrong(offsets, np.where(of_asked, (rest < 8) | (rest % 8 != 0), rest != 0), 54, "detail does not fill the frame")
        self._wrong(offsets, (kind == OpKind.COMMIT) != (ops["position"] != NO_POSITION), 40, "a place that does not fit the kind")
        limit = self.following["half"] if self.following["half"] is not None else self.half_end
        self._wrong(
            offsets, np.where(of_asked, half != -1, (half < 0) | (half >= limit)), 32, "speaks of a half that is not before it"
        )
        inside = ~of_asked & (half >= self.half_begin) & (half < self.half_end)
        at = half[inside] - self.half_begin
        seen = self.half_key[at] != _UNSEEN
        wrong_group = seen & (self.half_group[at] != ops["group_no"][inside])
        self._wrong(offsets[inside], wrong_group, 48, "another group than its half's")
        wrong_queue = seen & (kind[inside] == OpKind.COMMIT) & (queue_key_of(ops["position"][inside]) != self.half_key[at])
        self._wrong(offsets[inside], wrong_queue, 40, "a place in another queue than its half's")
        if not self.quick:
            self._check_details(offsets, ops, limit)

    def _check_details(self, offsets: Ints, ops: Array, limit: int) -> None:
        with_tail = np.flatnonzero(ops["size_bytes"] > OP_HEAD.itemsize)
        for index in with_tail.tolist():
            offset, size, detail = int(offsets[index]), int(ops["size_bytes"][index]), int(ops["detail_bytes"][index])
            content = self.log.read(offset + OP_HEAD.itemsize, size - OP_HEAD.itemsize).tobytes()
            try:
                good = isinstance(json.loads(content[:detail] or b"{}"), dict)
            except ValueError:
                good = False
            if not good:
                self.log.add(offset + OP_HEAD.itemsize, "detail is not a JSON object")
            if ops["op_kind"][index] == OpKind.ASKED and (size - OP_HEAD.itemsize - detail) % 8 == 0:
                asked = np.frombuffer(content[detail:], "<i8")
                self.asked += len(asked)
                if ((asked < 0) | (asked >= limit)).any():
                    self.log.add(offset + OP_HEAD.itemsize + detail, "asked about a half that is not before it")

    def _check_positions(self, offsets: Ints, positions: Ints, of_message: Any) -> None:
        """Places of every topic queue, consecutive in log order; a gap needs damage before it."""
        if not len(positions):
            return
        keys, places = queue_key_of(positions), queue_offset_of(positions)
        order = np.argsort(keys, kind="stable")
        keys, places, offsets, of_message = keys[order], places[order], offsets[order], of_message[order]
        firsts = np.concatenate([[True], np.diff(keys) != 0])
        before = np.concatenate([[-1], places[:-1]])
        starts = np.flatnonzero(firsts)
        before[starts] = [
            self.next_offset.get(key, 0 if not self.log.begin else int(places[at])) - 1
            for at, key in zip(starts.tolist(), keys[starts].tolist(), strict=True)
        ]
        for at in np.flatnonzero(places != before + 1).tolist():
            if places[at] <= before[at] or not self._near_damage(int(offsets[at])):
                reason = f"place {int(places[at])} of its topic queue where {int(before[at]) + 1} belongs"
                self.log.add(int(offsets[at]) + (112 if of_message[at] else 40), reason)
        ends = np.flatnonzero(np.concatenate([np.diff(keys) != 0, [True]]))
        self.next_offset.update(zip(keys[ends].tolist(), (places[ends] + 1).tolist(), strict=True))
        if self.checkpoint:
            early = np.flatnonzero(offsets < self.checkpoint["log_end"])
            noted: dict[int, int] = self.noted["positions"]
            noted.update(zip(keys[early].tolist(), (places[early] + 1).tolist(), strict=True))

    def _match_released(self, offsets: Ints, numbers: Ints, positions: Ints, about: Ints, of_message: Any) -> None:
        """Commits and messages before the op cursor against the redo log's releases."""
        replay = self.job.replay
        if replay is None or not self.job.comparable or not len(positions):
            return
        settled = numbers < int(replay.marker["op_cursor"])
        quarantined = replay.places["quarantine"]
        settled &= ~np.isin(numbers, quarantined.numbers[quarantined.of_op])
        at = np.searchsorted(replay.position, positions)
        at = np.minimum(at, max(len(replay.position) - 1, 0))
        there = replay.position[at] == positions if len(replay.position) else np.zeros(len(positions), bool)
        wanted = np.where(of_message, numbers, about)
        if len(replay.position):
            there &= (replay.number[at] == wanted) & ((replay.kind[at] == RedoKind.MESSAGE) == of_message)
            self.released_seen[at[there]] = True
        # A redo file that retention took had told of rows that are all gone.
        gone = (self.job.scan.begin > 0) & (of_message | (about < max(replay.row_begin, self.half_floor)))
        for index in np.flatnonzero(settled & ~there & ~gone).tolist():
            if int(about[index]) not in self._exempt():
                self.log.add(
                    int(offsets[index]) + 40, f"op {int(numbers[index])} is settled, but the redo log does not release it there"
                )

    def _apply_ends(self, offsets: Ints, ops: Array) -> None:
        """Bytes of the ends table after these ops; and whether each op could follow the one before."""
        chosen = np.flatnonzero(np.isin(ops["op_kind"], _SETTLING) | (ops["op_kind"] == OpKind.UNKNOWN))
        half = ops["half_offset"][chosen]
        inside = (half >= self.half_begin) & (half < self.half_end)
        chosen, at = chosen[inside], half[inside] - self.half_begin
        order = np.argsort(at, kind="stable")
        chosen, at = chosen[order], at[order]
        kind = ops["op_kind"][chosen]
        changes = kind != OpKind.UNKNOWN
        firsts = np.concatenate([[True], np.diff(at) != 0]) if len(at) else np.empty(0, bool)
        # The byte before each op is that after the op before it about the same half; an UNKNOWN changes none: the few are walked.
        before = np.concatenate([[0], _BYTE_AFTER[kind[:-1]]]) if len(at) else np.empty(0, np.uint8)
        before[firsts] = self.byte[at[firsts]]
        for index in np.flatnonzero(~changes[:-1] & ~firsts[1:]).tolist() if len(at) else []:
            before[index + 1] = before[index]
        resumes = kind == OpKind.RESUME
        wrong = np.where(resumes, (before == State.COMMITTED) | (before == State.ROLLED_BACK), before != 0)
        # Where the half lies before the log's begin, the ops before it are gone, too.
        wrong &= (self.half_key[at] != _UNSEEN) | ~firsts | self.ended[at]
        for index in np.flatnonzero(wrong).tolist():
            if int(at[index]) + self.half_begin not in self._exempt():
                self.log.add(int(offsets[chosen[index]]) + 52, f"{OpKind(int(kind[index])).name} of a half that has ended before")
        self._set_bytes(self.byte, at[changes], kind[changes])
        self.ended[at[changes]] = True
        replay = self.job.replay
        settled = changes & (ops["queue_offset"][chosen] < (int(replay.marker["op_cursor"]) if replay else 0))
        self._set_bytes(self.byte_settled, at[settled], kind[settled])

    @staticmethod
    def _set_bytes(table: Any, at: Ints, kind: Any) -> None:
        # `at` is sorted and stable: the last of each run counts.
        last = np.flatnonzero(np.concatenate([np.diff(at) != 0, [True]])) if len(at) else np.empty(0, np.int64)
        table[at[last]] = _BYTE_AFTER[kind[last]]

    def _exempt(self) -> set[int]:
        """Halves about which an op is corrupt or was quarantined: what the other ops say of them may not fit."""
        if self._exempt_damage == len(self.log_walk.damaged):
            return self.exempt
        self._exempt_damage = len(self.log_walk.damaged)
        corrupt = self._quarantined_ops()
        if self.log_walk.damaged:
            entries = self.op_queue.records(ENTRY, self.op_begin, self.op_end)
            for start, stop in self.log_walk.damaged:
                inside = (entries["commit_log_offset"] >= start) & (entries["commit_log_offset"] < stop)
                corrupt |= set((np.flatnonzero(inside) + self.op_begin).tolist())
        tags = (
            int(self.op_queue.records(ENTRY, op, op + 1)["tags_code"][0]) for op in corrupt if self.op_begin <= op < self.op_end
        )
        self.exempt = {tag for tag in tags if tag >= 0}
        return self.exempt

    def _quarantined_ops(self) -> set[int]:
        if self.job.replay is None:
            return set()
        quarantined = self.job.replay.places["quarantine"]
        return set(quarantined.numbers[quarantined.of_op].tolist())

    def _possible_marks(self, half_offset: int) -> set[int]:
        """Marks that a half may have of which an op is corrupt or was: with that op, without it, or whatever it said."""
        entries = self.op_queue.records(ENTRY, self.op_begin, self.op_end)
        numbers = np.flatnonzero(entries["tags_code"] == half_offset)
        marks = {"with": 0, "without": 0}
        quarantined = self._quarantined_ops()
        for at in numbers.tolist():
            if not self.op_seen[at]:
                return {0, *_BYTE_AFTER[1:5].tolist()}
            kind = int(self.gather(entries["commit_log_offset"][at : at + 1], OP_HEAD)["op_kind"][0])
            if kind in _SETTLING:
                marks["with"] = int(_BYTE_AFTER[kind])
                if at + self.op_begin not in quarantined:
                    marks["without"] = int(_BYTE_AFTER[kind])
        return set(marks.values())

    # --- after the walk ---
    def _check_entries_left(self) -> None:
        """Entries of the queues whose frame the walk did not find."""
        for what, queue, begin, missing in (
            ("half", self.half_queue, self.half_begin, np.flatnonzero(self.half_key == _UNSEEN)),
            ("op", self.op_queue, self.op_begin, np.flatnonzero(~self.op_seen)),
        ):
            if not len(missing):
                continue
            if not queue.starts:
                queue.add(0, f"the {what} queue is missing")
                continue
            entries = queue.records(ENTRY, begin, begin + int(missing[-1]) + 1)[missing]
            front = self._front(what) + begin
            for at, (offset, size, _) in zip((missing + begin).tolist(), entries.tolist(), strict=True):
                if 0 <= offset < self.log.begin and (size > 0 or at < front):
                    continue
                if self.log_walk.touched_by_damage(offset) and size > 0:
                    if not self.log_walk.damage_begins(offset):
                        self.log.add(offset, f"the frame of {what} {at} is not valid")
                else:
                    queue.add(at * ENTRY.itemsize, f"{what} {at}: no such frame at {offset}")

    def _front(self, what: str) -> int:
        """So many entries at the front of a queue are of frames before the log's begin. A restored store has holes there."""
        seen = self.half_key != _UNSEEN if what == "half" else self.op_seen
        if not self.log.begin:
            return 0
        return int(np.argmax(seen)) if seen.any() else len(seen)

    def _check_ends(self) -> None:
        """The ends table against the replay of the op log, and the rows' states against it up to the op cursor."""
        count = len(self.byte)
        found = self.ends.read(self.half_begin, count).copy()
        seen = (self.half_key != _UNSEEN) | self.ended
        rows = self._row_states()
        # Of a half that lies before the log's begin and of which no op is left, the row tells.
        wanted = np.where(seen, self.byte, np.where((rows >= 2) & (rows <= 5), rows, 0))
        judged = (seen | (rows > 0)) & (np.arange(count) + self.half_begin >= self.ends.begin)
        front = self.half_queue.records(ENTRY, self.half_begin, self.half_begin + self._front("half"))
        judged[: len(front)] &= (front["size_bytes"] > 0) | self.ended[: len(front)]
        wrong = np.flatnonzero((found != wanted) & judged)
        if len(wrong) and not self.clean:
            later = self._behind_the_end()
            wrong = np.array([at for at in wrong.tolist() if int(found[at]) not in later.get(at + self.half_begin, ())], np.int64)
        for at in wrong.tolist():
            half = at + self.half_begin
            if half not in self._exempt() or int(found[at]) not in self._possible_marks(half):
                reason = f"half {half} is marked {int(found[at])}, the op log says {int(wanted[at])}"
                self.findings.add(*self.ends.place(half), reason)
        self._check_states(rows, seen)
        if self.clean:
            self.ends.check_zero_from(self.half_end, "a mark behind the last half")

    def _row_states(self) -> Any:
        """State of each half's row, 0 where it has none."""
        states = np.zeros(len(self.byte), np.uint8)
        replay = self.job.replay
        if replay is not None and self.job.comparable:
            first, stop = max(replay.row_begin, self.half_begin), min(replay.half_cursor, self.half_end)
            if stop > first:
                words = replay.rows["word"][first - replay.row_begin : stop - replay.row_begin]
                states[first - self.half_begin : stop - self.half_begin] = words & STATE_MASK
        return states

    def _check_states(self, rows: Any, seen: Any) -> None:
        wanted = np.where(self.byte_settled == 0, int(State.PREPARED), self.byte_settled)
        wrong = seen & (self.half_key != _UNSEEN) & (rows != 0) & (rows != State.QUARANTINED) & (rows != wanted)
        for at in np.flatnonzero(wrong).tolist():
            half = at + self.half_begin
            if half not in self._exempt():
                reason = (
                    f"row {half} is {State(int(rows[at])).name}, the op log up to the cursor says {State(int(wanted[at])).name}"
                )
                self.job.table.add(half * 24 + 20, reason)

    def _behind_the_end(self) -> dict[int, set[int]]:
        """Bytes that ops behind the published end may have set already, by half."""
        found: dict[int, set[int]] = {}
        files = SegmentFiles(self.directory.commit_log, self.log.segment_bytes, Findings())
        walk = LogWalk(files, False)
        for offsets in walk.blocks(self.log_end, files.end):
            for offset in offsets.tolist():
                head = files.read(offset, OP_HEAD.itemsize)
                if len(head) == OP_HEAD.itemsize and head[frames.KIND_AT] == FrameKind.OP:
                    op = head.view(OP_HEAD)[0]
                    if op["op_kind"] in _SETTLING:
                        found.setdefault(int(op["half_offset"]), set()).add(int(_BYTE_AFTER[op["op_kind"]]))
            if walk.damaged:
                break
        return found

    def _check_noted(self) -> None:
        """The checkpoint: what it says of log_end must be what the walk found there."""
        state = self.checkpoint
        if state is None or self.log_walk.damaged:
            return
        for what in ("half", "op"):
            found = self.noted[what]
            if found is not None and state[f"{what}_end"] != found:
                reason = f"{what}_end is {state[f'{what}_end']}, the log up to {state['log_end']} says {found}"
                self.findings.add(self.checkpoint_path, 0, reason)
        positions = {int(key): int(value) for key, value in state["positions"]}
        for key, value in self.noted["positions"].items():
            if positions.get(key) != value:
                reason = f"the next place of queue {key} is {positions.get(key)}, the log says {value}"
                self.findings.add(self.checkpoint_path, 0, reason)
        if not self.log.begin and set(positions) - set(self.noted["positions"]):
            self.findings.add(self.checkpoint_path, 0, "positions of queues that never had a commit")
        if self.clean and self.job.present and self.job.comparable:
            self._check_extents(positions)

    def _check_extents(self, positions: dict[int, int]) -> None:
        """Ends of the topic queues against the places that the edge gave out: never beyond, and equal when all ops are settled."""
        replay = self.job.replay
        assert replay is not None
        settled = self.job.clean and int(replay.marker["op_cursor"]) == self.op_end and not replay.places["quarantine"].of_op.any()
        for key in sorted(set(positions) | set(self.job.extents)):
            _, end, slot = self.job.extents.get(key, (0, 0, 0))
            given = positions.get(key, 0)
            if end > given or (settled and end < given):
                reason = f"queue {topic_queue_name(*topic_of_key(key))} ends at {end}, but the edge gave places up to {given}"
                self.job.catalogue.add(slot + 16, reason)

    def _check_released(self) -> None:
        replay = self.job.replay
        if replay is None or not self.job.comparable:
            return
        half_cursor, op_cursor = int(replay.marker["half_cursor"]), int(replay.marker["op_cursor"])
        if half_cursor > self.half_end or op_cursor > self.op_end:
            reason = f"settled up to half {half_cursor} and op {op_cursor}, but the log ends at {self.half_end} and {self.op_end}"
            self.findings.add(self.job.page_path, JobSlot.HALF_CURSOR * 8, reason)
            return
        if self.log.begin or self.log_walk.damaged:
            return
        for at in np.flatnonzero(~self.released_seen).tolist():
            self.job.redo_files.add(int(replay.slot[at]) * 20, "a release that no op in the log asks for")

    def _check_behind_ends(self) -> None:
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

    # --- for the job's side ---
    def tags_at(self, offsets: Ints) -> Ints:
        return np.asarray(self.gather(offsets, HALF_HEAD)["tags_code"], np.int64)

    def frames_known(self, offsets: Ints, sizes: Ints) -> Any:
        heads = self.gather(offsets, HEAD)
        kinds = np.isin(heads["kind"], (FrameKind.HALF, FrameKind.MESSAGE))
        return (heads["magic"] == MAGIC) & (heads["size_bytes"].astype(np.int64) == sizes) & kinds


def _find_magic(content: memoryview, at: int, limit: int) -> int:
    """Where the magic of a frame lies next, `limit` if nowhere; a piece at a time, since damage is often small."""
    while at + len(_MAGIC) <= limit:
        piece = bytes(content[at : min(at + _PIECE_BYTES, limit)])
        found = piece.find(_MAGIC)
        if found >= 0:
            return at + found
        at += len(piece) - 1
    return limit


def check_journal(path: Path, findings: Findings, clean: bool) -> list[tuple[int, bytes]]:
    """(offset, payload) of every record of a journal. Bytes behind them are a problem, unless they may be a torn append."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    records: list[tuple[int, bytes]] = []
    at = 0
    for end, payload in journal.decode(content):
        records.append((at, payload))
        at = end
    if at < len(content) and (clean or _valid_behind(content, at + 1)):
        findings.add(path, at, "not a whole valid record")
    return records


def _valid_behind(content: bytes, at: int) -> bool:
    return any(
        next(journal.decode(content, start), None) is not None
        for start in range(at, min(len(content), at + 65_536))
        if content[start]
    )
