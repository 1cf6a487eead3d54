"""What each op of the followed partitions means for its half: one byte a half, changed in the order of the partition.

`store.tables.ends.judge` is the rule, as in the embedded store. An op that names a group counts if that is the group of the
half. An endpoint's op proves it by its sealed id; for any other op the half is looked up. If the half cannot be read now (it is
behind a stranger's open transaction, or its partition does not answer), the op waits, with every later op about the same half.
Other halves go on: how one ends does not depend on another.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException

from ingest.errors import OpsMissing
from ingest.kafka.ended.beginning import Gap
from ingest.kafka.ended.table import Ends
from ingest.kafka.ended.unjudged import Unjudged
from ingest.kafka.records.halves import Reader, reading
from ingest.kafka.records.ops import Op, headers_of, read_op, read_sealed
from ingest.kafka.records.places import Place
from ingest.kafka.records.sealing import PlaceSealer
from sinks.kafka.clients import Connection, bounds_of, end_watcher
from sinks.kafka.contract import Topics, owner_of
from store.records import OpKind
from store.tables.ends import OPEN, Answer, Verdict, byte_after, judge

ASK_S: Final = 5.0
#: The same where other partitions wait meanwhile.
GLANCE_S: Final = 1.0
AGAIN_S: Final = 0.5
#: Ops that may wait for halves that cannot be read; beyond that no more ops are read.
UNJUDGED_MAX: Final = 100_000
#: What the first end of a half is answered, and what becomes of its byte.
_FIRST: Final = {kind: judge(kind, OPEN) for kind in (OpKind.COMMIT, OpKind.ROLLBACK)}
_FIRST_BYTE: Final = {kind: byte_after(kind, OPEN) for kind in _FIRST}

#: An op record and its answer.
Judged = tuple[Any, Answer]


class OpJudge:
    """The ends tables of all partitions. One thread judges; any thread may look."""

    def __init__(self, connection: Connection, topics: Topics, sealer: PlaceSealer, now_ms: Callable[[], int]) -> None:
        self._topics, self._sealer, self._now_ms = topics, sealer, now_ms
        self._watcher = Consumer(reading(connection))  # reads nothing, so its questions wait behind no fetch
        self._half_watcher = end_watcher(connection)
        self._halves = Reader(connection, topics.half)
        self.ends: dict[int, Ends] = {}
        self._gaps: dict[int, Gap] = {}
        self._half_lows: dict[int, int] = {}
        self._half_ends: dict[int, int] = {}
        self.unjudged = Unjudged()
        self.counts: Counter[str] = Counter()

    def add(self, partition: int, ends: Ends, gap: Gap | None) -> None:
        """A partition, and what is known of its halves before its next op."""
        if gap is not None:
            self._gaps[partition] = gap
        self.ends[partition] = ends

    def look_at_halves(self) -> None:
        """Forget the ends of halves that are gone from the half topic."""
        for partition, ends in self.ends.items():
            low, self._half_ends[partition] = bounds_of(self._watcher, self._topics.half, partition, GLANCE_S)
            self._half_lows[partition] = low
            ends.forget(low)

    def close(self) -> None:
        self._watcher.close()
        self._half_watcher.close()
        self._halves.close()

    # --- from any thread ----------------------------------------------------------------------------------------------------
    def end_of(self, place: Place) -> int:
        """A half's byte, as far as the op partition has been read."""
        ends = self.ends.get(place.partition)
        return ends[place.half_offset] if ends is not None else OPEN

    def require_known(self, place: Place) -> None:
        """OpsMissing if ops about this half may be gone from Kafka."""
        if not self._is_known(place):
            raise OpsMissing(self._gaps[place.partition].text)

    @property
    def gap(self) -> str:
        """Why ends of some halves cannot be answered; "" if all can."""
        return next((gap.text for gap in self._gaps.values() if gap.matters(self._now_ms())), "")

    @property
    def is_full(self) -> bool:
        return self.unjudged.count >= UNJUDGED_MAX

    # --- judging ------------------------------------------------------------------------------------------------------------
    def judge(self, messages: list[Any]) -> list[Judged]:
        """Judge ops one after another. All lookups are done before the first of them changes anything."""
        sealed = [read_sealed(message, message.partition(), self._sealer) for message in messages]
        others = [(message, read_op(message)) for message, short in zip(messages, sealed, strict=True) if short is None]
        counted = self._those_that_count([(message.partition(), op) for message, op in others if op is not None])
        rest, plain = iter(others), not self.unjudged and not self._gaps
        judged: list[Judged] = []
        for message, short in zip(messages, sealed, strict=True):
            if short is not None and plain and self._is_first(message.partition(), *short):
                answer: Answer | None = _FIRST[short[0]]
            elif short is not None:
                answer = self._judge_in_turn(message, *short, counts=True)
            else:
                answer = self._judge_other(message, next(rest)[1], counted)
            if answer is not None:
                judged.append((message, answer))
        return judged

    def judge_again(self) -> list[Judged]:
        """Ops that wait, in the order in which they came."""
        if not self.unjudged.count or time.monotonic() - self.unjudged.tried_s < AGAIN_S:
            return []
        judged = self.judge(self.unjudged.take())
        self.unjudged.tried_s = time.monotonic()
        return judged

    def _is_first(self, partition: int, kind: OpKind, half_offset: int) -> bool:
        """Whether it is the first end of a half that is there; if so, note it. A short way through `_judge_in_turn` for nearly all
        ops."""
        if half_offset < self._half_lows.get(partition, 0) or not self.ends[partition].first(half_offset, _FIRST_BYTE[kind]):
            return False
        self.counts["accepted"] += 1
        return True

    def _judge_other(self, message: Any, op: Op | None, counted: set[tuple[int, int, str | None]]) -> Answer | None:
        """An op that has no good seal, or is no end."""
        if op is None or op.kind is OpKind.ASKED:
            self.counts["asked" if op else "illegal"] += 1
            return None
        counts = (message.partition(), op.half_offset, op.group) in counted
        return self._judge_in_turn(message, op.kind, op.half_offset, counts=counts)

    def _judge_in_turn(self, message: Any, kind: OpKind, half_offset: int, *, counts: bool) -> Answer | None:
        """None if nothing can be answered: it has to wait, is in the table already, or ops before it are missing."""
        partition = message.partition()
        if self.unjudged and self.unjudged.keeps(Place(partition, half_offset), message):
            return None
        if self.ends[partition].has(half_offset, message.offset()):
            return None
        answer = self._judge(partition, kind, half_offset, counts)
        self.counts[answer.verdict.value] += 1
        return answer if not self._gaps or self._is_known(Place(partition, half_offset)) else None

    def _judge(self, partition: int, kind: OpKind, half_offset: int, counts: bool) -> Answer:
        if not counts:
            return Answer(Verdict.REFUSED, "unknown id, or of another group")
        if half_offset < self._oldest(partition):
            return Answer(Verdict.REFUSED, "gone: it is older than what Kafka keeps")
        ends = self.ends[partition]
        before = ends[half_offset]
        answer = judge(kind, before)
        if answer.verdict is Verdict.ACCEPTED:
            ends[half_offset] = byte_after(kind, before)
        return answer

    def _oldest(self, partition: int) -> int:
        """The first half of which something can be said, now or later."""
        gap, low = self._gaps.get(partition), self._half_lows.get(partition, 0)
        return low if gap is None or gap.matters(self._now_ms()) else max(low, gap.known_from)

    def _is_known(self, place: Place) -> bool:
        """Whether all ops about this half are known."""
        gap = self._gaps.get(place.partition)
        return gap is None or place.half_offset >= gap.known_from or not gap.matters(self._now_ms())

    # --- looking halves up ----------------------------------------------------------------------------------------------------
    def _those_that_count(self, ops: list[tuple[int, Op]]) -> set[tuple[int, int, str | None]]:
        """(partition, half_offset, group) of ops that are about a half of that group."""
        good: set[tuple[int, int, str | None]] = set()
        doubtful: dict[int, dict[int, set[str | None]]] = {}
        for partition, op in ops:
            if op.kind is OpKind.ASKED:
                continue
            place = Place(partition, op.half_offset)
            if op.id and op.group is not None and self._sealer.is_good(op.id, place, op.group):
                good.add((partition, op.half_offset, op.group))
            else:
                doubtful.setdefault(partition, {}).setdefault(op.half_offset, set()).add(op.group)
        for partition, wanted in doubtful.items():
            try:
                self._look_up(partition, wanted, good)
            except KafkaException as error:
                self.unjudged.wait_for((Place(partition, half_offset) for half_offset in wanted), why=error.args[0].str())
        return good

    def _look_up(self, partition: int, wanted: dict[int, set[str | None]], good: set[tuple[int, int, str | None]]) -> None:
        """Which of these (half offset: groups that are named) are about a half of that group. KafkaException: not known now."""
        unstable = self._unstable(partition, wanted)
        self.unjudged.wait_for((Place(partition, half_offset) for half_offset in unstable), why="a transaction is open before it")
        wanted = {half_offset: groups for half_offset, groups in wanted.items() if half_offset not in unstable}
        if wanted:
            named = [half_offset for half_offset, groups in wanted.items() if groups != {None}]
            halves = self._halves.read(partition, named) if named else {}
            owners = {half_offset: owner_of(headers_of(half)) for half_offset, half in halves.items()}
            for half_offset, groups in wanted.items():
                good.update((partition, half_offset, group) for group in groups if group and owners.get(half_offset) == group)
                if None in groups and half_offset < self._half_end(partition, half_offset):
                    good.add((partition, half_offset, None))

    def _unstable(self, partition: int, half_offsets: Collection[int]) -> set[int]:
        """Halves behind a stranger's open transaction. Ops about them are judged when it has ended: the job waits for it, too."""
        end = self._half_end(partition, max(half_offsets))
        beyond = {half_offset for half_offset in half_offsets if half_offset >= end}
        if not beyond:
            return beyond
        last = bounds_of(self._half_watcher, self._topics.half, partition, ASK_S)[1]
        return {half_offset for half_offset in beyond if half_offset < last}

    def _half_end(self, partition: int, half_offset: int) -> int:
        """The end of a half partition: asked for again if it was not beyond this offset at the last look."""
        if half_offset >= self._half_ends.get(partition, 0):
            self._half_ends[partition] = bounds_of(self._watcher, self._topics.half, partition, ASK_S)[1]
        return self._half_ends[partition]
