"""The tag filter that each consumer group reads a topic with. It is one at a time: what one filter skips, the group has done."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from ingest.errors import InvalidRequest
from store.properties import TAGS
from store.tables.frames import Frame

#: A filter counts as in use for this long after its last poll.
FILTER_HOLD_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class TagFilter:
    """Which messages a group wants: `a||b`; nothing or `*` is all of them."""

    text: str = ""
    tags: frozenset[str] = frozenset()
    codes: frozenset[int] = frozenset()

    def takes(self, frame: Frame) -> bool:
        return not self.tags or frame.properties.get(TAGS, "") in self.tags


@dataclass(slots=True)
class _Filter:
    wanted: TagFilter
    consumer: str
    polls: int = 0
    left_at_s: float = 0.0


class Filters:
    """`known`: by topic and group. `exists` tells whether there is such a topic."""

    def __init__(self, clock_s: Callable[[], float], exists: Callable[[str], bool]) -> None:
        self._clock_s, self._exists = clock_s, exists
        self.known: dict[tuple[str, str], _Filter] = {}
        #: Filters that no poll reads with any more, the one that was left first first.
        self._left: dict[tuple[str, str], None] = {}

    @contextlib.contextmanager
    def reading(self, topic: str, group: str, wanted: TagFilter, consumer: str) -> Iterator[None]:
        """Around a poll. InvalidRequest if the group reads the topic with another filter."""
        self._forget()
        known = self.known.get((topic, group))
        if known is None:
            known = self.known[topic, group] = _Filter(wanted, consumer)
        elif known.wanted != wanted:
            raise InvalidRequest(
                f"tags: {wanted.text or '*'!r} differs from {known.wanted.text or '*'!r}, with which {known.consumer!r} of "
                f"this group reads {topic}: use the same tags in the whole group, or another group, or wait {FILTER_HOLD_S:.0f} s"
            )
        known.polls += 1
        self._left.pop((topic, group), None)
        try:
            yield
        finally:
            known.polls -= 1
            known.left_at_s = self._clock_s()
            if not known.polls:
                self._leave(topic, group)

    def _leave(self, topic: str, group: str) -> None:
        """No poll reads with it now. In a topic that does not exist nothing was skipped: forget it at once."""
        if self._exists(topic):
            self._left[topic, group] = None
        else:
            del self.known[topic, group]

    def _forget(self) -> None:
        """Filters without a poll for FILTER_HOLD_S."""
        now_s = self._clock_s()
        while self._left and now_s >= self.known[left := next(iter(self._left))].left_at_s + FILTER_HOLD_S:
            del self._left[left], self.known[left]
