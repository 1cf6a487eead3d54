"""A shard on the driver: its store, its place in Kafka, and how a batch becomes truth.

`commit` is the seam to the settlement, which does not know about Kafka:
    1  the batch goes to a task on an executor, which writes it and its effects in one Kafka transaction (sinks/kafka/release.py)
    2  the redo partition is read up to it, `read_committed`
    3  what was read is applied
A task that failed is started again, for as long as this driver is the master; whether the batch was written is for the task to
find out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
from confluent_kafka import KafkaException

from sinks.kafka import contract, ownership, redo
from sinks.kafka.task import UNTAKEN, Done, Requested, Superseded, Target, Task
from store.arrays import Array
from store.errors import Corrupt, CursorBeyondLog
from store.job.batch import Batch
from store.job.shard import ShardStore
from store.job.undeliverable import Refusal
from store.records import OpKind, State, Via, state_of
from store.tables.redo_log import Marker, RedoKind, kinds_of, numbers_of
from store.tables.state_table import StateTable
from streaming.errors import JobCannotStart, JobError, JobStopped
from streaming.kafka.aside import Retries, next_tries
from streaming.kafka.checks.locating import Then, locate_at_once
from streaming.kafka.checks.requests import Requests
from streaming.kafka.reading.records import Piece

LOG: Final = logging.getLogger("escrow.kafka")
WINDOW_BYTES: Final = 32 << 20
WINDOW_MESSAGES: Final = 16_384
#: What a message costs beside its body.
MESSAGE_COST_BYTES: Final = 512
BACKOFF_S: Final = 0.5
BACKOFF_MAX_S: Final = 5.0
_BODY_KINDS: Final = np.array([int(kind) for kind in (RedoKind.RELEASE, RedoKind.DISCARD, RedoKind.CHECK)], np.uint8)

_NO_LANES: Final = np.empty(0, "<u8")

#: Runs a task on an executor: what came of it, or a sentence why it failed. Superseded passes through.
RunTask = Callable[[Task], Done | str]
#: Finds out where requests lie, now or later.
Locate = Callable[[Target, Requested, Then], None]


@dataclass(slots=True)
class Traffic:
    """What was released, for the metrics."""

    messages: int = 0
    bytes: int = 0
    failures: int = 0


class Shard:
    """One thread at a time, under `lock`."""

    def __init__(
        self, store: ShardStore, target: Target, run_task: RunTask, stopping: threading.Event, *,
        pause_max_ms: int = 30_000, is_stuck: Callable[[str], bool] = lambda _: False,
        topic_ids: Mapping[str, str] | None = None, requests: Requests | None = None, locate: Locate = locate_at_once,
    ) -> None:  # fmt: skip
        """`pause_max_ms`: between two tries at messages that were set aside. `is_stuck`: see sinks/kafka/stuck.py. `topic_ids`:
        what Kafka calls half, op and redo topic, by name. `locate`: see streaming/kafka/checks/locating.py."""
        self._topic_ids = dict(topic_ids or {})
        self.store, self.target, self._run_task, self._stopping = store, target, run_task, stopping
        self._is_stuck, self._locate, self._owner = is_stuck, locate, ""
        self.retries = Retries(pause_max_ms)
        self.requests = requests or Requests()
        self.task_since_s: float | None = None  # a task is at work
        self.partition = target.partition
        self.lock = threading.Lock()
        self.deferred: list[Piece] = []  # ops that were read before their halves
        self.unkept: int | None = None  # where those of them begin that were too many to be kept: they are read again
        self.waits = False  # for a half that Kafka has and nobody may read yet, or because it is held back
        self.held_back = False  # as many messages are set aside as may be: no op is settled
        self.term = 0
        self.traffic = Traffic()
        self._reached_end = False
        self.names_told = False  # since we have claimed it
        self._require_same_topics()
        self._follower = redo.Follower(target.client, target.topics.redo)
        self._follow_from_the_start()

    # --- what the settlement needs --------------------------------------------------------------------------------------------
    @property
    def marker(self) -> Marker:
        return self.store.marker

    @property
    def table(self) -> StateTable:
        return self.store.table

    def batch(self, *, half_cursor: int, op_cursor: int, now_ms: int) -> Batch:
        return self.store.batch(half_cursor=half_cursor, op_cursor=op_cursor, now_ms=now_ms)

    def commit(self, batch: Batch) -> None:
        """Steps 1 to 3 of the module's head. New messages stay behind those of their lanes that were set aside."""
        self._commit(self._task(batch, self.store.undeliverable.lanes()))

    def count_taken(self, now_ms: int) -> int:
        """An ASKED op for every pending half whose request a member has taken; how many."""
        half_offsets = self.requests.take()
        taken = half_offsets[self._is_pending(half_offsets)] if len(half_offsets) else half_offsets
        if len(taken):
            batch = self.batch(half_cursor=self.marker.half_cursor, op_cursor=self.marker.op_cursor, now_ms=now_ms)
            self._commit(replace(self._task(batch, _NO_LANES), asked=taken.astype("<i8").tobytes()))
        return len(taken)

    def note_answers(self, ops: Array) -> None:
        """Members that have answered UNKNOWN have taken their requests."""
        if not self.requests.wait:
            return
        said = ops[(ops["kind"] == int(OpKind.UNKNOWN)) & (ops["via"] == int(Via.CHECK)) & (ops["corrupt"] == 0)]
        own = self.table.get(said["half_offset"])["group_no"] == said["group_no"]
        self.requests.answered(said["half_offset"][own])

    def carried(self) -> Array:
        """Halves whose requests wait in Kafka for a member that will come to them."""
        self.requests.forget_but(self._is_pending)
        return self.requests.carried()

    def _is_pending(self, half_offsets: Array) -> Array:
        found: Array = state_of(self.table.get(half_offsets)["word"]) == int(State.PREPARED)
        return found

    def _note_requests(self, requested: Requested) -> None:
        """Where they lie is found beside: it may take Kafka a while, and the shard goes on."""
        half_offsets = sorted(requested.half_offsets)
        numbers = self.table.get(np.array(half_offsets, np.int64))["group_no"].tolist()
        groups = {at: self.store.groups[number] for at, number in zip(half_offsets, numbers, strict=True)}
        self.requests.sent(half_offsets)
        self._locate(self.target, requested, partial(self.requests.found, groups))

    def try_again(self, topic: str, now_ms: int, bytes_max: int) -> None:
        """Messages for this topic that were set aside, once more."""
        half_offsets = next_tries(self.store.undeliverable, topic, self.table, bytes_max)
        batch = self.batch(half_cursor=self.marker.half_cursor, op_cursor=self.marker.op_cursor, now_ms=now_ms)
        batch.release_again(half_offsets, self.table.get(half_offsets)["word"])
        self.retries.begin(topic)
        self._commit(self._task(batch, _NO_LANES))
        released = sum(half_offset not in self.store.undeliverable for half_offset in half_offsets.tolist())
        self.retries.tried(topic, released, now_ms)
        if released:
            LOG.warning("shard %d: %d messages that were set aside are released", self.partition, released)

    def _commit(self, task: Task) -> None:
        wait_s = BACKOFF_S
        while True:
            done = self._timed(task)  # 1
            if isinstance(done, Done):
                break
            self.traffic.failures += 1
            LOG.warning("shard %d, batch %d: %s; again in %.1f s", self.partition, task.marker.sequence, done, wait_s)
            if self._stopping.wait(wait_s):
                raise JobStopped("asked to stop before the batch was written")
            wait_s = min(2 * wait_s, BACKOFF_MAX_S)
            if done.startswith(UNTAKEN) and self._is_stuck(self.target.producer_id):
                task = self._under_the_next_id(task)
                if self.marker.sequence >= task.marker.sequence:  # it had been written after all
                    return
        try:
            self._follow_until(task.marker.sequence)  # 2, 3
        except KafkaException as error:
            # Going on without it, the next batch would have this one's number, and be taken for written.
            raise JobError(f"shard {self.partition}: the redo topic cannot be read: {error.args[0].str()}") from error
        self.names_told = True
        if done.requests:
            self._note_requests(done.requests)
        self.retries.note(self.store.undeliverable, done.barred, task.marker.now_ms)
        self.traffic.messages += done.messages
        self.traffic.bytes += done.bytes

    def _under_the_next_id(self, task: Task) -> Task:
        told = self.names_told
        self.claim(self._owner, task.marker.now_ms)
        self.names_told = told
        LOG.warning("shard %d goes on under transactional id %s", self.partition, self.target.producer_id)
        return replace(task, target=self.target, term=self.term)

    def _timed(self, task: Task) -> Done | str:
        self.task_since_s = time.monotonic()
        try:
            return self._run_task(task)
        finally:
            self.task_since_s = None

    def _task(self, batch: Batch, lanes: Array) -> Task:
        entries = batch.entries
        packed, windows = redo.pack_entries(entries) if len(entries) else b"", self._windows(entries)
        # The first batch of a term tells all names: earlier versions told each of them once.
        names = self.store.names_for(entries) if self.names_told else self.store.all_names()
        rest = self.store.next_group, lanes.tobytes(), self.retries.barred(), self._topic_ids
        return Task(self.target, self.term, batch.marker, packed, names, windows, *rest)

    def _windows(self, entries: Array) -> list[int]:
        """After how many bodies the task should begin a new piece."""
        kinds, numbers = kinds_of(entries), numbers_of(entries)
        bodies = numbers[np.isin(kinds, _BODY_KINDS)]
        if not len(bodies):
            return []
        sizes = self.store.table.get(bodies)["size_bytes"].astype(np.int64)
        rest = kinds == RedoKind.IMAGE_REST
        new, order = numbers[rest], np.argsort(numbers[rest], kind="stable")
        if len(new):
            at = np.minimum(np.searchsorted(new[order], bodies), len(new) - 1)
            is_new = new[order][at] == bodies
            sizes[is_new] = entries["word"][rest][order][at[is_new]]
        piece = np.maximum(np.cumsum(sizes + MESSAGE_COST_BYTES) // WINDOW_BYTES, np.arange(len(bodies)) // WINDOW_MESSAGES)
        windows: list[int] = (np.flatnonzero(np.diff(piece)) + 1).tolist()
        return windows

    # --- the redo partition -----------------------------------------------------------------------------------------------------
    def _follow_from_the_start(self) -> None:
        begin, end = self._follower.bounds(self.partition)
        if self.store.redo_offset > end:
            raise CursorBeyondLog(
                f"{self.store.root}: applied up to {self.store.redo_offset} of redo partition {self.partition}, which ends at "
                f"{end}: this directory belongs to another cluster, or the redo topic was made anew. Empty the directory to have "
                "it rebuilt"
            )
        # Retention was faster than we were. Whether it took a batch that we have not, the next batch tells: sequences have no gaps.
        self._passed_over = begin > self.store.redo_offset
        self._catch_up_to = end
        self._follower.add(self.partition, max(self.store.redo_offset, begin), cut=self._passed_over)

    def _rebuild(self) -> None:
        """From an empty store, and the beginning of the redo partition."""
        self.store.wipe()
        self._reached_end = self._passed_over = False
        begin, self._catch_up_to = self._follower.bounds(self.partition)
        self._follower.restart(self.partition, begin)

    def follow(self, timeout_s: float) -> None:
        """Apply what has come."""
        for event in self._follower.read(timeout_s):
            if isinstance(event, int):
                self._reached_end = True
                continue
            # The end of a partition that a master writes to all the time may never be told.
            self._reached_end |= event.redo_offset >= self._catch_up_to
            self._see_term(event.term, event.generation)
            if isinstance(event, redo.RedoBatch):
                if self._passed_over and event.marker.sequence > self.store.marker.sequence + 1 > 1:
                    LOG.warning("%s: the redo topic has lost batches that were not applied here: rebuilt from it", self.store.root)
                    return self._rebuild()
                self._passed_over = False
                if event.refused:
                    self._tell_refused(event.refused)
                self.store.apply(
                    event.entries, event.marker, event.groups, event.refused, event.redo_offset,
                    next_group=event.next_group, topic_ids=event.topic_ids,
                )  # fmt: skip

    def _tell_refused(self, refused: list[tuple[int, Refusal]]) -> None:
        half_offset, first = refused[0]
        if any(half_offset not in self.store.undeliverable for half_offset, _ in refused):
            LOG.warning(
                "shard %d: %d messages are set aside and tried again, first %d: %s",
                self.partition, len(refused), half_offset, first.reason,
            )  # fmt: skip

    def _see_term(self, term: int, generation: int) -> None:
        self.store.term, self.store.generation = max(self.store.term, term), max(self.store.generation, generation)
        if self.term and term > self.term:
            raise Superseded(f"shard {self.partition} belongs to term {term}, this is term {self.term}")

    def _follow_until(self, sequence: int) -> None:
        while self.store.marker.sequence < sequence:
            if self._stopping.is_set():
                raise JobStopped("asked to stop before the batch was read back")
            self.follow(0.5)

    def catch_up(self) -> None:
        """Everything that was in the redo partition when we began to follow it."""
        while not self._reached_end:
            if self._stopping.is_set():
                raise JobStopped("asked to stop before the redo topic was read")
            self.follow(0.5)
        self._require_same_topics()
        self._require_names()

    def claim(self, owner: str, now_ms: int) -> None:
        """Take the shard over: from here on no earlier driver can write to it. Then the rows must fit; if not, they are rebuilt."""
        self.term, self._owner = 0, owner
        self._require_truth()
        known = replace(self.target, generation=max(self.target.generation, self.store.generation))
        term, sequence, generation = ownership.claim(known, owner, now_ms, self.store.term, self._is_stuck)
        while self.store.term < term:
            self.follow(0.5)
        if generation > known.generation:
            self._follow_until(sequence)
        self.target = replace(known, generation=generation)
        if not self.store.sound:
            LOG.warning("%s: its rows do not fit its marker: rebuilt from the redo topic", self.store.root)
            self._rebuild()
            self.catch_up()
            self._require_truth()
        if not self.store.sound or self.store.marker.sequence < sequence:
            found = f"{self.store.table.pending} rows are pending after batch {self.store.marker.sequence}"
            wanted = f"{self.store.marker.pending} should be, after batch {sequence}"
            raise Corrupt(self.store.root, self.store.redo_offset, f"rebuilt from the redo topic: {found}, {wanted}")
        self._require_same_topics()
        self._require_names()
        self.term, self.names_told = term, False

    def _require_same_topics(self) -> None:
        """In a topic that was made anew the old offsets mean other records: nothing here would fit."""
        for topic, id in self._topic_ids.items():
            known = self.store.topic_ids.get(topic, "")
            if known and id and known != id:
                raise JobCannotStart(self._about_another(topic, known, id))

    def _about_another(self, topic: str, known: str, id: str) -> str:
        topics = self.target.topics
        return (
            f"{self.store.root}: topic {topic} was deleted and made anew (its id was {known}, it is {id}): what was settled of "
            f"partition {self.partition} is about records that are gone. If that was meant, make {topics.half}, {topics.op} and "
            f"{topics.redo} anew together, and empty {self.store.root}; otherwise look whether kafkaBootstrapServers names the "
            "right cluster"
        )

    def _require_names(self) -> None:
        """A row whose group has no name could be ended by nobody, or by whichever group is given that number."""
        found = self.store.nameless()
        if found is None:
            return
        half_offset, number = found
        topics = self.target.topics
        raise JobCannotStart(
            f"{self.store.root}: half {half_offset} of partition {self.partition} belongs to producer group number {number}, and "
            f"retention has taken that group's name from {topics.redo}. Start the job in a data directory that knows it, the one "
            "that it had or that of another driver: it tells all names again, and this directory can be rebuilt then. If all are "
            f"lost, make {topics.half}, {topics.op} and {topics.redo} anew; the halves in {topics.half} name their groups in the "
            f"header {contract.GROUP}"
        )

    def _require_truth(self) -> None:
        """Batches were settled, and neither the directory nor the redo topic knows which: all commits would be released again."""
        begin, _ = self._follower.bounds(self.partition)
        if begin and not self.store.marker.sequence:
            topics = self.target.topics
            raise JobCannotStart(
                f"{self.store.root} is empty, and retention has taken every whole batch of partition {self.partition} of "
                f"{topics.redo}: what was released cannot be told from what was not. Start the job in the data directory that it "
                f"had. If that is lost, make {topics.half}, {topics.op} and {topics.redo} anew, or {topics.redo} alone: then every "
                f"commit that is still in {topics.op} is released a second time"
            )

    def close(self, *, clean: bool) -> None:
        self._follower.close()
        self.store.close(clean=clean)
