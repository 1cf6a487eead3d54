"""A release task: the batch that the driver hands to an executor, what comes of it, and how it can fail.

The driver makes tasks (streaming/kafka/shard.py), executors run them (sinks/kafka/release.py). Spark pickles them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from sinks.kafka import contract
from store.tables.redo_log import Marker

#: How long a task waits for one answer of Kafka.
DEADLINE_S: Final = 60.0
#: How a task's failure begins, where the driver has to tell it from others.
SUPERSEDED: Final = "superseded: "
UNTAKEN: Final = "not taken: "


class Superseded(Exception):
    """The shard belongs to a later term: another driver is master."""


class Unwritten(Exception):
    """The batch was not written, or it is not known whether it was; trying again is safe."""


class Untaken(Unwritten):
    """The shard's transactional id cannot be taken now."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a shard's batches go, and under which transactional id."""

    topics: contract.Topics
    partition: int
    transactional_id: str
    client: dict[str, Any]
    transaction_timeout_ms: int
    check_bodies: bool = True  # False: check requests carry neither body nor headers of their half
    generation: int = 0  # goes up when Kafka cannot give the id to any producer (sinks/kafka/stuck.py)

    @property
    def producer_id(self) -> str:
        """The transactional id in use."""
        return f"{self.transactional_id}.{self.generation}" if self.generation else self.transactional_id


@dataclass(frozen=True, slots=True)
class Task:
    """A batch to write.

    `windows`: after how many bodies the next piece begins; this bounds the memory of a task. `lanes` (uint64): of
    messages that were set aside before; new messages of these lanes may not overtake them. `barred`: topics that take
    no messages now, and why.
    """

    target: Target
    term: int
    marker: Marker
    packed_entries: bytes
    groups: list[tuple[int, str]]
    windows: list[int] = field(default_factory=list)
    next_group: int = 0
    lanes: bytes = b""
    barred: dict[str, str] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)
    asked: bytes = b""  # half offsets (int64): a member has taken their requests


@dataclass(frozen=True, slots=True)
class Requested:
    """Check requests that a batch has written: their halves, and where each partition of the check topic ended before."""

    half_offsets: frozenset[int]
    since: dict[int, int]


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a task."""

    partition: int
    sequence: int
    written: bool  # False: it had been written before
    messages: int = 0
    bytes: int = 0
    barred: dict[str, str] = field(default_factory=dict)  # topics that took no message, and why
    requests: Requested | None = None
    executor: str = ""  # host and process id of the parent of the executor's worker processes
