"""What a door (HTTP, gRPC) and a courier may ask of an edge, as narrow protocols, and the set of them that one edge has.

Two implementations, `ingest.edge.embedded` and `ingest.kafka.edge`; neither knows the other. Wrappers take a capability and
give one (`ingest.traced`, `ingest.plugged`, `ingest.edge.quotas.Limited`); `ingest.assembly` puts all together. A capability
that a mode does not have is None here, and its routes and methods are not mounted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Protocol

from msgspec import Struct

from ingest.auth.access import Principal, Token
from ingest.auth.reloading_file import Watched
from ingest.checks.delivery import CheckRequest, Handover, Member
from ingest.consuming.deliveries import DeadLetter, Delivery
from ingest.consuming.pages import Identity, Page, QueuePlaces
from ingest.consuming.reading.start_positions import EARLIEST, LATEST
from ingest.groups import Groups
from ingest.operating.auditing import Audited
from ingest.operating.contradictions import Contradictions
from ingest.operating.explaining import Explained
from ingest.operating.history import Inspected, Transaction
from ingest.operating.listings import Listings
from ingest.operating.operator import Action, Done
from ingest.operating.tables import TablePages
from ingest.operating.topic_removal import Wanted
from ingest.parts import Parts
from runtime.settings import Settings
from store.edge.removal import Removal
from store.guarded_clock import GuardedClock
from store.messages import Message
from store.progress import Progress, no_progress
from store.records import OpKind, State
from store.tables.ends import Answer, Verdict

OUTCOMES: Final = {"commit": OpKind.COMMIT, "rollback": OpKind.ROLLBACK, "unknown": OpKind.UNKNOWN}


# --- what is said ---------------------------------------------------------------------------------------------------------------
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


def answer_of(answer: Answer) -> EndAnswer:
    return _told(answer.verdict, answer.reason, answer.state)


@lru_cache(64)
def _told(verdict: Verdict, reason: str, state: State) -> EndAnswer:
    """There are few different ones."""
    return EndAnswer(verdict.value, reason, state.name)


# --- what every edge has --------------------------------------------------------------------------------------------------------
class Halves(Protocol):
    async def store_halves(self, messages: Sequence[Message]) -> Sequence[tuple[str, int]]:
        """Store halves, all or none; (transaction id, half_offset) of each, in order, once they are durable. The half_offset is
        -1 where a plug-in made the id."""


class Messages(Protocol):
    async def send(self, messages: Sequence[Message]) -> list[tuple[int, int]]:
        """Store ordinary messages, all or none; (queue_id, queue_offset) of each, once durable."""


class Ends(Protocol):
    async def end(self, ends: Sequence[EndRequest]) -> list[EndAnswer]:
        """End transactions; an answer for each, in order, once what it rests on is durable."""


class Polls(Protocol):
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
        """Check requests for one member of a group, as a context: inside it the transport writes the answer. Leaving it without an
        exception records the hand-over; leaving it with one gives the requests to another member. `passing_over`: halves that this
        member has failed at before. `via`: how the requests reach the member, for people."""


class Checks(Protocol):
    """What belongs to check requests besides polling for them."""

    @property
    def check_round(self) -> int:
        """Changes when a round begins."""

    def put_back(self, handover: Handover) -> None:
        """These were not delivered: another member gets them, in this round still."""

    def still_asked(self, handover: Handover) -> bool:
        """False when the round is over, or when all of it has ended meanwhile: stop trying then."""

    def id_of(self, request: CheckRequest) -> str: ...

    def present(self, group: str, member: str, via: str) -> None:
        """A member of this group is there, and polls."""

    def live_groups(self) -> set[str]:
        """Producer groups with a live member."""

    def known_groups(self) -> Sequence[str]: ...

    def knows_group(self, group: str) -> bool: ...

    def members(self, group: str) -> list[Member]:
        """Who takes the check requests of a group."""


class Transactions(Protocol):
    """One transaction by its id, and what an operator does with it."""

    async def transaction(self, id: str) -> Transaction:
        """What is known of one transaction, with its history; BadId unless this edge issued the id."""

    async def act(self, action: Action) -> Done: ...

    def half_offset_of(self, id: str) -> int:
        """Of an id that this edge made; BadId of any other."""

    def properties_of(self, id: str) -> Mapping[str, str]:
        """Properties of the half that an id names, with its topic (REAL_TOPIC). In a thread; {} where it cannot be read."""


class Figures(Protocol):
    async def status(self) -> dict[str, Any]:
        """How the edge is, and what it sees of the job."""

    def counts(self) -> dict[str, Any]:
        """What was done since the start, for status and metrics."""

    def job_state(self) -> JobState: ...


class Audit(Protocol):
    """Who did what, and who was denied."""

    def action(self, who: str, action: str, target: str) -> AbstractAsyncContextManager[None]:
        """Around an action that belongs into the audit."""

    def denied(self, who: str, operation: str, reason: str) -> None: ...

    async def tokens(self, tokens: Iterable[Token]) -> None: ...

    def tokens_read(self, tokens: Iterable[Token]) -> None: ...


class NoAudit:
    """Where no audit is kept."""

    def action(self, _who: str, _action: str, _target: str) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def denied(self, _who: str, _operation: str, _reason: str) -> None:
        pass

    async def tokens(self, _tokens: Iterable[Token]) -> None:
        pass

    def tokens_read(self, _tokens: Iterable[Token]) -> None:
        pass


class Naming(Protocol):
    def admit(self, principal: Principal, groups: Collection[str], topics: Collection[str]) -> None:
        """Whether those of these groups and topics that are new may be made for this caller; NoSuchTopic or TooManyNames."""


class FreeNaming:
    """Where names take no number of a store."""

    def admit(self, _principal: Principal, _groups: Collection[str], _topics: Collection[str]) -> None:
        pass


# --- what the embedded edge has besides -----------------------------------------------------------------------------------------
class Deliveries(Protocol):
    async def poll(
        self,
        topic: str,
        group: str,
        consumer: str,
        *,
        max_messages: int = 32,
        wait_s: float = 0.0,
        visibility_s: float | None = None,
        tags: str = "",
        start: str = EARLIEST,
        hold: Callable[[int], None] | None = None,
    ) -> list[Delivery]:
        """Messages for one consumer of a group. `hold` hears how many bytes it is about to take; where it raises, they stay."""


class Consuming(Deliveries, Protocol):
    """What consumers do; `ingest.consuming.consumption` says more."""

    def put_back(self, deliveries: Sequence[Delivery]) -> None: ...
    async def ack(self, topic: str, group: str, receipts: Sequence[str]) -> list[str]: ...
    async def change_visibility(self, topic: str, group: str, receipts: Sequence[str], visibility_s: float) -> list[str | None]: ...
    async def seek(self, topic: str, group: str, to: str) -> dict[int, int]: ...
    async def condemn(self, topic: str, group: str, receipt: str) -> bool: ...
    async def dead_letters(self, group: str, *, after: str = "", max_letters: int = 32) -> tuple[list[DeadLetter], str | None]: ...
    async def replay(self, group: str, ids: Sequence[str]) -> int: ...
    def open_dead_letters(self, group: str, ids: Sequence[str]) -> int: ...
    def dead_letter_count(self, group: str) -> int: ...
    def lags(self) -> dict[tuple[str, str], tuple[int, int]]: ...


class Reading(Protocol):
    """Topics by place, without a consumer group; `ingest.consuming.pages` says more."""

    async def places(self, topic: str, at: str = LATEST) -> tuple[Identity, list[QueuePlaces]]: ...
    async def page(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        max_messages: int,
        max_bytes: int,
        hold: Callable[[int], None] | None = None,
    ) -> Page: ...


class Sights(Protocol):
    """What an operator sees first."""

    async def answer(self) -> dict[str, Any]: ...
    async def groups(self) -> list[dict[str, Any]]: ...
    async def group(self, group: str) -> dict[str, Any] | None: ...
    def topics(self) -> list[dict[str, Any]]: ...
    def dead_letters(self) -> list[dict[str, Any]]: ...


class Operating(Protocol):
    """Lists, the audit, and the topics of the store."""

    @property
    def overview(self) -> Sights: ...

    @property
    def listings(self) -> Listings: ...

    @property
    def tables(self) -> TablePages: ...

    @property
    def contradictions(self) -> Contradictions: ...

    async def inspect(self, id: str) -> Inspected:
        """One transaction with its message."""

    async def body(self, id: str) -> bytes | None:
        """The whole body of a half; None where it is gone or cannot be read."""

    async def explain(self, id: str) -> Explained:
        """Why a transaction is in doubt."""

    async def audited(self, limit: int, before: int | None = None) -> tuple[list[Audited], int | None]:
        """What operators did, the newest first."""

    async def create_topic(self, topic: str, queues: int | None) -> tuple[int, bool]:
        """(how many queues it has, whether it is new)."""

    async def remove_topics(self, wanted: Wanted) -> Removal:
        """Remove topics that are not in use."""


class Issued(Protocol):
    """What the store tells of ids, and of itself, without reading a message: RocketMQ's clients need it."""

    def group_of(self, id: str) -> str:
        """The producer group of the half that an id names; BadId unless this edge issued it and the id tells it."""

    def transaction_id_of(self, delivery: Delivery) -> str | None:
        """Of a message that a transaction released; None for an ordinary one."""

    @property
    def epoch(self) -> int:
        """Grows with every start of the edge."""


class Backlog(Protocol):
    """What is pending and unsettled. All but the first two are called in a thread."""

    def pending_by_group(self) -> dict[str, int]: ...
    def ended_by_group(self) -> dict[str, int]: ...
    def oldest_age_s(self) -> dict[str, int]: ...
    def oldest_unsettled_ms(self, job: JobState) -> int | None: ...


# --- an edge --------------------------------------------------------------------------------------------------------------------
class Core(Transactions, Figures, Checks, Polls, Ends, Messages, Halves, Protocol):
    """An implementation: what every edge has, and its life."""

    settings: Settings
    parts: Parts
    notice: str
    observe_flush: Callable[[float], None] | None
    groups: Watched[Groups]
    clock: GuardedClock
    #: Halves, messages and ends wait for plain futures of this loop and nothing else.
    waits_plainly: bool

    async def open(self, progress: Progress = no_progress) -> None: ...
    def stop(self) -> None: ...
    async def close(self) -> None: ...
    def offers(self) -> Offers: ...

    @property
    def failed(self) -> asyncio.Future[str]:
        """Done, with the reason, when the edge has failed: the process must end, and be started again."""

    @property
    def not_ready(self) -> str:
        """Why it is open and should be sent nothing all the same; "" mostly."""


@dataclass(slots=True, kw_only=True)
class Offers:
    """What an open edge has besides halves, ends and checks; None = not in this mode, and `absent` says where to look instead."""

    audit: Audit = field(default_factory=NoAudit)
    naming: Naming = field(default_factory=FreeNaming)
    deliveries: Deliveries | None = None
    consuming: Consuming | None = None
    reading: Reading | None = None
    operating: Operating | None = None
    issued: Issued | None = None
    backlog: Backlog | None = None
    #: By capability.
    absent: Mapping[str, str] = field(default_factory=dict)


class Capabilities:
    """What the doors may ask of one edge; wrappers replace single ones. `offers` is there once it is open."""

    def __init__(self, core: Core) -> None:
        self.core, self.settings, self.parts = core, core.settings, core.parts
        self.halves: Halves = core
        self.messages: Messages = core
        self.ends: Ends = core
        self.polls: Polls = core
        self.checks: Checks = core
        self.transactions: Transactions = core
        self.figures: Figures = core
        self.offers = Offers()

    def now_ms(self) -> int:
        return self.core.clock.now_ms()

    @property
    def waits_plainly(self) -> bool:
        """Halves, messages and ends wait for plain futures of this loop and nothing else (`ingest.http.fast_path`)."""
        core = self.core
        return core.waits_plainly and self.halves is core and self.messages is core and self.ends is core

    async def open(self, progress: Progress = no_progress) -> None:
        """1 the core · 2 what it offers · 3 parts, in order; an EdgeError keeps the edge from starting."""
        await self.core.open(progress)  # 1
        try:
            self.offers = self.core.offers()  # 2
            await self.parts.open()  # 3
        except BaseException:
            await self.close()
            raise

    def stop(self) -> None:
        """Polls that wait come back empty and nothing new is taken; what was accepted goes on to its end."""
        self.core.stop()

    async def close(self) -> None:
        """Finish what was accepted, and let go of everything."""
        await self.core.close()
