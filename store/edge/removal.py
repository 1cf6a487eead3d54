"""Removing unused topics: which may go, decided at one instant by the one writer of names.

A topic is unused when nothing that is stored can still come to a reader under its name:

    queues     all are empty: what was released has aged out (begin = end), and every place that was given is settled
    halves     none that names it is open, or discarded (an operator may resume it)

    1  look through the halves, without a lock: how many of each topic are open or discarded
    2  look at the queues, in the job's catalogue. Extents only go up: what is empty here, and got no place since, is empty
    3  under the append lock: the halves that came since, and the places that were given. For what stays, the reason is returned
    4  still under it: the format says that topics may be removed, then REMOVED records with the end of the log, one flush
    5  a caller that encoded a message before sees that topics were removed and encodes it again: that creates the topic again

The number is another topic's only when the log begins behind the place of the removal (`names.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from store.arrays import Ints
from store.edge.store import EdgeStore
from store.naming import SYSTEM_PREFIX
from store.read.readers import LogReader
from store.records import QUEUE_ID_BITS, State
from store.tables.frames import MAGIC, FrameKind
from store.tables.queue_extents import Catalogue

#: Halves looked at in one go, and topics removed under the lock in one go: producers wait for less than a flush of the log.
HALVES_AT_ONCE: Final = 65_536
TOPICS_AT_ONCE: Final = 4_096
_RESUMABLE: Final = (0, int(State.DISCARDED_MAX), int(State.DISCARDED_EXPIRED))


@dataclass(slots=True)
class Removal:
    """What became of it: names that are removed (in a dry run: would be), and why each of the others stays."""

    removed: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)


def remove_topics(edge: EdgeStore, topics: Iterable[str], *, dry_run: bool = False) -> Removal:
    """Remove those of these topics that are unused. In any thread; producers wait for a piece of TOPICS_AT_ONCE at most."""
    look, found = _Look(edge), Removal()
    try:
        look.at_halves()  # 1
        look.at_queues()  # 2
        names = list(dict.fromkeys(topics))
        for at in range(0, len(names), TOPICS_AT_ONCE):
            look.remove(names[at : at + TOPICS_AT_ONCE], found, dry_run=dry_run)
    finally:
        look.close()
    return found


class _Look:
    def __init__(self, edge: EdgeStore) -> None:
        self._edge, self._reader = edge, LogReader(edge.directory)
        self._seen = max(edge.half_begin, edge.half_queue.begin)
        #: Halves that are open, and that are discarded, by topic number.
        self._open: Counter[int] = Counter()
        self._discarded: Counter[int] = Counter()
        self._extents: dict[int, tuple[int, int]] = {}

    def close(self) -> None:
        self._reader.close()

    def at_halves(self) -> None:
        """Halves that came since the last look."""
        stop = self._edge.half_end
        self._reader.half_queue.file.refresh()
        for first in range(self._seen, stop, HALVES_AT_ONCE):
            self._count(first, min(stop, first + HALVES_AT_ONCE))
        self._seen = stop

    def _count(self, first: int, stop: int) -> None:
        """By what is durable: an end that is not flushed may be taken back."""
        marks = np.frombuffer(self._edge.ends_table.file.view(first, stop - first), np.uint8)
        offsets = np.flatnonzero(np.isin(marks, _RESUMABLE)).astype(np.int64)
        entries, heads = self._reader.half_heads(offsets + first)
        # What is gone from the log, or damaged, cannot be released any more.
        good = (heads["magic"] == MAGIC) & (heads["kind"] == FrameKind.HALF) & (heads["size_bytes"] == entries["size_bytes"])
        is_open = marks[offsets] == 0
        self._open.update(heads["topic_no"][good & is_open].tolist())
        self._discarded.update(heads["topic_no"][good & ~is_open].tolist())
        self._count_members(np.flatnonzero(marks == State.MEMBER).astype(np.int64) + first)

    def _count_members(self, half_offsets: Ints) -> None:
        """Members of halves that are open or discarded."""
        entries, heads = self._reader.half_heads(half_offsets)
        good = (heads["magic"] == MAGIC) & (heads["kind"] == FrameKind.HALF) & (heads["size_bytes"] == entries["size_bytes"])
        for topic_no, head in zip(heads["topic_no"][good].tolist(), heads["position"][good].tolist(), strict=True):
            if head >= self._edge.half_begin and (mark := self._edge.durable_end_of(head)) in _RESUMABLE:
                (self._discarded if mark else self._open)[topic_no] += 1

    def at_queues(self) -> None:
        directory = self._edge.directory
        generation = directory.current_generation()
        if generation is not None:
            catalogue = Catalogue(directory.generation(generation) / "catalogue")
            self._extents = catalogue.extents()
            catalogue.close()

    def remove(self, names: Sequence[str], found: Removal, *, dry_run: bool) -> None:
        """Steps 3 to 5 for one piece."""
        self.at_halves()  # most of what came since, before producers wait
        with self._edge.lock:
            self.at_halves()  # 3
            numbers: list[int] = []
            for name in names:
                number = self._edge.dictionary.topic_no(name)
                if why := "there is no such topic" if number is None else self._why_not(name, number):
                    found.kept[name] = why
                elif number is not None:
                    numbers.append(number)
                    found.removed.append(name)
            if numbers and not dry_run:
                self._edge.remove_names(numbers)  # 4, 5

    def _why_not(self, name: str, number: int) -> str:
        """What is in the way, and what to do about it; "" where it is unused."""
        if name.startswith(SYSTEM_PREFIX):
            return "it is Escrow's own"
        if count := self._open[number]:
            return f"{count} halves for it are in doubt: end them (escrow tx list --topic {name}), or wait until they have ended"
        if count := self._discarded[number]:
            return (
                f"{count} discarded halves for it could be resumed: commit or roll them back (escrow tx list --state discarded "
                f"--topic {name}), or wait until retention has taken them (fileReservedTime)"
            )
        messages = 0
        for queue_key in range(number << QUEUE_ID_BITS, (number << QUEUE_ID_BITS) + self._edge.dictionary.queues[number]):
            begin, end = self._extents.get(queue_key, (0, 0))
            if self._edge.next_offset.get(queue_key, 0) != end:
                return "messages of it are not settled: try again when the job has settled them"
            messages += end - begin
        return f"{messages} messages of it can still be read: retention takes them after fileReservedTime" if messages else ""
