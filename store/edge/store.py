"""The edge's side of the store: takes halves, messages and ends, and answers only when they are durable.

Files it writes: commit log, half queue, op queue, ends, dedup, names, dictionary, edge.published, edge.checkpoint.

Appending, in this order: room in the queues → frames into the log → queue entries → flush of the log → ends and
dedup keys → published ends. Only the log is flushed; the rest is derived from it and made durable by the next
checkpoint. Ends and keys wait in memory for the flush (`unflushed.py`).

`EdgeStore` takes the append lock and calls the parts:

    encode, routes      messages into frames
    log_writer          frames into the log, entries into the queues
    halves, ends        what becomes of a batch of halves, or of ends
    group_commit        flush and wait
    checkpoint, recovery, retention   what is kept for the next start, and what may go
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

from store.directory import TOPIC_REMOVAL, Geometry, Lock, StoreDirectory
from store.edge import retention
from store.edge.append import encode
from store.edge.append.encode import MessageEncoder
from store.edge.append.ends import End, Ending
from store.edge.append.group_commit import GroupCommit, doubt
from store.edge.append.halves import HalfAppender
from store.edge.append.judging import Head
from store.edge.append.log_writer import Appended, LogWriter
from store.edge.append.members import Limits, Members
from store.edge.append.recent import RecentHalves
from store.edge.append.routes import Routes
from store.edge.append.unflushed import Unflushed
from store.edge.checkpoint import CheckpointWriter, read_checkpoint
from store.edge.files import EdgeFiles
from store.edge.pending_counts import PendingByGroup
from store.edge.recovery import journal_heads
from store.edge.recovery import names as names_recovery
from store.edge.recovery.recover import recover
from store.errors import StoreUnusable
from store.incarnations import Lineage
from store.io import disk
from store.io.pages import EdgeSlot
from store.messages import NO_HOST, Message, dedup_keys_of, routes_of
from store.progress import Progress, no_progress
from store.records import ENTRY, OpKind
from store.tables.ends import Answer
from store.tables.frames import Frame, FrameKind
from store.tables.journals.names import MakerOf

__all__ = ["Appended", "EdgeStore", "End", "Head", "Limits"]

LOG: Final = logging.getLogger(__name__)


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
        dedup_window_s: int = 3600,
        name_window_s: int = 72 * 3600,
        transaction_limits: Limits | None = None,
        store_host: bytes = NO_HOST,
        store_port: int = 0,
        on_publish: Callable[[], None] | None = None,
        progress: Progress = no_progress,
    ) -> None:
        self.directory = StoreDirectory(root, geometry, create=True)
        segment_bytes = self.directory.geometry.commit_log_segment_bytes
        limits = encode.body_limits(segment_bytes, max_body_bytes)
        self.max_body_bytes, self._on_publish = limits[0], on_publish
        self._lock = Lock(root / "edge.lock", "the edge of this store")
        try:
            self._open_files(default_queues, dedup_window_s, name_window_s, progress)
            self._build_parts(checkpoint_bytes, transaction_limits or Limits())
            self._encoder = MessageEncoder(self._routes, limits, store_host, store_port)
            self._begin()
        except BaseException:
            self._lock.release()
            raise

    def _open_files(self, default_queues: int, dedup_window_s: int, name_window_s: int, progress: Progress) -> None:
        """Open the files, and recover the state from them."""
        root = self.directory.root
        checkpoint = read_checkpoint(root)
        journal_heads.check(root, checkpoint)
        doubted = names_recovery.why_doubted(self.directory, checkpoint)
        if doubted:
            queue_keys = [int(key) for key, _ in (checkpoint or {}).get("positions", [])]
            names_recovery.learn_again(self.directory, queue_keys, default_queues, progress)
        files = EdgeFiles(self.directory, default_queues=default_queues, dedup_window_s=dedup_window_s, name_window_s=name_window_s)
        self._state, self.recovery = recover(files, progress)
        if doubted:
            what = f"{doubted}; rebuilt from its records and the names in the commit log"
            self.recovery.damage.append((0, 0, what))
        for _, _, reason in self.recovery.damage:
            LOG.warning("%s: damage: %s", root, reason)
        self._files, self.dictionary, self.log, self.runway = files, files.dictionary, files.log, files.runway
        self.half_queue, self.op_queue, self.ends_table = files.half_queue, files.op_queue, files.ends_table
        self.dedup, self.page = files.dedup, files.page
        #: The next queue_offset of each topic queue, by queue key.
        self.next_offset = self._state.next_offset

    def _build_parts(self, checkpoint_bytes: int, limits: Limits) -> None:
        files, state, lock = self._files, self._state, threading.Lock()
        self._append_lock = lock
        self._commit = commit = GroupCommit(self.log.flush, self._mark, self._publish)
        self._routes = Routes(self.dictionary, lock)
        self._unflushed = unflushed = Unflushed(self.ends_table, self.dedup, files.names)
        self._checkpoint = CheckpointWriter(files, state, unflushed, commit, lock, every_bytes=checkpoint_bytes)
        self._writer, recent = LogWriter(files, state, commit), RecentHalves()
        self.pending = PendingByGroup(files, state, unflushed, lock)
        self._members = members = Members(files, state, unflushed, limits)
        self._halves = HalfAppender(
            files, state, self._writer, unflushed=unflushed, recent=recent, pending=self.pending, members=members
        )
        self._ends = Ending(files, state, self._writer, unflushed=unflushed, recent=recent, pending=self.pending, members=members)

    def _begin(self) -> None:
        """The last steps of recovery: a checkpoint, then publish."""
        # After a clean exit, too: from here on the log may grow behind the checkpoint.
        self._checkpoint.write(clean=False)
        lineage = Lineage.read(self.directory.root, self.directory.store_id)
        #: Which stores this one descends from, and what of them it holds.
        self.lineage = lineage.settled(self.directory.root, self.half_end, self.next_offset)
        self._commit.flushed = self.log.end
        self.page[EdgeSlot.LOG_BEGIN], self.page[EdgeSlot.OP_BEGIN] = self.log.file.begin, self.op_queue.begin
        self._publish((self.log.end, self.half_end, self.op_end))
        self.page[EdgeSlot.EPOCH] += 1
        self._files.free_topic_numbers()

    # --- how far it has come --------------------------------------------------------------------------------
    @property
    def half_begin(self) -> int:
        """Halves before it are gone."""
        return self._state.half_begin

    @property
    def half_end(self) -> int:
        return self._state.half_end

    @property
    def op_end(self) -> int:
        return self._state.op_end

    @property
    def ended(self) -> Counter[OpKind]:
        """Ends by kind since the start."""
        return self._ends.ended

    @property
    def reopened(self) -> int:
        """Ends that were taken back since the start."""
        return self._ends.reopened

    @property
    def flushes(self) -> int:
        """Flushes of the log so far; many callers share one."""
        return self._commit.flushes

    def drop_halves_before(self, half_offset: int) -> None:
        """Halves before it are gone from now on; durable with the next checkpoint."""
        with self._append_lock:
            self._state.half_begin = max(self._state.half_begin, half_offset)

    # --- halves and messages --------------------------------------------------------------------------------
    def prepare(self, messages: Sequence[Message], now_ms: int) -> Sequence[int]:
        """Store halves, all or none; their half_offsets, once they are durable."""
        appended = self.append_halves(messages, now_ms)
        self.wait(appended.ticket)
        return appended.offsets

    def append_halves(self, messages: Sequence[Message], now_ms: int) -> Appended:
        """Append halves as one batch. They count only after `wait(ticket)`.

        A message whose dedup key is known leads to the half of the first one: it is not stored again, and its
        ticket makes the caller wait for the first one's flush.
        """
        removals = self._routes.removals
        heads, tails = self._encoder.encode(messages, FrameKind.HALF, now_ms)
        with self._append_lock:
            if removals == self._routes.removals:
                self._commit.check()
                return self._halves.append(messages, heads, tails, now_ms)
        # A topic was removed meanwhile: encode again, under the names as they are now.
        return self.append_halves(messages, now_ms)

    def append_messages(self, messages: Sequence[Message], now_ms: int) -> Appended:
        """Append ordinary messages as one batch: visible without a transaction, once they are durable and
        settled."""
        removals = self._routes.removals
        heads, tails = self._encoder.encode(messages, FrameKind.MESSAGE, now_ms)
        with self._append_lock:
            if removals == self._routes.removals:
                self._commit.check()
                return self._writer.messages(heads, tails)
        return self.append_messages(messages, now_ms)

    def has_room(self, halves: Sequence[Message], messages: Sequence[Message], ops: int, size_bytes: int, now_ms: int) -> bool:
        """Whether these halves and ordinary messages, `ops` ops and `size_bytes` of frames fit into files that
        exist, under names that are known. Then appending makes no file and flushes none, so a thread that must
        not wait for the disk may do it."""
        log, half_end, routes = self.log, self._state.half_end + len(halves), self._routes.known.keys()
        ops += len(messages)  # an ordinary message has its place among the ops
        keys = len(list(filter(None, dedup_keys_of(halves))))
        return (
            log.segment_bytes - log.end % log.segment_bytes > 2 * size_bytes
            and log.file.end > log.end
            and self.half_queue.file.end >= half_end * ENTRY.itemsize
            and (not ops or self.op_queue.file.end >= (self._state.op_end + ops) * ENTRY.itemsize)
            and self.ends_table.file.end >= half_end
            and self.dedup.has_room(len(self._unflushed.keys) + keys if keys else 0, now_ms // 1000)
            and routes_of(halves) <= routes
            and routes_of(messages) <= routes
        )

    def read_half(self, half_offset: int) -> Frame:
        """A half as it was stored. Corrupt if it cannot be read, SegmentGone if retention has removed it."""
        return self._files.read_half(half_offset)

    # --- names ----------------------------------------------------------------------------------------------
    @property
    def maker_of(self) -> MakerOf:
        """Returns who makes a new name; set by the owner of name quotas."""
        return self._routes.maker_of

    @maker_of.setter
    def maker_of(self, maker_of: MakerOf) -> None:
        self._routes.maker_of = maker_of

    def add_group(self, group: str) -> int:
        """The number of a group, new or known; a new one is durable on return."""
        with self._append_lock:
            self.dictionary.add_names([group], [], self.maker_of)
            return self.dictionary.add_group(group)

    def add_topic(self, topic: str, queues: int) -> int:
        """The number of a topic, new or known; a new one is durable on return, with `queues` queues."""
        with self._append_lock:
            return self.dictionary.add_topic(topic, queues)

    @property
    def lock(self) -> threading.Lock:
        """Nothing is appended while it is held: for `removal.py`, which must look and remove at one instant."""
        return self._append_lock

    def remove_names(self, topic_nos: Collection[int]) -> None:
        """Remove these topics, which `removal.py` has found unused: durable on return. Under the append lock."""
        self._commit.check()
        self.directory.require(TOPIC_REMOVAL)
        self._routes.drop(topic_nos)
        self.dictionary.remove_topics(topic_nos, self.log.end)

    # --- ends -----------------------------------------------------------------------------------------------
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
            return self._ends.append(ends, now_ms), self.log.end

    def append_asked(self, half_offsets: Sequence[int], member: str, now_ms: int) -> int:
        """Record that check requests were handed to a member, but for halves that have ended meanwhile.
        Returns the ticket."""
        with self._append_lock:
            self._commit.check()
            self._ends.append_asked(half_offsets, member, now_ms)
            return self.log.end

    def reopen(self, op_offset: int) -> int:
        """The op was found corrupt: determine its half's end again from the ops that can be read. Returns the
        half_offset, -1 if the op was about none."""
        with self._append_lock:
            return self._ends.reopen(op_offset)

    def durable_end_of(self, half_offset: int) -> int:
        """The half's end as of the last flushed op: what may be answered."""
        return self.ends_table[half_offset]

    def end_of(self, half_offset: int) -> int:
        """The half's end as of the last op in the log, flushed or not: 0 while it is open, otherwise its State.
        Judge by it, do not tell it: a flush that fails takes it back."""
        return self._unflushed.end_of(half_offset)

    def members_of(self, half_offset: int) -> list[tuple[int, int]]:
        """(ordinal, half_offset) of the members of a half that is open or discarded, in order."""
        with self._append_lock:
            return sorted((ordinal, member.half_offset) for ordinal, member in self._members.of(half_offset).items())

    # --- durability -----------------------------------------------------------------------------------------
    def wait(self, ticket: int) -> None:
        """Return when everything up to the ticket is durable and visible to readers."""
        self._commit.wait(ticket)

    def begin_wait(self, flusher: disk.Flusher, done: Callable[[StoreUnusable | None], None]) -> bool:
        """For a caller that cannot `wait`: calls `done` when all that is in the log now is durable and visible
        to readers, or with the reason why that is not known. False where it would take longer: a checkpoint is
        due, or another caller flushes."""
        if self._checkpoint.is_due(self.log.end):
            return False

        def start(finish: Callable[[StoreUnusable | None], None]) -> bool:
            def through(failure: StoreUnusable | None) -> None:
                try:
                    finish(failure)
                except BaseException as error:  # the waiting caller must learn of every error
                    failure = doubt(error)
                done(failure)

            return self.log.begin_flush(flusher, through)

        return self._commit.begin(start)

    def _mark(self) -> tuple[int, int, int]:
        with self._append_lock:
            return self.log.end, self._state.half_end, self._state.op_end

    def _publish(self, mark: tuple[int, int, int]) -> None:
        log_end, half_end, op_end = mark
        with self._append_lock:
            self._unflushed.settle(log_end)
        # Halves before ops: a reader who sees an op must be able to see its half.
        page = self.page
        page[EdgeSlot.LOG_END], page[EdgeSlot.HALF_END] = log_end, half_end
        page[EdgeSlot.OP_END] = op_end
        page[EdgeSlot.VISIBLE_END] = log_end
        if self._on_publish is not None:
            self._on_publish()
        if self._checkpoint.is_due(log_end):
            self._checkpoint.try_write(log_end)

    def heartbeat(self, now_ms: int) -> None:
        self.page[EdgeSlot.HEARTBEAT_MS] = now_ms

    def checkpoint(self) -> int:
        """Flush everything and write how far recovery may rely on it. Returns that end of the log."""
        self.wait(self.log.end)
        self.write_checkpoint(clean=False)
        return self._checkpoint.log_end

    def write_checkpoint(self, *, clean: bool) -> None:
        """Flush everything, then write how far recovery may rely on it."""
        self._checkpoint.write(clean=clean)

    def retain(self) -> dict[str, int]:
        """Delete the files that the job does not need any more. Returns how many were deleted, by directory."""
        return retention.retain(self._files, self._state, self._append_lock, self.checkpoint)

    def close(self) -> None:
        """Flush, record a clean exit, release the lock."""
        try:
            self.wait(self.log.end)
            self.write_checkpoint(clean=True)
        finally:
            self._release()

    def _release(self) -> None:
        self._files.close()
        self._lock.release()

    def __enter__(self) -> EdgeStore:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._release()
