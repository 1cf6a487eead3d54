"""The edge core: what the edge does, whatever the transport. An HTTP endpoint, a socket server or a test is put on it.

    edge = Edge(settings)
    await edge.open()                 # recovers the store, in a thread
    ids = await edge.prepare(messages)
    answers = await edge.end(ends)
    async with edge.poll_checks(group, member) as handover: …write it; leaving without an exception counts it as handed over
    messages = await edge.consumption.poll(topic, group, consumer)
    done = await edge.act(Action("rollback", "ada", "ticket 7", ids=[id]))      # as operator
    found = await edge.operations.inspect(id)
    await edge.close()

Everything is asyncio and nothing here waits for the disk: the kernel or the committer's thread does. This room and `streaming`
are the only ones that read a clock.

Refusals: a standby takes neither halves nor messages nor ends and hands nothing over; rejectTransactionMessage refuses halves
only; load refuses halves and messages before it would ever refuse an end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from ingest import groups
from ingest.capabilities import OUTCOMES, EndAnswer, EndRequest, JobState, Offers, answer_of
from ingest.checks.delivery import CheckDelivery, CheckRequest, Handover, Member
from ingest.committing.committer import Committer
from ingest.consuming.consumption import Consumption
from ingest.consuming.pages import TopicPages
from ingest.consuming.receipts import ReceiptSealer
from ingest.edge.asking import Asking
from ingest.edge.background import Background
from ingest.edge.figures import EdgeFigures
from ingest.edge.issued import IssuedIds
from ingest.edge.job_feedback import Followers
from ingest.edge.job_view import JobView, StoreBacklog, last_time_ms
from ingest.edge.names import Names
from ingest.edge.operations import Operations
from ingest.edge.quotas import Limited, Quotas
from ingest.errors import BadId, InvalidRequest
from ingest.ids import Place, Sealer, load_keys
from ingest.operating.auditing import Auditor
from ingest.operating.contradictions import CONTRADICTED, REMARK_MAX, Contradiction, Contradictions
from ingest.operating.history import Transaction
from ingest.operating.listings import Listings
from ingest.operating.operator import Action, Done, Operator
from ingest.operating.overview import Overview
from ingest.operating.topic_removal import Removing
from ingest.parts import Gate, Loops, Parts, guarded_clock
from runtime.clock import Clock
from runtime.settings import Settings
from store.directory import Geometry
from store.edge.store import EdgeStore, End
from store.guarded_clock import GuardedClock
from store.io.wakeup import JOB_WAKE, Waker
from store.messages import Message, are_same, groups_of
from store.progress import Progress, no_progress
from store.read.readers import TopicReader
from store.records import Via, queue_key_of, queue_offset_of, topic_of_key
from store.tables.delivery_cursors import Cursors
from store.tables.ends import Verdict
from store.tables.journals.audit import ANCHOR_TOPIC, Head
from store.tables.presence import Presence


def place_of(position: int) -> tuple[int, int]:
    """(queue_id, queue_offset) of a topic position."""
    return topic_of_key(queue_key_of(position))[1], queue_offset_of(position)


def open_store(settings: Settings, on_publish: Callable[[], None], progress: Progress = no_progress) -> EdgeStore:
    """Open the store, which recovers it. Blocks: not for the event loop's thread."""
    return EdgeStore(
        settings.store_dir,
        geometry=Geometry(**settings.geometry_values()),
        max_body_bytes=settings.max_body_bytes,
        default_queues=settings.queues_per_topic,
        dedup_window_s=-(-settings.dedup_window_ms // 1000),
        on_publish=on_publish,
        progress=progress,
    )


class Edge:
    """One edge over one store. Made, used and closed in one event loop."""

    clock: GuardedClock
    waits_plainly = True

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        self.settings, self._source = settings, clock
        self.notice = ""
        self._gate = Gate(settings)
        self._waker: Waker | None = None
        self._consumption: Consumption | None = None
        self._background: Background | None = None
        #: Told how many seconds each flush took, in the committer's thread or in the loop.
        self.observe_flush: Callable[[float], None] | None = None
        #: What was put on the edge (`ingest.assembly`), which opens it; closed before the edge.
        self.parts = Parts()

    # --- opening and closing -------------------------------------------------------------------------------------------------
    async def open(self, progress: Progress = no_progress) -> None:
        """1 open the store, which recovers it · 2 the keys · 3 the committer · 4 checks, and what follows the job's queues ·
        5 consumption · 6 what operators see and do."""
        loop = asyncio.get_running_loop()
        self.groups = groups.watch(self.settings)  # before anything is touched: it may be unusable
        self.store = await loop.run_in_executor(None, open_store, self.settings, self._published, progress)  # 1
        try:
            self._waker = Waker(self.store.directory.root / JOB_WAKE)
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
            reading=self._pages,
            operating=self.operations,
            issued=self._ids,
            backlog=StoreBacklog(self.store.directory, self.quotas),
        )

    @property
    def not_ready(self) -> str:
        """Why it is open and should be sent nothing all the same; "" mostly."""
        return ""

    def _open_rest(self) -> None:
        settings, store = self.settings, self.store
        self.started_at_ms = self.now_ms()
        store.heartbeat(self.clock.elapsed_ms())
        cursors = Cursors(store.directory.root / "edge.cursors", writable=True)
        self._committer = Committer(store, self.now_ms, settings.max_queued_bytes)  # 3
        self._committer.observe_flush = self._flushed
        self._open_checks(cursors)  # 4
        self.quotas = Quotas(settings, self.groups, store, self.now_ms)
        self._storing = Limited(self._committer, self.quotas)
        self.names = Names(settings, store.dictionary)
        store.maker_of = self.names.maker_of
        self._consumption = Consumption(
            store, self._committer, cursors, settings, self.clock, receipts=self._receipts, refuse=self._gate.require_master
        )  # 5
        self._pages = TopicPages(store, self._consumption.looked, self._sealer.seal, settings.max_request_bytes // 2)
        self._loops = Loops(self._committer.fail)
        self._open_operators()  # 6
        self._background = Background(
            store, self._committer, self._checks, self._followers, self._consumption,
            listings=self.listings, clock=self.clock, settings=settings,
        )  # fmt: skip
        for loop_of in (*self._background.loops(), self.quotas.run, self.listings.run, self.operations.overview.run):
            self._loops.start(loop_of())

    def _open_checks(self, cursors: Cursors) -> None:
        settings, store = self.settings, self.store
        self._presence = Presence(store.directory.root / "presence", writable=True)
        self._followers = Followers(store, cursors, self.now_ms)
        self._followers.recover()
        self._checks = CheckDelivery(
            store, cursors, self._presence, self.clock,
            enabled=settings.checks_enabled and not settings.standby,
            refresh_s=settings.presence_ttl_ms / 3000,
            asked_now_max=settings.outstanding_per_group_max,
        )  # fmt: skip
        self._asking = Asking(settings, self._gate, store, self._committer, self._checks, presence=self._presence, clock=self.clock)
        self._job = JobView(store, self._checks.topics, self.clock)

    def _open_operators(self) -> None:
        settings, store, committer = self.settings, self.store, self._committer
        self._ids = IssuedIds(store, self._sealer)
        self.listings = Listings(store, self._sealer, self.now_ms, live=self.live_groups)
        self.auditor = Auditor(store.directory.root / "audit", self.now_ms, self._anchor)
        self.contradictions = Contradictions(self.auditor, self._half_of, self.now_ms)
        self._figures = EdgeFigures(
            settings, store, committer, self._followers, self._checks, quotas=self.quotas, names=self.names,
            consumption=self.consumption, parts=self.parts, started_at_ms=self.started_at_ms,
            contradictions=self.contradictions,
        )  # fmt: skip
        operator = Operator(
            store, committer, self._checks, self._followers.resumed,
            listings=self.listings, sealer=self._sealer, auditor=self.auditor, contradictions=self.contradictions,
            now_ms=self.now_ms,
        )  # fmt: skip
        self.operations = Operations(
            settings, self._gate, store, committer, self._sealer,
            operator=operator, listings=self.listings, auditor=self.auditor,
            removing=Removing(store, self.consumption), overview=Overview(self), contradictions=self.contradictions,
            checks=self._checks, job=self._job,
        )  # fmt: skip
        for loop_of in (self.auditor.run, self.contradictions.run):
            self._loops.start(loop_of())

    def _half_of(self, id: str) -> int | None:
        try:
            return self._sealer.open(id).half_offset
        except BadId:
            return None

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
        await self.contradictions.close()
        await self.auditor.close()
        await self._committer.close()
        self._pages.close()
        await self.consumption.close()
        await self.listings.close()
        self._checks.close()
        self.operations.close()
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
        self._figures.ends_refused += len(judged) - len(good)
        answers = iter(await self._committer.end(good) if good else [])
        told = [answer_of(next(answers)) if isinstance(end, End) else end for end in judged]
        for at, answer in enumerate(told):
            if answer.verdict in CONTRADICTED:
                self._contradicted(ends[at], judged[at], answer)
        return told

    def _contradicted(self, asked: EndRequest, judged: End | EndAnswer, answer: EndAnswer) -> None:
        """An end of a half that is there was not taken: an operator will want to know."""
        if isinstance(judged, End):
            self.contradictions.note(
                Contradiction(
                    self.now_ms(), asked.id, judged.half_offset, asked.group, answer.verdict,
                    "check" if asked.from_check else "producer", asked.group, asked.outcome, answer.state,
                    asked.remark[:REMARK_MAX],
                )
            )  # fmt: skip

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
        return await self.operations.act(action)

    async def transaction(self, id: str) -> Transaction:
        return await self.operations.transaction(id)

    def half_offset_of(self, id: str) -> int:
        return self._ids.half_offset_of(id)

    def properties_of(self, id: str) -> Mapping[str, str]:
        return self._ids.properties_of(id)

    def last_seen_ms(self, group: str) -> int | None:
        """When the last member of a group was seen; None: none since the edge started."""
        return self._checks.last_seen_ms(group)

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def elapsed_ms(self) -> int:
        return self.clock.elapsed_ms()

    # --- checks --------------------------------------------------------------------------------------------------------------
    def poll_checks(
        self,
        group: str,
        member: str,
        max_requests: int = 32,
        wait_s: float = 0.0,
        *,
        passing_over: Container[int] = (),
        via: str = "poll",
    ) -> AbstractAsyncContextManager[Handover]:
        return self._asking.poll_checks(group, member, max_requests, wait_s, passing_over=passing_over, via=via)

    def put_back(self, handover: Handover) -> None:
        self._checks.put_back(handover)

    def present(self, group: str, member: str, via: str) -> None:
        """Said when the first half of a group came in: before, the group had no number, and its poll could not say so."""
        self._checks.seen(group, member, via)

    def still_asked(self, handover: Handover) -> bool:
        return self._asking.still_asked(handover)

    @property
    def check_round(self) -> int:
        return self._checks.round_start

    def id_of(self, request: CheckRequest) -> str:
        return self._sealer.seal(request.half_offset, request.group_no)

    def members(self, group: str) -> list[Member]:
        return self._checks.members(group)

    def live_groups(self) -> set[str]:
        return self._asking.live_groups()

    def known_groups(self) -> Sequence[str]:
        return self.store.dictionary.groups

    def knows_group(self, group: str) -> bool:
        return self.store.dictionary.group_no(group) is not None

    # --- status --------------------------------------------------------------------------------------------------------------
    async def status(self) -> dict[str, Any]:
        return self._figures.status(self.job_state(), self.trouble, self._failure())

    def counts(self) -> dict[str, Any]:
        return self._figures.counts(self.trouble, self._failure())

    def _failure(self) -> str:
        return self.failed.result() if self.failed.done() else ""

    def _flushed(self, seconds: float) -> None:
        """In the committer's thread or in the loop. Who wants to know may come after the edge was opened."""
        if self.observe_flush is not None:
            self.observe_flush(seconds)

    def job_files(self) -> TopicReader | None:
        """The job's files; None where it has none, or is just switching to others."""
        return self._job.files()

    def job_state(self) -> JobState:
        """What can be seen of the job from here."""
        return self._job.state()

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
