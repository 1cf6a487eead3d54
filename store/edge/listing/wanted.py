"""What is looked for: `Wanted` as it is asked, `Filter` with its names as numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from store.arrays import Array, Ints
from store.records import State
from store.tables.journals.names import Dictionary

OPEN: Final = frozenset({0})
DISCARDED: Final = frozenset({int(State.DISCARDED_MAX), int(State.DISCARDED_EXPIRED)})
ENDED: Final = frozenset({int(State.COMMITTED), int(State.ROLLED_BACK)})
IN_DOUBT: Final = OPEN | DISCARDED


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for; None = any. Times are stored_at, both ends included. `text` is found in group, topic or key."""

    ends: frozenset[int] = OPEN
    group: str | None = None
    topic: str | None = None
    key: str | None = None
    text: str | None = None
    stored_from_ms: int | None = None
    stored_until_ms: int | None = None
    attempts_min: int | None = None
    attempts_max: int | None = None
    #: (half offsets, their group numbers) → which of them are wanted: what the files of the store do not tell.
    only: Callable[[Ints, Array], Array] | None = None

    @property
    def in_doubt(self) -> bool:
        """Whether the index knows all that could be wanted."""
        return self.ends <= IN_DOUBT


@dataclass(slots=True)
class Filter:
    """`Wanted` in numbers. `impossible`: no half can match."""

    wanted: Wanted
    group_no: int | None = None
    topic_no: int | None = None
    key: bytes | None = None
    text: bytes | None = None
    groups_with_text: Array = field(default_factory=lambda: np.zeros(1, np.bool_))
    topics_with_text: Array = field(default_factory=lambda: np.zeros(1, np.bool_))
    impossible: bool = False

    @property
    def by_attempts(self) -> bool:
        return self.wanted.attempts_min is not None or self.wanted.attempts_max is not None


def resolve(wanted: Wanted, names: Dictionary) -> Filter:
    group_no = None if wanted.group is None else names.group_no(wanted.group)
    topic_no = None if wanted.topic is None else names.topic_no(wanted.topic)
    impossible = (wanted.group is not None and group_no is None) or (wanted.topic is not None and topic_no is None)
    found = Filter(wanted, group_no, topic_no, impossible=impossible)
    if wanted.key is not None:
        found.key = wanted.key.encode(errors="surrogatepass")
    if wanted.text:
        found.text = wanted.text.encode(errors="surrogatepass")
        found.groups_with_text = np.array([wanted.text in name for name in names.groups] or [False])
        found.topics_with_text = np.array([wanted.text in name for name in names.topics] or [False])
    return found


def among(marks: Array, ends: frozenset[int]) -> Array:
    """Which of the marks are one of these ends."""
    if len(ends) == 1:  # as of open ones: many times faster than a table
        return np.asarray(marks == next(iter(ends)))
    return np.asarray(_table_of(ends)[marks])


_TABLES: dict[frozenset[int], Array] = {}


def _table_of(ends: frozenset[int]) -> Array:
    """Which of 256 marks are among these ends."""
    found = _TABLES.get(ends)
    if found is None:
        found = np.zeros(256, np.bool_)
        found[list(ends)] = True
        _TABLES[ends] = found
    return found


def within_attempts(counts: Any, wanted: Wanted) -> Array:
    kept = np.ones(len(counts), np.bool_)
    if wanted.attempts_min is not None:
        kept &= counts >= wanted.attempts_min
    if wanted.attempts_max is not None:
        kept &= counts <= wanted.attempts_max
    return kept
