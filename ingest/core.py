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
import logging
from collections.abc import AsyncIterator, Callable, Collection, Container, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, Protocol

from msgspec import Struct

from escrow.clock import Clock, SystemClock, this_boot
from escrow.settings import Settings
from ingest import groups
from ingest.access import Principal
from ingest.auditing import Audited, Auditor
from ingest.checks import CheckDelivery, CheckRequest, Handover, Member
from ingest.committer import Committer
from ingest.consumption import Consumption
from ingest.deliveries import Delivery
from ingest.errors import BadId, Closing, InvalidRequest, Standby, TooLarge, TransactionsRejected
from ingest.followers import Followers
from ingest.history import Histories, Inspected, Transaction
from ingest.ids import Place, Sealer, load_keys
from ingest.listings import Listings
from ingest.names import Names
from ingest.operator import Action, Done, Operator
from ingest.overview import Overview
from ingest.quotas import Quotas
from ingest.receipts import ReceiptSealer
from ingest.threads import Threads
from ingest.topics import Removing, Wanted
from store.audit import ANCHOR_TOPIC, Head
from store.clock import Rules
from store.cursor import Cursors
from store.directory import Geometry
from store.edge import EdgeStore, End
from store.ends import Answer, Verdict
from store.errors import StoreError
from store.frames import DLQ_PREFIX, Message, are_same, groups_of
from store.guarded_clock import GuardedClock
from store.presence import Presence
from store.progress import Progress, no_progress
from store.published import JOB_MAGIC, EdgeSlot, JobSlot, PublishedPage
from store.reader import TopicReader
from store.records import OpKind, State, Via, queue_key_of, queue_offset_of, topic_of_key
from store.removal import Removal
from store.wake import EDGE_WAKE, JOB_WAKE, Sleeper, Waker

LOG: Final = logging.getLogger("escrow.edge")
#: Without a wake from the job, its pages are looked at this often.
LOOK_S: Final = 0.25
HEARTBEAT_S: Final = 1.0
MEMBER_MAX_CHARACTERS: Final = 128
#: A job whose last heartbeat is older is called silent.
JOB_SILENT_MS: Final = 10_000

OUTCOMES: Final = {"commit": OpKind.COMMIT, "rollback": OpKind.ROLLBACK, "unknown": OpKind.UNKNOWN}


class EndRequest(Struct, frozen=True):
    """What a producer says became of its transaction."""

    group: str
    id: str
    outcome: str
    from_check: bool = False
    remark: str = ""


class EndAnswer(Struct, frozen=True):
    """`verdict`: accepted, already, conflict or refused; `reason` says why not; `state`: what the transaction is now."""

    verdict: str
    reason: str = ""
    state: str = ""


@dataclass(frozen=True, slots=True)
class JobState:
    """What can be seen of the streaming job. `state`: absent (none has opened the store), silent, no_room (it lives, and waits for
    room on the disk), running."""

    state: str
    halves_behind: int
    ops_behind: int
    round_no: int = 0
    heartbeat_ms: int = 0


def place_of(position: int) -> tuple[int, int]:
    """(queue_id, queue_offset) of a topic position."""
    return topic_of_key(queue_key_of(position))[1], queue_offset_of(position)


class Part(Protocol):
    """Something beside the edge that lives as long as it does."""

    name: str

    async def open(self) -> None:
        """The edge is open; an EdgeError keeps it from starting."""

    def stop(self) -> None:
        """Begin nothing new. May be called twice, and before `open`."""

    async def close(self) -> None:
        """Let go of everything, whether `open` was through or not."""

    def figures(self) -> dict[str, Any]:
        """For the status."""


class Edge:
    """One edge over one store. Made, used and closed in one event loop."""

    clock: GuardedClock

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        self.settings, self._source = settings, clock
        self.notice = self.trouble = ""
        self._closing = False
        #: Ends whose id was never issued, or for another group: refused before they reach the log.
        self.ends_refused = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._waker: Waker | None = None
        self._consumption: Consumption | None = None
        #: There once the edge is open, and not in Kafka mode.
        self.auditor: Auditor | None = None
        #: Who may make topics and groups; None where the store is not ours to number.
        self.names: Names | None = None
        #: Told how many seconds each flush took, in the committer's thread or in the loop.
        self.observe_flush: Callable[[float], None] | None = None
        #: What was put on the edge (`ingest.plugged.make_edge`); opened after it, closed before it.
        self.parts: list[Part] = []

    # --- opening and closing -------------------------------------------------------------------------------------------------
    async def open(self, progress: Progress = no_progress) -> None:
        """1 open the store, which recovers it · 2 the keys · 3 the committer · 4 who follows the job's queues · 5 consumption ·
        6 parts."""
        loop = asyncio.get_running_loop()
        self.groups = groups.watch(self.settings)  # before anything is touched: it may be unusable
        self.store = await loop.run_in_executor(None, self._open_store, progress)  # 1
        try:
            keys, self.notice = load_keys(self.settings.keys_file, self.settings.id_keys)  # 2
            self._receipts = ReceiptSealer(keys)
            self._start_clock(self.settings.data_dir, last_time_ms(self.store))
            self.store.dedup.leapt_s = lambda: self.clock.leapt_ms(self.settings.dedup_window_ms) // 1000
            self._sealer = Sealer(keys, self.store.directory.store_id, self.store.lineage.half_ends)
            self._open_rest()
        except BaseException:
            self.store.close()
            raise
        try:
            for part in self.parts:  # 6
                await part.open()
        except BaseException:
            await self.close()
            raise

    @property
    def not_ready(self) -> str:
        """Why it is open and should be sent nothing all the same; "" mostly."""
        return ""

    def _start_clock(self, directory: Path | None, last_ms: int = 0) -> None:
        self.clock = GuardedClock(
            self._source or SystemClock(), directory, Rules(**self.settings.clock_values()),
            boot=0 if self._source else this_boot() or None, last_ms=last_ms,
        )  # fmt: skip

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
        self._loop, self._short = asyncio.get_running_loop(), asyncio.Event()
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
        self.quotas = Quotas(settings, self.groups, self.store, self._now_ms)
        self.names = Names(settings, self.store.dictionary)
        self.store.maker_of = self.names.maker_of
        self._consumption = Consumption(
            self.store, self._committer, cursors, settings, self.clock,
            receipts=self._receipts, refuse=self._refuse_if_standby,
        )  # 5  # fmt: skip
        self._removing = Removing(self.store, self._consumption)
        self._open_operators()
        self._woken = asyncio.Event()
        self._sleeper = Sleeper(root / EDGE_WAKE)
        self._loop.add_reader(self._sleeper.fileno(), self._wake)
        own = (self._follow, self._beat, self._retain, self._pave)
        for loop_of in (*own, self.quotas.run, self.listings.run, self.overview.run):
            self._start(loop_of())

    def _open_operators(self) -> None:
        self.listings = Listings(self.store, self._sealer, self._now_ms)
        self.auditor = Auditor(self.store.directory.root / "audit", self._now_ms, self._anchor)
        self._operator = Operator(
            self.store, self._committer, self._checks, self._followers,
            listings=self.listings, sealer=self._sealer, auditor=self.auditor, now_ms=self._now_ms,
        )  # fmt: skip
        self.overview = Overview(self)
        self._start(self.auditor.run())

    async def _anchor(self, head: Head) -> None:
        if not self.settings.standby:
            await self._committer.send([Message(ANCHOR_TOPIC, ANCHOR_TOPIC, head.encode())])

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A loop never ends by itself: if it does, the edge is not whole any more."""
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._closing:
            self._committer.fail(f"{type(error).__name__}: {error}" if not isinstance(error, StoreError) else str(error))

    @property
    def consumption(self) -> Consumption:
        """Consumers' side of the edge; there once the edge is open."""
        assert self._consumption is not None
        return self._consumption

    @property
    def failed(self) -> asyncio.Future[str]:
        """Done, with the reason, when the store has failed: the process must end, and be started again to recover."""
        return self._committer.failed

    def stop(self) -> None:
        """Polls that wait come back empty and nothing new is taken; what was accepted goes on to its end."""
        for part in self.parts:
            part.stop()
        self._closing = True
        self._checks.stop()
        self.consumption.stop()

    async def close(self) -> None:
        """Finish what was accepted, flush, note a clean exit."""
        self.stop()
        for part in reversed(self.parts):
            await part.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self.quotas.close)
        asyncio.get_running_loop().remove_reader(self._sleeper.fileno())
        self._sleeper.close()
        if self.auditor is not None:
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
        self._refuse_if_standby("halves")
        if self.settings.reject_transactions:
            raise TransactionsRejected(
                "halves are refused here (rejectTransactionMessage = true): send them elsewhere, or set it to false"
            )
        self._check_count(messages, "messages")
        groups, group_no = groups_of(messages), self.store.dictionary.group_no
        with self.quotas.admit(messages, halves=True) as admitted:
            stored = self._committer.prepare(messages, admitted.appended)
            del messages  # the committer lets go of them before the flush
            half_offsets = await stored
        if are_same(groups):
            return self._sealer.seal_all(half_offsets, group_no(groups[0]) or 0)
        return [(self._sealer.seal(at, group_no(group) or 0), at) for at, group in zip(half_offsets, groups, strict=True)]

    async def send(self, messages: Sequence[Message]) -> list[tuple[int, int]]:
        """Store ordinary messages, all or none, visible without a transaction; (queue_id, queue_offset) of each, once durable."""
        self._refuse_if_standby("messages")
        self._check_count(messages, "messages")
        self.quotas.admit(messages, halves=False)
        return [place_of(position) for position in await self._committer.send(messages)]

    def _refuse_if_standby(self, what: str) -> None:
        if self._closing:
            raise Closing("the edge is stopping: try again later")
        if self.settings.standby:
            raise Standby(f"this is a standby (role = standby): it takes no {what}; send them to the master")

    def _check_count(self, items: Sequence[object], what: str) -> None:
        most = self.settings.max_messages_per_request
        if not items:
            raise InvalidRequest(f"{what}: is empty; send at least one")
        if len(items) > most:
            raise TooLarge(f"{what}: {len(items)} in one request; at most {most} (maxMessagesPerRequest) are taken")

    # --- ends ----------------------------------------------------------------------------------------------------------------
    async def end(self, ends: Sequence[EndRequest]) -> list[EndAnswer]:
        """End transactions; an answer for each, in order, once what it rests on is durable."""
        self._refuse_if_standby("ends")
        self._check_count(ends, "ends")
        places = self._sealer.open_all([end.id for end in ends])
        judged = [self._to_end(end, place) for end, place in zip(ends, places, strict=True)]
        good = [end for end in judged if isinstance(end, End)]
        self.ends_refused += len(judged) - len(good)
        answers = iter(await self._committer.end(good) if good else [])
        return [answer_of(next(answers)) if isinstance(end, End) else end for end in judged]

    def _to_end(self, end: EndRequest, place: Place | BadId) -> End | EndAnswer:
        kind = OUTCOMES.get(end.outcome)
        if kind is None:
            raise InvalidRequest(f"outcome: {end.outcome!r} is none of {', '.join(OUTCOMES)}")
        if isinstance(place, BadId):
            return EndAnswer(Verdict.REFUSED.value, f"unknown id: {place}")
        if place.group_no != self.store.dictionary.group_no(end.group):
            return EndAnswer(Verdict.REFUSED.value, "wrong group")
        return End(place.half_offset, kind, end.group, Via.CHECK if end.from_check else Via.PRODUCER, "", end.remark)

    # --- operators -----------------------------------------------------------------------------------------------------------
    async def act(self, action: Action) -> Done:
        """Check now, commit, roll back or resume, as `ingest.operator` says."""
        self._refuse_if_standby("actions")
        return await self._operator.act(action, self.settings.max_messages_per_request)

    def admit_names(self, principal: Principal, groups: Collection[str], topics: Collection[str]) -> None:
        """Whether those of these groups and topics that are new may be made for him; NoSuchTopic or TooManyNames if not."""
        if self.names is not None:
            self.names.admit(principal, groups, topics)

    async def create_topic(self, topic: str, queues: int | None) -> tuple[int, bool]:
        """(how many queues it has, whether it is new). For operators: `autoCreateTopics` and limits of tokens do not hold."""
        self._refuse_if_standby("topics")
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
        self._refuse_if_standby("topics")
        return await self._removing.remove(wanted)

    async def audited(self, limit: int, before: int | None = None) -> tuple[list[Audited], int | None]:
        """What operators did, the newest first."""
        assert self.auditor is not None
        return await self.auditor.audited(limit, before)

    def denied(self, who: str, operation: str, reason: str) -> None:
        """A door refused this caller."""
        if self.auditor is not None:
            self.auditor.denied(who, operation, reason)

    @asynccontextmanager
    async def noted(self, who: str, action: str, target: str) -> AsyncIterator[None]:
        """Around an action that belongs into the audit, where there is one."""
        if self.auditor is None:
            yield
        else:
            async with self.auditor.action(who, action, target):
                yield

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
        max_requests, wait_s = self._check_poll(member, max_requests, wait_s)
        return await self._checks.poll(
            group, member, max_requests, self.settings.max_request_bytes // 2, wait_s, passing_over=passing_over, via=via
        )

    def _check_poll(self, member: str, max_requests: int, wait_s: float) -> tuple[int, float]:
        """How many a poll gets at most, and how long it may wait; or why there is none."""
        self._refuse_if_standby("polls")
        if not member or len(member) > MEMBER_MAX_CHARACTERS:
            raise InvalidRequest(f"member: name yourself in 1 to {MEMBER_MAX_CHARACTERS} characters")
        if max_requests < 1 or wait_s < 0:
            raise InvalidRequest("max: ask for at least 1, and wait_s for 0 or more")
        return min(max_requests, self.settings.checks_per_poll_max), min(wait_s, self.settings.poll_wait_max_ms / 1000)

    def transaction_id_of(self, delivery: Delivery) -> str | None:
        """Of a message that a transaction released; None for an ordinary one."""
        half_offset = delivery.half_offset
        return self._sealer.seal(half_offset, delivery.frame.fields["group_no"]) if half_offset >= 0 else None

    def group_of(self, id: str) -> str:
        """The producer group of the half that an id names; BadId unless this store issued it."""
        return self.store.dictionary.groups[self._sealer.open(id).group_no]

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
            "names": self.names.figures() if self.names is not None else {},
            "consumption": self.consumption.figures(),
            **{part.name: part.figures() for part in self.parts},
            "healthy": not self.trouble and not self.failed.done(),
        }

    def _flushed(self, seconds: float) -> None:
        """In the committer's thread or in the loop. Who wants to know may come after the edge was opened."""
        if self.observe_flush is not None:
            self.observe_flush(seconds)

    def live_groups(self) -> set[str]:
        """Producer groups with a live member."""
        names = self.store.dictionary.groups
        live = self._presence.live(self.clock.elapsed_ms(), self.settings.presence_ttl_ms, len(names))
        return {name for name, is_live in zip(names, live.tolist(), strict=True) if is_live}

    def known_groups(self) -> Sequence[str]:
        """Producer groups that sent anything, ever."""
        return self.store.dictionary.groups

    def job_files(self) -> TopicReader | None:
        """The job's files; None where it has none, or is just switching to others."""
        try:
            return self._checks.topics()
        except (StoreError, IndexError):
            return None

    def job_state(self) -> JobState:
        """What can be seen of the job from here."""
        topics = self.job_files()
        if topics is None:
            return JobState("absent", self.store.page[EdgeSlot.HALF_END], self.store.page[EdgeSlot.OP_END])
        page = topics.page
        heartbeat_ms = page[JobSlot.HEARTBEAT_MS]
        alive = "no_room" if page[JobSlot.NO_ROOM_SINCE_MS] else "running"
        return JobState(
            alive if abs(self.clock.elapsed_ms() - heartbeat_ms) < JOB_SILENT_MS else "silent",
            self.store.page[EdgeSlot.HALF_END] - page[JobSlot.HALF_CURSOR],
            self.store.page[EdgeSlot.OP_END] - page[JobSlot.OP_CURSOR],
            page[JobSlot.ROUND_NO],
            heartbeat_ms,
        )

    async def inspect(self, id: str) -> Inspected:
        """One transaction with its message, for an operator."""
        place = self._sealer.open(id)
        return await asyncio.get_running_loop().run_in_executor(None, self._histories.inspect, place.half_offset)

    async def transaction(self, id: str) -> Transaction:
        """What is known of one transaction, with its history; BadId unless this store issued the id."""
        place = self._sealer.open(id)
        return await asyncio.get_running_loop().run_in_executor(None, self._histories.of, place.half_offset)

    # --- loops ---------------------------------------------------------------------------------------------------------------
    def _published(self) -> None:
        """In the committer's thread or in the loop: something new is durable, the job may read it."""
        if self._waker is not None:
            self._waker.wake()
        if self._consumption is not None:
            self._consumption.published()
            if not self._short.is_set() and self.store.runway.is_short(self.store.log.end):
                with contextlib.suppress(RuntimeError):  # the event loop has ended
                    self._loop.call_soon_threadsafe(self._short.set)

    async def _pave(self) -> None:
        """Keep pages ready for the log. Nothing depends on it: where it fails, it is left alone."""
        threads = Threads("runway", 1)
        try:
            while True:
                await self._short.wait()
                await threads.call(self.store.runway.extend, lambda: self.store.log.end)
                self._short.clear()
        except Exception:
            LOG.exception("no more pages are made ready for the log; it goes on without")
            await self._loop.create_future()  # the others of its kind never end either
        finally:
            threads.close()

    def _wake(self) -> None:
        self._sleeper.wait(0)
        self._woken.set()

    async def _follow(self) -> None:
        """Look at the job's pages when it wakes us, and now and then. What cannot be done now (the disk is full, the job is
        switching to other files) is tried again at the next look; nothing is skipped."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):  # wait_for of Python 3.11 may swallow a cancellation
                    await self._woken.wait()
            self._woken.clear()
            try:
                self.consumption.look()
                self._checks.look()
                topics = self._checks.topics()
                if topics is not None and not self.settings.standby and self._followers.news(topics):
                    await self._committer.call(self._followers.take)
                self.trouble = ""
            except (StoreError, IndexError) as error:
                self.trouble = str(error)

    async def _beat(self) -> None:
        while True:
            self.store.heartbeat(self.clock.elapsed_ms())
            # Beside the event loop: it may write.
            await asyncio.to_thread(self.clock.look)
            await asyncio.sleep(HEARTBEAT_S)

    async def _retain(self) -> None:
        while True:
            await asyncio.sleep(self.settings.retention_interval_ms / 1000)
            try:
                await self.retain()
            except StoreError as error:
                self.trouble = str(error)

    async def retain(self) -> dict[str, int]:
        """Delete what the job says nobody needs any more; how many files of each kind went."""
        removed: dict[str, int] = await self._committer.call(self.store.retain)
        if any(removed.values()):
            self._checks.refresh()
            await self.listings.refresh()
        self.consumption.let_go()
        return removed


def last_time_ms(store: EdgeStore) -> int:
    """The last time that a store of an earlier release tells; 0 = none. The edge's heartbeat is the newest; where there is none,
    the time of the last settled batch."""
    if heartbeat_ms := store.page[EdgeSlot.HEARTBEAT_MS]:
        return heartbeat_ms
    try:
        return PublishedPage(store.directory.root / "job.published", JOB_MAGIC)[JobSlot.NOW_MS]
    except StoreError:
        return 0


def answer_of(answer: Answer) -> EndAnswer:
    return _told(answer.verdict, answer.reason, answer.state)


@lru_cache(64)
def _told(verdict: Verdict, reason: str, state: State) -> EndAnswer:
    """There are few different ones."""
    return EndAnswer(verdict.value, reason, state.name)


def _heard(future: asyncio.Future[None]) -> None:
    """A hand-over that could not be recorded is not counted; the edge's failure is told elsewhere."""
    if not future.cancelled():
        future.exception()
