"""The edge in Kafka mode: the same requests and the same answers as of the embedded edge, over topics (docs/kafka.md).

    halves     to the half topic; the id is made of the place that Kafka answers
    ends       to the op topic; answered when this endpoint has read its own record back: the order of the partition decides
    messages   to their real topic
    checks     from the check topic to polls, webhooks and plug-ins
    consumers  read the real topics from Kafka; what needs the embedded store is not offered (`ABSENT` says where to look)

Nothing in the data directory is truth but the keys, and those may come from the environment: endpoints can be started, doubled and
thrown away. While Kafka is out of reach everything is refused with 503 and Retry-After; what was acknowledged is in Kafka.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Container, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any, Final

from confluent_kafka import KafkaException

from ingest import groups
from ingest.capabilities import OUTCOMES, EndAnswer, EndRequest, JobState, Offers, answer_of
from ingest.checks.delivery import CheckRequest, Handover, Member
from ingest.edge.quotas import Limited
from ingest.errors import BadId, CannotStart, EdgeError, InvalidRequest, KafkaUnreachable, NotInKafkaMode
from ingest.ids import load_keys
from ingest.kafka.checks import KafkaChecks
from ingest.kafka.dedup import SendOnce
from ingest.kafka.ended.follower import OpFollower
from ingest.kafka.history import KafkaHistories
from ingest.kafka.job import JobWatch
from ingest.kafka.messages import RealTopics, check_message, half_record, message_record
from ingest.kafka.places import Place
from ingest.kafka.quotas import RateQuotas
from ingest.kafka.sealing import PlaceSealer, place_in
from ingest.kafka.writer import LOOK_TIMEOUT_S, Reach, Record, Writer
from ingest.operating.history import Transaction
from ingest.operating.operator import KIND_OF, RESULTS, Action, Done, Result
from ingest.parts import Gate, Loops, Parts, guarded_clock
from runtime.clock import Clock
from runtime.settings import Settings
from sinks.errors import KafkaUnfit
from sinks.kafka.clients import Connection, ensure_topics
from sinks.kafka.contract import Topics, op_headers
from store.errors import InvalidRecord, StoreUnusable
from store.guarded_clock import GuardedClock
from store.messages import Message
from store.progress import Progress, no_progress
from store.properties import PGROUP
from store.records import OpKind, Via
from store.tables.ends import Answer, Verdict, judge

AGAIN_S: Final = 1.0
CATCH_UP_S: Final = 1.0
REMARK_MAX: Final = 1024
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
        self._counters: Counter[str] = Counter()
        self._answers: Counter[str] = Counter()
        self._known_groups: set[str] = set()
        #: Ends whose id was never issued, or for another group: refused before they reach the log.
        self.ends_refused = 0
        self._open = False

    # --- opening and closing -------------------------------------------------------------------------------------------------
    async def open(self, progress: Progress = no_progress) -> None:
        """1 the topics, as soon as Kafka answers · 2 the keys · 3 who writes and who follows · 4 the ops so far."""
        self.groups = groups.watch(self.settings)  # before anything is touched: it may be unusable
        self._failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        await self._until_reached(self._ensure_topics)  # 1
        self.settings.store_dir.mkdir(parents=True, exist_ok=True)
        keys, self.notice = load_keys(self.settings.keys_file, self.settings.id_keys)  # 2
        self._place_sealer = PlaceSealer(keys, self.topics.half)
        self._open_rest()  # 3
        self._open = True
        try:
            await self._catch_up(progress)  # 4
        except BaseException:
            await self.close()
            raise

    def offers(self) -> Offers:
        return Offers(absent=ABSENT)

    async def _until_reached(self, procedure: Callable[[], None]) -> None:
        """Kafka may come up after us: it has as long as we have."""
        give_up_s = time.monotonic() + self.settings.start_timeout_ms / 1000
        while True:
            try:
                return await asyncio.to_thread(procedure)
            except KafkaUnfit as error:
                raise CannotStart(str(error)) from error
            except (KafkaException, TimeoutError) as error:
                if time.monotonic() > give_up_s:
                    reason, servers = str(error) or "no answer", self.settings.kafka_bootstrap_servers
                    raise CannotStart(f"Kafka at {servers} does not answer ({reason}): is kafkaBootstrapServers right?") from error
            await asyncio.sleep(AGAIN_S)

    def _ensure_topics(self) -> None:
        settings = self.settings
        ensure_topics(
            self._connection,
            self.topics,
            partitions=settings.kafka_partitions,
            replication=settings.kafka_replication,
            min_insync=settings.kafka_min_insync,
            retention_ms=settings.retention_ms,
            repair=settings.kafka_repair_topics,
        )

    def _open_rest(self) -> None:
        settings, connection = self.settings, self._connection
        self.clock = guarded_clock(settings, self._source, None)  # an endpoint has no disk of its own
        self.started_at_ms = self._now_ms()
        self._reach = Reach(self._look)
        # Ends have a producer of their own: they never wait behind halves.
        self._halves = Writer(connection, self._reach, "halves", self._fail, queued_bytes_max=settings.max_queued_bytes)
        self._ops = Writer(connection, self._reach, "ends", self._fail, queued_bytes_max=settings.max_queued_bytes)
        self._real_topics = RealTopics(connection.admin(), list(asdict(self.topics).values()), self._unreachable)
        self._ends = OpFollower(
            connection, self.topics, self._place_sealer, self._fail, self._now_ms,
            reserved_ms=settings.retention_ms, checkpoint_s=settings.kafka_checkpoint_interval_ms / 1000,
            transactional_id_prefix=settings.kafka_transactional_id_prefix,
        )  # fmt: skip
        self._ends.start()
        self._kafka_histories = KafkaHistories(connection, self.topics, self._place_sealer, self._ends)
        self._send_once = SendOnce(settings.store_dir / "kafka-dedup", -(-settings.dedup_window_ms // 1000))
        self.quotas = quotas = RateQuotas(settings, self.groups)
        self._storing = Limited(Storing(self), quotas)
        self.notice = "; ".join(filter(None, (self.notice, quotas.notice)))
        self._kafka_checks = KafkaChecks(
            connection, self.topics.check, settings.kafka_check_group_prefix, self._has_ended, self._now_ms,
            lapse_s=settings.check_interval_ms / 1000, linger_s=settings.presence_ttl_ms / 1000,
        )  # fmt: skip
        self._job = JobWatch(connection.admin(), settings.kafka_lease_group)
        for loop_of in (self._reach.run, self._kafka_checks.run, self._job.run):
            self._loops.start(loop_of())

    def _look(self) -> str:
        """In a thread: why Kafka does not answer, or "". By a new client: one that has nothing to send does not connect anew."""
        admin = self._connection.admin()
        try:
            admin.list_topics(self.topics.half, timeout=LOOK_TIMEOUT_S)
        except KafkaException as error:
            return str(error.args[0].str())
        return ""

    async def _catch_up(self, progress: Progress) -> None:
        """As long as it takes, while it gets on."""
        most, last, moved_s, caught_up = 0, -1, time.monotonic(), self._ends.caught_up
        while not caught_up.done():
            waited: list[asyncio.Future[Any]] = [caught_up, self._failed]
            await asyncio.wait(waited, timeout=CATCH_UP_S, return_when=asyncio.FIRST_COMPLETED)
            if self._failed.done():
                raise StoreUnusable(self._failed.result())
            left = self._ends.to_read
            if left != last:
                most, last, moved_s = max(most, left), left, time.monotonic()
            if left:
                progress(most - left, most, "ops read")
            if time.monotonic() > moved_s + self.settings.start_timeout_ms / 1000:
                reason = self._ends.trouble or "Kafka gives no more of them"
                raise CannotStart(f"the ops in {self.topics.op} could not all be read: {reason}")

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
        await self._ops.close()
        await self._loops.close()
        await self._kafka_checks.close()
        await self._ends.close()
        await asyncio.to_thread(self._kafka_histories.close)
        self._send_once.close()

    def _now_ms(self) -> int:
        return self.clock.now_ms()

    # --- halves and messages -------------------------------------------------------------------------------------------------
    async def store_halves(self, messages: Sequence[Message]) -> Sequence[tuple[str, int]]:
        """(transaction id, half_offset) of each, once Kafka has them all."""
        self._gate.require_halves()
        await self._check_messages(messages)
        places = await self._storing.prepare(messages)
        self._known_groups.update(message.group for message in messages)
        seal = self._place_sealer.seal
        return [(seal(place, message.group), place.half_offset) for place, message in zip(places, messages, strict=True)]

    async def write_once(self, messages: Sequence[Message]) -> list[Place]:
        """Halves whose dedup key was seen lately are not written again."""
        return await self._send_once.store(messages, self._now_ms() // 1000, self._write_halves)

    async def _write_halves(self, messages: Sequence[Message]) -> list[Place]:
        now_ms = self._now_ms()
        written = await self._halves.write([half_record(message, self.topics.half, now_ms) for message in messages])
        self._counters["halves"] += len(written)
        return [Place(*place) for place in written]

    async def send(self, messages: Sequence[Message]) -> list[tuple[int, int]]:
        """(partition, offset) of each in its real topic."""
        self._gate.require_master("messages")
        await self._check_messages(messages)
        return await self._storing.send(messages)

    async def write_messages(self, messages: Sequence[Message]) -> list[tuple[int, int]]:
        now_ms = self._now_ms()
        places = await self._halves.write([message_record(message, now_ms) for message in messages])
        self._counters["messages"] += len(places)
        return places

    async def _check_messages(self, messages: Sequence[Message]) -> None:
        """Size, topic and right are looked at now: a half that is taken can be released later."""
        self._gate.check_count(messages, "messages")
        self._reach.require()
        half = await self._real_topics.look_at(self.topics.half)
        for number, message in enumerate(messages):
            try:
                check_message(message, await self._real_topics.get(message.topic), half, self.settings.max_body_bytes)
            except InvalidRecord as error:
                error.number = number
                raise

    def _unreachable(self, error: Exception) -> EdgeError:
        reason = error.args[0].str() if isinstance(error, KafkaException) else "no answer"
        self._reach.failed(reason)
        return KafkaUnreachable(f"Kafka does not answer ({reason}): try again later")

    # --- ends ----------------------------------------------------------------------------------------------------------------
    async def end(self, ends: Sequence[EndRequest]) -> list[EndAnswer]:
        """An answer for each, in order. Final: what the op partition says at the place of this end."""
        self._gate.require_master("ends")
        self._gate.check_count(ends, "ends")
        opened = [self._to_op(end) for end in ends]
        answers = iter(await self._say([each for each in opened if not isinstance(each, EndAnswer)]))
        told = [each if isinstance(each, EndAnswer) else answer_of(next(answers)) for each in opened]
        self._answers.update(answer.verdict for answer in told)
        self._counters["ends"] += len(told)
        return told

    def _to_op(self, end: EndRequest) -> tuple[Place, OpKind, Record | None] | EndAnswer:
        """The record to write, or None where nothing need be written: an UNKNOWN that tells nothing."""
        kind = OUTCOMES.get(end.outcome)
        if kind is None:
            raise InvalidRequest(f"outcome: {end.outcome!r} is none of {', '.join(OUTCOMES)}")
        try:
            place = self._place_sealer.open(end.id, end.group)
        except BadId as error:
            self.ends_refused += 1
            return EndAnswer(Verdict.REFUSED.value, f"unknown id, or wrong group: {error}")
        if kind is OpKind.UNKNOWN and not end.from_check and not end.remark:
            return place, kind, None
        via, remark = Via.CHECK if end.from_check else Via.PRODUCER, end.remark[:REMARK_MAX]
        headers = op_headers(kind, place.half_offset, end.group, via=via, remark=remark, id=end.id)
        return place, kind, Record(self.topics.op, b"", None, headers, place.partition)

    async def _say(self, ops: Sequence[tuple[Place, OpKind, Record | None]]) -> list[Answer]:
        """1 what has ended already is answered from what was read · 2 the others are written · 3 and read back."""
        for place, _, _ in ops:
            self._ends.require_known(place)
        answers = [judge(kind, self._ends.end_of(place)) for place, kind, _ in ops]  # 1
        open_ = [
            number for number, (answer, (_, _, record)) in enumerate(zip(answers, ops, strict=True))
            if answer.verdict is Verdict.ACCEPTED and record is not None
        ]  # fmt: skip
        if not open_:
            return answers
        expected = [self._ends.expect() for _ in open_]
        try:
            records = [ops[number][2]._replace(key=key) for number, (key, _) in zip(open_, expected, strict=True)]  # type: ignore[union-attr]
            async with asyncio.timeout(self.settings.request_timeout_ms / 1000):
                self._ends.read_to(await self._ops.write(records))  # 2
                for number, (_, future) in zip(open_, expected, strict=True):  # 3
                    answers[number] = await future
        except TimeoutError:
            reason = self._ends.trouble or "the op partition cannot be read up to it: a transaction of somebody else is open there"
            raise KafkaUnreachable(f"it is in Kafka and its answer is not known yet ({reason}): say it again") from None
        finally:
            for _, future in expected:
                future.cancel()
        return answers

    def _has_ended(self, number: int) -> bool:
        return bool(self._ends.end_of(Place.of(number)))

    # --- operators -----------------------------------------------------------------------------------------------------------
    async def act(self, action: Action) -> Done:
        """Commit, roll back or resume by ids. The op records are the audit: they bear `escrow-via: operator` and who and why."""
        self._gate.require_master("actions")
        if action.filter is not None or action.action not in KIND_OF:
            raise NotInKafkaMode(f"{action.action}: {'a filter' if action.filter else 'this'} needs the embedded store: name ids")
        self._gate.check_count(action.ids, "ids")
        remark = f"{action.who}: {action.reason}"[:REMARK_MAX]
        results, counts = list[Result](), Counter[str]()
        for id in action.ids:
            answer = await self._act_on(id, KIND_OF[action.action], remark, dry_run=action.dry_run)
            counts[answer.verdict.value] += 1
            results.append(Result(id, answer.verdict.value, answer.reason))
        return Done(action.dry_run, len(action.ids), results, {name: counts[name] for name in RESULTS})

    async def _act_on(self, id: str, kind: OpKind, remark: str, *, dry_run: bool) -> Answer:
        """An operator need not name the group: the half does. A discarded half is resumed first."""
        try:
            found = await self.transaction(id)
        except BadId as error:
            return Answer(Verdict.REFUSED, str(error))
        if found.state == "GONE":
            return Answer(Verdict.REFUSED, "gone")
        place, answer = place_in(id), Answer(Verdict.REFUSED)
        resumed = kind is not OpKind.RESUME and found.state.startswith("DISCARDED")
        for each in (OpKind.RESUME, kind) if resumed else (kind,):
            headers = op_headers(each, place.half_offset, None, via=Via.OPERATOR, remark=remark)
            if dry_run:
                return judge(kind, 0 if resumed else self._ends.end_of(place))
            [answer] = await self._say([(place, each, Record(self.topics.op, b"", None, headers, place.partition))])
        return answer

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
        trouble = self._reach.trouble or self._ends.trouble or self._kafka_checks.trouble
        return {
            "queued_records": self._halves.waiting + self._ops.waiting,
            **{name: self._counters[name] for name in ("halves", "messages", "ends")},
            "answers": dict(self._answers),
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
            raise self._unreachable(error) from error


class Storing:
    """Writes halves and messages that were looked at, and admitted."""

    def __init__(self, edge: KafkaEdge) -> None:
        self._edge = edge

    async def prepare(self, messages: Sequence[Message], _appended: Callable[[], None] | None = None) -> list[Place]:
        return await self._edge.write_once(messages)

    async def send(self, messages: Sequence[Message]) -> list[tuple[int, int]]:
        return await self._edge.write_messages(messages)
