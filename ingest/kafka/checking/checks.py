"""Check requests: from the check topic to members that poll this endpoint.

For each producer group that has pollers here, the endpoint is a member of the group's Kafka consumer group on their behalf
(`kafkaCheckGroupPrefix` + group; membership.py). That makes the group live; the job writes its requests only then. The endpoint
leaves when nobody has polled for presenceTtl.

A request is done when it was handed over, when its half has ended, or when a newer one about the same half has come. What is done
is committed in the consumer group, and the job counts what was committed: so a request that was read and not handed over costs no
attempt, and is read again by the next member that has the partition. It does not lapse: the job writes no other one while it waits.
There is one exception. Offsets are committed in order, and a request that no courier can deliver blocks those behind it. If one of
these was handed over and its half is still pending, the first lapses after transactionCheckInterval, and counts.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Container, Iterable

from ingest.checks.delivery import Handover, Member
from ingest.consuming.reading.poll_waiters import Waiting
from ingest.kafka.checking.membership import AGAIN_S, Asked, Membership
from ingest.kafka.records.halves import Reader
from sinks.kafka.clients import Connection
from sinks.kafka.contract import Topics


class KafkaChecks:
    """Lives in the event loop."""

    def __init__(
        self,
        connection: Connection,
        topics: Topics,
        group_prefix: str,
        has_ended: Callable[[int], bool],
        now_ms: Callable[[], int],
        *,
        lapse_s: float,
        linger_s: float,
    ) -> None:
        self._topic, self._half_topic, self._prefix = topics.check, topics.half, group_prefix
        self._has_ended, self._now_ms = has_ended, now_ms
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
                options,
                self._topic,
                group,
                2 * self._lapse_s + AGAIN_S,
                Reader(self._connection, self._half_topic),
                arrived=self._arrived,
                lost=self._lost,
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
