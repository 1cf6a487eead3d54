"""Sends the messages of one Kafka transaction, and finds out which of them Kafka refuses.

When Kafka refuses a batch of messages, all in it fail, good ones too. So those that failed are sent one by one in the next
attempt (`singly`), and only those that fail then are `refused` for good. A real topic that makes no progress is barred:
everything that would go there is refused. All other errors fail the whole attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Set
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sinks.kafka.refusals import REFUSALS, Failure, Known
from sinks.kafka.task import DEADLINE_S

#: Messages that make no progress for this long are set aside. Too soon does no harm: they are tried again.
STALL_S: Final = 3.0
FLUSH_S: Final = 0.5
#: Messages that share a delivery report: when one of them fails, each is tried alone.
COMPANY_MAX: Final = 64

Report = Callable[[KafkaError | None, Message], None]


class RefusedByKafka(Exception):
    """Kafka refused a message: this transaction can only be aborted."""


class Stalled(Exception):
    """A topic does not take its messages: this transaction can only be aborted."""


class _Headway:
    """Whether what waits to be sent becomes less."""

    def __init__(self, patience_s: float) -> None:
        self._left, self._since_s, self._patience_s = -1, time.monotonic(), patience_s

    def is_lost(self, left: int) -> bool:
        if left < self._left or self._left < 0:
            self._left, self._since_s = left, time.monotonic()
        return time.monotonic() - self._since_s >= self._patience_s


class Sender:
    """One attempt at a transaction. `refused`, `singly` and `knows` go from one attempt to the next."""

    def __init__(
        self, producer: Producer, refused: dict[int, str], singly: set[int], knows: Known, own_topics: Set[str]
    ) -> None:  # fmt: skip
        """`own_topics`: Escrow's own. One that takes nothing fails the batch; it is never barred."""
        self.producer, self.refused, self.singly, self.knows = producer, refused, singly, knows
        self.failed: dict[int, Failure] = {}
        self.stalled: set[str] = set()
        self.messages = self.bytes = 0
        self.to_real_topics = False
        self._own_topics = own_topics
        self._times: dict[int, int] = {}  # timestamps of those that are tried alone: no report tells them
        self._failure: KafkaError | None = None
        self._purged: KafkaError | None = None
        self._giving_up = self._judged = False
        self._company: list[int] = []
        self._report = self.report_for(self._company)

    def report_for(self, company: list[int]) -> Report:
        """The delivery report of messages that are judged together, by their half offsets."""
        return partial(self._failed, company)

    def send(
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
        """Send the message of a half, unless it is known that Kafka would refuse it."""
        problem = self.knows.problem(topic, value or b"", key is not None, timestamp_ms) if self.knows.anything else ""
        if problem:
            self.refused[half_offset] = problem
            return
        alone = half_offset in self.singly
        if alone:
            self.flush()  # what was sent before goes without it
            self._times[half_offset] = timestamp_ms
        if len(self._company) == COMPANY_MAX or self.singly:
            self._company = []
            self._report = self.report_for(self._company)
        self._company.append(half_offset)
        try:
            self.produce(
                topic,
                value,
                key=key,
                partition=partition,
                headers=headers,
                timestamp_ms=timestamp_ms,
                report=self._report,
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

    def produce(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int,
        headers: list[Any],
        timestamp_ms: int = 0,
        report: Report | None = None,
    ) -> None:
        """Hand a record to the client; wait where its queue is full."""
        headway = self._headway()
        while True:
            try:
                # Positional: the client is written in C, and keyword arguments cost it time.
                self.producer.produce(topic, value, key, partition, report, None, timestamp_ms, headers)
                return
            except BufferError:
                self.producer.poll(0.1)
                if headway.is_lost(len(self.producer)):
                    self._give_up()
            except KafkaException as error:
                if error.args[0].code() == KafkaError._STATE and not self._failure:
                    self.producer.poll(1.0)  # the report that says why may be a moment behind
                if self._failure is not None:
                    raise KafkaException(self._failure) from error
                if self.failed:
                    raise RefusedByKafka from error
                raise

    def flush(self) -> None:
        """Wait until Kafka has everything, or something failed. After a refusal the client sends nothing more."""
        headway = self._headway()
        while not self.failed and (left := self.producer.flush(FLUSH_S)):
            if headway.is_lost(left):
                self._give_up()
        if self._failure is not None or (self._purged is not None and not self.failed):
            raise KafkaException(self._failure or self._purged)

    def judge(self, *, packs: bool) -> None:
        """Refuse what failed alone; try alone what failed in company, or was too large uncompressed. `packs`: it was
        sent compressed."""
        self._judged = True
        for half_offset, failure in self.failed.items():
            too_large = failure.error.code() == KafkaError.MSG_SIZE_TOO_LARGE
            self.knows.packs |= too_large
            if half_offset in self.singly and (packs or not too_large):
                self.refused[half_offset] = failure.error.str()
                self.knows.refuse(failure, self._times.get(half_offset, 0))
        self.singly.update(self.failed)

    def _headway(self) -> _Headway:
        """Without a message for a real topic nothing can be set aside, so Kafka gets more time."""
        return _Headway(STALL_S if self.to_real_topics else DEADLINE_S)

    def _give_up(self) -> None:
        """Bar the topics of what was not sent; the delivery reports name them."""
        self._giving_up = True
        self.producer.purge(in_queue=True, in_flight=True, blocking=True)
        self.producer.flush(FLUSH_S)
        if self._failure is not None:
            raise KafkaException(self._failure)
        if self.failed:
            raise RefusedByKafka
        if not self.stalled or self.stalled & self._own_topics:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "Kafka does not take what is sent"))
        self.knows.bar({topic: f"topic {topic} took no message within {STALL_S:.0f} s" for topic in self.stalled})
        raise Stalled

    def _failed(self, company: list[int], error: KafkaError | None, message: Message) -> None:
        if error is None or self._judged:
            return
        if error.code() in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
            self._purged = error  # after a refusal the client empties its queue: what waited in it was not refused
            if self._giving_up:
                self.stalled.add(message.topic() or "")
            return
        what = Failure(error, message.topic() or "", message.value() or b"", message.key() is not None)
        self.failed.update((half_offset, what) for half_offset in company)
        if error.code() not in REFUSALS:
            self._failure = error
