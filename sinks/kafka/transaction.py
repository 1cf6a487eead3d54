"""One attempt at the Kafka transaction of a batch: what each redo entry becomes (docs/kafka.md, "exactly once").

RELEASE     the half's message to its real topic, in the order of the entries, which is that of the ops
DISCARD     the half to the discard topic
CHECK       the half to the check topic
PROPOSE     a DISCARD op
all         the entries themselves and the marker to the redo partition

A task may bring halves whose requests a member has taken: an ASKED op for up to 65,536 of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import astuple
from typing import Any, Final

import numpy as np
from confluent_kafka import KafkaException, Message

from sinks.kafka import asking, contract, redo
from sinks.kafka.contract import BORN_TIME, OURS, PARTITION, TOPIC, TRANSACTION_ID, number_of
from sinks.kafka.ownership import Owner
from sinks.kafka.reach import RealTopics
from sinks.kafka.refusals import BEHIND, Held, Known, lane_of
from sinks.kafka.sender import COMPANY_MAX, Sender
from sinks.kafka.task import Requested, Task
from store.arrays import Array
from store.records import OpKind, State, Via, check_count_of
from store.tables.consume_queue import REASON_SHIFT
from store.tables.redo_log import RedoKind, kinds_of, numbers_of
from store.transitions import DISCARD_OF_STATE, REASON_OF_DISCARD

_REASONS: Final = {int(state): REASON_OF_DISCARD[kind].encode() for state, kind in DISCARD_OF_STATE.items()}
_BODY_KINDS: Final = (RedoKind.RELEASE, RedoKind.DISCARD, RedoKind.CHECK)

_Headers = list[tuple[str, bytes | None]]


class Attempt:
    """One attempt. Messages behind a refused one of their lane are refused, too (`held`)."""

    def __init__(self, owner: Owner, task: Task, refused: dict[int, str], singly: set[int], knows: Known) -> None:
        self.owner, self.task, self.refused = owner, task, refused
        self.target, self.topics = task.target, task.target.topics
        own_topics = set(astuple(self.topics))
        self.sender = Sender(owner.producer, refused, singly, knows, own_topics)
        self.real_topics = RealTopics(owner.producer, task.target.client, owner.topics, knows, own_topics)
        self.held = Held(task.lanes)
        self.began_s = 0.0  # the window
        self.requests_since: asking.Ends = {}
        self.place = f"{task.target.partition}-".encode()

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
            self._op(DISCARD_OF_STATE[State(state)], half_offset)

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
        return self.owner.bodies.read(self.topics.half, self.target.partition, wanted)

    def _release(self, half_offsets: list[int], halves: Mapping[int, Any]) -> None:  # noqa: PLR0912 - one loop
        """To their real topics. One loop with few calls: a call for each step took a fifth more processor time.

        `Any`: a message as the client returns it; the client's own types are wider.
        """
        produce: Callable[..., None] = self.owner.producer.produce
        place, refused = self.place, self.refused
        self.sender.to_real_topics |= bool(half_offsets)
        careful = self.sender.knows.anything or bool(self.sender.singly)
        topics: dict[bytes | None, str] = {}  # that take messages, by what the header says
        lanes, hold = self.held.lanes, self.held.hold
        sent = sent_bytes = 0
        for first in range(0, len(half_offsets), COMPANY_MAX):
            company = half_offsets[first : first + COMPANY_MAX]
            report = self.sender.report_for(company)
            for half_offset in company:
                if half_offset in refused:
                    hold(half_offset, halves.get(half_offset))
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
                        partition = number_of(header[1], -1)
                    elif name == BORN_TIME:
                        born_ms = number_of(header[1], born_ms)
                value, key = half.value(), half.key()
                if lanes and lane_of(contract.topic_of(named), key, partition) in lanes:
                    refused[half_offset] = BEHIND
                    hold(half_offset, halves.get(half_offset))
                    continue
                topic = topics.get(named, "") if partition < 0 else ""
                if not topic:
                    topic = topics[named] = self._topic(half_offset, named, partition)
                    if not topic:
                        hold(half_offset, halves.get(half_offset))
                        continue
                headers.append((TRANSACTION_ID, place + b"%d" % half_offset))
                born_ms = born_ms if born_ms >= 0 else int(half.timestamp()[1])
                if not careful:
                    try:
                        # Positional: the client is written in C, and keyword arguments cost it time.
                        produce(topic, value, key, partition, report, None, born_ms, headers)
                        sent += 1
                        sent_bytes += len(value) if value is not None else 0
                        continue
                    except (BufferError, KafkaException):
                        pass  # tried again below, where the error is examined
                self.sender.send(
                    half_offset,
                    topic,
                    value,
                    key=key,
                    partition=partition,
                    headers=headers,
                    timestamp_ms=born_ms,
                )
                if half_offset in refused:
                    hold(half_offset, halves.get(half_offset))
        self.sender.messages += sent
        self.sender.bytes += sent_bytes

    def _discard(self, half_offset: int, half: Message, reason: bytes) -> None:
        number = b"%d" % half_offset
        more = [(TRANSACTION_ID, self.place + number), (contract.HALF_OFFSET, number), (contract.REASON, reason)]
        self.sender.send(
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
        value = half.value()
        if not self.target.check_bodies:
            headers, value = [header for header in headers if header[0] in contract.TOLD_OF_A_HALF], None
            mine.append((contract.BODY, contract.IN_HALF_TOPIC))
        self.sender.send(
            half_offset, self.topics.check, value, key=group, partition=-1, headers=[*headers, *mine]
        )  # fmt: skip

    def look_where_requests_begin(self, entries: Array) -> None:
        if (kinds_of(entries) == RedoKind.CHECK).any():
            self.requests_since = asking.ends_of(self.target.client, self.topics.check)

    def requested(self, entries: Array) -> Requested | None:
        """The check requests that were sent."""
        sent = frozenset(numbers_of(entries)[kinds_of(entries) == RedoKind.CHECK].tolist()).difference(self.refused)
        return Requested(sent, self.requests_since) if sent else None

    def _asked(self, handed_over: Array) -> None:
        headers = contract.op_headers(OpKind.ASKED, None, None, via=Via.CHECKER)
        for first in range(0, len(handed_over), contract.ASKED_PER_RECORD):
            value = handed_over[first : first + contract.ASKED_PER_RECORD].tobytes()
            self.sender.produce(self.topics.op, value, partition=self.target.partition, headers=headers)

    def _op(self, kind: OpKind, half_offset: int) -> None:
        headers = contract.op_headers(kind, half_offset, None, via=Via.CHECKER)
        self.sender.produce(self.topics.op, b"", partition=self.target.partition, headers=headers)

    def redo(self, entries: Array) -> None:
        refused = {at: self.held.refusal(at, self.refused[at]) for at in self._kept_numbers(entries) if at in self.refused}
        task, numbers = self.task, {"next_group": self.task.next_group, "generation": self.target.generation}
        records = redo.batch_records(
            entries, task.marker, task.term, task.groups, refused, topic_ids=task.topic_ids, **numbers
        )  # fmt: skip
        for headers, value in records:
            self.sender.produce(self.topics.redo, value, partition=self.target.partition, headers=headers)

    def _kept_numbers(self, entries: Array) -> list[int]:
        """Halves whose refusal is recorded, in the order of their ends. A check that cannot be sent is not counted."""
        kinds = kinds_of(entries)
        found: list[int] = numbers_of(entries)[(kinds == RedoKind.RELEASE) | (kinds == RedoKind.DISCARD)].tolist()
        return found

    def _topic(self, half_offset: int, named: bytes | None, partition: int) -> str:
        """The topic that a half names; "" if it takes no message: then the half is refused."""
        topic = contract.topic_of(named)
        problem = self.real_topics.problem(topic, partition, self.began_s)
        if problem:
            self.refused[half_offset] = problem
        return "" if problem else topic
