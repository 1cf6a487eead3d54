"""How each half has ended: follows all op partitions, `read_committed`, and keeps one byte a half.

The order of the op partition decides; `store.tables.ends.judge` is the rule, as in the embedded store. An end of this endpoint is
answered when its own record was read back here: the answer is what the rule says at that very place of the partition, so it is
final, and every endpoint that reads the same partition says the same.

Own records are known by their key: 8 bytes that this process chose at its start, then a number. The bytes are in memory only. Every
kafkaCheckpointInterval they are written to the ends topic (checkpoints.py), and a start goes on from there (beginning.py): it reads
the ops since, not all of them. Ends of halves that are gone from the half topic are let go.

Most ops are ends that other endpoints took. Following them must cost little, or a second endpoint would add nothing: they are
read by a short way (`ops.read_sealed`), and gathered: the next reading waits for GATHER_S, unless an own record is in Kafka and
was not read yet.

An op that names a group counts if that is the half's: an endpoint's op shows it by its sealed id; for any other one the half is
looked up. Where that cannot be done now (the half is behind an open transaction of somebody else, or its partition does not
answer), the op waits, and everything behind it about the same half; other halves go on: how one ends does not depend on another.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from ingest.errors import OpsMissing
from ingest.kafka.ended.beginning import Beginner, Beginning, Gap
from ingest.kafka.ended.checkpoints import Saver, Snapshot
from ingest.kafka.ended.table import Ends
from ingest.kafka.halves import Reader, reading
from ingest.kafka.ops import Op, headers_of, read_op, read_sealed
from ingest.kafka.places import Place
from ingest.kafka.sealing import PlaceSealer
from sinks.kafka.clients import Connection, bounds_of, end_watcher
from sinks.kafka.contract import Topics, owner_of
from store.records import OpKind
from store.tables.ends import OPEN, Answer, Verdict, byte_after, judge

POLL_S: Final = 0.2
#: How long ops of others may lie unread once some were read; an own one is read at once.
GATHER_S: Final = 0.02
ASK_S: Final = 5.0
#: The same where the others wait meanwhile.
GLANCE_S: Final = 1.0
#: How often new partitions and halves that are gone are looked for.
LOOK_S: Final = 5.0
AGAIN_S: Final = 0.5
#: Ops that may wait for halves that cannot be read; with more of them no op is read.
UNJUDGED_MAX: Final = 100_000
_AT_ONCE: Final = 4096
_TOKEN_BYTES: Final = 8
#: A checkpoint comes early after so many ops: a start that reads them all gets on by it, even if it is broken off.
CHECKPOINT_OPS: Final = 500_000
#: How often it is looked whether one is due.
DUE_S: Final = 0.1
#: At the end, for the last checkpoint.
CLOSE_S: Final = 5.0
#: What the first end of a half is answered, and what becomes of its byte.
_FIRST: Final = {kind: judge(kind, OPEN) for kind in (OpKind.COMMIT, OpKind.ROLLBACK)}
_FIRST_BYTE: Final = {kind: byte_after(kind, OPEN) for kind in _FIRST}
LOG: Final = logging.getLogger("escrow.edge")


class TopicsChanged(Exception):
    """What was read is of no use any more; the text says why."""


class Unjudged:
    """Ops that cannot be judged yet, in their order. Once one about a half waits, all that follow about it wait behind it."""

    def __init__(self) -> None:
        self._waiting: list[Any] = []
        self._places: set[Place] = set()
        self.tried_s = 0.0

    @property
    def count(self) -> int:
        return len(self._waiting)

    def __bool__(self) -> bool:
        return bool(self._places)

    @property
    def partitions(self) -> set[int]:
        """Where some wait."""
        return {place.partition for place in self._places}

    @property
    def trouble(self) -> str:
        if not self._places:
            return ""
        place = min(self._places)
        return f"{self.count} ops wait, first about half {place.half_offset} of partition {place.partition}: it cannot be read now"

    def wait_for(self, places: Iterable[Place]) -> None:
        self._places.update(places)

    def keeps(self, place: Place, message: Any) -> bool:
        """Whether an op about this half has to wait: it is kept then."""
        if place in self._places:
            self._waiting.append(message)
            return True
        return False

    def take(self) -> list[Any]:
        """All of them, to be judged again."""
        waiting, self._waiting, self._places = self._waiting, [], set()
        return waiting


class OpFollower:
    """Made in the event loop, runs in a thread."""

    def __init__(
        self,
        connection: Connection,
        topics: Topics,
        sealer: PlaceSealer,
        fail: Callable[[str], None],
        now_ms: Callable[[], int],
        *,
        reserved_ms: int,
        checkpoint_s: float,
        transactional_id_prefix: str,
    ) -> None:
        self._topics, self._sealer, self._fail, self._now_ms = topics, sealer, fail, now_ms
        self._loop = asyncio.get_running_loop()
        # Ops that are passed over would make answers wrong: where its place is gone, it says so.
        self._consumer = Consumer(reading(connection, auto_offset_reset="error"))
        self._watcher = Consumer(reading(connection))  # reads nothing: what it asks waits behind no fetch
        self._half_watcher = end_watcher(connection)
        self._halves = Reader(connection, topics.half)
        self._beginner = Beginner(connection, topics, reserved_ms, now_ms)
        self._beginnings = ThreadPoolExecutor(1, "kafka-beginnings")
        self._beginning: Future[list[Beginning]] | None = None
        self._saver = Saver(connection, topics.ends, transactional_id_prefix)
        self._checkpoint_s = checkpoint_s
        self._bindings: dict[int, bytes] = {}
        self._positions: dict[int, int] = {}  # partition: the op to be read next
        self._saved: dict[int, tuple[int, float]] = {}  # partition: position and time of its last checkpoint
        self._saving: set[int] = set()
        self._gaps: dict[int, Gap] = {}
        self._ids: tuple[str, str] | None = None
        self._ends: dict[int, Ends] = {}
        self._half_lows: dict[int, int] = {}
        self._half_ends: dict[int, int] = {}
        self._unjudged = Unjudged()
        self._behind: dict[int, int] = {}  # partition: where it ended when we began
        self._wanted: dict[int, int] = {}  # partition: own records lie below this offset
        self._due = threading.Event()
        self._gathering = False
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self._number = 0
        self._waiters: dict[int, asyncio.Future[Answer]] = {}
        self._stopping = threading.Event()
        self.caught_up: asyncio.Future[None] = self._loop.create_future()
        self.trouble = ""
        self.counts: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, name="kafka-ops", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # --- in the event loop ------------------------------------------------------------------------------------------------
    def end_of(self, place: Place) -> int:
        """A half's byte, as far as the op partition has been read."""
        ends = self._ends.get(place.partition)
        return ends[place.half_offset] if ends is not None else OPEN

    def expect(self) -> tuple[bytes, asyncio.Future[Answer]]:
        """(the key of an op record that is about to be written, what it will be answered)."""
        self._number += 1
        future: asyncio.Future[Answer] = self._loop.create_future()
        number = self._number
        self._waiters[number] = future
        future.add_done_callback(lambda _: self._waiters.pop(number, None))
        return self._token + number.to_bytes(8, "big"), future

    def read_to(self, places: Iterable[tuple[int, int]]) -> None:
        """Own records are in Kafka, there: they are read now, with all that lies before them."""
        for partition, offset in places:
            if offset >= self._wanted.get(partition, 0):
                self._wanted[partition] = offset + 1
        self._due.set()

    @property
    def partitions(self) -> int:
        return len(self._ends)

    def require_known(self, place: Place) -> None:
        """OpsMissing where ops about this half may be gone from Kafka."""
        if not self._is_known(place):
            raise OpsMissing(self._gaps[place.partition].text)

    @property
    def gap(self) -> str:
        """Why ends of some halves cannot be answered; "" where all can."""
        return next((gap.text for gap in self._gaps.values() if gap.matters(self._now_ms())), "")

    @property
    def to_read(self) -> int:
        """Ops that have to be read before all that were there at the start are known."""
        return sum(max(0, end - self._positions.get(partition, 0)) for partition, end in list(self._behind.items()))

    def checkpoints(self) -> dict[str, Any]:
        """Figures of the checkpoints."""
        since = [at - self._saved.get(partition, (0, 0.0))[0] for partition, at in list(self._positions.items())]
        saver = self._saver
        return {"written": saver.written, "failures": saver.failures, "trouble": saver.trouble, "ops_since": sum(since)}

    def _tell(self, answered: Sequence[tuple[int, Answer]]) -> None:
        for number, answer in answered:
            waiter = self._waiters.get(number)
            if waiter is not None and not waiter.done():
                waiter.set_result(answer)

    def _is_caught_up(self) -> None:
        if not self.caught_up.done():
            self.caught_up.set_result(None)

    async def close(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._saver.close, CLOSE_S)
        self._beginnings.shutdown(wait=False)
        await asyncio.to_thread(self._consumer.close)
        await asyncio.to_thread(self._watcher.close)
        await asyncio.to_thread(self._half_watcher.close)
        await asyncio.to_thread(self._halves.close)

    # --- in the thread ----------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        looked_s = due_s = -LOOK_S
        while not self._stopping.is_set():
            try:
                self._gather()
                self._follow()
                self._judge_again()
                self._begin()
                if time.monotonic() - due_s >= DUE_S:
                    self._checkpoint(self._checkpoint_s)
                    due_s = time.monotonic()
                if time.monotonic() - looked_s >= LOOK_S:
                    self._look()
                    looked_s = time.monotonic()
                self.trouble = self._unjudged.trouble or self.gap
            except KafkaException as error:
                self.trouble = f"ops cannot be read: {error.args[0].str()}"
                self._stopping.wait(AGAIN_S)
            except TopicsChanged as error:
                self._loop.call_soon_threadsafe(self._fail, str(error))
                return
            except BaseException as error:  # a defect: an op that is passed over would make later answers wrong
                LOG.exception("following %s", self._topics.op)
                self._loop.call_soon_threadsafe(self._fail, f"{type(error).__name__}: {error}")
                return
        self._checkpoint(0.0)

    def _look(self) -> None:
        """New partitions are begun; what is gone from the half topic is let go. An op partition that has no half partition is
        passed over: its ops are about nothing."""
        op, half = (self._consumer.list_topics(name, timeout=ASK_S).topics[name] for name in (self._topics.op, self._topics.half))
        new = sorted(set(op.partitions) & set(half.partitions) - set(self._ends))
        if new and self._beginning is None:
            self._beginning = self._beginnings.submit(self._beginner.begin, new)
        self._check_ids()
        for partition, ends in self._ends.items():
            low, self._half_ends[partition] = bounds_of(self._watcher, self._topics.half, partition, GLANCE_S)
            self._half_lows[partition] = low
            ends.forget(low)

    def _check_ids(self) -> None:
        """Topics that were made anew have no record that is known here."""
        ids = self._beginner.ids()
        self._ids = self._ids or ids
        if ids != self._ids:
            raise TopicsChanged(f"{self._topics.half} or {self._topics.op} was made anew: its ids in Kafka are others now")

    def _begin(self) -> None:
        """Follow the partitions whose beginning was found."""
        if self._beginning is not None and self._beginning.done():
            found, self._beginning = self._beginning, None
            for each in found.result():
                self._add(each)
        if self._ends and self._beginning is None and not self._behind:
            self._note_caught_up()

    def _add(self, found: Beginning) -> None:
        partition = found.partition
        self._positions[partition], self._bindings[partition] = found.op_offset, found.binding
        self._saved[partition] = (found.op_offset, time.monotonic())
        if found.op_offset < found.op_end:
            self._behind[partition] = found.op_end
        if found.gap is not None:
            self._gaps[partition] = found.gap
            LOG.warning("%s", found.gap.text)
        self._ends[partition] = found.ends
        self._consumer.incremental_assign([TopicPartition(self._topics.op, partition, found.op_offset)])

    def _note_caught_up(self) -> None:
        if not self.caught_up.done() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._is_caught_up)

    def _checkpoint(self, interval_s: float) -> None:
        """Order a checkpoint of each partition where one is due. Not while ops of it wait: they are in no chunk, and below its
        position."""
        while self._saver.done:
            snapshot, written = self._saver.done.popleft()
            self._saving.discard(snapshot.partition)
            if written:
                self._saved[snapshot.partition] = (snapshot.op_offset, self._saved[snapshot.partition][1])
            elif snapshot.partition in self._ends:
                self._ends[snapshot.partition].changed_again(snapshot.chunks)
        now_s, waiting = time.monotonic(), self._unjudged.partitions if self._unjudged.count else set()
        for partition, position in self._positions.items():
            at, ordered_s = self._saved[partition]
            early = position - at >= CHECKPOINT_OPS and now_s - ordered_s >= AGAIN_S
            due = position > at and (now_s - ordered_s >= interval_s or early)
            if due and partition not in self._saving and partition not in waiting:
                self._saving.add(partition)
                self._saved[partition] = (at, now_s)
                ends = self._ends[partition]
                chunks = ends.take(all_of_them=not self._saver.holds(partition))
                self._saver.save(Snapshot(partition, self._bindings[partition], position, chunks, ends.numbers))

    def _gather(self) -> None:
        """What others wrote is let come together, until an own record is in Kafka. A start that has to catch up does not wait."""
        if self._gathering and not self._behind:
            self._due.clear()
            if all(self._positions.get(partition, 0) >= end for partition, end in list(self._wanted.items())):
                self._due.wait(GATHER_S)

    def _follow(self) -> None:
        first = self._consumer.poll(POLL_S)
        self._gathering = first is not None
        if first is None:
            return
        messages = [first, *self._consumer.consume(_AT_ONCE, 0)]
        good: list[Any] = [message for message in messages if message.error() is None]
        self._apply(good)
        self._positions.update({message.partition(): message.offset() + 1 for message in good})
        while self._unjudged.count >= UNJUDGED_MAX and not self._stopping.is_set():  # nothing more is read, so memory is bounded
            self._stopping.wait(AGAIN_S)
            self._judge_again()
        self._note_ends(good, [message for message in messages if message.error() is not None])

    def _note_ends(self, good: list[Any], events: list[Any]) -> None:
        """A partition that others write to all the time may never tell of its end: then we are beyond where it was."""
        for message in good if self._behind else ():
            if message.offset() + 1 >= self._behind.get(message.partition(), math.inf):
                del self._behind[message.partition()]
        for event in events:
            code = event.error().code()
            if code == KafkaError._PARTITION_EOF:
                self._behind.pop(event.partition(), None)
            elif code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                at = self._positions.get(event.partition())
                raise TopicsChanged(
                    f"op partition {event.partition()} has no op {at} any more: it was read too late, or Kafka has lost records"
                )
            elif code != KafkaError.UNKNOWN_TOPIC_OR_PART:  # a partition that is just being made
                self.trouble = f"ops cannot be read: {event.error().str()}"

    def _judge_again(self) -> None:
        """Ops that wait, in the order in which they came."""
        if self._unjudged.count and time.monotonic() - self._unjudged.tried_s >= AGAIN_S:
            self._apply(self._unjudged.take())
            self._unjudged.tried_s = time.monotonic()

    def _apply(self, messages: list[Any]) -> None:
        """Judge ops one after another. What has to be looked up is looked up before the first of them changes anything."""
        sealed = [read_sealed(message, message.partition(), self._sealer) for message in messages]
        others = [(message, read_op(message)) for message, short in zip(messages, sealed, strict=True) if short is None]
        counted = self._those_that_count([(message.partition(), op) for message, op in others if op is not None])
        rest, plain = iter(others), not self._unjudged and not self._gaps
        answered: list[tuple[int, Answer]] = []
        for message, short in zip(messages, sealed, strict=True):
            if short is not None and plain and self._is_first(message.partition(), *short):
                answer: Answer | None = _FIRST[short[0]]
            elif short is not None:
                answer = self._judge_in_turn(message, *short, counts=True)
            else:
                _, op = next(rest)
                if op is None or op.kind is OpKind.ASKED:
                    self.counts["asked" if op else "illegal"] += 1
                    continue
                counts = (message.partition(), op.half_offset, op.group) in counted
                answer = self._judge_in_turn(message, op.kind, op.half_offset, counts=counts)
            if answer is not None:
                key = message.key() or b""
                if key.startswith(self._token) and len(key) == _TOKEN_BYTES + 8:
                    answered.append((int.from_bytes(key[_TOKEN_BYTES:], "big"), answer))
        if answered and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell, answered)

    def _is_first(self, partition: int, kind: OpKind, half_offset: int) -> bool:
        """Whether it is the first end of a half that is there; it is noted then. What `_judge_in_turn` says, for nearly all ops."""
        if half_offset < self._half_lows.get(partition, 0) or not self._ends[partition].first(half_offset, _FIRST_BYTE[kind]):
            return False
        self.counts["accepted"] += 1
        return True

    def _judge_in_turn(self, message: Any, kind: OpKind, half_offset: int, *, counts: bool) -> Answer | None:
        """None where nothing can be answered: it has to wait, is in the table already, or ops before it are missing."""
        partition = message.partition()
        if self._unjudged and self._unjudged.keeps(Place(partition, half_offset), message):
            return None
        if self._ends[partition].has(half_offset, message.offset()):
            return None
        answer = self._judge(partition, kind, half_offset, counts)
        self.counts[answer.verdict.value] += 1
        return answer if not self._gaps or self._is_known(Place(partition, half_offset)) else None

    def _oldest(self, partition: int) -> int:
        """The first half of which something can be said, now or later."""
        gap, low = self._gaps.get(partition), self._half_lows.get(partition, 0)
        return low if gap is None or gap.matters(self._now_ms()) else max(low, gap.known_from)

    def _is_known(self, place: Place) -> bool:
        """Whether all ops about this half are known."""
        gap = self._gaps.get(place.partition)
        return gap is None or place.half_offset >= gap.known_from or not gap.matters(self._now_ms())

    def _judge(self, partition: int, kind: OpKind, half_offset: int, counts: bool) -> Answer:
        if not counts:
            return Answer(Verdict.REFUSED, "unknown id, or of another group")
        if half_offset < self._oldest(partition):
            return Answer(Verdict.REFUSED, "gone: it is older than what Kafka keeps")
        ends = self._ends[partition]
        before = ends[half_offset]
        answer = judge(kind, before)
        if answer.verdict is Verdict.ACCEPTED:
            ends[half_offset] = byte_after(kind, before)
        return answer

    def _those_that_count(self, ops: list[tuple[int, Op]]) -> set[tuple[int, int, str | None]]:
        """(partition, half_offset, group) of ops that are about a half of that group."""
        good: set[tuple[int, int, str | None]] = set()
        doubtful: dict[int, dict[int, set[str | None]]] = {}
        for partition, op in ops:
            if op.kind is OpKind.ASKED:
                continue
            place = Place(partition, op.half_offset)
            if op.id and op.group is not None and self._sealer.is_good(op.id, place, op.group):
                good.add((partition, op.half_offset, op.group))
            else:
                doubtful.setdefault(partition, {}).setdefault(op.half_offset, set()).add(op.group)
        for partition, wanted in doubtful.items():
            try:
                self._look_up(partition, wanted, good)
            except KafkaException as error:
                self.trouble = f"halves cannot be read: {error.args[0].str()}"
                self._unjudged.wait_for(Place(partition, half_offset) for half_offset in wanted)
        return good

    def _look_up(self, partition: int, wanted: dict[int, set[str | None]], good: set[tuple[int, int, str | None]]) -> None:
        """Which of these (half offset: groups that are named) are about a half of that group. KafkaException: nobody knows now."""
        unstable = self._unstable(partition, wanted)
        self._unjudged.wait_for(Place(partition, half_offset) for half_offset in unstable)
        wanted = {half_offset: groups for half_offset, groups in wanted.items() if half_offset not in unstable}
        if wanted:
            named = [half_offset for half_offset, groups in wanted.items() if groups != {None}]
            halves = self._halves.read(partition, named) if named else {}
            owners = {half_offset: _group_of(half) for half_offset, half in halves.items()}
            for half_offset, groups in wanted.items():
                good.update((partition, half_offset, group) for group in groups if group and owners.get(half_offset) == group)
                if None in groups and half_offset < self._half_end(partition, half_offset):
                    good.add((partition, half_offset, None))

    def _unstable(self, partition: int, half_offsets: Collection[int]) -> set[int]:
        """An op about a half behind an open transaction of somebody else can be judged when that has ended: the job waits too."""
        end = self._half_end(partition, max(half_offsets))
        beyond = {half_offset for half_offset in half_offsets if half_offset >= end}
        if not beyond:
            return beyond
        last = bounds_of(self._half_watcher, self._topics.half, partition, ASK_S)[1]
        return {half_offset for half_offset in beyond if half_offset < last}

    def _half_end(self, partition: int, half_offset: int) -> int:
        """The end of a half partition: asked for anew where it was not beyond this offset when last looked at."""
        if half_offset >= self._half_ends.get(partition, 0):
            self._half_ends[partition] = bounds_of(self._watcher, self._topics.half, partition, ASK_S)[1]
        return self._half_ends[partition]


def _group_of(half: Any) -> str:
    return owner_of(headers_of(half))
