"""The edge's side of the store: takes halves, messages and ends, and answers only when they are durable.

Files it writes: commit log, half queue, op queue, ends, dictionary, edge.published, edge.checkpoint.

`edge.checkpoint` (JSON and its CRC, replaced as a whole) says what recovery may rely on:
    log_end      queues and ends reflect the log up to here, durably
    half_end, op_end   the queues' ends at log_end
    positions    [queue key, next queue_offset] of every topic queue that has had a commit
    clean        true when the edge closed in order: log_end is then the end of the log

Appending, in this order: room in the queues → frames into the log → queue entries → ends. Only the log is flushed; the rest is
derived from it and made durable by the next checkpoint. Nothing is published, so nothing is read by others, before it is flushed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np

from store import disk, frames
from store.commit_log import CommitLog, GroupCommit, Placed
from store.consume_queue import ConsumeQueue, make_entries
from store.dictionary import Dictionary
from store.directory import Geometry, Lock, StoreDirectory
from store.ends import Answer, EndsTable, Verdict, byte_after, judge
from store.errors import BodyTooLarge, Corrupt, CursorBeyondLog, InvalidRecord, StoreUnusable
from store.frames import Frame, FrameKind, Message, Op
from store.published import EDGE_MAGIC, JOB_MAGIC, EdgeSlot, JobSlot, PublishedPage
from store.records import ENTRY, NO_POSITION, QUEUE_OFFSET_BITS, OpKind, State, Via, queue_key_of, queue_offset_of

CHECKPOINT: Final = "edge.checkpoint"
MAX_BODY_BYTES: Final = 4 << 20
PROPERTIES_ROOM_BYTES: Final = 32 << 10
_NO_HALF: Final = -1

Progress = Callable[[int, int, str], None]


def no_progress(_done: int, _total: int, _what: str) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True, slots=True)
class End:
    """How somebody wants a transaction to end. `group` None: whoever says it may end any group's (operator, checker)."""

    half_offset: int
    kind: OpKind
    group: str | None = None
    via: Via = Via.PRODUCER
    actor: str = ""
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Appended:
    """Records in the log, not yet durable: pass `ticket` to `wait`. `first` is the half_offset (or op_offset) of the first."""

    first: int
    count: int
    ticket: int


@dataclass(slots=True)
class EdgeRecovery:
    """What opening had to do."""

    clean: bool = False
    frames_replayed: int = 0
    cut_at: int = 0
    cut_reason: str = ""
    damage: list[tuple[int, int, str]] = field(default_factory=list)


class EdgeStore:
    """One process opens it at a time; its methods may be called from many threads."""

    def __init__(
        self,
        root: Path,
        *,
        geometry: Geometry | None = None,
        max_body_bytes: int | None = None,
        default_queues: int = 4,
        checkpoint_bytes: int = 64 << 20,
        store_host: bytes = frames.NO_HOST,
        store_port: int = 0,
        progress: Progress = no_progress,
    ) -> None:
        self.directory = StoreDirectory(root, geometry, create=True)
        self.checkpoint_bytes = checkpoint_bytes
        self._store_host, self._store_port = store_host, store_port
        shape = self.directory.geometry
        room = shape.commit_log_segment_bytes - frames.HALF_HEAD.itemsize - PROPERTIES_ROOM_BYTES
        self.max_body_bytes = min(MAX_BODY_BYTES, room) if max_body_bytes is None else max_body_bytes
        if self.max_body_bytes > room:
            raise InvalidRecord(
                f"maxBodySize: {max_body_bytes} does not fit into a commit log segment of {shape.commit_log_segment_bytes} bytes: "
                f"at most {room}"
            )
        self._lock = Lock(root / "edge.lock", "the edge of this store")
        try:
            self._open(root, shape, default_queues, progress)
        except BaseException:
            self._lock.release()
            raise

    def _open(self, root: Path, shape: Geometry, default_queues: int, progress: Progress) -> None:
        self.dictionary = Dictionary(root / "dictionary", writable=True, default_queues=default_queues)
        self.log = CommitLog(self.directory.commit_log, shape.commit_log_segment_bytes, writable=True)
        entries = shape.log_queue_entries_per_file
        self.half_queue = ConsumeQueue(self.directory.half_queue(), entries, "half", writable=True)
        self.op_queue = ConsumeQueue(self.directory.op_queue(), entries, "op", writable=True)
        self.ends_table = EndsTable(self.directory.ends(), writable=True)
        self.page = PublishedPage(root / "edge.published", EDGE_MAGIC, writable=True)
        self._append_lock = threading.Lock()
        self._commit = GroupCommit(self.log.flush, self._mark, self._publish)
        self._routes: dict[tuple[str, str], tuple[int, int, int, bytes]] = {}
        self.half_end = self.op_end = 0
        self.next_offset: dict[int, int] = {}
        self.recovery = EdgeRecovery()
        self._recover(progress)

    # --- taking halves and messages ---------------------------------------------------------------------------------
    def prepare(self, messages: Sequence[Message], now_ms: int) -> range:
        """Store halves, all or none; their half_offsets, once they are durable."""
        appended = self.append_halves(messages, now_ms)
        self.wait(appended.ticket)
        return range(appended.first, appended.first + appended.count)

    def append_halves(self, messages: Sequence[Message], now_ms: int) -> Appended:
        """Append halves as one batch. They count only after `wait(ticket)`."""
        heads, tails = self._encode_messages(messages, FrameKind.HALF, now_ms)
        count = len(messages)
        with self._append_lock:
            self._commit.check()
            first = self.half_end
            self.half_queue.file.ensure((first + count) * ENTRY.itemsize)
            self.ends_table.ensure(first, first + count)
            heads["queue_offset"] = np.arange(first, first + count)
            self._spread(heads)
            placed = self._append(heads, tails)
            with self._doubtful():
                self.half_queue.put(first, make_entries(placed.offsets, placed.sizes, heads["tags_code"]))
            self.half_end = first + count
            return Appended(first, count, placed.end)

    def append_messages(self, messages: Sequence[Message], now_ms: int) -> Appended:
        """Append ordinary messages as one batch: visible without a transaction, once they are durable and settled."""
        heads, tails = self._encode_messages(messages, FrameKind.MESSAGE, now_ms)
        with self._append_lock:
            self._commit.check()
            first = self.op_end
            self.op_queue.file.ensure((first + len(messages)) * ENTRY.itemsize)
            heads["queue_offset"] = np.arange(first, first + len(messages))
            self._spread(heads)
            taken: dict[int, int] = {}
            keys = zip(heads["topic_no"].tolist(), heads["queue_id"].tolist(), strict=True)
            heads["position"] = [self._take_position(topic_no << 6 | queue_id, taken) for topic_no, queue_id in keys]
            placed = self._append(heads, tails)
            return self._after_ops(first, placed, [_NO_HALF] * len(messages), taken)

    def _encode_messages(self, messages: Sequence[Message], kind: FrameKind, now_ms: int) -> tuple[Any, list[tuple[bytes, ...]]]:
        if not messages:
            raise InvalidRecord("messages: the batch is empty; send at least one")
        rows: list[tuple[Any, ...]] = []
        tails: list[tuple[bytes, ...]] = []
        for message in messages:
            group_no, topic_no, queues, prefix = self._route(message.group, message.topic)
            body, properties = message.body, message.properties
            if len(body) > self.max_body_bytes:
                raise BodyTooLarge(f"body: {len(body)} bytes; at most {self.max_body_bytes} (maxBodySize) are taken")
            if message.queue_id is not None and not 0 <= message.queue_id < queues:
                raise InvalidRecord(f"queue_id: {message.queue_id}; {message.topic} has queues 0 to {queues - 1}")
            encoded, code, queue_id = prefix, 0, -1 if message.queue_id is None else message.queue_id
            if properties:
                frames.check_properties(properties)
                encoded += frames.encode_properties(properties)
                code = frames.tags_code(properties.get(frames.TAGS, ""))
                key = properties.get(frames.KEYS)
                if key and queue_id < 0:
                    queue_id = crc32(key.encode()) % queues
            rows.append((message, group_no, topic_no, queues, queue_id, code, len(body), len(encoded)))
            tails.append((body, encoded))
        return self._message_heads(rows, kind, now_ms), tails

    def _route(self, group: str, topic: str) -> tuple[int, int, int, bytes]:
        """(group_no, topic_no, queues, the properties that every half of this group for this topic carries)."""
        found = self._routes.get((group, topic))
        if found is None:
            with self._append_lock:
                frames.check_name(topic, "topic")
                group_no, topic_no = self.dictionary.add_group(group), self.dictionary.add_topic(topic)
            own = {frames.PGROUP: group, frames.REAL_TOPIC: topic}
            found = (group_no, topic_no, self.dictionary.queues[topic_no], frames.encode_properties(own))
            self._routes[group, topic] = found
        return found

    def _message_heads(self, rows: list[tuple[Any, ...]], kind: FrameKind, now_ms: int) -> np.ndarray[Any, Any]:
        messages, groups, topics, queues, queue_ids, codes, body_sizes, property_sizes = zip(*rows, strict=True)
        heads = np.zeros(len(rows), frames.HALF_HEAD)
        heads["kind"], heads["stored_at_ms"], heads["position"] = kind, now_ms, NO_POSITION
        heads["sys_flag"] = frames.SYS_FLAG_PREPARED if kind == FrameKind.HALF else 0
        heads["group_no"], heads["topic_no"] = groups, topics
        heads["body_bytes"], heads["properties_bytes"], heads["tags_code"] = body_sizes, property_sizes, codes
        heads["born_at_ms"] = [message.born_at_ms or now_ms for message in messages]
        heads["immunity_s"] = [message.immunity_s for message in messages]
        heads["born_host"] = [message.born_host for message in messages]
        heads["born_port"] = [message.born_port for message in messages]
        heads["flag"] = [message.flag for message in messages]
        heads["store_host"], heads["store_port"] = self._store_host, self._store_port
        # For now: the queue asked for, or 0x8000 + number of queues where `_spread` is to choose.
        asked = np.asarray(queue_ids)
        heads["queue_id"] = np.where(asked < 0, 0x8000 + np.asarray(queues), asked)
        return heads

    @staticmethod
    def _spread(heads: np.ndarray[Any, Any]) -> None:
        """Messages without key and queue go round the queues of their topic, by their number."""
        free = heads["queue_id"] >= 0x8000
        if free.any():
            queues = heads["queue_id"][free].astype(np.int64) - 0x8000
            heads["queue_id"][free] = heads["queue_offset"][free] % queues

    # --- ends ---------------------------------------------------------------------------------------------------------
    def end(self, ends: Sequence[End], now_ms: int) -> list[Answer]:
        """End transactions; the answers, once what they rest on is durable."""
        answers, ticket = self.append_ends(ends, now_ms)
        self.wait(ticket)
        return answers

    def append_ends(self, ends: Sequence[End], now_ms: int) -> tuple[list[Answer], int]:
        """Judge ends in order and append their ops. The answers count only after `wait(ticket)`:
        even "already" rests on an op that may not be durable yet."""
        with self._append_lock:
            self._commit.check()
            marks: dict[int, int] = {}
            taken: dict[int, int] = {}
            answers, ops = [], []
            for end in ends:
                answer, op = self._judge(end, marks, taken)
                answers.append(answer)
                if op is not None:
                    ops.append(op)
            if ops:
                self._append_ops(ops, now_ms, taken)
                for half_offset, mark in marks.items():
                    self.ends_table[half_offset] = mark
            return answers, self.log.end

    def _judge(self, end: End, marks: dict[int, int], taken: dict[int, int]) -> tuple[Answer, Op | None]:
        half_offset = end.half_offset
        if not 0 <= half_offset < self.half_end:
            return Answer(Verdict.REFUSED, "unknown id", State.NONE), None
        if half_offset < self.half_queue.begin or half_offset < self.page[EdgeSlot.HALF_BEGIN]:
            return Answer(Verdict.REFUSED, "gone", State.NONE), None
        try:
            head = self._half_head(half_offset)
        except IndexError:
            return Answer(Verdict.REFUSED, "gone", State.NONE), None
        except Corrupt:
            return Answer(Verdict.REFUSED, "quarantined", State.QUARANTINED), None
        group_no, topic_no, queue_id = head[11], head[12], head[13]
        if end.group is not None and self.dictionary.group_no(end.group) != group_no:
            return Answer(Verdict.REFUSED, "wrong group", State.NONE), None
        before = marks.get(half_offset, -1)
        answer = judge(end.kind, self.ends_table[half_offset] if before < 0 else before)
        silent = end.kind == OpKind.UNKNOWN and end.via == Via.PRODUCER and not end.remark
        if answer.verdict is not Verdict.ACCEPTED or silent:
            return answer, None
        marks[half_offset] = byte_after(end.kind, self.ends_table[half_offset] if before < 0 else before)
        position = NO_POSITION
        if end.kind == OpKind.COMMIT:
            position = self._take_position(topic_no << 6 | queue_id, taken)
            answer = Answer(answer.verdict, "", answer.state, position)
        detail = frames.encode_detail(end.actor, end.remark)
        return answer, Op(end.kind, half_offset, group_no, end.via, position, detail)

    def append_asked(self, half_offsets: Sequence[int], member: str, now_ms: int) -> int:
        """Record that check requests were handed to a member; halves that have ended meanwhile are left out. The ticket."""
        with self._append_lock:
            self._commit.check()
            still = [h for h in half_offsets if 0 <= h < self.half_end and self.ends_table[h] == 0]
            detail = frames.encode_detail(member)
            chunks = [still[at : at + frames.ASKED_MAX] for at in range(0, len(still), frames.ASKED_MAX)]
            ops = [Op(OpKind.ASKED, _NO_HALF, via=Via.CHECK, detail=detail, asked=chunk) for chunk in chunks]
            if ops:
                self._append_ops(ops, now_ms, {})
            return self.log.end

    def reopen(self, half_offset: int) -> None:
        """Clear a half's end: the op that ended it was found corrupt, so check-back must settle it."""
        with self._append_lock:
            self.ends_table[half_offset] = 0

    def _append_ops(self, ops: Sequence[Op], now_ms: int, taken: dict[int, int]) -> Appended:
        first = self.op_end
        self.op_queue.file.ensure((first + len(ops)) * ENTRY.itemsize)
        placed = self._append(frames.op_heads(ops, first, now_ms), [frames.op_tail(op) for op in ops])
        return self._after_ops(first, placed, [op.half_offset for op in ops], taken)

    def _after_ops(self, first: int, placed: Placed, half_offsets: list[int], taken: dict[int, int]) -> Appended:
        with self._doubtful():
            self.op_queue.put(first, make_entries(placed.offsets, placed.sizes, half_offsets))
        self.next_offset.update(taken)
        self.op_end = first + len(half_offsets)
        return Appended(first, len(half_offsets), placed.end)

    def _take_position(self, queue_key: int, taken: dict[int, int]) -> int:
        """The next place in a topic's queue; `taken` remembers it until the op is in the log."""
        queue_offset = taken.get(queue_key)
        if queue_offset is None:
            queue_offset = self.next_offset.get(queue_key, 0)
        taken[queue_key] = queue_offset + 1
        return queue_key << QUEUE_OFFSET_BITS | queue_offset

    def _half_head(self, half_offset: int) -> tuple[Any, ...]:
        """The head of a half's frame, after checking the whole frame."""
        entry = self.half_queue.read(half_offset, half_offset + 1)[0]
        offset, size = int(entry["commit_log_offset"]), int(entry["size_bytes"])
        content = self.log.frame_bytes(offset, size)
        frames.check_frame(content, offset, str(self.log.file.directory))
        return frames.HALF_STRUCT.unpack_from(content)

    def read_half(self, half_offset: int) -> Frame:
        """A half as it was stored; Corrupt if it cannot be read."""
        entry = self.half_queue.read(half_offset, half_offset + 1)[0]
        return self.log.read(int(entry["commit_log_offset"]), int(entry["size_bytes"]))

    # --- durability ---------------------------------------------------------------------------------------------------
    def wait(self, ticket: int) -> None:
        """Return when everything up to the ticket is durable and visible to readers."""
        self._commit.wait(ticket)

    def _append(self, heads: np.ndarray[Any, Any], tails: Sequence[Iterable[bytes]]) -> Placed:
        end = self.log.end
        try:
            return self.log.append(heads, tails)
        except StoreUnusable as error:
            if self.log.end != end or not _is_room(error):
                self._commit.fail(error)
            raise

    def _doubtful(self) -> _Doubtful:
        return _Doubtful(self._commit)

    def _mark(self) -> tuple[int, int, int]:
        with self._append_lock:
            return self.log.end, self.half_end, self.op_end

    def _publish(self, mark: tuple[int, int, int]) -> None:
        # Halves before ops: whoever sees an op must be able to see its half.
        self.page[EdgeSlot.LOG_END], self.page[EdgeSlot.HALF_END] = mark[0], mark[1]
        self.page[EdgeSlot.OP_END] = mark[2]
        if mark[0] - self._checkpointed >= self.checkpoint_bytes:
            self._write_checkpoint(clean=False)

    def heartbeat(self, now_ms: int) -> None:
        self.page[EdgeSlot.HEARTBEAT_MS] = now_ms

    def checkpoint(self) -> None:
        """Flush everything and note how far recovery may rely on it."""
        self.wait(self.log.end)
        self._write_checkpoint(clean=False)

    def _write_checkpoint(self, clean: bool) -> None:
        with self._append_lock:
            state: dict[str, Any] = {
                "log_end": self.log.end,
                "half_end": self.half_end,
                "op_end": self.op_end,
                "positions": sorted(self.next_offset.items()),
                "clean": clean,
            }
        self.log.flush()
        self.half_queue.flush()
        self.op_queue.flush()
        self.ends_table.file.flush()
        disk.write_json(self.directory.root / CHECKPOINT, state, CHECKPOINT)
        self._checkpointed = int(state["log_end"])

    def retain(self) -> dict[str, int]:
        """Delete what the job says nobody needs any more: whole files before its low-water marks. Returns how many went."""
        path = self.directory.root / "job.published"
        if not path.exists():
            return {}
        job = PublishedPage(path, JOB_MAGIC)
        log_low, half_low, op_low = (job[slot] for slot in (JobSlot.LOG_LOW_WATER, JobSlot.HALF_LOW_WATER, JobSlot.OP_LOW_WATER))
        # Nothing before the checkpoint is read again by recovery; what lies behind it may be.
        self.checkpoint()
        with self._append_lock:
            self.page[EdgeSlot.HALF_BEGIN] = max(self.page[EdgeSlot.HALF_BEGIN], half_low)
            removed = {
                "commitlog": self.log.file.remove_before(min(log_low, self._checkpointed)),
                "half": self.half_queue.remove_before(half_low),
                "op": self.op_queue.remove_before(op_low),
                "ends": self.ends_table.file.remove_before(half_low),
            }
            self.page[EdgeSlot.LOG_BEGIN], self.page[EdgeSlot.OP_BEGIN] = self.log.file.begin, self.op_queue.begin
        return removed

    def close(self) -> None:
        """Flush, note a clean exit, let go of the lock."""
        try:
            self.wait(self.log.end)
            self._write_checkpoint(clean=True)
        finally:
            self._release()

    def _release(self) -> None:
        for part in (self.log.file, self.half_queue, self.op_queue, self.ends_table.file, self.dictionary):
            part.close()
        self._lock.release()

    def __enter__(self) -> EdgeStore:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._release()

    # --- recovery -----------------------------------------------------------------------------------------------------
    def _recover(self, progress: Progress) -> None:
        """1 start from the checkpoint · 2 replay what is known to have been durable, around damage · 3 replay whole batches
        behind it ·
        4 cut the torn tail · 5 flush what is kept · 6 publish."""
        # 1
        state = self._read_checkpoint()
        start = int(state["log_end"])
        self.half_end, self.op_end = int(state["half_end"]), int(state["op_end"])
        self.next_offset = {int(key): int(value) for key, value in state["positions"]}
        self.recovery.clean = bool(state["clean"])
        self.log.end, self._checkpointed = start, start
        if start > self.log.file.end:
            raise CursorBeyondLog(self._beyond(self.log.file.end, start))
        if not self.recovery.clean:
            self._replay(start, max(start, self.page[EdgeSlot.LOG_END]), progress)
            self._write_checkpoint(clean=False)  # 5
        elif self.page[EdgeSlot.LOG_END] > start:
            raise CursorBeyondLog(self._beyond(start, self.page[EdgeSlot.LOG_END]))
        # From here on the log may grow behind the checkpoint, so it is no longer a clean exit's.
        if self.recovery.clean:
            self._write_checkpoint(clean=False)
        # 6
        self._commit.flushed = self.log.end
        self.page[EdgeSlot.LOG_BEGIN], self.page[EdgeSlot.OP_BEGIN] = self.log.file.begin, self.op_queue.begin
        self.page[EdgeSlot.HALF_BEGIN] = max(self.page[EdgeSlot.HALF_BEGIN], self.half_queue.begin)
        self._publish((self.log.end, self.half_end, self.op_end))
        self.page[EdgeSlot.EPOCH] += 1

    def _read_checkpoint(self) -> dict[str, Any]:
        try:
            state = disk.read_json(self.directory.root / CHECKPOINT)
        except Corrupt as error:
            self.recovery.damage.append((0, 0, str(error)))
            state = None
        begin = self.log.file.begin
        return state or {"log_end": begin, "half_end": 0, "op_end": 0, "positions": [], "clean": False}

    def _replay(self, start: int, durable: int, progress: Progress) -> None:
        replay = _Replay(self)
        total = max(self.log.file.end - start, 1)

        def watch(at: int) -> None:
            progress(at - start, total, "reading the commit log")

        # 2
        for at, size in self.log.salvage(start, durable, self._damaged):
            replay.frame(at, size)
            watch(at)
        if durable > start and replay.frames == 0 and self._all_zero(start, durable):
            raise CursorBeyondLog(self._beyond(start, durable))
        # 3
        for batch in self.log.scan(durable):
            for at, size in batch.frames:
                replay.frame(at, size)
            watch(batch.end)
        # 4
        self.recovery.cut_at, self.recovery.cut_reason = self.log.scan_stop, self.log.scan_reason
        self.log.end = self.log.scan_stop
        self.log.file.cut(self.log.end)
        replay.finish()
        self.recovery.frames_replayed = replay.frames

    def _damaged(self, start: int, stop: int, reason: str) -> None:
        self.recovery.damage.append((start, stop, reason))

    def _all_zero(self, start: int, stop: int) -> bool:
        try:
            return not any(self.log.file.view(start, stop - start))
        except IndexError:
            return True

    def _beyond(self, end: int, known: int) -> str:
        return (
            f"{self.directory.commit_log}: the log ends at {end}, but {known} was acknowledged: an older copy of the log was put "
            "here. Put the right one back, or restore a whole backup (escrow store restore)"
        )


def _is_room(error: StoreUnusable) -> bool:
    """A segment could not be made for lack of room: nothing was written, and later there may be room."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in (28, 122)


class _Doubtful:
    """Around steps behind the log's write: if one fails, log and memory disagree, and only recovery can tell."""

    def __init__(self, commit: GroupCommit) -> None:
        self._commit = commit

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, StoreUnusable):
            self._commit.fail(error)


class _Replay:
    """Rebuilds queues, ends, positions and names from frames, in log order."""

    FLUSH_EVERY = 8192

    def __init__(self, edge: EdgeStore) -> None:
        self._edge = edge
        self.frames = 0
        self._halves: list[tuple[int, int, int]] = []
        self._ops: list[tuple[int, int, int]] = []
        self._half_first, self._op_first = edge.half_end, edge.op_end

    def frame(self, at: int, size: int) -> None:
        content = self._edge.log.frame_bytes(at, size)
        kind = content[6]
        self.frames += 1
        if kind == FrameKind.HALF:
            self._half(at, size, content)
        elif kind == FrameKind.MESSAGE:
            self._message(at, size, content)
        elif kind == FrameKind.OP:
            self._op(at, size, content)

    def _half(self, at: int, size: int, content: memoryview) -> None:
        head = frames.HALF_STRUCT.unpack_from(content)
        if head[7] != self._edge.half_end:
            self._skip_halves(head[7])
        self._learn_names(head, content)
        self._halves.append((at, size, head[10]))
        self._edge.half_end = head[7] + 1
        if len(self._halves) >= self.FLUSH_EVERY:
            self._put_halves()

    def _message(self, at: int, size: int, content: memoryview) -> None:
        head = frames.HALF_STRUCT.unpack_from(content)
        self._learn_names(head, content)
        self._place(head[23])
        self._put_op(at, size, head[7], _NO_HALF)

    def _op(self, at: int, size: int, content: memoryview) -> None:
        head = frames.OP_STRUCT.unpack_from(content)
        half_offset, position, kind = head[9], head[10], OpKind(head[12])
        if position != NO_POSITION:
            self._place(position)
        if half_offset >= 0:
            table = self._edge.ends_table
            table.ensure(half_offset, half_offset + 1)
            table[half_offset] = byte_after(kind, table[half_offset])
        self._put_op(at, size, head[7], half_offset)

    def _put_op(self, at: int, size: int, op_offset: int, half_offset: int) -> None:
        if op_offset != self._edge.op_end:
            self._skip_ops(op_offset)
        self._ops.append((at, size, half_offset))
        self._edge.op_end = op_offset + 1
        if len(self._ops) >= self.FLUSH_EVERY:
            self._put_ops()

    def _place(self, position: int) -> None:
        key, following = int(queue_key_of(position)), int(queue_offset_of(position)) + 1
        self._edge.next_offset[key] = max(self._edge.next_offset.get(key, 0), following)

    def _learn_names(self, head: tuple[Any, ...], content: memoryview) -> None:
        """Names are durable before their first frame; after a lost dictionary the frames teach them again."""
        dictionary = self._edge.dictionary
        if head[11] >= len(dictionary.groups) or head[12] >= len(dictionary.topics):
            properties = frames.decode_properties(bytes(content[frames.HALF_HEAD.itemsize + head[21] :]))
            dictionary.add_group(properties[frames.PGROUP])
            dictionary.add_topic(properties[frames.REAL_TOPIC])

    # Damage ate some frames. Their entries may still stand in the queue; where they do not, a hole keeps their numbers.
    def _skip_halves(self, following: int) -> None:
        self._put_halves()
        self._edge.half_queue.file.ensure(following * ENTRY.itemsize)
        self._edge.half_end = self._half_first = following

    def _skip_ops(self, following: int) -> None:
        self._put_ops()
        self._edge.op_queue.file.ensure(following * ENTRY.itemsize)
        self._edge.op_end = self._op_first = following

    def _put_halves(self) -> None:
        if self._halves:
            self._edge.half_queue.put(self._half_first, _entries(self._halves))
            self._half_first += len(self._halves)
            self._halves = []
        self._edge.ends_table.ensure(self._half_first, self._half_first)

    def _put_ops(self) -> None:
        if self._ops:
            self._edge.op_queue.put(self._op_first, _entries(self._ops))
            self._op_first += len(self._ops)
            self._ops = []

    def finish(self) -> None:
        """Write what is left and cut the queues behind it: an entry there would point at a frame that was cut."""
        self._put_halves()
        self._put_ops()
        for queue, end in ((self._edge.half_queue, self._edge.half_end), (self._edge.op_queue, self._edge.op_end)):
            if queue.file.starts():
                queue.cut(end)


def _entries(rows: list[tuple[int, int, int]]) -> np.ndarray[Any, Any]:
    return np.array(rows, ENTRY)
