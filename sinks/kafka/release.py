"""One batch of one shard in one Kafka transaction: what a task on an executor does (docs/kafka.md, "exactly once").

Everything that is written follows from the batch's redo entries:

    RELEASE     the half's message to its real topic, in the order of the entries, which is that of the ops
    DISCARD     the half to the discard topic
    CHECK       the half to the check topic
    PROPOSE     a DISCARD op
    all         the entries themselves and the marker to the redo partition

A task may bring halves whose requests were taken by a member: an ASKED op for up to 65,536 of them.

Steps of `run`:
    1  init_transactions: nobody else can write under this transactional id any more
    2  look into the redo partition: was the batch written, does the shard belong to somebody else?
    3  begin, bodies and effects, flush; where Kafka refused messages, or a topic does not answer: abort, and again without them
    4  redo records, commit; where the batch's check requests lie is looked up for the driver
A process that wrote the batch before this one begins at 3: if anybody came between, Kafka fences it. After any failure the
producer is thrown away: the next attempt begins at 1, and 2 decides what became of a commit whose answer was lost.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient

from sinks.kafka import asking, clients, contract, redo
from sinks.kafka.contract import BORN_TIME, OURS, PARTITION, TOPIC, TRANSACTION_ID
from sinks.kafka.gc_pause import no_collector
from sinks.kafka.reach import problem_of
from sinks.kafka.refusals import Failure, Known, lane_of
from store.job.undeliverable import NO_LANE, Refusal
from store.records import OpKind, State, Via, check_count_of
from store.tables.consume_queue import REASON_SHIFT
from store.tables.redo_log import REDO, Marker, RedoKind, kinds_of, numbers_of

DEADLINE_S: Final = 60.0
#: Messages that make no headway for this long are set aside. Nothing is lost if that was too soon: they are tried again.
STALL_S: Final = 3.0
#: A transactional id that cannot be taken for so long may be held by a partition that nobody can write to (sinks/kafka/stuck.py).
TAKE_S: Final = 5.0
FLUSH_S: Final = 0.5
ATTEMPTS_MAX: Final = 3
#: Offsets that are read along rather than jumped over: a jump empties the client's read-ahead.
GAP_MAX: Final = 256
NOWHERE: Final = -1 - GAP_MAX
METADATA_S: Final = 10.0
#: How long what is known of a real topic's partitions is believed.
TOPIC_KNOWN_S: Final = 5.0
#: Fewer halves than these that are left in a partition are not worth reading ahead. (There may be none: offsets have holes.)
AHEAD_MIN: Final = 1_000
#: A shard that had no task here for so long reads nothing ahead any more: its tasks may go to another process now.
REST_AFTER_S: Final = 2.0
#: Messages that share a delivery report: when one of them fails, all are tried alone.
COMPANY_MAX: Final = 64
#: Messages that Kafka refuses together, because one of them is bad; each is tried alone then, which costs an answer each.
BATCH_MESSAGES_MAX: Final = 1_000
#: Halves in an ASKED op: half of Kafka's default record.
ASKED_PER_RECORD: Final = 65_536
_DIGITS_MAX: Final = 18
BEHIND: Final = "it waits behind another message of its key"
#: Errors that say "not this message"; all others say "not now".
REFUSALS: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._INVALID_DIFFERENT_RECORD,  # another of its batch is to blame
    }
)
#: Errors that tell only that something else went wrong before.
UNEXPLAINED: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._STATE})
_REASONS: Final = {int(State.DISCARDED_MAX): b"check_max", int(State.DISCARDED_EXPIRED): b"expired"}
_DISCARD_OPS: Final = {int(State.DISCARDED_MAX): OpKind.DISCARD_MAX, int(State.DISCARDED_EXPIRED): OpKind.DISCARD_EXPIRED}
_BODY_KINDS: Final = (RedoKind.RELEASE, RedoKind.DISCARD, RedoKind.CHECK)

Array = np.ndarray[Any, Any]
_Headers = list[tuple[str, bytes | None]]
_Packed = bytes  # a field of Done has the type's name


class Superseded(Exception):
    """The shard belongs to a later term: another driver is master."""


class Unwritten(Exception):
    """The batch was not written, or it is not known whether it was; trying again is safe."""


class Untaken(Unwritten):
    """The shard's transactional id cannot be taken now."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a shard's batches go, and as whom."""

    topics: contract.Topics
    partition: int
    transactional_id: str
    client: dict[str, Any]
    transaction_timeout_ms: int
    generation: int = 0  # goes up when Kafka can give the id to nobody (sinks/kafka/stuck.py)

    @property
    def producer_id(self) -> str:
        """The transactional id in use."""
        return f"{self.transactional_id}.{self.generation}" if self.generation else self.transactional_id


@dataclass(frozen=True, slots=True)
class Task:
    """A batch to be written. `windows`: after how many bodies the next piece begins, so that memory stays bounded. `lanes`: of
    messages that were set aside before (uint64), which others of the same lane may not overtake. `barred`: topics that take
    nothing now, and why."""

    target: Target
    term: int
    marker: Marker
    packed_entries: bytes
    groups: list[tuple[int, str]]
    windows: list[int] = field(default_factory=list)
    next_group: int = 0
    lanes: bytes = b""
    barred: dict[str, str] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)
    asked: bytes = b""  # half offsets (int64): a member has taken their requests


@dataclass(frozen=True, slots=True)
class Done:
    """What became of it."""

    partition: int
    sequence: int
    written: bool  # False: it had been written before
    messages: int = 0
    bytes: int = 0
    barred: dict[str, str] = field(default_factory=dict)  # topics that took nothing, and why
    requests: _Packed = b""  # where the batch's check requests lie (asking.PLACED), as far as that is known
    executor: str = ""  # host and number of the process whose children run an executor's tasks


# --- who owns an id -------------------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class _Owner:
    """This process's hold on a transactional id."""

    producer: Producer
    client: dict[str, Any]
    sequence: int  # of the last batch that it knows to be committed
    packs: bool = False  # the producer compresses
    consumer: Consumer | None = None  # of bodies
    position: int = NOWHERE  # of the consumer in the half partition
    topics: dict[str, tuple[int, float]] = field(default_factory=dict)  # partitions, known until
    used_s: float = 0.0

    def bodies(self) -> Consumer:
        """Made when it is needed, not before: a client that was there for a while and is then told to read waits for most of a
        second until it looks for the partition's leader."""
        if self.consumer is None:
            options = {"group.id": clients.NO_GROUP, "enable.auto.commit": False, "auto.offset.reset": "error"}
            queue = {
                "queued.max.messages.kbytes": 32 << 10,
                "fetch.message.max.bytes": 4 << 20,
                "fetch.wait.max.ms": 20,
                "fetch.queue.backoff.ms": 5,  # by default a client whose queue was full fetches nothing for a second
            }
            self.consumer = Consumer({**self.client, **options, **queue})
        return self.consumer

    def rest(self) -> None:
        """Read nothing ahead. A client that has come to the end of a partition asks for more fifty times a second, one whose queue
        is full looks at it every 5 ms. To be told to read again costs one that has read before 5 ms; a paused one, a second."""
        if self.consumer is not None and self.position != NOWHERE:
            self.consumer.unassign()
            self.position = NOWHERE

    def is_near_end(self, half: TopicPartition) -> bool:
        """Whether it reads, and there was little left to read when it last looked."""
        if self.consumer is None or self.position == NOWHERE:
            return False
        return self.position > self.consumer.get_watermark_offsets(half, cached=True)[1] - AHEAD_MIN

    def close(self) -> None:
        if self.consumer is not None:
            self.consumer.close()


_owners: dict[str, _Owner] = {}


def run(task: Task) -> Done:
    """Write a batch unless it is there; Superseded where the shard is another's."""
    key = f"{task.target.producer_id}/{task.term}"
    for attempt in range(ATTEMPTS_MAX):
        try:
            owner = _owners.get(key)
            if owner is None or owner.sequence != task.marker.sequence - 1:  # somebody else has written since
                owner = _take(task, key)
            if owner.sequence >= task.marker.sequence:
                return Done(task.target.partition, task.marker.sequence, written=False)
            done = _write(owner, task)
            owner.sequence = max(owner.sequence, task.marker.sequence)
            _rest(key, TopicPartition(task.target.topics.half, task.target.partition))
            return done
        except Untaken:
            _forget(key)
            raise
        except (KafkaException, SystemError) as error:  # the client raises SystemError where it was fenced while it sent
            _forget(key)
            if attempt + 1 == ATTEMPTS_MAX:
                raise Unwritten(f"shard {task.target.partition}, batch {task.marker.sequence}: {error}") from error
        except BaseException:
            _forget(key)
            raise
    raise AssertionError("unreachable")


SUPERSEDED: Final = "superseded: "
UNTAKEN: Final = "not taken: "


def attempt(task: Task) -> Done | str:
    """`run`, its failures as text: Spark would repeat a task that raises, and the driver should decide."""
    try:
        with no_collector():
            return replace(run(task), executor=f"{socket.gethostname()}/{os.getppid()}")
    except Superseded as error:
        return f"{SUPERSEDED}{error}"
    except Untaken as error:
        return f"{UNTAKEN}{error}"
    except Unwritten as error:
        return str(error)
    except KafkaException as error:
        return f"Kafka: {error.args[0].str()}"


def _rest(used: str, half: TopicPartition) -> None:
    """After a task: no client of this process reads ahead for nobody. The batch is written, whatever goes wrong here."""
    now_s = _owners[used].used_s = time.monotonic()
    for key, owner in list(_owners.items()):
        try:
            if owner.is_near_end(half) if key == used else owner.used_s < now_s - REST_AFTER_S:
                owner.rest()
        except KafkaException:
            _forget(key)


def _forget(key: str) -> None:
    owner = _owners.pop(key, None)
    if owner is not None:
        owner.close()


def _take(task: Task, key: str) -> _Owner:
    """Steps 1 and 2."""
    target = task.target
    for other in [other for other in _owners if other.startswith(f"{target.producer_id}/")]:
        _forget(other)
    producer, sequence = _fence(task)
    owner = _owners[key] = _Owner(producer, target.client, sequence)
    return owner


def _fence(task: Task, *, packs: bool = False) -> tuple[Producer, int]:
    """Steps 1 and 2: a producer that alone can write, and the sequence of the shard's last batch."""
    target = task.target
    producer = make_producer(target, packs=packs)
    try:
        producer.init_transactions(TAKE_S)  # 1
    except KafkaException as error:
        raise Untaken(f"shard {target.partition}: {target.producer_id}: {error.args[0].str()}") from error
    last = _last(target)  # 2
    if last.term > task.term:
        raise Superseded(f"shard {target.partition} belongs to term {last.term}, this is term {task.term}")
    return producer, last.sequence


def _last(target: Target) -> redo.Last:
    return redo.last_of(target.client, target.topics.redo, target.partition, DEADLINE_S)


def make_producer(target: Target, *, packs: bool = False) -> Producer:
    """A transactional producer for the shard. Keys choose partitions as Java's clients do; the broker says what is too large: it
    looks at what it is sent, so a half that came compressed may fit only if it leaves compressed (`packs`)."""
    options = {
        "compression.type": "zstd" if packs else "none",
        "transactional.id": target.producer_id,
        "transaction.timeout.ms": target.transaction_timeout_ms,
        "partitioner": "murmur2_random",
        "message.max.bytes": 1_000_000_000,
        "queue.buffering.max.messages": 1_000_000,
        "queue.buffering.max.kbytes": 1 << 18,
        # Nobody waits for it: a flush sends what is there at once. With 5 the client's thread looks at its queues at every turn,
        # 2.8 instead of 0.9 µs of processor time a message.
        "linger.ms": 500,
        "batch.size": 1 << 20,
        "batch.num.messages": BATCH_MESSAGES_MAX,
        "delivery.report.only.error": True,
        # By default a client connects to a broker when it has something for it, and one that finds its coordinator not connected
        # yet looks again after half a second.
        "enable.sparse.connections": False,
    }
    return Producer({**target.client, **options})


class Claimed(NamedTuple):
    """A shard that was taken over, and where its last batch is."""

    term: int
    sequence: int
    generation: int


def claim(target: Target, owner: str, at_ms: int, known_term: int, is_stuck: Callable[[str], bool] = lambda _: False) -> Claimed:
    """Take a shard over. Terms go up also where retention has taken the last claim. An id that `is_stuck` is left for the next one:
    1  take the id, or the next one where Kafka can give it to nobody
    2  read the redo partition, write the claim
    3  make sure that nobody writes under the id that was left, and look what was written last
    """
    target = replace(target, generation=max(target.generation, _last(target).generation))
    left: list[Target] = []
    while (producer := _taken(target, is_stuck)) is None:  # 1
        left.append(target)
        target = replace(target, generation=target.generation + 1)
    last = _last(target)  # 2
    if last.generation > target.generation:  # somebody was faster
        return claim(replace(target, generation=last.generation), owner, at_ms, known_term, is_stuck)
    term = max(last.term, known_term) + 1
    headers, value = redo.claim_record(term, owner, at_ms, target.generation)
    producer.begin_transaction()
    producer.produce(target.topics.redo, value, partition=target.partition, headers=list(headers))
    producer.commit_transaction(DEADLINE_S)
    for old in left:  # 3
        _taken(old, is_stuck)
    return Claimed(term, _last(target).sequence if left else last.sequence, target.generation)


def _taken(target: Target, is_stuck: Callable[[str], bool]) -> Producer | None:
    """Its transactional producer: who had the id before is fenced. None where Kafka can give it to nobody."""
    producer, give_up_s = make_producer(target), time.monotonic() + DEADLINE_S
    while True:
        try:
            producer.init_transactions(TAKE_S)
            return producer
        except KafkaException as error:
            if is_stuck(target.producer_id):
                return None
            if not error.args[0].retriable() or time.monotonic() > give_up_s:
                raise


# --- one transaction ------------------------------------------------------------------------------------------------------------
def _write(owner: _Owner, task: Task) -> Done:
    """Steps 3 and 4."""
    entries = redo.unpack_entries(task.packed_entries) if task.packed_entries else np.empty(0, REDO)
    refused: dict[int, str] = {}
    singly: set[int] = set()
    knows = Known(task.marker.now_ms, task.barred)
    while True:
        attempt = _Attempt(owner, task, refused, singly, knows)
        attempt.look_where_requests_begin(entries)
        owner.producer.begin_transaction()
        try:
            attempt.effects(entries)  # 3
            attempt.flush()
            if not attempt.failed:
                break
        except (_Refused, _Stalled):
            pass
        except KafkaException as error:
            # Without the right to write to one topic nothing of the transaction goes out, and no report says why.
            if error.args[0].code() not in UNEXPLAINED or not knows.bar(_unwritable(task.target, owner.topics)):
                raise
        if attempt.failed or attempt.stalled:  # otherwise Kafka knows of no transaction, and to abort it would be an error
            attempt.judge()
            owner.producer.abort_transaction(DEADLINE_S)
        # After a refusal the client's sequence numbers have a gap, which the broker does not forgive: a new one, from step 1.
        owner.packs = owner.packs or knows.packs
        owner.producer, owner.sequence = _fence(task, packs=owner.packs)
        if owner.sequence >= task.marker.sequence:
            return Done(task.target.partition, task.marker.sequence, written=False)
    attempt.redo(entries)  # 4
    owner.producer.commit_transaction(DEADLINE_S)
    sent, requests = (attempt.messages, attempt.bytes), attempt.places_of_requests(entries)
    return Done(task.target.partition, task.marker.sequence, True, *sent, barred=knows.barred, requests=requests)


def _unwritable(target: Target, topics: Iterable[str]) -> dict[str, str]:
    """Those of these topics that we may not write to, and what to tell of it."""
    admin, found, names = AdminClient(target.client), list[str](), list(topics)
    if not names:
        return {}
    asked = admin.describe_topics(TopicCollection(names), include_authorized_operations=True, request_timeout=METADATA_S)
    for topic, described in asked.items():
        try:
            allowed = described.result(2 * METADATA_S).authorized_operations
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                found.append(topic)
        else:
            found += [topic] if allowed and AclOperation.WRITE not in allowed else []
    return {topic: f"topic {topic}: Escrow's Kafka user may not write to it" for topic in found}


class _Refused(Exception):
    """Kafka refused a message: this transaction can only be aborted."""


class _Stalled(Exception):
    """A topic does not take its messages: this transaction can only be aborted."""


class _Headway:
    """Whether what waits to be sent becomes less."""

    def __init__(self, patience_s: float) -> None:
        self._left, self._since_s, self._patience_s = -1, time.monotonic(), patience_s

    def is_lost(self, left: int) -> bool:
        if left < self._left or self._left < 0:
            self._left, self._since_s = left, time.monotonic()
        return time.monotonic() - self._since_s >= self._patience_s


class _Attempt:
    """One try at the transaction.

    When Kafka refuses a batch of messages, all in it fail, the innocent too. So those that failed are sent one by one in the next
    try (`singly`), and only who fails then is `refused` for good. A real topic that makes no headway is barred, and all that would
    go there is refused. Who comes behind a refused message of its lane is refused, too (`lanes`). Everything else is a failure of
    the whole attempt.
    """

    def __init__(self, owner: _Owner, task: Task, refused: dict[int, str], singly: set[int], knows: Known) -> None:
        self.owner, self.task, self.refused, self.singly, self.knows = owner, task, refused, singly, knows
        self.target, self.topics = task.target, task.target.topics
        self.failed: dict[int, Failure] = {}
        self.times: dict[int, int] = {}  # of those that are tried alone: no report tells it
        self.failure: KafkaError | None = None
        self.purged: KafkaError | None = None
        self.stalled: set[str] = set()
        self.giving_up = self.to_real_topics = False
        self.lanes: set[int] = set(np.frombuffer(task.lanes, "<u8").tolist())
        self.held: dict[int, tuple[int, str, int]] = {}  # of the refused: lane, topic, stored_at_ms
        self.judged = False
        self.messages = self.bytes = 0
        self.began_s = 0.0  # the window
        self.requests_since: asking.Ends = {}
        self.place = f"{task.target.partition}-".encode()
        self.company: list[int] = []
        self.report = partial(self._failed, self.company)

    def effects(self, entries: Array) -> None:
        kinds, numbers = kinds_of(entries), numbers_of(entries)
        bodies = np.flatnonzero(np.isin(kinds, np.array([int(kind) for kind in _BODY_KINDS], np.uint8)))
        bounds = [*self.task.windows, len(bodies)] if len(bodies) else []
        first = 0
        for stop in bounds:
            self._window(entries[bodies[first:stop]], kinds[bodies[first:stop]], numbers[bodies[first:stop]])
            first = stop
            self.owner.producer.poll(0)  # what Kafka has need not stay in memory
        self._asked(np.frombuffer(self.task.asked, "<i8"))
        proposed = np.flatnonzero(kinds == RedoKind.PROPOSE)
        states = entries["position"][proposed] >> REASON_SHIFT
        for half_offset, state in zip(numbers[proposed].tolist(), states.tolist(), strict=True):
            self._op(_DISCARD_OPS[state], half_offset)

    def _window(self, entries: Array, kinds: Array, numbers: Array) -> None:
        """Releases in their order, then what goes to Escrow's own topics in its order."""
        self.began_s = time.monotonic()
        halves = self._halves(np.unique(numbers))
        for half_offset in set(numbers.tolist()).difference(halves, self.refused):
            self.refused[half_offset] = "the half is no longer in its partition: was it kept long enough?"
        released = kinds == RedoKind.RELEASE
        self._release(numbers[released].tolist(), halves)
        ours = entries[~released]
        columns = (numbers[~released], kinds[~released], ours["word"], ours["position"])
        for half_offset, kind, word, position in zip(*(column.tolist() for column in columns), strict=True):
            if half_offset in self.refused:
                continue
            if kind == RedoKind.DISCARD:
                self._discard(half_offset, halves[half_offset], _REASONS[position >> REASON_SHIFT])
            else:
                self._check(half_offset, halves[half_offset], check_count_of(word))

    def _halves(self, wanted: Array) -> dict[int, Message]:
        found: dict[int, Message] = {}
        for run in np.split(wanted, np.flatnonzero(np.diff(wanted) > GAP_MAX) + 1):
            found |= read_range(self.owner, self.topics.half, self.target.partition, set(run.tolist()))
        return found

    # --- effects ---
    def _release(self, half_offsets: list[int], halves: Mapping[int, Any]) -> None:  # noqa: PLR0912 - one loop, see below
        """To their real topics. One loop with few calls: with one for each step it took a fifth more of the processor's time.
        (`Any`: a message as the client gives it; its own types are wider.)"""
        produce: Callable[..., None] = self.owner.producer.produce
        place, refused = self.place, self.refused
        self.to_real_topics |= bool(half_offsets)
        careful = self.knows.anything or bool(self.singly)
        topics: dict[bytes | None, str] = {}  # that take messages, by what the header says
        lanes = self.lanes
        sent = sent_bytes = 0
        for first in range(0, len(half_offsets), COMPANY_MAX):
            company = half_offsets[first : first + COMPANY_MAX]
            report = partial(self._failed, company)
            for half_offset in company:
                if half_offset in refused:
                    self._hold(half_offset, halves)
                    continue
                half, named, partition, born_ms = halves[half_offset], None, -1, -1
                headers: _Headers = []
                for header in half.headers() or ():
                    name = header[0]
                    if not name.startswith(OURS):
                        headers.append(header)
                    elif name == TOPIC:
                        named = named or header[1]
                    elif name == PARTITION:
                        partition = _number(header[1], -1)
                    elif name == BORN_TIME:
                        born_ms = _number(header[1], born_ms)
                value, key = half.value(), half.key()
                if lanes and lane_of(_text(named), key, partition) in lanes:
                    refused[half_offset] = BEHIND
                    self._hold(half_offset, halves)
                    continue
                topic = topics.get(named, "") if partition < 0 else ""
                if not topic:
                    topic = topics[named] = self._topic(half_offset, named, partition)
                    if not topic:
                        self._hold(half_offset, halves)
                        continue
                headers.append((TRANSACTION_ID, place + b"%d" % half_offset))
                born_ms = born_ms if born_ms >= 0 else int(half.timestamp()[1])
                if not careful:
                    try:
                        # All by place: the client, which is not Python, pays for names.
                        produce(topic, value, key, partition, report, None, born_ms, headers)
                        sent += 1
                        sent_bytes += len(value) if value is not None else 0
                        continue
                    except (BufferError, KafkaException):
                        pass  # below it is tried again, and what is wrong is looked at
                self._send(half_offset, topic, value, key=key, partition=partition, headers=headers, timestamp_ms=born_ms)
                if half_offset in refused:
                    self._hold(half_offset, halves)
        self.messages += sent
        self.bytes += sent_bytes

    def _hold(self, half_offset: int, halves: Mapping[int, Any]) -> None:
        """A refused message holds what comes behind it of its lane; one whose body is gone never goes out, and holds nobody."""
        half = halves.get(half_offset)
        if half is None:
            return
        headers = contract.headers_of(half)
        topic = _text(contract.first_header(headers, TOPIC))
        lane = lane_of(topic, half.key(), _number(contract.first_header(headers, PARTITION), -1))
        self.held[half_offset] = lane, topic, int(half.timestamp()[1])
        if lane != NO_LANE:
            self.lanes.add(lane)

    def _discard(self, half_offset: int, half: Message, reason: bytes) -> None:
        number = b"%d" % half_offset
        more = [(TRANSACTION_ID, self.place + number), (contract.HALF_OFFSET, number), (contract.REASON, reason)]
        self._send(
            half_offset,
            self.topics.discard,
            half.value(),
            key=half.key(),
            partition=self.target.partition,
            headers=[*contract.headers_of(half), *more],
            timestamp_ms=int(half.timestamp()[1]),
        )

    def _check(self, half_offset: int, half: Message, check_count: int) -> None:
        headers = contract.headers_of(half)
        group, key = contract.first_header(headers, contract.GROUP), half.key()
        mine: _Headers = [
            *((contract.KEY, value) for value in (key,) if value is not None),
            (TRANSACTION_ID, self.place + b"%d" % half_offset),
            (contract.HALF_PARTITION, b"%d" % self.target.partition),
            (contract.HALF_OFFSET, b"%d" % half_offset),
            (contract.CHECK_COUNT, b"%d" % check_count),
        ]
        self._send(half_offset, self.topics.check, half.value(), key=group, partition=-1, headers=[*headers, *mine])

    def look_where_requests_begin(self, entries: Array) -> None:
        if (kinds_of(entries) == RedoKind.CHECK).any():
            self.requests_since = asking.ends_of(self.target.client, self.topics.check)

    def places_of_requests(self, entries: Array) -> bytes:
        """Of those that were sent. The batch is written, whatever goes wrong here."""
        sent = set(numbers_of(entries)[kinds_of(entries) == RedoKind.CHECK].tolist()).difference(self.refused)
        if not sent:
            return b""
        found = asking.places_of(self.target.client, self.topics.check, self.requests_since, self.target.partition, sent)
        return found.tobytes()

    def _asked(self, handed_over: Array) -> None:
        headers = contract.op_headers(OpKind.ASKED, None, None, via=Via.CHECKER)
        for first in range(0, len(handed_over), ASKED_PER_RECORD):
            value = handed_over[first : first + ASKED_PER_RECORD].tobytes()
            self._produce(self.topics.op, value, partition=self.target.partition, headers=headers)

    def _op(self, kind: OpKind, half_offset: int) -> None:
        headers = contract.op_headers(kind, half_offset, None, via=Via.CHECKER)
        self._produce(self.topics.op, b"", partition=self.target.partition, headers=headers)

    def redo(self, entries: Array) -> None:
        refused = {at: self._refusal(at) for at in self._kept_numbers(entries) if at in self.refused}
        task, numbers = self.task, {"next_group": self.task.next_group, "generation": self.target.generation}
        records = redo.batch_records(
            entries, task.marker, task.term, task.groups, refused, topic_ids=task.topic_ids, **numbers
        )  # fmt: skip
        for headers, value in records:
            self._produce(self.topics.redo, value, partition=self.target.partition, headers=headers)

    def _refusal(self, half_offset: int) -> Refusal:
        return Refusal(self.refused[half_offset], *self.held.get(half_offset, ()))

    def _kept_numbers(self, entries: Array) -> list[int]:
        """Halves whose refusal must be remembered, in the order of their ends. A check that cannot be sent is not counted."""
        kinds = kinds_of(entries)
        found: list[int] = numbers_of(entries)[(kinds == RedoKind.RELEASE) | (kinds == RedoKind.DISCARD)].tolist()
        return found

    # --- sending ---
    def _send(
        self,
        half_offset: int,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None,
        partition: int,
        headers: list[Any],
        timestamp_ms: int = 0,
    ) -> None:
        problem = self.knows.problem(topic, value or b"", key is not None, timestamp_ms) if self.knows.anything else ""
        if problem:
            self.refused[half_offset] = problem
            return
        alone = half_offset in self.singly
        if alone:
            self.flush()  # what was sent before goes without it
            self.times[half_offset] = timestamp_ms
        if len(self.company) == COMPANY_MAX or self.singly:
            self.company = []
            self.report = partial(self._failed, self.company)
        self.company.append(half_offset)
        try:
            self._produce(
                topic, value, key=key, partition=partition, headers=headers, timestamp_ms=timestamp_ms, report=self.report
            )
        except KafkaException as error:
            if error.args[0].code() not in REFUSALS:
                raise
            self.refused[half_offset] = error.args[0].str()
            return
        self.messages += 1
        self.bytes += len(value or b"")
        if alone:
            self.flush()

    def _produce(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int,
        headers: list[Any],
        timestamp_ms: int = 0,
        report: Callable[[KafkaError | None, Message], None] | None = None,
    ) -> None:
        producer, headway = self.owner.producer, self._headway()
        while True:
            try:
                # All by place: the client, which is not Python, pays for names.
                producer.produce(topic, value, key, partition, report, None, timestamp_ms, headers)
                return
            except BufferError:
                producer.poll(0.1)
                if headway.is_lost(len(producer)):
                    self._give_up()
            except KafkaException as error:
                if error.args[0].code() == KafkaError._STATE and not self.failure:
                    producer.poll(1.0)  # the report that says why may be a moment behind
                if self.failure is not None:
                    raise KafkaException(self.failure) from error
                if self.failed:
                    raise _Refused from error
                raise

    def flush(self) -> None:
        """Until everything is with Kafka, or something failed. After a refusal Kafka's client sends nothing more."""
        headway = self._headway()
        while not self.failed and (left := self.owner.producer.flush(FLUSH_S)):
            if headway.is_lost(left):
                self._give_up()
        if self.failure is not None or (self.purged is not None and not self.failed):
            raise KafkaException(self.failure or self.purged)

    def _headway(self) -> _Headway:
        """Without a message for a real topic there is nothing to set aside: Kafka itself is waited for."""
        return _Headway(STALL_S if self.to_real_topics else DEADLINE_S)

    def _give_up(self) -> None:
        """What has not gone out by now tells by its reports where it was to go: nothing else goes there in this batch."""
        self.giving_up = True
        self.owner.producer.purge(in_queue=True, in_flight=True, blocking=True)
        self.owner.producer.flush(FLUSH_S)
        if self.failure is not None:
            raise KafkaException(self.failure)
        if self.failed:
            raise _Refused
        if not self.stalled or self.stalled & set(astuple(self.topics)):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "Kafka does not take what is sent"))
        self.knows.bar({topic: f"topic {topic} took no message within {STALL_S:.0f} s" for topic in self.stalled})
        raise _Stalled

    def _failed(self, company: list[int], error: KafkaError | None, message: Message) -> None:
        if error is None or self.judged:
            return
        if error.code() in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
            self.purged = error  # after a refusal the client empties its queue: who waited in it is innocent
            if self.giving_up:
                self.stalled.add(message.topic() or "")
            return
        what = Failure(error, message.topic() or "", message.value() or b"", message.key() is not None)
        self.failed.update((half_offset, what) for half_offset in company)
        if error.code() not in REFUSALS:
            self.failure = error

    def judge(self) -> None:
        """Who failed alone is refused; who failed in company, or was too large and not compressed, is tried alone."""
        self.judged = True
        for half_offset, failure in self.failed.items():
            too_large = failure.error.code() == KafkaError.MSG_SIZE_TOO_LARGE
            self.knows.packs |= too_large
            if half_offset in self.singly and (self.owner.packs or not too_large):
                self.refused[half_offset] = failure.error.str()
                self.knows.refuse(failure, self.times.get(half_offset, 0))
        self.singly.update(self.failed)

    def _topic(self, half_offset: int, named: bytes | None, partition: int) -> str:
        """The topic that a half names; "" if it takes no message: then it is refused."""
        topic = _text(named)
        problem = self._problem(topic, partition)
        if problem:
            self.refused[half_offset] = problem
        return "" if problem else topic

    def _problem(self, topic: str, partition: int) -> str:
        """Why no message can go there; "" if it can. Asked before it is sent: a producer would wait for the topic."""
        if topic in self.knows.barred:
            return self.knows.barred[topic]
        known = self.owner.topics.get(topic)
        if known is None or known[1] < self.began_s:
            if not contract.is_topic_name(topic):
                return f"{topic[:80]!r} is no name of a topic"
            if topic in astuple(self.topics):
                return f"topic {topic} is Escrow's own"
            found = self.owner.producer.list_topics(topic, METADATA_S).topics[topic]
            if found.error is not None and found.error.code() not in REFUSALS:
                raise KafkaException(found.error)
            problem = f"topic {topic}: {found.error.str()}" if found.error is not None else self._unreachable(found)
            if problem:
                self.knows.bar({topic: problem})
                return problem
            known = self.owner.topics[topic] = (len(found.partitions), time.monotonic() + TOPIC_KNOWN_S)
        if partition >= known[0]:
            return f"topic {topic} has {known[0]} partitions, none is number {partition}"
        return ""

    def _unreachable(self, found: Any) -> str:
        return problem_of(found, self.target.client, METADATA_S)


def read_range(owner: _Owner, topic: str, partition: int, wanted: set[int]) -> dict[int, Message]:
    """The messages at these offsets of a partition; those that are not there any more are left out."""
    consumer, first, stop = owner.bodies(), min(wanted), max(wanted) + 1
    if not first - GAP_MAX <= owner.position <= first:
        consumer.assign([TopicPartition(topic, partition, first)])
    owner.position = first
    give_up_s = time.monotonic() + DEADLINE_S
    found: dict[int, Message] = {}
    while len(found) < len(wanted) and owner.position < stop:
        for message in redo.take(consumer, min(10_000, stop - owner.position), 1.0):
            error, offset = message.error(), message.offset()
            if error is None and offset is not None:
                owner.position = offset + 1
                if offset in wanted:
                    found[offset] = message
            elif error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:  # retention took the beginning
                owner.position = clients.bounds_of(consumer, topic, partition)[0]
                consumer.assign([TopicPartition(topic, partition, owner.position)])
        if time.monotonic() > give_up_s:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no half {owner.position} within {DEADLINE_S:.0f} s"))
    return found


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def _number(value: bytes | None, otherwise: int) -> int:
    return int(value) if value is not None and value.isdigit() and len(value) <= _DIGITS_MAX else otherwise
