"""The edge's side of the store: takes halves, messages and ends, and answers only when they are durable.

Files it writes: commit log, half queue, op queue, ends, dedup, dictionary, edge.published, edge.checkpoint.

`edge.checkpoint` (JSON and its CRC, replaced as a whole) says what recovery may rely on:
    log_end      queues and ends reflect the log up to here, durably
    half_end, op_end   the queues' ends at log_end
    half_begin   halves before it are gone
    positions    [queue key, next queue_offset] of every topic queue that has had a commit
    clean        true when the edge closed in order: log_end is then the end of the log

Appending, in this order: room in the queues → frames into the log → queue entries → flush of the log → ends and dedup keys →
published ends. Only the log is flushed; the rest is derived from it and made durable by the next checkpoint. Ends and keys
wait in memory for the flush: a mapped page may reach the disk before the log does, and must never speak of an op that a power
failure took away.
"""

from __future__ import annotations

import struct
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np

from store.directory import TOPIC_REMOVAL, Geometry, Lock, StoreDirectory
from store.edge import ends_recovery, journal_heads
from store.edge import names_recovery as names
from store.edge.pending_counts import PendingByGroup
from store.edge.recovery import CHECKPOINT, recover
from store.errors import (
    BodyTooLarge,
    Corrupt,
    DuplicateKey,
    FlushFailed,
    IllegalProperty,
    InvalidRecord,
    NoRoom,
    SegmentGone,
    StoreUnusable,
)
from store.incarnations import Lineage
from store.io import disk
from store.io.pages import EDGE_MAGIC, JOB_MAGIC, EdgeSlot, JobSlot, PublishedPage
from store.io.prefault import Runway
from store.progress import Progress, no_progress
from store.records import ENTRY, IMMUNITY_MAX_S, NO_POSITION, QUEUE_OFFSET_BITS, STATE_OF_OP, OpKind, State, Via, parse_immunity_s
from store.tables import frames
from store.tables import names as dictionary
from store.tables.commit_log import CommitLog, GroupCommit, Placed, doubt
from store.tables.consume_queue import ASKED_TAG, ConsumeQueue, make_entries
from store.tables.dedup import Dedup, Known, digest_of
from store.tables.ends import Answer, EndsTable, Verdict, byte_after, judge
from store.tables.frames import ALIKE_MIN, AlikeMessages, Frame, FrameKind, Message, Op
from store.tables.names import Dictionary, MakerOf, nobody

MAX_BODY_BYTES: Final = 4 << 20
PROPERTIES_ROOM_BYTES: Final = 32 << 10
#: What a producer may use of that, key, tags and dedup key included; the rest is for what a dead letter says besides.
PROPERTIES_MAX_BYTES: Final = 30 << 10
_NO_HALF: Final = -1
#: What follows the heads of a batch, in columns.
Tails = Sequence[Sequence[bytes]]
#: What a producer says of nearly every half.
_PLAIN_ENDS: Final = frozenset({OpKind.COMMIT, OpKind.ROLLBACK})
#: Of so many halves at most is known where they lie and where they go.
RECENT_MAX: Final = 1 << 16
#: So many pairs of group and topic are kept in mind; beyond it they are learned again.
ROUTES_MAX: Final = 1 << 16
_RECENT: Final = np.dtype(
    [("half_offset", "i8"), ("offset", "i8"), ("size", "i8"), ("group_no", "i8"), ("topic_no", "i8"), ("queue_id", "i8")]
)
assert frames.BATCH_MAX <= RECENT_MAX


class End(NamedTuple):
    """How somebody wants a transaction to end. `group` None: whoever says it may end any group's (operator, checker)."""

    half_offset: int
    kind: OpKind
    group: str | None = None
    via: Via = Via.PRODUCER
    actor: str = ""
    remark: str = ""


class _Unflushed(NamedTuple):
    """What waits until the log is flushed up to the ticket: ends of halves, and dedup keys."""

    ticket: int
    marks: dict[int, int]
    keys: dict[bytes, Known]


class _NewNames(Exception):
    """A message names a group or a topic that has no number yet, or whose route is not known."""


class _Judging:
    """What came of the ends of one batch so far."""

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.ops: list[Op] = []
        #: Ends of halves: before this batch, and as its ops leave them.
        self.before: dict[int, int] = {}
        self.marks: dict[int, int] = {}
        #: Places in topic queues that are given away.
        self.taken: dict[int, int] = {}


class Appended(NamedTuple):
    """Records in the log, not yet durable: pass `ticket` to `wait`. Their half_offsets (op_offsets), in the order given; of
    ordinary messages also their topic positions."""

    offsets: Sequence[int]
    ticket: int
    positions: Sequence[int] = ()


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
        store_host: bytes = frames.NO_HOST,
        store_port: int = 0,
        on_publish: Callable[[], None] | None = None,
        progress: Progress = no_progress,
    ) -> None:
        self.directory = StoreDirectory(root, geometry, create=True)
        self.checkpoint_bytes = checkpoint_bytes
        self._store_host, self._store_port = store_host, store_port
        self._on_publish, self._dedup_window_s = on_publish, dedup_window_s
        shape = self.directory.geometry
        self._body_room_bytes = room = shape.commit_log_segment_bytes - frames.HALF_HEAD.itemsize - PROPERTIES_ROOM_BYTES
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
        checkpoint = _checkpoint_of(root)
        journal_heads.check(root, checkpoint)
        doubted, self._progress = names.why_doubted(self.directory, checkpoint), progress
        if doubted:
            names.learn_again(self.directory, _queue_keys(checkpoint), default_queues, progress)
        self.dictionary = Dictionary(root / dictionary.NAME, writable=True, default_queues=default_queues)
        self.log = CommitLog(self.directory.commit_log, shape.commit_log_segment_bytes, writable=True)
        self.runway = Runway(self.directory.commit_log, shape.commit_log_segment_bytes)
        entries = shape.log_queue_entries_per_file
        self.half_queue = ConsumeQueue(self.directory.half_queue(), entries, "half", writable=True)
        self.op_queue = ConsumeQueue(self.directory.op_queue(), entries, "op", writable=True)
        self.ends_table = EndsTable(self.directory.ends(), writable=True)
        self.dedup = Dedup(root / "dedup", self._dedup_window_s, writable=True)
        self.page = PublishedPage(root / "edge.published", EDGE_MAGIC, writable=True)
        self._append_lock = threading.Lock()
        self._checkpoint_lock = threading.Lock()
        self._commit = GroupCommit(self.log.flush, self._mark, self._publish)
        self._routes: dict[tuple[str, str], tuple[int, int, int, bytes]] = {}
        #: How often topics were removed: what was encoded before may have a number that is nobody's now.
        self._removals = 0
        #: Who makes a name that is new; whoever limits that sets it.
        self.maker_of: MakerOf = nobody
        #: Halves before it are gone for whoever asks here. Readers see it, as HALF_BEGIN, once a checkpoint has made it durable.
        self.half_begin = self.half_end = self.op_end = 0
        self.next_offset: dict[int, int] = {}
        self._unflushed: deque[_Unflushed] = deque()
        self._marks: dict[int, tuple[int, int]] = {}
        self._keys: dict[bytes, tuple[int, Known]] = {}
        #: Halves that came lately, each at its half_offset modulo RECENT_MAX: most ends are about these.
        self._recent = np.full(RECENT_MAX, -1, _RECENT)
        self.pending = PendingByGroup(self, self._append_lock)
        #: Ends that were taken back, and ends by kind, since the start.
        self.reopened = 0
        self.ended: Counter[OpKind] = Counter()
        self._checkpointed = 0
        self.recovery = recover(self, progress)
        if doubted:
            self.recovery.damage.append((0, 0, f"{doubted}; made anew from its records and the names in the commit log"))
        #: Which stores this one descends from, and what of them it holds.
        self.lineage = Lineage.read(root, self.directory.store_id).settled(root, self.half_end, self.next_offset)
        self._commit.flushed = self.log.end
        self.page[EdgeSlot.LOG_BEGIN], self.page[EdgeSlot.OP_BEGIN] = self.log.file.begin, self.op_queue.begin
        self._publish((self.log.end, self.half_end, self.op_end))
        self.page[EdgeSlot.EPOCH] += 1
        self._free_numbers()

    def learn_names_again(self) -> None:
        """Recovery: the dictionary lacks names that the log has."""
        default_queues = self.dictionary.default_queues
        self.dictionary.close()
        names.learn_again(self.directory, self.next_offset, default_queues, self._progress)
        self.dictionary = Dictionary(self.directory.root / dictionary.NAME, writable=True, default_queues=default_queues)

    # --- taking halves and messages ---------------------------------------------------------------------------------
    def prepare(self, messages: Sequence[Message], now_ms: int) -> Sequence[int]:
        """Store halves, all or none; their half_offsets, once they are durable."""
        appended = self.append_halves(messages, now_ms)
        self.wait(appended.ticket)
        return appended.offsets

    def append_halves(self, messages: Sequence[Message], now_ms: int) -> Appended:
        """Append halves as one batch. They count only after `wait(ticket)`.

        A message whose dedup key is known leads to the half of the first one: it is not stored again, and its ticket makes the
        caller wait for the first one's flush.
        """
        removals = self._removals
        heads, tails = self._encode_messages(messages, FrameKind.HALF, now_ms)
        with self._append_lock:
            if removals == self._removals:
                return self._append_halves(messages, heads, tails, now_ms)
        return self.append_halves(messages, now_ms)  # a topic was removed meanwhile: once more, under the names as they are now

    def _append_halves(self, messages: Sequence[Message], heads: Any, tails: Tails, now_ms: int) -> Appended:
        self._commit.check()
        offsets, keys = self._sift(messages, heads, now_ms // 1000)
        if not isinstance(offsets, range):
            # Several messages of this batch may lead to one new half: the first of them is stored.
            firsts = {offset: number for number, offset in reversed(list(enumerate(offsets))) if offset >= self.half_end}
            fresh = sorted(firsts.values())
            heads, tails = heads[fresh], [[column[number] for number in fresh] for column in tails]
        if keys:  # room for those that wait for their flush, too
            self.dedup.ensure(len(self._keys) + len(keys), now_ms // 1000)
        ticket = self._append_fresh(heads, tails) if len(heads) else self.log.end
        self._remember(_Unflushed(ticket, {}, keys))
        return Appended(offsets, ticket)

    def _sift(self, messages: Sequence[Message], heads: Any, now_s: int) -> tuple[Sequence[int], dict[bytes, Known]]:
        """(half_offset of each message, keys to remember): an offset before half_end is an earlier half with the same dedup key."""
        following, given = self.half_end, frames.dedup_keys_of(messages)
        keys: dict[bytes, Known] = {}
        if not any(given):
            return range(following, following + len(messages)), keys
        digests = [
            digest_of(group_no, key) if key else b"" for key, group_no in zip(given, heads["group_no"].tolist(), strict=True)
        ]
        earlier = self._known(digests, now_s)
        crcs = [crc32(body) for body in frames.bodies_of(messages)]
        if not earlier and all(digests):  # mostly
            stop = following + len(messages)
            keys = dict(zip(digests, map(Known, range(following, stop), repeat(now_s), crcs), strict=True))
            if len(keys) == len(messages):
                return range(following, stop), keys
            keys = {}
        offsets: list[int] = []
        for number, (digest, body_crc) in enumerate(zip(digests, crcs, strict=True)):
            known = keys.get(digest) or earlier.get(digest)
            if known is None:
                if digest:
                    keys[digest] = Known(following, now_s, body_crc)
            elif known.body_crc != body_crc:
                error = DuplicateKey(
                    f"dedup_key: {given[number]!r} was used for another body within the window; use one key for one message"
                )
                error.number = number
                raise error
            offsets.append(following if known is None else known.half_offset)
            following += known is None
        return offsets, keys

    def _append_fresh(self, heads: np.ndarray[Any, Any], tails: Tails) -> int:
        first, count = self.half_end, len(heads)
        self.half_queue.file.ensure((first + count) * ENTRY.itemsize)
        self.ends_table.ensure(first, first + count)
        heads["queue_offset"] = np.arange(first, first + count)
        self._spread(heads)
        placed = self._append(heads, tails)
        with self._doubtful():
            self.half_queue.put(first, make_entries(placed.offsets, placed.sizes, heads["tags_code"]))
        self.half_end = first + count
        self.pending.halves(heads["group_no"].tolist())
        self._note_recent(first, placed, heads)
        return placed.end

    def _note_recent(self, first: int, placed: Placed, heads: np.ndarray[Any, Any]) -> None:
        recent = np.empty(len(heads), _RECENT)
        recent["half_offset"], recent["offset"], recent["size"] = heads["queue_offset"], placed.offsets, placed.sizes
        for name in ("group_no", "topic_no", "queue_id"):
            recent[name] = heads[name]
        at = first % RECENT_MAX
        room = RECENT_MAX - at
        self._recent[at : at + len(recent)] = recent[:room]
        self._recent[: max(len(recent) - room, 0)] = recent[room:]

    def append_messages(self, messages: Sequence[Message], now_ms: int) -> Appended:
        """Append ordinary messages as one batch: visible without a transaction, once they are durable and settled."""
        removals = self._removals
        heads, tails = self._encode_messages(messages, FrameKind.MESSAGE, now_ms)
        with self._append_lock:
            if removals == self._removals:
                return self._append_messages(heads, tails)
        return self.append_messages(messages, now_ms)

    def _append_messages(self, heads: Any, tails: Tails) -> Appended:
        self._commit.check()
        first = self.op_end
        self.op_queue.file.ensure((first + len(heads)) * ENTRY.itemsize)
        heads["queue_offset"] = np.arange(first, first + len(heads))
        self._spread(heads)
        taken: dict[int, int] = {}
        keys = zip(heads["topic_no"].tolist(), heads["queue_id"].tolist(), strict=True)
        heads["position"] = [self._take_position(topic_no << 6 | queue_id, taken) for topic_no, queue_id in keys]
        positions = heads["position"].tolist()
        placed = self._append(heads, tails)
        appended = self._after_ops(first, placed, [_NO_HALF] * len(heads), taken)
        return Appended(appended.offsets, appended.ticket, positions)

    def _encode_messages(self, messages: Sequence[Message], kind: FrameKind, now_ms: int) -> tuple[Any, Tails]:
        """(heads without places, tails) of messages; refuses what the store will not take."""
        if not messages:
            raise InvalidRecord("messages: the batch is empty; send at least one")
        try:
            while True:
                try:
                    return self._encode_known(messages, kind, now_ms)
                except _NewNames:
                    self._make_routes(messages)
        except InvalidRecord as error:
            error.number = self._first_refused(messages, kind, now_ms)
            raise

    def _encode_known(self, messages: Sequence[Message], kind: FrameKind, now_ms: int) -> tuple[Any, Tails]:
        """The same under names that are known; _NewNames where one is not."""
        alike = AlikeMessages.of(messages) if len(messages) >= ALIKE_MIN else None
        if alike is not None and (found := self._encode_alike(alike, kind, now_ms)) is not None:
            return found
        encoded = [self._encode_message(message, kind, now_ms) for message in messages]
        heads = np.frombuffer(bytearray(b"".join([head for head, _ in encoded])), frames.HALF_HEAD)
        return heads, list(zip(*[tail for _, tail in encoded], strict=True))

    def _encode_alike(self, messages: AlikeMessages, kind: FrameKind, now_ms: int) -> tuple[Any, Tails] | None:
        """The same for messages that are alike: their heads differ from the first one's in a few numbers, which are set for all at
        once. None: one is to be refused."""
        head, (_, encoded) = self._encode_message(messages[0]._replace(body=b"", dedup_key="", born_at_ms=0), kind, now_ms)
        tails = [encoded + key for key in frames.encode_dedup_keys(messages.dedup_keys)]
        body_sizes, tail_sizes = list(map(len, messages.bodies)), list(map(len, tails))
        if max(body_sizes) > self.max_body_bytes or max(tail_sizes) > PROPERTIES_MAX_BYTES:
            return None
        heads = np.frombuffer(bytearray(head * len(messages)), frames.HALF_HEAD)
        if any(messages.born_at_ms):
            try:
                heads["born_at_ms"] = [time_ms or now_ms for time_ms in messages.born_at_ms]
            except OverflowError:
                return None
        heads["body_bytes"], heads["properties_bytes"] = body_sizes, tail_sizes
        return heads, (messages.bodies, tails)

    def _first_refused(self, messages: Sequence[Message], kind: FrameKind, now_ms: int) -> int:
        unmade = -1
        for number, message in enumerate(messages):
            try:
                frames.check_name(message.group, "group")
                frames.check_name(message.topic, "topic")
                self._encode_message(message, kind, now_ms)
            except InvalidRecord:
                return number
            except _NewNames:  # a good name: refused only if no bad one follows
                unmade = number if unmade < 0 else unmade
        return unmade

    def _encode_message(self, message: Message, kind: FrameKind, now_ms: int) -> tuple[bytes, tuple[bytes, bytes]]:
        route = self._routes.get((message.group, message.topic))
        if route is None:
            raise _NewNames
        group_no, topic_no, queues, encoded = route
        body, queue_id, code, immunity_s = message.body, message.queue_id, 0, message.immunity_s
        if immunity_s:
            immunity_s = min(max(immunity_s, 0), IMMUNITY_MAX_S)
        # What the store moves itself (a dead letter, a replay) was taken once: a limit that was lowered since must not hold it up.
        limit_bytes = self._body_room_bytes if message.own else self.max_body_bytes
        if len(body) > limit_bytes:
            raise BodyTooLarge(f"body: {len(body)} bytes; at most {limit_bytes} (maxBodySize) are taken")
        if queue_id is not None and not 0 <= queue_id < queues:
            raise InvalidRecord(f"queue_id: {queue_id}; {message.topic} has queues 0 to {queues - 1}")
        if properties := message.properties:
            encoded += frames.encode_given_properties(properties)
            if frames.TAGS in properties:
                code = frames.tags_code(properties[frames.TAGS])
            if not immunity_s and frames.CHECK_IMMUNITY_TIME_IN_SECONDS in properties:
                immunity_s = parse_immunity_s(properties[frames.CHECK_IMMUNITY_TIME_IN_SECONDS])
            if queue_id is None and (key := properties.get(frames.KEYS)):
                queue_id = crc32(key.encode()) % queues
        if message.dedup_key:
            encoded += frames.encode_properties({frames.DEDUP_KEY: message.dedup_key})
        if message.own:
            encoded += frames.encode_properties(message.own)
        elif len(encoded) > PROPERTIES_MAX_BYTES:
            raise IllegalProperty(
                f"properties: {len(encoded)} bytes with key, tags and dedup_key; at most {PROPERTIES_MAX_BYTES} are taken"
            )
        # For now: the queue asked for, or 0x8000 + number of queues where `_spread` is to choose.
        place = 0x8000 + queues if queue_id is None else queue_id
        sys_flag = frames.SYS_FLAG_PREPARED if kind == FrameKind.HALF else 0
        born, born_host, born_port, flag = message.born_at_ms or now_ms, message.born_host, message.born_port, message.flag
        try:
            # fmt: off
            head = frames.HALF_STRUCT.pack(
                0, 0, 0, kind, 0, 0, 0, 0, now_ms, born, code, group_no, topic_no, place, sys_flag, immunity_s,
                born_host, self._store_host, born_port, self._store_port, flag, len(body), len(encoded), NO_POSITION,
            )
            # fmt: on
        except struct.error as error:
            raise InvalidRecord(f"born_at_ms, born_host, born_port or flag: {error}") from error
        return head, (body, encoded)

    def _make_routes(self, messages: Sequence[Message]) -> None:
        """Learn the routes of messages: (group_no, topic_no, queues, the properties that every half of this group for this topic
        carries). All names that are new are made together, or none."""
        names: Dictionary = self.dictionary
        unknown: Collection[tuple[str, str]] = frames.routes_of(messages)
        if len(unknown) > 1:  # numbers follow the order of the messages, not of a set
            unknown = list(dict.fromkeys((message.group, message.topic) for message in messages))
        with self._append_lock:
            names.add_names([group for group, _ in unknown], [topic for _, topic in unknown], self.maker_of)
            if len(self._routes) + len(unknown) > ROUTES_MAX:
                self._routes.clear()
            for group, topic in unknown:  # under the lock: a topic that is removed right now has no route behind it
                group_no, topic_no = names.group_no(group), names.topic_no(topic)
                assert group_no is not None
                assert topic_no is not None
                self._routes[group, topic] = (group_no, topic_no, names.queues[topic_no], frames.encode_route(group, topic))

    def add_group(self, group: str) -> int:
        """The number of a group, new or known; a new one is durable on return."""
        with self._append_lock:
            self.dictionary.add_names([group], [], self.maker_of)
            return self.dictionary.add_group(group)

    def add_topic(self, topic: str, queues: int) -> int:
        """The number of a topic, new or known; a new one is durable on return, with so many queues."""
        with self._append_lock:
            return self.dictionary.add_topic(topic, queues)

    # --- removing topics (`removal.py` judges which) --------------------------------------------------------------------
    @property
    def lock(self) -> threading.Lock:
        """Nothing is appended while it is held: for `removal.py`, which must look and remove at one instant."""
        return self._append_lock

    def remove_names(self, topic_nos: Collection[int]) -> None:
        """These topics are there no more: durable on return. Under the append lock; nothing stored may speak of them any more but
        what has ended."""
        self._commit.check()
        self.directory.require(TOPIC_REMOVAL)
        self._removals += 1
        self._routes = {names: route for names, route in self._routes.items() if route[1] not in topic_nos}
        self.dictionary.remove_topics(topic_nos, self.log.end)

    def _free_numbers(self) -> None:
        """Numbers of removed topics may be used again when the log does not tell of them any more: after a power failure, too."""
        passed = self.dictionary.passed(self.log.file.begin)
        if passed:
            disk.flush_directory(self.log.file.directory, "commitlog")
            self.dictionary.free(passed)

    @staticmethod
    def _spread(heads: np.ndarray[Any, Any]) -> None:
        """Messages without key and queue go round the queues of their topic, by their number."""
        asked = heads["queue_id"]
        first = int(asked[0])
        if first >= 0x8000 and (asked == first).all():  # mostly
            heads["queue_id"] = heads["queue_offset"] % (first - 0x8000)
            return
        free = asked >= 0x8000
        if free.any():
            queues = asked[free].astype(np.int64) - 0x8000
            asked[free] = heads["queue_offset"][free] % queues

    def has_room(self, halves: Sequence[Message], messages: Sequence[Message], ops: int, size_bytes: int, now_ms: int) -> bool:
        """Whether these halves, ordinary messages, so many ops and so many bytes of frames go into files that are there, under
        names that are known: then appending makes no file and flushes none, and may be done where nobody may wait for the disk."""
        log, half_end, routes = self.log, self.half_end + len(halves), self._routes.keys()
        ops += len(messages)  # an ordinary message has its place among the ops
        keys = len(list(filter(None, frames.dedup_keys_of(halves))))
        return (
            log.segment_bytes - log.end % log.segment_bytes > 2 * size_bytes
            and log.file.end > log.end
            and self.half_queue.file.end >= half_end * ENTRY.itemsize
            and (not ops or self.op_queue.file.end >= (self.op_end + ops) * ENTRY.itemsize)
            and self.ends_table.file.end >= half_end
            and self.dedup.has_room(len(self._keys) + keys if keys else 0, now_ms // 1000)
            and frames.routes_of(halves) <= routes
            and frames.routes_of(messages) <= routes
        )

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
            if len(ends) >= ALIKE_MIN and (alike := self._end_alike(ends, now_ms)) is not None:
                return alike, self.log.end
            judging = _Judging(max(self.half_queue.begin, self.half_begin))
            answers = [self._judge(end, recent, judging) for end, recent in zip(ends, self._recent_of(ends), strict=True)]
            if judging.ops:
                self._append_ops(judging.ops, now_ms, judging.taken)
                self.ended.update([op.kind for op in judging.ops])
                groups = {op.half_offset: op.group_no for op in judging.ops}
                for half_offset, mark in judging.marks.items():
                    before = judging.before[half_offset]
                    if bool(before) != bool(mark):
                        self.pending.change(half_offset, groups[half_offset], 1 if before else -1)
                self._remember(_Unflushed(self.log.end, judging.marks, {}))
            return answers, self.log.end

    def _end_alike(self, ends: Sequence[End], now_ms: int) -> list[Answer] | None:
        """The same, in columns, where one group ends halves that came lately and are open, each once, with nothing else to say:
        nearly all ends that come many at a time. None, and nothing is done, where one of them is something else."""
        half_offsets, kinds, groups, vias, actors, remarks = zip(*ends, strict=True)
        group = groups[0]
        if group is None or groups.count(group) < len(ends) or not _PLAIN_ENDS.issuperset(kinds) or any(actors) or any(remarks):
            return None
        begin = max(self.half_queue.begin, self.half_begin)
        if min(half_offsets) < begin or max(half_offsets) >= self.half_end or len(set(half_offsets)) < len(ends):
            return None
        wanted = np.array(half_offsets)
        recent = self._recent[wanted % RECENT_MAX]
        if (recent["half_offset"] != wanted).any() or (recent["group_no"] != self.dictionary.group_no(group)).any():
            return None
        if not self._marks.keys().isdisjoint(half_offsets) or self.ends_table.any(wanted):
            return None
        if (removed := self.dictionary.removed) and not removed.keys().isdisjoint(recent["topic_no"].tolist()):
            return None
        if not self.log.are_whole(recent["offset"].tolist(), recent["size"].tolist()):
            return None
        taken: dict[int, int] = {}
        keys = (recent["topic_no"] << 6 | recent["queue_id"]).tolist()
        positions = [
            self._take_position(key, taken) if kind == OpKind.COMMIT else NO_POSITION for key, kind in zip(keys, kinds, strict=True)
        ]
        group_no = int(recent["group_no"][0])
        heads = frames.op_heads_of(half_offsets, kinds, vias, positions, first_op_offset=self.op_end, now_ms=now_ms)
        heads["group_no"] = group_no
        self._append_op_frames(heads, (), half_offsets, taken)
        self.ended.update(kinds)
        self.pending.end_all(half_offsets, group_no)
        states = [STATE_OF_OP[kind] for kind in kinds]
        self._remember(_Unflushed(self.log.end, dict(zip(half_offsets, map(int, states), strict=True)), {}))
        return list(map(Answer, repeat(Verdict.ACCEPTED), repeat(""), states, positions))

    def _recent_of(self, ends: Sequence[End]) -> list[tuple[int, ...]]:
        """What was noted when a half was stored, for each end: it may be another half that had the same place since or before."""
        places = [end.half_offset % RECENT_MAX for end in ends]
        if len(places) < 4:
            return [self._recent[place].item() for place in places]
        found: list[tuple[int, ...]] = self._recent[places].tolist()
        return found

    def _judge(self, end: End, recent: tuple[int, ...], judging: _Judging) -> Answer:
        half_offset, marks = end.half_offset, judging.marks
        if not 0 <= half_offset < self.half_end:
            return Answer(Verdict.REFUSED, "unknown id", State.NONE)
        if half_offset < judging.begin:
            return Answer(Verdict.REFUSED, "gone", State.NONE)
        try:
            group_no, topic_no, queue_id = self._queue_of(half_offset, recent)
        except IndexError:
            return Answer(Verdict.REFUSED, "gone", State.NONE)
        except Corrupt:
            # It went bad after it was settled. Only the checker may still end it, or it would stay pending and pin its files.
            if end.kind not in (OpKind.DISCARD_MAX, OpKind.DISCARD_EXPIRED):
                return Answer(Verdict.REFUSED, "quarantined", State.QUARANTINED)
            group_no = topic_no = queue_id = -1
        if end.group is not None and self.dictionary.group_no(end.group) != group_no:
            return Answer(Verdict.REFUSED, "wrong group", State.NONE)
        before = marks[half_offset] if half_offset in marks else self.end_of(half_offset)
        answer = judge(end.kind, before)
        silent = end.kind == OpKind.UNKNOWN and end.via == Via.PRODUCER and not end.remark
        if answer.verdict is not Verdict.ACCEPTED or silent:
            return answer
        if end.kind == OpKind.COMMIT and topic_no in self.dictionary.removed:
            # A half that was ended, and whose op was damaged after its topic was removed: nobody could read it there.
            return Answer(Verdict.REFUSED, "topic removed", State.PREPARED)
        if half_offset not in marks:
            judging.before[half_offset] = before
        marks[half_offset] = byte_after(end.kind, before)
        position = NO_POSITION
        if end.kind == OpKind.COMMIT:
            position = self._take_position(topic_no << 6 | queue_id, judging.taken)
            answer = Answer(answer.verdict, "", answer.state, position)
        detail = frames.encode_detail(end.actor, end.remark)
        judging.ops.append(Op(end.kind, half_offset, group_no, end.via, position, detail))
        return answer

    def append_asked(self, half_offsets: Sequence[int], member: str, now_ms: int) -> int:
        """Record that check requests were handed to a member; halves that have ended meanwhile are left out. The ticket."""
        with self._append_lock:
            self._commit.check()
            still = [h for h in half_offsets if 0 <= h < self.half_end and self.end_of(h) == 0]
            detail = frames.encode_detail(member)
            chunks = [still[at : at + frames.ASKED_MAX] for at in range(0, len(still), frames.ASKED_MAX)]
            ops = [Op(OpKind.ASKED, _NO_HALF, via=Via.CHECK, detail=detail, asked=chunk) for chunk in chunks]
            if ops:
                self._append_ops(ops, now_ms, {})
            return self.log.end

    def reopen(self, op_offset: int) -> int:
        """The op was found corrupt: its half's end is worked out anew from the ops that can be read, so that check-back settles
        a half whose only end was lost. Returns the half_offset, -1 where the op spoke of none. Doing it again changes nothing."""
        with self._append_lock:
            half_offset = self.op_queue.entry(op_offset)[2]
            if not 0 <= half_offset < self.half_end:
                return -1
            mark = 0
            entries = self.op_queue.read(self.op_queue.begin, self.op_end)
            for entry in entries[entries["tags_code"] == half_offset]:
                try:
                    op = self.log.read(int(entry["commit_log_offset"]), int(entry["size_bytes"]))
                except Corrupt:
                    continue
                mark = byte_after(OpKind(op.fields["op_kind"]), mark)
            if bool(mark) != bool(self.end_of(half_offset)):
                self.pending.stale = True  # rare: counted anew, whatever else went on
                self.reopened += 1
            self.ends_table[half_offset] = mark
            return half_offset

    def _append_ops(self, ops: Sequence[Op], now_ms: int, taken: dict[int, int]) -> Appended:
        tags = [ASKED_TAG if op.kind == OpKind.ASKED else op.half_offset for op in ops]
        return self._append_op_frames(frames.op_heads(ops, self.op_end, now_ms), frames.op_tails(ops), tags, taken)

    def _append_op_frames(self, heads: np.ndarray[Any, Any], tails: Tails, tags: Sequence[int], taken: dict[int, int]) -> Appended:
        first = self.op_end
        self.op_queue.file.ensure((first + len(heads)) * ENTRY.itemsize)
        return self._after_ops(first, self._append(heads, tails), tags, taken)

    def _after_ops(self, first: int, placed: Placed, tags: Sequence[int], taken: dict[int, int]) -> Appended:
        with self._doubtful():
            self.op_queue.put(first, make_entries(placed.offsets, placed.sizes, tags))
        self.next_offset.update(taken)
        self.op_end = first + len(tags)
        return Appended(range(first, self.op_end), placed.end)

    def _take_position(self, queue_key: int, taken: dict[int, int]) -> int:
        """The next place in a topic's queue; `taken` remembers it until the op is in the log."""
        queue_offset = taken.get(queue_key)
        if queue_offset is None:
            queue_offset = self.next_offset.get(queue_key, 0)
        taken[queue_key] = queue_offset + 1
        return queue_key << QUEUE_OFFSET_BITS | queue_offset

    def _queue_of(self, half_offset: int, recent: tuple[int, ...]) -> tuple[int, int, int]:
        """(group_no, topic_no, queue_id) of a half, after checking its whole frame: what cannot be read any more must not end."""
        known, offset, size, group_no, topic_no, queue_id = recent
        if known == half_offset and frames.is_whole(self.log.frame_bytes(offset, size), offset):
            return group_no, topic_no, queue_id
        offset, size, _ = self.half_queue.entry(half_offset)
        content = self.log.frame_bytes(offset, size)
        frames.check_frame(content, offset, str(self.log.file.directory))
        kind, number = content[frames.KIND_AT], frames.read_head(content)[7]
        if kind != FrameKind.HALF or number != half_offset:
            raise self._not_this_half(half_offset, offset)
        found: tuple[int, int, int] = frames.HALF_STRUCT.unpack_from(content)[11:14]
        return found

    def _not_this_half(self, half_offset: int, offset: int) -> Corrupt:
        """A damaged entry of the half queue may lead to a whole frame: of another half, or of an op."""
        at = half_offset * ENTRY.itemsize
        return Corrupt(self.half_queue.file.directory, at, f"half {half_offset}: its entry leads to another frame, at {offset}")

    def read_half(self, half_offset: int) -> Frame:
        """A half as it was stored; Corrupt if it cannot be read, SegmentGone if retention has taken it: its place in the queue may
        stay longer than what lies in the log."""
        offset, size, _ = self.half_queue.entry(half_offset)
        if size and offset < self.log.file.begin:
            raise SegmentGone(f"half {half_offset}: the log begins behind it")
        frame = self.log.read(offset, size)
        if frame.kind != FrameKind.HALF or frame.queue_offset != half_offset:
            raise self._not_this_half(half_offset, offset)
        return frame

    # --- what waits for the flush ---------------------------------------------------------------------------------------
    def durable_end_of(self, half_offset: int) -> int:
        """The half's end as of the last op that is flushed: what may be told to others."""
        return self.ends_table[half_offset]

    def end_of(self, half_offset: int) -> int:
        """The half's end as of the last op in the log, flushed or not: 0 while it is open, otherwise its State. To judge by, not to
        tell: a flush that fails takes it back."""
        waiting = self._marks.get(half_offset)
        return self.ends_table[half_offset] if waiting is None else waiting[1]

    def unflushed_marks(self) -> list[tuple[int, int]]:
        """(half_offset, end) of what is in the log and not yet in the table. Under the append lock."""
        return [(half_offset, mark) for half_offset, (_, mark) in self._marks.items()]

    def _known(self, digests: Sequence[bytes], now_s: int) -> dict[bytes, Known]:
        """What these dedup keys led to, in the tables or still waiting for the flush; those that lead nowhere are left out."""
        known = self.dedup.find([digest for digest in digests if digest], now_s)
        known.update({digest: self._keys[digest][1] for digest in self._keys.keys() & digests})
        return known

    def _remember(self, unflushed: _Unflushed) -> None:
        if unflushed.marks or unflushed.keys:
            self._unflushed.append(unflushed)
            self._marks.update({half_offset: (unflushed.ticket, mark) for half_offset, mark in unflushed.marks.items()})
            self._keys.update({key: (unflushed.ticket, known) for key, known in unflushed.keys.items()})

    def _settle_flushed(self, log_end: int) -> None:
        """The log is durable up to here: its ends and keys go into their tables."""
        with self._append_lock:
            while self._unflushed and self._unflushed[0].ticket <= log_end:
                done = self._unflushed.popleft()
                for half_offset, mark in done.marks.items():
                    self.ends_table[half_offset] = mark
                    if self._marks[half_offset][0] == done.ticket:
                        del self._marks[half_offset]
                self.dedup.put_all(done.keys)
                for key in done.keys:
                    if self._keys[key][0] == done.ticket:
                        del self._keys[key]

    # --- durability ---------------------------------------------------------------------------------------------------
    @property
    def flushes(self) -> int:
        """Flushes of the log so far; many callers share one."""
        return self._commit.flushes

    def wait(self, ticket: int) -> None:
        """Return when everything up to the ticket is durable and visible to readers."""
        self._commit.wait(ticket)

    def begin_wait(self, flusher: disk.Flusher, done: Callable[[StoreUnusable | None], None]) -> bool:
        """For whoever cannot `wait`: `done` is told when all that is in the log now is durable and visible to readers, or why that
        is not known. False where it would take longer: a checkpoint is due, or somebody else flushes."""
        if self.log.end - self._checkpointed >= self.checkpoint_bytes:
            return False

        def start(finish: Callable[[StoreUnusable | None], None]) -> bool:
            def through(failure: StoreUnusable | None) -> None:
                try:
                    finish(failure)
                except BaseException as error:  # whoever waits must hear of it, whatever it is
                    failure = doubt(error)
                done(failure)

            return self.log.begin_flush(flusher, through)

        return self._commit.begin(start)

    def _append(self, heads: np.ndarray[Any, Any], tails: Tails) -> Placed:
        end = self.log.end
        try:
            return self.log.append(heads, tails)
        except StoreUnusable as error:
            # Without room for a segment nothing was written, and later there may be some.
            if self.log.end != end or not isinstance(error, NoRoom):
                self._commit.fail(error)
            raise

    def _doubtful(self) -> _Doubtful:
        return _Doubtful(self._commit)

    def _mark(self) -> tuple[int, int, int]:
        with self._append_lock:
            return self.log.end, self.half_end, self.op_end

    def _publish(self, mark: tuple[int, int, int]) -> None:
        self._settle_flushed(mark[0])
        # Halves before ops: whoever sees an op must be able to see its half.
        self.page[EdgeSlot.LOG_END], self.page[EdgeSlot.HALF_END] = mark[0], mark[1]
        self.page[EdgeSlot.OP_END] = mark[2]
        self.page[EdgeSlot.VISIBLE_END] = mark[0]
        if self._on_publish is not None:
            self._on_publish()
        if mark[0] - self._checkpointed >= self.checkpoint_bytes:
            self._try_checkpoint(mark[0])

    def _try_checkpoint(self, log_end: int) -> None:
        """A checkpoint now and then. Without room for it the log is whole all the same, only the next recovery takes longer."""
        try:
            self.write_checkpoint(clean=False)
        except FlushFailed:
            raise
        except StoreUnusable:
            self._checkpointed = log_end - self.checkpoint_bytes * 3 // 4

    def heartbeat(self, now_ms: int) -> None:
        self.page[EdgeSlot.HEARTBEAT_MS] = now_ms

    def checkpoint(self) -> None:
        """Flush everything and note how far recovery may rely on it."""
        self.wait(self.log.end)
        self.write_checkpoint(clean=False)

    def write_checkpoint(self, *, clean: bool) -> None:
        """Flush everything, then note how far recovery may rely on it. One thread at a time."""
        with self._checkpoint_lock:
            with self._append_lock:
                state: dict[str, Any] = {
                    "log_end": self.log.end,
                    "half_end": self.half_end,
                    "op_end": self.op_end,
                    "half_begin": self.half_begin,
                    "positions": list(self.next_offset.items()),
                    "clean": clean,
                    "dedup": self.dedup.extents(),
                    journal_heads.KEY: journal_heads.extents(self.directory.root, self.dictionary.extent, clean=clean),
                }
            state["positions"].sort()  # there may be very many, and producers wait for the lock
            self._commit.check()
            try:
                self.log.flush()
                self._settle_flushed(state["log_end"])
                for part in (self.half_queue, self.op_queue, self.ends_table.file, self.dedup):
                    part.flush()
            except FlushFailed as error:
                # The pages may be lost while they look clean: no later checkpoint may vouch for them.
                self._commit.fail(error)
                raise
            if clean:
                state["ends"] = ends_recovery.crc_of(self, state["half_end"])
            disk.write_json(self.directory.root / CHECKPOINT, state, CHECKPOINT)
            # The job removes rows behind it: after a power failure this side must not take ops about them again.
            self.page[EdgeSlot.HALF_BEGIN] = state["half_begin"]
            self._checkpointed = int(state["log_end"])

    def retain(self) -> dict[str, int]:
        """Delete what the job says nobody needs any more: whole files before its low-water marks. Returns how many went."""
        path = self.directory.root / "job.published"
        if not path.exists():
            return {}
        job = PublishedPage(path, JOB_MAGIC)
        # The cursor before the marks, which the job writes before it: then no mark is older than the cursor says.
        marks_op_cursor = job[JobSlot.MARKS_OP_CURSOR]
        log_low, half_low, op_low = (job[slot] for slot in (JobSlot.LOG_LOW_WATER, JobSlot.HALF_LOW_WATER, JobSlot.OP_LOW_WATER))
        with self._append_lock:
            half_low = min(half_low, self._pinned(marks_op_cursor)[0])
            # From here on no op about an earlier half is accepted, so that the job may remove its row.
            self.half_begin = max(self.half_begin, half_low)
        # The checkpoint remembers what is gone, and recovery reads nothing before it again.
        self.checkpoint()
        with self._append_lock:
            # Only now: what was resumed during the checkpoint must keep its place in the log.
            log_low = min(log_low, self._pinned(marks_op_cursor)[1])
            removed = {
                "commitlog": self.log.file.remove_before(min(log_low, self._checkpointed)),
                "half": self.half_queue.remove_before(half_low),
                "op": self.op_queue.remove_before(op_low),
                "ends": self.ends_table.file.remove_before(half_low),
            }
            self.page[EdgeSlot.LOG_BEGIN], self.page[EdgeSlot.OP_BEGIN] = self.log.file.begin, self.op_queue.begin
            self._free_numbers()
        return removed

    def _pinned(self, marks_op_cursor: int) -> tuple[int, int]:
        """The first half, and its place in the log, of which something was said since the job looked (a resume, and an end after
        it): it stays for one more cycle. Under the append lock."""
        named = self.op_queue.read(max(marks_op_cursor, self.op_queue.begin), self.op_end)["tags_code"]
        half_offset = int(np.min(named[named >= 0], initial=self.half_end))
        there = self.half_queue.begin <= half_offset < self.half_end
        return half_offset, self.half_queue.entry(half_offset)[0] if there else self.log.end

    def close(self) -> None:
        """Flush, note a clean exit, let go of the lock."""
        try:
            self.wait(self.log.end)
            self.write_checkpoint(clean=True)
        finally:
            self._release()

    def _release(self) -> None:
        self.runway.stop()
        for part in (self.log.file, self.half_queue, self.op_queue, self.ends_table.file, self.dedup, self.dictionary):
            part.close()
        self._lock.release()

    def __enter__(self) -> EdgeStore:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._release()


def _checkpoint_of(root: Path) -> dict[str, Any] | None:
    """The checkpoint; None where there is none that can be read: recovery says so."""
    try:
        return disk.read_json(root / CHECKPOINT, journal_heads.CHECKPOINT_KEYS)
    except Corrupt:
        return None


def _queue_keys(checkpoint: dict[str, Any] | None) -> list[int]:
    return [int(key) for key, _ in (checkpoint or {}).get("positions", [])]


class _Doubtful:
    """Around steps behind the log's write: if one fails, log and memory disagree, and only recovery can tell."""

    def __init__(self, commit: GroupCommit) -> None:
        self._commit = commit

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, StoreUnusable):
            self._commit.fail(error)
