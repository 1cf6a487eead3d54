"""Check requests: from the check topic to members that poll this endpoint.

For each producer group that has pollers here the endpoint is a member of the group's Kafka consumer group on their behalf
(`kafkaCheckGroupPrefix` + group). That makes the group live; the job writes its requests only then. The endpoint leaves
when nobody has polled for presenceTtl. A membership is a consumer and a thread: an endpoint is meant for hundreds of groups, not
for tens of thousands.

A request is done when it was handed over, when its half has ended, or when a newer one about the same half has come. What is done
is committed in the consumer group, and the job counts what was committed: so a request that was read and not handed over costs no
attempt, and is read again by the next member that has the partition. It does not lapse: the job writes no other one while it waits.
There is one exception. Offsets are committed in order, and a request that no courier can deliver stands in the way of those
behind it. If one of these was handed over and its half is still pending, the first lapses
after transactionCheckInterval, and counts.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from ingest.checks.delivery import CheckRequest, Handover, Member
from ingest.consuming.reading.poll_waiters import Waiting
from ingest.kafka.messages import born_at_ms_of, properties_of
from ingest.kafka.ops import headers_of
from ingest.kafka.places import HALF_OFFSET_MAX, PARTITION_MAX, Place
from sinks.kafka.clients import Connection
from sinks.kafka.contract import CHECK_COUNT, HALF_OFFSET, HALF_PARTITION, KEY, TOPIC
from store.properties import KEYS, PGROUP, REAL_TOPIC
from store.tables.frames import Frame, FrameKind

POLL_S: Final = 0.2
ASK_S: Final = 10.0
AGAIN_S: Final = 1.0
#: Requests of a group that are held at most; the consumer pauses beyond it.
HELD_MAX: Final = 10_000
_AT_ONCE: Final = 500
LOG: Final = logging.getLogger("escrow.edge")


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
        *,
        arrived: Callable[[str, list[Asked]], None],
        lost: Callable[[str, set[int]], None],
    ) -> None:
        self._topic, self._group, self._begin_s = topic, group, begin_s
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
        found = []
        messages: list[Any] = [first, *self._consumer.consume(_AT_ONCE, 0)]
        for message in messages:
            if message.error() is not None:
                self.trouble = message.error().str() if message.error().code() != KafkaError._PARTITION_EOF else ""
                continue
            asked = read_request(message, self._group)
            with self._lock:
                offsets = self._open.setdefault(message.partition(), {})
                offsets[message.offset()] = asked is None
            if asked is not None:
                found.append(asked)
        if found and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._arrived, self._group, found)

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


def read_request(message: Any, group: str) -> Asked | None:
    """A record of the check topic, if it is for this group."""
    if (message.key() or b"") != group.encode():
        return None
    headers = headers_of(message)
    partition, half_offset, count = (_number(headers, name) for name in (HALF_PARTITION, HALF_OFFSET, CHECK_COUNT))
    if not (0 <= partition <= PARTITION_MAX and 0 <= half_offset <= HALF_OFFSET_MAX):
        return None
    properties = properties_of(message)
    own = {PGROUP: group, REAL_TOPIC: headers.get(TOPIC, b"").decode("utf-8", "replace")}
    if KEY in headers:
        own[KEYS] = headers[KEY].decode("utf-8", "replace")
    body = message.value() or b""
    frame = Frame(
        message.offset(), len(body), FrameKind.HALF, half_offset, max(message.timestamp()[1], 0), 1, 0,
        {"born_at_ms": born_at_ms_of(headers), "group_no": 0}, body, {**properties, **own},
    )  # fmt: skip
    request = CheckRequest(Place(partition, half_offset).number, 0, max(count, 0) + 1, frame)
    return Asked(request, message.partition(), message.offset(), time.monotonic())


def _number(headers: dict[str, bytes], name: str) -> int:
    text = headers.get(name, b"")
    return int(text) if text.isdigit() and len(text) < 19 else -1


class KafkaChecks:
    """Lives in the event loop."""

    def __init__(
        self,
        connection: Connection,
        topic: str,
        group_prefix: str,
        has_ended: Callable[[int], bool],
        now_ms: Callable[[], int],
        *,
        lapse_s: float,
        linger_s: float,
    ) -> None:
        self._topic, self._prefix, self._has_ended, self._now_ms = topic, group_prefix, has_ended, now_ms
        self._lapse_s, self._linger_s = lapse_s, linger_s
        self._connection = connection
        self._memberships: dict[str, Membership] = {}
        self._queues: dict[str, deque[Asked]] = {}
        self._members: dict[str, dict[str, Member]] = {}
        self._polled_s: dict[str, float] = {}
        self._waiting = Waiting()
        self._closing = False
        self.polls = self.lapsed = self.handed_over = 0
        #: Changes when requests have come, and every transactionCheckInterval: couriers try again then what they could not deliver.
        self.round_no = 0
        self._round_s = time.monotonic()

    async def poll(
        self,
        group: str,
        member: str,
        max_requests: int,
        max_bytes: int,
        wait_s: float,
        *,
        passing_over: Container[int] = (),
        via: str = "poll",
    ) -> Handover:
        """Requests for a member of this group; waits at most wait_s for the first. Empty when none came."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        self.polls += 1
        while True:
            self._seen(group, member, via)
            handover = self._take(Handover(group, member, round_start=self.round_no), max_requests, max_bytes, passing_over)
            left_s = deadline - loop.time()
            if handover.requests or left_s <= 0 or self._closing:
                return handover
            # A new place each time: one that passes over what is there must not stand in front of those who would take it.
            await self._waiting.wait(self._topic, group, min(left_s, self._linger_s / 3), self._waiting.place())

    def _seen(self, group: str, member: str, via: str) -> None:
        self._polled_s[group] = time.monotonic()
        members = self._members.setdefault(group, {})
        members[member] = Member(member, self._now_ms(), via)
        if group not in self._memberships and not self._closing:
            options = self._connection.librdkafka(
                group_id=self._prefix + group, enable_auto_commit=False, auto_offset_reset="earliest",
                isolation_level="read_committed", session_timeout_ms=10_000, heartbeat_interval_ms=1_000,
                queued_max_messages_kbytes=16_384, reconnect_backoff_max_ms=1000,
            )  # fmt: skip
            self._memberships[group] = Membership(
                options, self._topic, group, 2 * self._lapse_s + AGAIN_S, arrived=self._arrived, lost=self._lost
            )

    def _take(self, handover: Handover, max_requests: int, max_bytes: int, passing_over: Container[int]) -> Handover:
        queue, taken_bytes, passed_over = self._queues.get(handover.group, deque()), 0, list[Asked]()
        while (
            queue and len(handover.requests) < max_requests and (not taken_bytes or taken_bytes + queue[0].size_bytes <= max_bytes)
        ):
            asked = queue.popleft()
            if self._is_over(handover.group, asked):
                continue
            if asked.request.half_offset in passing_over:
                passed_over.append(asked)
                continue
            handover.requests.append(asked.request)
            handover.waiting.append(asked)
            taken_bytes += asked.size_bytes
        if queue:  # not what was passed over: two that pass over the same would wake each other for ever
            self._waiting.wake(self._topic, handover.group)
        queue.extendleft(reversed(passed_over))
        self._count(handover.group)
        return handover

    def _is_over(self, group: str, asked: Asked) -> bool:
        """Ended meanwhile, or lapsed because it stands in the way."""
        lapsed = time.monotonic() - asked.arrived_s > self._lapse_s and self._stands_in_the_way(group, asked)
        if not lapsed and not self._has_ended(asked.request.half_offset):
            return False
        self.lapsed += lapsed
        self._done(group, [asked])
        return True

    def _stands_in_the_way(self, group: str, asked: Asked) -> bool:
        membership = self._memberships.get(group)
        return membership is not None and membership.stands_in_the_way(asked, self._has_ended)

    def _done(self, group: str, asked: Iterable[Asked], *, handed_over: bool = False) -> None:
        membership = self._memberships.get(group)
        if membership is not None:
            membership.done(asked, handed_over=handed_over)

    def _count(self, group: str) -> None:
        if group in self._memberships:
            self._memberships[group].held = len(self._queues.get(group, ()))

    def was_handed_over(self, handover: Handover) -> None:
        """The answer was written."""
        self.handed_over += len(handover.requests)
        self._done(handover.group, handover.waiting, handed_over=True)

    def put_back(self, handover: Handover) -> None:
        """The answer could not be written: another member gets its requests."""
        if handover.waiting:
            self._queues.setdefault(handover.group, deque()).extendleft(reversed(handover.waiting))
            self._count(handover.group)
            self._waiting.wake(self._topic, handover.group)

    def _arrived(self, group: str, found: list[Asked]) -> None:
        """A request for a half that waits already is a new round's: it takes the old one's place."""
        self.round_no += 1
        new = {asked.request.half_offset for asked in found}
        queue = self._queues.setdefault(group, deque())
        old = [asked for asked in queue if asked.request.half_offset in new]
        if old:
            queue = self._queues[group] = deque(asked for asked in queue if asked.request.half_offset not in new)
            self.lapsed += len(old)
            self._done(group, old)
        queue.extend(found)
        self._count(group)
        self._waiting.wake(self._topic, group)

    def _lost(self, group: str, partitions: set[int]) -> None:
        queue = self._queues.get(group)
        if queue:
            self._queues[group] = deque(asked for asked in queue if asked.partition not in partitions)
            self._count(group)

    async def run(self) -> None:
        """Leave groups that nobody polls for any more; let go of what has ended."""
        while True:
            await asyncio.sleep(min(1.0, self._linger_s / 3))
            for group, queue in list(self._queues.items()):
                while queue and self._is_over(group, queue[0]):
                    queue.popleft()
                self._count(group)
            now_s = time.monotonic()
            if now_s - self._round_s > self._lapse_s:
                self._round_s, self.round_no = now_s, self.round_no + 1
            for group in [group for group, at_s in self._polled_s.items() if now_s - at_s > self._linger_s]:
                await self._leave(group)

    async def _leave(self, group: str) -> None:
        self._polled_s.pop(group, None)
        self._queues.pop(group, None)
        self._members.pop(group, None)
        membership = self._memberships.pop(group, None)
        if membership is not None:
            await membership.close()

    def members(self, group: str) -> list[Member]:
        return list(self._members.get(group, {}).values())

    def live_groups(self) -> set[str]:
        return set(self._memberships)

    @property
    def trouble(self) -> str:
        return next((each.trouble for each in self._memberships.values() if each.trouble), "")

    def figures(self) -> dict[str, int]:
        return {
            "requests_waiting": sum(len(queue) for queue in self._queues.values()),
            "polls_waiting": len(self._waiting),
            "lapsed": self.lapsed,
            "polls": self.polls,
            "groups": len(self._memberships),
        }

    def stop(self) -> None:
        """Polls that wait come back empty."""
        self._closing = True
        self._waiting.wake_all()

    async def close(self) -> None:
        self.stop()
        await asyncio.gather(*[self._leave(group) for group in list(self._polled_s)])
