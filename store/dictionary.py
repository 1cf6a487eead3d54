"""The dictionary: numbers for names of producer groups, topics and consumer groups. A number is never given twice.

A journal (`journal.py`) whose payloads are
      0  u8   kind       GROUP 1, TOPIC 2
      1  u8   queues     TOPIC: number of queues, fixed when the topic is made · GROUP: 0
      2  u16  reserved   0
      4  i32  number     from 0 upwards, for each kind
      8  …    name       UTF-8

Numbers instead of hashes: a hash confuses "Aa" with "BB". Writer: the edge, before the first frame that uses a number.
Rebuilt from: the names that frames carry in PGROUP and REAL_TOPIC.
"""

from __future__ import annotations

import struct
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


class NameKind(IntEnum):
    GROUP = 1
    TOPIC = 2


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

    def group_no(self, name: str) -> int | None:
        """The number of a group that is known."""
        return self._group_no.get(name)

    def topic_no(self, name: str) -> int | None:
        return self._topic_no.get(name)

    def add_group(self, name: str) -> int:
        """The number of a group, new or known; a new one is durable on return."""
        number = self._group_no.get(name)
        if number is None:
            check_name(name, "group")
            number = self._add(NameKind.GROUP, 0, len(self.groups), name)
        return number

    def add_topic(self, name: str, queues: int | None = None) -> int:
        """The number of a topic, new or known; `queues` counts only when it is made."""
        number = self._topic_no.get(name)
        if number is None:
            check_name(name, "topic")
            queues = self.default_queues if queues is None else queues
            if not 1 <= queues <= QUEUES_PER_TOPIC_MAX:
                raise InvalidRecord(f"queues: {queues} is not between 1 and {QUEUES_PER_TOPIC_MAX}")
            if len(self.topics) > TOPIC_NO_MAX:
                raise IllegalName(f"topic: {name}: the store has all the {TOPIC_NO_MAX + 1} topics that it can number")
            number = self._add(NameKind.TOPIC, queues, len(self.topics), name)
        return number

    def restore(self, kind: NameKind, number: int, name: str, queues_min: int = 0) -> None:
        """A frame uses this number for this name, but the dictionary was lost. Numbers before it whose names no frame has told
        yet get a stand-in, so that none is given to another name."""
        names = self.groups if kind == NameKind.GROUP else self.topics
        if number < len(names):
            return
        queues = 0 if kind == NameKind.GROUP else max(self.default_queues, queues_min)
        for lost in range(len(names), number):
            self._add(kind, queues, lost, f"%lost-{lost}")
        self._add(kind, queues, number, name)

    def _add(self, kind: NameKind, queues: int, number: int, name: str) -> int:
        payload = RECORD.pack(kind, queues, 0, number) + name.encode()
        self._journal.append([payload])
        self._learn(payload)
        return number

    def close(self) -> None:
        self._journal.close()
