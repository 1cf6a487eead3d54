"""The dictionary: numbers for names of producer groups, topics and consumer groups. A number is never given twice.

A journal (`journal.py`) whose payloads are
      0  u8   kind       GROUP 1, TOPIC 2, MAKER 3
      1  u8   queues     TOPIC: number of queues, fixed when the topic is made · GROUP: 0 · MAKER: kind of the name that was made
      2  u16  reserved   0
      4  i32  number     from 0 upwards, for each kind · MAKER: number of the name that was made
      8  …    name       UTF-8 · MAKER: name of the token that made it

Numbers instead of hashes: a hash confuses "Aa" with "BB". Writer: the edge, before the first frame that uses a number.
Rebuilt from: the names that frames carry in PGROUP and REAL_TOPIC.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable
from enum import IntEnum
from pathlib import Path
from typing import Final

from store.errors import IllegalName, InvalidRecord
from store.frames import check_name
from store.journal import Journal
from store.records import QUEUES_PER_TOPIC_MAX, TOPIC_NO_MAX

RECORD: Final = struct.Struct("<BBHi")
assert RECORD.size == 8
NAME: Final = "dictionary"
TOPICS_MAX: Final = TOPIC_NO_MAX + 1


class NameKind(IntEnum):
    GROUP = 1
    TOPIC = 2
    MAKER = 3


#: Which token makes a name; "" where none does, or where it does not count.
MakerOf = Callable[[NameKind, str], str]


def nobody(_kind: NameKind, _name: str) -> str:
    return ""


class Dictionary:
    """Names by number and numbers by name."""

    def __init__(self, path: Path, *, writable: bool = False, default_queues: int = 4) -> None:
        self._journal = Journal(path, NAME, writable=writable)
        self.default_queues = default_queues
        self.groups: list[str] = []
        self.topics: list[str] = []
        self.queues: list[int] = []
        self._group_no: dict[str, int] = {}
        self._topic_no: dict[str, int] = {}
        #: How many names each token made.
        self.made: Counter[tuple[NameKind, str]] = Counter()
        for payload in self._journal.recover() if writable else self._journal.read_new():
            self._learn(payload)

    def refresh(self) -> None:
        """Reader: learn the names that were added since."""
        for payload in self._journal.read_new():
            self._learn(payload)

    def _learn(self, payload: bytes) -> None:
        kind, queues, _, number = RECORD.unpack_from(payload)
        name = payload[RECORD.size :].decode()
        if kind == NameKind.GROUP and number == len(self.groups):
            self._group_no[name] = number
            self.groups.append(name)
        elif kind == NameKind.TOPIC and number == len(self.topics):
            self._topic_no[name] = number
            self.topics.append(name)
            self.queues.append(queues)
        elif kind == NameKind.MAKER and queues in (NameKind.GROUP, NameKind.TOPIC):
            self.made[NameKind(queues), name] += 1

    def group_no(self, name: str) -> int | None:
        """The number of a group that is known."""
        return self._group_no.get(name)

    def topic_no(self, name: str) -> int | None:
        return self._topic_no.get(name)

    def add_group(self, name: str) -> int:
        """The number of a group, new or known; a new one is durable on return."""
        self.add_names([name], [])
        return self._group_no[name]

    def add_topic(self, name: str, queues: int | None = None) -> int:
        """The number of a topic, new or known; `queues` counts only when it is made."""
        self.add_names([], [name], queues=queues)
        return self._topic_no[name]

    def add_names(
        self, groups: Iterable[str], topics: Iterable[str], maker_of: MakerOf = nobody, *, queues: int | None = None
    ) -> None:
        """Make all of these that are not known, with one write and one flush: durable on return. None where one cannot be made."""
        new_groups = [check_name(name, "group") for name in dict.fromkeys(groups) if name not in self._group_no]
        new_topics = [check_name(name, "topic") for name in dict.fromkeys(topics) if name not in self._topic_no]
        queues = self.default_queues if queues is None else queues
        if new_topics and not 1 <= queues <= QUEUES_PER_TOPIC_MAX:
            raise InvalidRecord(f"queues: {queues} is not between 1 and {QUEUES_PER_TOPIC_MAX}")
        if len(self.topics) + len(new_topics) > TOPICS_MAX and new_topics:
            raise IllegalName(f"topic: {new_topics[0]}: the store has all the {TOPICS_MAX} topics that it can number")
        payloads = _payloads(NameKind.GROUP, 0, len(self.groups), new_groups, maker_of)
        payloads += _payloads(NameKind.TOPIC, queues, len(self.topics), new_topics, maker_of)
        self._append(payloads)

    def restore(self, kind: NameKind, number: int, name: str, queues_min: int = 0) -> None:
        """A frame uses this number for this name, but the dictionary was lost. Numbers before it whose names no frame has told
        yet get a stand-in, so that none is given to another name."""
        names = self.groups if kind == NameKind.GROUP else self.topics
        if number < len(names):
            return
        queues = 0 if kind == NameKind.GROUP else max(self.default_queues, queues_min)
        lost = [f"%lost-{lost}" for lost in range(len(names), number)]
        self._append(_payloads(kind, queues, len(names), [*lost, name], nobody))

    def _append(self, payloads: list[bytes]) -> None:
        if payloads:
            self._journal.append(payloads)
        for payload in payloads:
            self._learn(payload)

    def close(self) -> None:
        self._journal.close()


def _payloads(kind: NameKind, queues: int, first: int, names: Iterable[str], maker_of: MakerOf) -> list[bytes]:
    """Records of names with numbers from `first` on, each followed by who made it."""
    found = []
    for number, name in enumerate(names, first):
        found.append(RECORD.pack(kind, queues, 0, number) + name.encode())
        if maker := maker_of(kind, name):
            found.append(RECORD.pack(NameKind.MAKER, kind, 0, number) + maker.encode())
    return found
