"""What a plug-in must be. Plain protocols: nothing to inherit from, any object with these methods will do.

Every call may be repeated after a crash, with the same `Applied.sequence`: a sink whose effect is not idempotent by nature
remembers the sequence that it has seen last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

from store.messages import Message


class Outcome(Enum):
    """What a producer says of its local transaction."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class Applied:
    """A batch that is durable and applied: what the store's own queues hold now. Numbers are absolute."""

    sequence: int  # of the redo log: grows by one a batch, never repeats for another batch
    now_ms: int
    half_cursor: int
    op_cursor: int
    round_no: int
    check_end: int  # check queue: entries before it are there
    proposal_end: int
    discard_end: int
    quarantine_end: int
    released: int  # by this batch
    rolled_back: int


@runtime_checkable
class Sink(Protocol):
    """Told of every applied batch, after it is durable and readable. Group `escrow.sinks`: a callable (root: Path) → Sink."""

    def applied(self, batch: Applied) -> None:
        """A batch was applied. An exception is counted and logged; it holds nothing up, and the next batch is told all the same."""

    def close(self) -> None:
        """The job ends."""


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """Asks a producer group for the outcome of a transaction."""

    transaction_id: str
    group: str
    topic: str
    key: str
    tags: str
    body: bytes
    properties: Mapping[str, str]
    attempt: int  # from 1
    born_at_ms: int
    stored_at_ms: int


@runtime_checkable
class CheckTransport(Protocol):
    """Takes check requests to one live member of a group. Group `escrow.check_transports`: a callable (root: Path) → it.

    Called in threads of its own, several at a time; what takes longer than 30 s has failed.
    """

    def groups(self) -> Sequence[str]:
        """The producer groups that it stands for; * at the end of a name stands for any rest. They count as live while it hands
        over. Asked at the start, and now and then afterwards."""

    def hand_over(self, requests: Sequence[CheckRequest]) -> Sequence[bool]:
        """For each request, all of one group, whether it has reached a member: only then it counts. The others are handed
        over in another way. An exception means that none has."""

    def close(self) -> None:
        """The edge ends."""


@runtime_checkable
class CheckListener(Protocol):
    """Answers check requests inside the service itself. Group `escrow.check_listeners`: a callable () → CheckListener.

    Called in threads of its own, several at a time.
    """

    def groups(self) -> Sequence[str]:
        """The producer groups that it answers for; * at the end of a name stands for any rest."""

    def check(self, request: CheckRequest) -> Outcome:
        """The outcome. An exception, or anything else than an Outcome, counts as UNKNOWN."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of a transaction; the method's name says whether it is a commit or a rollback."""

    transaction_id: str
    group: str
    from_check: bool = False
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """`verdict`: accepted, already, conflict or refused; `reason` says why not; `state`: what the transaction is now."""

    verdict: str
    reason: str = ""
    state: str = ""


@runtime_checkable
class TransactionService(Protocol):
    """The transaction service itself. Group `escrow.transaction_service`: a callable (root: Path, inner: TransactionService) → it.

    `inner` is the built-in one: to change one thing, pass the rest on to it. Everything is called in threads, many
    at a time, and `inner` may be called from them (and from no coroutine). `sinks.errors.Refused` says no: its text goes to the
    caller. UNKNOWN settles nothing and does not come here.
    """

    def open(self) -> None:
        """The store is open; nothing has been taken yet."""

    def prepare(self, halves: Sequence[Message]) -> Sequence[str]:
        """Store halves, all or none; their transaction ids, in order, once they are durable."""

    def commit(self, ends: Sequence[End]) -> Sequence[Answer]:
        """An answer for each, in order, once what it rests on is durable."""

    def rollback(self, ends: Sequence[End]) -> Sequence[Answer]:
        """As commit."""

    def check(self, group: str, member: str, requests: Sequence[CheckRequest]) -> Sequence[CheckRequest]:
        """Gets the requests that are about to be handed to a member of the group; returns those to hand over. What is held
        back is not counted and goes to the next member that asks."""

    def close(self) -> None:
        """The edge ends; the store is still open."""
