"""Verify, the dictionary: numbers consecutive, names legal and distinct; a removed topic's number in the next edition."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

from store.directory import TOPIC_REMOVAL, StoreDirectory
from store.errors import IllegalName
from store.inspect.verify.files import Findings
from store.naming import check_name
from store.records import QUEUES_PER_TOPIC_MAX
from store.tables.journals import names as dictionary
from store.tables.journals.names import NameKind, NameRecord


class CheckedNames:
    """The names that records tell, each held against those before it."""

    def __init__(self, directory: StoreDirectory, findings: Findings, records: Iterable[tuple[int, bytes]]) -> None:
        self._directory, self._findings = directory, findings
        self.groups: list[str] = []
        self.topics: list[str] = []
        self.queues: list[int] = []
        self.editions: list[int] = []
        self.removed: set[int] = set()
        self._known_groups: set[str] = set()
        #: Of topics that are there.
        self._topic_nos: dict[str, set[int]] = {}
        path = directory.root / dictionary.NAME
        for at, payload in records:
            try:
                record = dictionary.decode(payload)
                kind = NameKind(record.kind)
                if kind != NameKind.MAKER and record.name != dictionary.stand_in(record.number):
                    check_name(record.name, kind.name.lower())
            except (struct.error, ValueError, IllegalName) as error:
                findings.add(path, at, f"not a name: {error}")
                continue
            if reason := self._learn_name(kind, record):
                findings.add(path, at, reason)
        self._check_namesakes(path)

    def _learn_name(self, kind: NameKind, record: NameRecord) -> str:
        """What is wrong with it; "" where nothing is."""
        number, name = record.number, record.name
        misplaced = f"{name!r} with number {number} where {{}} belongs, or known before"
        if kind == NameKind.MAKER:
            names = {NameKind.GROUP: self.groups, NameKind.TOPIC: self.topics}.get(NameKind(record.queues), [])
            return "" if 0 <= number < len(names) else f"says who made number {number}, which is not there"
        if kind == NameKind.GROUP:
            if number != len(self.groups) or name in self._known_groups or record.edition or record.queues:
                return misplaced.format(len(self.groups))
            self.groups.append(name)
            self._known_groups.add(name)
            return ""
        if not 1 <= record.queues <= QUEUES_PER_TOPIC_MAX:
            return misplaced.format(len(self.topics))
        return self._learn_removed(record) if kind == NameKind.REMOVED else self._learn_topic(record, misplaced)

    def _learn_topic(self, record: NameRecord, misplaced: str) -> str:
        number, again = record.number, record.number in self.removed
        if not again and number != len(self.topics):
            return misplaced.format(len(self.topics))
        if again and record.edition != self.editions[number] + 1:
            return f"{record.name!r} in edition {record.edition} of number {number}, where {self.editions[number] + 1} belongs"
        if again:
            self.removed.discard(number)
            self.topics[number], self.queues[number], self.editions[number] = record.name, record.queues, record.edition
        else:
            self.topics.append(record.name)
            self.queues.append(record.queues)
            self.editions.append(record.edition)
        self._topic_nos.setdefault(record.name, set()).add(number)
        return ""

    def _learn_removed(self, record: NameRecord) -> str:
        number = record.number
        there = 0 <= number < len(self.topics) and number not in self.removed
        if not there or (self.topics[number], self.queues[number], self.editions[number]) != (
            record.name,
            record.queues,
            record.edition,
        ):
            return f"the removal of topic {record.name!r} with number {number}, which is not there"
        if TOPIC_REMOVAL not in self._directory.needs or record.place < 0:
            return f"a removal at {record.place} of the log, in a store of format {self._directory.format}"
        self.removed.add(number)
        self._topic_nos[record.name].discard(number)
        return ""

    def _check_namesakes(self, path: Path) -> None:
        for name, numbers in self._topic_nos.items():
            if len(numbers) > 1:
                self._findings.add(path, 0, f"topic {name!r} has the numbers {sorted(numbers)}: one name, one number")
