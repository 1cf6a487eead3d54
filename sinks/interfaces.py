"""What a plug-in must be. Plain protocols: nothing to inherit from, any object with these methods will do.

Every call may be repeated after a crash, with the same `Applied.sequence`: a sink whose effect is not idempotent by nature
remembers the sequence that it has seen last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol, runtime_checkable


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
    body: bytes
    properties: Mapping[str, str]
    check_count: int


@runtime_checkable
class CheckTransport(Protocol):
    """Takes check requests to one live member of a group. Group `escrow.check_transports`: a callable (root: Path) → it."""

    def hand_over(self, requests: Sequence[CheckRequest]) -> Sequence[bool]:
        """Whether each one has reached a member: only then it counts."""

    def close(self) -> None:
        """The edge ends."""


@runtime_checkable
class CheckListener(Protocol):
    """Answers check requests inside the service itself. Group `escrow.check_listeners`: a callable () → CheckListener."""

    def check(self, request: CheckRequest) -> Outcome:
        """The outcome. An exception counts as UNKNOWN."""


@runtime_checkable
class TransactionService(Protocol):
    """The transaction service itself. Group `escrow.transaction_service`: a callable (root: Path) → it."""

    def open(self) -> None: ...

    def prepare(self, topic: str, group: str, body: bytes, properties: Mapping[str, str]) -> str:
        """Store a half; its transaction id, once it is durable."""

    def commit(self, transaction_id: str, group: str) -> str:
        """`accepted`, `already`, `conflict` or `refused`."""

    def rollback(self, transaction_id: str, group: str) -> str: ...

    def check(self, group: str, count: int) -> Sequence[CheckRequest]:
        """Requests that wait for a member of the group, at most `count`."""

    def close(self) -> None: ...


#: Where a plug-in's factory gets the store's directory from.
Root = Path
