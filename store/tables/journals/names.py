"""The dictionary: numbers for names of producer groups, topics and consumer groups.

A journal (`journal.py`) whose payloads are
      0  u8   kind       GROUP 1, TOPIC 2, MAKER 3, REMOVED 4
      1  u8   queues     TOPIC, REMOVED: number of queues, fixed when the topic is made · GROUP: 0 · MAKER: kind of the name that
                         was made
      2  u16  edition    TOPIC, REMOVED: how many topics had this number before · GROUP, MAKER: 0
      4  i32  number     from 0 upwards, for each kind · MAKER: number of the name that was made
      8  i64  place      REMOVED only: end of the commit log when the topic was removed; frames of it lie before
      8  …    name       (REMOVED: at 16) UTF-8 · MAKER: name of the token that made it

Numbers instead of hashes: a hash confuses "Aa" with "BB". Writer: the edge, before the first frame that uses a number.
Rebuilt from: the names that frames carry in PGROUP and REAL_TOPIC (`store/edge/recovery/names.py`).

A number never means two topics at a time. A removed topic's number gets another name only when the log begins behind the place of
the removal: no frame has the old name then. The new topic continues where the queues of the old one ended, in the next edition.
"""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from store.errors import Corrupt, IllegalName, InvalidRecord
from store.io.journal import Journal
from store.naming import LOST_PREFIX, check_name
from store.records import QUEUES_PER_TOPIC_MAX, TOPIC_NO_MAX

RECORD: Final = struct.Struct("<BBHi")
assert RECORD.size == 8
PLACE: Final = struct.Struct("<q")
NAME: Final = "dictionary"
TOPICS_MAX: Final = TOPIC_NO_MAX + 1
#: The last edition of a number: consumers' records have a byte for it. A topic of this edition that is removed uses its number up.
EDITION_MAX: Final = 255


class NameKind(IntEnum):
    GROUP = 1
    TOPIC = 2
    MAKER = 3
    REMOVED = 4


class NameRecord(NamedTuple):
    """One record; `kind` as it stands there."""

    kind: int
    queues: int
    edition: int
    number: int
    name: str
    place: int = 0

    def encode(self) -> bytes:
        place = PLACE.pack(self.place) if self.kind == NameKind.REMOVED else b""
        return RECORD.pack(self.kind, self.queues, self.edition, self.number) + place + self.name.encode()


#: Which token makes a name; "" where none does, or where it does not count.
MakerOf = Callable[[NameKind, str], str]


def no_maker(_kind: NameKind, _name: str) -> str:
    return ""


def encode(kind: NameKind, queues: int, number: int, name: str, edition: int = 0) -> bytes:
    return NameRecord(kind, queues, edition, number, name).encode()


def decode(payload: bytes) -> NameRecord:
    """ValueError if it is not a record of a dictionary."""
    try:
        kind, queues, edition, number = RECORD.unpack_from(payload)
        place, at = 0, RECORD.size
        if kind == NameKind.REMOVED:
            (place,), at = PLACE.unpack_from(payload, at), at + PLACE.size
    except struct.error as error:
        raise ValueError(f"{len(payload)} bytes are not a record of a name") from error
    return NameRecord(kind, queues, edition, number, payload[at:].decode(), place)


def stand_in(number: int) -> str:
    """Stands for a name that was lost, of a number that nothing uses any more. Asking for this name does not give that number."""
    return f"{LOST_PREFIX}{number}"


class Dictionary:
    """Names by number and numbers by name."""

    def __init__(self, path: Path, *, writable: bool = False, default_queues: int = 4) -> None:
        self._journal = Journal(path, NAME, writable=writable)
        self.default_queues = default_queues
        self._forget()
        for payload in self._journal.recover() if writable else self._journal.read_new():
            self._learn(payload)

    def _forget(self) -> None:
        self.groups: list[str] = []
        #: By number, of a removed topic too: what is left of it in the log is told under its name.
        self.topics: list[str] = []
        self.queues: list[int] = []
        self.editions: list[int] = []
        #: Numbers of removed topics that no other topic has got yet, and the place of the removal in the log.
        self.removed: dict[int, int] = {}
        #: Writer: those of them that may be given to other names, the one that waited longest first.
        self._free: deque[int] = deque()
        self._group_no: dict[str, int] = {}
        self._topic_no: dict[str, int] = {}
        #: How many names each token made that are still there, and who made which topic.
        self.made: Counter[tuple[NameKind, str]] = Counter()
        self._maker: dict[int, str] = {}

    def refresh(self) -> None:
        """Reader: learn what was added since; everything if the edge has rewritten the dictionary."""
        payloads = self._journal.read_new()
        if self._journal.began_anew:
            self._forget()
        for payload in payloads:
            self._learn(payload)

    def _learn(self, payload: bytes) -> None:
        try:
            record = decode(payload)
        except ValueError as error:
            reason = f"not a record of a name ({error}): another file was put here. Open the edge: it rebuilds the dictionary"
            raise Corrupt(self._journal.path, 0, reason) from error
        kind, number, name = record.kind, record.number, record.name
        if kind == NameKind.GROUP and number == len(self.groups):
            if name != stand_in(number):
                self._group_no[name] = number
            self.groups.append(name)
        elif kind == NameKind.TOPIC:
            self._learn_topic(record)
        elif kind == NameKind.MAKER and record.queues in (NameKind.GROUP, NameKind.TOPIC):
            self.made[NameKind(record.queues), name] += 1
            if record.queues == NameKind.TOPIC:
                self._maker[number] = name
        elif kind == NameKind.REMOVED and number < len(self.topics) and number not in self.removed:
            self._learn_removal(record)

    def _learn_topic(self, record: NameRecord) -> None:
        number, name = record.number, record.name
        if number == len(self.topics):
            self.topics.append(name)
            self.queues.append(record.queues)
            self.editions.append(record.edition)
        elif number in self.removed:
            del self.removed[number]
            self.topics[number], self.queues[number], self.editions[number] = name, record.queues, record.edition
        else:
            return
        if name != stand_in(number):  # a rebuilt dictionary may have a removed one behind its namesake
            self._topic_no.setdefault(name, number)

    def _learn_removal(self, record: NameRecord) -> None:
        self.removed[record.number] = record.place
        if self._topic_no.get(record.name) == record.number:
            del self._topic_no[record.name]
        if maker := self._maker.pop(record.number, ""):
            self.made[NameKind.TOPIC, maker] -= 1

    def group_no(self, name: str) -> int | None:
        """The number of a group that is known."""
        return self._group_no.get(name)

    def topic_no(self, name: str) -> int | None:
        """The number of a topic that is there."""
        return self._topic_no.get(name)

    def living_topics(self) -> Iterator[tuple[int, str]]:
        """(number, name) of the topics that are there."""
        return ((number, name) for number, name in enumerate(self.topics) if number not in self.removed)

    def maker_of_topic(self, number: int) -> str:
        """The token that made it; "" where an operator did, or it is not known."""
        return self._maker.get(number, "")

    @property
    def topic_count(self) -> int:
        """How many topics are there."""
        return len(self.topics) - len(self.removed)

    @property
    def topic_numbers_used(self) -> int:
        """Numbers that no new topic can get: those of topics that are there, and of removed ones that the log still holds."""
        return len(self.topics) - len(self._free)

    def add_group(self, name: str) -> int:
        """The number of a group, new or known; a new one is durable on return."""
        self.add_names([name], [])
        return self._group_no[name]

    def add_topic(self, name: str, queues: int | None = None) -> int:
        """The number of a topic, new or known; `queues` counts only when it is made."""
        self.add_names([], [name], queues=queues)
        return self._topic_no[name]

    def add_names(
        self, groups: Iterable[str], topics: Iterable[str], maker_of: MakerOf = no_maker, *, queues: int | None = None
    ) -> None:
        """Make all of these that are not known, with one write and one flush: durable on return. None where one cannot be made."""
        new_groups = [check_name(name, "group") for name in dict.fromkeys(groups) if name not in self._group_no]
        new_topics = [check_name(name, "topic") for name in dict.fromkeys(topics) if name not in self._topic_no]
        queues = self.default_queues if queues is None else queues
        if new_topics and not 1 <= queues <= QUEUES_PER_TOPIC_MAX:
            raise InvalidRecord(f"queues: {queues} is not between 1 and {QUEUES_PER_TOPIC_MAX}")
        if self.topic_numbers_used + len(new_topics) > TOPICS_MAX and new_topics:
            raise IllegalName(
                f"topic: {new_topics[0]}: all the {TOPICS_MAX} numbers of topics are used; remove unused topics (escrow "
                "topic remove --unused): their numbers are free when retention has passed the removal"
            )
        first = len(self.groups)
        records = [NameRecord(NameKind.GROUP, 0, 0, first + at, name) for at, name in enumerate(new_groups)]
        for number, name in zip(self._numbers_for(len(new_topics)), new_topics, strict=True):
            edition = self.editions[number] + 1 if number < len(self.topics) else 0
            records.append(NameRecord(NameKind.TOPIC, queues, edition, number, name))
        self._append(_with_makers(records, maker_of))

    def _numbers_for(self, count: int) -> list[int]:
        """Numbers of removed topics first: what is done often is not forgotten to be tested."""
        again = list(islice(self._free, count))
        return again + list(range(len(self.topics), len(self.topics) + count - len(again)))

    # --- removing -----------------------------------------------------------------------------------------------------------------
    def remove_topics(self, numbers: Iterable[int], place: int) -> None:
        """These topics are there no more: durable on return, with one write and one flush. `place`: the end of the log."""
        self._append(
            [
                NameRecord(
                    NameKind.REMOVED, self.queues[number], self.editions[number], number, self.topics[number], place
                ).encode()
                for number in numbers
            ]
        )

    def passed(self, log_begin: int) -> list[int]:
        """Numbers of removed topics of which the log tells nothing any more, and which are not free yet."""
        known = set(self._free)
        found = [number for number, place in self.removed.items() if place < log_begin and number not in known]
        return sorted((number for number in found if self.editions[number] < EDITION_MAX), key=self.removed.__getitem__)

    def free(self, numbers: Iterable[int]) -> None:
        """Other names may get these numbers of removed topics: nothing that is stored speaks of them under the old name."""
        self._free.extend(numbers)

    @property
    def extent(self) -> tuple[int, int]:
        """Writer: (bytes, their CRC) that are durable."""
        return self._journal.end, self._journal.crc

    def _append(self, payloads: list[bytes]) -> None:
        if payloads:
            self._journal.append(payloads)
        for payload in payloads:
            self._learn(payload)
        while self._free and self._free[0] not in self.removed:
            self._free.popleft()

    def close(self) -> None:
        self._journal.close()


def _with_makers(records: Iterable[NameRecord], maker_of: MakerOf) -> list[bytes]:
    """Records of names, each followed by who made it."""
    found = []
    for record in records:
        found.append(record.encode())
        if maker := maker_of(NameKind(record.kind), record.name):
            found.append(NameRecord(NameKind.MAKER, record.kind, 0, record.number, maker).encode())
    return found
