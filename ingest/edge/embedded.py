"""The edge core: what the edge does, whatever the transport. An HTTP endpoint, a socket server or a test is put on it.

    edge = Edge(settings)
    await edge.open()                 # recovers the store, in a thread
    ids = await edge.prepare(messages)
    answers = await edge.end(ends)
    async with edge.poll_checks(group, member) as handover: …write it; leaving without an exception counts it as handed over
    messages = await edge.consumption.poll(topic, group, consumer)
    done = await edge.act(Action("rollback", "ada", "ticket 7", ids=[id]))      # as operator
    await edge.close()

Everything is asyncio and nothing here waits for the disk: the kernel or the committer's thread does. This room and `streaming`
are the only ones that read a clock.

Refusals: a standby takes neither halves nor messages nor ends and hands nothing over; rejectTransactionMessage refuses halves
only; load refuses halves and messages before it would ever refuse an end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Container, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

from ingest import groups
from ingest.capabilities import OUTCOMES, EndAnswer, EndRequest, JobState, Offers, answer_of
from ingest.checks.delivery import CheckDelivery, CheckRequest, Handover, Member
from ingest.committing.committer import Committer
from ingest.consuming.consumption import Consumption
from ingest.consuming.deliveries import Delivery
from ingest.consuming.receipts import ReceiptSealer
from ingest.edge.background import Background
from ingest.edge.job_feedback import Followers
from ingest.edge.job_view import JobView, StoreBacklog, last_time_ms
from ingest.edge.names import Names
from ingest.edge.quotas import Limited, Quotas
from ingest.errors import BadId, Closing, InvalidRequest
from ingest.ids import Place, Sealer, load_keys
from ingest.operating.auditing import Audited, Auditor
from ingest.operating.history import Histories, Inspected, Transaction
from ingest.operating.listings import Listings
from ingest.operating.operator import Action, Done, Operator
from ingest.operating.overview import Overview
from ingest.operating.topic_removal import Removing, Wanted
from ingest.parts import Gate, Loops, Parts, guarded_clock
from runtime.clock import Clock
from runtime.settings import Settings
from store.directory import Geometry
from store.edge.removal import Removal
from store.edge.store import EdgeStore, End
from store.errors import StoreError
from store.guarded_clock import GuardedClock
from store.io.pages import EdgeSlot
from store.io.wakeup import JOB_WAKE, Waker
from store.messages import Message, are_same, groups_of
from store.naming import DLQ_PREFIX
from store.progress import Progress, no_progress
from store.read.readers import LogReader, TopicReader
from store.records import Via, queue_key_of, queue_offset_of, topic_of_key
from store.tables.delivery_cursors import Cursors
from store.tables.ends import Verdict
from store.tables.journals.audit import ANCHOR_TOPIC, Head
from store.tables.presence import Presence


def place_of(position: int) -> tuple[int, int]:
    """(queue_id, queue_offset) of a topic position."""
    return topic_of_key(queue_key_of(position))[1], queue_offset_of(position)


class Edge:
    """One edge over one store. Made, used and closed in one event loop."""

    clock: GuardedClock
    waits_plainly = True

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        self.settings, self._source = settings, clock
        self.notice = ""
        self._gate = Gate(settings)
        #: Ends whose id was never issued, or for another group: refused before they reach the log.
        self.ends_refused = 0
        self._waker: Waker | None = None
        self._consumption: Consumption | None = None
        self._background: Background | None = None
        #: Told how many seconds each flush took, in the committer's thread or in the loop.
        self.observe_flush: Callable[[float], None] | None = None
        #: What was put on the edge (`ingest.assembly`), which opens it; closed before the edge.
        self.parts = Parts()

    # --- opening and closing -------------------------------------------------------------------------------------------------
    async def open(self, progress: Progress = no_progress) -> None:
        """1 open the store, which recovers it · 2 the keys · 3 the committer · 4 who follows the job's queues · 5 consumption."""
        loop = asyncio.get_running_loop()
        self.groups = groups.watch(self.settings)  # before anything is touched: it may be unusable
        self.store = await loop.run_in_executor(None, self._open_store, progress)  # 1
        try:
            keys, self.notice = load_keys(self.settings.keys_file, self.settings.id_keys)  # 2
            self._receipts = ReceiptSealer(keys)
            self.clock = guarded_clock(self.settings, self._source, self.settings.data_dir, last_time_ms(self.store))
            self.store.dedup.leapt_s = lambda: self.clock.leapt_ms(self.settings.dedup_window_ms) // 1000
            self._sealer = Sealer(keys, self.store.directory.store_id, self.store.lineage.half_ends)
            self._open_rest()
        except BaseException:
            self.store.close()
            raise

    def offers(self) -> Offers:
        return Offers(
            audit=self.auditor,
            naming=self.names,
            deliveries=self.consumption,
            consuming=self.consumption,
            operating=self,
            issued=self,
            backlog=StoreBacklog(self.store.directory, self.quotas),
        )

    @property
    def not_ready(self) -> str:
        """Why it is open and should be sent nothing all the same; "" mostly."""
        return ""

    def _now_ms(self) -> int:
        return self.clock.now_ms()

    def _open_store(self, progress: Progress) -> EdgeStore:
        settings, root = self.settings, self.settings.store_dir
        store = EdgeStore(
            root,
            geometry=Geometry(**settings.geometry_values()),
            max_body_bytes=settings.max_body_bytes,
            default_queues=settings.queues_per_topic,
            dedup_window_s=-(-settings.dedup_window_ms // 1000),
            on_publish=self._published,
            progress=progress,
        )
        self._waker = Waker(root / JOB_WAKE)
        return store

    def _open_rest(self) -> None:
        settings, root = self.settings, self.settings.store_dir
        self.started_at_ms = self._now_ms()
        self.store.heartbeat(self.clock.elapsed_ms())
        cursors = Cursors(root / "edge.cursors", writable=True)
        self._presence = Presence(root / "presence", writable=True)
        self._committer = Committer(self.store, self._now_ms, settings.max_queued_bytes)  # 3
        self._committer.observe_flush = self._flushed
        self._followers = Followers(self.store, cursors, self._now_ms)  # 4
        self._followers.recover()
        self._histories = Histories(self.store)
        self._checks = CheckDelivery(
            self.store,
            cursors,
            self._presence,
            self.clock,
            enabled=settings.checks_enabled and not settings.standby,
            refresh_s=settings.presence_ttl_ms / 3000,
            asked_now_max=settings.outstanding_per_group_max,
        )
        self._job = JobView(self.store, self._checks.topics, self.clock)
        self.quotas = Quotas(settings, self.groups, self.store, self._now_ms)
        self._storing = Limited(self._committer, self.quotas)
        self.names = Names(settings, self.store.dictionary)
        self.store.maker_of = self.names.maker_of
        self._consumption = Consumption(
            self.store, self._committer, cursors, settings, self.clock,
            receipts=self._receipts, refuse=self._gate.require_master,
        )  # 5  # fmt: skip
        self._removing = Removing(self.store, self._consumption)
        self._loops = Loops(self._committer.fail)
        self._open_operators()
        self._background = Background(
            self.store, self._committer, self._checks, self._followers, self._consumption,
            listings=self.listings, clock=self.clock, settings=settings,
        )  # fmt: skip
        for loop_of in (*self._background.loops(), self.quotas.run, self.listings.run, self.overview.run):
            self._loops.start(loop_of())

    def _open_operators(self) -> None:
        self.listings = Listings(self.store, self._sealer, self._now_ms)
        self.auditor = Auditor(self.store.directory.root / "audit", self._now_ms, self._anchor)
        self._operator = Operator(
            self.store, self._committer, self._checks, self._followers.resumed,
            listings=self.listings, sealer=self._sealer, auditor=self.auditor, now_ms=self._now_ms,
        )  # fmt: skip
        self.overview = Overview(self)
        self._loops.start(self.auditor.run())

    async def _anchor(self, head: Head) -> None:
        if not self.settings.standby:
            await self._committer.send([Message(ANCHOR_TOPIC, ANCHOR_TOPIC, head.encode())])

    @property
    def consumption(self) -> Consumption:
        """Consumers' side of the edge; there once the edge is open."""
        assert self._consumption is not None
        return self._consumption

    @property
    def trouble(self) -> str:
        """What goes wrong at the moment and is tried again; "" if nothing does."""
        return self._background.trouble if self._background is not None else ""

    @property
    def failed(self) -> asyncio.Future[str]:
        """Done, with the reason, when the store has failed: the process must end, and be started again to recover."""
        return self._committer.failed

    def stop(self) -> None:
        """Polls that wait come back empty and nothing new is taken; what was accepted goes on to its end."""
        self.parts.stop()
        self._gate.closing = True
        self._loops.stop()
        self._checks.stop()
        self.consumption.stop()

    async def close(self) -> None:
        """Finish what was accepted, flush, note a clean exit."""
        self.stop()
        await self.parts.close()
        await self._loops.close()
        await asyncio.to_thread(self.quotas.close)
        if self._background is not None:
            self._background.close()
        await self.auditor.close()
        await self._committer.close()
        await self.consumption.close()
        await self.listings.close()
        self._checks.close()
        self._histories.close()
        self._presence.close()
        try:
            await asyncio.get_running_loop().run_in_executor(None, self.store.close)
        finally:
            if self._waker is not None:
                self._waker.close()

    # --- halves and messages -------------------------------------------------------------------------------------------------
    async def prepare(self, messages: Sequence[Message]) -> list[str]:
        """Store halves, all or none; their transaction ids, in order, once they are durable."""
        return [id for id, _ in await self.store_halves(messages)]

    async def store_halves(self, messages: Sequence[Message]) -> Sequence[tuple[str, int]]:
        """The same; (transaction id, half_offset) of each. The half_offset is -1 where a plug-in made the id."""
        self._gate.require_halves()
        self._gate.check_count(messages, "messages")
        groups, group_no = groups_of(messages), self.store.dictionary.group_no
        stored = self._storing.prepare(messages)
        del messages  # the committer lets go of them before the flush
        half_offsets = await stored
        if are_same(groups):
            return self._sealer.seal_all(half_offsets, group_no(groups[0]) or 0)
        return [(self._sealer.seal(at, group_no(group) or 0), at) for at, group in zip(half_offsets, groups, strict=True)]

    async def send(self, messages: Sequence[Message]) -> list[tuple[int, int]]:
        """Store ordinary messages, all or none, visible without a transaction; (queue_id, queue_offset) of each, once durable."""
        self._gate.require_master("messages")
        self._gate.check_count(messages, "messages")
        return [place_of(position) for position in await self._storing.send(messages)]

    # --- ends ----------------------------------------------------------------------------------------------------------------
    async def end(self, ends: Sequence[EndRequest]) -> list[EndAnswer]:
        """End transactions; an answer for each, in order, once what it rests on is durable."""
        self._gate.require_master("ends")
        self._gate.check_count(ends, "ends")
        places = self._sealer.open_all([end.id for end in ends])
        judged = [self._to_end(end, place) for end, place in zip(ends, places, strict=True)]
        good = [end for end in judged if isinstance(end, End)]
        self.ends_refused += len(judged) - len(good)
        answers = iter(await self._committer.end(good) if good else [])
        return [answer_of(next(answers)) if isinstance(end, End) else end for end in judged]

    def _to_end(self, end: EndRequest, place: Place | BadId) -> End | EndAnswer:
        kind = OUTCOMES.get(end.outcome)
        if kind is None:
            raise InvalidRequest(f"outcome: {end.outcome!r} is not valid; use one of {', '.join(OUTCOMES)}")
        if isinstance(place, BadId):
            return EndAnswer(Verdict.REFUSED.value, f"unknown id: {place}")
        if place.group_no != self.store.dictionary.group_no(end.group):
            return EndAnswer(Verdict.REFUSED.value, "wrong group")
        return End(place.half_offset, kind, end.group, Via.CHECK if end.from_check else Via.PRODUCER, "", end.remark)

    # --- operators -----------------------------------------------------------------------------------------------------------
    async def act(self, action: Action) -> Done:
        """Check now, commit, roll back or resume, as `ingest.operating.operator` says."""
        self._gate.require_master("actions")
        return await self._operator.act(action, self.settings.max_messages_per_request)

    async def create_topic(self, topic: str, queues: int | None) -> tuple[int, bool]:
        """(how many queues it has, whether it is new). For operators: `autoCreateTopics` and limits of tokens do not hold."""
        self._gate.require_master("topics")
        if topic.startswith(DLQ_PREFIX):
            raise InvalidRequest(f"topic: {topic[:80]}: topics of dead letters are made by Escrow alone")
        names = self.store.dictionary
        made = names.topic_no(topic) is None
        wanted = queues or self.settings.queues_per_topic
        topic_no: int = await self._committer.call(partial(self.store.add_topic, topic, wanted))
        found = names.queues[topic_no]
        if queues is not None and queues != found:
            raise InvalidRequest(f"queues: topic {topic} has {found} queues, fixed when it was made, not {queues}")
        return found, made

    async def remove_topics(self, wanted: Wanted) -> Removal:
        """Remove topics that nobody uses. For operators."""
        self._gate.require_master("topics")
        return await self._removing.remove(wanted)

    async def audited(self, limit: int, before: int | None = None) -> tuple[list[Audited], int | None]:
        """What operators did, the newest first."""
        return await self.auditor.audited(limit, before)

    def members(self, group: str) -> list[Member]:
        """Who takes the check requests of a group."""
        return self._checks.members(group)

    def now_ms(self) -> int:
        return self._now_ms()

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
        """Check requests for one member of a group, as a context: inside it the transport writes the answer. Leaving it in order
        records the hand-over; leaving it with an exception gives the requests to another member. `passing_over`: halves that this
        member has failed at before. `via`: how the requests reach him, for people."""
        handover = await self._poll(group, member, max_requests, wait_s, passing_over=passing_over, via=via)
        try:
            yield handover
        except BaseException:
            self.put_back(handover)
            raise
        if handover.requests:
            with contextlib.suppress(Closing):  # not counted then: the half is asked again, which does no harm
                self._committer.asked(handover.half_offsets, member).add_done_callback(_heard)

    def put_back(self, handover: Handover) -> None:
        """These reached nobody: another member gets them, in this round still."""
        self._checks.put_back(handover)

    def present(self, group: str, member: str, via: str) -> None:
        """A member of this group is there, and polls. Said when its first half came in: before, the group had no number, and its
        poll could not say so."""
        self._checks.seen(group, member, via)

    def still_asked(self, handover: Handover) -> bool:
        """Is it worth while to go on trying? Not when the round is over, or when all of it has ended meanwhile."""
        return handover.round_start == self._checks.round_start and any(
            not self.store.end_of(half_offset) for half_offset in handover.half_offsets
        )

    @property
    def check_round(self) -> int:
        """Changes when a round begins."""
        return self._checks.round_start

    async def _poll(
        self, group: str, member: str, max_requests: int, wait_s: float, *, passing_over: Container[int], via: str
    ) -> Handover:
        max_requests, wait_s = self._gate.check_poll(member, max_requests, wait_s)
        return await self._checks.poll(
            group, member, max_requests, self.settings.max_request_bytes // 2, wait_s, passing_over=passing_over, via=via
        )

    def transaction_id_of(self, delivery: Delivery) -> str | None:
        """Of a message that a transaction released; None for an ordinary one."""
        half_offset = delivery.half_offset
        return self._sealer.seal(half_offset, delivery.frame.fields["group_no"]) if half_offset >= 0 else None

    def group_of(self, id: str) -> str:
        """The producer group of the half that an id names; BadId unless this store issued it."""
        return self.store.dictionary.groups[self._sealer.open(id).group_no]

    @property
    def epoch(self) -> int:
        return self.store.page[EdgeSlot.EPOCH]

    def half_offset_of(self, id: str) -> int:
        return self._sealer.open(id).half_offset

    def properties_of(self, id: str) -> Mapping[str, str]:
        """In a thread. It opens the log anew: for what is asked for now and then."""
        try:
            log = LogReader(self.store.directory)
            try:
                return log.frame(log.half_queue.read(at := self.half_offset_of(id), at + 1)[0]).properties
            finally:
                log.close()
        except (BadId, StoreError, IndexError):
            return {}

    def id_of(self, request: CheckRequest) -> str:
        return self._sealer.seal(request.half_offset, request.group_no)

    # --- status --------------------------------------------------------------------------------------------------------------
    async def status(self) -> dict[str, Any]:
        """How the edge is, and what it sees of the job."""
        store = self.store
        return {
            "role": self.settings.role,
            "store_id": store.directory.store_id,
            "started_at_ms": self.started_at_ms,
            "half_end": store.half_end,
            "op_end": store.op_end,
            "log_end": store.log.end,
            "log_flushed": store.page[EdgeSlot.LOG_END],
            **self.counts(),
            "job": asdict(self.job_state()),
            "trouble": self.trouble,
            "failed": self.failed.result() if self.failed.done() else "",
        }

    def counts(self) -> dict[str, Any]:
        """What was done since the start, for status and metrics."""
        counters = self._committer.counters
        return {
            "queued_bytes": self._committer.queued_bytes,
            "cycles": counters.cycles,
            "flushes": self.store.flushes,
            "halves": counters.halves,
            "messages": counters.messages,
            "ends": counters.ends,
            "answers": {**counters.answers, "refused": counters.answers.get("refused", 0) + self.ends_refused},
            "asked": counters.asked,
            "refused_for_load": counters.refused_for_load,
            "discarded": self._followers.discarded,
            "proposals_passed_over": self._followers.passed_over,
            "reopened": self._followers.reopened,
            "checks": self._checks.figures(),
            "quotas": self.quotas.figures(),
            "names": self.names.figures(),
            "consumption": self.consumption.figures(),
            **self.parts.figures(),
            "healthy": not self.trouble and not self.failed.done(),
        }

    def _flushed(self, seconds: float) -> None:
        """In the committer's thread or in the loop. Who wants to know may come after the edge was opened."""
        if self.observe_flush is not None:
            self.observe_flush(seconds)

    def live_groups(self) -> set[str]:
        """Producer groups with a live member."""
        names = self.store.dictionary.groups
        # Another thread adds names meanwhile: as many as there were count.
        live = self._presence.live(self.clock.elapsed_ms(), self.settings.presence_ttl_ms, len(names))
        return {names[number] for number in live.nonzero()[0].tolist()}

    def known_groups(self) -> Sequence[str]:
        """Producer groups that sent anything, ever."""
        return self.store.dictionary.groups

    def knows_group(self, group: str) -> bool:
        return self.store.dictionary.group_no(group) is not None

    def job_files(self) -> TopicReader | None:
        """The job's files; None where it has none, or is just switching to others."""
        return self._job.files()

    def job_state(self) -> JobState:
        """What can be seen of the job from here."""
        return self._job.state()

    async def inspect(self, id: str) -> Inspected:
        """One transaction with its message, for an operator."""
        place = self._sealer.open(id)
        return await asyncio.get_running_loop().run_in_executor(None, self._histories.inspect, place.half_offset)

    async def transaction(self, id: str) -> Transaction:
        """What is known of one transaction, with its history; BadId unless this store issued the id."""
        place = self._sealer.open(id)
        return await asyncio.get_running_loop().run_in_executor(None, self._histories.of, place.half_offset)

    # --- background ---------------------------------------------------------------------------------------------------------------
    def _published(self) -> None:
        """In the committer's thread or in the loop: something new is durable, the job may read it."""
        if self._waker is not None:
            self._waker.wake()
        if self._consumption is not None:
            self._consumption.published()
        if self._background is not None:
            self._background.published()

    async def retain(self) -> dict[str, int]:
        """Delete files that are not needed any more; how many of each kind went."""
        assert self._background is not None
        return await self._background.retain()


def _heard(future: asyncio.Future[None]) -> None:
    """A hand-over that could not be recorded is not counted; the edge's failure is told elsewhere."""
    if not future.cancelled():
        future.exception()
