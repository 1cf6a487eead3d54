"""One producer group's Kafka consumer group on the check topic, joined on behalf of the members that poll this endpoint.

A membership is a consumer and a thread: an endpoint is meant for hundreds of groups, not for tens of thousands. It commits what is
done, in the order of the partition, and the job counts what was committed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from ingest.checks.delivery import CheckRequest
from ingest.kafka.records.halves import Reader
from ingest.kafka.records.messages import born_at_ms_of, properties_of
from ingest.kafka.records.ops import headers_of
from ingest.kafka.records.places import HALF_OFFSET_MAX, PARTITION_MAX, Place
from sinks.kafka.contract import BODY, CHECK_COUNT, HALF_OFFSET, HALF_PARTITION, IN_HALF_TOPIC, KEY, TOPIC
from store.properties import KEYS, PGROUP, REAL_TOPIC
from store.tables.frames import Frame, FrameKind

POLL_S: Final = 0.2
ASK_S: Final = 10.0
AGAIN_S: Final = 1.0
#: Requests of a group that are held at most; the consumer pauses beyond it.
HELD_MAX: Final = 10_000
_AT_ONCE: Final = 500
LOG: Final = logging.getLogger("escrow.edge")

#: Records of the half topic, by their place.
Halves = dict[Place, Any]
_NO_HALVES: Final[Halves] = {}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was read, and where it came from."""

    request: CheckRequest
    partition: int
    offset: int
    arrived_s: float

    @property
    def size_bytes(self) -> int:
        return len(self.request.frame.body)


class Membership:
    """One producer group's consumer group, joined on behalf of its pollers. `arrived` and `lost` are called in the event loop."""

    def __init__(
        self,
        options: dict[str, Any],
        topic: str,
        group: str,
        begin_s: float,
        halves: Reader,
        *,
        arrived: Callable[[str, list[Asked]], None],
        lost: Callable[[str, set[int]], None],
    ) -> None:
        self._topic, self._group, self._begin_s, self._halves = topic, group, begin_s, halves
        self._arrived, self._lost = arrived, lost
        self._loop = asyncio.get_running_loop()
        self._consumer = Consumer(options)
        self._open: dict[int, dict[int, bool]] = {}
        self._handed: dict[int, dict[int, int]] = {}  # by partition: those behind an open one, offset → half
        self._commits: dict[int, int] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self.held = 0
        self._paused = False
        self.trouble = ""
        self._thread = threading.Thread(target=self._run, name=f"kafka-checks-{group}", daemon=True)
        self._thread.start()

    # --- in the event loop ------------------------------------------------------------------------------------------------
    def done(self, asked: Iterable[Asked], *, handed_over: bool = False) -> None:
        """These need not be read again. The thread commits it: a call from here would wait for the thread's."""
        with self._lock:
            for each in asked:
                offsets = self._open.get(each.partition)
                if offsets is None or each.offset not in offsets:
                    continue
                offsets[each.offset] = True
                handed = self._handed.setdefault(each.partition, {})
                if handed_over:
                    handed[each.offset] = each.request.half_offset
                following = _take_done(offsets)
                if following is not None:
                    self._commits[each.partition] = following
                    self._handed[each.partition] = {at: half for at, half in handed.items() if at >= following}

    def stands_in_the_way(self, asked: Asked, has_ended: Callable[[int], bool]) -> bool:
        """Whether a request behind it was handed over, cannot be committed because of this one, and is about a pending half."""
        with self._lock:
            is_first = next(iter(self._open.get(asked.partition, {})), -1) == asked.offset
            return is_first and not all(has_ended(half) for half in self._handed.get(asked.partition, {}).values())

    async def close(self) -> None:
        self._stopping.set()
        await asyncio.to_thread(self._thread.join)

    # --- in the thread ----------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            self._consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)
            while not self._stopping.is_set():
                try:
                    self._read()
                    self._commit()
                except KafkaException as error:
                    self.trouble = error.args[0].str()
                    self._stopping.wait(AGAIN_S)
        except BaseException as error:  # a defect must not go unheard
            LOG.exception("checks of %s", self._group)
            self.trouble = f"{type(error).__name__}: {error}"
        finally:
            with suppress(KafkaException):  # what is not committed is read again, which does no harm
                self._commit(asynchronous=False)
            self._consumer.close()
            self._halves.close()

    def _commit(self, *, asynchronous: bool = True) -> None:
        with self._lock:
            commits, self._commits = self._commits, {}
        if commits:
            offsets = [TopicPartition(self._topic, partition, offset) for partition, offset in commits.items()]
            self._consumer.commit(offsets=offsets, asynchronous=asynchronous)  # type: ignore[call-overload]

    def _read(self) -> None:
        self._pause(self.held > HELD_MAX)
        first = self._consumer.poll(POLL_S)
        if first is None:
            return
        found, messages = [], self._good([first, *self._consumer.consume(_AT_ONCE, 0)])
        halves = self._left_out(messages)
        for message in messages:
            asked = read_request(message, self._group, halves)
            with self._lock:
                offsets = self._open.setdefault(message.partition(), {})
                offsets[message.offset()] = asked is None
            if asked is not None:
                found.append(asked)
        if found and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._arrived, self._group, found)

    def _good(self, messages: list[Any]) -> list[Any]:
        for message in messages:
            if message.error() is not None:
                self.trouble = message.error().str() if message.error().code() != KafkaError._PARTITION_EOF else ""
        return [message for message in messages if message.error() is None]

    def _left_out(self, messages: list[Any]) -> Halves:
        """The halves of requests that come without a body (kafkaCheckBodies = false), read until Kafka gives them."""
        wanted: dict[int, list[int]] = {}
        for message in messages:
            place = place_elsewhere(message, self._group)
            if place is not None:
                wanted.setdefault(place.partition, []).append(place.half_offset)
        halves: Halves = {}
        while wanted and not self._stopping.is_set():
            partition, half_offsets = next(iter(wanted.items()))
            try:
                found = self._halves.read(partition, half_offsets)
            except KafkaException as error:
                self.trouble = error.args[0].str()
                self._stopping.wait(AGAIN_S)
                continue
            halves |= {Place(partition, half_offset): half for half_offset, half in found.items()}
            del wanted[partition]
        return halves

    def _pause(self, full: bool) -> None:
        """Still polled while it is paused: who does not poll for minutes is taken for dead."""
        if full != self._paused:
            (self._consumer.pause if full else self._consumer.resume)(self._consumer.assignment())
            self._paused = full

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Where nothing was committed yet: from a moment ago, because requests are written as soon as we are seen to be here."""
        self._paused = False  # what is assigned anew is not
        try:
            known = consumer.committed(partitions, timeout=ASK_S)
            new = [each for each in known if each.offset < 0]
            at_ms = int((time.time() - self._begin_s) * 1000)
            begun = consumer.offsets_for_times([TopicPartition(each.topic, each.partition, at_ms) for each in new], timeout=ASK_S)
            consumer.assign([each for each in known if each.offset >= 0] + begun)
        except KafkaException as error:
            self.trouble = error.args[0].str()
            consumer.assign(partitions)

    def _revoked(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """What was read and not handed over is the next member's."""
        gone = {each.partition for each in partitions}
        with self._lock:
            for partition in gone:
                self._open.pop(partition, None)
                self._handed.pop(partition, None)
                self._commits.pop(partition, None)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._lost, self._group, gone)


def _take_done(offsets: dict[int, bool]) -> int | None:
    """Where to go on reading: behind the done ones at the beginning, which are let go; None if there are none."""
    following = None
    for offset in list(offsets):
        if not offsets[offset]:
            break
        del offsets[offset]
        following = offset + 1
    return following


def place_elsewhere(message: Any, group: str) -> Place | None:
    """The half of a request for this group that comes without its body; None of any other record."""
    if (message.key() or b"") != group.encode():
        return None
    headers = headers_of(message)
    return _place(headers) if headers.get(BODY) == IN_HALF_TOPIC else None


def read_request(message: Any, group: str, halves: Halves = _NO_HALVES) -> Asked | None:
    """A record of the check topic, if it is for this group. `halves`: of requests that come without a body; one whose half is gone
    is none."""
    if (message.key() or b"") != group.encode():
        return None
    headers = headers_of(message)
    place, count = _place(headers), _number(headers, CHECK_COUNT)
    if place is None:
        return None
    whole = halves.get(place) if headers.get(BODY) == IN_HALF_TOPIC else message
    if whole is None:
        return None
    properties = properties_of(whole)
    own = {PGROUP: group, REAL_TOPIC: headers.get(TOPIC, b"").decode("utf-8", "replace")}
    if KEY in headers:
        own[KEYS] = headers[KEY].decode("utf-8", "replace")
    body = whole.value() or b""
    frame = Frame(
        message.offset(), len(body), FrameKind.HALF, place.half_offset, max(message.timestamp()[1], 0), 1, 0,
        {"born_at_ms": born_at_ms_of(headers), "group_no": 0}, body, {**properties, **own},
    )  # fmt: skip
    request = CheckRequest(place.number, 0, max(count, 0) + 1, frame)
    return Asked(request, message.partition(), message.offset(), time.monotonic())


def _place(headers: dict[str, bytes]) -> Place | None:
    place = Place(_number(headers, HALF_PARTITION), _number(headers, HALF_OFFSET))
    return place if 0 <= place.partition <= PARTITION_MAX and 0 <= place.half_offset <= HALF_OFFSET_MAX else None


def _number(headers: dict[str, bytes], name: str) -> int:
    text = headers.get(name, b"")
    return int(text) if text.isdigit() and len(text) < 19 else -1
