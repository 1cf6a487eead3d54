"""A commit cycle: the work that it took from callers, and the results that wait for its flush."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ingest.errors import EdgeFailed
from ingest.threads import tellable
from store.errors import StoreError
from store.tables.ends import Answer


@dataclass(slots=True)
class Work:
    """What one caller handed in."""

    future: asyncio.Future[Any]
    content: Any
    size_bytes: int = 0
    #: Called when it is in the log.
    appended: Callable[[], None] | None = None


@dataclass(slots=True)
class Queues:
    """Work that no cycle has taken yet, by kind."""

    ends: deque[Work] = field(default_factory=deque)
    calls: deque[Work] = field(default_factory=deque)
    messages: deque[Work] = field(default_factory=deque)
    halves: deque[Work] = field(default_factory=deque)

    def __bool__(self) -> bool:
        return bool(self.ends or self.calls or self.messages or self.halves)


@dataclass(slots=True)
class Counters:
    """What the committer did, for status and metrics."""

    cycles: int = 0
    halves: int = 0
    messages: int = 0
    ends: int = 0
    answers: dict[str, int] = field(default_factory=dict)
    #: What operators said; not among `ends` and `answers`, which are the producers'.
    operator_answers: Counter[str] = field(default_factory=Counter)
    asked: int = 0
    refused_for_load: int = 0

    def count_answers(self, answers: Sequence[Answer]) -> None:
        """Ends that were answered; those of a call count themselves."""
        self.ends += len(answers)
        for verdict, count in Counter([answer.verdict for answer in answers]).items():
            self.answers[verdict.value] = self.answers.get(verdict.value, 0) + count

    def count_operator(self, answers: Sequence[Answer]) -> None:
        """Commits, rollbacks and resumes by an operator."""
        self.operator_answers.update(answer.verdict.value for answer in answers)


@dataclass(frozen=True, slots=True)
class Asked:
    half_offsets: Sequence[int]
    member: str


@dataclass(slots=True)
class Cycle:
    """One cycle under way: the work it took, and the results to hand out after the flush."""

    now_ms: int
    ticket: int = -1
    appended: bool = False
    #: The flush that covers it has returned, or nothing in it needs one.
    flushed: bool = False
    #: Why it never will.
    lost: str | None = None
    ended: int = 0
    released_bytes: int = 0
    #: The futures of all work that this cycle took out of a queue.
    taken: list[asyncio.Future[Any]] = field(default_factory=list)
    done: list[tuple[asyncio.Future[Any], Any, Exception | None]] = field(default_factory=list)

    def take(self, queue: deque[Work]) -> Work:
        self.taken.append(queue[0].future)
        return queue.popleft()

    def tell(self, work: Work, result: Any, ticket: int) -> None:
        self.ticket = max(self.ticket, ticket)
        self.done.append((work.future, result, None))

    def fail(self, work: Work, error: BaseException) -> None:
        self.done.append((work.future, None, tellable(error)))

    def lose(self, error: BaseException) -> None:
        """The flush failed, or something before it: nothing is known of what is durable. The edge ends when the cycle does."""
        self.lost = self.lost or reason(error)

    def resolve(self) -> None:
        """Complete all futures. A refusal stays a refusal, a result counts only once flushed, a future without either fails."""
        lost = EdgeFailed(f"nothing is known of what was sent just now: {self.lost or 'it was not flushed'}")
        for future, result, error in self.done:
            if future.done():
                continue  # the caller went away; its work stays
            if error is None and self.flushed:
                future.set_result(result)
            else:
                future.set_exception(error or lost)
        for future in self.taken:
            if not future.done():
                future.set_exception(lost)


def reason(error: BaseException) -> str:
    return str(error) if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"
