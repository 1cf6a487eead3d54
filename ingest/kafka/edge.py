"""The edge in Kafka mode: the same requests and the same answers as of the embedded edge, over topics (docs/kafka.md).

    halves     to the half topic; the id is made of the place that Kafka answers
    ends       to the op topic; answered when this endpoint has read its own record back: the order of the partition decides
    messages   to their real topic
    checks     from the check topic to polls, webhooks and plug-ins
    consumers  read the real topics from Kafka; what needs the embedded store is not offered (`ABSENT` says where to look)

Nothing in the data directory is truth but the id keys, and those may come from the environment: endpoints can be started,
doubled and thrown away. While Kafka is out of reach, everything is refused with 503 and Retry-After; what was acknowledged
is in Kafka.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaException

from ingest import groups
from ingest.capabilities import EndAnswer, EndRequest, JobState, Offers
from ingest.checks.delivery import CheckRequest, Handover, Member
from ingest.edge.quotas import Limited
from ingest.errors import BadId
from ingest.ids import load_keys
from ingest.kafka.acting import Acting
from ingest.kafka.checking.checks import KafkaChecks
from ingest.kafka.ended.follower import OpFollower
from ingest.kafka.ending import Ending
from ingest.kafka.history import KafkaHistories
from ingest.kafka.issued import KafkaIssued
from ingest.kafka.job import JobWatch
from ingest.kafka.keys.follower import KeyFollower
from ingest.kafka.keys.known import KnownKeys
from ingest.kafka.keys.once import SendOnce
from ingest.kafka.keys.writer import KeyedWriter
from ingest.kafka.opening import make_topics, until_caught_up, until_keys_are_known, until_reached
from ingest.kafka.quotas import RateQuotas
from ingest.kafka.reach import Reach, look_at
from ingest.kafka.records.messages import RealTopics, half_record
from ingest.kafka.records.places import Place
from ingest.kafka.records.sealing import PlaceSealer, place_in
from ingest.kafka.storing import Storing
from ingest.kafka.writer import Record, Writer
from ingest.operating.history import Transaction
from ingest.operating.operator import Action, Done
from ingest.parts import Gate, Loops, Parts, guarded_clock
from runtime.clock import Clock
from runtime.settings import Settings
from sinks.kafka.clients import Connection
from sinks.kafka.contract import Topics
from store.guarded_clock import GuardedClock
from store.messages import Message
from store.progress import Progress, no_progress
from store.properties import PGROUP
from store.records import OpKind, Via

#: Where to look for what this mode does not offer, by capability.
ABSENT: Final = {
    "consuming": (
        "consume the topic from Kafka, with isolation.level=read_committed: in Kafka mode this endpoint hands nothing to consumers"
    ),
    "operating": (
        "this list is the embedded store's; in Kafka mode look at the metrics, at GET /v1/transactions/{id} and at the topics"
    ),
    "audit": "in Kafka mode the op topic is the audit: what operators did bears escrow-via: operator",
    "create_topic": "topics are Kafka's here: make them there (kafka-topics.sh --create)",
    "remove_topics": "topics are Kafka's here: delete them there (kafka-topics.sh --delete)",
}


class KafkaEdge:
    """One edge over Kafka. Made, used and closed in one event loop."""

    clock: GuardedClock
    waits_plainly = False

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        self.settings, self._source, self.notice = settings, clock, ""
        self.topics = Topics(**settings.kafka_topics())
        self._connection = Connection(**settings.kafka_values())
        self._gate, self._loops = Gate(settings), Loops(self._fail)
        #: What was put on the edge (`ingest.assembly`), which opens it; closed before the edge.
        self.parts = Parts()
        #: Kafka flushes: never called.
        self.observe_flush: Callable[[float], None] | None = None
        self._known_groups: set[str] = set()
        self._open = False

    # --- opening and closing -------------------------------------------------------------------------------------------------
    async def open(self, progress: Progress = no_progress) -> None:
        """1 the topics, as soon as Kafka answers · 2 the keys · 3 who writes and follows · 4 the ops and dedup keys so far."""
        self.groups = groups.watch(self.settings)  # before anything is touched: it may be unusable
        self._failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        await until_reached(self.settings, partial(make_topics, self.settings, self._connection, self.topics))  # 1
        self.settings.store_dir.mkdir(parents=True, exist_ok=True)
        keys, self.notice = load_keys(self.settings.keys_file, self.settings.id_keys)  # 2
        self._place_sealer = PlaceSealer(keys, self.topics.half)
        self._open_rest()  # 3
        self._open = True
        try:
            patience_s = self.settings.start_timeout_ms / 1000
            await until_caught_up(self._ends, self._failed, progress, patience_s=patience_s, op_topic=self.topics.op)  # 4
            await until_keys_are_known(self._key_follower, self._failed, patience_s=patience_s, topic=self.topics.keys)
        except BaseException:
            await self.close()
            raise

    def offers(self) -> Offers:
        return Offers(issued=KafkaIssued(self.started_at_ms), absent=ABSENT)

    def _open_rest(self) -> None:
        """1 writers · 2 the follower of ops · 3 halves and messages · 4 checks and the job."""
        settings, connection = self.settings, self._connection
        self.clock = guarded_clock(settings, self._source, None)  # an endpoint has no disk of its own
        self.started_at_ms = self._now_ms()
        self._reach = Reach(partial(look_at, connection, self.topics.half))
        # Ends have a producer of their own: they never wait behind halves.
        self._halves = Writer(connection, self._reach, "halves", self._fail, queued_bytes_max=settings.max_queued_bytes)  # 1
        self._ops = Writer(connection, self._reach, "ends", self._fail, queued_bytes_max=settings.max_queued_bytes)
        self._open_ends()  # 2
        self._open_storing()  # 3
        self._kafka_checks = KafkaChecks(
            connection, self.topics, settings.kafka_check_group_prefix, self._has_ended, self._now_ms,
            lapse_s=settings.check_interval_ms / 1000, linger_s=settings.presence_ttl_ms / 1000,
        )  # 4  # fmt: skip
        self._job = JobWatch(connection.admin(), settings.kafka_lease_group)
        for loop_of in (self._reach.run, self._kafka_checks.run, self._job.run):
            self._loops.start(loop_of())

    def _open_ends(self) -> None:
        settings, connection, sealer = self.settings, self._connection, self._place_sealer
        self._ends = OpFollower(
            connection, self.topics, sealer, self._fail, self._now_ms,
            reserved_ms=settings.retention_ms, checkpoint_s=settings.kafka_checkpoint_interval_ms / 1000,
            transactional_id_prefix=settings.kafka_transactional_id_prefix,
        )  # fmt: skip
        self._ends.start()
        self._kafka_histories = KafkaHistories(connection, self.topics, sealer, self._ends)
        timeout_s = settings.request_timeout_ms / 1000
        self._ending = Ending(self._ops, self._ends, sealer, self.topics.op, timeout_s=timeout_s)
        self._acting = Acting(self._ending, self._ends, self.transaction)

    def _open_storing(self) -> None:
        settings = self.settings
        self._open_keys()
        timeout_s = settings.request_timeout_ms / 1000
        self._once = SendOnce(self._keys, self._keyed, self._half_record, self._roll_back, timeout_s)
        self._storing = Storing(
            self._halves,
            self._reach,
            RealTopics(self._connection.admin(), list(asdict(self.topics).values()), self._reach.unreachable),
            self._once,
            half_topic=self.topics.half,
            max_body_bytes=settings.max_body_bytes,
            now_ms=self._now_ms,
        )
        self.quotas = RateQuotas(settings, self.groups)
        self._limited = Limited(self._storing, self.quotas)
        self.notice = "; ".join(filter(None, (self.notice, self.quotas.notice)))

    def _open_keys(self) -> None:
        settings, topic = self.settings, self.topics.keys
        self._keys = KnownKeys(settings.store_dir / "kafka-dedup", -(-settings.dedup_window_ms // 1000))
        since_ms = max(0, self._now_ms() - settings.dedup_window_ms)
        self._key_follower = KeyFollower(self._connection, topic, since_ms, self._fail, self._keys.learn)
        self._keyed = KeyedWriter(
            self._connection, self._reach, topic, self._keys,
            transactional_id_prefix=settings.kafka_transactional_id_prefix,
            partitions=lambda: self._key_follower.partitions,
        )  # fmt: skip

    def _half_record(self, message: Message) -> Record:
        return half_record(message, self.topics.half, self._now_ms())

    async def _roll_back(self, place: Place, group: str) -> None:
        """A half whose dedup key another endpoint has used first; nobody was told of it."""
        id = self._place_sealer.seal(place, group)
        remark = "its dedup key was used first at another endpoint"
        await self._ending.say([self._ending.op(place, OpKind.ROLLBACK, group, via=Via.PRODUCER, remark=remark, id=id)])

    @property
    def not_ready(self) -> str:
        return self._ends.gap

    def _fail(self, reason: str) -> None:
        if not self._failed.done():
            self._failed.set_result(reason)

    @property
    def failed(self) -> asyncio.Future[str]:
        return self._failed

    def stop(self) -> None:
        self.parts.stop()
        self._gate.closing = True
        self._loops.stop()
        if self._open:
            self._kafka_checks.stop()

    async def close(self) -> None:
        """What was accepted is given a moment to be acknowledged by Kafka."""
        self.stop()
        await self.parts.close()
        if not self._open:
            return
        await self._halves.close()
        await self._keyed.close()
        self._once.close()
        await self._ops.close()
        await self._loops.close()
        await self._kafka_checks.close()
        await self._ends.close()
        await asyncio.to_thread(self._kafka_histories.close)
        await self._key_follower.close()
        self._keys.close()

    def _now_ms(self) -> int:
        return self.clock.now_ms()

    # --- halves and messages -------------------------------------------------------------------------------------------------
    async def store_halves(self, messages: Sequence[Message]) -> Sequence[tuple[str, int]]:
        """(transaction id, half_offset) of each, once Kafka has them all."""
        self._gate.require_halves()
        self._gate.check_count(messages, "messages")
        await self._storing.require_fit(messages)
        places = await self._limited.prepare(messages)
        self._known_groups.update(message.group for message in messages)
        seal = self._place_sealer.seal
        return [(seal(place, message.group), place.half_offset) for place, message in zip(places, messages, strict=True)]

    async def send(self, messages: Sequence[Message]) -> list[tuple[int, int]]:
        """(partition, offset) of each in its real topic."""
        self._gate.require_master("messages")
        self._gate.check_count(messages, "messages")
        await self._storing.require_fit(messages)
        return await self._limited.send(messages)

    # --- ends ----------------------------------------------------------------------------------------------------------------
    async def end(self, ends: Sequence[EndRequest]) -> list[EndAnswer]:
        self._gate.require_master("ends")
        self._gate.check_count(ends, "ends")
        return await self._ending.end(ends)

    def _has_ended(self, number: int) -> bool:
        return bool(self._ends.end_of(Place.of(number)))

    async def act(self, action: Action) -> Done:
        """Commit, roll back or resume by ids."""
        self._gate.require_master("actions")
        self._acting.require_possible(action)
        self._gate.check_count(action.ids, "ids")
        return await self._acting.act(action)

    # --- checks --------------------------------------------------------------------------------------------------------------
    @asynccontextmanager
    async def poll_checks(
        self,
        group: str,
        member: str,
        max_requests: int = 32,
        wait_s: float = 0.0,
        *,
        passing_over: Container[int] = (),
        via: str = "poll",
    ) -> AsyncIterator[Handover]:
        """As in the embedded edge; the job counts a request when the check topic's offset behind it is committed."""
        max_requests, wait_s = self._gate.check_poll(member, max_requests, wait_s)
        max_bytes = self.settings.max_request_bytes // 2
        handover = await self._kafka_checks.poll(group, member, max_requests, max_bytes, wait_s, passing_over=passing_over, via=via)
        try:
            yield handover
        except BaseException:
            self.put_back(handover)
            raise
        self._kafka_checks.was_handed_over(handover)

    def put_back(self, handover: Handover) -> None:
        self._kafka_checks.put_back(handover)

    def still_asked(self, handover: Handover) -> bool:
        return handover.round_start == self._kafka_checks.round_no and any(
            not self._has_ended(number) for number in handover.half_offsets
        )

    @property
    def check_round(self) -> int:
        return self._kafka_checks.round_no

    def present(self, _group: str, _member: str, _via: str) -> None:
        """Its polls say so: here a group needs no number first."""

    def members(self, group: str) -> list[Member]:
        return self._kafka_checks.members(group)

    def live_groups(self) -> set[str]:
        return self._kafka_checks.live_groups()

    def known_groups(self) -> Sequence[str]:
        """Groups that sent halves here since the start."""
        return sorted(self._known_groups)

    def knows_group(self, group: str) -> bool:
        return group in self._known_groups

    def half_offset_of(self, id: str) -> int:
        return place_in(id).half_offset

    def properties_of(self, id: str) -> Mapping[str, str]:
        try:
            return self._kafka_histories.properties_of(id)
        except (BadId, KafkaException):
            return {}

    def id_of(self, request: CheckRequest) -> str:
        return self._place_sealer.seal(Place.of(request.half_offset), request.frame.properties[PGROUP])

    # --- status --------------------------------------------------------------------------------------------------------------
    async def status(self) -> dict[str, Any]:
        return {
            "role": self.settings.role,
            "mode": self.settings.mode,
            "started_at_ms": self.started_at_ms,
            **self.counts(),
            "job": asdict(self.job_state()),
            "failed": self.failed.result() if self.failed.done() else "",
        }

    def counts(self) -> dict[str, Any]:
        trouble = self._reach.trouble or self._ends.trouble or self._key_follower.trouble or self._kafka_checks.trouble
        return {
            "queued_records": self._halves.waiting + self._ops.waiting,
            "halves": self._storing.counts["halves"] + self._once.written,
            "messages": self._storing.counts["messages"],
            "ends": self._ending.count,
            "answers": dict(self._ending.answers),
            "asked": self._kafka_checks.handed_over,
            "refused_for_load": self._halves.refused_for_load + self._ops.refused_for_load,
            "checks": self._kafka_checks.figures(),
            "quotas": self.quotas.figures(),
            "kafka": {
                "reachable": not self._reach.trouble,
                "failures": self._reach.failures,
                "partitions": self._ends.partitions,
                "ops_read": dict(self._ends.counts),
                "checkpoints": self._ends.checkpoints(),
            },
            **self.parts.figures(),
            "trouble": trouble,
            "healthy": not trouble and not self.failed.done(),
        }

    def job_state(self) -> JobState:
        return JobState(self._job.state, 0, 0)

    async def transaction(self, id: str) -> Transaction:
        try:
            return await asyncio.to_thread(self._kafka_histories.of, id)
        except KafkaException as error:
            raise self._reach.unreachable(error) from error
