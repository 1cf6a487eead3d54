"""One transaction's state and history, read from the log and the state table. Called from threads: the scan of the op queue
(`LogReader.history`) may take a while."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ingest.consuming.deliveries import shown_properties
from ingest.operating.contradictions import Contradiction
from store.edge.store import EdgeStore
from store.errors import Corrupt, StoreError
from store.io.pages import EdgeSlot, JobSlot
from store.properties import KEYS, TAGS
from store.read.readers import LogReader, TopicReader
from store.records import OpKind, State, Via, check_count_of, queue_key_of, queue_offset_of, state_of, topic_of_key
from store.tables.frames import Frame

_EVENT_OF: Final = {
    OpKind.COMMIT: "committed",
    OpKind.ROLLBACK: "rolled_back",
    OpKind.DISCARD_MAX: "discarded",
    OpKind.DISCARD_EXPIRED: "discarded",
    OpKind.UNKNOWN: "unknown",
    OpKind.ASKED: "asked",
    OpKind.RESUME: "resumed",
}
#: Of a body, so much is shown to an operator.
BODY_SHOWN_BYTES: Final = 16 << 10
_REASON_OF: Final = {OpKind.DISCARD_MAX: "check_max", OpKind.DISCARD_EXPIRED: "expired"}


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a transaction. `actor`: the member that was asked, or the operator."""

    event: str
    at_ms: int
    by: str = ""
    actor: str = ""
    remark: str = ""


def event_of(kind: OpKind, at_ms: int, via: Via, actor: str, remark: str) -> Event:
    """What an op is called in a history."""
    return Event(_EVENT_OF[kind], at_ms, via.name.lower(), actor, remark or _REASON_OF.get(kind, ""))


def contradicted(found: Contradiction) -> Event:
    """An end that was not taken, as an event: what was said, and what the transaction was."""
    said = f"{found.said} {found.verdict}: it is {found.state.lower()}"
    return Event(found.verdict, found.at_ms, found.by, found.who, f"{said}. {found.remark}" if found.remark else said)


@dataclass(slots=True)
class Transaction:
    """What is known of one transaction. `settled`: the job has applied everything that was said of it."""

    half_offset: int
    state: str
    group: str = ""
    topic: str = ""
    key: str = ""
    attempts: int = 0
    born_at_ms: int = 0
    stored_at_ms: int = 0
    settled: bool = False
    position: int = -1
    history: list[Event] = field(default_factory=list)

    @property
    def outcome(self) -> str | None:
        return {"COMMITTED": "commit", "ROLLED_BACK": "rollback"}.get(self.state)

    @property
    def place(self) -> tuple[int, int] | None:
        """(queue_id, queue_offset) of a committed one."""
        if self.position < 0:
            return None
        return topic_of_key(queue_key_of(self.position))[1], queue_offset_of(self.position)


@dataclass(frozen=True, slots=True)
class Inspected:
    """A transaction with its message, for an operator. `body` is cut to what people look at."""

    transaction: Transaction
    reason: str | None = None
    tags: str = ""
    properties: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    body_bytes: int = 0
    immunity_s: int = 0
    outstanding: bool = False


class Histories:
    """Reads with files of its own, one question at a time."""

    def __init__(self, store: EdgeStore) -> None:
        self._store = store
        self._log = LogReader(store.directory)
        self._topics: TopicReader | None = None
        self._lock = threading.Lock()

    def of(self, half_offset: int) -> Transaction:
        with self._lock:
            if not self._store.half_begin <= half_offset < self._store.page[EdgeSlot.HALF_END]:
                return Transaction(half_offset, "GONE")
            try:
                frame = self._store.read_half(half_offset)
            except IndexError:
                return Transaction(half_offset, "GONE")
            except Corrupt:
                return Transaction(half_offset, State.QUARANTINED.name)
            found = self._described(half_offset, frame)
            self._tell(found, frame)
            return found

    def inspect(self, half_offset: int) -> Inspected:
        """With its message."""
        found = self.of(half_offset)
        if found.state in ("GONE", State.QUARANTINED.name):
            return Inspected(found)
        frame = self._store.read_half(half_offset)
        reason = {State.DISCARDED_MAX.name: "check_max", State.DISCARDED_EXPIRED.name: "expired"}.get(found.state)
        with self._lock:
            topics = self._job_files()
            words = topics.words(np.array([half_offset])) if topics is not None else np.zeros(1, np.uint32)
            outstanding = topics is not None and bool(topics.under_way(words)[0])
        return Inspected(
            found, reason, frame.properties.get(TAGS, ""), shown_properties(frame.properties), frame.body[:BODY_SHOWN_BYTES],
            len(frame.body), frame.fields["immunity_s"], outstanding,
        )  # fmt: skip

    def body(self, half_offset: int) -> bytes | None:
        """The whole body; None where the half is gone or cannot be read."""
        with self._lock:
            try:
                return bytes(self._store.read_half(half_offset).body)
            except (IndexError, StoreError):
                return None

    def _described(self, half_offset: int, frame: Frame) -> Transaction:
        dictionary = self._store.dictionary
        return Transaction(
            half_offset,
            State(self._store.durable_end_of(half_offset) or State.PREPARED).name,
            dictionary.groups[frame.fields["group_no"]],
            dictionary.topics[frame.fields["topic_no"]],
            frame.properties.get(KEYS, ""),
            self._attempts(half_offset),
            frame.fields["born_at_ms"],
            frame.stored_at_ms,
            history=[Event("prepared", frame.stored_at_ms, "producer")],
        )

    def _attempts(self, half_offset: int) -> int:
        topics = self._job_files()
        word = int(topics.rows(np.array([half_offset]))["word"][0]) if topics is not None else 0
        return 0 if state_of(word) == State.MEMBER else int(check_count_of(word))

    def _job_files(self) -> TopicReader | None:
        try:
            if self._topics is None:
                self._topics = TopicReader(self._store.directory)
            self._topics.follow()
        except (StoreError, FileNotFoundError, IndexError):  # no job yet, or it is just switching to other files
            return None
        return self._topics if self._topics.generation else None

    def _tell(self, found: Transaction, half: Frame) -> None:
        """Every op about the half, in log order."""
        last = self._store.half_queue.begin - 1
        for frame in self._log.history(found.half_offset, half.stored_at_ms):
            kind, via = OpKind(frame.fields["op_kind"]), Via(frame.fields["via"])
            detail = frame.detail
            found.history.append(event_of(kind, frame.stored_at_ms, via, detail.get("actor", ""), detail.get("remark", "")))
            found.position = frame.item(found.half_offset).position if kind == OpKind.COMMIT else found.position
            last = frame.queue_offset + frame.numbers - 1
        topics = self._topics
        found.settled = (
            topics is not None and topics.page[JobSlot.HALF_CURSOR] > found.half_offset and topics.page[JobSlot.OP_CURSOR] > last
        )

    def close(self) -> None:
        with self._lock:
            self._log.close()
            if self._topics is not None:
                self._topics.close()
