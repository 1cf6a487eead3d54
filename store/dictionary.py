"""The dictionary: numbers for names of producer groups, topics and consumer groups. A number is never given twice.

A journal (`journal.py`) whose payloads are
      0  u8   kind       GROUP 1, TOPIC 2, MAKER 3
      1  u8   queues     TOPIC: number of queues, fixed when the topic is made · GROUP: 0 · MAKER: kind of the name that was made
      2  u16  reserved   0
      4  i32  number     from 0 upwards, for each kind · MAKER: number of the name that was made
      8  …    name       UTF-8 · MAKER: name of the token that made it

Numbers instead of hashes: a hash confuses "Aa" with "BB". Writer: the edge, before the first frame that uses a number.
Rebuilt from: the names that frames carry in PGROUP and REAL_TOPIC (`names.py`).
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable
from enum import IntEnum
from pathlib import Path
from typing import Final

from store.errors import IllegalName, InvalidRecord
from store.frames import LOST_PREFIX, check_name
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


def encode(kind: NameKind, queues: int, number: int, name: str) -> bytes:
    return RECORD.pack(kind, queues, 0, number) + name.encode()


def decode(payload: bytes) -> tuple[int, int, int, str]:
    """(kind, queues, number, name)."""
    kind, queues, _, number = RECORD.unpack_from(payload)
    return kind, queues, number, payload[RECORD.size :].decode()


def stand_in(number: int) -> str:
    """Stands for a name that was lost, of a number that nothing uses any more. Nobody gets that number by asking for this name."""
    return f"{LOST_PREFIX}{number}"


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
        kind, queues, number, name = decode(payload)
        if kind == NameKind.GROUP and number == len(self.groups):
            if name != stand_in(number):
                self._group_no[name] = number
            self.groups.append(name)
        elif kind == NameKind.TOPIC and number == len(self.topics):
            if name != stand_in(number):
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

    @property
    def extent(self) -> tuple[int, int]:
        """Writer: (bytes, their CRC) that are durable."""
        return self._journal.end, self._journal.crc

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
        found.append(encode(kind, queues, number, name))
        if maker := maker_of(kind, name):
            found.append(encode(NameKind.MAKER, kind, number, maker))
    return found
