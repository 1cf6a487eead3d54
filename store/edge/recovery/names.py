"""How the dictionary is checked when the edge opens, and rebuilt if it is lost.

A number that is given to another name hands one tenant's messages to another. So the dictionary is used only when it is what it
was: the checkpoint says how long it was and its CRC, and a record that fails its own CRC with valid ones behind it is damage. Where
one of these does not hold, names are gathered from all that tells them:

    records   of the dictionary that can still be read: each has a CRC that knows its place, and tells its own number
    frames    every half and message of the commit log carries its group and topic by name and by number

Both must agree. A number in use whose name is not found (retention took the frames; a consumer group sends nothing) is an error.
Numbers that nothing uses any more keep a stand-in, so that they are not given again.

A topic's number may have had other names before: the record of the highest edition counts. Behind the place of a removal a frame
tells the next edition, whose record was lost. Where two topics that are there have one name, a removal was lost: the one that got
the last message is the one that is there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final
from zlib import crc32

import numpy as np

from store.directory import TOPIC_REMOVAL, StoreDirectory
from store.errors import Corrupt, NamesLost
from store.io import disk, journal
from store.naming import DLQ_PREFIX
from store.progress import Progress
from store.properties import KEYS, PGROUP, REAL_TOPIC, PropertyFinder
from store.records import QUEUES_PER_TOPIC_MAX, State, state_of, topic_of_key
from store.tables import frames
from store.tables.commit_log import CommitLog
from store.tables.frames import FrameKind
from store.tables.journals import consumers
from store.tables.journals import names as dictionary
from store.tables.journals.names import NAME, Dictionary, NameKind, NameRecord, stand_in
from store.tables.queue_extents import Catalogue
from store.tables.state_table import StateTable

_QUEUE_COUNTS: Final = np.arange(1, QUEUES_PER_TOPIC_MAX + 1)
_GROUP, _TOPIC, _KEY = (PropertyFinder(name) for name in (PGROUP, REAL_TOPIC, KEYS))
#: This many numbers behind the last known one may have been given to names that nothing uses.
UNTOLD_MAX: Final = 65_536
_KINDS: Final = {NameKind.GROUP: "group", NameKind.TOPIC: "topic"}


def why_doubted(directory: StoreDirectory, checkpoint: dict[str, Any] | None) -> str:
    """Why the dictionary cannot be used as it is; "" if it can. A torn tail is no reason."""
    path, state = directory.root / NAME, checkpoint or {}
    size_bytes, crc = (state.get("journals") or {}).get(NAME) or (0, 0)
    found = journal.survey(path, size_bytes)
    if not found.content and (size_bytes or state.get("half_end") or state.get("op_end")):
        return f"{path}: is missing or empty"
    if found.damaged:
        return f"{path}: damaged or cut off at byte {found.end}"
    if size_bytes and found.crc(size_bytes) != crc:
        return f"{path}: is not the file that was here"
    try:
        records = [dictionary.decode(each) for each in found.payloads]
    except ValueError as error:
        return f"{path}: holds something that is not a record of a name ({error}): another file was put here"
    topics = 1 + max((record.number for record in records if record.kind == NameKind.TOPIC), default=-1)
    if any(topic_of_key(int(key))[0] >= topics for key, _ in state.get("positions", [])):
        return f"{path}: has {topics} topics, and places were given in more: an older copy was put here"
    return ""


def learn_again(directory: StoreDirectory, positions: Iterable[int], default_queues: int, progress: Progress) -> None:
    """Rewrite the dictionary from everything that holds names. NamesLost if that is not enough."""
    gathered = _Gathered(directory, default_queues)
    gathered.from_records()
    gathered.from_frames(progress)
    gathered.from_uses(positions)
    gathered.settle_namesakes()
    payloads = gathered.payloads()
    disk.replace_file(directory.root / NAME, journal.encode_all(payloads), NAME)


@dataclass(slots=True)
class _Told:
    """What is known of one number. `queues`: told by a record, 0 where only frames speak of it."""

    name: str
    queues: int = 0
    edition: int = 0
    #: Place in the log where it was removed; -1: it is there.
    removed_at: int = -1
    #: Its last frame, and its record, if it has any: which of two namesakes is the later one.
    last_at: int = -1
    told_by: int = -1
    queues_min: int = 1
    #: Bit n: the queues of all its frames are those that a topic of n + 1 queues would give them.
    fits: int = -1


@dataclass(slots=True)
class _Gathered:
    directory: StoreDirectory
    default_queues: int
    told: dict[tuple[NameKind, int], _Told] = field(default_factory=dict)
    used: set[tuple[NameKind, int]] = field(default_factory=set)
    #: Records of who made a name that is there, as they stood there.
    makers: dict[tuple[int, int], bytes] = field(default_factory=dict)
    #: One more than the highest number of each kind that was ever seen.
    ends: dict[NameKind, int] = field(default_factory=lambda: dict.fromkeys(_KINDS, 0))
    #: One more than the highest queue of each topic that has a place in the catalogue or the checkpoint.
    queues_seen: dict[int, int] = field(default_factory=dict)

    def _tell(self, kind: NameKind, number: int, name: str) -> _Told:
        known = self.told.setdefault((kind, number), _Told(name))
        if known.name != name:
            raise NamesLost(_contradiction(str(self.directory.root / NAME), kind, number, known.name, name))
        self._see(kind, number)
        return known

    def _see(self, kind: NameKind, number: int) -> None:
        self.ends[kind] = max(self.ends[kind], number + 1)

    def from_records(self) -> None:
        for at, payload in enumerate(journal.survey(self.directory.root / NAME).payloads):
            try:
                record = dictionary.decode(payload)
            except ValueError:  # another file was put here
                continue
            if record.kind == NameKind.MAKER:
                self.makers[record.queues, record.number] = payload
            elif record.name == stand_in(record.number):
                continue
            elif record.kind == NameKind.GROUP:
                self._tell(NameKind.GROUP, record.number, record.name)
            elif record.kind in (NameKind.TOPIC, NameKind.REMOVED):
                self._tell_topic(record, at)

    def _tell_topic(self, record: NameRecord, at: int) -> None:
        """A topic was made or removed. Of an earlier edition than is known: that is over."""
        key = (NameKind.TOPIC, record.number)
        known = self.told.get(key)
        if known is not None and known.edition > record.edition:
            return
        if known is None or known.edition < record.edition:
            self.told.pop(key, None)
            self.makers.pop(key, None)
        told = self._tell(NameKind.TOPIC, record.number, record.name)
        told.queues, told.edition, told.told_by = record.queues, record.edition, at
        if record.kind == NameKind.REMOVED:
            told.removed_at = record.place
            self.makers.pop(key, None)

    def from_frames(self, progress: Progress) -> None:
        """Every frame of the log that can be read: retention takes a frame only when nothing points at it any more."""
        log = CommitLog(self.directory.commit_log, self.directory.geometry.commit_log_segment_bytes)
        begin, end = log.file.begin, log.file.end
        try:
            for at, size in log.salvage(begin, end, lambda *_: None):
                content = log.frame_bytes(at, size)
                if content[frames.KIND_AT] in (FrameKind.HALF, FrameKind.MESSAGE):
                    self._learn(content, at)
                    progress(at - begin, end - begin, "reading names from the commit log")
        finally:
            log.file.close()

    def _learn(self, frame: memoryview, at: int) -> None:
        head = frames.HALF_STRUCT.unpack_from(frame)
        properties = bytes(frame[frames.HALF_HEAD.itemsize + head[21] :])
        group, topic, queue_id = _GROUP.find(properties), _TOPIC.find(properties), head[13]
        if group is None or topic is None:
            return
        self._tell(NameKind.GROUP, head[11], group.decode())
        told = self._tell_used(head[12], topic.decode(), at)
        told.queues_min = max(told.queues_min, queue_id + 1)
        key = _KEY.find(properties)
        spread = crc32(key) if key else head[7]
        told.fits &= sum(1 << int(each) for each in np.flatnonzero(spread % _QUEUE_COUNTS == queue_id))

    def _tell_used(self, number: int, name: str, at: int) -> _Told:
        """A frame names a topic: behind its removal it is the next one with this number, whose record was lost."""
        known = self.told.get((NameKind.TOPIC, number))
        if known is not None and 0 <= known.removed_at <= at:
            self.told[NameKind.TOPIC, number] = _Told(name, edition=known.edition + 1)
        told = self._tell(NameKind.TOPIC, number, name)
        told.last_at = at
        return told

    def settle_namesakes(self) -> None:
        """Two topics that are there cannot have one name: the earlier one was removed, and its record was lost."""
        if TOPIC_REMOVAL not in self.directory.needs:
            return
        there: dict[str, _Told] = {}
        for (kind, _), told in sorted(self.told.items(), key=lambda item: (item[1].last_at, item[1].told_by)):
            if kind == NameKind.TOPIC and told.removed_at < 0:
                if (earlier := there.get(told.name)) is not None:
                    earlier.removed_at = max(told.last_at, 0)
                there[told.name] = told

    def from_uses(self, positions: Iterable[int]) -> None:
        """Numbers that something relies on: they need a name, and are never given again."""
        generation = self.directory.likely_generation()
        keys = set(positions)
        for payload in journal.survey(self.directory.root / consumers.NAME).payloads:
            try:
                record = consumers.decode(payload)
            except (struct.error, ValueError) as error:
                path = self.directory.root / consumers.NAME
                reason = f"not a consumer's record ({error}): another file was put here. Put it back from a backup"
                raise Corrupt(path, 0, reason) from error
            self._use(NameKind.GROUP, record.group_no)
            self._use_queue(record.queue_key)
            told = self.told.get((NameKind.TOPIC, topic_of_key(record.queue_key)[0]))
            if told is not None and told.told_by < 0:  # only frames tell of it
                told.edition = max(told.edition, record.edition)
        if generation is not None:
            catalogue = Catalogue(self.directory.generation(generation) / "catalogue")
            for key in catalogue.queue_keys():
                keys.add(key)
                begin, end = catalogue.extent(key)
                if begin < end:
                    self._use_queue(key)
            catalogue.close()
            self._use_rows(generation)
        for topic_no, queue_id in map(topic_of_key, keys):
            self._see(NameKind.TOPIC, topic_no)
            self.queues_seen[topic_no] = max(self.queues_seen.get(topic_no, 1), queue_id + 1)

    def _use(self, kind: NameKind, number: int) -> None:
        self.used.add((kind, number))
        self._see(kind, number)

    def _use_queue(self, queue_key: int) -> None:
        topic_no, queue_id = topic_of_key(queue_key)
        self._use(NameKind.TOPIC, topic_no)
        known = self.told.get((NameKind.TOPIC, topic_no))
        if known is not None:
            known.queues_min = max(known.queues_min, queue_id + 1)

    def _use_rows(self, generation: int) -> None:
        table = StateTable(self.directory.generation(generation) / "statetable" / "0", self.directory.geometry.state_rows_per_file)
        for file_no in table.file_numbers():
            rows = table.rows_of(file_no)
            states, groups = state_of(rows["word"]), rows["group_no"]
            for group_no in np.unique(groups[(states == State.PREPARED) & (groups >= 0)]).tolist():
                self._use(NameKind.GROUP, group_no)
            self._see(NameKind.GROUP, int(np.max(groups[states != State.NONE], initial=-1)))
        table.file.close()

    def payloads(self) -> list[bytes]:
        """The records of the new dictionary: groups, then topics, by number; then who made them."""
        lost = sorted(use for use in self.used if use not in self.told)
        if lost:
            raise NamesLost(self._explain(lost))
        found = []
        for kind in _KINDS:
            for number in range(min(self.ends[kind], self._plausible_end(kind))):
                # Also of a topic whose messages are all gone its queues keep their places.
                told = self.told.get((kind, number)) or _Told(stand_in(number), self.queues_seen.get(number, 1))
                queues = 0 if kind == NameKind.GROUP else told.queues or self._queues_of(told)
                record = NameRecord(kind, queues, told.edition, number, told.name)
                found.append(record.encode())
                if told.removed_at >= 0:
                    found.append(record._replace(kind=NameKind.REMOVED, place=told.removed_at).encode())
        there = (key for key in self.makers if self.told.get((NameKind(key[0]), key[1]), _Told("")).removed_at < 0)
        return found + [self.makers[key] for key in there]

    def _plausible_end(self, kind: NameKind) -> int:
        """Numbers far behind all that are told or used are those of a damaged row or queue: they get no stand-in."""
        return UNTOLD_MAX + max((number + 1 for of, number in (*self.told, *self.used) if of == kind), default=0)

    def _queues_of(self, told: _Told) -> int:
        """How many queues a topic had of which only frames are left: as many as fit to where its messages went."""
        if told.name.startswith(DLQ_PREFIX):
            return told.queues_min
        fitting = [count for count in range(told.queues_min, QUEUES_PER_TOPIC_MAX + 1) if told.fits >> (count - 1) & 1]
        usual = max(self.default_queues, told.queues_min)
        return usual if usual in fitting or not fitting else fitting[0]

    def _explain(self, lost: list[tuple[NameKind, int]]) -> str:
        named = ", ".join(f"{_KINDS[kind]} {number}" for kind, number in lost[:10]) + (", …" if len(lost) > 10 else "")
        return (
            f"{self.directory.root / NAME}: damaged, missing or not the one that was here, and no frame tells the name of {named}, "
            "which rows, queues or consumers still use. Another name must not get these numbers. Put the dictionary back from the "
            "last backup (an older one will do: what it lacks is read from the commit log), or restore a whole backup"
        )


def _contradiction(file: str, kind: NameKind, number: int, one: str, other: str) -> str:
    return (
        f"{file}: {_KINDS[kind]} {number} is {one!r} there and {other!r} in the commit log: a dictionary, or a log, of another "
        "store was put here. Put the right one back, or restore a backup (escrow store restore)"
    )


def teach(known: Dictionary, frame: memoryview, group_no: int, topic_no: int, body_bytes: int) -> bool:
    """Hold the names of a frame against the dictionary; False where a number is not in it. NamesLost where it has another name."""
    properties = bytes(frame[frames.HALF_HEAD.itemsize + body_bytes :])
    told = ((NameKind.GROUP, group_no, known.groups, _GROUP), (NameKind.TOPIC, topic_no, known.topics, _TOPIC))
    for kind, number, names, finder in told:
        if number >= len(names):
            return False
        name = finder.find(properties)
        if name is not None and names[number].encode() != name:
            raise NamesLost(_contradiction(NAME, kind, number, names[number], name.decode(errors="replace")))
    return True
